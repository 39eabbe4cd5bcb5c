"""The ranks that work on a command together: those that a launcher started, or this process alone, without MPI."""

from collections.abc import Iterator
from contextlib import contextmanager

from mpigraph.config import launch
from mpigraph.partition.exchange import ALONE, Exchange

__all__ = ["working_ranks"]


@contextmanager
def working_ranks(command: str) -> Iterator[Exchange]:
    """Run a command on all ranks of a job.

    An error that every rank raises is raised; one of a single rank, for whom the others would wait, ends the job.

    Args:
        command: its name, for the message.

    Collective on all ranks.
    """
    if launch() is None:
        yield ALONE
        return
    from mpigraph.mpi.abort import abort, unguard  # MPI starts with its import, and one process needs none
    from mpigraph.partition.over_mpi import MPIExchange
    from mpigraph.mpi.all_ranks import open_world

    world = open_world(None)
    try:
        yield MPIExchange(world.comm)
    except Exception as error:
        if not getattr(error, "everywhere", False) and world.size > 1:
            text = str(error).replace("\n", " ") or type(error).__name__
            abort(2, f"mpigraph {command}: error on rank {world.rank}: {text}\n")
        world.close()
        unguard()
        raise
    world.close()
    unguard()
