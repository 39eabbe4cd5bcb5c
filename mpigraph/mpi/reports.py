"""How nodes tell one another that they are alive: the leader of each node reports to the leader of the first one.

A report is a summary of a node (:mod:`.board`), and its answer the latest target of those who agree to stop
(:mod:`.stopping`). Whoever waits for an answer in vain knows that the first leader does not run. Between reports a
leader waits a second or more, so the first one has little to do also among thousands. Nothing here waits for anybody.

Whose thread does it: the watchdog's where MPI allows calls from several threads, else a server's main thread between
rounds. One thread at a time.
"""

from collections.abc import Iterator

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import U8
from mpigraph.collective import collective
from mpigraph.mpi.board import Summary
from mpigraph.mpi.stopping import NEVER
from mpigraph.mpi.wait import PEERS_COMPUTE, Backoff

__all__ = ["Reports"]

_REPORT, _ANSWER, _LAST = 1, 2, 3  # tags
_PERIOD = 0.5  # seconds between two reports
_HURRY = 0.05  # the same while trainers agree to stop
_A_SECOND = 500  # reports that the first leader can read
_HUB = 0


class Reports:
    """What leaders send. ``comm`` is theirs.

    Attributes:
        leads: whether this is the first leader, to whom the others report.
        target: on the first leader what it answers, on the others what it has answered last.
        hurry: whether to report more often.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self.leads = comm.rank == _HUB
        self.target = NEVER
        self.hurry = False
        self._reply = np.empty(1, np.int64)
        self._due = 0.0
        self._asked: float | None = None  # when the report was sent that is not answered
        self._sending: list[tuple[MPI.Request, U8]] = []
        self._answer: MPI.Request | None = None
        self._latest: dict[int, tuple[float, Summary]] = {}
        self._left = 1  # leaders that have sent their last message, this one included

    def exchange(self, mine: Summary, now: float) -> None:
        """Send what this node does if it is time to, and take in what has come."""
        self._sending = [(request, data) for request, data in self._sending if not request.Test()]
        if self.leads:
            self._take_in(now)
            return
        if self._answer is not None and self._answer.Test():
            self._answer, self._asked = None, None
            self.target = int(self._reply[0])
        if self._answer is None and now >= self._due:
            self._answer = self._comm.Irecv([self._reply, MPI.BYTE], _HUB, _ANSWER)
            self._send(mine.encode(), _HUB, _REPORT)
            self._asked = now
            self._due = now + max(_HURRY if self.hurry else _PERIOD, self._comm.size / _A_SECOND)

    def _take_in(self, now: float) -> None:
        status = MPI.Status()
        while (message := self._comm.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)) is not None:
            data = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            message.Recv([data, MPI.BYTE])
            source = status.Get_source()
            if status.Get_tag() == _LAST:
                self._left += 1
            else:
                self._latest[source] = now, Summary.decode(data.tobytes())
                self._send(np.int64(self.target).tobytes(), source, _ANSWER)

    def _send(self, data: bytes, to: int, tag: int) -> None:
        array = np.frombuffer(data, np.uint8)
        self._sending.append((self._comm.Isend([array, MPI.BYTE], to, tag), array))

    def others(self, now: float) -> Iterator[tuple[int, float, Summary]]:
        """On the first leader: each other node's number, the age of its latest report, and the report."""
        for source, (when, summary) in sorted(self._latest.items()):
            yield source, now - when, summary

    @property
    def complete(self) -> bool:
        """On the first leader: whether every node has reported."""
        return len(self._latest) == self._comm.size - 1

    def silence(self, now: float) -> float:
        """On the other leaders: for how many seconds the first one has not answered."""
        return 0.0 if self._asked is None else now - self._asked

    @collective("comm")
    def close(self) -> None:
        """Complete what is outstanding, when no thread calls :meth:`exchange` any more."""
        backoff = Backoff()
        if not self.leads:
            while self._answer is not None and not self._answer.Test():
                backoff.pause(PEERS_COMPUTE)
            self._send(b"", _HUB, _LAST)
        while self.leads and self._left < self._comm.size:
            self._take_in(0.0)
            backoff.pause(PEERS_COMPUTE)
        for request, _ in self._sending:
            while not request.Test():
                backoff.pause(PEERS_COMPUTE)
