"""Whether a thread waits inside code of others: told from its stack and from what its process does."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from mpigraph.mpi.idle import ForeignWait, Idle, unsent


def in_event(frame: FrameType) -> ForeignWait | None:
    return ForeignWait("an event", "there") if frame.f_code.co_filename == threading.__file__ else None


@contextmanager
def waiting_thread() -> Iterator[Idle]:
    event = threading.Event()
    thread = threading.Thread(target=event.wait)
    thread.start()
    yield Idle(thread.ident, in_event)
    event.set()
    thread.join()


def until_idle(idle: Idle) -> tuple[ForeignWait, float] | None:
    """What it tells in looks 0.2 s apart, at most 10; another test's threads may work meanwhile."""
    for now in range(10):
        if found := idle.wait(float(now)):
            return found
        time.sleep(0.2)
    return None


def test_a_thread_that_waits_is_idle_from_when_it_was_first_seen_so() -> None:
    with waiting_thread() as idle:
        found = until_idle(idle)
        assert found is not None and found[0] == ForeignWait("an event", "there")
        time.sleep(0.2)
        later = idle.wait(100.0)
        assert later is None or later == found  # None: something in this process has run


def test_what_works_is_not_idle() -> None:
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(range(1000))

    worker = threading.Thread(target=compute)
    worker.start()
    with waiting_thread() as idle:  # it waits for a thread that works
        for now in range(4):
            assert idle.wait(float(now)) is None
            time.sleep(0.2)
    idle = Idle(worker.ident, lambda frame: ForeignWait("anything"))
    for now in range(4):
        assert idle.wait(float(now)) is None
        time.sleep(0.2)
    over.set()
    worker.join()


def test_a_thread_that_wakes_for_a_moment_is_not_idle() -> None:
    """Such as one that does one collective after another in a network of long delays."""
    event, over = threading.Event(), threading.Event()

    def wait_again() -> None:
        while not over.is_set():
            event.wait(0.05)

    thread = threading.Thread(target=wait_again)
    thread.start()
    idle = Idle(thread.ident, in_event)
    for now in range(6):
        assert idle.wait(float(now)) is None
        time.sleep(0.2)
    over.set()
    thread.join()


def test_a_process_whose_messages_leave_it_is_not_idle() -> None:
    before = unsent()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        sender.setblocking(False)
        with receiver, waiting_thread() as idle:
            with suppress(BlockingIOError):  # until the receiver takes no more
                while True:
                    sender.send(bytes(1 << 16))
            assert until_idle(idle)
            receiver.setblocking(False)
            while unsent() != before:
                with suppress(BlockingIOError):
                    receiver.recv(1 << 24)
            assert idle.wait(100.0) is None


def test_the_main_thread_of_a_forked_process_is_looked_at() -> None:
    """Until CPython 3.12 it has its parent's native_id there."""
    code = """
import os, threading
from mpigraph.mpi.idle import Idle
if pid := os.fork():
    os.waitpid(pid, 0)
else:
    Idle(threading.main_thread().ident, lambda frame: None)._sleeps()
    print("seen")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "seen\n", done.stderr


def test_what_is_not_recognised_is_not_idle() -> None:
    with waiting_thread() as idle:
        other = Idle(idle._thread, lambda frame: None)
        assert all(other.wait(float(now)) is None for now in range(3))
