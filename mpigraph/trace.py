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

A span's *own* time is the part that lies in no span inside it. So the own times of a thread's spans and the time
outside of all spans make up its wall time.

The sums, and the last spans of each thread, finished or not, lie in memory that other processes of the node can map
(:func:`address`, :class:`Trace`): it outlives the process, so the watchdog and the witness can say what a rank did
last. A :class:`Recording` keeps all spans. Nothing is allocated for a span, once its thread has had one of its stage.
No other file of the library is imported here, so that the witness starts fast.
"""

import os
import re
import struct
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from mmap import MAP_SHARED, PROT_READ, mmap
from time import perf_counter, perf_counter_ns
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple

__all__ = [
    "STEP_FIELDS",
    "Event",
    "Recording",
    "Snapshot",
    "Stage",
    "Totals",
    "Trace",
    "Track",
    "address",
    "at_each_step",
    "clock",
    "count",
    "delayed",
    "met",
    "show_spans",
    "span",
    "step",
    "sums",
]

clock = perf_counter
"""Seconds on the clock of spans, for the few durations that are no span."""

STEP_FIELDS = ("begin", "end", "wait", "meet", "delay", "seeds", "inputs")
"""What a recording keeps of a step: two times and three durations (ns), and two numbers of rows; -1: not known."""

_BINS = 48  # of a histogram: bin k holds spans of less than 2**k times 1.024 us
_EVENT = 128  # bytes: number of the name, begin, end, minibatch (int64 each), and text
_FIRST_TEXT = 32
_TEXT = _EVENT - _FIRST_TEXT
_RING = 64 * _EVENT  # bytes: the events of a thread
_RINGS = 32  # threads with a ring that other processes can read
_NAMES = 256  # names of stages, counters and threads that other processes can read; the last means any other
_NAME = 32  # bytes
_HEAD = 64  # bytes: a random number, by which a reader knows that it has the right memory
_FIRST_RING = _HEAD + _NAMES * _NAME
_FIRST_SUM = _FIRST_RING + _RINGS * _RING
_TOTAL, _INSIDE, _HISTOGRAM = 1, 2, 3  # words of a stage's cell; the first one has the numbers of thread and stage
_HOST, _VALUE = 1, 2  # words of a counter's cell; a host of -1 means no host
_CELL, _COUNTER = _HISTOGRAM + _BINS, 3  # words
_CELLS, _COUNTERS = 1024, 8192  # that other processes can read
_ARENA = 8 * (_CELLS * _CELL + _COUNTERS * _COUNTER)  # bytes: all cells of stages, then those of counters
_BYTES = _FIRST_SUM + _ARENA
_OPEN_SHOWN, _DONE_SHOWN = 3, 4  # events in a message


_write_event = struct.Struct("5q").pack_into  # the text is empty, unless it is written after that
_write_span = struct.Struct("4q").pack_into
_write_end = struct.Struct("q").pack_into
_read_event = struct.Struct("4q").unpack_from

Key = str | tuple[str, int]
"""A counter's name, or name and host."""


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
    """The rings of this process's threads, and all cells of sums."""

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
        self.arenas: list[memoryview] = []
        self._free: dict[int, deque[memoryview]] = {_CELL: deque(), _COUNTER: deque()}
        self._add_arena(self.bytes[_FIRST_SUM:].cast("q"))

    def number_of(self, name: str) -> int:
        """Give a name a number, from 1 on."""
        with self.lock:
            number = self.numbers.get(name, len(self.numbers) + 1)
            if number >= _NAMES - 1:
                number = _NAMES - 1
                name = "others"
            begin = _HEAD + number * _NAME
            text = name.encode()[:_NAME]
            self.bytes[begin : begin + len(text)] = text
            self.numbers.setdefault(name, number)
            return number

    def take(self, length: int, thread: str, name: str, host: int = -1) -> memoryview:
        """Return a new cell for sums; its length says of what."""
        with self.lock:
            if self._free[length]:
                cell = self._free[length].pop()
            else:
                at = next(self._fresh[length], None)
                if at is None:  # the rest is for this process alone
                    self._add_arena(memoryview(mmap(-1, _ARENA)).cast("q"))
                    at = next(self._fresh[length])
                cell = self.arenas[-1][at : at + length]
            if length == _COUNTER:
                cell[_HOST] = host
            cell[0] = self.number_of(thread) << 32 | self.number_of(name)
            return cell

    def give_back(self, cells: Iterable[memoryview]) -> None:
        """Free cells."""
        for cell in cells:
            for at in range(len(cell)):
                cell[at] = 0
            self._free[len(cell)].append(cell)

    def _add_arena(self, words: memoryview) -> None:
        self.arenas.append(words)
        bound = _CELLS * _CELL
        self._fresh = {_CELL: iter(range(0, bound, _CELL)), _COUNTER: iter(range(bound, len(words), _COUNTER))}


class _Sheet:
    """Sums of one thread: a cell for each stage by name, and for each counter."""

    __slots__ = ("counts", "stages", "thread")

    def __init__(self, thread: str) -> None:
        self.thread = thread
        self.stages: dict[str, memoryview] = {}
        self.counts: dict[Key, memoryview] = {}

    def stage(self, name: str) -> memoryview:
        """Return the cell of a stage, which may be new."""
        cell = self.stages.get(name)
        if cell is None:
            cell = self.stages[name] = _memory.take(_CELL, self.thread, name)
        return cell

    def counter(self, key: Key) -> memoryview:
        """Return the cell of a counter, which may be new."""
        cell = self.counts.get(key)
        if cell is None:
            name_and_host = (key, -1) if isinstance(key, str) else key
            cell = self.counts[key] = _memory.take(_COUNTER, self.thread, *name_and_host)
        return cell

    def take_over(self, other: "_Sheet") -> None:
        """Add the sums of a sheet that no thread adds to any more, and free its cells."""
        for name, cell in other.stages.items():
            own = self.stage(name)
            for at in range(_TOTAL, _CELL):
                own[at] += cell[at]
        for key, cell in other.counts.items():
            self.counter(key)[_VALUE] += cell[_VALUE]
        _memory.give_back([*other.stages.values(), *other.counts.values()])
        other.stages = {}
        other.counts = {}

    def move(self) -> None:
        """Copy all cells to the memory of this process, in one that was forked."""
        for name, cell in [*self.stages.items()]:
            del self.stages[name]
            self.stage(name)[_TOTAL:] = cell[_TOTAL:]
        for key, cell in [*self.counts.items()]:
            del self.counts[key]
            self.counter(key)[_VALUE] = cell[_VALUE]


class _Thread:
    """One thread's ring, sheet, and innermost span.

    Attributes:
        at: the place of its next event, as if the ring had no end.
        words: the ring as int64.
        name: without the number of a pool's thread.
        log: what a recording keeps of it.
    """

    __slots__ = ("__weakref__", "at", "inner", "log", "name", "numbers", "outer", "ring", "sheet", "words")

    def __init__(self) -> None:
        self.at = 0
        self.take_ring()
        self.name = re.sub(r"[-_]\d.*", "", threading.current_thread().name)
        self.inner: span | None = None
        self.log: _Log | None = None
        self.outer: list[_Sheet] = []
        self.sheet = _process._sheet_of(self)

    def take_ring(self) -> None:
        """Write to a ring that no other thread has, until the thread ends."""
        free = _memory.free_rings
        self.numbers = _memory.numbers
        try:
            number = free.popleft()
        except IndexError:  # more threads than rings: other processes cannot read this one
            self.ring = memoryview(bytearray(_RING))
            self.words = self.ring.cast("q")
            return
        begin = _FIRST_RING + number * _RING
        self.ring = _memory.bytes[begin : begin + _RING]
        self.ring[:] = bytes(_RING)
        self.words = self.ring.cast("q")
        weakref.finalize(self, free.append, number).atexit = False

    def leave(self, ended: "span") -> None:
        """End a span that is not the innermost, such as a generator's: its own time ended as the one inside began."""
        inner = self.inner
        while inner is not None and inner._outer is not ended:
            inner = inner._outer
        if inner is not None:
            inner._outer = ended._outer
            both = ended._begin + ended._took - inner._begin
            ended._inside += both
            if ended._outer is not None:
                ended._outer._inside -= both


class span:
    """Time the ``with`` block as a span of a stage.

    Args:
        name: of the stage.
        batch: the number of the minibatch, if the span is of one.
        detail: more words for messages; the first 96 bytes are kept.
        whom: the ranks that the block waits for; each is charged with the whole time (``waited_ns``).
        totals: the sums that the span is added to; default: those of the thread.
    """

    __slots__ = (
        "_at",
        "_batch",
        "_begin",
        "_detail",
        "_inside",
        "_name",
        "_outer",
        "_thread",
        "_took",
        "_totals",
        "_whom",
    )

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
        thread.at = at + _EVENT
        number = thread.numbers.get(self._name) or _memory.number_of(self._name)
        self._outer = thread.inner
        self._inside = 0
        thread.inner = self
        if _profiler.state._is_profiler_enabled:
            _profiler.enter(self)
        self._begin = begin = perf_counter_ns()
        at %= _RING
        _write_event(thread.ring, at, number, begin, 0, self._batch, 0)
        if self._detail:
            text = self._detail.encode(errors="replace")[:_TEXT].ljust(_TEXT, b"\0")
            thread.ring[at + _FIRST_TEXT : at + _EVENT] = text
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        end = perf_counter_ns()
        thread, at = self._thread, self._at
        self._took = took = end - self._begin
        if thread.at - at <= _RING:  # else the ring has gone round
            thread.words[(at % _RING >> 3) + 2] = end
        outer = self._outer
        if thread.inner is self:
            thread.inner = outer
        else:
            thread.leave(self)
        if _recordings:
            for recording in _recordings:
                recording.log_of(thread).add(self, end)
        if _profiler.shown:
            _profiler.exit(self)
        if kind is not None:
            if outer is not None:
                outer._inside += self._inside
            return
        if outer is not None:
            outer._inside += took
        sheet = thread.sheet if self._totals is None else self._totals._sheet_of(thread)
        try:
            cell = sheet.stages[self._name]
        except KeyError:
            cell = sheet.stage(self._name)
        cell[_TOTAL] += took
        if self._inside:
            cell[_INSIDE] += self._inside
        cell[(took >> 10).bit_length() + _HISTOGRAM] += 1
        if self._whom:
            for rank in self._whom:
                sheet.counter(("waited_ns", rank))[_VALUE] += took

    @property
    def seconds(self) -> float:
        """The duration of the block, once it has ended."""
        return self._took / 1e9


class _Profiler:
    """Shows spans to another profiler while that is on.

    Attributes:
        state: has ``_is_profiler_enabled``.
        shown: by id of a span, what is to be left at its end.
    """

    _is_profiler_enabled = False

    def __init__(self) -> None:
        self.state: Any = self
        self.show: Callable[[str], AbstractContextManager[Any]] = nullcontext
        self.shown: dict[int, AbstractContextManager[Any]] = {}

    def enter(self, begun: span) -> None:
        """Show that a span has begun."""
        self.shown[id(begun)] = shown = self.show(begun._name)
        shown.__enter__()

    def exit(self, ended: span) -> None:
        """Show that a span has ended, if its begin was shown."""
        shown = self.shown.pop(id(ended), None)
        if shown is not None:
            shown.__exit__(None, None, None)


def show_spans(state: Any, show: Callable[[str], AbstractContextManager[Any]]) -> None:
    """Enter ``show(name)`` for each span that begins while ``state._is_profiler_enabled`` is true."""
    _profiler.state = state
    _profiler.show = show


def count(name: str, number: int, host: int | None = None) -> None:
    """Add to a counter, or to that of one host."""
    sheet = _local.thread.sheet
    key = name if host is None else (name, host)
    try:
        cell = sheet.counts[key]
    except KeyError:
        cell = sheet.counter(key)
    cell[_VALUE] += int(number)


class Stage(NamedTuple):
    """The spans of one stage.

    Attributes:
        seconds: their sum.
        histogram: counts of spans below 1.024 us times 1, 2, 4, ..., each without those of the bin before.
        own: seconds, without those of spans inside.
    """

    seconds: float = 0.0
    histogram: tuple[int, ...] = (0,) * _BINS
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


class _Sum:
    """Adds cells up."""

    def __init__(self) -> None:
        self._stages: dict[str, list[int]] = {}
        self._counts: dict[Key, int] = {}

    def add_stage(self, name: str, cell: Sequence[int] | memoryview) -> None:
        """Add total, time in spans inside, and histogram: a cell without its first word, or a begin of that."""
        sums = self._stages.setdefault(name, [0] * (_CELL - 1))
        for at, value in enumerate(cell):
            sums[at] += value

    def add_count(self, key: Key, value: int) -> None:
        """Add to a counter."""
        self._counts[key] = self._counts.get(key, 0) + value

    def add(self, sheet: _Sheet) -> None:
        """Add a sheet."""
        for name, cell in list(sheet.stages.items()):
            self.add_stage(name, cell[_TOTAL:])
        for key, cell in list(sheet.counts.items()):
            self.add_count(key, cell[_VALUE])

    def snapshot(self) -> Snapshot:
        """Return the sums."""
        stages = {
            name: Stage(total / 1e9, tuple(histogram), (total - inside) / 1e9)
            for name, (total, inside, *histogram) in self._stages.items()
        }
        return Snapshot(stages, self._counts)


class Totals:
    """Sums of spans and counters of some threads. In ``with totals:`` this thread adds to them alone."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may read these sums, too
        self._ended: dict[str, _Sheet] = {}  # of threads that have ended, by name
        self._sheets: dict[int, tuple[weakref.ref[_Thread], _Sheet]] = {}
        _all_totals.add(self)
        weakref.finalize(self, _dropped.append, (self._ended, self._sheets)).atexit = False

    def _sheet_of(self, thread: _Thread) -> _Sheet:
        entry = self._sheets.get(id(thread))
        if entry is not None and entry[0]() is thread:
            return entry[1]
        with self._lock:
            for number, (owner, sheet) in list(self._sheets.items()):
                if owner() is None and self._sheets.pop(number, None) is not None:
                    self._bury(sheet)
            return self._sheets.setdefault(id(thread), (weakref.ref(thread), _Sheet(thread.name)))[1]

    def _bury(self, sheet: _Sheet) -> None:
        self._ended.setdefault(sheet.thread, _Sheet(sheet.thread)).take_over(sheet)

    def _all(self) -> list[_Sheet]:
        return [*self._ended.values(), *(sheet for _, sheet in list(self._sheets.values()))]

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
        total = _Sum()
        with self._lock:
            for sheet in self._all():
                total.add(sheet)
        return total.snapshot()


class _Local(threading.local):
    def __init__(self) -> None:
        self.thread = _Thread()


def sums() -> dict[str, Snapshot]:
    """Return all sums of this process by thread, with the part of the spans that have not ended yet.

    Threads of one name are one, and a name has no number: all of a pool are one.
    """
    return _sums()[1]


def _sums() -> tuple[int, dict[str, Snapshot]]:
    """Return the time up to which spans that have not ended are counted, and all sums."""
    with _process._lock:
        while _dropped:
            ended, sheets = _dropped.popleft()
            for sheet in (*ended.values(), *(sheet for _, sheet in sheets.values())):
                _past._bury(sheet)
        total: dict[str, _Sum] = {}
        for arena in _memory.arenas:
            _add_up(arena, _memory.bytes, total)
        now = perf_counter_ns()
        for owner, sheet in list(_process._sheets.values()):
            end = now
            thread = owner()
            part = thread.inner if thread is not None else None
            while part is not None:
                took = (now - part._begin, now - end + part._inside)
                total.setdefault(sheet.thread, _Sum()).add_stage(part._name, took)
                end = part._begin
                part = part._outer
    return now, {name: each.snapshot() for name, each in total.items()}


def _add_up(arena: memoryview, names: memoryview, total: dict[str, _Sum]) -> None:
    """Add the cells of an arena to the sums of threads."""
    bound = _CELLS * _CELL
    for at in (*range(0, bound, _CELL), *range(bound, len(arena), _COUNTER)):
        if key := arena[at]:
            name = _name_at(names, key & 0xFFFFFFFF)
            each = total.setdefault(_name_at(names, key >> 32), _Sum())
            if at < bound:
                each.add_stage(name, arena[at + _TOTAL : at + _CELL])
            else:
                host = arena[at + _HOST]
                each.add_count(name if host < 0 else (name, host), arena[at + _VALUE])


def _name_at(memory: memoryview, number: int) -> str:
    return _text(memory, _HEAD + number * _NAME, _NAME)


def _text(memory: memoryview, at: int, length: int) -> str:
    return bytes(memory[at : at + length]).partition(b"\0")[0].decode(errors="replace")


class Track(NamedTuple):
    """The spans of a thread in a recording, in the order of their ends; those that had not ended come last.

    Attributes:
        thread: its name.
        names: of stages.
        spans: int64[4 n], for each span the index of its name, the minibatch (0: none), begin, and end: ns on the clock
            of spans. A span may have begun before the recording.
        details: [n], the words of each.
        lost: spans before these, which were too many.
    """

    thread: str
    names: Sequence[str]
    spans: memoryview
    details: Sequence[str]
    lost: int


class _Log:
    """The last spans of a thread."""

    def __init__(self, thread: _Thread, recording: "Recording") -> None:
        self.recording = recording
        self.name = thread.name
        self.owner = weakref.ref(thread)
        self._most = recording.most_spans
        self._bytes = memoryview(mmap(-1, 32 * self._most))
        self._details = [""] * self._most
        self._count = 0

    def add(self, ended: span, end: int) -> None:
        """Keep a span."""
        number = self._count
        self._count = number + 1
        number %= self._most
        name = _memory.numbers.get(ended._name, _NAMES - 1)
        _write_span(self._bytes, 32 * number, name, ended._batch, ended._begin, end)
        self._details[number] = ended._detail

    def track(self, end: int) -> Track:
        """Return what was kept; the recording ends at ``end``."""
        thread = self.owner()
        part = thread.inner if thread is not None else None
        while part is not None:
            self.add(part, end)
            part = part._outer
        kept = min(self._count, self._most)
        first = self._count % self._most if self._count > self._most else 0
        spans = bytes(self._bytes[32 * first : 32 * kept]) + bytes(self._bytes[: 32 * first])
        details = self._details[first:kept] + self._details[:first]
        names = [_name_at(_memory.bytes, number) for number in range(_NAMES)]
        return Track(self.name, names, memoryview(spans).cast("q"), details, self._count - kept)


class Recording:
    """Keeps the spans of all threads, from construction until :meth:`stop`; there is one at a time in a process.

    Attributes:
        begin: of the recording, and ``end``: ns on the clock of spans; 0 until it has ended.
        before: the sums by thread at its begin, and ``after`` at its end.
        most_spans: of a thread that are kept, the last ones.
        steps: int64[7 n], :data:`STEP_FIELDS` of each step, once it has ended.
        lost_steps: steps after these, which were too many.
        tracks: the spans, once it has ended.
    """

    def __init__(self, most_spans: int = 1 << 16, most_steps: int = 1 << 16) -> None:
        """Begin. Raises RuntimeError if there is a recording."""
        self.most_spans = most_spans
        self.end = self.lost_steps = 0
        self.tracks: list[Track] = []
        self.steps = memoryview(b"").cast("q")
        self._steps = memoryview(mmap(-1, 8 * len(STEP_FIELDS) * most_steps)).cast("q")
        self._num_steps = 0
        self._logs: list[_Log] = []
        self.after: dict[str, Snapshot] = {}
        with _process._lock:
            if _recordings:
                raise RuntimeError("spans are already being recorded: there is one recording at a time")
            self.begin, self.before = _sums()
            _recordings.append(self)
            for owner, _ in list(_process._sheets.values()):
                if (thread := owner()) is not None:
                    self.log_of(thread)

    def stop(self) -> None:
        """End; a second call does nothing."""
        with _process._lock:
            if self.end:
                return
            _recordings.remove(self)
            self.end, self.after = _sums()
            self.tracks = [log.track(self.end) for log in self._logs]
            kept = min(self._num_steps, len(self._steps) // len(STEP_FIELDS))
            self.lost_steps = self._num_steps - kept
            self.steps = self._steps[: len(STEP_FIELDS) * kept]
            for log in self._logs:
                if (thread := log.owner()) is not None:
                    thread.log = None

    def log_of(self, thread: _Thread) -> _Log:
        """Return a thread's log: that of an ended thread with its name, or a new one, if it has none."""
        log = thread.log
        if log is not None and log.recording is self:
            return log
        with _process._lock:
            for log in self._logs:
                if log.name == thread.name and log.owner() is None:
                    log.owner = weakref.ref(thread)
                    break
            else:
                log = _Log(thread, self)
                self._logs.append(log)
        thread.log = log
        return log

    def add_step(self, *fields: int) -> None:
        """Keep :data:`STEP_FIELDS`."""
        at = len(STEP_FIELDS) * self._num_steps
        self._num_steps += 1
        if at < len(self._steps):
            for offset, value in enumerate(fields):
                self._steps[at + offset] = value


class _Steps:
    """The number of steps so far, and what follows each."""

    def __init__(self) -> None:
        self.done = 0
        self.call: Callable[[int], None] | None = None


def met() -> int:
    """Return the ns that this thread has waited for other ranks, outside of loaders' stages."""
    cell = _local.thread.sheet.stages.get("meet")
    return 0 if cell is None else cell[_TOTAL] - cell[_INSIDE]


def delayed() -> int:
    """Return the ns for which this thread could run and had no processor; -1 if not known, and while nothing records.

    A thread that trains has others beside it, such as those of torch, whose delays are not among these.
    """
    if not _recordings:
        return -1
    try:
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        try:
            return int(os.read(file, 100).split()[1])
        finally:
            os.close(file)
    except (OSError, IndexError, ValueError):
        return -1


def step(wait: span, use: span, met_before: int, delayed_before: int, seeds: int, inputs: Callable[[], int]) -> None:
    """Note that this thread has done a step of the script, which waited for a minibatch and used it.

    Args:
        wait: the span of its wait for the minibatch.
        use: the span of the use of it.
        met_before: :func:`met` before the wait.
        delayed_before: :func:`delayed` after the wait: what it lacked in there is a part of the wait.
        seeds: their number.
        inputs: return the number of input rows, -1 if unknown.
    """
    _steps.done += 1
    for recording in _recordings:
        delay = -1 if delayed_before < 0 else delayed() - delayed_before
        numbers = met() - met_before, delay, seeds, inputs()
        recording.add_step(wait._begin, use._begin + use._took, wait._took, *numbers)
    if _steps.call is not None:
        _steps.call(_steps.done)


def at_each_step(call: Callable[[int], None] | None) -> int:
    """Have a function called after each step, in its thread, with the number of steps so far; return that number."""
    _steps.call = call
    return _steps.done


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
        for at in range(_FIRST_RING, _FIRST_SUM, _EVENT):
            number, begin, end, batch = _read_event(self._bytes, at)
            if 0 < number < _NAMES:
                text = _text(self._bytes, at + _FIRST_TEXT, _TEXT)
                events.append(Event(_name_at(self._bytes, number), batch, begin, end, text))
        return sorted(events, key=lambda event: event.begin)

    def sums(self) -> dict[str, Snapshot]:
        """Return all sums by thread, as :func:`sums` does, without spans that have not ended."""
        total: dict[str, _Sum] = {}
        if self._bytes:
            _add_up(self._bytes[_FIRST_SUM:].cast("q"), self._bytes, total)
        return {name: each.snapshot() for name, each in total.items()}

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
    _recordings.clear()
    _memory.begin()
    for totals in list(_all_totals):
        totals._lock = threading.RLock()
        for sheet in totals._all():
            sheet.move()
    _dropped.clear()
    _local.thread.take_ring()


_all_totals: "weakref.WeakSet[Totals]" = weakref.WeakSet()
_dropped: "deque[tuple[dict[str, _Sheet], dict[int, tuple[weakref.ref[_Thread], _Sheet]]]]" = deque()
_recordings: list[Recording] = []  # one at most
_steps = _Steps()
_profiler = _Profiler()
_memory = _Memory()
_process = Totals()
_past = Totals()
_local = _Local()
os.register_at_fork(after_in_child=_begin_anew)
