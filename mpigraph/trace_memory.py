"""The memory in which a process has its sums and last spans, for others of the node: its layout, and its reader.

It has the names of stages, counters and threads, a ring of events for each thread, and cells of sums. A process writes
its own (``trace.py``), which outlives it, so the watchdog and the witness can say what a rank did last. The witness
loads this file by its path: nothing of the library is imported here.
"""

import os
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from mmap import MAP_SHARED, PROT_READ, mmap
from time import perf_counter_ns
from types import MappingProxyType
from typing import NamedTuple

BINS = 48  # of a histogram: bin k holds spans of less than 2**k times 1.024 us
EVENT = 128  # bytes: number of the name, begin, end, minibatch (int64 each), and text
FIRST_TEXT = 32
TEXT = EVENT - FIRST_TEXT
RING = 64 * EVENT  # bytes: the events of a thread
RINGS = 32  # threads with a ring that other processes can read
NAMES = 256  # names of stages, counters and threads that other processes can read; the last means any other
NAME = 32  # bytes
HEAD = 2048  # bytes: a random number, by which a reader knows that it has the right memory; then the two below
LEFT = 8  # not 0 once the process has left the job
LAST_WORDS = 64  # why; text
FIRST_RING = HEAD + NAMES * NAME
FIRST_SUM = FIRST_RING + RINGS * RING
TOTAL = 1  # words of a stage's cell; the first one has the numbers of thread and stage
INSIDE = 2
HISTOGRAM = 3
HOST = 1  # words of a counter's cell; a host of -1 means no host
VALUE = 2
CELL = HISTOGRAM + BINS  # words
COUNTER = 3
FREE = -1  # the first word of a cell that was given back; 0: it was never taken, nor was any behind it
CELLS = 1024  # that other processes can read
COUNTERS = 8192
ARENA = 8 * (CELLS * CELL + COUNTERS * COUNTER)  # bytes: all cells of stages, then those of counters
BYTES = FIRST_SUM + ARENA

_OPEN_SHOWN = 3  # events in a message
_DONE_SHOWN = 4
_read_event = struct.Struct("4q").unpack_from

Key = str | tuple[str, int]
"""A counter's name, or name and host."""

Address = tuple[int, int, int]
"""The place of a process's memory: its id, a file descriptor, and the random number in the memory's head."""


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


class Sum:
    """Adds cells up."""

    def __init__(self) -> None:
        self._stages: dict[str, list[int]] = {}
        self._counts: dict[Key, int] = {}

    def add_stage(self, name: str, cell: Sequence[int] | memoryview) -> None:
        """Add total, time in spans inside, and histogram: a cell without its first word, or a begin of that."""
        sums = self._stages.setdefault(name, [0] * (CELL - 1))
        for at, value in enumerate(cell):
            sums[at] += value

    def add_count(self, key: Key, value: int) -> None:
        """Add to a counter."""
        self._counts[key] = self._counts.get(key, 0) + value

    def snapshot(self) -> Snapshot:
        """Return the sums."""
        stages = {
            name: Stage(total / 1e9, tuple(histogram), (total - inside) / 1e9)
            for name, (total, inside, *histogram) in self._stages.items()
        }
        return Snapshot(stages, self._counts)


def add_up(arena: memoryview, names: memoryview, total: dict[str, Sum]) -> None:
    """Add the cells of an arena to the sums of threads."""
    bound = CELLS * CELL
    for cells in (range(0, bound, CELL), range(bound, len(arena), COUNTER)):
        for at in cells:
            key = arena[at]
            if not key:  # no cell from here on was ever taken
                break
            if key == FREE:
                continue
            name = name_at(names, key & 0xFFFFFFFF)
            each = total.setdefault(name_at(names, key >> 32), Sum())
            if at < bound:
                each.add_stage(name, arena[at + TOTAL : at + CELL])
            else:
                host = arena[at + HOST]
                each.add_count(name if host < 0 else (name, host), arena[at + VALUE])


def name_at(memory: memoryview, number: int) -> str:
    """Return the name that has a number."""
    return _text(memory, HEAD + number * NAME, NAME)


def _text(memory: memoryview, at: int, length: int) -> str:
    return bytes(memory[at : at + length]).partition(b"\0")[0].decode(errors="replace")


class Trace:
    """Reader of the last spans of a process of this node, also after its death."""

    def __init__(self, where: Address) -> None:
        """Map the memory of a live process. If that fails, there are no events.

        Args:
            where: the process's :func:`~mpigraph.trace.address`.
        """
        pid, number, mark = where
        self._bytes = memoryview(b"")
        with suppress(OSError, ValueError):
            file = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
            try:
                if os.fstat(file).st_size == BYTES:
                    memory = memoryview(mmap(file, BYTES, MAP_SHARED, PROT_READ))
                    if int.from_bytes(memory[:8], sys.byteorder) == mark:  # else it is another process: containers
                        self._bytes = memory
            finally:
                os.close(file)

    def events(self) -> list[Event]:
        """Return the events of all threads, oldest first."""
        if not self._bytes:
            return []
        events = []
        for at in range(FIRST_RING, FIRST_SUM, EVENT):
            number, begin, end, batch = _read_event(self._bytes, at)
            if 0 < number < NAMES:
                text = _text(self._bytes, at + FIRST_TEXT, TEXT)
                events.append(Event(name_at(self._bytes, number), batch, begin, end, text))
        return sorted(events, key=lambda event: event.begin)

    def sums(self) -> dict[str, Snapshot]:
        """Return all sums by thread, as :func:`mpigraph.trace.sums` does, without spans that have not ended."""
        total: dict[str, Sum] = {}
        if self._bytes:
            add_up(self._bytes[FIRST_SUM:].cast("q"), self._bytes, total)
        return {name: each.snapshot() for name, each in total.items()}

    @property
    def readable(self) -> bool:
        """False if the memory could not be mapped, or is that of another process."""
        return bool(self._bytes)

    def last_words(self) -> str | None:
        """Return what the process has said as it left the job (:func:`mpigraph.trace.leave`); None if it has not."""
        left = self._bytes and self._bytes[LEFT]
        return _text(self._bytes, LAST_WORDS, HEAD - LAST_WORDS) if left else None

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
