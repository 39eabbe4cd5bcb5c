"""The memory in which a process has its last spans, for others of the node: its layout, and its reader.

It has a ring of events for each thread. A process writes its own (``trace.py``), which outlives it, so the watchdog and
the witness can say what a rank did last. The witness loads this file by its path: nothing of the library is imported
here.
"""

import os
import struct
import sys
from contextlib import suppress
from mmap import MAP_SHARED, PROT_READ, mmap
from time import perf_counter_ns
from typing import NamedTuple

NAME = 32  # bytes of a stage's name
FIRST_TEXT = 24 + NAME
EVENT = 160  # bytes: begin, end, and minibatch (int64 each), the name, and text
TEXT = EVENT - FIRST_TEXT
RING = 64 * EVENT  # bytes: the events of a thread
RINGS = 32  # threads with a ring that other processes can read
HEAD = 64  # bytes: a random number, by which a reader knows that it has the right memory; then the next one
LEFT = 8  # not 0 once the process has left the job
BYTES = HEAD + RINGS * RING

_OPEN_SHOWN = 3  # events in a message
_DONE_SHOWN = 4
_read_event = struct.Struct(f"3q{NAME}s{TEXT}s").unpack_from

Address = tuple[int, int, int]
"""The place of a process's memory: its id, a file descriptor, and the random number in the memory's head."""


class Event(NamedTuple):
    """A span in a ring.

    Attributes:
        begin: nanoseconds on the clock of spans.
        end: the same, 0 if the span has not ended.
        batch: the minibatch, if the span is of one.
        name: of its stage.
        detail: more words.
    """

    begin: int
    end: int
    batch: int
    name: str
    detail: str


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
        events = []
        for at in range(HEAD, len(self._bytes), EVENT):
            begin, end, batch, *texts = _read_event(self._bytes, at)
            if begin:
                name, detail = (text.partition(b"\0")[0].decode(errors="replace") for text in texts)
                events.append(Event(begin, end, batch, name, detail))
        return sorted(events)

    @property
    def readable(self) -> bool:
        """False if the memory could not be mapped, or is that of another process."""
        return bool(self._bytes)

    @property
    def left(self) -> bool:
        """True once the process has left the job (:func:`mpigraph.trace.leave`)."""
        return bool(self._bytes and self._bytes[LEFT])

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
