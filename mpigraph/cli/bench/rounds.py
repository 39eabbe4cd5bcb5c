"""Rounds of requests and answers: their latency and rate, and what a channel's rounds cost a minibatch."""

import time
from typing import Any, cast

import numpy as np

from mpigraph.cli.bench.clock import time_collective
from mpigraph.mpi.coroutine import run
from mpigraph.mpi.rounds import OK, Header, exchange_answers, exchange_requests
from mpigraph.mpi.wait import IN_ROUND, wait
from mpigraph.mpi.world import World
from mpigraph.sampling.channel import Channel
from mpigraph.sampling.neighbor_service import NeighborService
from mpigraph.sampling.protocol import Operation
from mpigraph.session.context import Session

__all__ = ["TimedService", "measure_rounds"]

_PAYLOAD = 256 << 10


def measure_rounds(session: Session, seconds: float) -> dict[str, float | None]:
    """Make rounds between the trainers alone, and empty sampling rounds with the servers. Collective on the trainers.

    A round is the four collective steps of ``mpi/rounds.py``. There are none with one trainer, or on one node.
    """
    world, figures = session.world, dict[str, float | None]()
    if session.num_trainers > 1:
        comm = world.trainers.Dup()
        try:
            empty = time_collective(world, lambda: _round(world, comm, 0), seconds / 3)
            full = time_collective(world, lambda: _round(world, comm, _PAYLOAD), seconds / 3)
        finally:
            comm.Free()
        moved = 2 * _PAYLOAD * (session.num_trainers - 1)
        figures |= {"round_latency": empty * 1e6, "rounds_per_s": 1 / empty, "round_rate": moved / full / 1e9}
    if not world.all_near:
        service = TimedService.open(session)
        spent = time_collective(world, lambda: service.sample([]), seconds / 3)
        figures["service_latency"] = spent * 1e6
        service.drop(session)
    return figures


def _round(world: World, comm: Any, nbytes: int) -> None:
    """One round in which every trainer sends every other one ``nbytes`` of requests and of answers."""
    counts = np.full(comm.size, nbytes // 8, np.int64)
    counts[comm.rank] = 0
    header = Header(comm, Operation.SAMPLE, OK, counts)
    with world.watch("a round of the benchmark"):
        wait(header.request, IN_ROUND)
        run(exchange_requests(comm, np.zeros(int(counts.sum()), np.int64), counts, header))
        run(exchange_answers(comm, [np.zeros(8 * int(count), np.uint8) for count in counts]))


class _Stopwatch:
    """Passes a channel's methods through and adds up the time inside them."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._channel, name)
        if not callable(found):
            return found

        def timed(*args: Any, **options: Any) -> Any:
            work = {name: self._apart(value) for name, value in options.items()}
            begin = time.perf_counter()
            result = found(*map(self._apart, args), **work)
            self.seconds += time.perf_counter() - begin
            return result

        return timed

    def _apart(self, value: Any) -> Any:
        """Of work that a channel is to do in a round, such as answering, the time does not count."""
        if not callable(value):
            return value

        def work(*args: Any) -> Any:
            begin = time.perf_counter()
            try:
                return value(*args)
            finally:
                self.seconds -= time.perf_counter() - begin

        return work


class TimedService(NeighborService):
    """A sampling service that knows how long it waited in rounds.

    Attributes:
        channel: its channel, which counts what travels.

    Collective on the trainers: :meth:`open`, and sampling when hosts are far.
    """

    def __init__(self, session: Session, channel: Channel) -> None:
        self.channel = channel
        self._watch = _Stopwatch(channel)
        super().__init__(session.state, cast(Channel, self._watch))

    @classmethod
    def open(cls, session: Session) -> "TimedService":
        """Sample on a channel of its own. Collective on the trainers."""
        return cls(session, session.control.call(Operation.OPEN_CHANNEL))

    @property
    def exchange_seconds(self) -> float:
        """Seconds in rounds so far, but for answering and drawing meanwhile."""
        return self._watch.seconds

    def drop(self, session: Session) -> None:
        """Let the channel be freed at the next collective call."""
        session.control.drop(self.channel.number)
