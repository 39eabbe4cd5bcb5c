"""The watchdog: which waits end a job and which do not, its clock, and what it says of many ranks."""

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import cast
from unittest.mock import patch

import numpy as np
import pytest
from jobs import soon
from layouts import WAIT
from mpi4py import MPI
from worlds import flat_world

from mpigraph.log import line_calling
from mpigraph.mpi.board import Board, Rounds
from mpigraph.mpi.deadlines import Waits
from mpigraph.mpi.idle import look_at_frame
from mpigraph.mpi.watchdog import Watchdog

TIMEOUT = 1000.0  # far beyond what passes in a test: time passes by advancing the clock


class Ended(Exception):
    """The watchdog would have ended the job."""


@contextmanager
def watching() -> Iterator[Watchdog]:
    """A watchdog without a thread, of trainer 0 of a job on one node; :func:`pass_time` is its clock."""

    def end(status: int, text: str, stacks: bool = False) -> None:
        raise Ended(text)

    watchdog = Watchdog(MPI.COMM_SELF, "trainer 0/2 (rank 0)", TIMEOUT, waits=Waits(), watches=False)
    with patch("mpigraph.mpi.watchdog.abort", end):
        yield watchdog
    watchdog.close()


def pass_time(watchdog: Watchdog, seconds: float) -> None:
    watchdog.waits.now += seconds
    watchdog.look()


def judge(watchdog: Watchdog, shortest: float, longest: float, in_step: bool = False, still: float = 0.0) -> None:
    """Judge the maxima of all nodes: seconds that trainers have waited, and without a sign of life."""
    numbers = [int(-1000 * shortest), int(1000 * longest), in_step, int(1000 * still), 1, 0, 0, 0, 0]
    watchdog._decide(np.array(numbers, np.int64))


def waited(watchdog: Watchdog) -> float:
    watchdog._write()
    return watchdog.board.waited(0, watchdog.waits.now)


def line(watchdog: Watchdog) -> str:
    watchdog._write()
    return watchdog.board.lines(watchdog.waits.now)[0]


def test_a_wait_inside_a_step_ends() -> None:
    with watching() as watchdog, watchdog.waits.watch("sampling round 3", patience=2):
        pass_time(watchdog, 1.9 * TIMEOUT)
        with pytest.raises(
            Ended, match=r"waited 2\d+ s in sampling round 3.*\n  trainer 0/2 \(rank 0\): waiting in sam"
        ):
            pass_time(watchdog, 0.2 * TIMEOUT)


def test_a_wait_for_others_does_not_end_while_one_of_them_runs(caplog: pytest.LogCaptureFixture) -> None:
    with watching() as watchdog:
        for longest in (100, 300, 5000, 9000, 11000):
            watchdog._write()
            judge(watchdog, 0.0, longest)
        texts = [record.getMessage() for record in caplog.records]
        assert len(texts) == 3 and "trainer 0/2 (rank 0): running at test_watchdog.py:" in texts[0]  # 300, 5000, 11000


def test_time_in_which_the_process_was_stopped_does_not_count() -> None:
    waits, begin = Waits(), time.monotonic() - 2000.5
    waits.tick(begin, 2.0, 0.5)  # the first
    for seconds, now in ((0.5, 1.0), (1.0, 1.5), (2000.0, 2.0), (2000.5, 2.5)):
        waits.tick(begin + seconds, 2.0, 0.5)
        assert waits.now == now
    watchdog = Watchdog(MPI.COMM_SELF, "trainer 0/1 (rank 0)", TIMEOUT, waits=waits)
    assert soon(lambda: waits.now >= 4.0)  # its thread goes on
    watchdog.close()
    assert 4.0 <= waits.now < TIMEOUT


def test_trainers_who_all_wait_end_the_job_at_last() -> None:
    with watching() as watchdog:
        judge(watchdog, TIMEOUT - 1, TIMEOUT + 9)  # one may have come just now
        judge(watchdog, TIMEOUT + 1, TIMEOUT + 9, in_step=True)  # a server works
        with pytest.raises(Ended, match=r"(?s)every trainer waits.*belongs on all of them"):
            judge(watchdog, TIMEOUT + 1, TIMEOUT + 9)


def test_a_process_without_a_sign_of_life_ends_the_job_if_somebody_waits() -> None:
    with watching() as watchdog:
        for longest in (0.0, TIMEOUT - 1):
            judge(watchdog, 0.0, longest, still=TIMEOUT + 1)
        with pytest.raises(Ended, match=r"stopped or lost.*\n  trainer 0/2"):
            judge(watchdog, 0.0, TIMEOUT + 1, still=TIMEOUT + 1)


def test_what_a_trainer_waits_for() -> None:
    """It waits for others if its main thread does, and every thread that works for it."""
    with watching() as watchdog:
        watchdog.waits.now = 50.0
        assert waited(watchdog) == 0 and "running at test_watchdog.py:" in line(watchdog)
        with watchdog.waits.meeting("a barrier"):
            watchdog.waits.now = 60.0
            assert waited(watchdog) == 10
            with watchdog.waits.watch("a step"):
                assert waited(watchdog) == 0 and watchdog.board.in_step(0, 60.0)
            go, ready = threading.Event(), threading.Event()

            def work(wait: Callable[[str], AbstractContextManager[None]]) -> None:
                with watchdog.working(), wait("channel 3"):
                    ready.set()
                    go.wait(WAIT)

            for wait, seconds in [(watchdog.waits.meeting, 10), (watchdog.own, 10), (watchdog.waits.watch, 0)]:
                ready.clear()
                go.clear()
                watchdog.waits.now = 50.0
                thread = threading.Thread(target=work, args=(wait,), daemon=True)
                thread.start()
                assert ready.wait(WAIT)
                watchdog.waits.now = 60.0
                assert waited(watchdog) == seconds
                go.set()
                thread.join()
        assert re.search(r"running at test_watchdog\.py:\d+ \(last in a barrier\)", line(watchdog))
        with watchdog.own("the next minibatch"):  # whose thread has ended
            assert waited(watchdog) == 0


def test_nothing_is_collected_while_another_thread_is_looked_at() -> None:
    """Its frames would be gone then, on CPython 3.11."""
    looked, go = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: looked.set() or go.wait(WAIT))
    thread.start()
    assert looked.wait(WAIT)
    places: list[str] = []

    def note(phase: str, info: object) -> None:
        frame = sys._getframe(1)
        places.append(frame.f_code.co_name)

    before = gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(1)
    try:
        seen = [look_at_frame(cast(int, thread.ident), line_calling) for _ in range(10)]
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(note)
        go.set()
        thread.join()
    assert re.fullmatch(r"test_watchdog\.py:\d+", seen[0]) and places and "look_at_frame" not in places
    assert gc.isenabled()


def test_a_step_that_begins_with_a_meeting() -> None:
    with watching() as watchdog, watchdog.waits.meeting("step of SparseAdam") as met:
        pass_time(watchdog, TIMEOUT / 2)
        assert waited(watchdog) == TIMEOUT / 2
        met()
        pass_time(watchdog, 0.9 * TIMEOUT)
        with pytest.raises(Ended, match=f"waited {1.1 * TIMEOUT:.0f} s in step of SparseAdam"):
            pass_time(watchdog, 0.2 * TIMEOUT)


def test_a_board_of_a_node(comm: MPI.Intracomm) -> None:
    board = Board(comm, f"rank {comm.rank}")
    board.write(comm.rank + 0.5, comm.rank == 1, "läuft " * 1000)
    comm.Barrier()
    board.look(1.0)
    for rank in range(comm.size):
        assert (board.waited(rank, 1.0), board.in_step(rank, 1.0)) == (rank + 0.5, rank == 1)
        assert any(line.startswith(f"rank {rank}: läuft läuft") for line in board.lines(1.0))
    board.look(9.0)  # no rank has written since, and all have waited: what they said may be over
    for rank in range(comm.size):
        own = rank == comm.rank
        assert board.waited(rank, 9.0) == (rank + 0.5) * own and (board.still(rank, 9.0) == 0) >= own
    assert sum("since it was läuft" in line for line in board.lines(9.0)) == comm.size - 1
    comm.Barrier()
    board.close()


def test_a_stopped_process_shows_no_sign_of_life() -> None:
    """One that computes without ever giving up Python's lock does."""
    board = Board(MPI.COMM_SELF, "rank 0")
    job = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    board.addresses[0, 0] = job.pid
    board.rank = -1  # look at it as at another rank's
    now = 0.0

    def age() -> float:
        nonlocal now
        for _ in range(5):
            time.sleep(0.05)
            now += 1
            board.look(now)
        return board.still(0, now)

    try:
        assert soon(lambda: age() < 5)
        os.kill(job.pid, signal.SIGSTOP)
        age()
        before = board.still(0, now)
        assert age() >= before + 5
    finally:
        job.kill()
        job.wait()
        board.close()


def test_leaders_share_maxima_until_all_close(comm: MPI.Intracomm) -> None:
    rounds = Rounds(comm.Dup())
    results: list[list[int]] = []
    begin = time.monotonic()
    while len(results) < 3 + comm.rank and time.monotonic() - begin < WAIT:
        rounds.begin(np.array([comm.rank + 10 * len(results), -comm.rank, 1], np.int64), 0.0)
        time.sleep(0.001)
        if (result := rounds.result()) is not None:
            results.append(result.tolist())
        if len(results) == 3:
            break
    assert [result[1:] for result in results] == [[0, 1]] * 3
    assert [result[0] for result in results] == [comm.size - 1 + 10 * k for k in range(3)]
    rounds.close(lambda: np.array([0, 0, 0], np.int64), lambda maxima: not maxima[2])
    rounds.comm.Free()


@pytest.mark.parametrize("threads", [False, True])
def test_a_node_whose_leader_is_silent_ends_the_job_if_somebody_waits(comm: MPI.Intracomm, threads: bool) -> None:
    """Whichever thread makes the rounds of leaders: a silent one makes none."""
    leaders = comm.Dup()
    watchdog = Watchdog(
        MPI.COMM_SELF, "trainer", TIMEOUT, leaders=leaders, threads=threads, waits=Waits(), watches=False
    )

    def end(status: int, text: str, stacks: bool = False) -> None:
        raise Ended(text)

    def go_on(seconds: float) -> None:
        pass_time(watchdog, seconds)
        watchdog.exchange()  # as a server's main thread does

    try:
        if comm.rank == 0 and comm.size > 1:
            with patch("mpigraph.mpi.watchdog.abort", end):
                go_on(0)
                go_on(2 * TIMEOUT)
                with watchdog.waits.meeting("a barrier"):
                    go_on(0.9 * TIMEOUT)
                    with pytest.raises(Ended, match="another node has shown no sign of life"):
                        go_on(0.2 * TIMEOUT)
    finally:  # the others make no round before
        comm.Barrier()
        watchdog.close()
        leaders.Free()


def test_the_garbage_collectors_thread_communicates_nothing(comm: MPI.Intracomm) -> None:
    """Its calls are made in the main thread, outside of other waits."""
    with flat_world(comm) as world:
        called: list[threading.Thread] = []

        def call() -> None:
            called.append(threading.current_thread())

        thread = threading.Thread(target=lambda: world.in_main_thread(call))
        thread.start()
        thread.join()
        with world.watch("something else"):
            world.in_main_thread(call)
        assert not called
        with world.meeting("others"):
            assert called == 2 * [threading.current_thread()]
        world.in_main_thread(call)
        assert len(called) == 3
