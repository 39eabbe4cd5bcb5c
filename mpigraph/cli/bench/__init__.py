"""``python -m mpigraph bench``: measure the machine's limits, the library, and a training step.

The measuring code is imported when the command runs, since its import starts MPI.
"""

import argparse
import sys

from mpigraph.cli.bench.settings import Settings
from mpigraph.config import launcher_rank
from mpigraph.errors import MPIGraphError

__all__ = ["add_parser"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = commands.add_parser(
        "bench",
        help="measure machine, library and training step",
        description="Measure the limits of the machine, the library, and the stages of a training step. "
        "Start it as a job is started: python, mpiexec or srun. Takes about a minute.",
    )
    for name, (default, text) in Settings.options().items():
        parser.add_argument(
            f"--{name}", default=default, metavar=name.replace("_", "-").rpartition("-")[2].upper(), help=text
        )
    parser.add_argument("--num-servers", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.add_argument("-o", "--out", default="", metavar="FILE.json", help="write all figures here")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if launcher_rank() == 0:
        print("bench: loading the library", file=sys.stderr, flush=True)
    from mpigraph.cli.bench.job import process_age, run

    age = process_age()  # before anything of this command
    try:
        return run(Settings.of(vars(arguments)), age)
    except MPIGraphError as error:
        error.everywhere = True  # every rank got these options, and a job raises its errors on every trainer
        raise
