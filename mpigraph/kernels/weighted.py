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
from mpigraph.kernels.rng import LOW32, S32, draw_below, mix64, uniform01

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
        total, num_candidates[row], bad = add_up(weights[begin:end])
        if bad >= 0:
            return int(begin + bad)
        if num_candidates[row] > 0:
            if end - begin > len(scratch[0]):
                scratch = np.empty(2 * (end - begin), np.float64), np.empty(2 * (end - begin), np.int64)
            make_table(weights[begin:end], total, table[begin:end], scratch[0], scratch[1])
    return -1


@njit()
def add_up(weights: Array) -> Any:
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
def make_table(weights: Array, total: float, table: U64, left: F64, order: I64) -> None:
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


@njit(inline="always")
def is_among(edges: Any, count: Any, edge: Any) -> Any:
    """Return whether an edge is one of the first ``count``."""
    is_there = False
    for i in range(count):
        is_there |= edges[i] == edge
    return is_there


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


@njit(inline="always")
def keep_first(times: Any, edges: Any, count: Any, time: Any, edge: Any) -> Any:
    """Put an edge among the ``count`` first arrivals; return how many there are then.

    Edges come in their order. ``times`` (float64[k]) and ``edges`` (int64[k]) are a heap once they are full.
    """
    if count < len(times):
        times[count] = time
        edges[count] = edge
        if count + 1 == len(times):
            _make_heap(times, edges)
        return count + 1
    if time < times[0]:
        times[0] = time
        edges[0] = edge
        _sink(times, edges, 0)
    return count


@njit()
def sort_first(times: F64, edges: I64, count: int) -> None:
    """Sort the first arrivals that :func:`keep_first` kept; of equal ones the first edge comes first."""
    if count < len(times):
        _make_heap(times[:count], edges)
    for last in range(count - 1, 0, -1):
        times[0], times[last] = times[last], times[0]
        edges[0], edges[last] = edges[last], edges[0]
        _sink(times[:last], edges, 0)


@njit()
def _choose_late(node_key: np.uint64, weights: Array, begin: int, known: I64, late: I64) -> None:
    """Choose edges one after the other among those that are not ``known``.

    Each edge gets an exponential arrival time with its weight as rate; the first arrivals are the sample
    (Efraimidis, Spirakis: "Weighted random sampling with a reservoir", IPL 2006).
    """
    times = np.empty(len(late), np.float64)
    count = 0
    for t in range(len(weights)):
        if weights[t] > 0 and not is_among(known, len(known), begin + t):
            time = -np.log(uniform01(mix64(node_key + _LATE + np.uint64(t)))) / np.float64(weights[t])
            count = keep_first(times, late, count, time, begin + t)
    sort_first(times, late, count)


@njit()
def draw_by_weight(node_key: np.uint64, weights: Array, table: U64, begin: int, replace: bool, chosen: I64) -> None:
    """Choose edges of a row with probability proportional to weight.

    Without ``replace`` one comes after the other, among those left. A draw that finds a chosen edge is repeated; a word
    with one bit for each residue modulo 64 shows for most picks that they are new. After too many repetitions, or if
    many edges are to be chosen, one pass over the edges chooses the rest.

    Args:
        node_key: hash of the hop's key and the node's id.
        weights: float [degree].
        table: uint64 [degree], the row's alias table.
        begin: the row's first edge.
        replace: the same edge may be chosen again.
        chosen: int64[k], filled; without ``replace`` k is below the number of weights above 0.
    """
    k = len(chosen)
    if replace:
        for j in range(k):
            chosen[j] = begin + _draw(table, node_key, j)
        return
    num_chosen = 0
    seen = np.uint64(0)
    if k <= _MANY:
        for number in range((1 + _TRIES) * k):
            pick = _draw(table, node_key, number)
            bit = np.uint64(1) << np.uint64(pick & 63)
            if seen & bit and is_among(chosen, num_chosen, begin + pick):
                continue
            seen |= bit
            chosen[num_chosen] = begin + pick
            num_chosen += 1
            if num_chosen == k:
                return
    _choose_late(node_key, weights, begin, chosen[:num_chosen], chosen[num_chosen:])


@njit()
def take_drawable(weights: Array, begin: int, chosen: I64) -> None:
    """Fill ``chosen`` with the edges of weight above 0, at most as many as were counted."""
    count = 0
    for t in range(len(weights)):
        if weights[t] > 0 and count < len(chosen):
            chosen[count] = begin + t
            count += 1
