"""Temporary files for what does not fit into memory.

:class:`Spill` sorts rows into groups as they come, :class:`Scratch` makes large arrays.
"""

import mmap
import os
import tempfile
from collections.abc import Iterator
from io import BufferedRandom
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, Array
from mpigraph.kernels.csr import by_key
from mpigraph.partition.row_arrays import mapping_of, release
from mpigraph.storage.files import storage_errors

_RANGES = 64  # of rows that a matrix is sorted in


class Scratch:
    """A folder of temporary files. They have no name, so they vanish with the process, however it ends.

    A spill keeps ``limit`` bytes in memory, and a smaller array never lies in a file. With ``mapping`` larger arrays
    are created in files, since memory does not hold them.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, limit: int = 64 << 20, mapping: bool = False
    ) -> None:
        self.folder = Path(tempfile.gettempdir() if folder is None else folder)
        self.limit = limit
        self.mapping = mapping

    def empty(self, count: int, dtype: npt.DTypeLike, mapping: bool = False) -> Array:
        """Return an array to be filled, [count]; in a file if it is large, and the scratch or ``mapping`` says so.

        Raises StorageError if the disk has no space for it.
        """
        is_large = count * np.dtype(dtype).itemsize > self.limit
        return self._mapped(count, dtype) if is_large and (mapping or self.mapping) else np.empty(count, dtype)

    def park(self, values: Array) -> Array:
        """Move an array that is not used for a while into a file, if it is large and in none; return it.

        Raises StorageError if there is no space for the file.
        """
        if values.nbytes <= self.limit or mapping_of(values) is not None:
            return values
        parked = self._mapped(len(values), values.dtype)
        parked[:] = values
        release(parked)
        return parked

    def _mapped(self, count: int, dtype: npt.DTypeLike) -> Array:
        size = count * np.dtype(dtype).itemsize
        with storage_errors(self.folder, "write a temporary file"), tempfile.TemporaryFile(dir=self.folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)  # where the disk is full: an error here, no SIGBUS later
            array: Array = np.ndarray(count, dtype, mmap.mmap(file.fileno(), size))
        return array


class Spill:
    """Rows by group, in the order in which they came, in memory up to a limit, and in one file.

    Raises:
        StorageError: the temporary file cannot be written or read; by any method.
    """

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self._pending: list[list[Array]] = []  # uint8[bytes]
        self._written: list[list[tuple[int, int]]] = []  # (offset, bytes)
        self._in_memory = 0
        self._file: BufferedRandom | None = None

    def new_groups(self, count: int) -> int:
        """Begin some groups; return the number of the first."""
        first = len(self._pending)
        self._pending += [[] for _ in range(count)]
        self._written += [[] for _ in range(count)]
        return first

    def add(self, groups: Array, rows: Array) -> None:
        """Add rows, [n, ...], each to its group, int[n]. A group has rows of one dtype and shape."""
        first = int(groups.min(initial=len(self._pending)))
        numbers = groups - first
        order = np.argsort(numbers.astype(np.int16) if numbers.max(initial=0) < 2**15 else numbers, kind="stable")
        counts = np.bincount(numbers)  # by radix where there are few groups
        ordered = rows.take(order, axis=0).reshape(-1).view(np.uint8)
        ends = np.cumsum(counts) * (len(ordered) // max(len(rows), 1))
        for group in np.flatnonzero(counts).tolist():
            self._pending[first + group].append(ordered[ends[group - 1] if group else 0 : ends[group]])
        self._in_memory += len(ordered)
        if self._in_memory > self._scratch.limit:
            self._flush()

    def take(self, group: int, dtype: npt.DTypeLike, mapped: bool = False) -> Array:
        """Return the values of a group, [n], and forget them.

        ``mapped``: they lie in another file if they are large.
        """
        written, pending = self._written[group], self._pending[group]
        self._written[group], self._pending[group] = [], []
        count = (sum(size for _, size in written) + sum(map(len, pending))) // np.dtype(dtype).itemsize
        rows = self._scratch.empty(count, dtype, mapped)
        data = rows.view(np.uint8)
        at = 0
        with storage_errors(self._scratch.folder, "read a temporary file"):
            for offset, size in written:
                assert self._file is not None
                self._file.seek(offset)
                at += self._file.readinto(data[at : at + size].data)
        if pending:
            np.concatenate(pending, out=data[at:])
        return rows

    def close(self) -> None:
        """Forget all."""
        if self._file is not None:
            self._file.close()

    def _flush(self) -> None:
        """Write to the file what is still in memory."""
        with storage_errors(self._scratch.folder, "write a temporary file"):
            self._file = self._file or tempfile.TemporaryFile(dir=self._scratch.folder)
            offset = self._file.seek(0, os.SEEK_END)
            for chunks, written in zip(self._pending, self._written, strict=True):
                size = sum(map(len, chunks))
                if size:
                    self._file.writelines(chunk.data for chunk in chunks)
                    written.append((offset, size))
                    offset += size
                    chunks.clear()
            self._file.flush()
        self._in_memory = 0


class MatrixSpill:
    """Entries of a matrix that come in any order, and are taken out row after row.

    An entry has its row and its values in ``columns``.
    """

    def __init__(self, scratch: Scratch, num_rows: int, columns: int, dtype: npt.DTypeLike) -> None:
        self._num_rows = num_rows
        self._columns = columns
        self._dtype = dtype
        self._step = max(1, -(-num_rows // _RANGES))
        self._entries = Spill(scratch)
        self._entries.new_groups(-(-num_rows // self._step))
        self.num_entries = 0  # that have come

    def add(self, entries: Array) -> None:
        """Add entries, [n, columns]; the first column is the row."""
        self.num_entries += len(entries)
        self._entries.add(entries[:, 0] // self._step, entries)

    def take(self) -> Iterator[tuple[int, int, I64, list[Array]]]:
        """Yield ranges of rows in order, once: first row, last row + 1, the bounds of each row's entries (int64[rows +
        1]), and the values in each column, [m], those of a row in the order in which they came.
        """
        for number, begin in enumerate(range(0, self._num_rows, self._step)):
            end = min(begin + self._step, self._num_rows)
            rows, *columns = self._entries.take(number, self._dtype).reshape(-1, self._columns).T
            bounds, order = by_key(rows - begin, end - begin)
            yield begin, end, bounds, [column.take(order) for column in columns]
        self._entries.close()
