"""A channel: the rounds of one thread of every trainer, answered by every rank.

A trainer that has nothing (more) to ask is *idle*: it answers the others until all trainers are idle. So trainers may
make different numbers of rounds, or none: uneven, tiny and empty training sets and early breaks cannot hang.

In a job on one node every host is near, nothing is ever asked, and a channel is empty.
"""

import time
from collections.abc import Callable
from threading import Lock
from typing import ParamSpec, TypeVar

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I64, U8
from mpigraph.errors import CollectiveError, MPIGraphError
from mpigraph.log import get_logger
from mpigraph.mpi.agree import no_way_back, raise_jointly
from mpigraph.mpi.coroutine import Coroutine, Task, finish, run
from mpigraph.mpi.rounds import FAILED, OK, Header, Requests, exchange_answers, exchange_requests
from mpigraph.mpi.wait import IN_ROUND, PEERS_COMPUTE, wait
from mpigraph.mpi.world import World
from mpigraph.sampling.protocol import Operation

__all__ = ["Answer", "Channel"]

Answer = Callable[[Requests], list[U8]]
P = ParamSpec("P")
T = TypeVar("T")


class Channel:
    """Rounds on a communicator of its own.

    Attributes:
        number: the same on every rank.
        purpose: what the rounds are made for now, for messages.
        rounds: how many rounds were made.
        messages: how many requests of this rank to others, and answers to them, were not empty.
        bytes: their bytes.
        seconds: how long this rank was in rounds that it asked in.
        work_seconds: how much of that it answered others or did its own work meanwhile; the rest is transfer and
            waiting for others.

    Collective on ``world.comm``: construction and :meth:`close`.
    """

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.purpose = ""
        self._place = f"channel {number}"
        self.rounds = self.messages = self.bytes = 0
        self.seconds = self.work_seconds = 0.0
        self._comm: MPI.Comm = MPI.COMM_NULL if world.all_near else world.comm.Dup()
        self._serving: Task[set[int]] | None = None
        self._polling = Lock()  # a server may poll in one thread while it closes the channel in another
        self._ending: set[int] = set()  # on a server: what the trainers did when one of them closed the channel
        self._nothing = np.zeros(world.size, np.int64)

    def ask(
        self,
        answer: Answer,
        requests: list[I64],
        meanwhile: Callable[[], None] | None = None,
        error: BaseException | None = None,
    ) -> list[U8]:
        """Make one round: ask every rank, answer every rank.

        Args:
            answer: answers what others ask of me.
            requests: for each rank its request words.
            meanwhile: this rank's own part of the work, done while the others make their answers.
            error: this rank cannot ask because of this; it takes part all the same, and every rank raises.

        Returns:
            The answer of each rank.

        Raises:
            CollectiveError: some rank failed to ask or to answer; on every rank, naming it.

        Collective on the channel's trainers.
        """
        begin = time.perf_counter()
        answer = self._timed(answer)
        meanwhile = self._timed(meanwhile) if meanwhile is not None else None
        counts = np.array([len(words) for words in requests], np.int64)
        words = np.concatenate(requests)
        with self.world.meeting(f"sampling round {self.rounds} of {self._name}", self._place):
            header = Header(self._comm, Operation.SAMPLE, FAILED if error else OK, counts)
            wait(header.request, IN_ROUND)
        try:
            return run(self._round(header, answer, words, counts, meanwhile, error))
        finally:
            self.seconds += time.perf_counter() - begin

    def serve_until_idle(self, answer: Answer) -> None:
        """Answer the others until every trainer is idle. Collective on the channel's trainers."""
        if self._comm == MPI.COMM_NULL:
            return
        while True:
            header = Header(self._comm, Operation.IDLE, OK, self._nothing)
            with self.world.meeting(f"the end of every trainer's rounds on {self._name}", self._place):
                wait(header.request, PEERS_COMPUTE)
            if self._doing(header) == {Operation.IDLE}:
                return
            run(self._answer_only(header, answer))

    def poll(self, answer: Answer) -> bool:
        """On a server: advance the round if the others have; return whether anything moved.

        Never waits: rounds of other channels may have to end before this one can.

        Collective on the channel, round by round: who polls takes part in each.
        """
        with self._polling:
            if self._comm == MPI.COMM_NULL or self._ending:
                return False
            serving = self._serving = self._serving or Task(self._serve_once(answer))
            moved = serving.advance()
            if serving.done:
                self._serving = None
                doing = serving.result()
                self._ending = doing if Operation.CLOSE in doing else set()
            return moved

    @property
    def _name(self) -> str:
        return f"{self._place}, {self.purpose}" if self.purpose else self._place

    @property
    def in_round(self) -> bool:
        """On a server: whether a round has begun and is not over."""
        return self._serving is not None and self._serving.taken > 0

    def _serve_once(self, answer: Answer) -> Coroutine[set[int]]:
        """A server's part in what the trainers do next; the result is what they did."""
        header = Header(self._comm, Operation.SERVE, OK, self._nothing)
        yield header.request
        doing = self._doing(header)
        if Operation.SAMPLE in doing and Operation.CLOSE not in doing:
            yield from self._answer_only(header, answer)
        return doing

    def _answer_only(self, header: Header, answer: Answer) -> Coroutine[None]:
        """Take part in a round that others began."""
        try:
            yield from self._round(header, answer, np.empty(0, np.int64), self._nothing, None, None)
        except MPIGraphError as error:
            get_logger().info("%s", error)  # raised on every trainer that asks, where the user sees it

    def _doing(self, header: Header) -> set[int]:
        """The operations that trainers do."""
        return set(header.operations[self.world.trainer_ranks].tolist())

    def _round(
        self,
        header: Header,
        answer: Answer,
        words: I64,
        counts: I64,
        meanwhile: Callable[[], None] | None,
        error: BaseException | None,
    ) -> Coroutine[list[U8]]:
        self.rounds += 1
        with self.world.watch(f"sampling round {self.rounds} of {self._name}"), no_way_back(self._comm):
            if (header.statuses == FAILED).any():
                yield from raise_jointly(self._comm, "sampling", error)
            self._count(counts * words.itemsize)
            requests = yield from exchange_requests(self._comm, words, counts, header)
            answers: list[U8] | None = None
            try:
                answers = answer(requests)
            except Exception as exc:  # told to every rank by the exchange, and raised there
                error = exc
            received, failed = yield from exchange_answers(self._comm, answers, meanwhile)
            if len(failed):
                yield from raise_jointly(self._comm, "answering a sampling request", error)
            self._count(np.array([len(data) for data in received], np.int64))
        return received

    def _timed(self, work: Callable[P, T]) -> Callable[P, T]:
        """The same work, counted in ``work_seconds``."""

        def timed(*args: P.args, **options: P.kwargs) -> T:
            begin = time.perf_counter()
            try:
                return work(*args, **options)
            finally:
                self.work_seconds += time.perf_counter() - begin

        return timed

    def _count(self, nbytes: I64) -> None:
        """Count what goes to or comes from each rank (int64[size])."""
        own = int(nbytes[self._comm.rank])
        self.messages += int(np.count_nonzero(nbytes)) - (own > 0)
        self.bytes += int(nbytes.sum()) - own

    def close(self) -> None:
        """Free the communicator, once the headers that servers wait for have come; a second call does nothing.

        Raises:
            CollectiveError: a trainer is in the middle of a round.

        Collective on ``world.comm``.
        """
        if self._comm == MPI.COMM_NULL:
            return
        with self._polling, self.world.watch(f"closing channel {self.number}"):
            doing = self._begin_close() if self.world.is_trainer else self._await_close()
            if doing != {Operation.CLOSE}:
                raise CollectiveError(f"channel {self.number} was closed in the middle of a round")
            self._serving = None
            comm, self._comm = self._comm, MPI.COMM_NULL
            comm.Free()

    def _begin_close(self) -> set[int]:
        header = Header(self._comm, Operation.CLOSE, OK, self._nothing)
        wait(header.request, PEERS_COMPUTE)
        return self._doing(header)

    def _await_close(self) -> set[int]:
        """On a server, which may not have seen yet what the trainers did last, or have seen already that they close."""
        doing = self._ending
        while Operation.CLOSE not in doing:
            serving = self._serving or Task(self._serve_once(_no_answer))
            self._serving = None
            finish([serving], IN_ROUND)
            doing = serving.result()
        return doing


def _no_answer(requests: Requests) -> list[U8]:
    raise CollectiveError("the channel is being closed")
