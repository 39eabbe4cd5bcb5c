"""What a rank of a running job holds: graphs, tensors, channels. The same class on servers and trainers."""

from collections.abc import Iterable

from mpigraph.mpi.world import World
from mpigraph.sampling.channel import Channel
from mpigraph.store.graph_store import GraphStore

__all__ = ["State"]


class State(GraphStore):
    """Everything that the ranks share.

    Attributes:
        channels: open channels by number.

    Collective on ``world.comm``: construction, :meth:`close` and every method that makes or frees something.
    """

    def __init__(self, world: World, seed: int) -> None:
        """Start with nothing loaded. ``seed`` is the job's default for every draw."""
        super().__init__(world, seed)
        self.channels: dict[int, Channel] = {}

    def open_channel(self) -> Channel:
        """Make a channel for one thread's sampling rounds. Collective on ``world.comm``."""
        channel = Channel(self.world, self.new_number())
        self.channels[channel.number] = channel
        return channel

    def free(self, numbers: Iterable[int]) -> None:
        """Free tensors and channels by number, in ascending order; unknown numbers were freed before.

        Collective on ``world.comm``.
        """
        for number in sorted(numbers):
            channel = self.channels.pop(number, None)
            if channel is not None:
                channel.close()
            super().free([number])

    def close(self) -> None:
        """Free everything in an agreed order, the world last. Collective on ``world.comm``."""
        self.free([*self.channels, *self.tensors])
        super().close()
