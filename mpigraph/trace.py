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
meet     wait for other ranks
own      wait for another thread of this rank
======== ===============================================================================

A span's *own* time is the part that lies in no span inside it. So the own times of a thread's spans and the time
outside of all spans make up its wall time.

The sums, and the last spans of each thread, finished or not, lie in memory that outlives the process
(``trace_memory.py``). A ``Recording`` (``recording.py``) keeps all spans. Nothing is allocated for a span, once its
thread has had one of its stage.
"""

import os
import re
import struct
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from mmap import mmap
from time import perf_counter, perf_counter_ns
from types import TracebackType
from typing import Any

from mpigraph import trace_memory as layout
from mpigraph.trace_memory import CELL, COUNTER, EVENT, HISTOGRAM, HOST, INSIDE, RING, TOTAL, VALUE, Key, Snapshot, Sum

clock = perf_counter
"""Seconds on the clock of spans, for the few durations that are no span."""

_write_event = struct.Struct("5q").pack_into  # the text is empty, unless it is written after that
_write_mark = struct.Struct("q").pack_into


class _Memory:
    """The rings of this process's threads, and all cells of sums."""

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
        self.numbers: dict[str, int] = {}
        self.free_rings = deque(range(layout.RINGS))
        self.lock = threading.RLock()  # a signal handler may have spans, too
        self.arenas: list[memoryview] = []
        self._free: dict[int, deque[memoryview]] = {CELL: deque(), COUNTER: deque()}
        self._add_arena(self.bytes[layout.FIRST_SUM :].cast("q"))

    def number_of(self, name: str) -> int:
        """Give a name a number, from 1 on."""
        with self.lock:
            number = self.numbers.get(name, len(self.numbers) + 1)
            if number >= layout.NAMES - 1:
                number = layout.NAMES - 1
                name = "others"
            begin = layout.HEAD + number * layout.NAME
            text = name.encode(errors="replace")[: layout.NAME]
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
                    self._add_arena(memoryview(mmap(-1, layout.ARENA)).cast("q"))
                    at = next(self._fresh[length])
                cell = self.arenas[-1][at : at + length]
            if length == COUNTER:
                cell[HOST] = host
            cell[0] = self.number_of(thread) << 32 | self.number_of(name)
            return cell

    def give_back(self, cells: Iterable[memoryview]) -> None:
        """Free cells."""
        for cell in cells:
            cell[0] = layout.FREE
            for at in range(1, len(cell)):
                cell[at] = 0
            self._free[len(cell)].append(cell)

    def _add_arena(self, words: memoryview) -> None:
        self.arenas.append(words)
        bound = layout.CELLS * CELL
        self._fresh = {CELL: iter(range(0, bound, CELL)), COUNTER: iter(range(bound, len(words), COUNTER))}


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
            cell = self.stages[name] = memory.take(CELL, self.thread, name)
        return cell

    def counter(self, key: Key) -> memoryview:
        """Return the cell of a counter, which may be new."""
        cell = self.counts.get(key)
        if cell is None:
            name_and_host = (key, -1) if isinstance(key, str) else key
            cell = self.counts[key] = memory.take(COUNTER, self.thread, *name_and_host)
        return cell

    def take_over(self, other: "_Sheet") -> None:
        """Add the sums of a sheet that no thread adds to any more, and free its cells."""
        for name, cell in other.stages.items():
            own = self.stage(name)
            for at in range(TOTAL, CELL):
                own[at] += cell[at]
        for key, cell in other.counts.items():
            self.counter(key)[VALUE] += cell[VALUE]
        memory.give_back([*other.stages.values(), *other.counts.values()])
        other.stages = {}
        other.counts = {}

    def add_to(self, total: Sum) -> None:
        """Add all cells to a sum."""
        for name, cell in list(self.stages.items()):
            total.add_stage(name, cell[TOTAL:])
        for key, cell in list(self.counts.items()):
            total.add_count(key, cell[VALUE])

    def move(self) -> None:
        """Copy all cells to the memory of this process, in one that was forked."""
        for name, cell in [*self.stages.items()]:
            del self.stages[name]
            self.stage(name)[TOTAL:] = cell[TOTAL:]
        for key, cell in [*self.counts.items()]:
            del self.counts[key]
            self.counter(key)[VALUE] = cell[VALUE]


class Thread:
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
        self.log: Any = None
        self.outer: list[_Sheet] = []
        self.sheet = process._sheet_of(self)

    def take_ring(self) -> None:
        """Write to a ring that no other thread has, until the thread ends."""
        free = memory.free_rings
        self.numbers = memory.numbers
        try:
            number = free.popleft()
        except IndexError:  # more threads than rings: other processes cannot read this one
            self.ring = memoryview(bytearray(RING))
            self.words = self.ring.cast("q")
            return
        begin = layout.FIRST_RING + number * RING
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
        detail: more words for messages; the first 96 bytes are kept.
        whom: the ranks that the block waits for; each is charged with the whole time (``waited_ns``).
        totals: the sums that the span is added to; default: those of the thread.

    Attributes:
        begin: nanoseconds on the clock of spans.
        took: nanoseconds, once the block has ended.
    """

    __slots__ = ("_at", "_inside", "_thread", "_totals", "_whom", "batch", "begin", "detail", "name", "outer", "took")

    def __init__(
        self, name: str, batch: int = 0, detail: str = "", whom: Sequence[int] = (), totals: "Totals | None" = None
    ) -> None:
        self.name = name
        self.batch = batch
        self.detail = detail
        self._whom = whom
        self._totals = totals

    def __enter__(self) -> "span":
        self._thread = thread = _local.thread
        self._at = at = thread.at
        thread.at = at + EVENT
        number = thread.numbers.get(self.name) or memory.number_of(self.name)
        self.outer = thread.inner
        self._inside = 0
        thread.inner = self
        if _profiler.state._is_profiler_enabled:
            _profiler.enter(self)
        self.begin = begin = perf_counter_ns()
        at %= RING
        _write_event(thread.ring, at, number, begin, 0, self.batch, 0)
        if self.detail:
            text = self.detail.encode(errors="replace")[: layout.TEXT].ljust(layout.TEXT, b"\0")
            thread.ring[at + layout.FIRST_TEXT : at + EVENT] = text
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        end = perf_counter_ns()
        thread = self._thread
        at = self._at
        self.took = took = end - self.begin
        if thread.at - at <= RING:  # else the ring has gone round
            thread.words[(at % RING >> 3) + 2] = end
        outer = self.outer
        if thread.inner is self:
            thread.inner = outer
        else:
            thread.leave(self)
        if recordings:
            for recording in recordings:
                (thread.log or recording.log_of(thread)).add(self, end)
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
            cell = sheet.stages[self.name]
        except KeyError:
            cell = sheet.stage(self.name)
        cell[TOTAL] += took
        if self._inside:
            cell[INSIDE] += self._inside
        cell[(took >> 10).bit_length() + HISTOGRAM] += 1
        if self._whom:
            for rank in self._whom:
                sheet.counter(("waited_ns", rank))[VALUE] += took

    @property
    def seconds(self) -> float:
        """The duration of the block, once it has ended."""
        return self.took / 1e9


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
        self.shown[id(begun)] = shown = self.show(begun.name)
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
    cell[VALUE] += int(number)


class Totals:
    """Sums of spans and counters of some threads. In ``with totals:`` this thread adds to them alone."""

    def __init__(self) -> None:
        _bury_dropped()  # else each leaves its cells until something reads all sums, as a report
        self.lock = threading.RLock()  # a signal handler may read these sums, too
        self._ended: dict[str, _Sheet] = {}  # of threads that have ended, by name
        self._sheets: dict[int, tuple[weakref.ref[Thread], _Sheet]] = {}
        _all_totals.add(self)
        weakref.finalize(self, _dropped.append, (self._ended, self._sheets)).atexit = False

    def _sheet_of(self, thread: Thread) -> _Sheet:
        entry = self._sheets.get(id(thread))
        if entry is not None and entry[0]() is thread:
            return entry[1]
        with self.lock:
            for number, (owner, sheet) in list(self._sheets.items()):
                if owner() is None and self._sheets.pop(number, None) is not None:
                    self._bury(sheet)
            return self._sheets.setdefault(id(thread), (weakref.ref(thread), _Sheet(thread.name)))[1]

    def _bury(self, sheet: _Sheet) -> None:
        self._ended.setdefault(sheet.thread, _Sheet(sheet.thread)).take_over(sheet)

    def threads(self) -> list[Thread]:
        """Return those of its threads that have not ended."""
        owners = [owner() for owner, _ in list(self._sheets.values())]
        return [thread for thread in owners if thread is not None]

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
        total = Sum()
        with self.lock:
            for sheet in self._all():
                sheet.add_to(total)
        return total.snapshot()


class _Local(threading.local):
    def __init__(self) -> None:
        self.thread = Thread()


def this_thread() -> Thread:
    """Return the thread that calls."""
    return _local.thread


def sums() -> dict[str, Snapshot]:
    """Return all sums of this process by thread, with the part of the spans that have not ended yet.

    Threads of one name are one, and a name has no number: all of a pool are one.
    """
    return timed_sums()[1]


def timed_sums() -> tuple[int, dict[str, Snapshot]]:
    """Return the time up to which spans that have not ended are counted, and all sums."""
    with process.lock:
        _bury_dropped()
        total: dict[str, Sum] = {}
        for arena in memory.arenas:
            layout.add_up(arena, memory.bytes, total)
        now = perf_counter_ns()
        for thread in process.threads():
            end = now
            part = thread.inner
            while part is not None:
                took = (now - part.begin, now - end + part._inside)
                total.setdefault(thread.name, Sum()).add_stage(part.name, took)
                end = part.begin
                part = part.outer
    return now, {name: each.snapshot() for name, each in total.items()}


def _bury_dropped() -> None:
    """Add the sums of dropped totals to those of the past, and free their cells: a finalizer must not take locks."""
    while _dropped:
        with process.lock, memory.lock, suppress(IndexError):  # of another thread that was faster
            ended, sheets = _dropped.popleft()
            for sheet in (*ended.values(), *(sheet for _, sheet in sheets.values())):
                _past._bury(sheet)


def counted(names: Sequence[str]) -> list[int]:
    """Return the sums of some counters, of all threads and of all hosts."""
    numbers = [memory.number_of(name) for name in names]
    sums = dict.fromkeys(numbers, 0)
    with memory.lock:
        for arena in memory.arenas:
            for at in range(layout.CELLS * CELL, len(arena), COUNTER):
                number = arena[at] & 0xFFFFFFFF
                if not number:
                    break
                if number in sums:
                    sums[number] += arena[at + VALUE]
    return [sums[number] for number in numbers]


def met() -> int:
    """Return the ns that this thread has waited for other ranks, outside of loaders' stages."""
    cell = _local.thread.sheet.stages.get("meet")
    return 0 if cell is None else cell[TOTAL] - cell[INSIDE]


def address() -> layout.Address:
    """Return the place of this process's memory, for a :class:`~mpigraph.trace_memory.Trace`: three int64."""
    return os.getpid(), memory.file, memory.mark


def leave(words: str = "") -> None:
    """Let readers of this process's memory know that it leaves the job, and why if that is an error."""
    length = layout.HEAD - layout.LAST_WORDS
    memory.bytes[layout.LAST_WORDS : layout.HEAD] = words.encode(errors="replace")[:length].ljust(length, b"\0")
    memory.bytes[layout.LEFT] = 1


def join() -> None:
    """Take back what :func:`leave` has said: another job begins."""
    memory.bytes[layout.LEFT] = 0


def _begin_anew() -> None:
    """Leave the parent's memory to the parent, in a process that was forked from it."""
    recordings.clear()
    memory.begin()
    for totals in list(_all_totals):
        totals.lock = threading.RLock()
        for sheet in totals._all():
            sheet.move()
    _dropped.clear()
    _local.thread.take_ring()


_all_totals: "weakref.WeakSet[Totals]" = weakref.WeakSet()
_dropped: "deque[tuple[dict[str, _Sheet], dict[int, tuple[weakref.ref[Thread], _Sheet]]]]" = deque()
recordings: list[Any] = []  # one at most, which hears of each span's end
_profiler = _Profiler()
memory = _Memory()
process = Totals()
_past = Totals()
_local = _Local()
os.register_at_fork(after_in_child=_begin_anew)
