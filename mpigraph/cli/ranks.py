"""The ranks of a command: those of a launcher, or this process alone, without MPI."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mpigraph.collective import collective
from mpigraph.config import launch
from mpigraph.partition.exchange import ALONE, Exchange
from mpigraph.storage.part_config import PartConfig

if TYPE_CHECKING:  # it loads MPI, and one process needs none
    from mpigraph.mpi.world import World


@contextmanager
@collective("comm")
def working_ranks(command: str, comm: Any = None) -> Iterator[Exchange]:
    """Run a command on the ranks that a launcher started with this process, or on this process alone.

    Arguments and errors are those of :func:`working_world`.
    """
    if comm is None and launch() is None:
        yield ALONE
        return
    from mpigraph.partition.over_mpi import MPIExchange

    with working_world(command, comm) as world:
        yield MPIExchange(world.comm)


@contextmanager
@collective("comm")
def working_world(command: str, comm: Any = None, num_servers: int | None = 0) -> Iterator["World"]:
    """Run a command on all ranks of a job, by MPI.

    An error that every rank raises is raised; an error of one rank, for which the others would wait, ends the job.

    Args:
        command: its name, for the message.
        comm: the ranks that take part, all by default.
        num_servers: on each node; None for the number of the environment.
    """
    from mpigraph.mpi.abort import abort, unguard
    from mpigraph.mpi.world import open_world

    world = open_world(comm, num_servers)
    try:
        yield world
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
