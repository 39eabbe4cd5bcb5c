"""What a rank of a running job holds: graphs, tensors, channels. The same class on servers and trainers."""

from collections.abc import Iterable
from typing import Any

from mpi4py import MPI

from mpigraph.errors import CollectiveError, MPIGraphError
from mpigraph.mpi.agree import everywhere
from mpigraph.mpi.world import World
from mpigraph.rows.row_cache import RowCache, slots_for
from mpigraph.rows.row_tensor import RowTensor
from mpigraph.sampling.answering import Answers
from mpigraph.sampling.channel import Channel
from mpigraph.sampling.exchanges import open_exchange
from mpigraph.store.graph_store import GraphStore

__all__ = ["State"]

MANY = 100  # tensors and channels, from which on it is checked whether there can be one more
_SPARE = 8  # communicators that are to be left


class State(GraphStore):
    """Everything that the ranks share.

    Attributes:
        exchange: how sampling requests reach the owners of nodes.
        channels: open channels by number.
        caches: caches of far rows by number.

    Collective on ``world.comm``: construction, :meth:`close` and every method that makes or frees something.
    """

    def __init__(self, world: World, seed: int) -> None:
        """Start with nothing loaded. ``seed`` is the job's default for every draw.

        Raises:
            InvalidArgumentError: a setting of windows, transports or sampling cannot be; on every rank. The world is
                closed.
            CollectiveError: no transport works; on every rank. The world is closed.
        """
        super().__init__(world, seed)
        try:
            self.exchange = open_exchange(world, lambda: Answers(self).answer)
        except MPIGraphError:  # on every rank
            world.close()
            raise
        self.channels: dict[int, Channel] = {}
        self.caches: dict[int, RowCache] = {}

    def open_channel(self) -> Channel:
        """Make a channel for what one thread of every trainer samples.

        Raises:
            CollectiveError: MPI has no communicators left; on every rank.

        Collective on ``world.comm``.
        """
        self._check_communicators()
        channel = self.exchange.open(self.new_number())
        self.channels[channel.number] = channel
        return channel

    def open_caches(
        self, groups: Iterable[tuple[list[int], int]], ahead: int, near_too: bool = False
    ) -> dict[int, RowCache]:
        """Make a cache for each of some tensors.

        Args:
            groups: numbers of tensors, and how many bytes the caches of these take on each node together; what fits,
                if it is below 0.
            ahead: how many minibatches are known before they read, at most.
            near_too: they have slots for near rows, too.

        Returns:
            The caches by number of their tensor.

        Raises:
            SharedMemoryError: a node's shared memory cannot hold them; on every rank.
            CollectiveError: MPI has no communicators left; on every rank.

        Collective on ``world.comm``.
        """
        self._check_communicators()
        made: dict[int, RowCache] = {}
        try:
            for numbers, nbytes in groups:
                tensors = [self.tensors[number] for number in numbers]
                promised = sum(cache.nbytes for cache in self.caches.values())
                for tensor, slots in zip(
                    tensors, slots_for(self.world, tensors, nbytes, promised, near_too), strict=True
                ):
                    cache = RowCache(self.world, self.new_number(), tensor, slots, ahead)
                    made[tensor.number] = self.caches[cache.number] = cache
        except MPIGraphError:  # on every rank: nobody has those that were made
            self.free([cache.number for cache in made.values()])
            raise
        return made

    def create_tensor(self, *args: Any, **options: Any) -> RowTensor:
        """As :class:`GraphStore` does it.

        Raises:
            CollectiveError: MPI has no communicators left; on every rank.

        Collective on ``world.comm``.
        """
        self._check_communicators()
        return super().create_tensor(*args, **options)

    def _check_communicators(self) -> None:
        """Check that MPI has communicators left. Windows take some, too, and where MPICH has none for one it crashes.

        Collective on ``world.comm`` where this rank holds much.
        """
        if len(self.tensors) + len(self.channels) + len(self.caches) < MANY:
            return
        spare: list[MPI.Intracomm] = []
        try:
            while len(spare) < _SPARE:
                spare.append(self.world.comm.Dup())
        except MPI.Exception as error:  # on every rank
            raise everywhere(
                CollectiveError(
                    f"MPI has no communicators left ({str(error).splitlines()[0]}) for another tensor or loader: there "
                    f"are {len(self.tensors)} tensors and {len(self.channels)} loaders, each with one or two "
                    "(MPICH has 2048 in all): drop or close some, or keep several columns in one tensor"
                )
            ) from None
        finally:
            for comm in spare:
                comm.Free()

    def free(self, numbers: Iterable[int]) -> None:
        """Free tensors, channels and caches by number, in ascending order; unknown numbers were freed before.

        Collective on ``world.comm``.
        """
        for number in sorted(numbers):
            cache = self.caches.pop(number, None)
            if cache is not None:
                cache.close()
            channel = self.channels.pop(number, None)
            if channel is not None:
                channel.close()
            super().free([number])

    def close(self) -> None:
        """Free everything in an agreed order, the world last. Collective on ``world.comm``."""
        self.free([*self.channels, *self.caches, *self.tensors])
        super().close()
