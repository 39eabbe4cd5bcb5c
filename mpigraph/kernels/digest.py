"""A digest of numbered rows that does not depend on the order in which they come, nor on who sees them."""

import numba
import numpy as np

from mpigraph.arrays import Array
from mpigraph.kernels.rng import mix64

__all__ = ["add_digest"]


@numba.njit(nogil=True, cache=True)
def add_digest(key: np.uint64, first: int, a: Array, b: Array, total: Array) -> None:
    """Add the hashes of rows (number, a, b) to a digest.

    key: uint64, what the rows are.  first: number of the first row.  a, b: int[n].  total: uint64[2], increased here.
    """
    for i in range(len(a)):
        h = mix64(key ^ mix64(np.uint64(first + i)))
        h = mix64(h ^ np.uint64(a[i]))
        h = mix64(h ^ np.uint64(b[i]))
        total[0] += h
        total[1] += mix64(h ^ key)
