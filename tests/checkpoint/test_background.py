"""How fast a checkpoint is written beside training."""

import threading
import time

import pytest

from mpigraph.checkpoint import background
from mpigraph.checkpoint.background import Pace


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch) -> Pace:
    monkeypatch.setattr(background, "_NICE", 0)  # the thread of a test goes on
    found = Pace()
    found.step_back()
    return found


def work(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_it_rests_for_the_share_that_it_does_not_take(pace: Pace) -> None:
    begin = time.perf_counter()
    work(0.02)
    pace.pause()
    assert time.perf_counter() - begin >= 0.02 / background._SHARE


def test_waiting_for_the_disk_is_rest(pace: Pace, monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr(pace._urgent, "wait", rests.append)
    pace._begin -= 100  # in which it had next to no work
    pace.pause()
    pace._worked -= 5
    pace.pause()
    assert rests[0] == 0 and rests[1] == pytest.approx(5 / background._SHARE, rel=0.1)


def test_who_waits_makes_it_hurry(pace: Pace) -> None:
    pace._worked -= 1000  # it has worked for so long
    thread = threading.Timer(0.05, pace.hurry)
    thread.start()
    begin = time.perf_counter()
    pace.pause()
    pace._worked -= 1000
    pace.pause()
    assert time.perf_counter() - begin < 100
    thread.join()
