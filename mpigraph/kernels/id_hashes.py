"""Hashes of ids: of sets, of sequences, of each id; a digest of numbered rows in any order."""

from typing import Any

import numpy as np
from numba import njit

from mpigraph.arrays import I64, U64, Array
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
