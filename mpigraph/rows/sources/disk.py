"""Rows of features that stay on disk: read from the shards by a few threads of each process.

A read is planned as runs: rows in ascending order, neighbours together up to a gap. The threads take some runs of each
ticket in turn. A thread reads a run into a buffer of its own, small enough for a core's cache, and copies its rows to
where they are wanted; runs without gaps are read to there. So reading takes no memory but these buffers.
"""

import errno
import os
import threading
import weakref
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np

from mpigraph.arrays import I64, U8, Array
from mpigraph.errors import ShardFormatError, StorageError
from mpigraph.kernels.file_runs import COUNT, FIRST, PIECE, RUN, SIZE, place_bytes, plan_runs, read_runs
from mpigraph.rows.sources.row_source import RowSource, Ticket
from mpigraph.storage.contents import PartFiles
from mpigraph.storage.files import open_direct, open_regular

_PAGE = 4096  # bytes; what direct reads begin at
_RUN_BYTES = 256 << 10
_TOGETHER = 64  # runs at most that a thread reads before it looks for another ticket
_PIECES = 2  # of a small ticket for each thread


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


class _Readers:
    """The threads that read, begun with the first read of a process."""

    def __init__(self) -> None:
        self.begin()
        os.register_at_fork(after_in_child=self.begin)

    def begin(self) -> None:
        """Forget the threads, which a child has not."""
        self._queue: SimpleQueue[weakref.ref[_DiskTicket]] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def put(self, ticket: "_DiskTicket", threads: int) -> None:
        """Have a ticket read by so many threads, in turn with others, unless it is dropped before."""
        if len(self._threads) < threads:
            with self._lock:
                while len(self._threads) < threads:
                    reader = threading.Thread(target=_serve, args=(self._queue,), name="mpigraph-disk", daemon=True)
                    reader.start()
                    self._threads.append(reader)
        known = weakref.ref(ticket)
        for _ in range(threads):
            self._queue.put(known)


def _serve(queue: "SimpleQueue[weakref.ref[_DiskTicket]]") -> None:
    buffer: U8 = np.empty(0, np.uint8)
    while True:
        known = queue.get()
        ticket = known()
        if ticket is not None:
            if len(buffer) < ticket.longest:
                memory = np.empty(ticket.longest + _PAGE, np.uint8)
                buffer = memory[-memory.ctypes.data % _PAGE :][: ticket.longest]
            if ticket.read_some(buffer):
                queue.put(known)
        del ticket


_READERS = _Readers()


class _DiskTicket(Ticket):
    """Rows that the readers put into ``out``, some runs at a time.

    Attributes:
        longest: bytes of the longest run, in whole pages.
    """

    _source: "DiskRows"

    def __init__(self, source: "DiskRows", rows: I64, out: Array, positions: I64) -> None:
        super().__init__(source, rows, out, positions)
        self._pid = os.getpid()
        self._runs, self._places = source.plan(rows)
        self.longest = -(-int(self._runs[:, SIZE].max(initial=0)) // _PAGE) * _PAGE
        threads = source.reading.threads
        self._step = max(1, min(_TOGETHER, -(-len(self._runs) // (_PIECES * threads))))
        self._begun = 0  # runs
        self._reading = 0  # threads
        self._error: Exception | None = None
        self._lock = threading.Lock()
        self._done = threading.Event()
        if len(rows):
            _READERS.put(self, min(threads, -(-len(self._runs) // self._step)))
        else:
            self._done.set()

    def read_some(self, buffer: U8) -> bool:
        """Read the next runs: called by a reader. Return False if all are begun."""
        with self._lock:
            runs = self._runs[self._begun : self._begun + self._step]
            if not len(runs):
                return False
            self._begun += len(runs)
            self._reading += 1
        error = None
        try:
            self._source.read_runs(runs, self._places, self._positions, buffer, self._out)
        except Exception as failed:
            error = failed
        with self._lock:
            self._reading -= 1
            if error is not None:
                self._error = self._error or error
                self._begun = len(self._runs)
            if not self._reading and self._begun == len(self._runs):
                self._done.set()
        return True

    @property
    def done(self) -> bool:
        """True once the rows are there."""
        return self._done.is_set()

    def finish(self) -> None:
        """Wait until the rows are in their places. Call it once.

        Raises:
            StorageError: the disk cannot read them, or their file was written meanwhile.
            ShardFormatError: the file ends before them.
        """
        if os.getpid() != self._pid:  # a fork has no readers that read for it
            super().finish()
            return
        begun = self._begun
        while not self._done.wait(self._source.reading.timeout):
            if self._begun == begun:
                raise self._source.silent()
            begun = self._begun
        if self._error is not None:
            raise self._error
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

    def read_runs(self, runs: I64, places: I64, positions: I64, buffer: U8, out: Array) -> None:
        """Read runs; ``buffer`` is large enough for each.

        Raises:
            StorageError: the disk cannot read them.
            ShardFormatError: the file ends before them.
        """
        done = 0
        target = out.reshape(-1).view(np.uint8)
        while True:
            left = runs[done:]
            done += read_runs(self._numbers, left, self._page, places, positions, self.row_bytes, buffer, target)
            if done == len(runs):
                return
            self._read_again(runs[done], buffer)
            rows = slice(runs[done, FIRST], runs[done, FIRST] + runs[done, COUNT])
            place_bytes(buffer, places[rows], positions[rows], self.row_bytes, target)
            done += 1

    def _read_again(self, run: I64, buffer: U8) -> None:
        """Read a run that could not be read, or say why that fails."""
        piece, begin, size, _, _ = run.tolist()
        first = self._firsts[piece] + max(0, (begin - int(self._begins[piece])) // self.row_bytes)
        where = f"{self._files[piece].path}: dataset {self._name!r}, row {first}"
        view = buffer[:size].data
        try:
            while view and (count := os.preadv(self._files[piece].number, [view], begin + size - len(view))):
                view = view[count:]
        except OSError as error:
            raise StorageError(f"{where}: cannot read: {error.strerror}") from error
        if view:
            raise ShardFormatError(f"{where}: the file ends before it: it was cut off")

    def silent(self) -> StorageError:
        """Return the error that the disk does not answer."""
        paths = ", ".join(str(file.path) for file in self._files)
        seconds = self.reading.timeout
        return StorageError(f"{paths}: dataset {self._name!r}: the disk has not answered for {seconds:.0f} s")

    def check(self, runs: I64) -> None:
        """Raise StorageError if a file of these runs was written since it was opened."""
        for piece in np.unique(runs[:, PIECE]).tolist():
            self._files[piece].check()

    def read(self, rows: I64, out: Array, positions: I64) -> None:
        """Read rows."""
        self.read_ahead(rows, out, positions).finish()

    def read_ahead(self, rows: I64, out: Array, positions: I64) -> Ticket:
        """Have the readers read rows."""
        return _DiskTicket(self, rows, out, positions)


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
