"""Spans of time and counters: the library's only clock for durations.

``with span("fetch"):`` times a piece of work and ``count("fetched_bytes", n)`` counts; both work in any thread, and
spans nest. Their sums go to the process, or to the :class:`Totals` that the thread is in, such as a loader's. A span
that ends by an exception is not summed.

A stage has one name everywhere:

======== ===============================================================================
sample   draw a minibatch
answer   draw neighbours for other ranks, or this rank's own part while others draw
plan     find the far rows of a minibatch, and the minibatch that reads each next
fetch    gather rows
place    make a minibatch of what was sampled; its fetches lie inside
wait     the script waits for its next minibatch
step     the script uses a minibatch; ``forward`` and ``backward`` lie inside if the script has such spans
meet     wait for other ranks
own      wait for another thread of this rank
======== ===============================================================================

The last spans of each thread, finished or not, also lie in memory that other processes of the node can map
(:func:`address`, :class:`Trace`): it outlives the process, so the watchdog and the witness can say what a rank did
last. No other file of the library is imported here, so that the witness starts fast.
"""

import os
import struct
import sys
import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from mmap import MAP_SHARED, PROT_READ, mmap
from time import perf_counter, perf_counter_ns
from types import MappingProxyType, TracebackType
from typing import NamedTuple

__all__ = ["Event", "Snapshot", "Stage", "Totals", "Trace", "address", "clock", "count", "span"]

clock = perf_counter
"""Seconds on the clock of spans, for the few durations that are no span."""

_BINS = 48  # of a histogram: bin k holds spans of less than 2**k times 1.024 us
_EVENT = 128  # bytes: number of the name, begin, end, minibatch (int64 each), and text
_FIRST_TEXT = 32
_TEXT = _EVENT - _FIRST_TEXT
_RING = 64 * _EVENT  # bytes: the events of a thread
_RINGS = 32  # threads with a ring that other processes can read
_NAMES = 128  # names that other processes can read
_NAME = 32  # bytes
_HEAD = 64  # bytes: a random number, by which a reader knows that it has the right memory
_FIRST_RING = _HEAD + _NAMES * _NAME
_BYTES = _FIRST_RING + _RINGS * _RING
_OPEN_SHOWN, _DONE_SHOWN = 3, 4  # events in a message


_write_event = struct.Struct("5q").pack_into  # the text is empty, unless it is written after that
_write_end = struct.Struct("q").pack_into
_read_begin = struct.Struct("8xq").unpack_from
_read_event = struct.Struct("4q").unpack_from


class Event(NamedTuple):
    """A span in a ring.

    Attributes:
        name: of its stage.
        batch: the minibatch, if the span is of one.
        begin: nanoseconds on the clock of spans.
        end: the same, 0 if the span has not ended.
        detail: more words.
    """

    name: str
    batch: int
    begin: int
    end: int
    detail: str


class _Memory:
    """The rings of this process's threads."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin with new memory, as at the start and in a process that was forked."""
        self.file = -1
        try:
            self.file = os.memfd_create("mpigraph-trace")
            os.ftruncate(self.file, _BYTES)
            memory = mmap(self.file, _BYTES)
        except (AttributeError, OSError):  # not Linux, forbidden, or too many files: other processes cannot read
            if self.file >= 0:
                os.close(self.file)
                self.file = -1
            memory = mmap(-1, _BYTES)
        self.bytes = memoryview(memory)
        self.mark = int.from_bytes(os.urandom(8), "little") >> 1
        _write_end(self.bytes, 0, self.mark)
        self.numbers: dict[str, int] = {}
        self.free_rings = deque(range(_RINGS))
        self.lock = threading.RLock()  # a signal handler may have spans, too

    def number_of(self, name: str) -> int:
        """Give a name a number, from 1 on; 0 if there are too many names."""
        with self.lock:
            number = self.numbers.get(name, len(self.numbers) + 1)
            if number >= _NAMES:
                return 0
            begin = _HEAD + number * _NAME
            text = name.encode()[:_NAME]
            self.bytes[begin : begin + len(text)] = text
            self.numbers[name] = number
            return number


class _Sheet:
    """Sums of one thread: ``stages`` by name [nanoseconds, then how many spans in each bin], and counters."""

    __slots__ = ("counts", "stages")

    def __init__(self) -> None:
        self.stages: dict[str, list[int]] = {}
        self.counts: dict[str | tuple[str, int], int] = {}

    def add(self, other: "_Sheet") -> None:
        for name, cell in list(other.stages.items()):
            own = self.stages.setdefault(name, [0] * (_BINS + 1))
            self.stages[name] = [a + b for a, b in zip(own, cell, strict=True)]
        for key, value in list(other.counts.items()):
            self.counts[key] = self.counts.get(key, 0) + value


class _Thread:
    """One thread's ring and sheet."""

    __slots__ = ("__weakref__", "at", "numbers", "outer", "ring", "sheet")

    def __init__(self) -> None:
        self.take_ring()
        self.outer: list[_Sheet] = []
        self.sheet = _process._sheet_of(self)

    def take_ring(self) -> None:
        """Write to a ring that no other thread has, until the thread ends."""
        free = _memory.free_rings
        self.numbers = _memory.numbers
        self.at = 0
        try:
            number = free.popleft()
        except IndexError:  # more threads than rings: other processes cannot read this one
            self.ring = memoryview(bytearray(_RING))
            return
        begin = _FIRST_RING + number * _RING
        self.ring = _memory.bytes[begin : begin + _RING]
        self.ring[:] = bytes(_RING)
        weakref.finalize(self, free.append, number).atexit = False


class span:
    """Time the ``with`` block as a span of a stage.

    Args:
        name: of the stage.
        batch: the number of the minibatch, if the span is of one.
        detail: more words for messages; the first 96 bytes are kept.
        whom: the ranks that the block waits for; each is charged with the whole time (``waited_ns``).
        totals: the sums that the span is added to; default: those of the thread.
    """

    __slots__ = ("_at", "_batch", "_begin", "_detail", "_name", "_thread", "_took", "_totals", "_whom")

    def __init__(
        self, name: str, batch: int = 0, detail: str = "", whom: Sequence[int] = (), totals: "Totals | None" = None
    ) -> None:
        self._name = name
        self._batch = batch
        self._detail = detail
        self._whom = whom
        self._totals = totals

    def __enter__(self) -> "span":
        self._thread = thread = _local.thread
        self._at = at = thread.at
        thread.at = (at + _EVENT) % _RING
        number = thread.numbers.get(self._name) or _memory.number_of(self._name)
        self._begin = begin = perf_counter_ns()
        _write_event(thread.ring, at, number, begin, 0, self._batch, 0)
        if self._detail:
            text = self._detail.encode(errors="replace")[:_TEXT].ljust(_TEXT, b"\0")
            thread.ring[at + _FIRST_TEXT : at + _EVENT] = text
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        end = perf_counter_ns()
        thread, at, begin = self._thread, self._at, self._begin
        self._took = took = end - begin
        if _read_begin(thread.ring, at)[0] == begin:  # else the ring has gone round
            _write_end(thread.ring, at + 16, end)
        if kind is not None:
            return
        sheet = thread.sheet if self._totals is None else self._totals._sheet_of(thread)
        try:
            cell = sheet.stages[self._name]
        except KeyError:
            cell = sheet.stages[self._name] = [0] * (_BINS + 1)
        cell[0] += took
        cell[(took >> 10).bit_length() + 1] += 1
        for rank in self._whom:
            sheet.counts["waited_ns", rank] = sheet.counts.get(("waited_ns", rank), 0) + took

    @property
    def seconds(self) -> float:
        """The duration of the block, once it has ended."""
        return self._took / 1e9


def count(name: str, number: int, host: int | None = None) -> None:
    """Add to a counter, or to that of one host."""
    counts = _local.thread.sheet.counts
    key = name if host is None else (name, host)
    counts[key] = counts.get(key, 0) + int(number)


class Stage(NamedTuple):
    """The spans of one stage.

    Attributes:
        seconds: their sum.
        histogram: counts of spans below 1.024 us times 1, 2, 4, ..., each without those of the bin before.
    """

    seconds: float = 0.0
    histogram: tuple[int, ...] = (0,) * _BINS


class Snapshot(NamedTuple):
    """Sums at one moment, or between two.

    Attributes:
        stages: by name.
        counts: counters by name, or by name and host.
    """

    stages: Mapping[str, Stage] = MappingProxyType({})
    counts: Mapping[str | tuple[str, int], int] = MappingProxyType({})

    def seconds(self, name: str) -> float:
        """The sum of a stage's spans; 0 if it has none."""
        return self.stages.get(name, Stage()).seconds

    def since(self, before: "Snapshot") -> "Snapshot":
        """Return what came after an earlier snapshot of the same totals."""
        stages = {}
        for name, stage in self.stages.items():
            old = before.stages.get(name, Stage())
            bins = tuple(a - b for a, b in zip(stage.histogram, old.histogram, strict=True))
            stages[name] = Stage(stage.seconds - old.seconds, bins)
        return Snapshot(stages, {key: value - before.counts.get(key, 0) for key, value in self.counts.items()})


class Totals:
    """Sums of spans and counters of some threads. In ``with totals:`` this thread adds to them alone."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may read these sums, too
        self._ended = _Sheet()  # of threads that have ended
        self._sheets: dict[int, tuple[weakref.ref[_Thread], _Sheet]] = {}

    def _sheet_of(self, thread: _Thread) -> _Sheet:
        entry = self._sheets.get(id(thread))
        if entry is not None and entry[0]() is thread:
            return entry[1]
        with self._lock:
            for number, (owner, sheet) in list(self._sheets.items()):
                if owner() is None and self._sheets.pop(number, None) is not None:
                    self._ended.add(sheet)
            return self._sheets.setdefault(id(thread), (weakref.ref(thread), _Sheet()))[1]

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
        total = _Sheet()
        with self._lock:
            total.add(self._ended)
            for _, sheet in list(self._sheets.values()):
                total.add(sheet)
        stages = {name: Stage(cell[0] / 1e9, tuple(cell[1:])) for name, cell in total.stages.items()}
        return Snapshot(stages, total.counts)


class _Local(threading.local):
    def __init__(self) -> None:
        self.thread = _Thread()


Address = tuple[int, int, int]


def address() -> Address:
    """Return the place of this process's spans for other processes of the node: three int64."""
    return os.getpid(), _memory.file, _memory.mark


class Trace:
    """Reader of the last spans of a process of this node, also after its death."""

    def __init__(self, where: Address) -> None:
        """Map the memory of a live process. If that fails, there are no events.

        Args:
            where: the process's :func:`address`.
        """
        pid, number, mark = where
        self._bytes = memoryview(b"")
        try:
            file = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return
        try:
            if os.fstat(file).st_size == _BYTES:
                memory = memoryview(mmap(file, _BYTES, MAP_SHARED, PROT_READ))
                if int.from_bytes(memory[:8], sys.byteorder) == mark:  # else the id means another process: containers
                    self._bytes = memory
        except (OSError, ValueError):
            pass
        finally:
            os.close(file)

    def events(self) -> list[Event]:
        """Return the events of all threads, oldest first."""
        if not self._bytes:
            return []
        events = []
        for at in range(_FIRST_RING, _BYTES, _EVENT):
            number, begin, end, batch = _read_event(self._bytes, at)
            if 0 < number < _NAMES:
                name = self._text(_HEAD + number * _NAME, _NAME)
                events.append(Event(name, batch, begin, end, self._text(at + _FIRST_TEXT, _TEXT)))
        return sorted(events, key=lambda event: event.begin)

    def _text(self, at: int, length: int) -> str:
        return bytes(self._bytes[at : at + length]).partition(b"\0")[0].decode(errors="replace")

    def last(self) -> str:
        """Describe the spans that have not ended and the last ones that have; "" without spans."""
        events = self.events()
        now = perf_counter_ns()
        still = [f"{_named(event)} for {_time(now - event.begin)}" for event in events if not event.end]
        ended = sorted((event for event in events if event.end), key=lambda event: event.end)
        done = [f"{_named(event)} {_time(event.end - event.begin)}" for event in ended[-_DONE_SHOWN:]]
        parts = ["in " + ", in ".join(still[-_OPEN_SHOWN:])] if still else []
        return "; ".join([*parts, "before: " + ", ".join(reversed(done))] if done else parts)


def _named(event: Event) -> str:
    more = ", ".join(filter(None, [f"minibatch {event.batch}" if event.batch else "", event.detail]))
    return f"{event.name} ({more})" if more else event.name


def _time(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:.1f} s" if nanoseconds >= 1e9 else f"{nanoseconds / 1e6:.2f} ms"


def _begin_anew() -> None:
    """Leave the parent's memory to the parent, in a process that was forked from it."""
    _memory.begin()
    _process._lock = threading.RLock()
    _local.thread.take_ring()


_memory = _Memory()
_process = Totals()
_local = _Local()
os.register_at_fork(after_in_child=_begin_anew)
