"""The ranks of a command: those of a launcher, or this process alone, without MPI."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mpigraph.collective import collective
from mpigraph.config import launch
from mpigraph.partition.exchange import ALONE, Exchange
from mpigraph.storage.part_config import PartConfig


@contextmanager
@collective("comm")
def working_ranks(command: str, comm: Any = None) -> Iterator[Exchange]:
    """Run a command on all ranks of a job.

    An error that every rank raises is raised; an error of one rank, for which the others would wait, ends the job.

    Args:
        command: its name, for the message.
        comm: the ranks that take part; by default those that a launcher started with this process.
    """
    if comm is None and launch() is None:
        yield ALONE
        return
    from mpigraph.mpi.abort import abort, unguard  # they load MPI, and one process needs none
    from mpigraph.mpi.world import open_world
    from mpigraph.partition.over_mpi import MPIExchange

    world = open_world(comm)
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


@collective("ranks")
def read_config(exchange: Exchange, part_config: str) -> PartConfig:
    """Read a partition configuration, which must be the same on all ranks.

    Raises PartitionError: it is missing or damaged, or differs between ranks; on every rank.
    """
    with exchange.together(f"reading {part_config}"):
        config = PartConfig.read(part_config)
    if exchange.size > 1:
        from mpigraph.store.host_ranges import check_same

        check_same(exchange.gather_bytes, config)
    return config
