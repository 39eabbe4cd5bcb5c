"""Temporary files for what does not fit into memory: rows sorted into groups as they come, and large arrays."""

import mmap
import os
import tempfile
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, Array
from mpigraph.errors import StorageError
from mpigraph.kernels.csr import count_keys, place_values
from mpigraph.partition.row_arrays import release

__all__ = ["MatrixSpill", "Scratch", "Spill", "sorted_by_row"]

_RANGES = 64  # of rows that a matrix is sorted in


class Scratch:
    """Where temporary files lie, and what goes there. They have no name, so they go with the process, however it ends.

    Args:
        folder: of the files.
        limit: bytes that a spill keeps in memory; and an array that is no larger never lies in a file.
        mapping: whether larger arrays lie in files from the beginning, since memory does not hold them.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, limit: int = 64 << 20, mapping: bool = False
    ) -> None:
        self.folder = Path(tempfile.gettempdir() if folder is None else folder)
        self.limit = limit
        self.mapping = mapping

    def empty(self, count: int, dtype: npt.DTypeLike) -> Array:
        """Return an array to be filled, [count].

        Raises:
            StorageError: it lies in a file, for which there is no space.
        """
        return self.new(count, dtype) if self.mapping else np.empty(count, dtype)

    def new(self, count: int, dtype: npt.DTypeLike) -> Array:
        """Return an array to be filled, [count], in a file if it is large.

        Raises:
            StorageError: there is no space for the file.
        """
        return self._mapped(count, dtype) if count * np.dtype(dtype).itemsize > self.limit else np.empty(count, dtype)

    def park(self, values: Array) -> Array:
        """Return an array of :meth:`empty` that is not used for a while: if it is large, it now lies in a file.

        Raises:
            StorageError: there is no space for the file.
        """
        if self.mapping or values.nbytes <= self.limit:
            return values
        parked = self._mapped(len(values), values.dtype)
        parked[:] = values
        release(parked)
        return parked

    def open(self) -> FileIO:
        """Return a new file.

        Raises:
            OSError: it cannot be made.
        """
        return tempfile.TemporaryFile(dir=self.folder, buffering=0)

    def failure(self, what: str, error: OSError) -> StorageError:
        """Return the StorageError for an error of the system."""
        return StorageError(f"{self.folder}: cannot {what} a temporary file: {error.strerror}")

    def _mapped(self, count: int, dtype: npt.DTypeLike) -> Array:
        """Return an array in a file, [count]; the kernel keeps in memory what there is memory for."""
        size = count * np.dtype(dtype).itemsize
        try:
            with self.open() as file:
                os.posix_fallocate(file.fileno(), 0, size)  # where the disk is full: an error here, no SIGBUS later
                return np.ndarray(count, dtype, mmap.mmap(file.fileno(), size))
        except OSError as error:
            raise self.failure("write", error) from error


class Spill:
    """Rows by group, in the order in which they came.

    Args:
        scratch: where to.
        num_groups: number of groups.
        columns: of a row.
        dtype: of a row.

    Attributes:
        counts: int64[groups], how many rows came to each.
        dtype: of a row.

    Raises:
        StorageError: the temporary file cannot be written or read; by any method.
    """

    def __init__(self, scratch: Scratch, num_groups: int, columns: int, dtype: npt.DTypeLike) -> None:
        self._scratch = scratch
        self._columns = columns
        self.dtype = np.dtype(dtype)
        self._row_bytes = columns * self.dtype.itemsize
        self._pending: list[list[Array]] = [[] for _ in range(num_groups)]
        self._written: list[list[tuple[int, int]]] = [[] for _ in range(num_groups)]  # (offset, rows)
        self._in_memory = 0
        self._end = 0
        self._file: FileIO | None = None
        self.counts = np.zeros(num_groups, np.int64)

    def add(self, groups: Array, rows: Array) -> None:
        """Add rows.

        Args:
            groups: int[n], the group of each.
            rows: [n, columns].
        """
        if len(rows) == 0:
            return
        num_groups = len(self.counts)
        small = np.int16 if num_groups < 2**15 else np.int64  # of which numpy makes a radix sort
        order = np.argsort(groups.astype(small), kind="stable")
        counts = np.bincount(groups, minlength=num_groups)
        ordered = rows.take(order, axis=0).astype(self.dtype, copy=False)
        ends = np.cumsum(counts)
        for group in np.flatnonzero(counts).tolist():
            self._pending[group].append(ordered[ends[group] - counts[group] : ends[group]])
        self.counts += counts
        self._in_memory += ordered.nbytes
        if self._in_memory > self._scratch.limit:
            self._write_out()

    def take(self, group: int, mapped: bool = False) -> Array:
        """Return the rows of a group, [n, columns], and forget them.

        Args:
            group: which.
            mapped: where they are more than is kept in memory, they lie in another temporary file.
        """
        count = int(self.counts[group])
        new = self._scratch.new if mapped else np.empty
        rows = new(count * self._columns, self.dtype).reshape(count, self._columns)
        at = 0
        for offset, count in self._written[group]:
            self._read(rows[at : at + count], offset)
            at += count
        for chunk in self._pending[group]:
            rows[at : at + len(chunk)] = chunk
            at += len(chunk)
        self._written[group] = []
        self._pending[group] = []
        return rows

    def flush(self) -> None:
        """Keep nothing in memory."""
        if self._in_memory:
            self._write_out()

    def close(self) -> None:
        """Forget all."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write_out(self) -> None:
        try:
            if self._file is None:
                self._file = self._scratch.open()
            for group, chunks in enumerate(self._pending):
                if chunks:
                    begin = self._end
                    for chunk in chunks:
                        self._write(chunk)
                    self._written[group].append((begin, (self._end - begin) // self._row_bytes))
                    chunks.clear()
        except OSError as error:
            raise self._scratch.failure("write", error) from error
        self._in_memory = 0

    def _write(self, chunk: Array) -> None:
        assert self._file is not None
        data = np.ascontiguousarray(chunk).data.cast("B")
        while data:
            done = os.pwrite(self._file.fileno(), data, self._end)
            self._end += done
            data = data[done:]

    def _read(self, rows: Array, offset: int) -> None:
        assert self._file is not None
        data = rows.data.cast("B")
        try:
            while data:
                done = os.preadv(self._file.fileno(), [data], offset)
                offset += done
                data = data[done:]
        except OSError as error:
            raise self._scratch.failure("read", error) from error


class MatrixSpill:
    """Entries of a matrix that come in any order, and are taken out row after row.

    Args:
        scratch: for what does not fit into memory.
        num_rows: of the matrix.
        columns: of an entry: its row, and what it holds.
        dtype: of an entry.
    """

    def __init__(self, scratch: Scratch, num_rows: int, columns: int, dtype: npt.DTypeLike) -> None:
        self._num_rows = num_rows
        self._step = max(1, -(-num_rows // _RANGES))
        self._entries = Spill(scratch, -(-num_rows // self._step), columns, dtype)

    @property
    def num_entries(self) -> int:
        """Number of entries that have come."""
        return int(self._entries.counts.sum())

    def add(self, entries: Array) -> None:
        """Add entries, [n, columns]; the first column is the row."""
        self._entries.add(entries[:, 0] // self._step, entries)

    def take(self) -> Iterator[tuple[int, int, I64, list[Array]]]:
        """Yield ranges of rows in order, once: first row, last row + 1, and what :func:`sorted_by_row` returns."""
        for number in range(len(self._entries.counts)):
            begin = number * self._step
            end = min(begin + self._step, self._num_rows)
            yield begin, end, *sorted_by_row(self._entries.take(number), begin, end - begin)
        self._entries.close()


def sorted_by_row(entries: Array, first: int, num_rows: int) -> tuple[I64, list[Array]]:
    """Return entries by row (a counting sort, stable).

    Args:
        entries: int[m, 1 + columns]: the row of each, and what it holds.
        first: the first row.
        num_rows: number of rows from there on.

    Returns:
        indptr int64[num_rows + 1], and each column, [m].
    """
    keys = entries[:, 0].astype(np.int64) - first
    indptr = np.zeros(num_rows + 1, np.int64)
    count_keys(keys, 1, indptr)
    indptr = np.cumsum(indptr)
    columns = []
    for column in entries.T[1:]:
        placed = np.empty(len(keys), entries.dtype)
        place_values(keys, np.ascontiguousarray(column), indptr[:-1].copy(), placed)
        columns.append(placed)
    return indptr, columns
