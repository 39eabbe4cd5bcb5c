"""Sampling requests to their owners alone, point to point: no other rank takes part, and trainers need not be in step.

A request is one message: the tag of its reply and the request words. The reply is one message or two: whether the owner
could answer, the length, and the first :data:`FIRST` bytes of the answer; what is longer has the rest behind it. In
place of an answer there may be the class and the text of an error. Each request has a tag of its own, so several
threads of a rank may ask at once.

Each owner answers with one :class:`Owner`, whenever somebody calls ``progress``: a server in its loop, a host that also
trains in the progress thread, whatever its other threads do. It takes in what has come, at most :data:`MOST_TOGETHER`
requests or :data:`TOGETHER` bytes, and answers that together; none while :data:`HELD` bytes of requests and answers are
outstanding, so that any number of ranks may ask; and it never waits for a reader.

Trainers of a node do not join their requests: each sends its own. That would save what MPI takes to receive and send a
small message, of which the owner's processor time is the smaller part, but each request would go through the local
server both ways, which is as busy as an owner, and wait there for other trainers, which need not be in step.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Condition, Lock

import numpy as np
from mpi4py import MPI

from mpigraph import errors
from mpigraph.arrays import I64, U8
from mpigraph.errors import ClosedError, CollectiveError, MPIGraphError
from mpigraph.log import get_logger
from mpigraph.mpi.agree import describe, no_way_back
from mpigraph.mpi.coroutine import Coroutine, Task, finish
from mpigraph.mpi.interrupts import UNINTERRUPTED
from mpigraph.mpi.rounds import FAILED, OK
from mpigraph.mpi.wait import IN_ROUND, TRANSFER, Backoff
from mpigraph.mpi.world import World
from mpigraph.sampling.channel import HEAD, Answer, Channel, Exchange
from mpigraph.store.derived import NotOpenHere

__all__ = ["FIRST", "HELD", "MOST_TOGETHER", "TOGETHER", "Owner", "Sparse", "SparseChannel"]

FIRST = 16 << 10  # bytes: what MPI libraries send without asking first
HELD = 256 << 20  # bytes of requests and answers in an owner's memory, from which on it takes in no more
MOST_TOGETHER = 64  # requests that an owner answers together: what each costs hardly falls with more, and all wait
TOGETHER = 256 << 10  # bytes of requests from which on it takes in no more of them
REQUEST = 0  # tag of a request; replies have others
_TAGS = 1 << 15  # MPI allows at least this many
_TURN = 1e-3  # seconds for requests, after which it is the turn of what else this thread answers
_SHOWN = 5  # ranks that a message names

_Asked = tuple[int, I64]  # who asks, and the words: the tag of the reply, and what the request says


class Owner:
    """Answers the requests for what this rank holds, without ever waiting for who asks."""

    def __init__(self, comm: MPI.Comm, answer: Answer) -> None:
        """Answer what comes on ``comm``; ``answer`` is called in one thread at a time."""
        self._comm = comm
        self._answer = answer
        self._lock = Lock()  # progress() may run in another thread while a server is in a control call
        self._tasks: list[Task[None]] = []
        self._held = 0
        self._status = MPI.Status()

    @property
    def outstanding(self) -> bool:
        """Whether a request or reply is not complete."""
        return bool(self._tasks)

    def progress(self) -> bool:
        """Answer some requests that have come, advance the replies, and return whether anything moved."""
        if not self._tasks and not self._comm.Iprobe(MPI.ANY_SOURCE, REQUEST):  # nearly always: keep that cheap
            return False
        with self._lock:
            moved = any([task.advance() for task in self._tasks])
            if moved:
                self._keep_unfinished()
            end = time.perf_counter() + _TURN
            while self._take_in():
                moved = True
                if time.perf_counter() > end:
                    break
            return moved

    def _keep_unfinished(self) -> None:
        for task in self._tasks:
            if task.done:
                task.result()  # an error ends the job
        self._tasks = [task for task in self._tasks if not task.done]

    def _begin(self, steps: Coroutine[None]) -> None:
        task = Task(steps)
        if task.done:
            task.result()
        else:
            self._tasks.append(task)

    def _take_in(self) -> bool:
        """Answer some requests that have come, together, if there is memory for them; return whether any had come."""
        batch: list[_Asked] = []
        left = TOGETHER
        come = False
        while left > 0 and len(batch) < MOST_TOGETHER and self._held < HELD:
            message = self._comm.Improbe(MPI.ANY_SOURCE, REQUEST, self._status)
            if message is None:
                break
            come = True
            asker, words = self._status.Get_source(), np.empty(self._status.Get_count(MPI.INT64_T), np.int64)
            left -= words.nbytes
            self._held += words.nbytes
            receiving = message.Irecv([words, MPI.INT64_T])
            if receiving.Test():
                batch.append((asker, words))
            else:
                self._begin(self._receive(receiving, asker, words))
        if batch:
            self._begin(self._reply(batch))
        return come

    def _receive(self, receiving: MPI.Request, asker: int, words: I64) -> Coroutine[None]:
        """Wait for a request that is still on its way, and answer it."""
        yield receiving
        yield from self._reply([(asker, words)])

    def _reply(self, batch: list[_Asked]) -> Coroutine[None]:
        """Answer requests."""
        while (made := self._made(batch)) is None:
            if len(batch) > 1:
                for one in batch:
                    self._begin(self._reply([one]))
                return
            yield MPI.REQUEST_NULL
        status, answers = made
        nbytes = sum(answer.nbytes for answer in answers)
        self._held += nbytes - sum(words.nbytes for _, words in batch)
        sends = [send for one, answer in zip(batch, answers, strict=True) for send in self._sends(one, status, answer)]
        batch.clear()
        if not MPI.Request.Testall(sends):
            for send in sends:
                if not send.Test():
                    yield send
        self._held -= nbytes

    def _made(self, batch: Sequence[_Asked]) -> tuple[int, Sequence[I64]] | None:
        """Status and answers, or an error's words; None if it is too early, or one of several requests has an error."""
        try:
            return OK, self._answer([words[1:] for _, words in batch])
        except NotOpenHere:
            return None  # this rank has not left the call that opens it, or else the asker's deadline ends the job
        except Exception as error:  # for the asker, who raises it
            return None if len(batch) > 1 else (FAILED, [_error_words(error)])

    def _sends(self, one: _Asked, status: int, answer: I64) -> Iterator[MPI.Request]:
        """Begin to send an answer."""
        asker, words = one
        tag = int(words[0]) if len(words) else 0
        if not REQUEST < tag < _TAGS:
            get_logger().error("rank %d wants a reply with tag %d", asker, tag)
            return
        answer[:HEAD] = status, len(answer) - HEAD
        first = HEAD + FIRST // 8
        yield self._comm.Isend([answer[:first], MPI.INT64_T], asker, tag)
        if len(answer) > first:
            yield self._comm.Isend([answer[first:], MPI.INT64_T], asker, tag)


def _error_words(error: Exception) -> I64:
    """Class and text of an error, padded by spaces, as an answer."""
    text = f"{type(error).__name__}:{describe(error)}".encode(errors="backslashreplace")
    return np.frombuffer(bytearray(8 * HEAD) + text.ljust(-(-len(text) // 8) * 8), np.int64)


def _error(words: I64, rank: int) -> MPIGraphError:
    """The error that a rank has sent instead of an answer."""
    name, _, text = words.tobytes().decode().rstrip().partition(":")
    kind = getattr(errors, name, CollectiveError)
    error: MPIGraphError = kind(f"answering a sampling request failed on rank {rank}: {text}")
    return error


class SparseChannel(Channel):
    """Asks owners, who answer whatever the other trainers do. Opening and closing it sends nothing."""

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
            MPIGraphError: what an owner raised, which is named.
            ClosedError: the job is being ended.

        One-sided: the owners answer from their loops or progress threads.
        """
        if error is not None:
            raise error
        begin = time.perf_counter()
        with UNINTERRUPTED, self._exchange.asking():
            self.rounds += 1
            try:
                return self._ask(asked, meanwhile)
            finally:
                self.seconds += time.perf_counter() - begin

    def _ask(self, asked: Mapping[int, I64], meanwhile: Callable[[], None] | None) -> Mapping[int, U8]:
        comm = self._exchange.comm
        ranks = ", ".join(map(str, list(asked)[:_SHOWN])) + (", ..." if len(asked) > _SHOWN else "")
        what = f"sampling round {self.rounds} of {self.name}: what rank(s) {ranks} answer"
        with self.world.watch(what), no_way_back(comm):  # MPI is about to write to this rank's memory
            replies = [Task(self._fetch(rank, words)) for rank, words in asked.items()]
            if meanwhile is not None:
                self._timed(meanwhile)()
            finish(replies, IN_ROUND)
            answers = {rank: reply.result() for rank, reply in zip(asked, replies, strict=True)}
        for rank, (status, words) in answers.items():
            self.messages += 2
            self.bytes += asked[rank].nbytes + words.nbytes
            if status != OK:
                raise _error(words, rank)
        return {rank: words.view(np.uint8) for rank, (_, words) in answers.items()}

    def _fetch(self, rank: int, words: I64) -> Coroutine[tuple[int, I64]]:
        """Ask one rank; the result is the status and the words of the answer."""
        comm, tag = self._exchange.comm, self._exchange.next_tag()
        reply = np.empty(HEAD + FIRST // 8, np.int64)
        receiving = comm.Irecv([reply, MPI.INT64_T], rank, tag)
        message = np.empty(1 + len(words), np.int64)
        message[0] = tag
        message[1:] = words
        sending = comm.Isend([message, MPI.INT64_T], rank, REQUEST)
        yield receiving
        status, length = reply[:HEAD].tolist()  # whether there is an answer, and its length in words
        answer = reply[HEAD : HEAD + length]
        if length > len(answer):
            first, answer = answer, np.empty(length, np.int64)
            rest = comm.Irecv([answer[len(first) :], MPI.INT64_T], rank, tag)
            answer[: len(first)] = first
            yield rest
        yield sending
        return status, answer

    def serve_until_idle(self) -> None:
        """Nothing: the others need no thread of this trainer except its progress thread."""

    def close(self) -> None:
        """Nothing: what was asked is answered when :meth:`ask` returns."""


class Sparse(Exchange):
    """Requests to owners alone, on one communicator for all channels of a job.

    Attributes:
        comm: where requests and replies travel.
        owner: what answers on this rank.

    Collective on ``world.comm``: construction.
    """

    name = "sparse"
    needs_threads = True

    def __init__(self, world: World, make_answer: Callable[[], Answer]) -> None:
        super().__init__(world, make_answer)
        self._idle = Condition()
        self._asking = 0
        self._retired = False
        self._tag = REQUEST
        self.comm: MPI.Comm = MPI.COMM_NULL
        self.owner: Owner | None = None
        if world.all_near:
            return
        self.comm = world.dup()
        if not world.is_host:
            return
        self.owner = Owner(self.comm, make_answer())
        world.at_close(self._finish)
        if world.progress is not None:
            world.at_close(world.progress.listen(self))

    def open(self, number: int) -> SparseChannel:
        """A channel: a number, and what it counts."""
        return SparseChannel(self, number)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Inside, this thread asks others.

        Raises:
            ClosedError: the job is being ended.
        """
        with self._idle:
            if self._retired:
                raise ClosedError("sampling: the job is being ended")
            self._asking += 1
        try:
            yield
        finally:
            with self._idle:
                self._asking -= 1
                self._idle.notify_all()

    def next_tag(self) -> int:
        """The tag of a reply."""
        with self._idle:
            self._tag = self._tag % (_TAGS - 1) + 1
            return self._tag

    def progress(self) -> bool:
        """See :class:`.Exchange`."""
        return self.owner is not None and self.owner.progress()

    @property
    def outstanding(self) -> bool:
        """See :class:`.Exchange`."""
        return self.owner is not None and self.owner.outstanding

    def retire(self) -> None:
        """See :class:`.Exchange`."""
        with self._idle, self.world.watch("what other threads sample while the job ends"):
            self._retired = True
            self._idle.wait_for(lambda: self._asking == 0)

    def _finish(self) -> None:
        """Send what is still being sent; every asker has its answer."""
        with self.world.watch("sending the last sampling answers"):
            backoff = Backoff()
            while self.progress() or self.outstanding:
                backoff.pause(TRANSFER)
