"""Rows from every rank to every rank, and sums."""

import numpy as np
from mpi4py import MPI

from mpigraph.mpi.alltoall import exchange_rows, sum_over_ranks


def test_rows_arrive_in_the_order_of_ranks(comm: MPI.Intracomm) -> None:
    me = comm.rank
    for dtype in (np.int32, np.int64):
        counts = np.array([(me + 2 * target) % 4 for target in range(comm.size)])
        rows = np.array([[me, target, i] for target in range(comm.size) for i in range(counts[target])], dtype)
        received, coming = exchange_rows(comm, rows.reshape(-1, 3), counts)
        expected = [(source + 2 * me) % 4 for source in range(comm.size)]
        assert coming.tolist() == expected and received.dtype == dtype
        assert received.tolist() == [[s, me, i] for s in range(comm.size) for i in range(expected[s])]


def test_sums(comm: MPI.Intracomm) -> None:
    values = np.array([[comm.rank, 1], [2**40, -comm.rank]])
    ranks = sum(range(comm.size))
    assert sum_over_ranks(comm, values).tolist() == [[ranks, comm.size], [comm.size * 2**40, -ranks]]
