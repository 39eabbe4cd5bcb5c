"""``python -m mpigraph bench``: what this machine allows, what the library reaches, and where a step's time goes.

MPI starts with the first import of the measuring code, so that is imported when the command runs: a parser needs no
MPI.
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
        description="Measure what the machine allows and what the library reaches, and say where a training step's "
        "time goes. Start it as a job is started: python, mpiexec or srun. Takes about a minute.",
    )
    for name, (default, text) in Settings.options().items():
        parser.add_argument(
            f"--{name}", default=default, metavar=name.replace("_", "-").rpartition("-")[2].upper(), help=text
        )
    parser.add_argument("--num-servers", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.add_argument("-o", "--out", default="", metavar="FILE.json", help="write all figures here")
    parser.add_argument("--plot", default="", metavar="FILE.png", help="draw the time of each stage (needs matplotlib)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if launcher_rank() == 0:
        print("bench: loading the library", file=sys.stderr, flush=True)
    from mpigraph.cli.bench.job import run
    from mpigraph.cli.bench.machine import process_age

    age = process_age()  # before anything of this command
    try:
        return run(Settings.of(vars(arguments)), age)
    except MPIGraphError as error:  # on every rank
        failure = error
    return _report_once(failure)


def _report_once(error: MPIGraphError) -> int:
    """Print an error that every rank has on one of them; only a running job knows which."""
    from mpigraph.session.context import current, exit_client, initialize, is_initialized

    if not is_initialized():
        initialize(num_servers=0)
    if current().rank == 0:
        print(f"mpigraph bench: error: {str(error).replace(chr(10), ' ')}", file=sys.stderr, flush=True)
    exit_client()
    return 2
