"""Gates, tasks that look again, arrays from every rank to every rank, headers."""

import os
import signal
import threading

import numpy as np
import pytest
from layouts import WAIT
from mpi4py import MPI
from worlds import asked_of, words_between

from mpigraph.errors import ClosedError
from mpigraph.mpi.coroutine import NOT_YET, Coroutine, Task, advance, run
from mpigraph.mpi.messages import (
    FAILED,
    OK,
    Gate,
    Header,
    Received,
    alltoall,
    exchange_rows,
    in_rank_order,
    sum_over_ranks,
)
from mpigraph.mpi.wait import TRAVELLING, until


def waiting(steps: int) -> Coroutine[int]:
    """Look so many times for something that is not there yet."""
    for _ in range(steps):
        yield NOT_YET
    return steps


def test_a_task_that_looks_again_makes_no_progress() -> None:
    task = Task(waiting(3))
    assert [task.advance() for _ in range(4)] == [False, False, True, False]
    assert task.result() == 3
    assert run(waiting(3)) == 3
    task = Task(waiting(1_000_000))
    assert not advance([task], TRAVELLING, seconds=-1.0) and task.taken == 1


def test_a_gate_waits_for_the_present_users() -> None:
    gate, left = Gate("it was closed"), list[str]()
    inside, leave = threading.Event(), threading.Event()

    def use() -> None:
        with gate, gate:
            inside.set()
            leave.wait(WAIT)
            with gate:  # in the middle of a transfer, which cannot be left
                left.append("user")

    thread = threading.Thread(target=use)
    thread.start()
    inside.wait(WAIT)
    gate.shut()
    with pytest.raises(ClosedError, match=r"^it was closed$"), gate:
        pass
    threading.Timer(0.05, leave.set).start()
    gate.drain("users")
    assert left == ["user"]
    thread.join()


def test_a_forked_process_does_not_wait_for_another_thread_in_a_gate() -> None:
    gate, inside, leave = Gate("it was closed"), threading.Event(), threading.Event()

    def use() -> None:
        with gate:
            inside.set()
            leave.wait(WAIT)

    thread = threading.Thread(target=use)
    thread.start()
    inside.wait(WAIT)
    child = os.fork()
    if child == 0:
        signal.alarm(int(WAIT / 4))  # ends it
        with gate:
            pass
        gate.drain("users")
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    leave.set()
    thread.join()
    assert status == 0


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


def test_a_header_and_words_reach_every_rank(comm: MPI.Intracomm) -> None:
    me, size = comm.rank, comm.size
    words, counts = in_rank_order(asked_of(me, size), size)
    assert counts.tolist() == [len(words_between(me, target)) for target in range(size)]
    header = Header(comm, 40 + me, FAILED if me == 0 else OK, counts)
    until(header.request.Test)
    assert header.operations.tolist() == [40 + rank for rank in range(size)]
    assert header.statuses.tolist() == [FAILED] + [OK] * (size - 1)
    assert header.counts.tolist() == [len(words_between(rank, me)) for rank in range(size)]
    came = Received(run(alltoall(comm, words, counts, header.counts)), header.counts)
    assert came.senders == [asker for asker in range(size) if me in asked_of(asker, size)]
    for asker in range(size):
        assert np.array_equal(came.of(asker), words_between(asker, me))
