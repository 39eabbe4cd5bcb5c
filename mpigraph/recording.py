"""All spans of a time, and the steps of a script: what a report is made of."""

import os
import struct
import weakref
from collections.abc import Callable, Sequence
from io import FileIO
from mmap import mmap
from typing import NamedTuple

from mpigraph.trace import Snapshot, Thread, memory, met, process, recordings, span, this_thread, timed_sums
from mpigraph.trace_memory import NAMES, name_at

STEP_FIELDS = ("begin", "end", "wait", "meet", "delay", "seeds", "inputs")
"""What a recording keeps of a step: two times and three durations (ns), and two numbers of rows; -1: not known."""

_write_span = struct.Struct("4q").pack_into


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
    """The last spans of a thread, and its delays."""

    def __init__(self, thread: Thread, recording: "Recording") -> None:
        self.recording = recording
        self.name = thread.name
        self.owner = weakref.ref(thread)
        self._most = recording.most_spans
        self._bytes = memoryview(mmap(-1, 32 * self._most))
        self._details = [""] * self._most
        self._count = 0
        self._delays: FileIO | None = None  # stays open: that costs more than to read it

    def add(self, ended: span, end: int) -> None:
        """Keep a span."""
        number = self._count
        self._count = number + 1
        number %= self._most
        name = memory.numbers.get(ended.name, NAMES - 1)
        _write_span(self._bytes, 32 * number, name, ended.batch, ended.begin, end)
        self._details[number] = ended.detail

    def delayed(self) -> int:
        """Return the ns for which the thread, which calls, could run and had no processor. Raises OSError."""
        if self._delays is None:
            self._delays = FileIO("/proc/thread-self/schedstat")
        return int(os.pread(self._delays.fileno(), 100, 0).split()[1])

    def close(self) -> None:
        """Forget where the thread's delays are."""
        if self._delays is not None:
            self._delays.close()
            self._delays = None

    def track(self, end: int) -> Track:
        """Return what was kept; the recording ends at ``end``."""
        thread = self.owner()
        part = thread.inner if thread is not None else None
        while part is not None:
            self.add(part, end)
            part = part.outer
        kept = min(self._count, self._most)
        first = self._count % self._most if self._count > self._most else 0
        spans = bytes(self._bytes[32 * first : 32 * kept]) + bytes(self._bytes[: 32 * first])
        details = self._details[first:kept] + self._details[:first]
        names = [name_at(memory.bytes, number) for number in range(NAMES)]
        return Track(self.name, names, memoryview(spans).cast("q"), details, self._count - kept)


class Recording:
    """Keeps the spans of all threads, from construction until :meth:`stop`; there is one at a time in a process.

    Attributes:
        begin: of the recording, and ``end``: ns on the clock of spans; 0 until it has ended.
        before: the sums by thread at its begin, and ``after`` at its end.
        most_spans: of a thread that are kept, the last ones.
        steps: int64[7 n], :data:`STEP_FIELDS` of each step, once it has ended.
        tracks: the spans, once it has ended.
    """

    def __init__(self, most_spans: int = 1 << 16, most_steps: int = 1 << 16) -> None:
        """Begin. Raises RuntimeError if there is a recording."""
        self.most_spans = most_spans
        self.end = 0
        self.tracks: list[Track] = []
        self.steps = memoryview(b"").cast("q")
        self._steps = memoryview(mmap(-1, 8 * len(STEP_FIELDS) * most_steps)).cast("q")
        self._num_steps = 0
        self._logs: list[_Log] = []
        self.after: dict[str, Snapshot] = {}
        with memory.lock:
            if recordings:
                raise RuntimeError("spans are already being recorded: there is one recording at a time")
            self.begin, self.before = timed_sums()
            recordings.append(self)
            for thread in process.threads():
                self.log_of(thread)

    def stop(self) -> None:
        """End; a second call does nothing."""
        with memory.lock:
            if self.end:
                return
            recordings.remove(self)
            self.end, self.after = timed_sums()
            self.tracks = [log.track(self.end) for log in self._logs]
            kept = min(self._num_steps, len(self._steps) // len(STEP_FIELDS))
            self.steps = self._steps[: len(STEP_FIELDS) * kept]
            for log in self._logs:
                log.close()
                if (thread := log.owner()) is not None:
                    thread.log = None

    def log_of(self, thread: Thread) -> _Log:
        """Return a thread's log: that of an ended thread with its name, or a new one, if it has none."""
        log: _Log | None = thread.log
        if log is not None and log.recording is self:
            return log
        with memory.lock:
            for log in self._logs:
                if log.name == thread.name and log.owner() is None:
                    log.owner = weakref.ref(thread)
                    log.close()
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


def delayed() -> int:
    """Return the ns for which this thread could run and had no processor; -1 if not known, and while nothing records.

    A thread that trains has others beside it, such as those of torch, whose delays are not among these.
    """
    try:
        for recording in recordings:
            return recording.log_of(this_thread()).delayed()  # type: ignore[no-any-return]
    except (OSError, IndexError, ValueError):
        pass
    return -1


class _Steps:
    """The number of steps so far, and what follows each."""

    done = 0
    call: Callable[[int], None] | None = None


def step(wait: span, use: span, met_before: int, delayed_before: int, seeds: int, inputs: Callable[[], int]) -> None:
    """Note that this thread has done a step of the script, which waited for a minibatch and used it.

    Args:
        wait: the span of its wait for the minibatch.
        use: the span of the use of it.
        met_before: :func:`~mpigraph.trace.met` before the wait.
        delayed_before: :func:`delayed` after the wait: what it lacked in there is a part of the wait.
        seeds: their number.
        inputs: return the number of input rows, -1 if unknown.
    """
    _Steps.done += 1
    for recording in recordings:
        delay = -1 if delayed_before < 0 else delayed() - delayed_before
        numbers = met() - met_before, delay, seeds, inputs()
        recording.add_step(wait.begin, use.begin + use.took, wait.took, *numbers)
    if _Steps.call is not None:
        _Steps.call(_Steps.done)


def at_each_step(call: Callable[[int], None] | None) -> int:
    """Have a function called after each step, in its thread, with the number of steps so far; return that number."""
    _Steps.call = call
    return _Steps.done
