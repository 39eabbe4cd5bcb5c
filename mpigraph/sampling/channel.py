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

P = ParamSpec("P")
T = TypeVar("T")


class Channel(ABC):
    """One thread's way to ask owners; every trainer has the same channels.

    Attributes:
        number: the same on every rank.
        purpose: names the present work in error messages.
        rounds: number of rounds that this rank took part in; a round asks all owners at once.
        messages: number of requests of this rank, and of answers to them, that were not empty.
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
        """Ask ranks, and wait for their answers.

        Args:
            asked: by rank the request words, at least one.
            meanwhile: this rank's own part of the work, done while the others answer; its error is raised once they
                have.
            error: raised here; this rank cannot ask because of it.

        Returns:
            The answer of each rank that was asked.

        Raises:
            MPIGraphError: a rank could not answer; names it.
        """

    @abstractmethod
    @collective("the channel's trainers", "where the exchange is by rounds of all ranks")
    def serve_until_idle(self) -> None:
        """Ask nothing more for now; return when the other trainers need nothing more of this thread."""

    @abstractmethod
    @collective("world.comm")
    def close(self) -> None:
        """Close the channel; a second call does nothing."""

    @property
    def name(self) -> str:
        """The name in error messages."""
        return f"channel {self.number}, {self.purpose}" if self.purpose else f"channel {self.number}"


def timed_answer(work: Callable[P, T]) -> Callable[P, T]:
    """Wrap work in a span: answers to others, or this rank's own part while others answer."""

    def timed(*args: P.args, **options: P.kwargs) -> T:
        with span("answer"):
            return work(*args, **options)

    return timed


class SamplingTransport(ABC):
    """A way for sampling requests to reach owners, and for answers to come back.

    Attributes:
        name: the value of ``MPIGRAPH_SAMPLING`` that selects it.
        needs_threads: MPI must allow calls from several threads.
        takes_communicators: each channel has one.

    It is closed with the world.
    """

    name: ClassVar[str]
    needs_threads: ClassVar[bool] = False
    takes_communicators = False

    @collective("world.comm")
    def __init__(self, world: World, make_answer: Callable[[], Answer]) -> None:
        """Set up in a job; ``make_answer`` makes a function that answers requests, for one thread at a time."""
        self.world = world
        self._make_answer = make_answer

    @abstractmethod
    @collective("world.comm")
    def open(self, number: int) -> Channel:
        """Open a channel, with a number that is the same on every rank."""

    def progress(self) -> bool:
        """Advance the requests of other ranks, without waiting; return whether anything moved."""
        return False

    @property
    def outstanding(self) -> bool:
        """True while a request of another rank is incomplete: call :meth:`progress` soon."""
        return False

    def retire(self) -> None:  # noqa: B027 - most transports have nothing to do
        """Refuse new requests of this rank's threads, and wait for the outstanding ones, while hosts still answer."""
