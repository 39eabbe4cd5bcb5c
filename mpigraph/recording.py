"""The last spans of all threads in a time, and the last steps of a script: what a report is made of."""

import os
import weakref
from collections import deque
from collections.abc import Callable
from io import FileIO
from typing import NamedTuple

from mpigraph.trace import Snapshot, Thread, memory, met, process, recordings, span, sums, this_thread

MOST_SPANS = 4096
"""Spans of a thread that are kept: the last ones."""

MOST_STEPS = 1000
"""Steps that are kept: the last ones."""

Span = tuple[str, int, int, int, str]
"""A span that was kept: stage, begin and end (ns on the clock of spans), minibatch (0: none), and more words."""


class Step(NamedTuple):
    """A step of the script: three durations in ns, and two numbers of rows; -1: not known.

    Attributes:
        seconds: from the begin of the wait for its minibatch to the end of its use.
        wait: for the minibatch.
        meet: waits for other ranks.
        delay: outside of the wait for the minibatch, in which the thread could run and had no processor.
        seeds: of the minibatch.
        inputs: its input rows.
    """

    seconds: int
    wait: int
    meet: int
    delay: int
    seeds: int
    inputs: int


class Log:
    """The last spans of a thread, in the order of their ends, and its delays.

    Attributes:
        name: of the thread.
        spans: those that had not ended come last.
    """

    def __init__(self, thread: Thread, recording: "Recording") -> None:
        self.recording = recording
        self.name = thread.name
        self.owner = weakref.ref(thread)
        self.spans: deque[Span] = deque(maxlen=recording.most_spans)
        self._delays: FileIO | None = None  # stays open: that costs more than to read it

    def add(self, ended: span, end: int) -> None:
        """Keep a span."""
        self.spans.append((ended.name, ended.begin, end, ended.batch, ended.detail))

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


class Recording:
    """Keeps the last spans of all threads, from construction until :meth:`stop`; one at a time in a process.

    Attributes:
        begin: of the recording, and ``end``: ns on the clock of spans; 0 until it has ended.
        before: the sums by thread at its begin, and ``after`` at its end.
        most_spans: of a thread that are kept.
        steps: the last ones.
        logs: of all threads that had spans.
    """

    def __init__(self, most_spans: int = MOST_SPANS) -> None:
        """Begin. Raises RuntimeError if there is a recording."""
        self.most_spans = most_spans
        self.end = 0
        self.steps: deque[Step] = deque(maxlen=MOST_STEPS)
        self.logs: list[Log] = []
        self.after: dict[str, Snapshot] = {}
        with memory.lock:
            if recordings:
                raise RuntimeError("spans are already being recorded: there is one recording at a time")
            self.begin, self.before = sums()
            recordings.append(self)
            for thread in process.threads():
                self.log_of(thread)

    def stop(self) -> None:
        """End; a second call does nothing."""
        with memory.lock:
            if self.end:
                return
            recordings.remove(self)
            self.end, self.after = sums()
            for log in self.logs:
                log.close()
                if (thread := log.owner()) is not None:
                    part = thread.inner
                    while part is not None:
                        log.add(part, self.end)
                        part = part.outer
                    thread.log = None

    def log_of(self, thread: Thread) -> Log:
        """Return a thread's log: that of an ended thread with its name, or a new one, if it has none."""
        log: Log | None = thread.log
        if log is not None and log.recording is self:
            return log
        with memory.lock:
            for log in self.logs:
                if log.name == thread.name and log.owner() is None:
                    log.owner = weakref.ref(thread)
                    log.close()
                    break
            else:
                log = Log(thread, self)
                self.logs.append(log)
        thread.log = log
        return log


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
    for recording in recordings:
        delay = -1 if delayed_before < 0 else delayed() - delayed_before
        seconds = use.begin + use.took - wait.begin
        recording.steps.append(Step(seconds, wait.took, met() - met_before, delay, seeds, inputs()))
