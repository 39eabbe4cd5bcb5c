"""Commands whose work is divided among ranks: those that a launcher started, or plain Python, which needs no MPI."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from mpigraph.config import launch
from mpigraph.errors import MPIGraphError
from mpigraph.storage.part_config import PartConfig

if TYPE_CHECKING:  # MPI starts with its import
    from mpigraph.mpi.world import World

__all__ = ["Ranks", "run_divided"]


class Ranks:
    """The ranks of a command: here one, without MPI."""

    rank = 0
    size = 1

    def together(self, doing: str) -> AbstractContextManager[None]:
        """Run local code; if it raised on any rank, raise on every rank. Collective on the ranks.

        Args:
            doing: what, for the message.
        """
        return nullcontext()

    def gather(self, data: bytes) -> list[bytes]:
        """Give every rank the bytes of every rank, in rank order. Collective on the ranks."""
        return [data]

    def read(self, part_config: str) -> PartConfig:
        """Read a partition configuration, which must be the same on all ranks. Collective on the ranks.

        Raises:
            PartitionError: it is missing or damaged, or ranks have read different ones; on every rank.
        """
        return PartConfig.read(part_config)

    def close(self) -> None:
        """End. Collective on the ranks."""


class _RanksOfJob(Ranks):
    """The ranks of a communicator, by default all. Collective on them: construction."""

    def __init__(self, comm: Any) -> None:
        from mpigraph.mpi.all_ranks import open_world

        self._world: World = open_world(comm)
        self.rank = self._world.rank
        self.size = self._world.size

    def together(self, doing: str) -> AbstractContextManager[None]:
        """As in the base class. Collective on the ranks."""
        from mpigraph.mpi.agree import together

        return together(self._world.comm, doing)

    def gather(self, data: bytes) -> list[bytes]:
        """As in the base class. Collective on the ranks."""
        from mpigraph.mpi.agree import allgather_bytes

        with self._world.watch("gathering what the ranks have found"):
            return allgather_bytes(self._world.comm, data)

    def read(self, part_config: str) -> PartConfig:
        """As in the base class. Collective on the ranks."""
        from mpigraph.store.host_ranges import check_same

        with self.together(f"reading {part_config}"):
            config = PartConfig.read(part_config)
        check_same(self._world, config)
        return config

    def close(self) -> None:
        """As in the base class. Collective on the ranks."""
        from mpigraph.mpi.abort import unguard

        self._world.close()
        unguard()


def run_divided(command: str, work: Callable[[Ranks], int], comm: Any = None) -> int:
    """Do the work of a command on all ranks; print an error once.

    Args:
        command: its name, for the error.
        work: does it and returns the exit status, which must be the same on every rank. An error of this library is
            raised on every rank, too.
        comm: the ranks that take part; by default those that a launcher started with this process.

    Returns:
        The exit status: 2 after an error.

    Collective on ``comm``.
    """
    ranks = Ranks() if comm is None and launch() is None else _RanksOfJob(comm)
    try:
        status = work(ranks)
    except MPIGraphError as error:
        status = 2
        if ranks.rank == 0:
            print(f"mpigraph {command}: error: {str(error).replace(chr(10), ' ')}", file=sys.stderr, flush=True)
    ranks.close()
    return status
