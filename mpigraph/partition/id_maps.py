"""Number ids that are not 0, 1, ..., n - 1: in their order, integers by value and strings by their UTF-8 bytes.

The distinct ids are collected from chunks, sorted, and kept in a mapped temporary file; the number of an id is its
position there. One process.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.errors import GraphDataError
from mpigraph.partition.chunks import GrowingFile
from mpigraph.partition.row_arrays import MadeRows, RowArray, place_of, release
from mpigraph.partition.source import EDGES_PER_CHUNK

__all__ = ["Distinct", "distinct_numbers", "kept_keys", "numbers_of", "typewise"]

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


def distinct_numbers(columns: Sequence[RowArray]) -> tuple[int, I64 | None]:
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


def kept_keys(keys: Array, folder: Path | None) -> Array:
    """Return the same ids, in a mapped temporary file."""
    with GrowingFile(keys.dtype, (), folder) as file:
        file.append(keys)
        return file.finish()


def numbers_of(ids: RowArray, keys: Array) -> RowArray:
    """Return the numbers of integer ids, all of which are in ``keys``, made when they are asked for."""

    def find(chunk: Array) -> I64:
        return np.asarray(np.searchsorted(keys, chunk.astype(np.int64)), np.int64)

    return MadeRows(find, np.int64, ids)


def _chunks(columns: Sequence[RowArray]) -> Iterator[I64]:
    for column in columns:
        for first in range(0, len(column), EDGES_PER_CHUNK):
            chunk = column[first : first + EDGES_PER_CHUNK]
            if chunk.dtype == np.uint64 and chunk.max() > _LARGEST:
                row = int(np.argmax(chunk > _LARGEST))
                raise GraphDataError(f"{place_of(column, first + row)}: id {chunk[row]} is larger than {_LARGEST}")
            yield chunk.astype(np.int64)
        release(column)


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
