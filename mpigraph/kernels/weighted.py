"""Choose in-neighbours with probability proportional to edge weight; see ``kernels/sample.py`` for the passes.

A draw inverts the prefix sums of a row's weights. The sums can be prepared once for all rows (:func:`prefix_sums`), and
then a draw costs a binary search; or they are made for a row when it is drawn from. The draws are the same.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from mpigraph.kernels.rng import mix64, uniform01
from mpigraph.kernels.sample import wanted

__all__ = ["choose_weighted", "count_weighted", "prefix_sums"]

_I64 = npt.NDArray[np.int64]
_Sums = npt.NDArray[Any]
_LATE = np.uint64(1) << np.uint64(32)  # numbers of the draws that replace those that met an edge chosen before


@njit(nogil=True, cache=True)
def prefix_sums(indptr: _I64, weights: npt.NDArray[Any], sums: _Sums, alive: npt.NDArray[Any]) -> int:
    """Add up the weights of each row's edges. Local; no communication.

    An edge can be drawn if it makes the sum larger: not if its weight is 0, nor if it is lost in rounding.

    Args:
        indptr: int64[n + 1].
        weights: float or bool [nnz].
        sums: float [nnz], filled: the sum up to and with each edge, within its row.
        alive: int [n], filled: how many edges of each row can be drawn.

    Returns:
        The position of the first edge with a negative or NaN weight, or -1.
    """
    for row in range(len(indptr) - 1):
        total = 0.0
        drawable = 0
        for e in range(indptr[row], indptr[row + 1]):
            if not weights[e] >= 0:
                return e
            more = total + np.float64(weights[e])
            if more > total:
                drawable += 1
            total = more
            sums[e] = total
        alive[row] = drawable
    return -1


@njit(nogil=True, cache=True)
def count_weighted(
    indptr: _I64,
    weights: npt.NDArray[Any],
    prepared: npt.NDArray[Any],
    ids: _I64,
    positions: _I64,
    first_id: int,
    fanout: int,
    replace: bool,
    begins: _I64,
    degrees: _I64,
    alive: _I64,
    counts: _I64,
) -> int:
    """Fill how many neighbours each node will get when edges of weight 0 do not exist. Local; no communication.

    ``weights`` is float or bool [nnz], one for each edge of the host. ``prepared`` is what :func:`prefix_sums` said
    of the rows, or empty: then the edges are looked at here. ``alive`` is int64[frontier], filled at ``positions`` with
    the number of edges that can be drawn. The others are as in :func:`count_uniform`.

    Returns:
        The position of the first edge with a negative or NaN weight, or -1.
    """
    for i in range(len(positions)):
        p = positions[i]
        row = ids[p] - first_id
        begins[p] = indptr[row]
        degrees[p] = indptr[row + 1] - indptr[row]
        if len(prepared) > 0:
            alive[p] = prepared[row]
        else:
            alive[p] = 0
            total = 0.0
            for e in range(indptr[row], indptr[row + 1]):
                if not weights[e] >= 0:
                    return e
                more = total + np.float64(weights[e])
                if more > total:
                    alive[p] += 1
                total = more
        counts[p] = wanted(alive[p], fanout, replace)
    return -1


@njit(nogil=True, cache=True)
def _first_above(sums: _Sums, x: float) -> int:
    """The first place whose sum is above x, or the last place whose sum grew."""
    low, size = 0, len(sums)
    while size > 0:  # the answer is in low .. low + size
        half = size >> 1
        if sums[low + half] > x:
            size = half
        else:
            low += half + 1
            size -= half + 1
    if low == len(sums):  # x was rounded up to the total
        low -= 1
        while low > 0 and not sums[low] > sums[low - 1]:
            low -= 1
    return low


@njit(nogil=True, cache=True)
def _choose_late(node_key: np.uint64, begin: int, sums: _Sums, found: int, chosen: _I64) -> None:
    """Choose the edges that are missing in ``chosen[found:]``, one after the other among those not chosen.

    Each edge gets an exponential arrival time with its weight as rate; the first arrivals are the sample
    (Efraimidis, Spirakis: "Weighted random sampling with a reservoir", IPL 2006).
    """
    first, k = found, len(chosen)
    times = np.empty(k, np.float64)
    for t in range(len(sums)):
        weight = sums[t] - (sums[t - 1] if t > 0 else 0.0)
        if not weight > 0:
            continue
        known = False
        for c in range(first):
            known |= chosen[c] == begin + t
        if known:
            continue
        arrival = -np.log(uniform01(mix64(node_key + _LATE + np.uint64(t)))) / weight
        if found == k and arrival >= times[k - 1]:
            continue
        j = found if found < k else k - 1
        while j > first and times[j - 1] > arrival:
            times[j] = times[j - 1]
            chosen[j] = chosen[j - 1]
            j -= 1
        times[j] = arrival
        chosen[j] = begin + t
        if found < k:
            found += 1


@njit(nogil=True, cache=True)
def _choose_distinct_weighted(node_key: np.uint64, begin: int, sums: _Sums, chosen: _I64) -> None:
    """Choose distinct edges one after the other, with probability proportional to weight among those left.

    A draw by inversion that meets a chosen edge is made again: what is accepted has the right distribution. Where heavy
    edges make too many draws fail, the rest is chosen in one pass over the edges.
    """
    k = len(chosen)
    total = np.float64(sums[len(sums) - 1])
    seen = np.uint64(0)
    found = 0
    for draw in range(4 * k + 8):
        pick = _first_above(sums, uniform01(mix64(node_key + np.uint64(draw))) * total)
        bit = np.uint64(1) << np.uint64(pick & 63)
        known = False
        if seen & bit:
            for c in range(found):
                known |= chosen[c] == begin + pick
        if known:
            continue
        seen |= bit
        chosen[found] = begin + pick
        found += 1
        if found == k:
            return
    _choose_late(node_key, begin, sums, found, chosen)


@njit(nogil=True, cache=True)
def choose_weighted(
    weights: npt.NDArray[Any],
    prepared: _Sums,
    ids: _I64,
    positions: _I64,
    begins: _I64,
    degrees: _I64,
    alive: _I64,
    take_all: bool,
    replace: bool,
    key: np.uint64,
    offsets: _I64,
    picks: _I64,
) -> None:
    """Choose edges of each node with probability proportional to their weight. Local; no communication.

    ``weights`` is float or bool [nnz] (a bool array is a mask), checked by :func:`count_weighted`. ``prepared`` is
    [nnz], filled by :func:`prefix_sums`, or empty: then the sums of a row are made when it is drawn from; the draws are
    the same. ``take_all`` means an unlimited fanout: every edge that can be drawn, once. The others are as in
    :func:`choose_uniform` and :func:`count_weighted`.
    """
    scratch = np.empty(1, np.float64)
    for i in range(len(positions)):
        p = positions[i]
        begin, degree, out = begins[p], degrees[p], offsets[p]
        k = offsets[p + 1] - out
        if k == 0:
            continue
        if len(prepared) == 0:
            if degree > len(scratch):
                scratch = np.empty(2 * degree, np.float64)
            total = 0.0
            for t in range(degree):
                total += np.float64(weights[begin + t])
                scratch[t] = total
        if len(prepared) > 0:
            _choose_row(
                ids[p], begin, prepared[begin : begin + degree], alive[p], take_all, replace, key, out, k, picks
            )
        else:
            _choose_row(ids[p], begin, scratch[:degree], alive[p], take_all, replace, key, out, k, picks)


@njit(nogil=True, cache=True)
def _choose_row(
    node: int,
    begin: int,
    sums: _Sums,
    alive: int,
    take_all: bool,
    replace: bool,
    key: np.uint64,
    out: int,
    k: int,
    picks: _I64,
) -> None:
    """Choose ``k`` edges of one node."""
    if take_all or (k == alive and not replace):
        before = 0.0
        for t in range(len(sums)):
            if sums[t] > before:
                picks[out] = begin + t
                out += 1
            before = np.float64(sums[t])
        return
    node_key = mix64(key ^ mix64(np.uint64(node)))
    if not replace:
        _choose_distinct_weighted(node_key, begin, sums, picks[out : out + k])
        return
    total = np.float64(sums[len(sums) - 1])
    for j in range(k):
        picks[out + j] = begin + _first_above(sums, uniform01(mix64(node_key + np.uint64(j))) * total)
