"""Waits of a thread inside foreign code, detected from its stack and the activity of its process."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from jobs import soon

from mpigraph.mpi.idle import Idle


def in_event(frame: FrameType) -> str:
    return "an event" if frame.f_code.co_filename == threading.__file__ else ""


@contextmanager
def waiting_thread() -> Iterator[Idle]:
    event = threading.Event()
    thread = threading.Thread(target=event.wait)
    thread.start()
    yield Idle(thread.ident, in_event)
    event.set()
    thread.join()


def until_idle(idle: Idle) -> tuple[str, float] | None:
    """Look up to 10 times, 0.2 s apart; another test's threads may work meanwhile."""
    for now in range(10):
        if seen := idle.look(float(now)):
            return seen, idle.since
        time.sleep(0.2)
    return None


def test_a_thread_that_waits_is_idle_from_when_it_was_first_seen_so() -> None:
    with waiting_thread() as idle:
        seen = until_idle(idle)
        assert seen is not None and seen[0] == "an event"
        time.sleep(0.2)
        later = idle.look(100.0)
        assert not later or (later, idle.since) == seen  # none: something in this process has run


def never_idle(idle: Idle, steps: list[None], least: int) -> None:
    """Look when a thread has taken some more steps, however long that is on a busy machine."""
    begin = time.monotonic()
    for _ in range(4):
        goal = len(steps) + least
        time.sleep(0.2)
        assert soon(lambda goal=goal: len(steps) >= goal)
        assert idle.look(time.monotonic() - begin) == ""


@contextmanager
def repeating(step: Callable[[], object], steps: list[None]) -> Iterator[int]:
    """Yield the identifier of a thread that takes a step again and again, and notes each."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            step()
            steps.append(None)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield thread.ident
    finally:
        over.set()
        thread.join()


def test_a_thread_that_works_is_not_idle() -> None:
    steps: list[None] = []
    with repeating(lambda: sum(range(1000)), steps) as worker:
        with waiting_thread() as idle:  # it waits for a thread that works
            never_idle(idle, steps, 1000)
        never_idle(Idle(worker, lambda frame: "anything"), steps, 1)


def seen_working(idle: Idle, waiting: list[int], works: bool) -> bool:
    """Look until the process is seen to work, or not to; a busy machine and other tests' threads may delay that."""
    for now in range(1, 200):
        time.sleep(0.05)
        assert idle.look(now / 20, waiting) == ""  # no foreign wait
        if (idle.since == now / 20) == works:
            return True
    return False


def test_a_process_that_works_beside_a_wait_of_this_library_is_not_idle() -> None:
    """The wait polls, as other threads' waits do; another thread of the user's computes."""
    with repeating(lambda: time.sleep(1e-4), []) as main, repeating(lambda: sum(range(1000)), []) as other:
        idle = Idle(main, in_event)
        idle.look(0.0, [main])
        assert seen_working(idle, [main], True)
        assert seen_working(idle, [main, other], False)


def test_a_thread_that_wakes_for_a_moment_is_not_idle() -> None:
    """Such as one that makes one collective call after another in a network of long delays."""
    event, steps = threading.Event(), list[None]()
    with repeating(lambda: event.wait(0.05), steps) as thread:
        never_idle(Idle(thread, in_event), steps, 1)


def test_the_main_thread_of_a_forked_process_is_looked_at() -> None:
    """Until CPython 3.12 it has its parent's native_id there."""
    code = """
import os, threading
from mpigraph.mpi.idle import Idle
if pid := os.fork():
    os.waitpid(pid, 0)
else:
    Idle(threading.main_thread().ident, lambda frame: "")._sleeps()
    print("seen")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "seen\n", done.stderr


def test_what_is_not_recognised_is_not_idle() -> None:
    with waiting_thread() as idle:
        other = Idle(idle._thread, lambda frame: "")
        assert all(not other.look(float(now)) for now in range(3))
