"""Waiting: policies, coroutines of several operations, and the thread that advances them."""

import time

import pytest
from jobs import soon
from layouts import WAIT
from mpi4py import MPI
from worlds import counted

from mpigraph.mpi.coroutine import Coroutine, Progress, Task, advance, finish, run
from mpigraph.mpi.deadlines import WAITS, Wait
from mpigraph.mpi.wait import IDLE, PATIENCE, TRAVELLING, Policy, until


class Later:
    """A request that completes at its ``tests``-th test."""

    def __init__(self, tests: int) -> None:
        self.left = tests

    def Test(self, status: MPI.Status | None = None) -> bool:
        self.left -= 1
        return self.left <= 0


def add_up(requests: list[Later], error: Exception | None = None) -> Coroutine[int]:
    taken = 0
    for request in requests:
        assert isinstance((yield request), MPI.Status)
        taken += 1
    if error is not None:
        raise error
    return taken


def test_policies_sleep_longer_and_longer_up_to_a_limit() -> None:
    policy = Policy(spins=2, first=1e-5, longest=4e-5)
    assert [policy.seconds(turn) for turn in (0, 1)] == [0, 0]
    assert [policy.seconds(turn) for turn in (2, 3, 5, 10**6)] == pytest.approx([1e-5, 1.5e-5, 3.375e-5, 4e-5])


def test_a_request_waits_longer_for_a_host_that_was_not_asked_for_a_second() -> None:
    sleeps = [IDLE.seconds(IDLE.spins + turn) for turn in range(2 * PATIENCE)]
    assert max(sleeps[:PATIENCE]) == 1e-3 and 0.99 < sum(sleeps[:PATIENCE])
    assert sleeps[PATIENCE:] == [2e-2] * PATIENCE


def test_waits_end_with_what_they_wait_for_or_in_time() -> None:
    later = Later(20)
    assert until(later.Test)
    assert later.left == 0
    start = time.monotonic()
    endless = Task(add_up([Later(10**9)]))
    assert not advance([endless], TRAVELLING, 0.05)
    assert 0.05 <= time.monotonic() - start < WAIT
    assert advance([], TRAVELLING, 0.0)


def test_coroutines_are_run_or_advanced() -> None:
    assert run(add_up([Later(3), Later(1)])) == 2
    assert finish([add_up([Later(tests)] * tests) for tests in (3, 1)], "adding") == [3, 1]
    with pytest.raises(KeyError):
        run(add_up([Later(1)], KeyError("x")))
    called: list[str] = []
    task = Task(add_up([Later(2), Later(1), Later(3)]), "adding")
    task.then(lambda: called.append("first"))
    assert [task.advance(), task.taken] == [False, 0]
    assert [task.advance(), task.taken] == [True, 1]
    assert [task.advance(), task.taken, task.done] == [True, 2, False]
    assert not called
    other = Task(add_up([Later(1)]))
    assert advance([task, other], TRAVELLING) and task.result() == 3 and called == ["first"] and other.result() == 1
    task.then(lambda: called.append("second"))
    assert called == ["first", "second"] and not task.advance()
    assert Task(add_up([])).result() == 0
    broken = Task(add_up([Later(2)], KeyError("x")))
    assert advance([broken], TRAVELLING)
    with pytest.raises(KeyError):
        broken.result()


def test_a_wait_with_a_name_has_a_deadline_and_counts_requests() -> None:
    seen: list[Wait] = []

    def steps() -> Coroutine[int]:
        seen.extend(WAITS.all())
        yield Later(3)
        return 7

    def work() -> None:
        seen.extend(WAITS.all())
        raise ZeroDivisionError("own work")

    before = counted("requests")
    assert finish([steps(), steps()], "two rows", asked=[4, 4]) == [7, 7]
    assert counted("requests") == before + 2
    with pytest.raises(ZeroDivisionError, match="own work"):
        finish([steps()], "a row", meanwhile=work)
    assert [(wait.what, wait.patience) for wait in seen] == [("two rows", 1.0)] * 2 + [("a row", 1.0)] * 2
    seen.clear()
    assert run(steps()) == 7 and not seen and not WAITS.all()


class Asked:
    """Something that the progress thread listens for."""

    outstanding = False
    calls = 0

    def progress(self) -> bool:
        self.calls += 1
        return self.calls % 2 == 0


class Quiet(Asked):
    """The same, where nothing ever comes."""

    def progress(self) -> bool:
        self.calls += 1
        return False


def test_the_progress_thread_advances_and_listens() -> None:
    progress, asked = Progress("mpigraph-progress"), Asked()
    for listening in (False, True):
        stop = progress.listen(asked) if listening else None
        left, awaited = Task(add_up([Later(30), Later(2)]), "a"), Task(add_up([Later(30)]), "b")
        awaited.awaited = True
        for task in (left, left, awaited):
            progress.add(task)
        assert soon(lambda left=left: left.done)
        assert awaited.taken == 0 and advance([awaited], TRAVELLING)
        if stop is not None:
            assert soon(lambda: asked.calls > 30)
            stop()
            before = asked.calls
            time.sleep(0.02)
            assert asked.calls == before
    progress.close()


def test_the_progress_thread_looks_seldom_where_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpigraph.mpi.wait.PATIENCE", 3)
    progress, quiet = Progress("mpigraph-progress"), Quiet()
    progress.listen(quiet)
    assert soon(lambda: quiet.calls > 20)  # its sleeps have grown
    begin, before = time.monotonic(), quiet.calls
    time.sleep(0.2)
    assert quiet.calls - before <= (time.monotonic() - begin) / IDLE.quiet + 1
    progress.close()


def test_a_progress_thread_that_sleeps_wakes_up_for_a_task_and_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpigraph.mpi.coroutine.IDLE", Policy(spins=0, first=1e6, longest=1e6))
    progress, quiet = Progress("mpigraph-progress"), Quiet()
    progress.listen(quiet)
    assert soon(lambda: quiet.calls > 0)
    task = Task(add_up([Later(30)]))
    progress.add(task)
    assert soon(lambda: task.done)
    progress.close()  # in a moment
