"""Number the nodes of a type by the ids that tables have for them.

A column of ids is int64 where every id is a plain integer, else text.
Where a table has a row for each node, the row is the number. Else the ids of the edges are numbered in their order:
integers by value and strings by their UTF-8 bytes. Ids that are 0, 1, ..., n - 1 already are their own numbers.

Ranks sort ids together (a sample sort): each sorts its share and sends the ids of each range to one rank, which merges
them. All map the file in which they put what they have merged.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError
from mpigraph.formats.arrow_values import Numbers, arrow, distinct_in, to_numpy
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.formats.table_files import Tables
from mpigraph.partition.exchange import Route, even_bounds
from mpigraph.partition.row_arrays import RowArray

_CHUNK = 1 << 20  # rows
_INT64 = Numbers(np.dtype(np.int64))
_SAMPLES = 16  # of a rank for each range of ids


@dataclass(frozen=True)
class IdColumn:
    """Ids of a table, which are integers or text."""

    tables: Tables
    name: str

    @property
    def is_text(self) -> bool:
        """True if an id is not an integer."""
        return self.tables.kinds[self.name] == "string"

    def chunks(self, as_text: bool) -> Iterator[tuple[int, Array, Any]]:
        """Yield this rank's share of the ids, a chunk at a time.

        Yields:
            The first row of the chunk; ids, as text the distinct ones (dtype S), else int64; and for each row the
            position among them.

        Raises:
            GraphDataError: an id is missing or too long; names file and row.
        """
        for group in self.tables.ranks.share_of(self.tables.groups):
            column = self.tables.columns(group, [self.name])[0]
            for begin in range(0, group.length, _CHUNK):
                chunk = column.slice(begin, _CHUNK)
                with self.tables.errors(group, self.name, begin):
                    if as_text:
                        found: tuple[Array, Any] = distinct_in(chunk.cast(arrow().large_string()).fill_null(""))
                    else:
                        found = to_numpy(chunk, _INT64), slice(None)
                yield group.begin + begin, *found

    def place(self, row: int) -> str:
        """File, row and column."""
        return self.tables.place(self.name, row)


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
        self, what: str, table_ids: IdColumn | None, ends: Sequence[IdColumn], ranks: ReadingRanks, count: int | None
    ) -> None:
        self._what = what
        self._ranks = ranks
        self._doing = f"numbering {what}"
        self.is_text = any(column.is_text for column in (*ends, *filter(None, [table_ids])))
        self.original: Array | None = None
        self._keys: Array | None = None
        self._order: I64 | None = None
        if count is not None and self.is_text:
            place = next(column for column in ends if column.is_text).place(0)
            raise GraphDataError(f"{place}: ids of {what} are text, so nodes cannot be known by their number")
        if table_ids is not None:
            count = len(table_ids.tables)
            self._take(table_ids)
        elif count is None and not self.is_text:
            count = self._dense_count(ends)
        if count is None:
            self._keys = self.original = self._distinct(ends)
            count = len(self._keys)
        self.count = count

    @collective("ranks")
    def numbers(self, ids: IdColumn) -> RowArray:
        """Return the number of the node of each id, int64[n].

        Raises GraphDataError: there is no such node; names file and row.
        """
        keys = self._keys
        if keys is None:
            return ids.tables.rows({ids.name: partial(to_numpy, numbers=_INT64)})

        def own() -> Iterator[tuple[int, I64]]:
            for first, values, positions in ids.chunks(self.is_text):
                numbers = positions_in(keys, values)[positions]
                if len(numbers) and numbers.min() < 0:
                    row = int(numbers.argmin())
                    text = values[positions][row]
                    name = text.decode() if self.is_text else text
                    what = f"an edge has the id {name!s:.80}, which no row of the table of {self._what} has"
                    raise GraphDataError(f"{ids.place(first + row)}: {what}")
                yield first, numbers if self._order is None else self._order[numbers]

        return self._ranks.rows(self._doing, len(ids.tables), np.int64, own)

    def _take(self, table_ids: IdColumn) -> None:
        """Number the rows of a table."""
        ranks = self._ranks
        with ranks.exchange.together(self._doing):
            chunks = [values[positions] for _, values, positions in table_ids.chunks(self.is_text)]
            ids = np.concatenate([np.zeros(0, "S1" if self.is_text else np.int64), *chunks])
        counts = ranks.exchange.gather(np.array([[len(ids)]], np.int64))
        rows = counts[: ranks.exchange.rank].sum() + np.arange(len(ids))
        if not self.is_text and ranks.exchange.sum_of(int(not np.array_equal(ids, rows))) == 0:
            return
        keys, order = _sorted_together(ranks, ids, rows)
        with ranks.exchange.together(self._doing):
            twice = np.flatnonzero(keys[1:] == keys[:-1])
            if len(twice):
                first, second = (table_ids.place(int(row)) for row in order[twice[0] :][:2])
                name = keys[twice[0]].decode() if self.is_text else keys[twice[0]]
                raise GraphDataError(f"{second}: the id {name!s:.80} is there already: {first}")
        self.original, self._keys, self._order = (ranks.joined(self._doing, own) for own in (ids, keys, order))

    def _distinct(self, columns: Sequence[IdColumn]) -> Array:
        """Return the distinct ids of columns, ascending, int64 or of dtype S; in a mapped file."""
        with self._ranks.exchange.together(self._doing):
            chunks = (values for column in columns for _, values, _ in column.chunks(self.is_text))
            own = merged(chunks, np.dtype("S1" if self.is_text else np.int64))
        keys, _ = _sorted_together(self._ranks, own, np.zeros(len(own), np.int64))
        return self._ranks.joined(self._doing, _distinct(keys))

    def _dense_count(self, columns: Sequence[IdColumn]) -> int | None:
        """Return how many distinct integers there are if they are 0, 1, ..., n - 1; else None."""
        exchange = self._ranks.exchange
        count, has_gaps = 0, False
        with exchange.together(self._doing):
            is_there = np.zeros(sum(len(column.tables) for column in columns), bool)  # unused pages are no memory
            for ids in (ids for column in columns for _, ids, _ in column.chunks(as_text=False)):
                has_gaps = bool(ids.min() < 0 or ids.max() >= len(is_there))
                if has_gaps:
                    break
                is_there[ids] = True
                count = max(count, int(ids.max()) + 1)
        every = exchange.gather_json([count, has_gaps])
        if any(gaps for _, gaps in every):
            return None
        count = max(number for number, _ in every)
        came, _ = exchange.all_to_all(is_there[:count, None], np.diff(even_bounds(count, exchange.size)))
        own = came.reshape(exchange.size, -1).any(axis=0)
        return count if exchange.sum_of(int(own.sum())) == count else None


def positions_in(keys: Array, values: Array) -> I64:
    """Return the position of each value among ascending keys, -1 for those that are not there."""
    if not len(keys):
        return np.full(len(values), -1)
    places = np.minimum(np.searchsorted(keys, values), len(keys) - 1)
    return np.where(keys[places] == values, places, -1)


def merged(chunks: Iterable[Array], dtype: np.dtype[Any]) -> Array:
    """Return the distinct values of chunks, ascending; takes about 3 times their memory."""
    known: list[Array] = [np.zeros(0, dtype)]
    for chunk in chunks:
        known.append(_distinct(chunk))
        if sum(map(len, known[1:])) > len(known[0]):
            known = [_distinct(*known)]
    return _distinct(*known)


def _distinct(*arrays: Array) -> Array:
    """Return as ``np.unique``, whose hash table takes many times as long as sorting."""
    ascending = np.sort(np.concatenate(arrays))
    is_first = np.ones(len(ascending), bool)
    is_first[1:] = ascending[1:] != ascending[:-1]
    return ascending[is_first]


@collective("ranks")
def _sorted_together(ranks: ReadingRanks, ids: Array, rows: I64) -> tuple[Array, I64]:
    """Sort the ids of all ranks, and their rows along, which ascend; return this rank's range of them."""
    exchange = ranks.exchange
    ids = ranks.of_one_width(ids)
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
