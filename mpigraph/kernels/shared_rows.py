"""Find the rows of destinations in all relations that share tables, in one pass.

A host has its rows relation after relation. The rows into one node type are listed once more by destination, and there
by relation: a binary search finds those of a destination, however many relations there are.
"""

from typing import Any

import numpy as np

from mpigraph.arrays import I64, U64, Array, Mask
from mpigraph.kernels.cache import njit
from mpigraph.kernels.rng import mix64


@njit(nogil=True, cache=True, inline="always")
def _place_of(row: Any, row_begins: Any) -> Any:
    return np.searchsorted(row_begins, row, side="right") - 1


@njit(nogil=True, cache=True)
def find_rows(
    ids: I64,
    positions: I64,
    first_node: int,
    listed: Array,
    nodes: Array,
    row_begins: I64,
    chosen: Mask,
    first: I64,
    counts: I64,
) -> None:
    """Find the rows of each destination, and count those of chosen relations.

    Args:
        ids: int64[n], destinations.
        positions: int64[p], those that the host holds.
        first_node: global id of the host's first destination.
        listed: int[l], rows into the destinations' type, by destination and relation.
        nodes: int[rows], the destination of each row, counted from the host's first.
        row_begins: int64[relations + 1], the first row of each.
        chosen: bool[relations].
        first: int64[p], filled with the place in ``listed`` of each destination's first row.
        counts: int64[p], filled.
    """
    for i in range(len(positions)):
        node = ids[positions[i]] - first_node
        low, high = 0, len(listed)
        while low < high:
            middle = (low + high) >> 1
            if nodes[listed[middle]] < node:
                low = middle + 1
            else:
                high = middle
        first[i] = low
        counts[i] = 0
        while low < len(listed) and nodes[listed[low]] == node:
            counts[i] += chosen[_place_of(listed[low], row_begins)]
            low += 1


@njit(nogil=True, cache=True)
def list_rows(
    first: I64,
    offsets: I64,
    listed: Array,
    row_begins: I64,
    edge_begins: I64,
    indptr: I64,
    chosen: Mask,
    places: I64,
    rows: I64,
    bounds: I64,
) -> None:
    """List the rows that :func:`find_rows` found.

    Args:
        first: as it was filled.
        offsets: int64[p + 1], prefix sums of the counts.
        listed: as there.
        row_begins: as there.
        edge_begins: int64[relations + 1], the first edge of each relation on the host.
        indptr: int64[rows + relations], relation after relation, the first edges of its rows and their end.
        chosen: as there.
        places: int64[m], filled with the relation of each row.
        rows: int64[m], filled with its number among those of the relation.
        bounds: int64[2 m], filled with the first edge of each row on the host, and the one behind its last.
    """
    for i in range(len(first)):
        at = first[i]
        for j in range(offsets[i], offsets[i + 1]):
            place = _place_of(listed[at], row_begins)
            while not chosen[place]:
                at += 1
                place = _place_of(listed[at], row_begins)
            begin = np.int64(listed[at]) + place
            places[j] = place
            rows[j] = listed[at] - row_begins[place]
            bounds[2 * j] = edge_begins[place] + indptr[begin]
            bounds[2 * j + 1] = edge_begins[place] + indptr[begin + 1]
            at += 1


@njit(nogil=True, cache=True)
def keys_of_rows(key: np.uint64, relations: I64, by_relation: bool, roots: U64, offsets: I64, out: U64) -> None:
    """Fill uint64[m], the key of each row's draws: those that :meth:`.Strategy.key` and trees give.

    Args:
        key: of the hop.
        relations: int64[m], the relation id of each row.
        by_relation: each relation has a key of its own.
        roots: uint64[p], the keys of the destinations' trees; empty without trees.
        offsets: int64[p + 1], the rows of each destination.
        out: uint64[m], filled.
    """
    for i in range(len(offsets) - 1):
        for j in range(offsets[i], offsets[i + 1]):
            word = mix64(key ^ mix64(np.uint64(relations[j]))) if by_relation else key
            out[j] = mix64(roots[i] ^ mix64(word)) if len(roots) else word
