"""How sampling requests reach the owners of nodes, and answers come back: messages to owners alone, or rounds.

Both ways have one call, :meth:`Exchange.ask`, for any thread, and the same handler answers: :func:`open_exchange` puts
it into the table of ``mpi/hosts.py``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from threading import Lock
from typing import ClassVar, ParamSpec, TypeVar

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I64, U8
from mpigraph.collective import collective
from mpigraph.errors import InvalidArgumentError
from mpigraph.log import get_logger
from mpigraph.mpi.agree import everywhere
from mpigraph.mpi.compat import library_version
from mpigraph.mpi.coroutine import Coroutine, Task, advance, finish, run
from mpigraph.mpi.hosts import Answer, Hosts, Kind, Request, answer_of, result_of
from mpigraph.mpi.messages import Gate, Header, Received, alltoall, in_rank_order
from mpigraph.mpi.wait import IDLE, TRAVELLING, UNINTERRUPTED, no_way_back, until
from mpigraph.trace import count, span

P = ParamSpec("P")
T = TypeVar("T")

_ANSWERING = "answering a sampling request"
_SHOWN = 5  # ranks that a message names


def _timed(work: Callable[P, T]) -> Callable[P, T]:
    """Wrap work in a span: answers to others, or this rank's own part while others answer."""

    def timed(*args: P.args, **options: P.kwargs) -> T:
        with span("answer"):
            return work(*args, **options)

    return timed


class Exchange(ABC):
    """A way for sampling requests to reach owners, and for answers to come back. Closed with the world.

    Attributes:
        name: the value of ``MPIGRAPH_SAMPLING`` that selects it.
        needs_threads: MPI must allow calls from several threads.
    """

    name: ClassVar[str]
    needs_threads: ClassVar[bool] = False

    @collective("world.comm")
    def __init__(self, hosts: Hosts, answer: Answer) -> None:
        """Set up in a job; ``answer`` answers requests, for one thread at a time."""
        self._hosts = hosts
        self._world = hosts.world
        self._gate = Gate("sampling: the job is being ended")
        self._answer = _timed(answer)

    def ask(self, asked: Mapping[int, I64], meanwhile: Callable[[], None], doing: str) -> Mapping[int, U8]:
        """Ask ranks, and wait for their answers.

        Args:
            asked: by rank the request words, int64[1 + n] behind a free word.
            meanwhile: this rank's own part of the work, done while the others answer; its error is raised once they
                have.
            doing: names the work in error messages.

        Returns:
            The answer of each rank that was asked.

        Raises:
            MPIGraphError: a rank could not answer; names it.
            ClosedError: the job is being ended.

        One-sided, except in rounds below ``MPI_THREAD_MULTIPLE``: there the trainers ask in step.
        """
        with UNINTERRUPTED, self._gate:
            own = self._world.rank
            asked = dict(sorted(asked.items(), key=lambda one: one[0] < own))  # else all ask the same owner first
            ranks = ", ".join(map(str, list(asked)[:_SHOWN])) + (", ..." if len(asked) > _SHOWN else "")
            return self._ask(asked, _timed(meanwhile), f"{doing}: what rank(s) {ranks} answer")

    @abstractmethod
    def _ask(self, asked: Mapping[int, I64], meanwhile: Callable[[], None], what: str) -> Mapping[int, U8]:
        """Ask ranks; ``what`` names the wait."""

    def leave(self) -> None:  # noqa: B027 - messages to owners need nothing
        """Ask nothing more for now; return when the other trainers need nothing more of this thread."""

    def progress(self) -> bool:
        """Take part in what the others do, without waiting; return whether anything moved."""
        return False

    @property
    def outstanding(self) -> bool:
        """True while this rank is in the middle of that."""
        return False

    def retire(self) -> None:
        """Refuse new requests of this rank's threads, and wait for the outstanding ones, while hosts still answer."""
        self._gate.drain("what other threads sample while the job ends")


class ByMessages(Exchange):
    """Requests to owners alone: no other rank takes part.

    Trainers of a node do not join their requests. Joining would save small messages, but each request would pass
    through the local server both ways, which is as busy as an owner.
    """

    name = "sparse"
    needs_threads = True

    @collective("world.comm")
    def __init__(self, hosts: Hosts, answer: Answer) -> None:
        super().__init__(hosts, answer)
        hosts.handlers[Kind.SAMPLE] = hosts.answering(self._answer)

    def _ask(self, asked: Mapping[int, I64], meanwhile: Callable[[], None], what: str) -> Mapping[int, U8]:
        requests = (self._hosts.call(rank, Kind.SAMPLE, words, _ANSWERING) for rank, words in asked.items())
        answers = finish(requests, what, meanwhile=meanwhile, asked=list(asked))
        return {rank: answer.view(np.uint8) for rank, answer in zip(asked, answers, strict=True)}


class _Asked:
    """The requests of a thread of this rank in one round; ``answers`` by rank, behind a status, once they are here."""

    def __init__(self, asked: Mapping[int, I64], meanwhile: Callable[[], None] | None = None) -> None:
        self.asked = asked
        self.meanwhile = meanwhile
        self.answers: dict[int, I64] | None = None


_NOTHING = _Asked({})
_SERVES, _ASKS, _ENDS = 0, 1, 2  # a rank's part in a round


class InRounds(Exchange):
    """Requests in rounds of all ranks, in four collective steps of one communicator::

        Ialltoall(headers)           the rank's part, number of request words
        Ialltoallv(request words)    int64
        Ialltoall(answer sizes)      in words
        Ialltoallv(answers)          int64

    A rank asks for one thread in a round; an error is the answer to its asker. Where MPI allows calls from threads, a
    rank that wants a round tells the other trainers its number (:attr:`.Kind.ROUND`), and host threads take part, so
    trainers need not be in step. Servers, which never ask, have always begun the next round.

    Below ``MPI_THREAD_MULTIPLE`` the trainers' main threads make the rounds in step. One with nothing more to ask takes
    part in the others' until a round in which no rank asks.
    """

    name = "alltoallv"

    @collective("world.comm")
    def __init__(self, hosts: Hosts, answer: Answer) -> None:
        super().__init__(hosts, answer)
        world = self._world
        self._comm = MPI.COMM_NULL if world.all_local else world.dup()
        self._turn = Lock()  # of the threads that ask
        self._lock = Lock()
        self._next: _Asked | None = None
        self._round: Task[int] | None = None
        self._ended = False
        self._begun = self._wanted = 0  # numbers of rounds
        self._others = [rank for rank in world.trainer_ranks.tolist() if rank != world.rank]
        hosts.handlers[Kind.ROUND] = self._want
        if not world.all_local:
            world.at_close(self._close)
            if world.progress is not None:
                world.at_close(world.progress.listen(self))
                if not world.is_host:
                    world.at_close(world.progress.listen(hosts))  # for the numbers of rounds

    def _ask(self, asked: Mapping[int, I64], meanwhile: Callable[[], None], what: str) -> Mapping[int, U8]:
        with self._turn, no_way_back() as aside:
            if self._world.progress is None:
                own = _Asked(asked, partial(aside, meanwhile))
                with self._world.meeting(what):
                    run(self._make(own))
            else:
                own = _Asked(asked)
                with self._world.watch(what):
                    self._propose(own)
                    aside(meanwhile)
                    until(lambda: own.answers is not None, moves=self.progress)
        assert own.answers is not None
        return {
            rank: result_of(answer, answer, rank, _ANSWERING).view(np.uint8) for rank, answer in own.answers.items()
        }

    def _propose(self, own: _Asked) -> None:
        """Ask in the next round, and tell the other trainers to take part, unless all know that there is one."""
        with self._lock:
            self._next = own
            number = self._begun + 1
            wanted, self._wanted = self._wanted, max(self._wanted, number)
        if wanted < number:
            for rank in self._others:
                self._hosts.tell(rank, Kind.ROUND, number)

    def _want(self, request: Request) -> Coroutine[None]:
        with self._lock:
            self._wanted = max(self._wanted, int(request.words[0]))
        yield from ()

    def progress(self) -> bool:
        """Begin the next round if a rank wants it, or advance the present one; return whether anything moved."""
        if self._comm == MPI.COMM_NULL or not self._lock.acquire(blocking=False):
            return False
        try:
            trains, begins = self._world.is_trainer, self._round is None
            if self._round is None:
                if self._ended or (trains and self._wanted <= self._begun):
                    return False
                own, self._next = self._next, None
                self._begun += 1
                self._round = Task(self._make(own or _NOTHING, _ASKS if trains else _SERVES))
            moved = self._round.advance()
            if self._round.done:
                self._ended = self._round.result() == _ENDS  # an error ends the job
                self._round = None
            return moved or (begins and trains)
        finally:
            self._lock.release()

    @property
    def outstanding(self) -> bool:
        """True while a round has begun on all ranks and is not over."""
        present = self._round
        return present is not None and (present.taken > 0 or self._world.is_trainer)

    def _make(self, own: _Asked, part: int = _ASKS) -> Coroutine[int]:
        """Take part in one round; return the largest part of a rank. Nothing follows if none asks."""
        words, counts = in_rank_order({rank: words[1:] for rank, words in own.asked.items()}, self._world.size)
        header = Header(self._comm, part, counts=counts)
        yield header.request
        largest = int(header.operations.max())
        if largest != _ASKS:
            return largest
        came = Received((yield from alltoall(self._comm, words, counts, header.counts)), header.counts)
        answers: dict[int, I64] = {}
        for rank in came.senders:
            answers[rank] = yield from answer_of(self._answer, came.of(rank))
        leaving, sizes = in_rank_order(answers, self._world.size)
        coming = np.empty_like(sizes)
        count("collective_bytes", sizes.nbytes)
        request = self._comm.Ialltoall(sizes, coming)
        if own.meanwhile is not None:
            own.meanwhile()
        yield request
        back = Received((yield from alltoall(self._comm, leaving, sizes, coming)), coming)
        if own is not _NOTHING:
            own.answers = {rank: back.of(rank) for rank in own.asked}
        return largest

    @collective("trainers", "below MPI_THREAD_MULTIPLE")
    def leave(self) -> None:
        """Below ``MPI_THREAD_MULTIPLE``, take part in the other trainers' rounds until none of them asks."""
        if self._comm != MPI.COMM_NULL and self._world.progress is None:
            with UNINTERRUPTED, self._world.meeting("the end of every trainer's rounds"):
                while run(self._make(_NOTHING, _SERVES), policy=IDLE):
                    pass

    @collective("world.comm")
    def _close(self) -> None:
        """End the present round, and the one that servers have begun, in which no rank asks."""
        with UNINTERRUPTED, self._world.watch("the last round"):
            while not self._ended:
                part = _ENDS if self._world.is_trainer else _SERVES
                self._round, present = None, self._round or Task(self._make(_NOTHING, part))
                advance([present], TRAVELLING)
                self._ended = present.result() == _ENDS


EXCHANGES: tuple[type[Exchange], ...] = (InRounds, ByMessages)
"""All ways; their names are the values of ``MPIGRAPH_SAMPLING``."""


@collective("hosts.world.comm")
def open_exchange(hosts: Hosts, answer: Answer) -> Exchange:
    """Open the exchange of a job; ``answer`` answers requests, for one thread at a time.

    Requests go to owners alone where MPI allows it, which is faster on two hosts already (``tests/perf/README.md``).
    Nothing is measured at start: below ``MPI_THREAD_MULTIPLE`` the way also decides whether a trainer may sample alone,
    which must not change from run to run. Raises InvalidArgumentError if ``MPIGRAPH_SAMPLING`` names one that this MPI
    cannot do; on every rank.
    """
    world = hosts.world
    setting = world.config.sampling
    able = np.array([world.threads_may_communicate], np.int8)
    world.comm.Allreduce(MPI.IN_PLACE, able, op=MPI.MIN)
    kind: type[Exchange] = ByMessages if able[0] else InRounds
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
    return kind(hosts, answer)
