"""How fast a checkpoint is written beside training."""

import threading
import time

import pytest

from mpigraph.checkpoint import background
from mpigraph.checkpoint.background import Pace


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that a thread has waited for a core so far: the last item."""
    found = [0.0]
    monkeypatch.setattr(background, "_delay", lambda: found[-1])
    monkeypatch.setattr(background, "_NICE", 0)  # the thread of a test goes on
    return found


def seconds_of(pace: Pace) -> float:
    begin = time.perf_counter()
    pace.pause()
    return time.perf_counter() - begin


def test_a_core_that_others_want_is_left_to_them(delays: list[float]) -> None:
    pace = Pace()
    pace.step_back()
    time.sleep(0.02)
    delays.append(0.01)  # half of that time it had no core
    assert seconds_of(pace) >= 0.9 * 9 * 0.01


def test_of_a_core_that_nobody_wants_it_takes_more(delays: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    pace = Pace()
    rests: list[float] = []
    monkeypatch.setattr(pace._urgent, "wait", rests.append)
    pace.step_back()
    pace._begin -= 100  # it has worked for so long
    pace.pause()
    pace._begin -= 100
    delays.append(6.0)
    pace.pause()
    assert rests == [pytest.approx(3 * 100, rel=0.01), pytest.approx(9 * 94, rel=0.01)]


def test_who_waits_makes_it_hurry(delays: list[float]) -> None:
    pace = Pace()
    pace.step_back()
    pace._begin -= 1000  # it has worked for so long
    delays.append(500.0)
    thread = threading.Timer(0.05, pace.hurry)
    thread.start()
    assert seconds_of(pace) < 100
    delays.append(1000.0)
    assert seconds_of(pace) < 100
    thread.join()


def test_the_system_says_how_long_a_thread_has_waited() -> None:
    assert 0 <= background._delay() < time.clock_gettime(time.CLOCK_BOOTTIME)
