"""Reuse distances: how many other rows are read between two reads of a row."""

from numba import njit

from mpigraph.arrays import I32, I64


@njit(nogil=True, cache=True)
def reuse_distances(numbers: I64, last: I64, tree: I32, distances: I64) -> None:
    """Count for each read the rows that were read since its row's read before; -1 for a first read.

    Olken, "Efficient methods for calculating the success function of fixed space replacement policies", LBL-12370
    (1981): the rows lie in a tree in the order of their last reads, here one of partial sums (Fenwick, Software:
    Practice and Experience 24(3), 1994).

    Args:
        numbers: int64[n], the row of each read, by a number from 0 on.
        last: int64[rows], filled with -1.
        tree: int32[n + 1], filled with 0.
        distances: int64[n], filled.
    """
    rows = 0
    for i in range(len(numbers)):
        before = last[numbers[i]]
        last[numbers[i]] = i
        if before < 0:
            distances[i] = -1
            rows += 1
        else:
            later = rows
            at = before + 1
            while at:  # rows whose last read is not later than the one before
                later -= tree[at]
                at &= at - 1
            distances[i] = later
            at = before + 1
            while at < len(tree):
                tree[at] -= 1
                at += at & -at
        at = i + 1
        while at < len(tree):
            tree[at] += 1
            at += at & -at
