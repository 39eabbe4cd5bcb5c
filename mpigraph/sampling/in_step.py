"""Sampling requests in rounds of all ranks: each trainer's channel has a communicator, every rank answers in turn.

A round has four collective steps (``mpi/messages.py``). A trainer with nothing more to ask is *idle*: it answers the
others until all trainers are idle. So trainers may make different numbers of rounds: uneven, tiny and empty training
sets and early breaks cannot hang.

In a job on one node every host is local, and a channel has no communicator.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import partial
from threading import Lock

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I64, U8
from mpigraph.collective import collective
from mpigraph.errors import CollectiveError, MPIGraphError
from mpigraph.log import get_logger
from mpigraph.mpi.agree import no_way_back, raise_jointly
from mpigraph.mpi.coroutine import NOT_YET, Coroutine, Task, finish, run
from mpigraph.mpi.interrupts import UNINTERRUPTED
from mpigraph.mpi.messages import (
    FAILED,
    HEAD,
    OK,
    Answer,
    Header,
    NotOpenHere,
    Received,
    alltoall,
    exchange_answers,
    in_rank_order,
)
from mpigraph.mpi.wait import IN_ROUND, PEERS_COMPUTE, wait
from mpigraph.mpi.world import World
from mpigraph.sampling.channel import Channel, SamplingTransport, timed_answer

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
        self._place = f"channel {number}"
        self._comm: MPI.Comm = MPI.COMM_NULL if world.all_local else world.comm.Dup()
        self._answer = timed_answer(answer)
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
        meanwhile = timed_answer(meanwhile) if meanwhile is not None else None
        words, counts = in_rank_order(asked, self.world.size)
        with UNINTERRUPTED:
            with self.world.meeting(f"sampling round {self.rounds} of {self.name}", self._place):
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
                with self.world.meeting(f"the end of every trainer's rounds on {self.name}", self._place):
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
