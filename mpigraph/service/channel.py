"""A channel: the rounds of one thread of every trainer, answered by every rank.

A trainer that has nothing (more) to ask is *idle*: it goes on answering until all trainers are idle. So trainers may
make different numbers of rounds, or none: uneven, tiny and empty training sets and early breaks cannot hang.

In a job on one node every host is near, nothing is ever asked, and a channel is empty.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from mpigraph.errors import CollectiveError, MPIGraphError
from mpigraph.log import get_logger
from mpigraph.mpi.agree import raise_together
from mpigraph.mpi.exchange import FAILED, OK, Header, Requests, exchange_answers, exchange_requests
from mpigraph.mpi.world import World
from mpigraph.service.protocol import Operation

__all__ = ["Answer", "Channel"]

_U8 = npt.NDArray[np.uint8]
Answer = Callable[[Requests], list[_U8]]


class Channel:
    """Rounds on a communicator of its own.

    Attributes:
        number: the same on every rank.
        graph: name of the graph that is sampled.
        rounds: how many rounds were made.
        messages: how many requests and answers that were not empty went from here to other ranks.
        bytes: their bytes.

    Collective on ``world.comm``: construction and :meth:`close`.
    """

    def __init__(self, world: World, number: int, graph: str) -> None:
        self.world = world
        self.number = number
        self.graph = graph
        self.rounds = self.messages = self.bytes = 0
        self._comm: MPI.Comm = MPI.COMM_NULL if world.all_near else world.comm.Dup()
        self._pending: Header | None = None

    def ask(
        self,
        answer: Answer,
        requests: list[npt.NDArray[np.int64]],
        meanwhile: Callable[[], None] | None = None,
        error: BaseException | None = None,
    ) -> list[_U8]:
        """Make one round: ask every rank, answer every rank.

        Args:
            answer: answers what others ask of me.
            requests: for each rank its request words.
            meanwhile: this rank's own share of the work, done while the others make their answers.
            error: this rank cannot ask because of this; it takes part all the same, and every rank raises.

        Returns:
            The answer of each rank.

        Raises:
            CollectiveError: some rank failed to ask or to answer; on every rank, naming it.

        Collective on the channel's trainers.
        """
        counts = np.array([len(words) for words in requests], np.int64)
        header = Header(self._comm, Operation.SAMPLE, FAILED if error else OK, counts)
        header.wait(self.world, f"sampling round {self.rounds} of channel {self.number}")
        return self._round(header, answer, np.concatenate(requests), counts, meanwhile, error)

    def serve_until_idle(self, answer: Answer) -> None:
        """Answer the others until every trainer is idle. Collective on the channel's trainers."""
        if self._comm == MPI.COMM_NULL:
            return
        nothing = np.zeros(self._comm.size, np.int64)
        while True:
            header = Header(self._comm, Operation.IDLE, OK, nothing)
            header.wait_long()
            if self._all_idle(header):
                return
            self._answer_only(header, answer)

    def poll(self, answer: Answer) -> bool:
        """On a server: answer a round if one has begun; say whether it had. Local until a round has begun."""
        if self._comm == MPI.COMM_NULL:
            return False
        nothing = np.zeros(self._comm.size, np.int64)
        if self._pending is None:
            self._pending = Header(self._comm, Operation.SERVE, OK, nothing)
        header = self._pending
        if not header.arrived():
            return False
        self._pending = None
        if not self._all_idle(header):
            self._answer_only(header, answer)
        return True

    def _answer_only(self, header: Header, answer: Answer) -> None:
        """Take part in a round that others began."""
        try:
            self._round(header, answer, np.empty(0, np.int64), np.zeros(self._comm.size, np.int64), None, None)
        except MPIGraphError as error:
            get_logger().info("%s", error)  # raised on every trainer that asks, where the user sees it

    def _all_idle(self, header: Header) -> bool:
        return bool((header.operations[self.world.trainer_ranks] == Operation.IDLE).all())

    def _round(
        self,
        header: Header,
        answer: Answer,
        words: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
        meanwhile: Callable[[], None] | None,
        error: BaseException | None,
    ) -> list[_U8]:
        self.rounds += 1
        with self.world.watch(f"sampling round {self.rounds} of channel {self.number}"):
            if (header.statuses == FAILED).any():
                raise_together(self._comm, "sampling", error)
            self._count(counts * words.itemsize)
            requests = exchange_requests(self._comm, words, counts, header)
            answers: list[_U8] | None = None
            try:
                answers = answer(requests)
                self._count(np.array([len(data) for data in answers], np.int64))
            except Exception as exc:  # told to every rank by the exchange, and raised there
                error = exc
            received, failed = exchange_answers(self._comm, answers, meanwhile)
            if len(failed):
                raise_together(self._comm, "answering a sampling request", error)
        return received

    def _count(self, nbytes: npt.NDArray[np.int64]) -> None:
        """Count what goes to each rank (int64[size])."""
        to_others = np.delete(nbytes, self._comm.rank)
        self.messages += int(np.count_nonzero(to_others))
        self.bytes += int(to_others.sum())

    def finish(self) -> None:
        """Complete a server's pending header, before the channel is freed. Collective on the channel."""
        if self._comm == MPI.COMM_NULL:
            return
        if self._pending is None:
            operation = Operation.IDLE if self.world.is_trainer else Operation.SERVE
            self._pending = Header(self._comm, operation, OK, np.zeros(self._comm.size, np.int64))
        self._pending.wait(self.world, f"closing channel {self.number}")
        if not self._all_idle(self._pending):
            raise CollectiveError(f"channel {self.number} was closed in the middle of a round")
        self._pending = None

    def close(self) -> None:
        """Free the communicator; a second call does nothing."""
        if self._comm != MPI.COMM_NULL:
            self.finish()
            comm, self._comm = self._comm, MPI.COMM_NULL
            comm.Free()
