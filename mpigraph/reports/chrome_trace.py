"""``trace.json.gz``: the spans of a job in Chrome's trace format, which Perfetto reads.

A process is a rank, a track one of its threads. The format: "Trace Event Format", Google, 2016. Spans are complete
events ("X"), which must nest; times are microseconds.
"""

import gzip
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from mpigraph.reports.summary import Summary, replacing


@contextmanager
def writing_trace(path: Path, summary: Summary) -> Iterator["TraceWriter"]:
    """Write one file, thread by thread; the summary has the names of the ranks. Raises StorageError at the end."""
    with replacing(path) as temporary, gzip.open(temporary, "wt", compresslevel=4, encoding="ascii") as file:
        yield TraceWriter(file, summary)
        file.write("\n]}\n")


class TraceWriter:
    """Writer of the events of a file."""

    def __init__(self, file: TextIO, summary: Summary) -> None:
        self._file = file
        self._threads: dict[int, int] = {}
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n{"ph":"M","pid":0,"name":"mpigraph"}')
        for order, rank in enumerate(summary.ranks):
            self._write("M", rank.rank, 0, "process_name", name=f"{rank.name} on {summary.node_of(rank)}")
            self._write("M", rank.rank, 0, "process_sort_index", sort_index=order)

    def thread(self, rank: int, name: str, spans: Iterable[tuple[str, float, float, str, int]]) -> None:
        """Write all spans of a thread.

        Args:
            rank: the thread's rank.
            name: of the thread.
            spans: (stage, begin, end, more words, minibatch or 0) in any order; seconds since the window began. A span
                that ends after the one around it is cut, as the format requires.
        """
        thread = self._threads[rank] = self._threads.get(rank, 0) + 1
        self._write("M", rank, thread, "thread_name", name=name)
        self._write("M", rank, thread, "thread_sort_index", sort_index=thread)
        ends: list[int] = []  # of the spans around this one
        for stage, begin, end, detail, batch in sorted(spans, key=lambda span: (span[1], -span[2])):
            first = round(begin * 1e9)
            while ends and ends[-1] <= first:
                ends.pop()
            last = min([max(round(end * 1e9), first), *ends[-1:]])
            ends.append(last)
            words = ({"minibatch": batch} if batch else {}) | ({"detail": detail} if detail else {})
            self._write("X", rank, thread, stage, first, last - first, **words)

    def counter(self, rank: int, name: str, points: Iterable[tuple[float, float]]) -> None:
        """Write a counter of a rank as (seconds since the window began, value)."""
        for seconds, value in points:
            self._write("C", rank, 0, name, round(seconds * 1e9), value=value)

    def _write(
        self, phase: str, rank: int, thread: int, event: str, begin: int = 0, length: int = 0, **words: object
    ) -> None:
        fields = {"ph": phase, "pid": rank, "tid": thread, "name": event}
        times = "" if phase == "M" else f',"ts":{_microseconds(begin)}'
        times += f',"dur":{_microseconds(length)}' if phase == "X" else ""
        arguments = f',"args":{json.dumps(words, separators=(",", ":"))}' if words else ""
        self._file.write(f",\n{json.dumps(fields, separators=(',', ':'))[:-1]}{times}{arguments}}}")


def _microseconds(nanoseconds: int) -> str:
    """Return exact decimal digits, since a double would round times of long jobs."""
    sign = "-" if nanoseconds < 0 else ""
    return f"{sign}{abs(nanoseconds) // 1000}.{abs(nanoseconds) % 1000:03}"
