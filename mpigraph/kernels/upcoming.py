"""The next read of each row: the reads of minibatches that were sampled ahead, linked row by row.

The reads of the minibatches lie one after the other in a ring; a *position* counts them and never falls. Each read
knows the minibatch that reads the same row next, or :data:`NEVER` as long as none was sampled.
"""

import numpy as np
from numba import njit

from mpigraph.arrays import I32, I64, Mask
from mpigraph.kernels.prefetch_hint import prefetch

NEVER = 2**31 - 1
"""In place of the number of a minibatch: no sampled one reads the row again."""
AGAIN = -1
"""In place of the number of a minibatch: the same one reads the row again."""

_AHEAD = 16  # rows between a prefetch and its use


@njit(nogil=True, cache=True)
def split_free(ids: I64, begins: I64, ends: I64, free: I64, priced: I64) -> int:
    """List the positions of ``ids`` (int64[n]) inside the ranges ``[begins[k], ends[k])``, and of those outside.

    Returns:
        How many are inside: ``free`` (int64[n + 1]) holds them, and ``priced`` (the same) the others.
    """
    count = 0
    if len(begins) == 1:  # the usual case, without a branch
        begin, size = begins[0], np.uint64(ends[0] - begins[0])
        for i in range(len(ids)):
            free[count] = i
            priced[i - count] = i
            count += int(np.uint64(ids[i] - begin) < size)
        return count
    for i in range(len(ids)):
        inside = False
        for k in range(len(begins)):
            inside |= begins[k] <= ids[i] and ids[i] < ends[k]
        free[count] = i
        priced[i - count] = i
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


@njit(nogil=True, cache=True)
def add_reads_of(
    rows: I64, batch: int, first: int, pending: int, soon: I32, last: I32, ring_next: I32, fresh: Mask
) -> None:
    """Do as :func:`add_reads`, by tables of all rows: ``rows`` are int64[n].

    Minibatches before ``pending`` are done. ``soon`` is int32[all rows], the minibatch that reads each row next, unless
    it is done, and ``last`` int32[all rows], the position of the last read of such a row, modulo the ring's length.
    """
    mask = len(ring_next) - 1
    n = len(rows)
    for i in range(n):
        if i + _AHEAD < n:
            prefetch(soon, rows[i + _AHEAD])
            prefetch(last, rows[i + _AHEAD])
        row = rows[i]
        fresh[i] = soon[row] < pending
        if fresh[i]:
            soon[row] = batch
        else:
            again = (last[row] - first) & mask < i
            ring_next[last[row]] = AGAIN if again else batch
        last[row] = (first + i) & mask
        ring_next[last[row]] = NEVER


@njit(nogil=True, cache=True)
def advance(rows: I64, first: int, ring_next: I32, soon: I32) -> None:
    """Note in ``soon`` that a minibatch, whose reads begin at position ``first``, has read ``rows``."""
    mask = len(ring_next) - 1
    for i in range(len(rows)):
        if i + _AHEAD < len(rows):
            prefetch(soon, rows[i + _AHEAD])
        following = ring_next[(first + i) & mask]
        if following not in (AGAIN, NEVER):
            soon[rows[i]] = following


@njit(nogil=True, cache=True)
def with_neighbours(
    rows: I64, reach: int, after: int, before: int, soon: I32, hint: I32, row_of: I64, merged: I64, at: I64, beside: I64
) -> tuple[int, int]:
    """List rows, and beside them uncached ones that a minibatch between ``after`` and ``before`` reads next.

    Args:
        rows: int64[n], ascending, each once.
        reach: how many rows away neighbours are at most.
        after: the number of a minibatch.
        before: likewise.
        soon: int32[all rows], see :func:`add_reads_of`.
        hint: int32[all rows], see ``kernels/row_slots.py``.
        row_of: int64[slots], likewise.
        merged: int64[n + m], filled with all, ascending.
        at: int64[n], filled with the places of ``rows`` there.
        beside: int64[m], filled with those of the neighbours; no more are listed than fit.

    Returns:
        How many there are, and how many are beside.
    """
    count = added = begin = known = 0
    for i in range(len(rows)):
        end = min(rows[i] + reach + 1, len(soon))
        for row in range(max(begin, rows[i] - reach), end):
            if known < len(rows) and row == rows[known]:
                at[known] = count
                known += 1
            elif (
                after < soon[row]
                and soon[row] < before
                and added < len(beside)
                and (hint[row] == 0 or row_of[hint[row] - 1] != row)
            ):
                beside[added] = count
                added += 1
            else:
                continue
            merged[count] = row
            count += 1
        begin = end
    return count, added
