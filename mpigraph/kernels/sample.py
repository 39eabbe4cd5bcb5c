"""Choose in-neighbours of frontier nodes from CSC arrays.

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

from mpigraph.arrays import I64, U64, Array
from mpigraph.kernels.cache import njit
from mpigraph.kernels.prefetch_hint import prefetch
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


@njit(nogil=True, cache=True, inline="always")
def num_picks(num_candidates: Any, fanout: Any, replace: Any) -> Any:
    """Return how many neighbours a node with ``num_candidates`` edges gets."""
    if fanout < 0 or num_candidates == 0 or (not replace and num_candidates < fanout):
        return num_candidates
    return fanout


@njit(nogil=True, cache=True, inline="always")
def key_of(dst: Any, p: Any) -> Any:
    """Return the key that the draws of the node at position ``p`` hash together with their numbers."""
    key = dst.keys[p] if len(dst.keys) > 1 else dst.keys[0]
    return mix64(key ^ mix64(np.uint64(dst.ids[p])))


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
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
