"""The command line: ``python -m mpigraph COMMAND``. Modules register them by ``add_parser``."""

import argparse
import io
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from mpigraph.cli.pipes import Pipes
from mpigraph.config import launcher_rank
from mpigraph.errors import MPIGraphError

COMMANDS = {  # and their modules, each imported when needed, since some load libraries for seconds
    "generate": "graphs",
    **{name: name for name in "partition info verify launch copy stage doctor".split()},
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
    with Pipes():
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
