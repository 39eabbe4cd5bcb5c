"""Choose in-neighbours among the edges that are old enough; see ``kernels/sample.py`` first.

The edges of each row lie sorted by time, equal times by their position, with the position beside them. The edges that
a root may see by its time are then a stretch of the row, found by binary search: a sample of it is a sample of a
shorter row, and the newest edges are its end.
"""

from typing import Any

import numpy as np

from mpigraph.arrays import I32, I64, U8, U64
from mpigraph.kernels.cache import njit
from mpigraph.kernels.intrinsics import prefetch
from mpigraph.kernels.rng import draw_below, mix64
from mpigraph.kernels.sample import Candidates, Destinations, choose_distinct, key_of, num_picks

_AHEAD = 8  # nodes between a prefetch and its use
_OLDEST = np.iinfo(np.int64).min


@njit()
def sort_rows(indptr: I64, times: I64, sorted_times: I64, order: I32) -> None:
    """Sort the edges of each row by time, equal ones by position.

    Args:
        indptr: int64[n + 1].
        times: int64[nnz], in the order of the edges.
        sorted_times: int64[nnz], filled, row by row.
        order: int32[nnz], filled: the place in its row of each sorted edge.
    """
    for row in range(len(indptr) - 1):
        begin, end = indptr[row], indptr[row + 1]
        rises = True
        for e in range(begin, end):
            order[e] = e - begin
            rises &= e == begin or times[e - 1] <= times[e]
        if not rises:
            order[begin:end] = np.argsort(times[begin:end], kind="mergesort")
        for e in range(begin, end):
            sorted_times[e] = times[begin + order[e]]


@njit()
def root_keys(key: np.uint64, ids: I64, times: I64, keys: U64) -> None:
    """Fill uint64[n], the key of each tree: a hash of its root, and of the root's time if there are ``times``."""
    for i in range(len(ids)):
        keys[i] = mix64(key ^ mix64(np.uint64(ids[i])))
        if len(times) > 0:
            keys[i] = mix64(keys[i] ^ mix64(np.uint64(times[i])))


@njit(inline="always")
def _first_not_below(times: I64, begin: int, end: int, bound: int) -> int:
    """Return the first of the sorted edges ``begin .. end - 1`` that is not older than ``bound``, or ``end``."""
    while begin < end:
        middle = (begin + end) >> 1
        if times[middle] < bound:
            begin = middle + 1
        else:
            end = middle
    return begin


@njit(inline="always")
def _first_above(times: I64, begin: int, end: int, bound: int) -> int:
    """Return the first of the sorted edges ``begin .. end - 1`` that is newer than ``bound``, or ``end``."""
    while begin < end:
        middle = (begin + end) >> 1
        if times[middle] <= bound:
            begin = middle + 1
        else:
            end = middle
    return begin


@njit(inline="always")
def _is_in(values: I64, begin: int, end: int, value: int) -> bool:
    """Return whether ``value`` is one of the ascending ``values[begin:end]``."""
    at = _first_not_below(values, begin, end, value)
    return at < end and values[at] == value


@njit()
def count_temporal(
    dst: Destinations,
    indptr: I64,
    first_id: int,
    times: I64,
    order: I32,
    until: I64,
    strict: bool,
    window: int,
    allowed: U8,
    excluded: I64,
    positions: I64,
    rows: Candidates,
    counts: I64,
) -> None:
    """Fill the stretch of its sorted row that each node may see, and how many of its edges can and will be drawn.

    ``begins`` and ``degrees`` of the rows are filled with the whole stretch, ``num_candidates`` with the number of its
    edges that can be drawn if not all can.

    The parameters besides those of all kernels::

        times, order    int64[nnz] and int32[nnz], by :func:`sort_rows`
        until           int64[frontier], the time of each node's root, the latest time of an edge
        strict          leave out edges of exactly that time, too
        window          how much older an edge may be; below 0 without limit
        allowed         uint8[nnz], whether each edge of the host may be drawn; empty where all may
        excluded        int64[k], positions in the host's edges, ascending, each once
    """
    chosen = len(allowed) > 0 or len(excluded) > 0
    for i in range(len(positions)):
        if i + 2 * _AHEAD < len(positions):
            prefetch(indptr, dst.ids[positions[i + 2 * _AHEAD]] - first_id)
        if i + _AHEAD < len(positions):
            later = dst.ids[positions[i + _AHEAD]] - first_id
            begin, end = indptr[later], indptr[later + 1]
            for quarter in range(1, 4):  # where the binary search looks first
                prefetch(times, begin + ((quarter * (end - begin)) >> 2))
        p = positions[i]
        row = dst.ids[p] - first_id
        begin, end = indptr[row], indptr[row + 1]
        now = until[p]
        last = _first_not_below(times, begin, end, now) if strict else _first_above(times, begin, end, now)
        first = begin
        if window >= 0 and now >= _OLDEST + window:  # else the window reaches back to before all times
            first = _first_not_below(times, begin, last, now - window)
        rows.begins[p] = first
        rows.degrees[p] = last - first
        drawable = last - first
        if chosen:
            low = _first_not_below(excluded, 0, len(excluded), begin)
            high = _first_not_below(excluded, low, len(excluded), end)
            if len(allowed) > 0 or high > low:
                drawable = 0
                for e in range(first, last):
                    edge = begin + order[e]
                    if len(allowed) > 0 and not allowed[edge]:
                        continue
                    drawable += not _is_in(excluded, low, high, edge)
            rows.num_candidates[p] = drawable
        counts[p] = num_picks(drawable, dst.fanout, dst.replace)


@njit()
def choose_temporal(
    dst: Destinations,
    row_of: I64,
    indptr: I64,
    first_id: int,
    order: I32,
    last: bool,
    allowed: U8,
    excluded: I64,
    positions: I64,
    rows: Candidates,
    offsets: I64,
    picks: I64,
) -> None:
    """Choose edges of each node among those that it may see; if all are taken, oldest first.

    A write to the mask may have changed it since the edges were counted: the choice then is undefined, but only ever
    among the edges that the node may see.

    ``row_of`` is int64[frontier], the row of each node, counted as ``first_id`` says. With ``last`` only the newest
    ``fanout`` edges are drawn from. The others are as in :func:`count_temporal`.
    """
    replace = dst.replace and dst.fanout >= 0
    listed = np.empty(1, np.int64)
    chosen = len(allowed) > 0 or len(excluded) > 0
    for i in range(len(positions) + _AHEAD):
        if i >= _AHEAD:  # the draws of an earlier node
            _unsort(row_of, indptr, first_id, order, positions[i - _AHEAD], offsets, picks)
        if i >= len(positions):
            continue
        p = positions[i]
        prefetch(indptr, row_of[p] - first_id)
        out = picks[offsets[p] : offsets[p + 1]]
        k = len(out)
        if k == 0:
            continue
        first, n = rows.begins[p], rows.degrees[p]
        of_list = chosen and (len(allowed) > 0 or rows.num_candidates[p] < n)
        if of_list:
            if n > len(listed):
                listed = np.empty(2 * n, np.int64)
            begin = indptr[row_of[p] - first_id]
            num_listed = _list_drawable(order, begin, first, n, allowed, excluded, listed)
            of_list = num_listed >= (1 if replace else k)  # else the mask was written meanwhile
            if of_list:
                first, n = 0, num_listed
        if last and dst.fanout >= 0 and n > dst.fanout:
            first += n - dst.fanout
            n = dst.fanout
        if k == n and not replace:
            for j in range(k):
                out[j] = first + j
        elif replace:
            node_key = key_of(dst, p)
            for j in range(k):
                out[j] = first + draw_below(mix64(node_key + np.uint64(j)), n)
        else:
            choose_distinct(key_of(dst, p), first, n, out)
        if of_list:
            for j in range(k):
                out[j] = listed[out[j]]
        for j in range(k):
            prefetch(order, out[j])


@njit(inline="always")
def _unsort(row_of: Any, indptr: Any, first_id: Any, order: Any, p: Any, offsets: Any, picks: Any) -> None:
    """Turn places among the sorted edges of a node into its edges."""
    begin = indptr[row_of[p] - first_id]
    for o in range(np.uint64(offsets[p]), np.uint64(offsets[p + 1])):  # unsigned indices are not tested for being < 0
        picks[o] = begin + order[np.uint64(picks[o])]


@njit()
def _list_drawable(order: I32, begin: int, first: int, n: int, allowed: U8, excluded: I64, listed: I64) -> int:
    """List the sorted edges of a stretch that can be drawn; return their number."""
    count = 0
    low = _first_not_below(excluded, 0, len(excluded), begin)
    for e in range(first, first + n):
        edge = begin + order[e]
        if len(allowed) > 0 and not allowed[edge]:
            continue
        if not _is_in(excluded, low, len(excluded), edge):
            listed[count] = e
            count += 1
    return count
