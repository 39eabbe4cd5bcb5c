"""Remove excluded edges from rows before they are drawn from; see ``kernels/sample.py`` first.

A row of d edges, m of them excluded, is drawn from as a row of d - m edges: the distribution is that of the graph
without the excluded edges. :func:`shorten_rows` comes after the rows were counted, :func:`step_over` after edges were
chosen: it moves each pick over the excluded edges before it. Weights and masks are copied without those of the excluded
edges in between, so that the choosing kernels meet nothing but shorter rows.

Few rows have an excluded edge, and all others stay as they are: a directory of the excluded edges by their high bits
shows for most rows, without a search, that they have none.
"""

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.kernels.cache import njit
from mpigraph.kernels.sample import Candidates, Destinations, num_picks

_BUCKETS = 4  # buckets of the directory for each excluded edge, at most: then most buckets are empty


@njit(nogil=True, cache=True)
def _directory(excluded: I64, shift: int) -> I64:
    """Return where the excluded edges of each bucket of ``2**shift`` edges begin: int64[buckets + 1]."""
    begins = np.zeros((excluded[-1] >> shift) + 2, np.int64)
    for edge in excluded:
        begins[(edge >> shift) + 1] += 1
    for b in range(1, len(begins)):
        begins[b] += begins[b - 1]
    return begins


@njit(nogil=True, cache=True)
def shorten_rows(dst: Destinations, excluded: I64, positions: I64, rows: Candidates, counts: I64) -> None:
    """Find the excluded edges of each node and remove them from its degree and its count.

    ``excluded`` is int64[k], positions in the host's edges, ascending, each once. ``excluded_begin`` and
    ``num_excluded`` of the rows are filled; ``degrees``, and ``counts`` as if all edges are alike, are reduced.
    """
    if len(excluded) == 0:
        for i in range(len(positions)):
            rows.num_excluded[positions[i]] = 0
        return
    shift = 0
    while excluded[-1] >> shift > _BUCKETS * len(excluded):
        shift += 1
    directory = _directory(excluded, shift)
    last = len(directory) - 1
    for i in range(len(positions)):
        p = positions[i]
        begin, end = rows.begins[p], rows.begins[p] + rows.degrees[p]
        # the buckets that the row's edges fall in; linear search in them, since they hold few excluded edges
        first = directory[min(begin >> shift, last)]
        high = directory[min(((end - 1) >> shift) + 1, last)]
        while first < high and excluded[first] < begin:
            first += 1
        behind = first
        while behind < high and excluded[behind] < end:
            behind += 1
        rows.excluded_begin[p] = first
        rows.num_excluded[p] = behind - first
        if behind > first:
            rows.degrees[p] -= behind - first
            counts[p] = num_picks(rows.degrees[p], dst.fanout, dst.replace)


@njit(nogil=True, cache=True)
def recount_weighted(
    dst: Destinations, weights: Array, excluded: I64, positions: I64, rows: Candidates, counts: I64
) -> None:
    """Count, in shortened rows, the edges that can be drawn.

    ``weights`` is float or bool [nnz], one for each edge of the host; ``rows.num_candidates`` and ``counts`` are
    filled. Other arguments are as :func:`shorten_rows` left them.
    """
    for i in range(len(positions)):
        p = positions[i]
        next_excluded = rows.excluded_begin[p]
        behind = next_excluded + rows.num_excluded[p]
        drawable = 0
        # ``degrees`` no longer counts the excluded edges, which still lie between the others
        for e in range(rows.begins[p], rows.begins[p] + rows.degrees[p] + rows.num_excluded[p]):
            if next_excluded < behind and excluded[next_excluded] == e:
                next_excluded += 1
            else:
                drawable += weights[e] > 0
        rows.num_candidates[p] = drawable
        counts[p] = num_picks(drawable, dst.fanout, dst.replace)


@njit(nogil=True, cache=True)
def copy_kept(weights: Array, excluded: I64, positions: I64, rows: Candidates, starts: I64, kept: Array) -> None:
    """Copy the weights of shortened rows, one row after the other.

    ``starts`` is int64[frontier], filled at ``positions`` with the begin of each row in ``kept``, which has a weight
    for each edge left. Other arguments are as in :func:`recount_weighted`.
    """
    at = 0
    for i in range(len(positions)):
        p = positions[i]
        starts[p] = at
        next_excluded = rows.excluded_begin[p]
        behind = next_excluded + rows.num_excluded[p]
        for e in range(rows.begins[p], rows.begins[p] + rows.degrees[p] + rows.num_excluded[p]):
            if next_excluded < behind and excluded[next_excluded] == e:
                next_excluded += 1
            else:
                kept[at] = weights[e]
                at += 1


@njit(nogil=True, cache=True)
def step_over(excluded: I64, positions: I64, starts: I64, rows: Candidates, offsets: I64, picks: I64) -> None:
    """Turn picks in shortened rows into edges of the host.

    ``starts`` is int64[frontier], the begin of each row for the choosing kernel. ``offsets`` and ``picks`` are as in
    :func:`choose_uniform`; a pick is moved by the number of excluded edges before it. Other arguments are as
    :func:`shorten_rows` left them.
    """
    for i in range(len(positions)):
        p = positions[i]
        first = rows.excluded_begin[p]
        n = rows.num_excluded[p]
        if n == 0:
            continue
        for o in range(offsets[p], offsets[p + 1]):
            edge = rows.begins[p] + picks[o] - starts[p]
            low, high = 0, n
            # excluded edge number ``middle`` has ``middle`` others of the row before it, so less them it is where it
            # would be among the kept edges: all those at or before the pick move the pick by one
            while low < high:
                middle = (low + high) >> 1
                if excluded[first + middle] - middle <= edge:
                    low = middle + 1
                else:
                    high = middle
            picks[o] = edge + low
