"""Number the nodes of a type by the ids that tables have for them.

Where a table has a row for each node, the row is the number. Else the ids of the edges are numbered in their order:
integers by value and strings by their UTF-8 bytes. Ids that are 0, 1, ..., n - 1 already are their own numbers.

Ranks sort ids together (a sample sort): each sorts its share and sends the ids of each range to one rank, which merges
them. All map the file in which they put what they have merged.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.formats.table_columns import IdColumn
from mpigraph.partition.exchange import Route, even_bounds
from mpigraph.partition.row_arrays import MadeRows, RowArray, RowError, as_int64, place_of, release
from mpigraph.partition.source import EDGES_PER_CHUNK

_SAMPLES = 16  # of a rank for each range of ids


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
    """Return as ``np.unique``, whose hash table takes many times as long as sorting."""
    ascending = np.sort(np.concatenate(arrays))
    is_first = np.ones(len(ascending), bool)
    is_first[1:] = ascending[1:] != ascending[:-1]
    return ascending[is_first]


class NodeIds:
    """The ids of the nodes of one type.

    Args:
        what: the node type, for messages.
        table_ids: ids of a table of nodes, one for each row; None if there is no table.
        ends: ids of the type's nodes that edges have.
        ranks: the ranks that read them.
        count: the number of nodes, whose ids are 0 to count - 1; None to take the ids as they come.

    Attributes:
        count: number of nodes.
        original: the ids in the order of the nodes, int64[n] or of dtype S; None if each is the number of its node.

    Raises:
        GraphDataError: two rows have the same id, or an id is missing; names file and row.
        StorageError: a temporary file cannot be written.
    """

    @collective("ranks")
    def __init__(
        self,
        what: str,
        table_ids: IdColumn | None,
        ends: Sequence[IdColumn],
        ranks: ReadingRanks,
        count: int | None = None,
    ) -> None:
        self._what = what
        self._ranks = ranks
        self._doing = f"numbering {what}"
        self.is_text = any(column.is_text for column in (*ends, *([] if table_ids is None else [table_ids])))
        self.original: Array | None = None
        self._keys: Array | None = None
        self._order: I64 | None = None
        if count is not None:
            self.count = count
            if self.is_text:
                place = next(column for column in ends if column.is_text).place(0)
                raise GraphDataError(f"{place}: ids of {what} are strings, so nodes cannot be known by their number")
        elif table_ids is not None:
            self.count = len(table_ids)
            self._take(table_ids)
        else:
            self.count = self._collect(ends)

    @collective("ranks")
    def numbers(self, ids: IdColumn) -> RowArray:
        """Return the number of the node of each id, int64[n].

        Raises GraphDataError: there is no such node; names file and row; of integers when they are asked for.
        """
        if self.is_text:
            return _Numbered(self._ranks.rows(self._doing, len(ids), np.int64, lambda: self._of_texts(ids)), ids)
        return ids.numbers if self._keys is None else MadeRows(self._find, np.int64, ids.numbers)

    def _of_texts(self, ids: IdColumn) -> Iterator[tuple[int, I64]]:
        """Yield the numbers of this rank's share of ids, with the first row."""
        for first, values, positions, place in ids.texts(self._ranks):
            numbers = self._positions(values)[positions]
            if len(numbers) and numbers.min() < 0:
                row = int((numbers < 0).argmax())
                raise GraphDataError(f"{place(row)}: {self._unknown(values[positions[row]].decode())}")
            yield first, numbers

    def _find(self, ids: Array) -> I64:
        numbers = self._positions(as_int64(ids))
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

    def _take(self, table_ids: IdColumn) -> None:
        """Number the rows of a table."""
        ranks = self._ranks
        exchange = ranks.exchange
        with ranks.exchange.together(self._doing):
            if self.is_text:
                chunks = [values[positions] for _, values, positions, _ in table_ids.texts(ranks)]
                ids = np.concatenate([np.zeros(0, "S1"), *chunks])
            else:
                ids = np.concatenate([np.zeros(0, np.int64), *_chunks([table_ids.numbers], ranks)])
        counts = exchange.gather(np.array([[len(ids)]], np.int64))
        rows = counts[: exchange.rank].sum() + np.arange(len(ids))
        if not self.is_text and exchange.sum_of(int(not np.array_equal(ids, rows))) == 0:
            return
        ids = ids.astype(_common_dtype(ranks, ids), copy=False)
        keys, order = _sorted_together(ranks, ids, rows)
        with ranks.exchange.together(self._doing):
            twice = np.flatnonzero(keys[1:] == keys[:-1])
            if len(twice):
                first, second = (table_ids.place(int(row)) for row in order[twice[0] :][:2])
                name = keys[twice[0]].decode() if self.is_text else keys[twice[0]]
                raise GraphDataError(f"{second}: the id {name!s:.80} is there already: {first}")
        self.original, self._keys, self._order = (ranks.joined(self._doing, own) for own in (ids, keys, order))

    def _collect(self, ends: Sequence[IdColumn]) -> int:
        """Number the ids that edges have; return how many there are."""
        if self.is_text:
            keys = distinct_texts(self._ranks, self._doing, ends)
        else:
            count, numbers = _distinct_numbers(self._ranks, self._doing, [column.numbers for column in ends])
            if numbers is None:
                return count
            keys = numbers
        self._keys = self.original = keys
        return len(keys)


class _Numbered(MadeRows):
    def __init__(self, numbers: RowArray, ids: IdColumn) -> None:
        super().__init__(lambda rows: rows, np.int64, numbers)
        self._ids = ids

    def place(self, row: int) -> str:
        return self._ids.place(row)


@collective("ranks")
def distinct_texts(ranks: ReadingRanks, doing: str, columns: Sequence[IdColumn], blanks: bool = False) -> Array:
    """Return the distinct ids of columns as text, ascending, of dtype S; in a mapped file."""

    def own() -> Iterator[Array]:
        for column in columns:
            for _, values, _, _ in column.texts(ranks, blanks):
                yield values

    return _distinct_of(ranks, doing, own)


@collective("ranks")
def _distinct_of(ranks: ReadingRanks, doing: str, own: Callable[[], Iterator[Array]]) -> Array:
    """Return the distinct values among those that all ranks have, ascending, in a mapped file."""
    with ranks.exchange.together(doing):
        distinct = Distinct()
        for values in own():
            distinct.add(values)
        run = distinct.sorted()
    run = run.astype(_common_dtype(ranks, run), copy=False)
    keys, _ = _sorted_together(ranks, run, np.zeros(len(run), np.int64))
    return ranks.joined(doing, _distinct(keys))


@collective("ranks")
def _common_dtype(ranks: ReadingRanks, ids: Array) -> np.dtype[Any]:
    """Return the dtype that holds the ids of all ranks: int64, or strings as long as the longest."""
    width = ids.dtype.itemsize if ids.dtype.kind == "S" else 0
    widest = int(ranks.exchange.gather(np.array([[width]], np.int64)).max())
    return np.dtype(f"S{widest}") if widest else np.dtype(np.int64)


@collective("ranks")
def _sorted_together(ranks: ReadingRanks, ids: Array, rows: I64) -> tuple[Array, I64]:
    """Sort the ids of all ranks, of one dtype, and their rows along, which ascend; return this rank's range of them."""
    exchange = ranks.exchange
    sample = ids[np.linspace(0, len(ids) - 1, min(len(ids), _SAMPLES * exchange.size), dtype=np.int64)]
    known = np.sort(_values_of(exchange.gather(_bytes_of(sample)), ids.dtype))
    bounds = known[even_bounds(len(known), exchange.size)[1:-1]] if len(known) else known
    records = np.concatenate([_bytes_of(ids), _bytes_of(rows)], axis=1)
    came = Route(exchange, np.searchsorted(bounds, ids, side="right")).there(records)
    ids, rows = _values_of(came[:, :-8], ids.dtype), _values_of(came[:, -8:], np.dtype(np.int64))
    order = np.argsort(ids, kind="stable")  # equal ids came from lower ranks first, which have lower rows
    return ids[order], rows[order]


def _bytes_of(values: Array) -> Array:
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.dtype.itemsize)


def _values_of(rows: Array, dtype: np.dtype[Any]) -> Array:
    return np.ascontiguousarray(rows).reshape(-1).view(dtype)


def _distinct_numbers(ranks: ReadingRanks, doing: str, columns: Sequence[RowArray]) -> tuple[int, I64 | None]:
    """Return how many distinct integers there are, and which, ascending; None if they are 0, 1, ..., n - 1."""
    with ranks.exchange.together(doing):
        bounds = [0, -1]
        for chunk in _chunks(columns, ranks):
            bounds = [min(bounds[0], int(chunk.min())), max(bounds[1], int(chunk.max()))]
    every = ranks.exchange.gather_json(bounds)
    low, high = min(low for low, _ in every), max(high for _, high in every)
    if low < 0 or high >= sum(map(len, columns)):  # they have gaps
        keys = _distinct_of(ranks, doing, lambda: _chunks(columns, ranks))
        return len(keys), keys
    with ranks.exchange.together(doing):
        is_there = np.zeros(high + 1, bool)
        for chunk in _chunks(columns, ranks):
            is_there[chunk] = True
    exchange = ranks.exchange
    ranges = even_bounds(high + 1, exchange.size)
    came, _ = exchange.all_to_all(is_there[:, None], np.diff(ranges))
    numbers = ranges[exchange.rank] + np.flatnonzero(came.reshape(exchange.size, -1).any(axis=0))
    count = exchange.sum_of(len(numbers))
    return count, None if count == high + 1 else ranks.joined(doing, numbers)


def _chunks(columns: Sequence[RowArray], ranks: ReadingRanks | None = None) -> Iterator[I64]:
    """Yield chunks of integers, if ranks are given this rank's share of them."""
    places = [(column, first) for column in columns for first in range(0, len(column), EDGES_PER_CHUNK)]
    for column, first in places if ranks is None else ranks.share_of(places):
        chunk = column[first : first + EDGES_PER_CHUNK]
        try:
            yield as_int64(chunk)
        except RowError as error:
            raise GraphDataError(f"{place_of(column, first + error.row)}: {error}") from None
        if first + EDGES_PER_CHUNK >= len(column):
            release(column)


def typewise(ids: Sequence[I64], counts: Sequence[int]) -> list[I64] | None:
    """Return ids of several types as ids of their own type, each from 0: for each type int64[count].

    ``ids`` has for each type int64[count], in any order: type-wise already, or of all types counted through, in any
    order of the types. None if they are neither.
    """
    bases = [int(ids_of_type.min()) if len(ids_of_type) else 0 for ids_of_type in ids]
    typed = [ids_of_type - base for ids_of_type, base in zip(ids, bases, strict=True)]
    for shifted, count in zip(typed, counts, strict=True):
        if not np.array_equal(np.sort(shifted), np.arange(count)):
            return None
    ranges = sorted((base, base + count) for base, count in zip(bases, counts, strict=True) if count)
    through = all(begin == end for (begin, _), (_, end) in zip(ranges, [(0, 0), *ranges], strict=False))
    return typed if through or not any(bases) else None
