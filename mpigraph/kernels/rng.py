"""Counter-based random numbers: every draw is a hash of what is being drawn. Hashes of sets and sequences of ids.

There is no generator state, so a draw does not depend on the order of work, on the rank that makes it or on the
number of ranks. The mixer is the finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
generators", OOPSLA 2014), the same that seeds xoshiro generators.
"""

from typing import Any

import numpy as np

from mpigraph.arrays import I64, U64
from mpigraph.kernels.cache import njit

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
# shifts and masks are uint64 too: numba, like numpy, makes float64 of uint64 and int64
_S30, _S27, _S31, _S12, S32 = map(np.uint64, (30, 27, 31, 12, 32))
LOW32 = np.uint64(0xFFFFFFFF)


@njit(inline="always")
def slot_of(x: Any, bits: Any) -> Any:
    """Return the slot, of ``2**bits``, at which the probe for id ``x`` begins (Knuth, TAOCP vol. 3, 6.4)."""
    return np.int64((np.uint64(x) * _GOLDEN) >> np.uint64(64 - bits))


@njit(inline="always")
def mix64(x: Any) -> Any:
    """Hash a 64-bit word: uint64 (or int64, reinterpreted) to uint64, one to one."""
    x = np.uint64(x) + _GOLDEN
    x = (x ^ (x >> _S30)) * _M1
    x = (x ^ (x >> _S27)) * _M2
    return x ^ (x >> _S31)


@njit()
def _combine(key: np.uint64, word: np.uint64) -> Any:
    return mix64(key ^ mix64(word))


def combine(key: int | np.uint64, *words: int | np.uint64) -> np.uint64:
    """Return a new key from a key and more words, whose order matters: any integers, taken modulo 2**64."""
    result: np.uint64 = np.uint64(int(key) % 2**64)
    for word in words:
        result = np.uint64(_combine(result, np.uint64(int(word) % 2**64)))
    return result


@njit(inline="always")
def draw_below(h: Any, n: Any) -> Any:
    """Map a hash (uint64) to an int64 in ``[0, n)``, n < 2**32, by multiply-shift.

    Lemire, "Fast random integer generation in an interval", ACM TOMACS 2019, without the rejection step: the bias is
    below n / 2**32.
    """
    return np.int64(((h >> S32) * np.uint64(n)) >> S32)


@njit(inline="always")
def uniform01(h: np.uint64) -> float:
    """Map a hash to a float64 in ``(0, 1)``: 52 random bits, never 0 and never 1."""
    number: float = (np.float64(h >> _S12) + 0.5) * (1.0 / 4503599627370496.0)
    return number


@njit()
def _fingerprint(ids: I64) -> Any:
    total = np.uint64(len(ids))  # a sum of hashes does not depend on the order, so no sort is needed
    for i in range(len(ids)):
        total += mix64(np.uint64(ids[i]))
    return mix64(total)


def fingerprint(ids: I64) -> np.uint64:
    """Hash a set of ids, int64[n], whatever its order."""
    result: np.uint64 = np.uint64(_fingerprint(ids))
    return result


@njit()
def hash_each(key: np.uint64, ids: I64, out: U64) -> None:
    """Hash each id.  key: uint64.  ids: int64[n].  out: uint64[n]."""
    for i in range(len(ids)):
        out[i] = mix64(key ^ mix64(np.uint64(ids[i])))


@njit()
def first_alike(ids: I64, first: I64) -> int:
    """Fill ``first[i]`` with the position of the first id that is ``ids[i]``; return how many ids repeat one.

    ids: int64[n].  first: int64[n].
    """
    bits = 4
    while (1 << bits) < 2 * len(ids):  # at most half full, so linear probing ends soon
        bits += 1
    table = np.zeros(1 << bits, np.int32)  # one more than the first position of an id, by hash; open addressing
    repeats = 0
    for i in range(len(ids)):
        at = slot_of(ids[i], bits)
        while table[at] and ids[table[at] - 1] != ids[i]:
            at = (at + 1) & ((1 << bits) - 1)
        if table[at]:
            repeats += 1
        else:
            table[at] = i + 1
        first[i] = table[at] - 1
    return repeats


def told_apart(ids: I64) -> I64:
    """Return int64[n], a name for each id: itself where it comes first, then a hash with its repetitions so far.

    So draws for names differ where an id is given again. Returns ``ids`` itself if each is there once.
    """
    first = np.empty(len(ids), np.int64)
    if (ids[1:] > ids[:-1]).all() or not first_alike(ids, first):
        return ids
    names = ids.copy()
    _name_repeats(first, names)
    return names


@njit()
def _name_repeats(first: I64, names: I64) -> None:
    """Rename ids that come again; ``first`` is that of :func:`first_alike`, ``names`` are the ids."""
    times = np.zeros(len(first), np.uint64)  # by first position, how often an id came again
    for i in range(len(first)):
        if first[i] < i:
            times[first[i]] += np.uint64(1)
            names[i] = np.int64(mix64(np.uint64(names[i]) ^ mix64(times[first[i]])))
