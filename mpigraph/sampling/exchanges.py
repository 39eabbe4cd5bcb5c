"""How sampling requests reach the owners of nodes, and answers come back: the interface, both ways, and a job's choice.

A job has one :class:`SamplingTransport`. Each thread that samples asks through a :class:`Channel`: it names the owners
that it needs, and gets their answers. Whether other ranks take part is up to the transport: :class:`Sparse` sends to
the owners alone, :class:`InStep` asks in rounds of all ranks.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import partial
from threading import Lock
from typing import ClassVar, ParamSpec, TypeVar

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I64, U8
from mpigraph.collective import collective
from mpigraph.errors import CollectiveError, InvalidArgumentError, MPIGraphError
from mpigraph.log import get_logger
from mpigraph.mpi.agree import everywhere, no_way_back, raise_jointly
from mpigraph.mpi.compat import library_version
from mpigraph.mpi.coroutine import NOT_YET, Coroutine, Task, finish, run
from mpigraph.mpi.messages import (
    FAILED,
    HEAD,
    OK,
    Answer,
    Gate,
    Header,
    NotOpenHere,
    Received,
    Requester,
    RequestServer,
    alltoall,
    answering,
    exchange_answers,
    in_rank_order,
)
from mpigraph.mpi.wait import IN_ROUND, PEERS_COMPUTE, UNINTERRUPTED, wait
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


def _timed_answer(work: Callable[P, T]) -> Callable[P, T]:
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


# Sampling requests to their owners alone, point to point: no other rank takes part, and trainers need not be in step.
#
# Each owner answers by a ``RequestServer``: a server in its loop, a host that also trains in the progress thread.
#
# Trainers of a node do not join their requests. Joining would save small messages, but each request would pass through
# the local server both ways, which is as busy as an owner, and wait there for trainers that need not be in step.

HELD = 256 << 20  # bytes of requests and answers in an owner's memory; above it the owner takes in no more
_SHOWN = 5  # ranks that a message names


class SparseChannel(Channel):
    """Asks owners, which answer without the other trainers. Opening and closing it sends nothing."""

    def __init__(self, exchange: "Sparse", number: int) -> None:
        super().__init__(exchange.world, number)
        self._exchange = exchange

    def ask(
        self,
        asked: Mapping[int, I64],
        meanwhile: Callable[[], None] | None = None,
        error: BaseException | None = None,
    ) -> Mapping[int, U8]:
        """Send each rank its request, and wait for the answers. ``error`` is raised here alone.

        Raises:
            MPIGraphError: an owner raised it; names the owner.
            ClosedError: the job is being ended.

        One-sided: the owners answer from their loops or progress threads.
        """
        if error is not None:
            raise error
        with UNINTERRUPTED, self._exchange.gate:
            self.rounds += 1
            own = self._exchange.world.rank
            asked = dict(sorted(asked.items(), key=lambda one: one[0] < own))  # else all ask the same owner first
            ranks = ", ".join(map(str, list(asked)[:_SHOWN])) + (", ..." if len(asked) > _SHOWN else "")
            what = f"sampling round {self.rounds} of {self.name}: what rank(s) {ranks} answer"
            requester = self._exchange.requester
            requests = [requester.ask(rank, words, "answering a sampling request") for rank, words in asked.items()]
            meanwhile = _timed_answer(meanwhile) if meanwhile is not None else None
            answers = requester.finish(what, requests, IN_ROUND, meanwhile, tuple(asked))
            self.messages += 2 * len(asked)
            self.bytes += sum(words.nbytes for words in (*asked.values(), *answers))
        return {rank: answer.view(np.uint8) for rank, answer in zip(asked, answers, strict=True)}

    def serve_until_idle(self) -> None:
        """Return at once: only the progress thread answers others."""

    def close(self) -> None:
        """Return at once: when :meth:`ask` returns, all is answered."""


class Sparse(SamplingTransport):
    """Requests to owners alone, on one communicator for all channels of a job.

    Attributes:
        requester: asks the owners.
        gate: open while this rank may ask.
    """

    name = "sparse"
    needs_threads = True

    @collective("world.comm")
    def __init__(self, world: World, make_answer: Callable[[], Answer]) -> None:
        super().__init__(world, make_answer)
        self.gate = Gate("sampling: the job is being ended")
        self.requester = Requester(world, MPI.COMM_NULL if world.all_local else world.dup())
        self._server: RequestServer | None = None
        if world.all_local or not world.is_host:
            return
        self._server = server = RequestServer(
            self.requester.comm, answering(_timed_answer(make_answer())), max_bytes=HELD
        )
        world.at_close(lambda: server.drain(world, "sending the last sampling answers"))
        if world.progress is not None:
            world.at_close(world.progress.listen(server))

    def open(self, number: int) -> SparseChannel:
        """A channel: a number, and what it counts."""
        return SparseChannel(self, number)

    def progress(self) -> bool:
        """See :class:`.SamplingTransport`."""
        return self._server is not None and self._server.progress()

    @property
    def outstanding(self) -> bool:
        """See :class:`.SamplingTransport`."""
        return self._server is not None and self._server.outstanding

    def retire(self) -> None:
        """See :class:`.SamplingTransport`."""
        with self.world.watch("what other threads sample while the job ends"):
            self.gate.drain()


# Sampling requests in rounds of all ranks: each trainer's channel has a communicator, every rank answers in turn.
#
# A round has four collective steps (``mpi/messages.py``). A trainer with nothing more to ask is *idle*: it answers the
# others until all trainers are idle. So trainers may make different numbers of rounds: uneven, tiny and empty training
# sets and early breaks cannot hang.
#
# In a job on one node every host is local, and a channel has no communicator.

_NO_WORDS = np.empty(0, np.int64)


class RoundOperation(IntEnum):
    """A rank's part in a round."""

    SERVE = 0
    IDLE = 1
    SAMPLE = 2
    CLOSE = 3


class RoundChannel(Channel):
    """Rounds on a communicator of its own."""

    @collective("world.comm")
    def __init__(self, world: World, number: int, answer: Answer) -> None:
        """Open the channel; ``answer`` answers what others ask of this rank, for one thread at a time."""
        super().__init__(world, number)
        self._comm: MPI.Comm = MPI.COMM_NULL if world.all_local else world.comm.Dup()
        self._answer = _timed_answer(answer)
        self._serving: Task[set[int]] | None = None
        self._polling = Lock()  # a server may poll in one thread while it closes the channel in another
        self._ending: set[int] = set()  # on a server: what the trainers did when one of them closed the channel
        self._nothing = np.zeros(world.size, np.int64)

    @collective("the channel's trainers")
    def ask(
        self,
        asked: Mapping[int, I64],
        meanwhile: Callable[[], None] | None = None,
        error: BaseException | None = None,
    ) -> Mapping[int, U8]:
        """Make one round: ask some ranks, answer every rank. ``error`` is raised on every rank, naming this one.

        Raises CollectiveError if some rank failed to ask or to answer; on every rank, naming it.
        """
        meanwhile = _timed_answer(meanwhile) if meanwhile is not None else None
        words, counts = in_rank_order(asked, self.world.size)
        with UNINTERRUPTED:
            with self.world.meeting(f"sampling round {self.rounds} of {self.name}"):
                header = Header(self._comm, RoundOperation.SAMPLE, FAILED if error else OK, counts)
                wait(header.request, IN_ROUND)
            return run(self._round(header, words, counts, meanwhile, error))

    @collective("the channel's trainers")
    def serve_until_idle(self) -> None:
        """Answer the other trainers until all are idle."""
        if self._comm == MPI.COMM_NULL:
            return
        with UNINTERRUPTED:
            while True:
                header = Header(self._comm, RoundOperation.IDLE, OK, self._nothing)
                with self.world.meeting(f"the end of every trainer's rounds on {self.name}"):
                    wait(header.request, PEERS_COMPUTE)
                if self._doing(header) == {RoundOperation.IDLE}:
                    return
                run(self._answer_only(header))

    @collective("the channel's ranks", "round by round: each poll takes part in one")
    def poll(self) -> bool:
        """On a server: advance the round, if the others have begun it; return whether anything moved.

        It never waits: rounds of other channels may have to end before this one can.
        """
        with self._polling:
            if self._comm == MPI.COMM_NULL or self._ending:
                return False
            serving = self._serving = self._serving or Task(self._serve_once())
            moved = serving.advance()
            if serving.done:
                self._serving = None
                doing = serving.result()
                self._ending = doing if RoundOperation.CLOSE in doing else set()
            return moved

    @property
    def closed(self) -> bool:
        """True once the channel is closed, and where every host is local."""
        return bool(self._comm == MPI.COMM_NULL)

    @property
    def in_round(self) -> bool:
        """On a server: true while a round has begun and is not over."""
        return self._serving is not None and self._serving.taken > 0

    def _serve_once(self) -> Coroutine[set[int]]:
        """Take a server's part in the trainers' next operation; the result is the set of their operations."""
        header = Header(self._comm, RoundOperation.SERVE, OK, self._nothing)
        yield header.request
        doing = self._doing(header)
        if RoundOperation.SAMPLE in doing and RoundOperation.CLOSE not in doing:
            yield from self._answer_only(header)
        return doing

    def _answer_only(self, header: Header) -> Coroutine[None]:
        """Take part in a round without asking."""
        try:
            yield from self._round(header, _NO_WORDS, self._nothing, None, None)
        except MPIGraphError as error:
            get_logger().info("%s", error)  # raised on every trainer that asks, where the user sees it

    def _doing(self, header: Header) -> set[int]:
        """Return the operations of the trainers."""
        return set(np.unique(header.operations[self.world.trainer_ranks]).tolist())

    def _round(
        self,
        header: Header,
        words: I64,
        counts: I64,
        meanwhile: Callable[[], None] | None,
        error: BaseException | None,
    ) -> Coroutine[dict[int, U8]]:
        self.rounds += 1
        with self.world.watch(f"sampling round {self.rounds} of {self.name}"), no_way_back(self._comm) as aside:
            if (header.statuses == FAILED).any():
                yield from raise_jointly(self._comm, "sampling", error)
            self._count(counts * words.itemsize)
            requests = Received((yield from alltoall(self._comm, words, counts, header.counts)), header.counts)
            answers: dict[int, I64] | None = None
            try:
                own: dict[int, I64] = {}
                for rank in requests.senders:
                    own[rank] = (yield from self._answer_to(requests.of(rank)))[HEAD:]
                answers = own
            except Exception as exc:  # told to every rank by the exchange, and raised there
                error = exc
            received = yield from exchange_answers(self._comm, answers, meanwhile and partial(aside, meanwhile))
            if received is None:
                yield from raise_jointly(self._comm, "answering a sampling request", error)
            assert received is not None
            self._count(received.words.itemsize * received.counts)
        return {rank: received.of(rank).view(np.uint8) for rank in np.flatnonzero(counts).tolist()}

    def _answer_to(self, words: I64) -> Coroutine[I64]:
        """Answer; a server's second thread waits until the first has left the call that opens the graph."""
        while True:
            try:
                return self._answer(words)
            except NotOpenHere:
                if self.world.is_trainer:  # it is in no call, or it would not be here
                    raise
                yield NOT_YET

    def _count(self, nbytes: I64) -> None:
        """Count the bytes to or from each rank (int64[size])."""
        own = int(nbytes[self._comm.rank])
        self.messages += int(np.count_nonzero(nbytes)) - (own > 0)
        self.bytes += int(nbytes.sum()) - own

    @collective("world.comm")
    def close(self) -> None:
        """Free the communicator, once the headers that servers wait for have come; a second call does nothing.

        Raises CollectiveError if a trainer is in the middle of a round.
        """
        if self._comm == MPI.COMM_NULL:
            return
        with self._polling, self.world.watch(f"closing channel {self.number}"):
            doing = self._begin_close() if self.world.is_trainer else self._await_close()
            if doing != {RoundOperation.CLOSE}:
                raise CollectiveError(f"channel {self.number} was closed in the middle of a round")
            self._serving = None
            comm, self._comm = self._comm, MPI.COMM_NULL
            comm.Free()

    def _begin_close(self) -> set[int]:
        header = Header(self._comm, RoundOperation.CLOSE, OK, self._nothing)
        wait(header.request, PEERS_COMPUTE)
        return self._doing(header)

    def _await_close(self) -> set[int]:
        """On a server: finish the trainers' last operation, which may be the close, if it has not been seen yet."""
        doing = self._ending
        while RoundOperation.CLOSE not in doing:
            serving = self._serving or Task(self._serve_once())
            self._serving = None
            finish([serving], IN_ROUND)
            doing = serving.result()
        return doing


class InStep(SamplingTransport):
    """Rounds of all ranks."""

    name = "alltoallv"

    @collective("world.comm")
    def __init__(self, world: World, make_answer: Callable[[], Answer]) -> None:
        super().__init__(world, make_answer)
        self._channels: dict[int, RoundChannel] = {}  # on a server
        self.takes_communicators = not world.all_local

    @collective("world.comm")
    def open(self, number: int) -> RoundChannel:
        """Open a channel, whose threads answer one another."""
        channel = RoundChannel(self.world, number, self._make_answer())
        if not self.world.is_trainer:
            self._channels[number] = channel
        return channel

    def progress(self) -> bool:
        """On a server: advance the rounds of all channels, without waiting; return whether anything moved."""
        moved = False
        for number, channel in list(self._channels.items()):  # another thread may open one
            if channel.closed:
                del self._channels[number]
            else:
                moved |= channel.poll()
        return moved

    @property
    def outstanding(self) -> bool:
        """True while a round has begun and is not over."""
        return any(channel.in_round for channel in list(self._channels.values()))


EXCHANGES: tuple[type[SamplingTransport], ...] = (InStep, Sparse)
"""All transports; their names are the values of ``MPIGRAPH_SAMPLING``."""


@collective("world.comm")
def open_exchange(world: World, make_answer: Callable[[], Answer]) -> SamplingTransport:
    """Open the transport of a job; ``make_answer`` makes a function that answers requests, for one thread at a time.

    Requests go to owners alone where MPI allows it, which is faster on two hosts already (``tests/perf/README.md``).
    Nothing is measured at start: the transport also decides whether a trainer may sample alone, which must not change
    from run to run. Raises InvalidArgumentError if ``MPIGRAPH_SAMPLING`` names one that this MPI cannot do; on every
    rank.
    """
    setting = world.config.sampling
    able = np.array([world.threads_may_communicate], np.int8)
    world.comm.Allreduce(MPI.IN_PLACE, able, op=MPI.MIN)
    kind: type[SamplingTransport] = Sparse if able[0] else InStep
    if setting != "auto":
        kind = next(each for each in EXCHANGES if each.name == setting)
    if kind.needs_threads and not able[0]:
        raise everywhere(
            InvalidArgumentError(
                f"sampling {setting!r} needs MPI_THREAD_MULTIPLE, which {library_version()} was not started with: "
                "use auto or alltoallv"
            )
        )
    if world.rank == 0 and not world.all_local:
        get_logger().info("sampling requests: %s", kind.name)
    return kind(world, make_answer)
