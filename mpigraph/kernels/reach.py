"""Probabilities that minibatches reach nodes, without drawing any."""

import numpy as np
from numba import njit

from mpigraph.arrays import F32, F64, I64, Array


@njit(nogil=True, cache=True)
def add_misses(indptr: I64, indices: Array, reached: F64, chances: F64, kinds: I64, misses: F32) -> None:
    """Add to each source the logarithm of the probability that no destination of a part takes it, case by case.

    Args:
        indptr: int64[n + 1], CSC offsets of the part's destinations.
        indices: int32 or int64 [nnz], global source ids.
        reached: float64[n], probability that each destination is in the frontier.
        chances: float64[m, c], probability that a destination takes one of its sources, in each of c cases.
        kinds: int64[n], the row of ``chances`` for each destination.
        misses: float32[sources, c]; added to.
    """
    cases = chances.shape[1]
    logs = np.empty(cases, np.float32)
    for row in range(len(indptr) - 1):
        if reached[row] <= 0.0:
            continue
        for c in range(cases):
            logs[c] = np.log1p(-min(reached[row] * chances[kinds[row], c], 1.0))
        for e in range(indptr[row], indptr[row + 1]):
            source = indices[e]
            for c in range(cases):
                misses[source, c] += logs[c]
