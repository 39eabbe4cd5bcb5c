"""The next read of each row: the reads of minibatches that were sampled ahead, linked row by row.

The reads of the minibatches lie one after the other in a ring; a *position* counts them and never falls. Each read
knows the minibatch that reads the same row next, or :data:`NEVER` as long as none was sampled.
"""

import numpy as np

from mpigraph.arrays import I32, I64, Mask
from mpigraph.kernels.cache import njit
from mpigraph.kernels.prefetch_hint import prefetch

NEVER = 2**31 - 1
"""In place of the number of a minibatch: no sampled one reads the row again."""
AGAIN = -1
"""In place of the number of a minibatch: the same one reads the row again."""

_AHEAD = 16  # rows between a prefetch and its use


@njit(nogil=True, cache=True)
def split_local(ids: I64, begins: I64, ends: I64, local: I64, remote: I64) -> int:
    """List the positions of ``ids`` (int64[n]) inside the ranges ``[begins[k], ends[k])``, and of those outside.

    Returns:
        How many are inside: ``local`` (int64[n + 1]) holds them, and ``remote`` (the same) the others.
    """
    count = 0
    if len(begins) == 1:  # the usual case, without a branch
        begin, size = begins[0], np.uint64(ends[0] - begins[0])
        for i in range(len(ids)):
            local[count] = i
            remote[i - count] = i
            count += int(np.uint64(ids[i] - begin) < size)
        return count
    for i in range(len(ids)):
        inside = False
        for k in range(len(begins)):
            inside |= begins[k] <= ids[i] and ids[i] < ends[k]
        local[count] = i
        remote[i - count] = i
        count += inside
    return count


@njit(nogil=True, cache=True)
def add_reads(numbers: I32, batch: int, first: int, pending: int, last: I64, ring_next: I32, fresh: Mask) -> None:
    """Append the reads of a minibatch, and link each to the read before it of the same row.

    Args:
        numbers: int32[n], the rows, by a number that is the same for the same row.
        batch: the number of the minibatch.
        first: position of its first read.
        pending: reads before this position are done.
        last: int64[rows], the position of the last read of each row, below 0 without one.
        ring_next: int32[2**k], by position modulo its length the minibatch that reads the row next.
        fresh: bool[n], filled: whether no outstanding read of the row comes before.
    """
    mask = len(ring_next) - 1
    n = len(numbers)
    for i in range(n):
        if i + _AHEAD < n:
            prefetch(last, np.int64(numbers[i + _AHEAD]))
        before = last[numbers[i]]
        fresh[i] = before < pending
        if before >= first:
            ring_next[before & mask] = AGAIN
        elif before >= pending:
            ring_next[before & mask] = batch
        last[numbers[i]] = first + i
        ring_next[(first + i) & mask] = NEVER
