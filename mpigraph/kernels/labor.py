"""Choose in-neighbours by numbers of the sources that all destinations share; see ``kernels/sample.py`` first.

Balin, Catalyurek: "Layer-Neighbor Sampling - Defusing Neighborhood Explosion in GNNs", NeurIPS 2023, in the form with
exact fanouts (sequential Poisson sampling, GraphBolt's ``LayerNeighborSampler``). Each source has a number, a hash of
the key and its id, and each destination takes the sources with the smallest ones. Destinations with common neighbours
agree on whom to take, so the union is smaller.

A number has 32 bits: the mixer is one to one below 2**32 (Wellons: "Prospecting for hash functions", 2018, lowbias32,
with half of the key before and half of it between the multiplications), and its loop compiles to vector instructions.
Of parallel edges, which lie next to each other, each has a number of its own: the number of the source, its hash, the
hash of that, and so on.
"""

from typing import Any

import numpy as np

from mpigraph.arrays import I64, U32, U64, Array
from mpigraph.kernels.cache import njit
from mpigraph.kernels.intrinsics import prefetch
from mpigraph.kernels.rng import LOW32, S32, mix64
from mpigraph.kernels.sample import Candidates, Destinations

_M1, _M2 = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
_S15, _S16 = np.uint32(15), np.uint32(16)
_PHASE_LOW, _PHASE_HIGH = np.uint32(0x9E3779B9), np.uint32(0x85EBCA6B)  # the key of the nodes' phases
_PARALLEL = np.uint32(0x5BD1E995)  # mixed in from one parallel edge to the next
_AHEAD = 16  # nodes between the prefetch of a list and its use
_LINES = 3  # cache lines of a list that are prefetched
_CHUNK = 2048  # sources whose numbers are computed at once: they stay in the first cache
_FINE = 2.0**-55  # a unit of arrivals in which all are finite, however small the weights
_MANY = 128  # arrivals to keep, above which all are sorted once
_FEW = 24  # candidates too many, above which half of the range is dropped at once


@njit(inline="always")
def _mix32(x: Any, between: Any) -> Any:
    x = np.uint32(x ^ (x >> _S16))
    x = np.uint32(x * _M1)
    x = np.uint32(x ^ (x >> _S15) ^ between)
    x = np.uint32(x * _M2)
    return np.uint32(x ^ (x >> _S16))


@njit(inline="always")
def _number(source: Any, wide: Any, low: Any, high: Any) -> Any:
    """Return the number of a source; ids from 2**32 on (only if ``wide``) fold their upper half into the key."""
    x = np.uint32(np.uint32(source & LOW32) ^ low)
    if wide:
        upper = np.uint32(np.uint32(source >> S32) * np.uint32(high | np.uint32(1)))
        x = np.uint32(x ^ _mix32(upper, np.uint32(0)))
    return _mix32(x, high)


@njit()
def source_numbers(sources: Array, key: np.uint64, period: int, phase: int, numbers: U32) -> None:
    """Compute the numbers of some sources.

    With a ``period`` above 1 a number lives for so many steps, and each source renews its own at its own phase, so that
    one source in ``period`` is renewed at each step.

    Args:
        sources: int32 or int64 [n], ids.
        key: the key of the numbers; ``key + 1`` is that of renewed ones.
        period: steps that a number lives.
        phase: the step within the period, below it.
        numbers: uint32[n], filled.
    """
    wide = sources.itemsize > 4
    first, second = mix64(key), mix64(key + np.uint64(1))
    low, high = np.uint32(first & LOW32), np.uint32(first >> S32)
    if period <= 1:
        for j in range(len(sources)):
            numbers[j] = _number(np.uint64(sources[j]), wide, low, high)
        return
    next_low, next_high = np.uint32(second & LOW32), np.uint32(second >> S32)
    for j in range(len(sources)):
        source = np.uint64(sources[j])
        of_phase = np.uint64(_number(source, wide, _PHASE_LOW, _PHASE_HIGH))
        renewed = np.int64((of_phase * np.uint64(period)) >> S32) + phase >= period
        numbers[j] = _number(source, wide, next_low if renewed else low, next_high if renewed else high)


@njit()
def _edge_numbers(row: Array, begin: int, key: np.uint64, period: int, phase: int, numbers: U32) -> int:
    """Compute the numbers of the edges of a row from the ``begin``-th on, at most a chunk; return how many they are.

    ``numbers`` still has those of the chunk before.
    """
    chunk = row[begin : begin + _CHUNK]
    last = numbers[_CHUNK - 1]
    source_numbers(chunk, key, period, phase, numbers[: len(chunk)])
    parallel = 0
    for j in range(1, len(chunk)):
        parallel += int(chunk[j] == chunk[j - 1])
    if begin > 0 and chunk[0] == row[begin - 1]:
        numbers[0] = _mix32(np.uint32(last ^ _PARALLEL), np.uint32(0))
    if parallel:
        for j in range(1, len(chunk)):
            if chunk[j] == chunk[j - 1]:
                numbers[j] = _mix32(np.uint32(numbers[j - 1] ^ _PARALLEL), np.uint32(0))
    return len(chunk)


@njit()
def _below(row: Array, key: np.uint64, period: int, phase: int, limit: np.uint64, numbers: U32, candidates: U64) -> int:
    """List the edges whose number is below ``limit``: the number in the upper half of a word, the place below it."""
    count = 0
    for begin in range(0, len(row), _CHUNK):
        length = _edge_numbers(row, begin, key, period, phase, numbers)
        for j in range(length):  # without branches: a place that is not counted is written over
            number = np.uint64(numbers[j])
            candidates[count] = (number << S32) | np.uint64(begin + j)
            count += int(number < limit)
    return count


@njit()
def _narrow(candidates: U64, count: int, k: int) -> int:
    """Drop candidates that are not among the ``k`` smallest of ``count`` until few too many are left; return how many.

    Halves the range that the largest of the ``k`` is in.
    """
    low, high = np.uint64(0), np.uint64(2**64 - 1)
    while count - k > _FEW:
        middle = low + ((high - low) >> np.uint64(1))
        below = 0
        for c in range(count):
            below += candidates[c] < middle
        if below < k:
            low = middle
            continue
        high = middle
        below = 0
        for c in range(count):
            word = candidates[c]
            candidates[below] = word
            below += word < middle
        count = below
    return count


@njit()
def choose_labor(
    dst: Destinations,
    indices: Array,
    period: int,
    phase: int,
    positions: I64,
    rows: Candidates,
    offsets: I64,
    picks: I64,
) -> None:
    """Choose the edges of each node that have the smallest numbers.

    A limit a little above k/d selects candidates; the largest are dropped. Where it selects too few, it is doubled.

    ``dst`` draws without replacement, and its keys are those of the sources' numbers. ``indices`` is int32 or int64
    [nnz], global source ids; ``period`` and ``phase`` are those of :func:`source_numbers`.
    """
    numbers, candidates = np.empty(_CHUNK, np.uint32), np.empty(_CHUNK, np.uint64)
    step = 64 // indices.itemsize
    for i in range(len(positions)):
        if i + _AHEAD < len(positions):
            later = positions[i + _AHEAD]
            begin = rows.begins[later]
            for e in range(begin, begin + min(rows.degrees[later], _LINES * step), step):
                prefetch(indices, e)
        p = positions[i]
        begin, degree = rows.begins[p], rows.degrees[p]
        out = offsets[p]
        k = offsets[p + 1] - out
        if k == degree:
            for j in range(k):
                picks[out + j] = begin + j
            continue
        if k == 0:
            continue
        if degree >= len(candidates):
            candidates = np.empty(2 * degree, np.uint64)
        key = dst.keys[p] if len(dst.keys) > 1 else dst.keys[0]
        share = (k + np.sqrt(k * (1.0 - k / degree)) + 1.0) / degree
        count = 0
        while count < k:
            limit = np.uint64(min(share, 1.0) * 4294967296.0)
            count = _below(indices[begin : begin + degree], key, period, phase, limit, numbers, candidates)
            share *= 2.0
        if count - k > _FEW:
            count = _narrow(candidates, count, k)
        while count > k:
            largest, place = candidates[0], 0
            for c in range(1, count):
                if candidates[c] > largest:
                    largest, place = candidates[c], c
            count -= 1
            candidates[place] = candidates[count]
        for j in range(k):
            picks[out + j] = begin + np.int64(candidates[j] & LOW32)


@njit()
def choose_labor_weighted(
    dst: Destinations,
    indices: Array,
    weights: Array,
    period: int,
    phase: int,
    positions: I64,
    rows: Candidates,
    offsets: I64,
    picks: I64,
) -> None:
    """Choose the edges of each node that arrive first, at exponential times by their numbers.

    An edge's rate is its weight, so that the choice of a node is one without replacement in proportion to weights
    (Efraimidis, Spirakis: "Weighted random sampling with a reservoir", IPL 2006). With equal weights it is that of
    :func:`choose_labor`, as are the other parameters.

    ``weights`` is float or bool [nnz], checked by :func:`.count_weighted`. A write may have changed them since: the
    choice then is undefined, but only ever among the edges of the node.
    """
    numbers = np.empty(_CHUNK, np.uint32)
    arrivals, edges = np.empty(_CHUNK, np.float64), np.empty(_CHUNK, np.int64)
    for i in range(len(positions)):
        p = positions[i]
        first, degree = rows.begins[p], rows.degrees[p]
        chosen = picks[offsets[p] : offsets[p + 1]]
        k = len(chosen)
        if k == 0:
            continue
        chosen[:] = first
        sorting = k > _MANY
        if sorting and degree > len(arrivals):
            arrivals, edges = np.empty(2 * degree, np.float64), np.empty(2 * degree, np.int64)
        key = dst.keys[p] if len(dst.keys) > 1 else dst.keys[0]
        everything = k == rows.num_candidates[p]
        for unit in (1.0, _FINE):  # again where weights are so small that arrivals chosen are infinite, thus equal
            count = 0
            for begin in range(0, degree, _CHUNK):
                if not everything:
                    _edge_numbers(indices[first : first + degree], begin, key, period, phase, numbers)
                for t in range(min(_CHUNK, degree - begin)):
                    edge = first + begin + t
                    if not weights[edge] > 0:
                        continue
                    if everything:
                        if count < k:
                            chosen[count] = edge
                            count += 1
                        continue
                    arrival = -np.log1p(-(numbers[t] + 0.5) / 4294967296.0) * unit / np.float64(weights[edge])
                    if sorting:
                        arrivals[count] = arrival
                        edges[count] = edge
                        count += 1
                        continue
                    if count == k and not arrival < arrivals[k - 1]:
                        continue
                    j = count if count < k else k - 1  # the place of the new arrival, or of the last one, pushed out
                    count += count < k
                    while j > 0 and arrivals[j - 1] > arrival:
                        arrivals[j] = arrivals[j - 1]
                        chosen[j] = chosen[j - 1]
                        j -= 1
                    arrivals[j] = arrival
                    chosen[j] = edge
            if everything or count == 0:
                break
            last = arrivals[count - 1]
            if sorting:
                order = np.argsort(arrivals[:count], kind="mergesort")[:k]  # stable
                chosen[: len(order)] = edges[order]
                last = arrivals[order[-1]]
            if last < np.inf:
                break
