"""Checks of an adjacency that was read from a file, before any loop trusts it."""

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.kernels.cache import njit
from mpigraph.kernels.rng import mix64


@njit(nogil=True, cache=True)
def falls(indptr: I64) -> bool:
    """Return whether a value of int64[n] is smaller than the one before it."""
    for i in range(1, len(indptr)):
        if indptr[i] < indptr[i - 1]:
            return True
    return False


@njit(nogil=True, cache=True)
def bad_source(indptr: I64, indices: Array, num_nodes: int) -> int:
    """Return the first position whose source does not exist, or is smaller than the one before it in its row; or -1.

    indptr: int64[n + 1], from 0, never falling, to m.  indices: int32 or int64[m].  num_nodes: of the sources' type.
    """
    for row in range(len(indptr) - 1):
        least = np.int64(0)
        for i in range(indptr[row], indptr[row + 1]):
            source = np.int64(indices[i])
            if source < least or source >= num_nodes:
                return i
            least = source
    return -1


@njit(nogil=True, cache=True)
def hash_of_sources(indices: Array) -> np.uint64:
    """Return the sum of hashes of the sources of all edges, int32 or int64[m], modulo 2**64."""
    total: np.uint64 = np.uint64(0)
    for i in range(len(indices)):
        total += mix64(np.int64(indices[i]))
    return total


@njit(nogil=True, cache=True)
def hash_of_degrees(out_degrees: I64, first_node: int) -> np.uint64:
    """Return :func:`hash_of_sources` of the edges of nodes with these out-degrees.

    If a degree is wrong the sums over all hosts differ, except with probability 2**-64.

    out_degrees: int64[n].  first_node: id of the first.
    """
    total: np.uint64 = np.uint64(0)
    for i in range(len(out_degrees)):
        total += np.uint64(out_degrees[i]) * mix64(np.int64(first_node + i))
    return total
