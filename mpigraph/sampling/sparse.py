"""Sampling requests to their owners alone, point to point: no other rank takes part, and trainers need not be in step.

Each owner answers by a :class:`~mpigraph.mpi.messages.RequestServer`: a server in its loop, a host that also trains in
the progress thread.

Trainers of a node do not join their requests. Joining would save small messages, but each request would pass through
the local server both ways, which is as busy as an owner, and wait there for trainers that need not be in step.
"""

from collections.abc import Callable, Mapping

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I64, U8
from mpigraph.collective import collective
from mpigraph.mpi.interrupts import UNINTERRUPTED
from mpigraph.mpi.messages import Answer, Gate, Requester, RequestServer, answering
from mpigraph.mpi.wait import IN_ROUND
from mpigraph.mpi.world import World
from mpigraph.sampling.channel import Channel, SamplingTransport, timed_answer

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
            meanwhile = timed_answer(meanwhile) if meanwhile is not None else None
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
            self.requester.comm, answering(timed_answer(make_answer())), max_bytes=HELD
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
