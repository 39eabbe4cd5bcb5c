"""Exceptions of signal handlers inside of code that communicates."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest
import torch
from layouts import ALONE, Job, own_on_layouts
from oracle import NUM_NODES, open_graph

import mpigraph.distributed as dist
from mpigraph.errors import InvalidArgumentError
from mpigraph.mpi import wait as interrupts
from mpigraph.mpi.coroutine import Coroutine, Task, run
from mpigraph.mpi.messages import Gate
from mpigraph.mpi.wait import Uninterrupted
from mpigraph.rows.transport import HostMutex


class Ended(BaseException):
    """The job was ended."""


def forget(inside: Uninterrupted) -> None:
    """Leave all blocks: an end of the job, which a test catches, leaves none."""
    inside._depth, inside.since = 0, 0.0


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> Iterator[Uninterrupted]:
    """The process's block, as in a job that was started with Ctrl-C ignored (``nohup``)."""

    def end(status: int) -> None:
        raise Ended

    monkeypatch.setattr(interrupts, "abort", end)
    monkeypatch.setattr("sys.excepthook", lambda *_: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interrupts.UNINTERRUPTED.begin("trainer 0/2", serves=False)
    yield interrupts.UNINTERRUPTED
    forget(interrupts.UNINTERRUPTED)
    interrupts.UNINTERRUPTED.end()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    for number, handler in before.items():
        signal.signal(number, handler)


def late(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise TimeoutError("late")


def late_for(what: str, *arguments: object) -> None:
    late(signal.SIGUSR1, None)


class Deadline:
    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise TimeoutError("late")


@pytest.mark.parametrize("handler", [late, partial(late_for, "rows"), Deadline(), Deadline().__call__])
def test_an_exception_of_a_handler_ends_the_job(inside: Uninterrupted, handler: Callable[..., None]) -> None:
    def steps() -> Coroutine[None]:
        signal.raise_signal(signal.SIGUSR1)
        yield from ()

    signal.signal(signal.SIGUSR1, handler)
    with pytest.raises(Ended):
        run(steps())


def test_an_exception_of_a_handler_is_no_error_of_a_task(inside: Uninterrupted) -> None:
    class Request:
        def Test(self, status: object) -> bool:
            signal.raise_signal(signal.SIGUSR1)
            return False

    def steps() -> Coroutine[None]:
        yield Request()

    task = Task(steps())
    signal.signal(signal.SIGUSR1, late)
    with pytest.raises(Ended):
        task.advance()


def test_other_errors_end_the_job_in_operations_alone(inside: Uninterrupted) -> None:
    """There MPI may write to memory, and other ranks count on this one."""

    def fail() -> None:
        caller = sys._getframe(1)  # as a local variable, not as an argument
        raise OSError(f"no space left on device ({caller.f_lineno})")

    def steps(error: Exception) -> Coroutine[None]:
        yield from ()
        raise error

    signal.signal(signal.SIGUSR1, late)
    with pytest.raises(OSError, match="no space"), inside:
        fail()
    with pytest.raises(InvalidArgumentError, match="on every rank"):
        run(steps(InvalidArgumentError("on every rank")))
    with pytest.raises(Ended):
        run(steps(MemoryError()))


def test_a_second_ctrl_c_after_some_seconds_is_not_held_back(inside: Uninterrupted) -> None:
    """The user's code inside may not end; where other ranks count on this one, the job does."""
    for identity, ends in (("", KeyboardInterrupt), ("trainer 0/2", Ended)):
        inside.begin(identity, serves=False)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        reached = 0
        with pytest.raises(ends), inside, inside:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            reached = 1
            inside.since -= 60
            signal.raise_signal(signal.SIGINT)
            reached = 2
        assert reached == 1
        forget(inside)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


HELD = {
    "a ticket": (HostMutex, "draw", lambda t: t.__setitem__(torch.arange(4), torch.ones(4, 2))),
    "the gate of a write": (Gate, "__enter__", lambda t: t.__setitem__(torch.arange(4), torch.ones(4, 2))),
    "the gate of a read": (Gate, "__enter__", lambda t: t[torch.arange(4)]),
}


@pytest.mark.parametrize("held", HELD)
@own_on_layouts([ALONE])
def test_ctrl_c_leaves_nothing_taken_in_a_job_of_one_rank(
    layout: Job, oracle, held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, name, call = HELD[held]
    taken, path = getattr(kind, name), oracle(2)

    def take(*arguments: object) -> object:
        result = taken(*arguments)
        signal.raise_signal(signal.SIGINT)
        return result

    def body() -> None:
        open_graph(path)
        tensor: Any = dist.DistTensor((NUM_NODES, 2), torch.float32)
        call(tensor)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as Jupyter does before each cell
        monkeypatch.setattr(kind, name, take)
        with pytest.raises(KeyboardInterrupt):
            call(tensor)
        monkeypatch.undo()
        left = threading.Thread(target=lambda: (call(tensor), tensor.handle.rows.window.retire()), daemon=True)
        left.start()
        left.join(20)
        assert not left.is_alive()

    layout.run(body)
