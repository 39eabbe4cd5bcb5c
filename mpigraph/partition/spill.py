"""Rows sorted into groups as they come: in memory up to a limit, and in a temporary file beyond it."""

import os
import tempfile
from io import FileIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import Array
from mpigraph.errors import StorageError

__all__ = ["Parked", "Scratch", "Spill"]

_CHUNK = 1 << 20


class Scratch:
    """Where spills write, and how much each keeps in memory.

    Args:
        folder: of temporary files, which have no name: they go with the process, however it ends.
        limit: bytes that a spill keeps in memory.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, limit: int = 64 << 20) -> None:
        self.folder = Path(tempfile.gettempdir() if folder is None else folder)
        self.limit = limit

    def spill(self, num_groups: int, columns: int, dtype: npt.DTypeLike) -> "Spill":
        """Return an empty spill; the arguments are its own."""
        return Spill(self, num_groups, columns, dtype)

    def park(self, values: Array) -> "Parked":
        """Return an array that is out of the way until it is taken back, in a file if it is large."""
        return Parked(self, values)


class Parked:
    """An array that nobody needs for a while.

    Args:
        scratch: where to.
        values: [n], which the caller forgets.

    Raises:
        StorageError: the temporary file cannot be written or read; by any method.
    """

    def __init__(self, scratch: Scratch, values: Array) -> None:
        self._values: Array | None = values
        self._spill: Spill | None = None
        if values.nbytes > scratch.limit:
            self._values = None
            self._spill = scratch.spill(1, 1, values.dtype)
            for begin in range(0, len(values), _CHUNK):
                chunk = values[begin : begin + _CHUNK, None]
                self._spill.add(np.zeros(len(chunk), np.int16), chunk)

    def take(self) -> Array:
        """Return the array; once."""
        if self._spill is None:
            assert self._values is not None
            return self._values
        values = self._spill.take(0)[:, 0]
        self._spill.close()
        return values


class Spill:
    """Rows by group. In each group they keep the order in which they came.

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

    def take(self, group: int) -> Array:
        """Return the rows of a group, [n, columns], and forget them."""
        rows = np.empty((int(self.counts[group]), self._columns), self.dtype)
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

    def close(self) -> None:
        """Forget all."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write_out(self) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._scratch.folder, buffering=0)
            for group, chunks in enumerate(self._pending):
                if chunks:
                    begin = self._end
                    for chunk in chunks:
                        self._write(chunk)
                    self._written[group].append((begin, (self._end - begin) // self._row_bytes))
                    chunks.clear()
        except OSError as error:
            raise self._failure("write", error) from error
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
            raise self._failure("read", error) from error

    def _failure(self, what: str, error: OSError) -> StorageError:
        return StorageError(f"{self._scratch.folder}: cannot {what} a temporary file: {error.strerror}")
