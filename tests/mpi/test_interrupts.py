"""Exceptions of signal handlers inside of code that communicates."""

import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType

import pytest

from mpigraph.mpi import interrupts
from mpigraph.mpi.coroutine import Coroutine, Task, run
from mpigraph.mpi.interrupts import Uninterrupted


class Ended(BaseException):
    """The job was ended."""


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


def test_other_errors_pass(inside: Uninterrupted) -> None:
    def fail() -> None:
        caller = sys._getframe(1)  # as a local variable, not as an argument
        raise OSError(f"no space left on device ({caller.f_lineno})")

    def steps(frame: FrameType) -> Coroutine[None]:
        yield from ()
        fail()

    signal.signal(signal.SIGUSR1, late)
    with pytest.raises(OSError, match="no space"):
        run(steps(sys._getframe()))
