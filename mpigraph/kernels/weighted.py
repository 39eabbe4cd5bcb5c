"""Choose in-neighbours with probability proportional to edge weight; see ``kernels/sample.py`` first.

A draw looks into the alias table of the row: one of its slots, each equally likely, and there one of two edges
(Walker: "An efficient method for generating discrete random variables with general distributions", ACM TOMS 1977; built
as in Vose: "A linear algorithm for generating random numbers with a given distribution", IEEE TSE 1991). The tables can
be made once for all rows (:func:`alias_tables`), or row by row at the draw. The draws are the same.
"""

from typing import Any

import numpy as np

from mpigraph.arrays import F64, I64, U64, Array
from mpigraph.kernels.cache import njit
from mpigraph.kernels.intrinsics import prefetch
from mpigraph.kernels.rng import LOW32, S32, draw_below, mix64, uniform01
from mpigraph.kernels.sample import Candidates, Destinations, key_of, num_picks

_AHEAD = 4  # nodes between the prefetch of a row's table and its use
_LINES = 128  # most slots of a table that are prefetched, 8 in a cache line
_MANY = 64  # draws of a node above which one pass over its edges is faster
_TRIES = 3  # repeated draws for each edge to choose, after which that pass is faster too
_LATE = np.uint64(1) << np.uint64(32)  # added to the numbers of the pass's draws, so that none is used twice


@njit()
def alias_tables(indptr: I64, weights: Array, table: U64, num_candidates: Array) -> int:
    """Make the alias table of each row, and count its edges of weight above 0.

    A slot is one word. Its lower half is the place in the row of another edge, its upper half the probability, in units
    of 2**-32, that a draw of this slot keeps the slot's own edge; else it takes the other one. So probabilities are
    exact to 2**-32.

    Args:
        indptr: int64[n + 1].
        weights: float [nnz].
        table: uint64 [nnz], filled.
        num_candidates: int [n], filled: how many edges of each row can be drawn.

    Returns:
        The position of the first edge whose weight is negative, NaN or too large to be added, or -1.
    """
    scratch = np.empty(1, np.float64), np.empty(1, np.int64)
    for row in range(len(indptr) - 1):
        begin, end = indptr[row], indptr[row + 1]
        total, num_candidates[row], bad = _add_up(weights[begin:end])
        if bad >= 0:
            return int(begin + bad)
        if num_candidates[row] > 0:
            if end - begin > len(scratch[0]):
                scratch = np.empty(2 * (end - begin), np.float64), np.empty(2 * (end - begin), np.int64)
            _make_table(weights[begin:end], total, table[begin:end], scratch[0], scratch[1])
    return -1


@njit()
def _add_up(weights: Array) -> Any:
    """Return the sum of a row's weights, how many edges can be drawn, and the first bad one or -1."""
    total = 0.0
    drawable = 0
    for e in range(len(weights)):
        more = total + np.float64(weights[e])
        if not (weights[e] >= 0 and more < np.inf):  # written so that NaN is bad
            return total, drawable, e
        drawable += weights[e] > 0
        total = more
    return total, drawable, -1


@njit(error_model="numpy")
def _make_table(weights: Array, total: float, table: U64, left: F64, order: I64) -> None:
    """Fill the slots of a row whose weights add up to ``total`` > 0.

    ``left`` and ``order`` are scratch of the row's length: the weight of each edge that is not yet in a slot, in units
    of the mean; and a stack of the edges below the mean from the front, one of those above it from the back.
    """
    n = len(weights)
    low, high = 0, n
    heaviest = 0
    for e in range(n):
        left[e] = weights[e] / total * n
        if weights[e] > weights[heaviest]:
            heaviest = e
        if left[e] < 1.0:
            order[low] = e
            low += 1
        else:
            high -= 1
            order[high] = e
    while low > 0 and high < n:  # a light edge fills its slot as far as it can, and a heavy one the rest
        low -= 1
        small, large = order[low], order[high]
        table[small] = (np.uint64(left[small] * 4294967296.0) << S32) | np.uint64(large)
        left[large] -= 1.0 - left[small]
        if left[large] < 1.0:
            high += 1
            order[low] = large
            low += 1
    for i in range(n):  # the rest, whose slots are full up to rounding errors; an edge of weight 0 must get nothing
        if i < low or i >= high:
            e = order[i]
            table[e] = np.uint64(e if weights[e] > 0 else heaviest)


@njit(inline="always")
def _draw(table: U64, node_key: Any, number: Any) -> Any:
    """Return the place in the row of the edge of one draw."""
    h = mix64(node_key + np.uint64(number))
    slot = draw_below(h, len(table))  # by the high half of the hash; the low half is a second, independent draw
    word = table[slot]
    return slot if h & LOW32 < word >> S32 else np.int64(word & LOW32)


@njit()
def count_weighted(
    dst: Destinations,
    indptr: I64,
    first_id: int,
    weights: Array,
    prepared: Array,
    positions: I64,
    rows: Candidates,
    counts: I64,
) -> int:
    """Fill how many neighbours each node will get, as if edges of weight 0 did not exist.

    ``weights`` is float or bool [nnz], one for each edge of the host. ``prepared`` is int [n], how many edges of each
    row can be drawn; or empty: then the edges are counted here. ``begins``, ``degrees`` and ``num_candidates`` of the
    rows are filled. Return the position of the first edge whose weight is negative, NaN or too large to add, or -1.
    """
    for i in range(len(positions)):
        p = positions[i]
        row = dst.ids[p] - first_id
        begin, end = indptr[row], indptr[row + 1]
        rows.begins[p] = begin
        rows.degrees[p] = end - begin
        if len(prepared) > 0:
            rows.num_candidates[p] = prepared[row]
        else:
            _, rows.num_candidates[p], bad = _add_up(weights[begin:end])
            if bad >= 0:
                return int(begin + bad)
        counts[p] = num_picks(rows.num_candidates[p], dst.fanout, dst.replace)
    return -1


@njit()
def _sink(times: F64, edges: I64, node: int) -> None:
    """Move an edge of a binary heap down to its place; the latest arrival is the root, of equal ones the last edge."""
    time = times[node]
    edge = edges[node]
    while 2 * node + 1 < len(times):
        child = 2 * node + 1
        other = min(child + 1, len(times) - 1)
        if times[other] > times[child] or (times[other] == times[child] and edges[other] > edges[child]):
            child = other
        if times[child] < time or (times[child] == time and edges[child] < edge):
            break
        times[node] = times[child]
        edges[node] = edges[child]
        node = child
    times[node] = time
    edges[node] = edge


@njit()
def _make_heap(times: F64, edges: I64) -> None:
    for node in range(len(times) // 2 - 1, -1, -1):
        _sink(times, edges, node)


@njit()
def _choose_late(node_key: np.uint64, begin: int, weights: Array, num_chosen: int, chosen: I64) -> None:
    """Choose the edges missing in ``chosen[num_chosen:]``, one after the other among those not chosen.

    Each edge gets an exponential arrival time with its weight as rate; the first arrivals are the sample
    (Efraimidis, Spirakis: "Weighted random sampling with a reservoir", IPL 2006). A heap keeps them, and sorts them.
    """
    edges = chosen[num_chosen:]
    times = np.empty(len(edges), np.float64)
    count = 0
    for t in range(len(weights)):
        if not weights[t] > 0:
            continue
        known = False
        for c in range(num_chosen):
            known |= chosen[c] == begin + t
        if known:
            continue
        arrival = -np.log(uniform01(mix64(node_key + _LATE + np.uint64(t)))) / np.float64(weights[t])
        if count < len(edges):
            times[count] = arrival
            edges[count] = begin + t
            count += 1
            if count == len(edges):
                _make_heap(times, edges)
        elif arrival < times[0]:
            times[0] = arrival
            edges[0] = begin + t
            _sink(times, edges, 0)
    if count < len(edges):  # the weights changed meanwhile
        _make_heap(times[:count], edges)
    for last in range(count - 1, 0, -1):
        times[0], times[last] = times[last], times[0]
        edges[0], edges[last] = edges[last], edges[0]
        _sink(times[:last], edges, 0)


@njit()
def _choose_distinct_weighted(node_key: np.uint64, begin: int, weights: Array, table: U64, chosen: I64) -> None:
    """Choose distinct edges one after the other, with probability proportional to weight among those left.

    A draw that finds a chosen edge is repeated; a word with one bit for each residue modulo 64 shows for most picks
    that they are new. After too many repetitions, or if many edges are to be chosen, one pass over the edges chooses
    the rest.
    """
    k = len(chosen)
    num_chosen = 0
    seen = np.uint64(0)
    if k <= _MANY:
        for number in range((1 + _TRIES) * k):
            pick = _draw(table, node_key, number)
            bit = np.uint64(1) << np.uint64(pick & 63)
            if seen & bit:
                known = False
                for c in range(num_chosen):
                    known |= chosen[c] == begin + pick
                if known:
                    continue
            seen |= bit
            chosen[num_chosen] = begin + pick
            num_chosen += 1
            if num_chosen == k:
                return
    _choose_late(node_key, begin, weights, num_chosen, chosen)


@njit()
def choose_weighted(
    dst: Destinations, weights: Array, prepared: U64, positions: I64, rows: Candidates, offsets: I64, picks: I64
) -> None:
    """Choose edges of each node with probability proportional to their weight.

    A write to the weights may have changed them since the edges were counted: the choice then is undefined, but only
    ever among the edges of the node. ``weights`` is float [nnz], checked by :func:`count_weighted`. ``prepared`` is
    [nnz], filled by :func:`alias_tables`, or empty: then the table of a row is made when it is drawn from, and the
    draws are the same.
    """
    slots = np.empty(1, np.uint64)
    scratch = np.empty(1, np.float64), np.empty(1, np.int64)
    for i in range(len(positions)):
        p = positions[i]
        begin = rows.begins[p]
        degree = rows.degrees[p]
        out = offsets[p]
        k = offsets[p + 1] - out
        if len(prepared) > 0 and i + _AHEAD < len(positions):
            later = positions[i + _AHEAD]
            for e in range(rows.begins[later], rows.begins[later] + min(rows.degrees[later], _LINES), 8):
                prefetch(prepared, e)
        if k == 0:
            continue
        row = weights[begin : begin + degree]
        chosen = picks[out : out + k]
        chosen[:] = begin  # edges of the node, in case the weights changed and fewer are chosen
        if dst.fanout < 0 or (k == rows.num_candidates[p] and not dst.replace):
            _take_all(row, begin, chosen)
            continue
        if len(prepared) > 0:
            table = prepared[begin : begin + degree]
        else:
            if degree > len(slots):
                slots = np.empty(2 * degree, np.uint64)
                scratch = np.empty(2 * degree, np.float64), np.empty(2 * degree, np.int64)
            table = slots[:degree]
            _make_table(row, _add_up(row)[0], table, scratch[0], scratch[1])
        node_key = key_of(dst, p)
        if not dst.replace:
            _choose_distinct_weighted(node_key, begin, row, table, chosen)
            continue
        for j in range(k):
            chosen[j] = begin + _draw(table, node_key, j)


@njit()
def _take_all(weights: Array, begin: int, chosen: I64) -> None:
    """Fill ``chosen`` with the edges of weight above 0, at most as many as were counted."""
    count = 0
    for t in range(len(weights)):
        if weights[t] > 0 and count < len(chosen):
            chosen[count] = begin + t
            count += 1
