"""Choose in-neighbours of local rows from CSC arrays.

Plain functions on arrays: no MPI, no objects, no hidden random state. A kernel is called once per host whose topology
this process can load; ``positions`` says where in the caller's frontier each row stands, so that the calls of several
hosts fill one output. Two passes: ``count_*`` fills the number of neighbours of each frontier position, the caller
makes prefix sums, ``sample_*`` fills the neighbours.

The draw for a node depends on ``(key, node id, number of the draw)`` alone.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from mpigraph.kernels.rng import draw_below, mix64, uniform01

__all__ = ["count_uniform", "count_weighted", "sample_uniform", "sample_weighted"]

_I64 = npt.NDArray[np.int64]
_FLOYD_MAX = 64  # above this many draws Floyd's quadratic membership test loses to one pass over the list


@njit(nogil=True, cache=True)
def count_uniform(indptr: _I64, rows: _I64, positions: _I64, fanout: int, replace: bool, out_counts: _I64) -> None:
    """Fill how many neighbours each row will get. Local; no communication.

    Args:
        indptr: int64[n + 1], CSC offsets of the host's rows.
        rows: int64[m], rows of this host asked for.
        positions: int64[m], their positions in the frontier.
        fanout: most neighbours of a row; negative means all.
        replace: with replacement a row with any neighbour gets exactly ``fanout``.
        out_counts: int64[frontier], filled at ``positions``.
    """
    for i in range(len(rows)):
        degree = indptr[rows[i] + 1] - indptr[rows[i]]
        if fanout < 0 or degree == 0 or (not replace and degree < fanout):
            out_counts[positions[i]] = degree
        else:
            out_counts[positions[i]] = fanout


@njit(nogil=True, cache=True)
def count_weighted(
    indptr: _I64,
    weights: npt.NDArray[Any],
    rows: _I64,
    positions: _I64,
    fanout: int,
    replace: bool,
    out_counts: _I64,
) -> int:
    """Fill how many neighbours each row will get when edges of weight 0 do not exist. Local; no communication.

    ``weights`` is float or bool [nnz], one per edge of the host; the others are as in :func:`count_uniform`.

    Returns:
        The position of the first edge with a negative or NaN weight, or -1.
    """
    for i in range(len(rows)):
        alive = 0
        for e in range(indptr[rows[i]], indptr[rows[i] + 1]):
            if not weights[e] >= 0:
                return e
            if weights[e] > 0:
                alive += 1
        if fanout < 0 or alive == 0 or (not replace and alive < fanout):
            out_counts[positions[i]] = alive
        else:
            out_counts[positions[i]] = fanout
    return -1


@njit(nogil=True, cache=True)
def _choose_distinct(node_key: np.uint64, degree: int, k: int, chosen: _I64) -> None:
    """Choose ``k`` distinct numbers below ``degree``, each subset equally likely.

    Small k: Floyd's algorithm (Bentley, Floyd: "A sample of brilliance", CACM 1987). Large k: selection sampling
    (Knuth, TAOCP vol. 2, 3.4.2, algorithm S).
    """
    if k <= _FLOYD_MAX:
        for j in range(k):
            top = degree - k + j
            pick = draw_below(mix64(node_key + np.uint64(j)), top + 1)
            for c in range(j):
                if chosen[c] == pick:
                    pick = top
                    break
            chosen[j] = pick
        return
    found = 0
    for t in range(degree):
        if draw_below(mix64(node_key + np.uint64(t)), degree - t) < k - found:
            chosen[found] = t
            found += 1
            if found == k:
                return


@njit(nogil=True, cache=True)
def sample_uniform(
    indptr: _I64,
    indices: npt.NDArray[Any],
    rows: _I64,
    positions: _I64,
    first_id: int,
    first_eid: int,
    replace: bool,
    key: np.uint64,
    offsets: _I64,
    out_src: npt.NDArray[Any],
    out_eid: _I64,
) -> None:
    """Choose neighbours of each row, each with equal probability. Local; no communication.

    Args:
        indptr: int64[n + 1], CSC offsets of the host's rows.
        indices: int32 or int64 [nnz], global source ids.
        rows: int64[m], rows of this host asked for.
        positions: int64[m], their positions in the frontier.
        first_id: global id of row 0.
        first_eid: global edge id of ``indices[0]``.
        replace: draw with replacement.
        key: hash of everything the draw depends on but the node.
        offsets: int64[frontier + 1], where each frontier position's neighbours go (prefix sums of the counts).
        out_src: [offsets[-1]], filled with global source ids.
        out_eid: int64[offsets[-1]], filled with global edge ids; empty if nobody asked for them.
    """
    chosen = np.empty(1, np.int64)
    want_eids = len(out_eid) > 0
    for i in range(len(rows)):
        begin = indptr[rows[i]]
        degree = indptr[rows[i] + 1] - begin
        out = offsets[positions[i]]
        k = offsets[positions[i] + 1] - out
        if k == 0:
            continue
        if k == degree and not replace:
            for j in range(k):
                out_src[out + j] = indices[begin + j]
                if want_eids:
                    out_eid[out + j] = first_eid + begin + j
            continue
        if k > len(chosen):
            chosen = np.empty(2 * k, np.int64)
        node_key = mix64(key ^ mix64(np.uint64(first_id + rows[i])))
        if replace:
            for j in range(k):
                chosen[j] = draw_below(mix64(node_key + np.uint64(j)), degree)
        else:
            _choose_distinct(node_key, degree, k, chosen)
        for j in range(k):
            out_src[out + j] = indices[begin + chosen[j]]
            if want_eids:
                out_eid[out + j] = first_eid + begin + chosen[j]


@njit(nogil=True, cache=True)
def _choose_weighted_distinct(
    node_key: np.uint64,
    weights: npt.NDArray[Any],
    begin: int,
    degree: int,
    k: int,
    chosen: _I64,
    times: npt.NDArray[np.float64],
) -> None:
    """Choose ``k`` distinct edges, one after the other with probability proportional to weight among those left.

    Each edge gets an exponential arrival time with its weight as rate; the first k arrivals are the sample
    (Efraimidis, Spirakis: "Weighted random sampling with a reservoir", IPL 2006).
    """
    found = 0
    for t in range(degree):
        w = np.float64(weights[begin + t])
        if w <= 0.0:
            continue
        arrival = -np.log(uniform01(mix64(node_key + np.uint64(t)))) / w
        if found == k and arrival >= times[k - 1]:
            continue
        j = found if found < k else k - 1
        while j > 0 and times[j - 1] > arrival:
            times[j] = times[j - 1]
            chosen[j] = chosen[j - 1]
            j -= 1
        times[j] = arrival
        chosen[j] = t
        if found < k:
            found += 1


@njit(nogil=True, cache=True)
def _choose_weighted(
    node_key: np.uint64,
    weights: npt.NDArray[Any],
    begin: int,
    degree: int,
    k: int,
    chosen: _I64,
    sums: npt.NDArray[np.float64],
) -> None:
    """Choose ``k`` edges with replacement by inverting the cumulative weights; never an edge of weight 0."""
    total = 0.0
    for t in range(degree):
        total += np.float64(weights[begin + t])
        sums[t] = total
    for j in range(k):
        x = uniform01(mix64(node_key + np.uint64(j))) * total
        pick = int(np.searchsorted(sums[:degree], x, side="right"))
        if pick >= degree:
            pick = degree - 1
        while not weights[begin + pick] > 0:
            pick -= 1
        chosen[j] = pick


@njit(nogil=True, cache=True)
def sample_weighted(
    indptr: _I64,
    indices: npt.NDArray[Any],
    weights: npt.NDArray[Any],
    rows: _I64,
    positions: _I64,
    first_id: int,
    first_eid: int,
    replace: bool,
    take_all: bool,
    key: np.uint64,
    offsets: _I64,
    out_src: npt.NDArray[Any],
    out_eid: _I64,
) -> None:
    """Choose neighbours of each row with probability proportional to edge weight. Local; no communication.

    ``weights`` is float or bool [nnz] (a bool array is a mask), checked by :func:`count_weighted`; ``take_all`` means
    an unlimited fanout: every edge of positive weight, once. The others are as in :func:`sample_uniform`.
    """
    chosen = np.empty(1, np.int64)
    scratch = np.empty(1, np.float64)
    want_eids = len(out_eid) > 0
    for i in range(len(rows)):
        begin = indptr[rows[i]]
        degree = indptr[rows[i] + 1] - begin
        out = offsets[positions[i]]
        k = offsets[positions[i] + 1] - out
        if k == 0:
            continue
        if max(k, degree) > len(chosen):
            chosen = np.empty(2 * max(k, degree), np.int64)
            scratch = np.empty(2 * max(k, degree), np.float64)
        node_key = mix64(key ^ mix64(np.uint64(first_id + rows[i])))
        if take_all:
            found = 0
            for t in range(degree):
                if weights[begin + t] > 0:
                    chosen[found] = t
                    found += 1
        elif replace:
            _choose_weighted(node_key, weights, begin, degree, k, chosen, scratch)
        else:
            _choose_weighted_distinct(node_key, weights, begin, degree, k, chosen, scratch)
        for j in range(k):
            out_src[out + j] = indices[begin + chosen[j]]
            if want_eids:
                out_eid[out + j] = first_eid + begin + chosen[j]
