"""Number the nodes of a type by the ids that tables have for them.

Where a table has a row for each node, the row is the number. Else the ids of the edges are numbered in their order:
integers by value and strings by their UTF-8 bytes. Ids that are 0, 1, ..., n - 1 already are their own numbers. The
distinct ids are collected from chunks, sorted, and kept in a mapped temporary file. One process.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.errors import GraphDataError
from mpigraph.partition.chunks import GrowingFile
from mpigraph.partition.row_arrays import MadeRows, RowArray, RowError, place_of, release
from mpigraph.partition.source import EDGES_PER_CHUNK
from mpigraph.partition.table_columns import IdColumn

__all__ = ["Distinct", "NodeIds", "typewise"]

_LARGEST = np.iinfo(np.int64).max


class Distinct:
    """The distinct values among those added, which are merged while there are many: about 3 times their memory."""

    def __init__(self) -> None:
        self._runs: list[Array] = []

    def add(self, values: Array) -> None:
        """Add numbers, or strings of dtype S."""
        self._runs.append(_distinct(values))
        while len(self._runs) > 1 and len(self._runs[-2]) <= 2 * len(self._runs[-1]):
            self._runs.append(_distinct(self._runs.pop(), self._runs.pop()))

    def sorted(self) -> Array:
        """Return all of them, ascending, and forget them."""
        while len(self._runs) > 1:
            self._runs.append(_distinct(self._runs.pop(), self._runs.pop()))
        return self._runs.pop() if self._runs else np.zeros(0, np.int64)


def _distinct(*arrays: Array) -> Array:
    """As ``np.unique``, whose hash table takes many times as long as sorting."""
    ascending = np.sort(np.concatenate(arrays))
    is_first = np.ones(len(ascending), bool)
    is_first[1:] = ascending[1:] != ascending[:-1]
    return ascending[is_first]


class NodeIds:
    """The ids of the nodes of one type.

    Args:
        what: the node type, for messages.
        given: ids of a table of nodes, one for each row; None if there is no table.
        ends: ids of the type's nodes that edges have.
        scratch: folder of temporary files; None for the system's.
        count: the number of nodes, whose ids are 0 to count - 1; None to take the ids as they come.

    Attributes:
        count: number of nodes.
        original: the ids in the order of the nodes, int64[n] or of dtype S; None if each is the number of its node.

    Raises:
        GraphDataError: two rows have the same id, or an id is missing; names file and row.
        StorageError: a temporary file cannot be written.
    """

    def __init__(
        self,
        what: str,
        given: IdColumn | None,
        ends: Sequence[IdColumn],
        scratch: Path | None,
        count: int | None = None,
    ) -> None:
        self._what = what
        self._scratch = scratch
        self.is_text = any(column.is_text for column in (*ends, *([] if given is None else [given])))
        self.original: Array | None = None
        self._keys: Array | None = None
        self._order: I64 | None = None
        if count is not None:
            self.count = count
            if self.is_text:
                place = next(column.text_place() for column in ends if column.is_text)
                raise GraphDataError(f"{place}: ids of {what} are strings, so nodes cannot be known by their number")
        elif given is not None:
            self.count = len(given)
            self._take(given)
        else:
            self.count = self._collect(ends)

    def numbers(self, ids: IdColumn) -> RowArray:
        """Return the number of the node of each id, int64[n].

        Raises:
            GraphDataError: there is no such node; names file and row; of integers when they are asked for.
        """
        if not self.is_text:
            return ids.numbers if self._keys is None else MadeRows(self._find, np.int64, ids.numbers)
        with GrowingFile(np.int64, (), self._scratch) as file:
            for values, positions, place in ids.texts():
                numbers = self._positions(values)
                if len(numbers) and numbers.min() < 0:
                    row = int((numbers[positions] < 0).argmax())
                    raise GraphDataError(f"{place(row)}: {self._unknown(values[positions[row]].decode())}")
                file.append(numbers[positions])
            numbers = file.finish()
        return _Numbered(numbers, ids)

    def _find(self, ids: Array) -> I64:
        numbers = self._positions(_as_int64(ids))
        if len(numbers) and numbers.min() < 0:
            row = int((numbers < 0).argmax())
            raise RowError(row, self._unknown(ids[row]))
        return numbers

    def _positions(self, ids: Array) -> I64:
        """Return the number of each id, -1 for those that no node has."""
        keys = self._keys
        assert keys is not None
        if not len(keys):
            return np.full(len(ids), -1)
        places = np.minimum(np.searchsorted(keys, ids), len(keys) - 1)
        numbers = places if self._order is None else self._order[places]
        return np.where(keys[places] == ids, numbers, -1)

    def _unknown(self, unknown: object) -> str:
        return f"an edge has the id {unknown!s:.80}, which no row of the table of {self._what} has"

    def _take(self, given: IdColumn) -> None:
        """Take the ids of a table, whose rows are the nodes."""
        if self.is_text:
            ids = np.concatenate([np.zeros(0, "S1"), *(values[positions] for values, positions, _ in given.texts())])
        else:
            ids = np.concatenate([np.zeros(0, np.int64), *_chunks([given.numbers])])
            if np.array_equal(ids, np.arange(len(ids))):
                return
        order = np.argsort(ids, kind="stable")
        keys = ids[order]
        twice = np.flatnonzero(keys[1:] == keys[:-1])
        if len(twice):
            first, second = order[twice[0]], order[twice[0] + 1]
            name = ids[first].decode() if self.is_text else ids[first]
            raise GraphDataError(
                f"{given.place(int(second))}: the id {name!s:.80} is there already: {given.place(int(first))}"
            )
        self.original = _kept(ids, self._scratch)
        self._keys = _kept(keys, self._scratch)
        self._order = _kept(order, self._scratch)

    def _collect(self, ends: Sequence[IdColumn]) -> int:
        """Number the ids that edges have; return how many there are."""
        keys: Array | None
        if self.is_text:
            found = Distinct()
            for column in ends:
                for values, _, _ in column.texts():
                    found.add(values)
            keys = found.sorted()
            count = len(keys)
        else:
            count, keys = _distinct_numbers([column.numbers for column in ends])
        if keys is not None:
            self._keys = self.original = _kept(keys, self._scratch)
        return count


class _Numbered(MadeRows):
    """Numbers of ids, which stood in the file of the ids."""

    def __init__(self, numbers: I64, ids: IdColumn) -> None:
        super().__init__(lambda rows: rows, np.int64, numbers)
        self._ids = ids

    def place(self, row: int) -> str:
        """File and row."""
        return self._ids.place(row)


def _distinct_numbers(columns: Sequence[RowArray]) -> tuple[int, I64 | None]:
    """Return how many distinct integers there are, and which, ascending; None if they are 0, 1, ..., n - 1.

    Args:
        columns: integers.

    Raises:
        GraphDataError: one does not fit int64; names file and row.
    """
    low = 0
    high = -1
    for chunk in _chunks(columns):
        low = min(low, int(chunk.min()))
        high = max(high, int(chunk.max()))
    if low >= 0 and high < sum(map(len, columns)):  # else they have gaps
        is_there = np.zeros(high + 1, bool)
        for chunk in _chunks(columns):
            is_there[chunk] = True
        keys = np.flatnonzero(is_there)
        return len(keys), None if len(keys) == len(is_there) else keys.astype(np.int64)
    found = Distinct()
    for chunk in _chunks(columns):
        found.add(chunk)
    keys = found.sorted()
    return len(keys), keys


def _chunks(columns: Sequence[RowArray]) -> Iterator[I64]:
    for column in columns:
        for first in range(0, len(column), EDGES_PER_CHUNK):
            chunk = column[first : first + EDGES_PER_CHUNK]
            try:
                yield _as_int64(chunk)
            except RowError as error:
                raise GraphDataError(f"{place_of(column, first + error.row)}: {error}") from None
        release(column)


def _as_int64(ids: Array) -> I64:
    if ids.dtype == np.uint64 and len(ids) and ids.max() > _LARGEST:
        row = int(np.argmax(ids > _LARGEST))
        raise RowError(row, f"id {ids[row]} is larger than {_LARGEST}")
    return ids.astype(np.int64)


def _kept(values: Array, folder: Path | None) -> Array:
    """Return the same values, in a mapped temporary file."""
    with GrowingFile(values.dtype, (), folder) as file:
        file.append(values)
        return file.finish()


def typewise(ids: Sequence[I64], counts: Sequence[int]) -> list[I64] | None:
    """Return ids of several types as ids of their own type, each from 0.

    Args:
        ids: for each type int64[count], in any order: type-wise already, or of all types counted through, in any order
            of the types.
        counts: number of ids of each type.

    Returns:
        For each type int64[count]; None if they are neither.
    """
    found = []
    bases = [int(some.min()) if len(some) else 0 for some in ids]
    for some, base, count in zip(ids, bases, counts, strict=True):
        shifted = some - base
        if len(some) != count or not np.array_equal(np.sort(shifted), np.arange(count)):
            return None
        found.append(shifted)
    ranges = sorted((base, base + count) for base, count in zip(bases, counts, strict=True) if count)
    through = all(begin == end for (begin, _), (_, end) in zip(ranges, [(0, 0), *ranges], strict=False))
    return found if through or not any(bases) else None
