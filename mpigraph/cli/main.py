"""The command line: ``python -m mpigraph COMMAND``; ``grammar`` has the commands.

Here is also their output: tables, names that are safe in a terminal.
"""

import argparse
import io
import json
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import fields
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args

from mpigraph.cli.grammar import GROUPS, STATUSES
from mpigraph.config import launch, launcher_rank, log_at
from mpigraph.errors import InvalidArgumentError, MPIGraphError, StorageError
from mpigraph.log import set_identity

T = TypeVar("T")
QUIET = ContextVar("quiet", default=False)  # print results and errors alone
_PATIENCE = 5.0  # seconds


def printable(name: str) -> str:
    """Return a name with control characters escaped as in Python, so that it cannot move a terminal's cursor."""
    return name if name.isprintable() else repr(name)[1:-1]


def table(names: list[str], rows: list[list[str]], left: tuple[int, ...] = ()) -> list[str]:
    """Return lines with columns as wide as their widest cell, numbers to the right."""
    columns = list(zip(names, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    return [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (names, *rows)
    ]


def pairs(option: str, form: str, texts: Sequence[str]) -> dict[str, str]:
    """Return the values of an option that is given once for each name, as NAME=VALUE.

    Raises InvalidArgumentError, with the option's ``form``: a name or its "=" is missing, or a name is there twice.
    """
    split = dict(text.partition("=")[::2] for text in texts)
    if len(split) < len(texts) or "" in split or not all("=" in text for text in texts):
        raise InvalidArgumentError(f"{option} must be {form}, once for each name (got {', '.join(texts)})")
    return split


def chosen(cls: type[T], options: Mapping[str, Any]) -> T:
    """Return an object of a dataclass whose fields are options of a command, by name."""
    return cls(**{of.name: options[of.name] for of in fields(cls) if of.name in options})  # type: ignore[arg-type]


COMMANDS = {cls.__name__.lower(): (cls, module) for group in GROUPS.values() for cls, module in group.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status, one of :data:`.STATUSES`."""
    words = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal may lack letters of a type's name
        sys.stdout.reconfigure(errors="backslashreplace")
    if argv is None and words[:1] != ["run"] and launch() is None:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the command ends with the reader of its output, as others do
    return _run(words)


class _Parser(argparse.ArgumentParser):
    """A parser that knows what a wrong word may mean; the first rank of a job prints errors for all."""

    words: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        if _is_silent():
            sys.exit(2)
        for name in (word.partition("=")[0] for word in self.words):
            known = self._option_string_actions
            if name.startswith("--") and not any(option.startswith(name) for option in known):
                message += _meant(name, known)
        super().error(message)


def _is_silent() -> bool:
    """Return whether the first rank speaks for this one, before MPI starts.

    This rank waits meanwhile: when one ends with an error launchers end the others, which may not have begun.
    """
    if launcher_rank() == 0:
        return False
    time.sleep(_PATIENCE)
    return True


def _meant(word: str, known: Iterable[str]) -> str:
    return "".join(f" (did you mean {name}?)" for name in get_close_matches(word, known, 1))


def _parser_of(name: str) -> _Parser:
    """Return the parser of a command: its options are the fields of its class."""
    cls, _ = COMMANDS[name]
    parser = _Parser(prog=f"{_program()} {name}", description=cls.__doc__)
    sections: dict[str, Any] = {}
    for field in fields(cls):
        more = {"default": None if field.default == () else field.default, **field.metadata}
        section, flags, underscores = (more.pop(key, None) for key in ("section", "flags", "underscores"))
        kind = next(iter(get_args(field.type)), field.type)  # int of int | None
        if kind is bool:
            del more["metavar"]
            more["action"] = "store_true"
        elif kind is not str:
            more["type"] = kind
        if field.default == () and "nargs" not in more:
            more["action"] = "append"
        if flags is not None:
            flags = flags or ["--" + (field.name if underscores else field.name.replace("_", "-"))]
            more["dest"] = field.name
        if section and section not in sections:
            sections[section] = parser.add_argument_group(section)
        sections.get(section, parser).add_argument(*(flags or [field.name]), **more)
    if name != "run":  # whose script has options of its own
        parser.add_argument("-v", "--verbose", action="store_true", help="log what the command chooses")
        parser.add_argument("-q", "--quiet", action="store_true", help="print results and errors alone")
    return parser


def _program() -> str:
    """Return the words by which the command was started."""
    return "mpigraph" if Path(sys.argv[0]).name == "mpigraph" else "python -m mpigraph"


def _overview() -> str:
    lines = [f"usage: {_program()} COMMAND [OPTIONS]", "", "Distributed graph learning on MPI."]
    for group, classes in GROUPS.items():
        lines += ["", f"{group}:"]
        lines += [f"  {cls.__name__.lower():<12}{(cls.__doc__ or '').splitlines()[0].rstrip('.')}" for cls in classes]
    lines += ["", "COMMAND --help: its options, --version: the version. The exit status:"]
    return "\n".join([*lines, *(f"  {status:<12}{text}" for status, text in STATUSES.items())])


def _run(words: Sequence[str]) -> int:
    name = words[0] if words else "--help"
    if name in ("-h", "--help", "--version"):
        try:
            put(f"mpigraph {version('mpigraph')}" if name == "--version" else _overview())
        except StorageError as error:
            return fail("", str(error))
        return 0
    if name not in COMMANDS:
        text = f"{name!r} is no command{_meant(name, COMMANDS)}; {_program()} lists them"
        return 2 if _is_silent() else fail("", text)
    parser = _parser_of(name)
    parser.words = words
    arguments = {key: value for key, value in vars(parser.parse_args(words[1:])).items() if value is not None}
    verbose, quiet = (arguments.pop(key, False) for key in ("verbose", "quiet"))
    QUIET.set(quiet)
    if verbose or quiet:
        log_at("INFO" if verbose else "ERROR")
        set_identity(name, "INFO" if verbose else "ERROR")
    cls, module = COMMANDS[name]
    command = getattr(import_module(f"mpigraph.cli.{module}"), name)
    if name == "run":  # an exception of the script shows as a traceback and ends the whole job
        return int(command(cls(**arguments)))
    try:
        return int(command(cls(**arguments)))
    except (MPIGraphError, OSError, MemoryError) as error:
        return fail(name, str(error) or type(error).__name__, getattr(error, "everywhere", False))
    except KeyboardInterrupt:
        if launcher_rank() == 0:
            say(f"mpigraph {name}: interrupted")
        return 130


def fail(command: str, text: str, once: bool = False) -> int:
    """Print one line about an error, only on the first rank if all have it (``once``); return the status for it."""
    if not once or launcher_rank() == 0:
        say(f"{f'mpigraph {command}'.rstrip()}: error: {text}".replace("\n", " "))
    return 2


def show(content: Mapping[str, Any], text: str) -> None:
    """Print a result as text, or as JSON if the text is empty. Raises as :func:`put`."""
    put(text or json.dumps(content, indent=2))


def put(text: object) -> None:
    """Print a line of the result. Raises StorageError: it cannot be written, such as to a full disk."""
    try:
        print(text, flush=True)
    except OSError as error:
        raise StorageError(f"standard output cannot be written: {error.strerror}") from error


def note(text: str) -> None:
    """Print something beside the result, unless the command is to be quiet."""
    if not QUIET.get():
        say(text)


def say(text: str, end: str = "\n") -> None:
    """Print to standard error; where it is closed or full, the command goes on without."""
    if sys.stderr is not None:  # else print would write to stdout
        with suppress(OSError):
            print(text, end=end, file=sys.stderr, flush=True)
