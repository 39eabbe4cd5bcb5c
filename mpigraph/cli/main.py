"""The command line: ``python -m mpigraph COMMAND``. Each command is a module with ``add_parser``."""

import argparse
import sys
from collections.abc import Sequence

from mpigraph.cli import bench, copy, generate, launch, partition, stage
from mpigraph.errors import MPIGraphError

__all__ = ["main"]

_COMMANDS = (generate, partition, launch, copy, stage, bench)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0, or 2 after one line about wrong input."""
    parser = argparse.ArgumentParser(prog="python -m mpigraph", description="Distributed graph learning on MPI.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in _COMMANDS:
        module.add_parser(commands)
    arguments = parser.parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except (MPIGraphError, OSError, MemoryError) as error:
        text = str(error).replace("\n", " ") or type(error).__name__
        print(f"mpigraph {arguments.command}: error: {text}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"mpigraph {arguments.command}: interrupted", file=sys.stderr)
        return 130
