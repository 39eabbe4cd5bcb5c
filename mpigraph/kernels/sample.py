"""Choose in-neighbours from CSC arrays: all alike, or those whose mask is set, without excluded edges.

Plain functions on arrays: no MPI, no objects, no hidden random state. Three passes, each a loop whose memory accesses
do not wait for each other: ``count_*`` looks up the rows and returns how many neighbours each node will get, the caller
makes prefix sums, ``choose_*`` picks edges, :func:`copy_neighbours` follows them. A kernel is called once per host
whose topology this process can load; ``positions`` (int64[m], ascending) says which nodes of the frontier that host
holds, so that the calls of several hosts, or of several threads on slices of ``positions``, fill one output.

The draw for a node depends on ``(key, node id, number of the draw)`` alone, so the frontiers of several minibatches can
be one here, each with its own key.

All kernels that count and choose have these parameters::

    dst         the frontier
    indptr      int64[n + 1], CSC offsets of the host's rows
    first_id    global id of row 0
    positions   int64[m], see above
    rows        filled by the kernel that counts, read by the one that chooses
    counts      int64[frontier], filled with the number of neighbours of each node
    offsets     int64[frontier + 1], prefix sums of the counts
    picks       int64[offsets[-1]], filled with positions in the host's edges
"""

from typing import Any, NamedTuple

import numpy as np

from mpigraph.arrays import I64, U32, U64, Array, Mask
from mpigraph.kernels.cache import njit
from mpigraph.kernels.intrinsics import prefetch
from mpigraph.kernels.rng import draw_below, mix64

_NODES_AHEAD, _EDGES_AHEAD = 16, 32  # between a prefetch and its use
_FLOYD_MAX = 64  # above so many draws Floyd's membership test, quadratic in them, is slower than a pass over the edges


class Destinations(NamedTuple):
    """The frontier, and how its nodes draw.

    Attributes:
        ids: int64[frontier], global ids.
        fanout: most neighbours of a node; negative means all.
        replace: with replacement a node with any candidate gets exactly ``fanout``.
        keys: uint64[frontier], hash of everything a node's draw depends on except the node; or uint64[1], for all.
    """

    ids: I64
    fanout: int
    replace: bool
    keys: U64


class Candidates(NamedTuple):
    """The edges that each node of the frontier draws from, in the host that holds the node.

    The kernels fill these arrays at the ``positions`` that they are given. The last three may be empty: those of
    excluded edges where no edge is excluded, the last where all edges are alike.

    Attributes:
        begins: int64[frontier], the node's first edge, counted from the host's first one.
        degrees: int64[frontier], how many edges there are, without the excluded ones.
        excluded_begin: int64[frontier], begin of the node's excluded edges among those of its host.
        num_excluded: int64[frontier], their number.
        num_candidates: int64[frontier], how many of the edges can be drawn: those of weight above 0.
    """

    begins: I64
    degrees: I64
    excluded_begin: I64
    num_excluded: I64
    num_candidates: I64


@njit(inline="always")
def num_picks(num_candidates: Any, fanout: Any, replace: Any) -> Any:
    """Return how many neighbours a node with ``num_candidates`` edges gets."""
    if fanout < 0 or num_candidates == 0 or (not replace and num_candidates < fanout):
        return num_candidates
    return fanout


@njit(inline="always")
def key_of(dst: Any, p: Any) -> Any:
    """Return the key that the draws of the node at position ``p`` hash together with their numbers."""
    key = dst.keys[p] if len(dst.keys) > 1 else dst.keys[0]
    return mix64(key ^ mix64(np.uint64(dst.ids[p])))


@njit()
def count_uniform(dst: Destinations, indptr: I64, first_id: int, positions: I64, rows: Candidates, counts: I64) -> None:
    """Fill ``begins`` and ``degrees`` of the rows, and how many neighbours each node will get."""
    n = len(positions)
    for i in range(n):
        if i + _NODES_AHEAD < n:
            prefetch(indptr, dst.ids[positions[i + _NODES_AHEAD]] - first_id)
        p = positions[i]
        row = dst.ids[p] - first_id
        begin = indptr[row]
        degree = indptr[row + 1] - begin
        rows.begins[p] = begin
        rows.degrees[p] = degree
        counts[p] = num_picks(degree, dst.fanout, dst.replace)


@njit()
def choose_distinct(node_key: np.uint64, begin: int, degree: int, chosen: I64) -> None:
    """Choose ``len(chosen)`` distinct edges of ``begin .. begin + degree - 1``, each subset equally likely.

    Few: Floyd's algorithm (Bentley, Floyd: "A sample of brilliance", CACM 1987); a word with one bit for each residue
    modulo 64 shows for most picks that they are new. Many: selection sampling (Knuth, TAOCP vol. 2, 3.4.2, algorithm
    S).

    Args:
        node_key: hash of the hop's key and the node's id.
        begin: the first edge.
        degree: number of edges, at least ``len(chosen)``.
        chosen: int64[k], filled.
    """
    k = len(chosen)
    if k > _FLOYD_MAX:
        count = 0
        for t in range(degree):  # edge t is taken with probability (still missing) / (still to come)
            if draw_below(mix64(node_key + np.uint64(t)), degree - t) < k - count:
                chosen[count] = begin + t
                count += 1
                if count == k:
                    return
    seen = np.uint64(0)
    if degree <= 64:  # the word has a bit for each edge
        for j in range(k):
            last = degree - k + j
            drawn = draw_below(mix64(node_key + np.uint64(j)), last + 1)
            drawn = last if (seen >> np.uint64(drawn)) & np.uint64(1) else drawn
            seen |= np.uint64(1) << np.uint64(drawn)
            chosen[j] = begin + drawn
        return
    for j in range(k):
        top = degree - k + j
        pick = draw_below(mix64(node_key + np.uint64(j)), top + 1)
        bit = np.uint64(1) << np.uint64(pick & 63)
        if seen & bit:
            for c in range(j):
                if chosen[c] == begin + pick:
                    pick = top  # Floyd's step: ``top`` was never in range before, so it is new
                    bit = np.uint64(1) << np.uint64(pick & 63)
                    break
        seen |= bit
        chosen[j] = begin + pick


@njit()
def choose_uniform(dst: Destinations, positions: I64, rows: Candidates, offsets: I64, picks: I64) -> None:
    """Choose edges of each node, each with equal probability."""
    replace = dst.replace and dst.fanout >= 0  # an unlimited fanout takes each edge once
    for i in range(len(positions)):
        p = positions[i]
        begin = rows.begins[p]
        degree = rows.degrees[p]
        out = offsets[p]
        k = offsets[p + 1] - out
        if k == degree and not replace:
            for j in range(k):
                picks[out + j] = begin + j
            continue
        node_key = key_of(dst, p)
        if replace:
            for j in range(k):
                picks[out + j] = begin + draw_below(mix64(node_key + np.uint64(j)), degree)
        else:
            choose_distinct(node_key, begin, degree, picks[out : out + k])


@njit()
def copy_neighbours(indices: Array, positions: I64, offsets: I64, first_edge: int, picks: I64, out_src: Array) -> None:
    """Follow chosen edges to their sources, and turn the choices into global edge ids.

    Args:
        indices: int32 or int64 [nnz], global source ids.
        positions: int64[m], as above.
        offsets: int64[frontier + 1], as above.
        first_edge: global edge id of ``indices[0]``.
        picks: int64[offsets[-1]], positions in ``indices``; ``first_edge`` is added.
        out_src: [offsets[-1]], filled with global source ids.
    """
    n = len(positions)
    i = 0
    while i < n:
        begin, end = offsets[positions[i]], offsets[positions[i] + 1]
        i += 1
        while i < n and offsets[positions[i]] == end:  # one long loop overlaps more cache misses than many short ones
            end = offsets[positions[i] + 1]
            i += 1
        for o in range(begin, end):
            if o + _EDGES_AHEAD < end:
                prefetch(indices, picks[o + _EDGES_AHEAD])
            out_src[o] = indices[picks[o]]
            picks[o] += first_edge


# Choose in-neighbours uniformly among the edges whose mask is set.
#
# The allowed edges can be listed once for all rows (:func:`list_allowed`), or row by row at the draw. A draw is that of
# :func:`choose_uniform` in the list.

_AHEAD = 4  # nodes between the prefetch of a row's list and its use
_LINES = 128  # most entries of a list that are prefetched, 16 in a cache line


@njit()
def list_allowed(indptr: I64, mask: Mask, table: U32, num_candidates: Array) -> int:
    """List the edges of each row whose mask is set.

    Args:
        indptr: int64[n + 1].
        mask: bool [nnz].
        table: uint32 [nnz]; the first ``num_candidates[row]`` entries of a row are filled with places in the row.
        num_candidates: int [n], filled.

    Returns:
        -1: no value of a mask is bad (:func:`alias_tables` can find one).
    """
    for row in range(len(indptr) - 1):
        begin, end = indptr[row], indptr[row + 1]
        num_candidates[row] = _list_row(mask[begin:end], table[begin:end])
    return -1


@njit()
def _list_row(mask: Mask, table: U32) -> Any:
    """Fill the front of ``table`` (uint32[degree]) with the places in the row whose mask is set; return how many."""
    count = 0
    for t in range(len(mask)):
        if mask[t]:
            table[count] = t
            count += 1
    return count


@njit()
def choose_masked(
    dst: Destinations, mask: Mask, prepared: U32, positions: I64, rows: Candidates, offsets: I64, picks: I64
) -> None:
    """Choose among the edges of each node whose mask is set.

    ``prepared`` is [nnz], filled by :func:`list_allowed`, or empty: then a row is listed when it is drawn from; the
    draws are the same. The others are as in :func:`choose_weighted`. A write to the mask may have changed it since the
    edges were counted: the choice then is undefined, but only ever among the edges of the node.
    """
    scratch = np.zeros(1, np.uint32)
    for i in range(len(positions)):
        p = positions[i]
        begin = rows.begins[p]
        degree = rows.degrees[p]
        out = offsets[p]
        k = offsets[p + 1] - out
        if len(prepared) > 0 and i + _AHEAD < len(positions):
            later = positions[i + _AHEAD]
            for e in range(rows.begins[later], rows.begins[later] + min(rows.degrees[later], _LINES), 16):
                prefetch(prepared, e)
        if k == 0:
            continue
        if len(prepared) > 0:
            table = prepared[begin : begin + degree]
        else:
            if degree > len(scratch):
                scratch = np.zeros(2 * degree, np.uint32)
            table = scratch[:degree]
            table[:] = 0  # if the mask changed since the count, entries behind the list must be edges of the row too
            _list_row(mask[begin : begin + degree], table)
        chosen = picks[out : out + k]
        num_candidates = rows.num_candidates[p]
        if dst.fanout < 0 or (k == num_candidates and not dst.replace):
            for j in range(k):
                chosen[j] = begin + np.int64(table[j])
            continue
        node_key = key_of(dst, p)
        if dst.replace:
            for j in range(k):
                chosen[j] = begin + np.int64(table[draw_below(mix64(node_key + np.uint64(j)), num_candidates)])
        else:
            choose_distinct(node_key, 0, num_candidates, chosen)  # places in the list, replaced by edges in place
            for j in range(k):
                chosen[j] = begin + np.int64(table[chosen[j]])


# Remove excluded edges from rows before they are drawn from.
#
# A row of d edges, m of them excluded, is drawn from as a row of d - m edges: the distribution is that of the graph
# without the excluded edges. :func:`shorten_rows` comes after the rows were counted, :func:`step_over` after edges were
# chosen: it moves each pick over the excluded edges before it. Weights and masks are copied without those of the
# excluded edges in between, so that the choosing kernels meet nothing but shorter rows.
#
# Few rows have an excluded edge, and all others stay as they are: a directory of the excluded edges by their high bits
# shows for most rows, without a search, that they have none.

_BUCKETS = 4  # buckets of the directory for each excluded edge, at most: then most buckets are empty


@njit()
def _directory(excluded: I64, shift: int) -> I64:
    """Return where the excluded edges of each bucket of ``2**shift`` edges begin: int64[buckets + 1]."""
    begins = np.zeros((excluded[-1] >> shift) + 2, np.int64)
    for edge in excluded:
        begins[(edge >> shift) + 1] += 1
    for b in range(1, len(begins)):
        begins[b] += begins[b - 1]
    return begins


@njit()
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


@njit()
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


@njit()
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


@njit()
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
