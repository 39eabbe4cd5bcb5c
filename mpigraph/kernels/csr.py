"""Group, check and search adjacency arrays.

Plain loops over arrays; the caller allocates most outputs. All sorts are stable: edges of equal key keep their order.
"""

from typing import Any

import numpy as np

from mpigraph.arrays import I64, U64, Array, Mask
from mpigraph.kernels.cache import njit
from mpigraph.kernels.intrinsics import prefetch
from mpigraph.kernels.rng import mix64


@njit()
def count_keys(keys: Array, base: int, counts: Array) -> None:
    """Add the number of occurrences of each key.

    keys: int64[m].  base: added to each key.  counts: int64[n], increased here.
    """
    for i in range(len(keys)):
        counts[base + keys[i]] += 1


@njit()
def by_key(keys: Array, num_keys: int) -> tuple[I64, I64]:
    """Group items by their keys, int32 or int64 [m] in ``[0, num_keys)``.

    Returns:
        The bounds of each key's items, int64[num_keys + 1], in all items, int64[m], those of a key ascending.
    """
    bounds = np.zeros(num_keys + 1, np.int64)
    count_keys(keys, 1, bounds)
    for key in range(num_keys):
        bounds[key + 1] += bounds[key]
    items, fill = np.empty(len(keys), np.int64), bounds[:-1].copy()
    for i in range(len(keys)):
        items[fill[keys[i]]] = i
        fill[keys[i]] += 1
    return bounds, items


@njit(inline="always")
def first_not_below(values: Any, begin: Any, end: Any, bound: Any) -> Any:
    """Return the first position of ``begin .. end - 1`` whose value, of ascending ones, is at least ``bound``; or
    ``end``.
    """
    while begin < end:
        middle = (begin + end) >> 1
        if values[middle] < bound:
            begin = middle + 1
        else:
            end = middle
    return begin


_AHEAD = 8  # look-ups between the prefetch of a row's bounds, that of its middle, and the search


@njit()
def find_in_rows(
    indptr: I64,
    indices: Array,
    first_id: int,
    src: I64,
    dst: I64,
    positions: I64,
    exists: Mask,
) -> None:
    """Fill whether edges exist, by binary search in the in-edges of their destinations.

    Args:
        indptr: int64[n + 1], CSC offsets of the host's rows.
        indices: int32 or int64 [nnz], global source ids, ascending in each row.
        first_id: global id of row 0.
        src: int64[queries], global ids.
        dst: int64[queries], global ids.
        positions: int64[m], the queries whose destination this host holds.
        exists: bool[queries], filled at ``positions``.
    """
    n = len(positions)
    for i in range(n):
        if i + 2 * _AHEAD < n:
            prefetch(indptr, dst[positions[i + 2 * _AHEAD]] - first_id)
        if i + _AHEAD < n:
            later = dst[positions[i + _AHEAD]] - first_id
            prefetch(indices, (indptr[later] + indptr[later + 1]) >> 1)  # where the binary search begins
        p = positions[i]
        row = dst[p] - first_id
        end = indptr[row + 1]
        at = first_not_below(indices, indptr[row], end, src[p])
        exists[p] = at < end and indices[at] == src[p]


@njit()
def bad_source(indptr: I64, indices: Array, num_nodes: int) -> int:
    """Return the first position whose source does not exist, or is smaller than the one before it in its row; or -1.

    indptr: int64[n + 1], from 0, never falling, to m.  indices: int32 or int64[m].  num_nodes: of the sources' type.
    """
    for row in range(len(indptr) - 1):
        least = np.int64(0)
        for i in range(indptr[row], indptr[row + 1]):
            source = np.int64(indices[i])
            if source < least or source >= num_nodes:
                return i
            least = source
    return -1


# Find the rows of destinations in all relations of few edges, in one pass.
#
# A host has its rows relation after relation. The rows into one node type are listed once more by destination, and
# there by relation: a binary search finds those of a destination, however many relations there are.


@njit(inline="always")
def _relation_of(row: Any, row_begins: Any) -> Any:
    return np.searchsorted(row_begins, row, side="right") - 1


@njit()
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
            counts[i] += chosen[_relation_of(listed[low], row_begins)]
            low += 1


@njit()
def list_rows(
    first: I64,
    offsets: I64,
    listed: Array,
    row_begins: I64,
    edge_begins: I64,
    indptr_begins: I64,
    indptr: I64,
    chosen: Mask,
    relations: I64,
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
        indptr_begins: int64[relations + 1], where the entries of each relation begin in ``indptr``.
        indptr: int64[entries], the first edge of each row, counted from the relation's first, and the relations' ends.
        chosen: as there.
        relations: int64[m], filled with the relation of each row.
        rows: int64[m], filled with its number among those of the relation.
        bounds: int64[2 m], filled with the first edge of each row on the host, and the one behind its last.
    """
    for i in range(len(first)):
        at = first[i]
        for j in range(offsets[i], offsets[i + 1]):
            relation = _relation_of(listed[at], row_begins)
            while not chosen[relation]:
                at += 1
                relation = _relation_of(listed[at], row_begins)
            relations[j] = relation
            rows[j] = listed[at] - row_begins[relation]
            begin = indptr_begins[relation] + rows[j]
            bounds[2 * j] = edge_begins[relation] + indptr[begin]
            bounds[2 * j + 1] = edge_begins[relation] + indptr[begin + 1]
            at += 1


@njit()
def keys_of_rows(key: np.uint64, relations: I64, by_relation: bool, roots: U64, at: I64, out: U64) -> None:
    """Fill uint64[m], the key of each row's draws.

    Args:
        key: of the hop.
        relations: int64[m], the relation id of each row; int64[1] if all rows have the same.
        by_relation: each relation has a key of its own.
        roots: uint64[n], the keys of the destinations' trees; empty without trees.
        at: int64[m], the position of each row's destination in ``roots``.
        out: uint64[m], filled.
    """
    before, word, mixed = np.int64(-1), key, mix64(key)
    for j in range(len(out)):
        relation = relations[min(j, len(relations) - 1)]
        if by_relation and relation != before:
            before, word = relation, mix64(key ^ mix64(np.uint64(relation)))
            mixed = mix64(word)
        out[j] = mix64(roots[at[j]] ^ mixed) if len(roots) else word
