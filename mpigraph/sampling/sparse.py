"""Sampling requests to their owners alone, point to point: no other rank takes part, and trainers need not be in step.

A request is one message: the tag of its reply and the request words. The reply is one message or two: whether the owner
could answer, the length, and the first :data:`FIRST` bytes of the answer; what is longer has the rest behind it. In
place of an answer there may be the class and the text of an error. Each request has a tag of its own, so several
threads of a rank may ask at once.

Each owner answers with one :class:`Owner`, whenever somebody calls ``progress``: a server in its loop, a host that also
trains in the progress thread, whatever its other threads do. It takes in one request after the other and none while
:data:`HELD` bytes of requests and answers are outstanding, so that any number of ranks may ask; and it never waits for
a reader. Trainers of a node do not join their requests: each sends its own.
"""

import time
from collections.abc import Callable, Iterator, Mapping
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
from mpigraph.mpi.rounds import FAILED, OK
from mpigraph.mpi.wait import IN_ROUND, TRANSFER, Backoff
from mpigraph.mpi.world import World
from mpigraph.sampling.answering import NotOpenHere
from mpigraph.sampling.channel import Answer, Channel, Exchange

__all__ = ["FIRST", "HELD", "Owner", "Sparse", "SparseChannel"]

FIRST = 16 << 10  # bytes: what MPI libraries send without asking first
HELD = 256 << 20  # bytes of requests and answers in an owner's memory, from which on it takes in no more
REQUEST = 0  # tag of a request; replies have others
_TAGS = 1 << 15  # MPI allows at least this many
_HEAD = 2  # words of a reply: whether there is an answer, and its length in words
_TURN = 1e-3  # seconds for requests, after which it is the turn of what else this thread answers
_SHOWN = 5  # ranks that a message names


class Owner:
    """Answers the requests for what this rank holds, without ever waiting for who asks."""

    def __init__(self, comm: MPI.Comm, answer: Answer) -> None:
        """Answer what comes on ``comm``; ``answer`` is called in one thread at a time."""
        self._comm = comm
        self._answer = answer
        self._lock = Lock()  # progress() may run in another thread while a server is in a control call
        self._replies: list[Task[None]] = []
        self._held = 0

    @property
    def outstanding(self) -> bool:
        """Whether a request or reply is not complete."""
        return bool(self._replies)

    def progress(self) -> bool:
        """Answer some requests that have come, advance the replies, and return whether anything moved."""
        if not self._replies and not self._comm.Iprobe(MPI.ANY_SOURCE, REQUEST):  # nearly always: keep that cheap
            return False
        with self._lock:
            moved = any([reply.advance() for reply in self._replies])
            if moved:
                self._keep_unfinished()
            end = time.perf_counter() + _TURN
            while self._take_in():
                moved = True
                if time.perf_counter() > end:
                    break
            return moved

    def _keep_unfinished(self) -> None:
        for reply in self._replies:
            if reply.done:
                reply.result()  # an error ends the job
        self._replies = [reply for reply in self._replies if not reply.done]

    def _take_in(self) -> bool:
        """Begin the reply to a request, if one has come and there is memory for it; return whether that is so."""
        if self._held >= HELD:
            return False
        status = MPI.Status()
        message = self._comm.Improbe(MPI.ANY_SOURCE, REQUEST, status)
        if message is None:
            return False
        words = np.empty(status.Get_count(MPI.INT64_T), np.int64)
        reply = Task(self._reply(message, status.Get_source(), words))
        if reply.done:
            reply.result()
        else:
            self._replies.append(reply)
        return True

    def _reply(self, message: MPI.Message, asker: int, words: I64) -> Coroutine[None]:
        """Receive a request into ``words``, and answer it."""
        self._held += words.nbytes
        request = message.Irecv([words, MPI.INT64_T])
        if not request.Test():
            yield request
        tag = int(words[0]) if len(words) else 0
        if not REQUEST < tag < _TAGS:
            get_logger().error("rank %d wants a reply with tag %d", asker, tag)
            self._held -= words.nbytes
            return
        while True:
            status, answer = self._made(words[1:])
            if answer is not None:
                break
            yield MPI.REQUEST_NULL
        self._held += answer.nbytes - words.nbytes
        sends = [self._comm.Isend([part, MPI.INT64_T], asker, tag) for part in _parts(status, answer)]
        for request in sends:
            if not request.Test():
                yield request
        self._held -= answer.nbytes

    def _made(self, words: I64) -> tuple[int, I64 | None]:
        """Status and answer, or the words of an error; None if it is too early."""
        try:
            return OK, self._answer(words).view(np.int64)
        except NotOpenHere:
            return OK, None  # this rank has not left the call that opens it, or else the asker's deadline ends the job
        except Exception as error:  # for the asker, who raises it
            return FAILED, _error_words(error)


def _parts(status: int, answer: I64) -> Iterator[I64]:
    """The messages of a reply."""
    first = answer[: FIRST // 8]
    yield np.concatenate([np.array([status, len(answer)], np.int64), first])
    if len(first) < len(answer):
        yield answer[len(first) :]


def _error_words(error: Exception) -> I64:
    """Class and text of an error, padded by spaces."""
    text = f"{type(error).__name__}:{describe(error)}".encode(errors="backslashreplace")
    return np.frombuffer(text.ljust(-(-len(text) // 8) * 8), np.int64)


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
        with self._exchange.asking():
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
        reply = np.empty(_HEAD + FIRST // 8, np.int64)
        receiving = comm.Irecv([reply, MPI.INT64_T], rank, tag)
        message = np.empty(1 + len(words), np.int64)
        message[0] = tag
        message[1:] = words
        sending = comm.Isend([message, MPI.INT64_T], rank, REQUEST)
        yield receiving
        status, length = reply[:_HEAD].tolist()
        answer = reply[_HEAD : _HEAD + length]
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
