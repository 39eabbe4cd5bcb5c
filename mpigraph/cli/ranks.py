"""Commands that take any number of ranks: those that ``mpiexec`` or ``srun`` started, or one process without MPI."""

import sys
from collections.abc import Callable
from typing import Any

from mpigraph.config import launch
from mpigraph.errors import MPIGraphError
from mpigraph.partition.exchange import Exchange

__all__ = ["run_on_ranks"]


def run_on_ranks(command: str, work: Callable[[Exchange], None], comm: Any = None) -> int:
    """Do the work of a command on all ranks. MPI starts only where a launcher started several processes.

    Args:
        command: its name, for errors.
        work: raises errors of this library on every rank. Any other ends the job, since the others wait for this rank.
        comm: the ranks that take part; all by default.

    Returns:
        The exit status: 2 after an error of this library, which rank 0 prints.

    Collective on ``comm``.
    """
    if comm is None and launch() is None:
        work(Exchange())
        return 0
    from mpigraph.mpi.abort import unguard
    from mpigraph.mpi.agree import no_way_back
    from mpigraph.partition.over_mpi import MPIExchange
    from mpigraph.session.context import open_world

    world = open_world(comm)
    status = 0
    try:
        with no_way_back(world.comm):
            work(MPIExchange(world.comm))
    except MPIGraphError as error:  # on every rank
        status = 2
        if world.rank == 0:
            print(f"mpigraph {command}: error: {str(error).replace(chr(10), ' ')}", file=sys.stderr, flush=True)
    world.close()
    unguard()
    return status
