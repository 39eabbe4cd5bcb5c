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

from typing import Any, NamedTuple

import numpy as np

from mpigraph.arrays import I64, U32, U64, Array
from mpigraph.kernels.cache import njit
from mpigraph.kernels.rng import LOW32, S32, mix64
from mpigraph.kernels.weighted import keep_first, sort_first

_M1, _M2 = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
_S15, _S16 = np.uint32(15), np.uint32(16)
_PHASE_LOW, _PHASE_HIGH = np.uint32(0x9E3779B9), np.uint32(0x85EBCA6B)  # the key of the nodes' phases
_PARALLEL = np.uint32(0x5BD1E995)  # mixed in from one parallel edge to the next
CHUNK = 2048  # sources whose numbers are computed at once: they stay in the first cache
_FINE = 2.0**-55  # a unit of arrivals in which all are finite, however small the weights
_FEW = 24  # candidates too many, above which half of the range is dropped at once


class Numbers(NamedTuple):
    """The sources of a host's edges, and how they get their numbers.

    Attributes:
        sources: int32 or int64 [nnz], global ids, ascending in each row.
        period: steps that a source's number lives, see :func:`source_numbers`.
        phase: the step within the period, below it.
    """

    sources: Array
    period: int
    phase: int


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
    chunk = row[begin : begin + CHUNK]
    last = numbers[CHUNK - 1]
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
    for begin in range(0, len(row), CHUNK):
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
def smallest_numbers(
    row: Array, key: np.uint64, period: int, phase: int, numbers: U32, candidates: U64, first: int, chosen: I64
) -> None:
    """Choose the edges of a row that have the smallest numbers.

    A limit a little above k/d selects candidates; the largest are dropped. Where it selects too few, it is doubled.

    Args:
        row: int32 or int64 [degree], the sources.
        key: of the numbers.
        period: as in :func:`source_numbers`.
        phase: as there.
        numbers: uint32[CHUNK], scratch.
        candidates: uint64[CHUNK], scratch.
        first: the row's first edge.
        chosen: int64[k], filled; k is below the degree.
    """
    k, degree = len(chosen), len(row)
    if degree >= len(candidates):
        candidates = np.empty(degree + 1, np.uint64)
    share = (k + np.sqrt(k * (1.0 - k / degree)) + 1.0) / degree
    count = 0
    while count < k:
        limit = np.uint64(min(share, 1.0) * 4294967296.0)
        count = _below(row, key, period, phase, limit, numbers, candidates)
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
        chosen[j] = first + np.int64(candidates[j] & LOW32)


@njit()
def first_arrivals(
    row: Array, weights: Array, key: np.uint64, period: int, phase: int, numbers: U32, first: int, chosen: I64
) -> None:
    """Choose the edges of a row that arrive first, at exponential times by their numbers.

    An edge's rate is its weight, so that the choice of a node is one without replacement in proportion to weights
    (Efraimidis, Spirakis: "Weighted random sampling with a reservoir", IPL 2006). With equal weights it is that of
    :func:`smallest_numbers`, as are the other parameters.

    ``weights`` is float or bool [degree]. ``chosen`` is int64[k], filled from the front as far as weights are above 0.
    """
    times = np.empty(len(chosen), np.float64)
    for unit in (1.0, _FINE):  # again where weights are so small that arrivals chosen are infinite, thus equal
        count = 0
        for begin in range(0, len(row), CHUNK):
            length = _edge_numbers(row, begin, key, period, phase, numbers)
            for t in range(length):
                weight = weights[begin + t]
                if weight > 0:
                    time = -np.log1p(-(numbers[t] + 0.5) / 4294967296.0) * unit / np.float64(weight)
                    count = keep_first(times, chosen, count, time, first + begin + t)
        sort_first(times, chosen, count)
        if count == 0 or times[count - 1] < np.inf:
            break
