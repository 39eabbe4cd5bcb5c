"""Hashes of ids: of sets, of sequences, of each id; a digest of numbered rows in any order."""

from typing import Any

import numpy as np

from mpigraph.arrays import I64, U64, Array
from mpigraph.kernels.cache import njit
from mpigraph.kernels.compact import slot_of
from mpigraph.kernels.rng import mix64


@njit(nogil=True, cache=True)
def sum_of_hashes(key: np.uint64, ids: I64) -> Any:
    """Return a hash that does not depend on the order of ids; hashes of pieces add up.  key: uint64.  ids: int64[n]."""
    total = np.uint64(0)
    for i in range(len(ids)):
        total += mix64(key ^ mix64(np.uint64(ids[i])))
    return total


@njit(nogil=True, cache=True)
def hash_of_sequence(key: np.uint64, ids: I64) -> Any:
    """Return a hash that depends on the order of ids.  key: uint64.  ids: int64[n]."""
    total = key
    for i in range(len(ids)):
        total = mix64(total ^ np.uint64(ids[i]))
    return total


@njit(nogil=True, cache=True)
def hash_each(key: np.uint64, ids: I64, out: U64) -> None:
    """Hash each id.  key: uint64.  ids: int64[n].  out: uint64[n]."""
    for i in range(len(ids)):
        out[i] = mix64(key ^ mix64(np.uint64(ids[i])))


def told_apart(ids: I64) -> I64:
    """Return int64[n], a name for each id: itself where it comes first, then a hash with its repetitions so far.

    So draws for names differ where an id is given again. Returns ``ids`` itself if each is there once.
    """
    names = np.empty(len(ids), np.int64)
    return names if _tell_apart(ids, names) else ids


@njit(nogil=True, cache=True)
def _tell_apart(ids: I64, names: I64) -> bool:
    """Fill ``names``; return whether an id repeats."""
    count = len(ids)
    rising = 1
    while rising < count and ids[rising] > ids[rising - 1]:
        rising += 1
    if rising >= count:
        return False
    bits = 4
    while (1 << bits) < 2 * count:  # at most half full, so linear probing ends soon
        bits += 1
    table = np.zeros(1 << bits, np.int32)  # one more than the first position of an id, by hash; open addressing
    times = np.zeros(0, np.uint32)  # by first position, how often an id came again
    for i in range(count):
        at = slot_of(ids[i], bits)
        while table[at] and ids[table[at] - 1] != ids[i]:
            at = (at + 1) & ((1 << bits) - 1)
        if table[at] == 0:
            table[at] = i + 1
            continue
        if len(times) == 0:
            times = np.zeros(count, np.uint32)
            names[:] = ids
        first = table[at] - 1
        times[first] += np.uint32(1)
        names[i] = np.int64(mix64(np.uint64(ids[i]) ^ mix64(np.uint64(times[first]))))
    return len(times) > 0


@njit(nogil=True, cache=True)
def add_digest(keys: U64, begins: I64, first: int, a: Array, b: Array, total: Array) -> None:
    """Add the hashes of rows (number, a, b) to a digest.

    keys: uint64[kinds], what the rows are.  begins: int64[kinds + 1], the first row of each kind; in a kind they are
    numbered from 0.  first: number of the first row among all kinds.  a, b: int[n].  total: uint64[2], increased here.
    """
    for kind in range(len(keys)):
        key, shift = keys[kind], first - begins[kind]
        for i in range(max(0, -shift), min(len(a), begins[kind + 1] - first)):
            h = mix64(key ^ mix64(np.uint64(shift + i)))
            h = mix64(h ^ np.uint64(a[i]))
            h = mix64(h ^ np.uint64(b[i]))
            total[0] += h
            total[1] += mix64(h ^ key)
