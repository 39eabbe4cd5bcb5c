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
from contextlib import contextmanager, nullcontext
from typing import cast
from unittest.mock import patch

import pytest
from layouts import WAIT
from mpi4py import MPI
from worlds import flat_world

from mpigraph.mpi.board import Board, Record, Reports, Summary, spans
from mpigraph.mpi.watchdog import Watchdog, _line_of_script

TIMEOUT = 1000.0  # far beyond what passes in a test: time passes by advancing the clock


class Ended(Exception):
    """The watchdog would have ended the job."""


@contextmanager
def watching(trainers: int = 2) -> Iterator[Watchdog]:
    """A watchdog without a thread, of trainer 0 of a job on one node; :func:`pass_time` is its clock."""

    def end(status: int, text: str, stacks: bool = False) -> None:
        raise Ended(text)

    watchdog = Watchdog(MPI.COMM_SELF, "trainer 0/2 (rank 0)", TIMEOUT, trainers=trainers, clock=None)
    with patch("mpigraph.mpi.watchdog.abort", end):
        yield watchdog
    watchdog.close()


def pass_time(watchdog: Watchdog, seconds: float) -> None:
    watchdog.now += seconds
    watchdog.look()


def trainer(number: int, places: list[str], blocked: float, known: bool = True) -> Record:
    return Record(f"trainer {number}", number, True, f"waiting in {places}", blocked, blocked, places, known)


def test_a_wait_inside_a_step_ends() -> None:
    with watching() as watchdog, watchdog.watch("sampling round 3", patience=2):
        pass_time(watchdog, 1.9 * TIMEOUT)
        with pytest.raises(Ended, match=r"waited 2\d+ s in sampling round 3.*\n  trainer\(s\) 0: waiting in sampling"):
            pass_time(watchdog, 0.2 * TIMEOUT)


def test_a_wait_for_others_does_not_end_while_one_of_them_runs(caplog: pytest.LogCaptureFixture) -> None:
    with watching() as watchdog:

        def look(blocked: float) -> None:
            records = [trainer(0, ["control calls"], blocked), Record("trainer 1", 1, True, "running at evaluate.py:7")]
            watchdog.now = blocked
            watchdog.judge(Summary.of(records, []))

        for blocked in (100, 300, 5000, 9000, 11000):
            look(blocked)
        texts = [record.getMessage() for record in caplog.records]
        assert len(texts) == 3 and "trainer(s) 1: running at evaluate.py:7 for 0 s" in texts[0]  # 300, 5000, 11000


def test_trainers_may_still_meet_while_a_message_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpigraph.mpi.watchdog._strangers", lambda workers: False)  # threads that other tests have left
    monkeypatch.setattr("mpigraph.mpi.idle.Idle._works", lambda *_: False)
    with watching() as watchdog, watchdog.meeting("barrier", "barrier"):
        watchdog.recognise(lambda frame: None)
        watchdog.now += 10
        for waiting in (1, 0):
            monkeypatch.setattr("mpigraph.mpi.watchdog.unsent", lambda waiting=waiting: waiting)
            assert watchdog.record().known == (not waiting)


def test_a_trainer_that_computes_in_another_thread_is_not_stuck() -> None:
    """Whichever wait its main thread is in: it may send what the others wait for."""
    with watching() as watchdog, watchdog.meeting("a barrier", "control calls"):
        watchdog.recognise(lambda frame: None)
        over = threading.Event()

        def compute() -> None:
            while not over.is_set():
                sum(range(1000))

        thread = threading.Thread(target=compute, daemon=True)
        thread.start()
        blocked = []
        while len(blocked) < 200 and 1e-3 not in blocked[1:]:  # a busy machine may give the thread no time at first
            time.sleep(0.05)
            watchdog.now += 0.05
            blocked.append(watchdog.record().blocked)
        over.set()
        thread.join()
        assert 1e-3 in blocked[1:], blocked


def test_time_in_which_the_process_was_stopped_does_not_count() -> None:
    late = 0.0
    watchdog = Watchdog(MPI.COMM_SELF, "trainer 0/1 (rank 0)", TIMEOUT, clock=lambda: time.monotonic() + late)
    with watchdog.watch("rows"):
        late = 2 * TIMEOUT  # the next tick comes so late
        before, end = watchdog.now, time.monotonic() + WAIT
        while watchdog.now < before + 0.6 and time.monotonic() < end:  # two ticks
            time.sleep(0.01)
        assert before + 0.6 <= watchdog.now < TIMEOUT / 2
    watchdog.close()


def judge(watchdog: Watchdog, records: list[Record], seconds: float, still: tuple[tuple[str, float], ...] = ()) -> None:
    """Judge the same again and again for some seconds."""
    for _ in range(int(seconds)):
        watchdog.now += 1
        watchdog.judge(Summary.of(records, list(still)))


APART = [trainer(0, ["channel 1"], 20.0), trainer(1, ["channel 5", "control calls"], 30.0)]


def test_trainers_that_wait_for_one_another_in_vain_end_the_job_soon() -> None:
    with watching() as watchdog:
        judge(watchdog, APART, 5)  # a message may be late
        with pytest.raises(Ended, match=r"(?s)different calls.*trainer\(s\) 0: .*channel 1.*trainer\(s\) 1: .*control"):
            judge(watchdog, APART, 5)


@pytest.mark.parametrize(
    "records",
    [
        [APART[0], Record("trainer 1", 1, True)],  # one runs
        [APART[0], trainer(1, ["channel 1", "control calls"], 30.0)],  # they will meet on channel 1
        [APART[0], trainer(1, ["control calls"], 30.0, known=False)],  # another thread may come
        [*APART, Record("server", 2, False, in_step=True)],  # a server works
        [APART[0], trainer(1, ["control calls"], 1.0)],  # not for long
    ],
    ids=["runs", "meet", "unknown", "server", "young"],
)
def test_trainers_that_may_meet_do_not_end_the_job(records: list[Record]) -> None:
    with watching() as watchdog:
        judge(watchdog, records, 100)


def test_trainers_who_all_wait_end_the_job_at_last() -> None:
    with watching() as watchdog:
        for blocked in (TIMEOUT - 1, TIMEOUT + 1):
            records = [trainer(k, ["channel 1"], blocked + k, known=False) for k in range(2)]
            with pytest.raises(Ended, match="every trainer waits") if blocked > TIMEOUT else nullcontext():
                judge(watchdog, records, 1)


def test_a_process_without_a_sign_of_life_ends_the_job_if_somebody_waits() -> None:
    still = (("trainer 1/2 (rank 1) on n1", TIMEOUT + 1),)
    with watching() as watchdog:
        for blocked in (0.0, TIMEOUT - 1):
            judge(watchdog, [trainer(0, ["control calls"], blocked), Record("trainer 1", 1, True)], 1, still)
        with pytest.raises(Ended, match=r"stopped or lost.*\n  trainer 1/2 \(rank 1\) on n1 has shown no sign of life"):
            judge(watchdog, [trainer(0, ["control calls"], TIMEOUT + 1), Record("trainer 1", 1, True)], 1, still)


def test_what_a_trainer_waits_for() -> None:
    """It waits for others if its main thread does, and every thread that works for it."""
    with watching() as watchdog:
        watchdog.now = 50.0
        assert watchdog.record().blocked == 0 and "running at test_watchdog.py:" in watchdog.record().text
        with watchdog.meeting("a barrier", "control calls"):
            watchdog.now = 60.0
            assert (watchdog.record().blocked, watchdog.record().places) == (10, ["control calls"])
            with watchdog.watch("a step"):
                assert watchdog.record().blocked == 0 and watchdog.record().in_step
            go, ready = threading.Event(), threading.Event()

            def work(wait: Callable[[str], object]) -> None:
                with watchdog.working(), wait("channel 3"):
                    ready.set()
                    go.wait(WAIT)

            for wait, blocked in [
                (lambda what: watchdog.meeting(what, what), 10),
                (watchdog.own, 10),
                (lambda what: watchdog.meeting(what, what, limited=True), 0),
                (watchdog.watch, 0),
            ]:
                ready.clear()
                go.clear()
                watchdog.now = 50.0
                thread = threading.Thread(target=work, args=(wait,), daemon=True)
                thread.start()
                assert ready.wait(WAIT)
                watchdog.now = 60.0
                assert watchdog.record().blocked == blocked
                go.set()
                thread.join()
        assert re.fullmatch(r"running at test_watchdog\.py:\d+ \(last in a barrier\)", watchdog.record().text)
        with watchdog.own("the next minibatch"):  # whose thread has ended
            assert watchdog.record().blocked == 0


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
        seen = [_line_of_script(cast(int, thread.ident)) for _ in range(10)]
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(note)
        go.set()
        thread.join()
    assert re.fullmatch(r" at test_watchdog\.py:\d+", seen[0]) and places and "look_at_frame" not in places
    assert gc.isenabled()


def test_a_step_that_begins_with_a_meeting() -> None:
    with watching() as watchdog, watchdog.step_after_meeting("step of SparseAdam", "trainers") as met:
        pass_time(watchdog, TIMEOUT / 2)
        assert watchdog.record().blocked == TIMEOUT / 2
        met()
        pass_time(watchdog, 0.9 * TIMEOUT)
        with pytest.raises(Ended, match=f"waited {1.1 * TIMEOUT:.0f} s in step of SparseAdam"):
            pass_time(watchdog, 0.2 * TIMEOUT)


def test_thousands_of_ranks_are_a_few_lines() -> None:
    summary = Summary()
    for node in range(500):
        records = [trainer(15 * node + k, [f"channel {k % 3}"], 5.0 + k) for k in range(15)]
        records.append(Record(f"server {node}", 16 * node, False, "serving"))
        part = Summary.of(records, [(f"rank {node}", 3.0)])
        data = part.encode()
        assert len(data) < 3000
        summary.add(Summary.decode(data))
    assert summary.trainers == summary.blocked == 7500 and summary.at["channel 1"] == 2500
    assert (summary.shortest, summary.longest) == (5.0, 19.0)
    assert len("\n".join(summary.lines())) < 4000
    many = Summary.of([Record(str(k), k, True, f"running at line {k}") for k in range(1000)], [])
    assert len(many.encode()) < 10_000 and len("\n".join(many.lines())) < 4000
    assert spans([(5, 6), (1, 1), (2, 3), (9, 9)]) == [(1, 3), (5, 6), (9, 9)]


def test_a_board_of_a_node(comm: MPI.Intracomm) -> None:
    board = Board(comm)
    text = "läuft " * 1000
    board.write(Record(f"rank {comm.rank}", comm.rank, True, text, 2.0, 2.0, [f"channel {comm.rank}"] * 20))
    comm.Barrier()
    for rank in range(comm.size):
        seen = board.read(rank)
        assert (seen.who, seen.known, seen.text[:5]) == (f"rank {rank}", False, "läuft")
    board.look(1.0)
    board.look(9.0)  # no rank has written since, and all have waited
    ages = [board.still(rank, 9.0) for rank in range(comm.size)]
    assert ages[comm.rank] == 0
    comm.Barrier()
    speakers = comm.allgather(board.claim(0.3))
    assert sum(speakers) == 1
    comm.Barrier()
    board.close()


def test_what_a_process_said_long_ago_is_over() -> None:
    """One that holds Python's lock for long says nothing, and may have left the wait that it was in."""
    board = Board(MPI.COMM_SELF)
    board.write(trainer(0, ["control calls"], 9.0))
    board.rank = -1  # look at it as at another rank's
    board.look(1.0)
    assert board.summary(1.0, TIMEOUT).blocked == 1
    board.look(9.0)
    summary = board.summary(9.0, TIMEOUT)
    assert (summary.trainers, summary.blocked, summary.at) == (1, 0, {})
    assert summary.lines() == ["trainer(s) 0: busy or stopped since it was waiting in ['control calls'] for 8 s"]
    board.close()


def test_a_stopped_process_shows_no_sign_of_life() -> None:
    """One that computes without ever giving up Python's lock does."""
    board = Board(MPI.COMM_SELF)
    job = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    board._pids[0] = job.pid
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
        end = time.monotonic() + WAIT
        while age() >= 5 and time.monotonic() < end:
            pass
        assert board.still(0, now) < 5
        os.kill(job.pid, signal.SIGSTOP)
        age()
        before = board.still(0, now)
        assert age() >= before + 5
    finally:
        job.kill()
        job.wait()
        board.close()


def test_leaders_report_to_the_first(comm: MPI.Intracomm) -> None:
    reports = Reports(comm)
    own = Summary.of([trainer(comm.rank, ["channel 1"], 1.0 + comm.rank)], [])
    begin = time.monotonic()
    done = comm.Ibarrier() if not reports.leads else None
    while time.monotonic() - begin < WAIT:
        now = time.monotonic() - begin
        reports.exchange(own, now)
        if reports.leads and reports.complete and done is None:
            done = comm.Ibarrier()
        if done is not None and done.Test():
            break
        time.sleep(0.001)
    assert done is not None and reports.silence(0.0) <= 0
    if reports.leads:
        assert [summary.longest for _, _, summary in reports.others(now)] == [1.0 + k for k in range(1, comm.size)]
    reports.close()


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
