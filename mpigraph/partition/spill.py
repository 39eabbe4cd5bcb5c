"""Temporary files for what does not fit into memory.

:class:`Spill` sorts rows into groups as they come, :class:`Scratch` makes large arrays. :class:`CarriedRows` sends rows
of features with the nodes and edges that they belong to. Files of compressed or checksummed blocks (parquet, HDF5,
shards) are slow to read at random, because every choice of rows unpacks nearly all blocks: their rows are read once, in
the order of the file. Rows in memory and in mapped files do not travel; the writer of a part gathers them.
"""

import itertools
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, Array, Mask
from mpigraph.collective import collective
from mpigraph.errors import MPIGraphError, StorageError
from mpigraph.kernels.csr import count_keys, place_values
from mpigraph.metadata.schema import relation_key
from mpigraph.partition.exchange import Exchange, Route, owners_of
from mpigraph.partition.row_arrays import RowArray, block_bytes, mapping_of, reads_blocks, release
from mpigraph.partition.source import Features, GraphSource

ORIGINAL_IDS = ""  # the name among features, whose names are longer
_GROUP_BYTES = 32 << 20  # of rows that are put in order at a time
_ROUND_BYTES = 16 << 20  # of rows that a rank reads and sends at a time
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

    def empty(self, count: int, dtype: npt.DTypeLike) -> Array:
        """Return an array to be filled, [count]; raise StorageError if the disk has no space for it."""
        return self.new(count, dtype) if self.mapping else np.empty(count, dtype)

    def new(self, count: int, dtype: npt.DTypeLike) -> Array:
        """Return an array to be filled, [count], in a file if it is large; raise StorageError if the disk is full."""
        return self._mapped(count, dtype) if count * np.dtype(dtype).itemsize > self.limit else np.empty(count, dtype)

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

    def open(self) -> FileIO:
        """Return a new file, or raise OSError."""
        return tempfile.TemporaryFile(dir=self.folder, buffering=0)

    def failure(self, what: str, error: OSError) -> StorageError:
        """Return the StorageError for an error of the system."""
        return StorageError(f"{self.folder}: cannot {what} a temporary file: {error.strerror}")

    def _mapped(self, count: int, dtype: npt.DTypeLike) -> Array:
        size = count * np.dtype(dtype).itemsize
        try:
            with self.open() as file:
                os.posix_fallocate(file.fileno(), 0, size)  # where the disk is full: an error here, no SIGBUS later
                array: Array = np.ndarray(count, dtype, mmap.mmap(file.fileno(), size))
                return array
        except OSError as error:
            raise self.failure("write", error) from error


class Spill:
    """Rows of ``columns`` values by group, in the order in which they came.

    Attributes:
        counts: int64[groups], the number of rows that came to each.
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
        """Add rows, [n, columns], each to its group, int[n]."""
        if len(rows) == 0:
            return
        num_groups = len(self.counts)
        small = np.int16 if num_groups < 2**15 else np.int64  # numpy sorts int16 by radix
        order = np.argsort(groups.astype(small), kind="stable")
        counts = np.bincount(groups, minlength=num_groups)
        ordered = rows.take(order, axis=0).astype(self.dtype, copy=False)
        ends = np.cumsum(counts)
        for group in np.flatnonzero(counts).tolist():
            self._pending[group].append(ordered[ends[group] - counts[group] : ends[group]])
        self.counts += counts
        self._in_memory += ordered.nbytes
        if self._in_memory > self._scratch.limit:
            self.flush()

    def take(self, group: int, mapped: bool = False) -> Array:
        """Return the rows of a group, [n, columns], and forget them; ``mapped``: in another file if they are large."""
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

    def close(self) -> None:
        """Forget all."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def flush(self) -> None:
        """Write to the file what is still in memory."""
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

    An entry has its row and its values in ``columns``.
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
        """Yield ranges of rows in order, once: first row, last row + 1, and the results of :func:`sorted_by_row`."""
        for number in range(len(self._entries.counts)):
            begin = number * self._step
            end = min(begin + self._step, self._num_rows)
            yield begin, end, *sorted_by_row(self._entries.take(number), begin, end - begin)
        self._entries.close()


def sorted_by_row(entries: Array, first: int, num_rows: int) -> tuple[I64, list[Array]]:
    """Return entries, int[m, 1 + columns], by the row in their first column (a counting sort, stable).

    Returns:
        indptr int64[num_rows + 1] of the rows from ``first`` on, and each other column, [m].
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


class CarriedRows:
    """Rows of several arrays of one length, sent to the ranks that write them and kept there in temporary files.

    A row travels by its *key*: the new id of its node, or of its edge's destination.

    Args:
        arrays: by name; at least one.
        exchange: the ranks.
        scratch: for the temporary files.
        offsets: int64[parts + 1], the keys of each part.
        part_bounds: int64[ranks + 1], the parts of each rank.
        buckets: ranges of keys of a part that are taken out separately.
    """

    def __init__(
        self,
        arrays: Mapping[str, RowArray],
        exchange: Exchange,
        scratch: Scratch,
        offsets: I64,
        part_bounds: I64,
        buckets: int = 1,
    ) -> None:
        self._arrays = arrays
        self._exchange = exchange
        self._dtype = _record(arrays)
        self._bounds = offsets[part_bounds]
        self._first_part, last_part = part_bounds[exchange.rank : exchange.rank + 2].tolist()
        self._buckets = buckets
        size = len(next(iter(arrays.values()))) * self._dtype.itemsize
        self._groups = -(-size // ((len(offsets) - 1) * buckets * _GROUP_BYTES)) or 1  # of each bucket
        self._cuts = evenly_cut(offsets[self._first_part : last_part + 1], buckets * self._groups)
        self._spill = Spill(scratch, len(self._cuts) - 1, self._dtype.itemsize, np.uint8)
        self._error: MPIGraphError | None = None

    @collective("ranks")
    def send(self, most: int, first: int, keys: Array, numbers: Array, leaving: Mask | slice) -> None:
        """Read consecutive rows from row ``first`` on, send those that leave, and keep those that arrive.

        ``keys`` and ``numbers`` are int[n]; :meth:`take` tells rows apart by their numbers. ``most`` is the largest
        number of rows that any rank passes to this call.
        """
        step = max(1, _ROUND_BYTES // self._dtype.itemsize)
        leaves = np.zeros(len(keys), np.bool_)
        leaves[leaving] = True
        for begin in range(0, most, step):
            end = min(begin + step, len(keys))
            chosen = np.flatnonzero(leaves[begin:end])
            records = np.zeros(len(chosen), self._dtype)
            records["key"] = keys[begin:end][chosen]
            records["number"] = numbers[begin:end][chosen]
            if len(chosen):
                self._read(records, first + begin, first + end, chosen)
            route = Route(self._exchange, owners_of(self._bounds, records["key"]))
            came = route.there(records.view(np.uint8).reshape(len(records), self._dtype.itemsize))
            groups = np.searchsorted(self._cuts, came.reshape(-1).view(self._dtype)["key"], side="right") - 1
            self._spill.add(groups, came)

    @collective("ranks")
    def settle(self) -> None:
        """Move all rows that have arrived to the disk; raise the error of a rank that could not read on every rank."""
        self._spill.flush()
        with self._exchange.together("reading features"):
            if self._error is not None:
                raise self._error

    def take(self, part: int, bucket: int, numbers: Array, indptr: I64) -> Iterator[dict[str, Array]]:
        """Yield the rows of a bucket of a part of this rank, by name; about 32 MiB at a time, and once.

        ``numbers``, int[n], are of the rows in the order to yield them, ascending by keys; ``indptr``, int64[keys + 1],
        says where the rows of each key of the bucket begin.
        """
        first = ((part - self._first_part) * self._buckets + bucket) * self._groups
        cuts = self._cuts[first : first + self._groups + 1]
        ends = indptr[cuts - cuts[0]].tolist()
        step = max(1, _GROUP_BYTES // self._dtype.itemsize)
        for group, (begin, end) in enumerate(itertools.pairwise(ends), first):
            rows = self._spill.take(group, mapped=True)
            places = np.empty(end - begin, np.int64)
            places[np.argsort(numbers[begin:end])] = np.argsort(rows.reshape(-1).view(self._dtype)["number"])
            for at in range(0, len(places), step):
                records = rows.take(places[at : at + step], axis=0).reshape(-1).view(self._dtype)
                yield {name: np.ascontiguousarray(records[_field(i)]) for i, name in enumerate(self._arrays)}
                release(rows)

    def close(self) -> None:
        """Forget all."""
        self._spill.close()

    def _read(self, records: Array, begin: int, end: int, chosen: I64) -> None:
        """Fill in the chosen ones of consecutive rows; read nothing more after an error."""
        if self._error is not None:
            return
        try:
            for i, array in enumerate(self._arrays.values()):
                rows = np.asarray(array[begin:end])
                records[_field(i)] = rows if len(chosen) == end - begin else rows[chosen]
                release(array)
        except MPIGraphError as error:
            self._error = error


def evenly_cut(offsets: I64, pieces: int) -> I64:
    """Return int64[ranges * pieces + 1]: ranges (int64[ranges + 1]), each in pieces of nearly equal length."""
    cuts = offsets[:-1, None] + np.diff(offsets)[:, None] * np.arange(pieces) // pieces
    return np.append(cuts.reshape(-1), offsets[-1]).astype(np.int64)


def arrays_of(source: GraphSource) -> tuple[list[dict[str, RowArray]], list[dict[str, RowArray]]]:
    """Return for each node type, and for each relation, its features and original ids, by name."""

    def arrays(names: Iterable[str], tables: Features, ids: Sequence[RowArray] | None) -> list[dict[str, RowArray]]:
        named = [{name: feature.values for name, feature in tables.get(owner, {}).items()} for owner in names]
        for table, original in zip(named, ids or (), strict=False):
            table[ORIGINAL_IDS] = original
        return named

    keys = map(relation_key, source.schema.relations)
    of_nodes = arrays(source.schema.ntypes, source.node_feats, source.node_ids)
    return of_nodes, arrays(keys, source.edge_feats, source.edge_ids)


def to_carry(arrays: Mapping[str, RowArray]) -> dict[str, RowArray]:
    """Return the arrays that are slow to read at random."""
    return {name: array for name, array in arrays.items() if reads_blocks(array)}


class Carried(NamedTuple):
    """Sizes of carried rows, bytes."""

    total: int  # of all rows, as they lie in temporary files
    block: int  # of the blocks of files that are in memory at once


NOTHING_CARRIED = Carried(0, 0)


def carried_sizes(source: GraphSource) -> Carried:
    """Return the sizes of the rows of a graph that travel."""
    total = 0
    block = 0
    of_nodes, of_edges = arrays_of(source)
    for carried in map(to_carry, (*of_nodes, *of_edges)):
        if carried:
            total += _record(carried).itemsize * len(next(iter(carried.values())))
            block = max(block, sum(map(block_bytes, carried.values())))
    return Carried(total, block)


def _record(arrays: Mapping[str, RowArray]) -> np.dtype[np.void]:
    """Return the dtype of a row of several arrays, with its key and its number."""
    fields = [(_field(i), array.dtype, array.shape[1:]) for i, array in enumerate(arrays.values())]
    return np.dtype([("key", np.int64), ("number", np.int64), *fields])


def _field(number: int) -> str:
    return f"array{number}"
