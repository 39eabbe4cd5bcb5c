"""The last act of every rank: a row for each in its node's shared memory, and the maxima of all nodes.

Each rank's watchdog writes its own row several times a second: for how long the rank has waited for others, whether it
is inside a protocol step, and what it does, for people. Numbers are single words of memory, so no reader sees half of
one; half of a text is only a text. A row that does not change belongs to a stopped process, or to one that holds
Python's lock for minutes; the latter uses processor time, which its neighbours read from the kernel. A row also has the
words by which trainers agree to stop (:mod:`.stopping`).

The leaders of several nodes reduce vectors of numbers, one reduction after the other (:class:`Rounds`). All have the
same result, and decide the same by it.
"""

from collections.abc import Callable, Sequence

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I64, U8
from mpigraph.collective import collective
from mpigraph.mpi.agree import allgather_bytes
from mpigraph.mpi.compat import as_array
from mpigraph.mpi.wait import IDLE, until
from mpigraph.trace import address
from mpigraph.trace_memory import Trace

_ROW = 512  # bytes
_HEAD = 64  # of numbers, int64: those below
_BEAT, _WAITED, _IN_STEP, _STOPPING = 0, 1, 2, slice(3, 6)
_OLD = 3.0  # seconds: a rank with an older row is stopped, or holds Python's lock; its wait may be over


class Board:
    """The rows of a node's ranks. Each rank writes its own and may read all.

    Attributes:
        names: of the ranks.
        addresses: :func:`mpigraph.trace.address` of the ranks, int64[ranks, 3].
        traces: readers of the memory of their spans.
        stopping: of each rank, its words of :mod:`.stopping`.
    """

    @collective("node")
    def __init__(self, node: MPI.Intracomm, name: str) -> None:
        self.rank = node.rank
        self.names = [name.decode() for name in allgather_bytes(node, name.encode())]
        self.addresses = np.empty((node.size, 3), np.int64)
        node.Allgather(np.array(address(), np.int64), self.addresses)
        self.traces = [Trace((pid, file, mark)) for pid, file, mark in self.addresses.tolist()]
        self._win = MPI.Win.Allocate_shared(_ROW, 8, comm=node)
        self._rows: list[U8] = [as_array(self._win.Shared_query(rank)[0], np.uint8) for rank in range(node.size)]
        self._heads: list[I64] = [row[:_HEAD].view(np.int64) for row in self._rows]
        self.stopping: list[I64] = [head[_STOPPING] for head in self._heads]
        self._rows[node.rank][:] = 0
        self._win.Lock_all(MPI.MODE_NOCHECK)
        self._seen = [(-1, -1.0)] * node.size  # beat, processor time
        self._alive = [0.0] * node.size  # when one of both last changed
        self._wrote = [0.0] * node.size  # when the beat last changed
        node.Barrier()

    def write(self, waited: float, in_step: bool, text: str) -> None:
        """Publish this rank's state: see :meth:`waited` and :meth:`in_step`; ``text`` is for people."""
        row, head = self._rows[self.rank], self._heads[self.rank]
        row[_HEAD:] = np.frombuffer(text.encode(errors="replace")[: _ROW - _HEAD].ljust(_ROW - _HEAD, b"\0"), np.uint8)
        head[_WAITED], head[_IN_STEP] = int(1000 * waited), in_step
        head[_BEAT] += 1

    def look(self, now: float) -> None:
        """Note which ranks of the node show a sign of life at the time ``now``."""
        for rank, head in enumerate(self._heads):
            beat, (last, used) = int(head[_BEAT]), self._seen[rank]
            if beat != last:
                self._wrote[rank] = now
            else:
                used = _processor_time(int(self.addresses[rank, 0]))
            if (beat, used) != self._seen[rank]:
                self._seen[rank], self._alive[rank] = (beat, used), now

    def still(self, rank: int, now: float) -> float:
        """Return for how many seconds a rank of the node has shown no sign of life."""
        return 0.0 if rank == self.rank else now - self._alive[rank]

    def waited(self, rank: int, now: float) -> float:
        """Return for how many seconds a trainer has had no thread that could go on without others; 0 if it has one."""
        return 0.0 if self._is_old(rank, now) else int(self._heads[rank][_WAITED]) / 1000

    def in_step(self, rank: int, now: float) -> bool:
        """Return whether a thread of a rank is inside a protocol step, which has a deadline of its own."""
        return not self._is_old(rank, now) and bool(self._heads[rank][_IN_STEP])

    def _is_old(self, rank: int, now: float) -> bool:
        return rank != self.rank and now - self._wrote[rank] > _OLD

    def lines(self, now: float, ranks: Sequence[int] | None = None) -> list[str]:
        """Return what ranks do, by default all of the node: two lines for each."""
        lines = []
        for rank in range(len(self._rows)) if ranks is None else ranks:
            text = self._rows[rank][_HEAD:].tobytes().partition(b"\0")[0].decode(errors="replace")
            if self._is_old(rank, now):
                age = f"no sign of life for {self.still(rank, now):.0f} s" if self.still(rank, now) > _OLD else "busy"
                text = f"{age} since it was {text}"
            lines += [f"{self.names[rank]}: {text}"]
            lines += [f"last spans of {self.names[rank]}: {last}"] if (last := self.traces[rank].last()) else []
        return lines

    def fence(self) -> None:
        """Order this rank's writes before and its reads after."""
        self._win.Sync()

    @collective("node")
    def close(self) -> None:
        """Free the board; a second call does nothing."""
        win, self._win = self._win, MPI.WIN_NULL
        if win:
            for views in (self.traces, self._rows, self._heads, self.stopping):
                views.clear()  # type: ignore[attr-defined]
            win.Unlock_all()
            win.Free()


def _processor_time(pid: int) -> float:
    """Return the processor time that a process has used, in ticks; -1 where the kernel does not say."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return float(fields[11]) + float(fields[12])
    except (OSError, IndexError, ValueError):
        return -1.0


class Rounds:
    """Maxima over the leaders of all nodes, one round after the other. For one thread; only :meth:`close` waits.

    Attributes:
        comm: the leaders.
        begun: when the outstanding round was begun, None if none is.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.begun: float | None = None

    @collective("comm", "one round after the other")
    def begin(self, words: I64, now: float) -> None:
        """Begin a round with this node's part, unless one is outstanding."""
        if self.begun is None:
            self._words = words.copy()
            self._request = self.comm.Iallreduce(MPI.IN_PLACE, self._words, MPI.MAX)
            self.begun = now

    def result(self) -> I64 | None:
        """Return the result of the outstanding round, once, if it is complete."""
        if self.begun is None or not self._request.Test():
            return None
        self.begun = None
        return self._words

    @collective("comm")
    def close(self, part: Callable[[], I64], over: Callable[[I64], bool]) -> None:
        """Go on with rounds of ``part`` until the result of one is ``over``: the same one on every leader."""

        def is_over() -> bool:
            self.begin(part(), 0.0)
            return (result := self.result()) is not None and over(result)

        until(is_over, IDLE)
