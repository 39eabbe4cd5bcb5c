"""Choose in-neighbours among the edges that are old enough; see ``kernels/sample.py`` first.

The edges of each row lie sorted by time, equal times by their position, with the position beside them. The edges that
a root may see by its time are then a stretch of the row, found by binary search: a sample of it is a sample of a
shorter row, and the newest edges are its end.
"""

from typing import Any, NamedTuple

import numpy as np

from mpigraph.arrays import I32, I64, U64
from mpigraph.kernels.cache import njit
from mpigraph.kernels.csr import first_not_below
from mpigraph.kernels.intrinsics import prefetch
from mpigraph.kernels.rng import mix64

_OLDEST, _NEWEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Times(NamedTuple):
    """The times of a host's edges, and what the nodes of a frontier may see.

    Attributes:
        sorted: int64[nnz], by :func:`sort_rows`.
        until: int64[frontier], the time of each node's root, the latest time of an edge.
        strict: leave out edges of exactly that time, too.
        newest: draw only from the newest ``fanout`` edges.
        window: how much older an edge may be; below 0 without limit.
    """

    sorted: I64
    until: I64
    strict: bool
    newest: bool
    window: int


@njit()
def sort_rows(indptr: I64, times: I64, sorted_times: I64, order: I32) -> None:
    """Sort the edges of each row by time, equal ones by position.

    Args:
        indptr: int64[n + 1].
        times: int64[nnz], in the order of the edges.
        sorted_times: int64[nnz], filled, row by row.
        order: int32[nnz], filled: the place in its row of each sorted edge.
    """
    for row in range(len(indptr) - 1):
        begin, end = indptr[row], indptr[row + 1]
        rises = True
        for e in range(begin, end):
            order[e] = e - begin
            rises &= e == begin or times[e - 1] <= times[e]
        if not rises:
            order[begin:end] = np.argsort(times[begin:end], kind="mergesort")
        for e in range(begin, end):
            sorted_times[e] = times[begin + order[e]]


@njit()
def root_keys(key: np.uint64, ids: I64, times: I64, keys: U64) -> None:
    """Fill uint64[n], the key of each tree: a hash of its root, and of the root's time if there are ``times``."""
    for i in range(len(ids)):
        keys[i] = mix64(key ^ mix64(np.uint64(ids[i])))
        if len(times) > 0:
            keys[i] = mix64(keys[i] ^ mix64(np.uint64(times[i])))


@njit(inline="always")
def prefetch_times(times: Any, begin: Any, end: Any) -> None:
    """Load the times of the row ``begin .. end - 1`` where the binary search looks first."""
    for quarter in range(1, 4):
        prefetch(times.sorted, begin + ((quarter * (end - begin)) >> 2))


@njit(inline="always")
def visible(times: Any, p: Any, begin: Any, end: Any) -> Any:
    """Return the stretch of the row ``begin .. end - 1`` that node ``p`` may see: its first place, and its length."""
    now, by_time = times.until[p], times.sorted
    last = end
    if times.strict or now < _NEWEST:
        last = first_not_below(by_time, begin, end, now if times.strict else now + 1)
    first = begin
    if times.window >= 0 and now >= _OLDEST + times.window:  # else the window reaches back to before all times
        first = first_not_below(by_time, begin, last, now - times.window)
    return first, last - first
