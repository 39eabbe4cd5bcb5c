"""What clusters and parts have in common: edge weights of a node by the group of its neighbours, and groups' limits."""

import numba

from mpigraph.arrays import Array
from mpigraph.kernels.prefetch_hint import prefetch

__all__ = ["fits", "sum_by_group"]

_AHEAD = 16  # entries between a prefetch and the access


@numba.njit(nogil=True, cache=True)
def sum_by_group(
    indptr: Array, indices: Array, edge_weights: Array, u: int, groups: Array, sums: Array, met: Array, count: int
) -> int:
    """Add the weight of each edge of a node to the sum of the group that the neighbour is in.

    indptr: int64[n + 1].  indices: int32[m], local nodes.  edge_weights: int32[m], or empty: all 1.
    groups: int32[nodes].  sums: integers[groups], 0 for a group that was not met; increased here.
    met: int32[groups], whose first ``count`` were met before; those that are new follow.  Returns how many then are.
    """
    last = len(indices) - 1
    for i in range(indptr[u], indptr[u + 1]):
        prefetch(groups, indices[min(i + 2 * _AHEAD, last)])
        prefetch(sums, groups[indices[min(i + _AHEAD, last)]])
        group = groups[indices[i]]
        if sums[group] == 0:
            met[count] = group
            count += 1
        sums[group] += edge_weights[i] if len(edge_weights) > 0 else 1
    return count


@numba.njit(nogil=True, cache=True)
def fits(weights: Array, row: int, loads: Array, group: int, limits: Array) -> bool:
    """Return whether a group stays within the limits with what is in a row, in each criterion that this weighs in.

    weights: int64[rows, criteria].  loads: int64[groups, criteria].  limits: int64[criteria].
    """
    for c in range(len(limits)):
        if weights[row, c] > 0 and loads[group, c] + weights[row, c] > limits[c]:
            return False
    return True
