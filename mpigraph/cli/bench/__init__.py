"""``python -m mpigraph bench``: measure the machine's limits, the library, and a training step.

The measuring code is imported when the command runs, since its import starts MPI.
"""

import argparse
import sys
from dataclasses import fields

from mpigraph.cli.bench.settings import Settings, spelled
from mpigraph.config import launcher_rank
from mpigraph.errors import MPIGraphError

__all__ = ["add_parser"]

_HELP = {
    "nodes": "nodes of the generated graph",
    "edges": "its directed edges",
    "feat_dim": "length of its feature rows (float32)",
    "part_config": "measure on this partitioned graph instead (<name>.json)",
    "dir": "where to write the generated graph for the job; every node must see it",
    "batch_size": "seeds of a minibatch, on each trainer",
    "fanouts": "neighbours in each layer, outermost hop first",
    "hidden": "width of the hidden layers",
    "seconds": "about how long to measure in all, after the start",
    "num_servers": "servers on each node (MPIGRAPH_NUM_SERVERS, else 1)",
    "report": "write a report of the steps with prefetching to this folder",
    "out": "write all figures here",
}


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = commands.add_parser(
        "bench",
        help="measure machine, library and training step",
        description="Measure the limits of the machine, the library, and the stages of a training step. "
        "Start it as a job is started: python, mpiexec or srun. Takes about a minute.",
    )
    for entry in fields(Settings):
        kind = int if entry.default is None else type(entry.default)
        note = f" ({entry.default})" if entry.default else ""
        metavar = "FILE.json" if entry.name == "out" else entry.name.rpartition("_")[2].upper()
        names = [spelled(entry.name), *(["-o"] if entry.name == "out" else ())]
        parser.add_argument(*names, type=kind, default=entry.default, metavar=metavar, help=_HELP[entry.name] + note)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if launcher_rank() == 0:
        print("bench: loading the library", file=sys.stderr, flush=True)
    from mpigraph.cli.bench.job import process_age, run

    age = process_age()  # before anything of this command
    try:
        return run(Settings(**{name: getattr(arguments, name) for name in _HELP}), age)
    except MPIGraphError as error:
        error.everywhere = True  # every rank got these options, and a job raises its errors on every trainer
        raise
