"""Spans of time and counters: the library's only clock for durations.

``with span("fetch"):`` times a piece of work and ``count("fetched_bytes", n)`` counts; both work in any thread, and
spans nest. Their sums go to the process, or to the :class:`Totals` that the thread is in, such as a loader's. A span
that ends by an exception is not summed.

A stage has one name everywhere:

======== ===============================================================================
sample   draw a minibatch
answer   draw neighbours for other ranks, or this rank's own part while others draw
plan     find the remote rows of a minibatch, and the minibatch that reads each next
fetch    gather rows
place    make a minibatch of what was sampled; its fetches lie inside
wait     the script waits for its next minibatch
step     the script uses a minibatch; ``forward`` and ``backward`` lie inside if the script has such spans
exchange rows and gradients of nodes travel between trainers, for a layer on all nodes
meet     wait for other ranks
own      wait for another thread of this rank
======== ===============================================================================

A span's *own* time is the part that lies in no span inside it. So the own times of a thread's spans and the time
outside of all spans make up its wall time.

The last spans of each thread, finished or not, lie in a ring in memory that outlives the process
(``trace_memory.py``). A ``Recording`` (``recording.py``) keeps all spans.
"""

import os
import re
import struct
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from mmap import mmap
from operator import add
from time import perf_counter, perf_counter_ns
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple

from mpigraph import trace_memory as layout
from mpigraph.trace_memory import EVENT, RING

clock = perf_counter
"""Seconds on the clock of spans, for the few durations that are no span."""

Key = str | tuple[str, int]
"""A counter's name, or name and host."""

BINS = 48  # of a histogram: bin k holds spans of less than 2**k times 1.024 us
_TOTAL, _INSIDE, _HISTOGRAM = range(3)  # of a stage's sums: ns, ns in spans inside, and from there on the histogram

_write_event = struct.Struct(f"3q{layout.NAME}s{layout.TEXT}s").pack_into
_write_mark = struct.Struct("q").pack_into


class Stage(NamedTuple):
    """The spans of one stage.

    Attributes:
        seconds: their sum.
        histogram: counts of spans below 1.024 us times 1, 2, 4, ..., each without those of the bin before.
        own: seconds, without those of spans inside.
    """

    seconds: float = 0.0
    histogram: tuple[int, ...] = (0,) * BINS
    own: float = 0.0


class Snapshot(NamedTuple):
    """Sums at one moment, or between two.

    Attributes:
        stages: by name.
        counts: counters by name, or by name and host.
    """

    stages: Mapping[str, Stage] = MappingProxyType({})
    counts: Mapping[Key, int] = MappingProxyType({})

    def seconds(self, name: str) -> float:
        """The sum of a stage's spans; 0 if it has none."""
        return self.stages.get(name, Stage()).seconds

    def since(self, before: "Snapshot") -> "Snapshot":
        """Return what came after an earlier snapshot of the same totals."""
        stages = {}
        for name, stage in self.stages.items():
            old = before.stages.get(name, Stage())
            bins = tuple(a - b for a, b in zip(stage.histogram, old.histogram, strict=True))
            stages[name] = Stage(stage.seconds - old.seconds, bins, stage.own - old.own)
        return Snapshot(stages, {key: value - before.counts.get(key, 0) for key, value in self.counts.items()})


class _Memory:
    """The rings of this process's threads.

    Attributes:
        lock: guards this, and the lists of sums.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin with new memory, as at the start and in a process that was forked."""
        self.file = -1
        try:
            self.file = os.memfd_create("mpigraph-trace")
            os.ftruncate(self.file, layout.BYTES)
            memory = mmap(self.file, layout.BYTES)
        except (AttributeError, OSError):  # not Linux, forbidden, or too many files: other processes cannot read
            if self.file >= 0:
                os.close(self.file)
                self.file = -1
            memory = mmap(-1, layout.BYTES)
        self.bytes = memoryview(memory)
        self.mark = int.from_bytes(os.urandom(8), "little") >> 1
        _write_mark(self.bytes, 0, self.mark)
        self.free_rings = deque(range(layout.RINGS))
        self.lock = threading.RLock()  # a signal handler may have spans, too


class _Sheet:
    """Sums of a thread, and of those of its name before it."""

    __slots__ = ("counts", "owner", "stages", "thread")

    def __init__(self, thread: str) -> None:
        self.thread = thread
        self.owner: Callable[[], Thread | None] = _nobody
        self.stages: defaultdict[str, list[int]] = defaultdict(_no_spans)
        self.counts: defaultdict[Key, int] = defaultdict(int)

    def add(self, other: "_Sheet") -> None:
        """Add the sums of a sheet."""
        for name, sums in list(other.stages.items()):
            self.stages[name] = list(map(add, self.stages[name], sums))
        for key, value in list(other.counts.items()):
            self.counts[key] += value

    def snapshot(self) -> Snapshot:
        """Return the sums."""
        stages = {
            name: Stage(total / 1e9, tuple(histogram), (total - inside) / 1e9)
            for name, (total, inside, *histogram) in self.stages.items()
        }
        return Snapshot(stages, dict(self.counts))


def _no_spans() -> list[int]:
    return [0] * (_HISTOGRAM + BINS)


def _nobody() -> None:
    return None


class Thread:
    """One thread's ring, sheet, and innermost span.

    Attributes:
        at: the place of its next event, as if the ring had no end.
        words: the ring as int64.
        name: without the number of a pool's thread.
        log: what a recording keeps of it.
    """

    __slots__ = ("__weakref__", "at", "inner", "log", "name", "outer", "ring", "sheet", "words")

    def __init__(self) -> None:
        self.at = 0
        self.take_ring()
        self.name = re.sub(r"[-_]\d.*", "", threading.current_thread().name)
        self.inner: span | None = None
        self.log: Any = None
        self.outer: list[_Sheet] = []
        self.sheet = process._sheet_of(self)

    def take_ring(self) -> None:
        """Write to a ring that no other thread has, until the thread ends."""
        free = memory.free_rings
        try:
            number = free.popleft()
        except IndexError:  # more threads than rings: other processes cannot read this one
            self.ring = memoryview(bytearray(RING))
            self.words = self.ring.cast("q")
            return
        begin = layout.HEAD + number * RING
        self.ring = memory.bytes[begin : begin + RING]
        self.ring[:] = bytes(RING)
        self.words = self.ring.cast("q")
        weakref.finalize(self, free.append, number).atexit = False

    def leave(self, ended: "span") -> None:
        """End a span that is not the innermost, such as a generator's: its own time ended as the one inside began."""
        inner = self.inner
        while inner is not None and inner.outer is not ended:
            inner = inner.outer
        if inner is not None:
            inner.outer = ended.outer
            both = ended.begin + ended.took - inner.begin
            ended._inside += both
            if ended.outer is not None:
                ended.outer._inside -= both


class span:
    """Time the ``with`` block as a span of a stage.

    Args:
        name: of the stage.
        batch: the number of the minibatch, if the span is of one.
        detail: more words for messages; the first 104 bytes are kept.
        totals: the sums that the span is added to; default: those of the thread.

    Attributes:
        begin: nanoseconds on the clock of spans.
        took: nanoseconds, once the block has ended.
    """

    __slots__ = ("_at", "_inside", "_thread", "_totals", "batch", "begin", "detail", "name", "outer", "took")

    def __init__(self, name: str, batch: int = 0, detail: str = "", totals: "Totals | None" = None) -> None:
        self.name = name
        self.batch = batch
        self.detail = detail
        self._totals = totals

    def __enter__(self) -> "span":
        self._thread = thread = _local.thread
        self._at = at = thread.at
        thread.at = at + EVENT
        name = self.name.encode(errors="replace")
        detail = self.detail.encode(errors="replace")
        self.outer = thread.inner
        self._inside = 0
        thread.inner = self
        self.begin = begin = perf_counter_ns()
        _write_event(thread.ring, at % RING, begin, 0, self.batch, name, detail)
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        end = perf_counter_ns()
        thread = self._thread
        at = self._at
        self.took = took = end - self.begin
        if thread.at - at <= RING:  # else the ring has gone round
            thread.words[(at % RING >> 3) + 1] = end
        outer = self.outer
        if thread.inner is self:
            thread.inner = outer
        else:
            thread.leave(self)
        if recordings:
            for recording in recordings:
                (thread.log or recording.log_of(thread)).add(self, end)
        if kind is not None:
            if outer is not None:
                outer._inside += self._inside
            return
        if outer is not None:
            outer._inside += took
        sheet = thread.sheet if self._totals is None else self._totals._sheet_of(thread)
        sums = sheet.stages[self.name]
        sums[_TOTAL] += took
        sums[_INSIDE] += self._inside
        sums[(took >> 10).bit_length() + _HISTOGRAM] += 1

    @property
    def seconds(self) -> float:
        """The duration of the block, once it has ended."""
        return self.took / 1e9


def count(name: str, number: int, host: int | None = None) -> None:
    """Add to a counter, or to that of one host."""
    _local.thread.sheet.counts[name if host is None else (name, host)] += int(number)


class Totals:
    """Sums of spans and counters of some threads. In ``with totals:`` this thread adds to them alone."""

    def __init__(self) -> None:
        self._sheets: dict[str, list[_Sheet]] = {}  # by the name of threads
        with memory.lock:
            _keep_dropped()
            _all_totals.add(self)
        weakref.finalize(self, _dropped.append, self._sheets).atexit = False

    def _sheet_of(self, thread: Thread) -> _Sheet:
        for sheet in self._sheets.get(thread.name, ()):
            if sheet.owner() is thread:
                return sheet
        with memory.lock:
            sheets = self._sheets.setdefault(thread.name, [])
            left = next((sheet for sheet in sheets if sheet.owner() is None), None)  # by a thread that has ended
            if left is None:
                left = _Sheet(thread.name)
                sheets.append(left)
            left.owner = weakref.ref(thread)
            return left

    def all(self) -> list[_Sheet]:
        """Return the sheets of all threads."""
        return [sheet for sheets in list(self._sheets.values()) for sheet in sheets]

    def threads(self) -> list[Thread]:
        """Return those of its threads that have not ended."""
        owners = [sheet.owner() for sheet in self.all()]
        return [thread for thread in owners if thread is not None]

    def __enter__(self) -> "Totals":
        thread = _local.thread
        thread.outer.append(thread.sheet)
        thread.sheet = self._sheet_of(thread)
        return self

    def __exit__(self, *_: object) -> None:
        thread = _local.thread
        thread.sheet = thread.outer.pop()

    def snapshot(self) -> Snapshot:
        """Return the sums so far, of all threads."""
        total = _Sheet("")
        with memory.lock:
            for sheet in self.all():
                total.add(sheet)
        return total.snapshot()


class _Local(threading.local):
    def __init__(self) -> None:
        self.thread = Thread()


def this_thread() -> Thread:
    """Return the thread that calls."""
    return _local.thread


def sums() -> tuple[int, dict[str, Snapshot]]:
    """Return a time in ns, and all sums of this process by thread, with the part until then of spans that last.

    Threads of one name are one, and a name has no number: all of a pool are one.
    """
    with memory.lock:
        total = {name: _Sheet(name) for name in {sheet.thread for sheet in _all_sheets()}}
        for sheet in _all_sheets():
            total[sheet.thread].add(sheet)
        now = perf_counter_ns()
        for thread in process.threads():
            end = now
            part = thread.inner
            while part is not None:
                sums = total[thread.name].stages[part.name]
                sums[_TOTAL] += now - part.begin
                sums[_INSIDE] += now - end + part._inside
                end = part.begin
                part = part.outer
    return now, {name: sheet.snapshot() for name, sheet in total.items()}


def _all_sheets() -> list[_Sheet]:
    """Return the sheets of all totals, also of those that were dropped; under the lock."""
    _keep_dropped()
    return [*_past.values(), *(sheet for totals in _all_totals for sheet in totals.all())]


def _keep_dropped() -> None:
    """Add the sums of dropped totals to those of the past, under the lock: a finalizer must not take it."""
    while _dropped:
        for name, sheets in _dropped.popleft().items():
            for sheet in sheets:
                _past.setdefault(name, _Sheet(name)).add(sheet)


def met() -> int:
    """Return the ns that this thread has waited for other ranks, outside of loaders' stages."""
    sums = _local.thread.sheet.stages.get("meet")
    return 0 if sums is None else sums[_TOTAL] - sums[_INSIDE]


def address() -> layout.Address:
    """Return the place of this process's memory, for a :class:`~mpigraph.trace_memory.Trace`: three int64."""
    return os.getpid(), memory.file, memory.mark


def leave() -> None:
    """Let readers of this process's memory know that it leaves the job."""
    memory.bytes[layout.LEFT] = 1


def join() -> None:
    """Take back what :func:`leave` has said: another job begins."""
    memory.bytes[layout.LEFT] = 0


def _begin_anew() -> None:
    """Leave the parent's memory to the parent, in a process that was forked from it."""
    recordings.clear()
    memory.begin()
    _local.thread.take_ring()


_all_totals: "weakref.WeakSet[Totals]" = weakref.WeakSet()
_dropped: deque[dict[str, list[_Sheet]]] = deque()
_past: dict[str, _Sheet] = {}
recordings: list[Any] = []  # one at most, which hears of each span's end
memory = _Memory()
process = Totals()
_local = _Local()
os.register_at_fork(after_in_child=_begin_anew)
