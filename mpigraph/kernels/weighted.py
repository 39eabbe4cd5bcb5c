"""Choose in-neighbours with probability proportional to edge weight; see ``kernels/sample.py`` for the passes.

A draw inverts the prefix sums of a row's weights. The sums can be prepared once for all rows (:func:`prefix_sums`), and
then a draw costs a binary search; or they are made for a row when it is drawn from. The draws are the same.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from mpigraph.kernels.prefetch import prefetch
from mpigraph.kernels.rng import mix64, uniform01
from mpigraph.kernels.sample import wanted

__all__ = ["choose_weighted", "count_weighted", "prefix_sums"]

_I64 = npt.NDArray[np.int64]
_Sums = npt.NDArray[Any]
_F64 = npt.NDArray[np.float64]
_AHEAD, _LINES = 4, 128  # nodes between asking for a row's sums and using them; sums asked for at most
_MANY = 64  # draws of a node above which one pass over its edges is faster
_LITTLE = 1e-9  # share of the weight that must be left
_LATE = np.uint64(1) << np.uint64(32)  # numbers of the draws of the pass over the edges


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
        The position of the first edge whose weight is negative, NaN or too large to be added, or -1.
    """
    for row in range(len(indptr) - 1):
        begin, end = indptr[row], indptr[row + 1]
        alive[row], bad = _add_up(weights[begin:end], sums[begin:end])
        if bad >= 0:
            return int(begin + bad)
    return -1


@njit(nogil=True, cache=True)
def _add_up(weights: npt.NDArray[Any], sums: _Sums) -> Any:
    """Fill a row's sums, unless ``sums`` is empty; return how many edges can be drawn and the first bad one or -1."""
    total, drawable = 0.0, 0
    for e in range(len(weights)):
        more = total + np.float64(weights[e])
        if not (weights[e] >= 0 and more < np.inf):
            return drawable, e
        if more > total:
            drawable += 1
        total = more
        if len(sums) > 0:
            sums[e] = total
    return drawable, -1


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
        The position of the first edge whose weight is negative, NaN or too large to be added, or -1.
    """
    nowhere = np.empty(0, np.float64)
    for i in range(len(positions)):
        p = positions[i]
        row = ids[p] - first_id
        begin, end = indptr[row], indptr[row + 1]
        begins[p] = begin
        degrees[p] = end - begin
        if len(prepared) > 0:
            alive[p] = prepared[row]
        else:
            alive[p], bad = _add_up(weights[begin:end], nowhere)
            if bad >= 0:
                return int(begin + bad)
        counts[p] = wanted(alive[p], fanout, replace)
    return -1


@njit(nogil=True, cache=True)
def _first_above(sums: _Sums, x: float) -> Any:
    """The first place whose sum is above x, or the last place whose sum grew.

    A binary search whose steps do not branch: their outcomes cannot be predicted.
    """
    low, size = np.int64(0), len(sums)
    while size > 1:
        half = size >> 1
        low += half * np.int64(sums[low + half - 1] <= x)
        size -= half
    low += np.int64(sums[low] <= x)
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
def _choose_distinct_weighted(
    node_key: np.uint64, begin: int, sums: _Sums, chosen: _I64, starts: _F64, widths: _F64
) -> None:
    """Choose distinct edges one after the other, with probability proportional to weight among those left.

    Each draw inverts the sums of what is left: the intervals of the edges chosen so far, kept in ascending order in
    ``starts`` and ``widths`` (scratch), are skipped. Where so little is left that rounding would matter, and for many
    edges, the rest is chosen in one pass over the edges.
    """
    k = len(chosen)
    total = np.float64(sums[len(sums) - 1])
    left = total
    for j in range(k):
        if k > len(starts) or left < _LITTLE * total:
            _choose_late(node_key, begin, sums, j, chosen)
            return
        x = uniform01(mix64(node_key + np.uint64(j))) * left
        place = 0
        while place < j and x >= starts[place]:
            x += widths[place]
            place += 1
        pick = _first_above(sums, x)
        start = np.float64(sums[pick - 1]) if pick > 0 else 0.0
        if (place > 0 and starts[place - 1] >= start) or (place < j and starts[place] <= start):
            _choose_late(node_key, begin, sums, j, chosen)  # x was rounded into a chosen edge
            return
        for c in range(j, place, -1):
            starts[c] = starts[c - 1]
            widths[c] = widths[c - 1]
        starts[place] = start
        widths[place] = sums[pick] - start
        left -= widths[place]
        chosen[j] = begin + pick


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
    room = np.empty(_MANY, np.float64), np.empty(_MANY, np.float64)
    for i in range(len(positions)):
        p = positions[i]
        begin, degree, out = begins[p], degrees[p], offsets[p]
        k = offsets[p + 1] - out
        if k == 0:
            continue
        chosen = picks[out : out + k]
        if len(prepared) == 0:
            if degree > len(scratch):
                scratch = np.empty(2 * degree, np.float64)
            _add_up(weights[begin : begin + degree], scratch)
            _choose_row(ids[p], begin, scratch[:degree], alive[p], take_all, replace, key, chosen, room)
            continue
        if i + _AHEAD < len(positions):
            later = positions[i + _AHEAD]
            for e in range(begins[later], begins[later] + min(degrees[later], _LINES), 8):
                prefetch(prepared, e)
        sums = prepared[begin : begin + degree]
        _choose_row(ids[p], begin, sums, alive[p], take_all, replace, key, chosen, room)


@njit(nogil=True, cache=True)
def _choose_row(
    node: int,
    begin: int,
    sums: _Sums,
    alive: int,
    take_all: bool,
    replace: bool,
    key: np.uint64,
    chosen: _I64,
    room: tuple[_F64, _F64],
) -> None:
    """Choose the edges of one node.

    A write to the weights may have changed the sums since the edges were counted: what is chosen then is not defined,
    but it is always edges of this node.
    """
    k = len(chosen)
    chosen[:] = begin
    if take_all or (k == alive and not replace):
        before = 0.0
        found = 0
        for t in range(len(sums)):
            if sums[t] > before and found < k:
                chosen[found] = begin + t
                found += 1
            before = np.float64(sums[t])
        return
    node_key = mix64(key ^ mix64(np.uint64(node)))
    if not replace:
        _choose_distinct_weighted(node_key, begin, sums, chosen, room[0], room[1])
        return
    total = np.float64(sums[len(sums) - 1])
    for j in range(k):
        chosen[j] = begin + _first_above(sums, uniform01(mix64(node_key + np.uint64(j))) * total)
