"""The command line: ``python -m mpigraph COMMAND``. Modules register them by ``add_parser``.

Here is also their output: tables, names that are safe in a terminal, readers that leave (``info parts/g.json | head``).
"""

import argparse
import io
import sys
from collections.abc import Sequence
from importlib import import_module
from types import TracebackType
from typing import Any, NoReturn

from mpigraph.config import launcher_rank
from mpigraph.errors import MPIGraphError

_OPTIONS = ("encoding", "errors", "line_buffering", "write_through")
_STATUS = 141  # a shell's status of a program that SIGPIPE has ended


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


class _Pipes:
    """A context manager that drops output to stdout and stderr once their reader has left; the exit status is 141 then.

    The command goes on: other ranks would wait for one that ends. Streams that were replaced, as by a test, stay.
    """

    def __init__(self) -> None:
        self._replaced: dict[str, Any] = {}
        self._pipes: list[_Pipe] = []

    def __enter__(self) -> "_Pipes":
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is None or stream is not getattr(sys, f"__{name}__"):
                continue
            pipe = _Pipe(stream.fileno(), "w", closefd=False)
            options = {option: getattr(stream, option) for option in _OPTIONS}
            text = io.TextIOWrapper(io.BufferedWriter(pipe), **options)
            self._replaced[name] = stream
            self._pipes.append(pipe)
            setattr(sys, name, text)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, stream in self._replaced.items():
            getattr(sys, name).flush()
            setattr(sys, name, stream)
        if any(pipe.reader_left for pipe in self._pipes):
            raise SystemExit(_STATUS)


class _Pipe(io.FileIO):
    """A standard stream that drops output once its reader has left."""

    reader_left = False

    def write(self, data: Any) -> int:
        if not self.reader_left:
            try:
                return super().write(data) or 0
            except BrokenPipeError:
                self.reader_left = True
        return memoryview(data).nbytes


COMMANDS = {  # and their modules, each imported when needed, since some load libraries for seconds
    "generate": "graphs",
    **{name: name for name in "partition info".split()},
    "verify": "info",
    **{name: name for name in "launch copy stage doctor".split()},
    "run": "scripts",
    "export": "graphs",
    "report": "doctor",
    "examples": "scripts",
    "slurm": "scripts",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0, or 2 after one line about wrong input."""
    words = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal may lack letters of a type's name
        sys.stdout.reconfigure(errors="backslashreplace")
    if words[:1] == ["run"]:  # the script owns its streams
        return _run(words)
    with _Pipes():
        return _run(words)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors the first rank of a job prints for all: they have the same words."""

    def error(self, message: str) -> NoReturn:
        if launcher_rank() > 0:
            sys.exit(2)
        super().error(message)


def _run(words: Sequence[str]) -> int:
    parser = _Parser(prog="python -m mpigraph", description="Distributed graph learning on MPI.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    names = words[:1] if words and words[0] in COMMANDS else COMMANDS
    for module in dict.fromkeys(COMMANDS[name] for name in names):
        import_module(f"mpigraph.cli.{module}").add_parser(commands)
    arguments = parser.parse_args(words)
    if getattr(arguments, "raises", False):
        return int(arguments.run(arguments))
    try:
        return int(arguments.run(arguments))
    except (MPIGraphError, OSError, MemoryError) as error:
        if getattr(error, "everywhere", False) and launcher_rank() > 0:
            return 2  # the first rank speaks for all
        text = str(error).replace("\n", " ") or type(error).__name__
        print(f"mpigraph {arguments.command}: error: {text}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if launcher_rank() == 0:
            print(f"mpigraph {arguments.command}: interrupted", file=sys.stderr)
        return 130
