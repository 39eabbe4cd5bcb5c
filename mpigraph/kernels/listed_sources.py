"""Choose the in-edges of nodes whose sources are in a set."""

import numpy as np
from numba import njit

from mpigraph.arrays import I64, Array


@njit(nogil=True, cache=True)
def _list_within(begin: int, end: int, indices: Array, sources: I64, excluded: I64, out: I64) -> int:
    """Return how many of the edges ``begin .. end - 1`` are chosen; list them in ``out``, if it has a length."""
    count = low = 0
    for e in range(begin, end):
        low += np.searchsorted(sources[low:], indices[e])  # the sources of a row rise
        if low == len(sources):
            break
        if sources[low] != indices[e]:
            continue
        at = np.searchsorted(excluded, e)
        if at < len(excluded) and excluded[at] == e:
            continue
        if len(out):
            out[count] = e
        count += 1
    return count


@njit(nogil=True, cache=True)
def count_within(
    ids: I64, indptr: I64, first_id: int, indices: Array, sources: I64, excluded: I64, positions: I64, counts: I64
) -> None:
    """Count the edges of each node.

    Args:
        ids: int64[n], destinations.
        indptr: int64[rows + 1], CSC offsets of the host's rows.
        first_id: global id of row 0.
        indices: int32 or int64 [nnz], global source ids, rising inside a row.
        sources: int64[m], ascending: the sources of the edges to choose.
        excluded: int64[k], edges of the host not to choose, ascending.
        positions: int64[p], the destinations that the host holds.
        counts: int64[n], filled at ``positions``.
    """
    for i in range(len(positions)):
        row = ids[positions[i]] - first_id
        counts[positions[i]] = _list_within(indptr[row], indptr[row + 1], indices, sources, excluded, counts[:0])


@njit(nogil=True, cache=True)
def choose_within(
    ids: I64,
    indptr: I64,
    first_id: int,
    indices: Array,
    sources: I64,
    excluded: I64,
    positions: I64,
    offsets: I64,
    picks: I64,
) -> None:
    """Fill ``picks`` (int64[offsets[-1]]) with the edges that :func:`count_within` counts, from ``offsets`` on."""
    for i in range(len(positions)):
        p = positions[i]
        row = ids[p] - first_id
        _list_within(indptr[row], indptr[row + 1], indices, sources, excluded, picks[offsets[p] : offsets[p + 1]])
