"""The clocks of other nodes, compared with that of one rank.

A rank asks another one for its time; the answer was read at some moment between question and arrival. So the middle of
both is at most half a round trip wrong, and of several round trips the fastest counts (F. Cristian, Probabilistic clock
synchronization, Distributed Computing 3, 1989). Two comparisons, at the begin and at the end of what is measured, also
tell how the clocks drift in between.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from mpigraph.collective import collective
from mpigraph.mpi.coroutine import Coroutine, run
from mpigraph.mpi.wait import BLOCKED
from mpigraph.trace import clock

_TAG = 33
_TRIPS = 20


class Ahead(NamedTuple):
    """A comparison of another rank's clock with one's own.

    Attributes:
        at: one's own time, in seconds.
        seconds: by which the other clock was ahead.
        error: of that, at most.
    """

    at: float = 0.0
    seconds: float = 0.0
    error: float = 0.0


class Drift(NamedTuple):
    """Two comparisons with the same clock."""

    begin: Ahead = Ahead()
    end: Ahead = Ahead()

    @property
    def error(self) -> float:
        """The largest error of a time between both, in seconds, where the clock drifts evenly."""
        return max(self.begin.error, self.end.error)

    def own_time(self, theirs: float) -> float:
        """Return the time of one's own clock at a time of the other, both in seconds."""
        (begin, first, _), (end, last, _) = self
        if end <= begin:
            return theirs - first
        return begin + (theirs - begin - first) * (end - begin) / (end + last - begin - first)


@collective("comm")
def compare_clocks(comm: MPI.Intracomm, asking: int, asked: Sequence[int]) -> list[Ahead]:
    """Return on the rank ``asking`` how far the clock of each of the ranks ``asked`` is ahead; [] on the others."""
    if comm.rank == asking:
        return [run(_ask(comm, rank), BLOCKED) for rank in asked]
    if comm.rank in asked:
        run(_answer(comm, asking), BLOCKED)
    return []


def _ask(comm: MPI.Intracomm, rank: int) -> Coroutine[Ahead]:
    answer = np.empty(1)
    trips = []
    for _ in range(_TRIPS):
        begin = clock()
        yield comm.Isend(answer, rank, _TAG)
        yield comm.Irecv(answer, rank, _TAG)
        end = clock()
        middle = (begin + end) / 2
        trips.append(Ahead(middle, float(answer[0]) - middle, (end - begin) / 2))
    return min(trips, key=lambda trip: trip.error)


def _answer(comm: MPI.Intracomm, rank: int) -> Coroutine[None]:
    time = np.empty(1)
    for _ in range(_TRIPS):
        yield comm.Irecv(time, rank, _TAG)
        time[0] = clock()
        yield comm.Isend(time, rank, _TAG)
