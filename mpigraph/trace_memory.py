"""The memory in which a process has its last spans, for others of the node: its layout, and its reader.

It has the names of stages and a ring of events for each thread. A process writes its own (``trace.py``), which outlives
it, so the watchdog and the witness can say what a rank did last. The witness loads this file by its path: nothing of
the library is imported here.
"""

import os
import struct
import sys
from contextlib import suppress
from mmap import MAP_SHARED, PROT_READ, mmap
from time import perf_counter_ns
from typing import NamedTuple

EVENT = 128  # bytes: number of the name, begin, end, minibatch (int64 each), and text
FIRST_TEXT = 32
TEXT = EVENT - FIRST_TEXT
RING = 64 * EVENT  # bytes: the events of a thread
RINGS = 32  # threads with a ring that other processes can read
NAMES = 256  # names of stages that other processes can read; the last means any other
NAME = 32  # bytes
HEAD = 2048  # bytes: a random number, by which a reader knows that it has the right memory; then the two below
LEFT = 8  # not 0 once the process has left the job
LAST_WORDS = 64  # why; text
FIRST_RING = HEAD + NAMES * NAME
BYTES = FIRST_RING + RINGS * RING

_OPEN_SHOWN = 3  # events in a message
_DONE_SHOWN = 4
_read_event = struct.Struct("4q").unpack_from

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
        for at in range(FIRST_RING, BYTES, EVENT):
            number, begin, end, batch = _read_event(self._bytes, at)
            if 0 < number < NAMES:
                text = _text(self._bytes, at + FIRST_TEXT, TEXT)
                events.append(Event(name_at(self._bytes, number), batch, begin, end, text))
        return sorted(events, key=lambda event: event.begin)

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
