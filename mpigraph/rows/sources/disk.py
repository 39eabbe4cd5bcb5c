"""Rows of features that stay on disk: read from the shards by a few threads of each process.

A read is planned as runs: rows in ascending order, neighbours together up to a gap. The threads read the runs of all
tickets in order, and a ticket keeps its rows in a buffer of its own until they are placed. A large ticket is read in
slices, so that a bounded amount of memory is in use.
"""

import errno
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np

from mpigraph.arrays import I64, U8, Array
from mpigraph.errors import ShardFormatError, StorageError
from mpigraph.kernels.file_runs import FIRST, PIECE, PLACE, RUN, SIZE, place_bytes, plan_runs, read_runs
from mpigraph.rows.pool import RowPool
from mpigraph.rows.sources.row_source import RowSource, Ticket
from mpigraph.storage.contents import PartFiles
from mpigraph.storage.files import open_direct, open_regular

__all__ = ["DiskFile", "DiskRows", "Reading", "open_rows"]

_PAGE = 4096  # bytes; what direct reads begin at
_RUN_BYTES = 1 << 20
_SLICE_BYTES = 8 << 20
_SLICES = 4  # of a ticket in memory
_PIECES = 2  # of a slice for each thread
_POOL = RowPool(kept=8)


class Reading(NamedTuple):
    """How rows are read: settings of a job (``config.py``).

    Attributes:
        threads: of each process that read.
        gap: bytes between two rows up to which one read of both is faster than two.
        direct: read past the page cache, where the file system can.
        timeout: seconds that a read may take.
    """

    threads: int = 16
    gap: int = 8192
    direct: bool = False
    timeout: float = 300.0


class DiskFile:
    """A file that is open to read rows, closed with the last reference.

    Attributes:
        path: where it was when it was opened.
        number: its descriptor.
        status: its state then.
    """

    def __init__(self, path: Path) -> None:
        """Open it. Raises StorageError if that fails."""
        self.path = path
        try:
            self.number = open_regular(path)
            weakref.finalize(self, os.close, self.number).atexit = False
            os.posix_fadvise(self.number, 0, 0, os.POSIX_FADV_RANDOM)
            self.status = os.fstat(self.number)
        except OSError as error:
            hint = " (raise their limit: ulimit -n)" if error.errno == errno.EMFILE else ""
            raise StorageError(f"{path}: cannot read: {error.strerror}{hint}") from error

    def check(self) -> None:
        """Raise StorageError if the file was written since it was opened."""
        now = os.fstat(self.number)
        if (now.st_size, now.st_mtime_ns) != (self.status.st_size, self.status.st_mtime_ns):
            raise StorageError(f"{self.path}: was written while a graph reads it: end the job, and start it again")

    @cached_property
    def past_cache(self) -> int | None:
        """A descriptor that reads past the page cache, closed with the file; None where that cannot be done."""
        number = open_direct(self.number)
        if number is not None:
            weakref.finalize(self, os.close, number).atexit = False
        return number


class _Slice:
    """Rows that are read together: the rows ``[first, last)`` of a ticket."""

    def __init__(self, source: "DiskRows", runs: I64, first: int, last: int) -> None:
        self.first = first
        self.last = last
        self._source = source
        self._runs = runs
        self.base = int(runs[0, PLACE])
        nbytes = -(-int(runs[-1, PLACE] + runs[-1, SIZE] - self.base) // _PAGE) * _PAGE
        size = nbytes if nbytes < _RUN_BYTES else max(nbytes, _SLICE_BYTES)  # one size, so that it is used again
        memory = _POOL.empty((size + _PAGE,), np.uint8)
        self.buffer: U8 = memory[-memory.ctypes.data % _PAGE :][:nbytes]
        self.done = threading.Event()
        self.error: Exception | None = None
        threads = source.reading.threads
        step = max(1, -(-len(runs) // (_PIECES * threads)))
        self._left = -(-len(runs) // step)
        self._lock = threading.Lock()
        for begin in range(0, len(runs), step):
            _READERS.put(self, begin, begin + step, threads)

    def read(self, begin: int, end: int) -> None:
        """Read some of the runs: called by a reader."""
        try:
            self._source.read_runs(self._runs[begin:end], self.base, self.buffer)
        except Exception as error:
            self.error = self.error or error
        with self._lock:
            self._left -= 1
            if not self._left:
                self.done.set()


class _Readers:
    """The threads that read, begun with the first read of a process."""

    def __init__(self) -> None:
        self.begin()
        os.register_at_fork(after_in_child=self.begin)

    def begin(self) -> None:
        """Forget the threads, which a child has not."""
        self._queue: SimpleQueue[tuple[weakref.ref[_Slice], int, int]] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def put(self, part: _Slice, begin: int, end: int, threads: int) -> None:
        """Have some runs of a slice read by so many threads, unless it is dropped before."""
        if len(self._threads) < threads:
            with self._lock:
                while len(self._threads) < threads:
                    reader = threading.Thread(target=_serve, args=(self._queue,), name="mpigraph-disk", daemon=True)
                    reader.start()
                    self._threads.append(reader)
        self._queue.put((weakref.ref(part), begin, end))


def _serve(queue: "SimpleQueue[tuple[weakref.ref[_Slice], int, int]]") -> None:
    while True:
        known, begin, end = queue.get()
        part = known()
        if part is not None:
            part.read(begin, end)
        del part


_READERS = _Readers()


class _DiskTicket(Ticket):
    """Rows that the readers have begun to read, slice by slice, a few at a time."""

    __slots__ = ("_cuts", "_pid", "_places", "_runs", "_slices")
    _source: "DiskRows"

    def __init__(self, source: "DiskRows", rows: I64) -> None:
        super().__init__(source, rows)
        self._pid = os.getpid()
        self._runs, self._places = source.plan(rows)
        ends = self._runs[:, PLACE] + self._runs[:, SIZE]
        self._cuts = deque([0])
        while self._cuts[-1] < len(self._runs):
            full = self._runs[self._cuts[-1], PLACE] + _SLICE_BYTES
            self._cuts.append(max(self._cuts[-1] + 1, int(np.searchsorted(ends, full, "right"))))
        self._slices: deque[_Slice] = deque()
        for _ in range(_SLICES):
            self._begin()

    def _begin(self) -> None:
        """Begin to read the next slice, if there is one."""
        if len(self._cuts) == 1:
            return
        begin = self._cuts.popleft()
        end = self._cuts[0]
        last = int(self._runs[end, FIRST]) if end < len(self._runs) else len(self._rows)
        self._slices.append(_Slice(self._source, self._runs[begin:end], int(self._runs[begin, FIRST]), last))

    @property
    def done(self) -> bool:
        """True once the first slices are there."""
        return all(part.done.is_set() for part in self._slices)

    def place(self, out: Array, positions: I64) -> None:
        """Wait for the rows and put them into ``out``. Call it once.

        Raises:
            StorageError: the disk cannot read them, or their file was written meanwhile.
            ShardFormatError: the file ends before them.
        """
        if os.getpid() != self._pid:  # a fork has no readers that read for it
            self._source.read(self._rows, out, positions)
            return
        target = out.reshape(-1).view(np.uint8)
        row_bytes = out.shape[1] * out.itemsize
        while self._slices:
            part = self._slices.popleft()
            self._source.wait(part.done)
            if part.error is not None:
                raise part.error
            rows = slice(part.first, part.last)
            place_bytes(part.buffer, part.base, self._places[rows], positions[rows], row_bytes, target)
            del part
            self._begin()
        self._source.check(self._runs)


class DiskRows(RowSource):
    """The rows of one host in its parts' files.

    Attributes:
        reading: how they are read.
        row_bytes: bytes of a row.
    """

    __slots__ = ("_begins", "_bounds", "_files", "_firsts", "_name", "_numbers", "_page", "reading", "row_bytes")

    def __init__(
        self, name: str, row_bytes: int, pieces: list[tuple[DiskFile, int, int, int]], reading: Reading
    ) -> None:
        """Read from these pieces.

        Args:
            name: the dataset, for errors.
            row_bytes: bytes of a row, > 0.
            pieces: file, the byte of it where the dataset begins, first row, number of rows; in the order of the rows.
            reading: settings.
        """
        self.reading = reading
        self._name = name
        self.row_bytes = row_bytes
        self._files = [file for file, *_ in pieces]
        past_cache = {file: file.past_cache if reading.direct else None for file in self._files}
        direct = None not in past_cache.values()
        self._page = _PAGE if direct else 1
        self._numbers = np.array([past_cache[file] if direct else file.number for file in self._files], np.int64)
        self._begins = np.array([begin + first * row_bytes for _, begin, first, _ in pieces], np.int64)
        self._bounds = np.cumsum([0, *(rows for *_, rows in pieces)], dtype=np.int64)
        self._firsts = [first for _, _, first, _ in pieces]

    def plan(self, rows: I64) -> tuple[I64, I64]:
        """Return the runs (int64[r, RUN]) that rows are read in, and int64[n], the place of each row."""
        runs = np.empty((len(rows), RUN), np.int64)
        places = np.empty(len(rows), np.int64)
        gap = self.reading.gap
        count = plan_runs(rows, self._bounds, self._begins, self.row_bytes, self._page, gap, _RUN_BYTES, runs, places)
        return runs[:count], places

    def read_runs(self, runs: I64, base: int, buffer: U8) -> None:
        """Read runs into a buffer, which begins at place ``base``.

        Raises:
            StorageError: the disk cannot read them.
            ShardFormatError: the file ends before them.
        """
        done = 0
        while True:
            done += read_runs(self._numbers, runs[done:], self._page, base, buffer)
            if done == len(runs):
                return
            self._read_again(runs[done], base, buffer)
            done += 1

    def _read_again(self, run: I64, base: int, buffer: U8) -> None:
        """Read a run that could not be read, or say why that fails."""
        piece, begin, size, place, _ = run.tolist()
        first = self._firsts[piece] + max(0, (begin - int(self._begins[piece])) // self.row_bytes)
        where = f"{self._files[piece].path}: dataset {self._name!r}, row {first}"
        view = buffer[place - base :][:size].data
        try:
            while view and (count := os.preadv(self._files[piece].number, [view], begin + size - len(view))):
                view = view[count:]
        except OSError as error:
            raise StorageError(f"{where}: cannot read: {error.strerror}") from error
        if view:
            raise ShardFormatError(f"{where}: the file ends before it: it was cut off")

    def wait(self, event: threading.Event) -> None:
        """Wait until rows were read. Raises StorageError if the disk does not answer."""
        seconds = self.reading.timeout
        if not event.wait(seconds):
            paths = ", ".join(str(file.path) for file in self._files)
            raise StorageError(f"{paths}: dataset {self._name!r}: the disk has not answered for {seconds:.0f} s")

    def check(self, runs: I64) -> None:
        """Raise StorageError if a file of these runs was written since it was opened."""
        for piece in np.unique(runs[:, PIECE]).tolist():
            self._files[piece].check()

    def read(self, rows: I64, out: Array, positions: I64) -> None:
        """Read rows."""
        self.read_ahead(rows).place(out, positions)

    def read_ahead(self, rows: I64) -> Ticket:
        """Have the readers read rows."""
        return _DiskTicket(self, rows)


def open_rows(
    files: PartFiles,
    which: str,
    name: str,
    rows: Sequence[tuple[int, int, int]],
    opened: dict[tuple[int, str], DiskFile],
    reading: Reading,
) -> DiskRows:
    """Open rows of a dataset that is spread over the parts' files.

    Args:
        files: of the partitioned graph.
        which: the file of a part: "node_feats" or "edge_feats".
        name: the dataset.
        rows: ``(part, first, last)`` in the order of the rows, counted within the part.
        opened: the files that are open already, by part and ``which``; more are added.
        reading: settings.

    Raises:
        ShardFormatError: a file is missing or damaged.
        StorageError: it cannot be opened.
    """
    pieces: list[tuple[DiskFile, int, int, int]] = []
    row_bytes = 1
    for part, first, last in rows:
        if (part, which) not in opened:
            opened[part, which] = DiskFile(files.config.part_path(part, which))
        extent = files.open(part, which).extent(name)
        row_bytes = extent.row_bytes
        pieces.append((opened[part, which], extent.begin, first, last - first))
    return DiskRows(name, row_bytes, pieces, reading)
