"""Rows from every rank to every rank, and sums over the ranks, by waits that leave the core to who computes.

Runs on the communicator that it is given, one thread at a time.
"""

from typing import TypeAlias

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I64, Array
from mpigraph.mpi.wait import BULK, IN_ROUND, wait

__all__ = ["Comm", "exchange_rows", "sum_over_ranks"]

Comm: TypeAlias = MPI.Comm


def exchange_rows(comm: MPI.Comm, rows: Array, counts: I64) -> tuple[Array, I64]:
    """Send ``counts[r]`` consecutive rows to rank r. Collective on ``comm``.

    Args:
        comm: the ranks.
        rows: [n, columns], C-contiguous, of one dtype and number of columns on all ranks.
        counts: int64[ranks], below 2**31 each.

    Returns:
        The rows received, those of rank 0 first, and how many came from each rank.
    """
    coming = np.empty(comm.size, np.int64)
    wait(comm.Ialltoall(counts, coming), IN_ROUND)
    received = np.empty((int(coming.sum()), *rows.shape[1:]), rows.dtype)
    row_bytes = rows.dtype.itemsize * int(np.prod(rows.shape[1:]))
    row = MPI.BYTE.Create_contiguous(row_bytes).Commit()  # MPI-3 counts are 32-bit, so they count rows
    try:
        wait(comm.Ialltoallv([rows, counts, row], [received, coming, row]), BULK)
    finally:
        row.Free()
    return received, coming


def sum_over_ranks(comm: MPI.Comm, values: I64) -> I64:
    """Return the sum of every rank's array (int64, of one shape). Collective on ``comm``."""
    total = np.empty_like(values)
    wait(comm.Iallreduce(values, total), IN_ROUND)
    return total
