"""The interface of sampling's transports: how requests reach the owners of nodes, and answers come back.

A job has one :class:`SamplingTransport`. Each thread that samples asks through a :class:`Channel`: it names the owners
that it needs, and gets their answers. Whether other ranks take part is up to the transport. ``sampling/exchanges.py``
lists the transports.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, ParamSpec, TypeVar

from mpigraph.arrays import I64, U8
from mpigraph.collective import collective
from mpigraph.mpi.messages import Answer
from mpigraph.mpi.world import World
from mpigraph.trace import span

__all__ = ["Channel", "SamplingTransport", "timed_answer"]

P = ParamSpec("P")
T = TypeVar("T")


class Channel(ABC):
    """What one thread of every trainer asks through.

    Attributes:
        number: the same on every rank.
        purpose: what is asked for now, for messages.
        rounds: in how many rounds this rank took part; a round asks all owners at once.
        messages: how many requests of this rank to others, and answers to them, were not empty.
        bytes: their bytes.
    """

    @collective("world.comm")
    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.purpose = ""
        self.rounds = self.messages = self.bytes = 0

    @abstractmethod
    @collective("the channel's trainers", "where the exchange is by rounds of all ranks; one-sided where it is sparse")
    def ask(
        self,
        asked: Mapping[int, I64],
        meanwhile: Callable[[], None] | None = None,
        error: BaseException | None = None,
    ) -> Mapping[int, U8]:
        """Ask some ranks, and wait for their answers.

        Args:
            asked: by rank the request words, at least one.
            meanwhile: this rank's own part of the work, done while the others make their answers. It does not raise.
            error: this rank cannot ask because of this, which is raised.

        Returns:
            The answer of each rank that was asked.

        Raises:
            MPIGraphError: a rank could not answer, and which.
        """

    @abstractmethod
    @collective("the channel's trainers", "where the exchange is by rounds of all ranks")
    def serve_until_idle(self) -> None:
        """This trainer asks nothing more for now: return when the others need nothing more of this thread."""

    @abstractmethod
    @collective("world.comm")
    def close(self) -> None:
        """Nobody asks any more; a second call does nothing."""

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"channel {self.number}, {self.purpose}" if self.purpose else f"channel {self.number}"


def timed_answer(work: Callable[P, T]) -> Callable[P, T]:
    """Return the same work as a span: for others, or this rank's own while others work."""

    def timed(*args: P.args, **options: P.kwargs) -> T:
        with span("answer"):
            return work(*args, **options)

    return timed


class SamplingTransport(ABC):
    """A way to exchange sampling requests.

    Attributes:
        name: how the setting calls it.
        needs_threads: whether MPI must allow calls from several threads.

    It is closed with the world.
    """

    name: ClassVar[str]
    needs_threads: ClassVar[bool] = False

    @collective("world.comm")
    def __init__(self, world: World, make_answer: Callable[[], Answer]) -> None:
        """Get ready in a job; ``make_answer`` makes what answers, for one thread at a time."""
        self.world = world
        self._make_answer = make_answer

    @abstractmethod
    @collective("world.comm")
    def open(self, number: int) -> Channel:
        """A new channel, with a number that is the same on every rank."""

    def progress(self) -> bool:
        """Advance what other ranks have asked of this one, without waiting; return whether anything moved.

        A server calls it again and again.
        """
        return False

    @property
    def outstanding(self) -> bool:
        """Whether anything that other ranks have asked of this one is not complete: :meth:`progress` must come soon."""
        return False

    def retire(self) -> None:  # noqa: B027 - most exchanges have nothing to do
        """Refuse what threads of this rank ask from now on, and wait for what they have asked, while hosts answer."""
