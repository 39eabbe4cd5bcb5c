"""Look edges up in CSC arrays by their two ends."""

from mpigraph.arrays import I64, Array, Mask
from mpigraph.kernels.cache import njit
from mpigraph.kernels.prefetch_hint import prefetch

_AHEAD = 8  # look-ups between the prefetch of a row's bounds, that of its middle, and the search


@njit(nogil=True, cache=True)
def find_in_rows(
    indptr: I64,
    indices: Array,
    first_id: int,
    src: I64,
    dst: I64,
    positions: I64,
    exists: Mask,
) -> None:
    """Fill whether edges exist, by binary search in the in-edges of their destinations.

    Args:
        indptr: int64[n + 1], CSC offsets of the host's rows.
        indices: int32 or int64 [nnz], global source ids, ascending in each row.
        first_id: global id of row 0.
        src: int64[queries], global ids.
        dst: int64[queries], global ids.
        positions: int64[m], the queries whose destination this host holds.
        exists: bool[queries], filled at ``positions``.
    """
    n = len(positions)
    for i in range(n):
        if i + 2 * _AHEAD < n:
            prefetch(indptr, dst[positions[i + 2 * _AHEAD]] - first_id)
        if i + _AHEAD < n:
            later = dst[positions[i + _AHEAD]] - first_id
            prefetch(indices, (indptr[later] + indptr[later + 1]) >> 1)  # where the binary search begins
        p = positions[i]
        row = dst[p] - first_id
        low, end = indptr[row], indptr[row + 1]
        high = end
        while low < high:
            middle = (low + high) >> 1
            if indices[middle] < src[p]:
                low = middle + 1
            else:
                high = middle
        exists[p] = low < end and indices[low] == src[p]
