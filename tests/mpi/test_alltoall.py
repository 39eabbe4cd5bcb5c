"""Rows from every rank to every rank, and sums."""

import numpy as np
import pytest
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


@pytest.mark.study
def test_a_message_of_more_than_2_gib() -> None:
    """More bytes than MPI-3's counts of 32 bits: they count rows."""
    rows = np.zeros(((1 << 27) + 1000, 2), np.int64)
    rows[0], rows[-1] = 1, 2
    received, coming = exchange_rows(MPI.COMM_SELF, rows, np.array([len(rows)]))
    assert received.nbytes > 1 << 31 and coming.tolist() == [len(rows)]
    assert received[0].tolist() == [1, 1] and received[-1].tolist() == [2, 2] and received.sum() == 6


def test_sums(comm: MPI.Intracomm) -> None:
    values = np.array([[comm.rank, 1], [2**40, -comm.rank]])
    ranks = sum(range(comm.size))
    assert sum_over_ranks(comm, values).tolist() == [[ranks, comm.size], [comm.size * 2**40, -ranks]]
