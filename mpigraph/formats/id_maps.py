"""Number the nodes of a type by the ids that tables have for them.

Where a table has a row for each node, the row is the number. Else the ids of the edges are numbered in their order:
integers by value and strings by their UTF-8 bytes. Ids that are 0, 1, ..., n - 1 already are their own numbers. The
distinct ids are collected from chunks, sorted, and kept in a mapped temporary file; the ranks of a node divide this.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError
from mpigraph.formats.mapped_files import GrowingFile
from mpigraph.formats.node_ranks import Grow, NodeRanks
from mpigraph.formats.table_columns import IdColumn
from mpigraph.partition.row_arrays import MadeRows, RowArray, RowError, as_int64, place_of, release
from mpigraph.partition.source import EDGES_PER_CHUNK

__all__ = ["Distinct", "NodeIds", "distinct_texts", "typewise"]


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
        ranks: NodeRanks,
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
                place = next(column.text_place() for column in ends if column.is_text)
                raise GraphDataError(f"{place}: ids of {what} are strings, so nodes cannot be known by their number")
        elif table_ids is not None:
            self.count = len(table_ids)
            self._take(table_ids)
        else:
            self.count = self._collect(ends)

    @collective("ranks")
    def numbers(self, ids: IdColumn) -> RowArray:
        """Return the number of the node of each id, int64[n].

        Raises:
            GraphDataError: there is no such node; names file and row; of integers when they are asked for.
        """
        if self.is_text:
            return _Numbered(self._ranks.rows(self._doing, np.int64, lambda: self._of_texts(ids)), ids)
        return ids.numbers if self._keys is None else MadeRows(self._find, np.int64, ids.numbers)

    def _of_texts(self, ids: IdColumn) -> Iterator[I64]:
        """Yield the numbers of this rank's share of ids."""
        for values, positions, place in ids.texts(ranks=self._ranks):
            numbers = self._positions(values)[positions]
            if len(numbers) and numbers.min() < 0:
                row = int((numbers < 0).argmax())
                raise GraphDataError(f"{place(row)}: {self._unknown(values[positions[row]].decode())}")
            yield numbers

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

        def sort(grow: Grow) -> tuple[None, list[GrowingFile]]:
            if self.is_text:
                chunks = [values[positions] for values, positions, _ in table_ids.texts()]
                ids = np.concatenate([np.zeros(0, "S1"), *chunks])
            else:
                ids = np.concatenate([np.zeros(0, np.int64), *_chunks([table_ids.numbers])])
                if np.array_equal(ids, np.arange(len(ids))):
                    return None, []
            order = np.argsort(ids, kind="stable")
            keys = ids[order]
            _check_unlike(keys, order, table_ids)
            return None, [_kept(values, grow) for values in (ids, keys, order)]

        arrays = self._ranks.once(self._doing, sort).arrays
        if arrays:
            self.original, self._keys, self._order = arrays

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


def _check_unlike(keys: Array, order: I64, table_ids: IdColumn) -> None:
    """Check that ids in ascending order are all different."""
    twice = np.flatnonzero(keys[1:] == keys[:-1])
    if len(twice):
        first, second = order[twice[0]], order[twice[0] + 1]
        name = keys[twice[0]].decode() if keys.dtype.kind == "S" else keys[twice[0]]
        raise GraphDataError(
            f"{table_ids.place(int(second))}: the id {name!s:.80} is there already: {table_ids.place(int(first))}"
        )


class _Numbered(MadeRows):
    """Numbers of ids, which stood in the file of the ids."""

    def __init__(self, numbers: RowArray, ids: IdColumn) -> None:
        super().__init__(lambda rows: rows, np.int64, numbers)
        self._ids = ids.without_text()  # so that its temporary files go

    def place(self, row: int) -> str:
        """File and row."""
        return self._ids.place(row)


@collective("ranks")
def distinct_texts(ranks: NodeRanks, doing: str, columns: Sequence[IdColumn], blanks: bool = False) -> Array:
    """Return the distinct ids of columns as text, ascending, of dtype S; in a mapped file."""

    def own() -> Iterator[Array]:
        for column in columns:
            for values, _, _ in column.texts(blanks, ranks):
                yield values

    return _distinct_of(ranks, doing, own)


def _distinct_of(ranks: NodeRanks, doing: str, own: Callable[[], Iterator[Array]]) -> Array:
    """Return the distinct values among those that all ranks of a node have, ascending, in a mapped file."""
    with ExitStack() as stack:
        with ranks.together(doing):
            distinct = Distinct()
            for values in own():
                distinct.add(values)
            files = [_kept(distinct.sorted(), ranks.growing(stack))]
        runs = [its.arrays[0] for its in ranks.gather(doing, files=files)]
        filled = [run for run in runs if len(run)]
        if len(filled) < 2:
            return (filled or runs)[0]
        return ranks.once(doing, lambda grow: (None, [_kept(_distinct(*filled), grow)])).arrays[0]


def _distinct_numbers(ranks: NodeRanks, doing: str, columns: Sequence[RowArray]) -> tuple[int, I64 | None]:
    """Return how many distinct integers there are, and which, ascending; None if they are 0, 1, ..., n - 1."""
    with ranks.together(doing):
        bounds = [0, -1]
        for chunk in _chunks(columns, ranks):
            bounds = [min(bounds[0], int(chunk.min())), max(bounds[1], int(chunk.max()))]
    every = [its.note for its in ranks.gather(doing, bounds)]
    low, high = min(low for low, _ in every), max(high for _, high in every)
    if low < 0 or high >= sum(map(len, columns)):  # they have gaps
        keys = _distinct_of(ranks, doing, lambda: _chunks(columns, ranks))
        return len(keys), keys
    with ExitStack() as stack:
        with ranks.together(doing):
            is_there = np.zeros(high + 1, bool)
            for chunk in _chunks(columns, ranks):
                is_there[chunk] = True
            files = [_kept(is_there, ranks.growing(stack))] if ranks.count > 1 else []
        for its in ranks.gather(doing, files=files):
            for there in its.arrays:
                is_there |= there
    count = int(np.count_nonzero(is_there))
    if count == len(is_there):
        return count, None
    return count, ranks.once(doing, lambda grow: (None, [_kept(np.flatnonzero(is_there), grow)])).arrays[0]


def _chunks(columns: Sequence[RowArray], ranks: NodeRanks | None = None) -> Iterator[I64]:
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


def _kept(values: Array, grow: Grow) -> GrowingFile:
    file = grow(values.dtype, ())
    file.append(values)
    return file


def typewise(ids: Sequence[I64], counts: Sequence[int]) -> list[I64] | None:
    """Return ids of several types as ids of their own type, each from 0.

    Args:
        ids: for each type int64[count], in any order: type-wise already, or of all types counted through, in any order
            of the types.
        counts: number of ids of each type.

    Returns:
        For each type int64[count]; None if they are neither.
    """
    bases = [int(ids_of_type.min()) if len(ids_of_type) else 0 for ids_of_type in ids]
    typed = [ids_of_type - base for ids_of_type, base in zip(ids, bases, strict=True)]
    for shifted, count in zip(typed, counts, strict=True):
        if not np.array_equal(np.sort(shifted), np.arange(count)):
            return None
    ranges = sorted((base, base + count) for base, count in zip(bases, counts, strict=True) if count)
    through = all(begin == end for (begin, _), (_, end) in zip(ranges, [(0, 0), *ranges], strict=False))
    return typed if through or not any(bases) else None
