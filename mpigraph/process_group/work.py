"""Operations that were begun: kept until they are complete, waited for, and followed by callbacks."""

# mypy: disable-error-code="override,assignment"
# (torch overloads each method; it calls these forms)

import math
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from mpigraph.log import line_calling
from mpigraph.mpi.coroutine import Task, finish
from mpigraph.mpi.progress_thread import Progress
from mpigraph.mpi.wait import BLOCKED
from mpigraph.mpi.watchdog import Meeting

_MANY = 4096  # callbacks at once


class Operation(NamedTuple):
    """An operation that was begun and is not complete.

    Attributes:
        what: the call, such as "all_reduce" or "recv from 1".
        since: its begin, on the clock of ``time.monotonic``.
        line: the line of the user's script that made the call, such as "train.py:12"; "" if unknown.
    """

    what: str
    since: float
    line: str


class Outstanding:
    """Tasks that the caller may not wait for: kept, with the memory that MPI writes to, until they are done.

    The progress thread advances them, if there is one. Otherwise a wait advances its task, and new tasks advance all.

    Args:
        progress: the progress thread, if MPI allows one.
        meeting: watches the waits, as :meth:`.World.meeting` does.
        seconds: limit of a wait.

    Attributes:
        operations: the operation of each task, for messages, in the order of their begin.
    """

    def __init__(self, progress: Progress | None, meeting: Meeting, seconds: float) -> None:
        self._progress = progress
        self._meeting = meeting
        self._seconds = seconds
        self._callbacks = ThreadPoolExecutor(_MANY, "mpigraph-callbacks")
        self._swept = 0
        self.operations: dict[Task[Any], Operation] = {}

    def keep(self, task: Task[Any]) -> None:
        """Keep a task until it is done; a second call does nothing."""
        if task.done or task in self.operations:
            return
        if self._progress is None and len(self.operations) > 2 * self._swept:  # so n calls look at O(n) tasks
            for kept in list(self.operations):
                kept.advance()
            self._swept = len(self.operations)
        self.operations[task] = Operation(task.name, time.monotonic(), line_calling(sys._getframe(1)))
        task.then(partial(self.operations.pop, task, None))
        if self._progress is not None:
            self._progress.add(task)

    def wait_for(self, task: Task[Any], seconds: float = 0.0, place: str = "") -> None:
        """Wait until a task is done, up to ``seconds``, or the group's limit where these are 0. Blocking.

        All trainers must come to ``place``, if it is not "". Raises TimeoutError if it is not done by then.
        """
        limit = seconds if seconds > 0 else self._seconds
        with self._meeting(task.name, place, limit < math.inf):
            if not finish([task], BLOCKED, limit):
                self.keep(task)  # with the memory that MPI will write to
                raise TimeoutError(f"{task.name} is not complete after {limit} s")

    def complete_unattended(self, task: Task[Any]) -> None:
        """Complete a task without a wait by the user: by the progress thread, or by waiting here."""
        self.keep(task)
        if self._progress is None:
            self.wait_for(task)

    def call_back(self, call: Callable[[], None]) -> None:
        """Make a call that follows an operation, outside of the polling thread: it may wait for other operations.

        Each call begins at once: it may wait for an operation that another call completes.
        """
        if self._progress is not None:
            with suppress(RuntimeError):  # the group or the interpreter was shut down
                self._callbacks.submit(call)
                return
        call()

    def close(self) -> None:
        """Begin no more callbacks in threads."""
        self._callbacks.shutdown(wait=False)


Class = TypeVar("Class", bound=type)


def untraced(cls: Class) -> Class:
    """Keep dynamo from compiling the methods of a class and their callees.

    Where compiled code, or DDP around it, calls a process group from C++, dynamo compiles the group's code, too, and
    fails on MPI's objects. ``torch.compiler.disable`` would import all of dynamo, which takes seconds.
    """
    try:
        from torch._C._dynamo import eval_frame
    except ImportError:
        return cls
    if hasattr(eval_frame, "set_code_exec_strategy"):  # not in older torch
        skip = eval_frame._FrameAction.SKIP
        for member in vars(cls).values():
            function = getattr(member, "fget", member)
            if hasattr(function, "__code__"):
                eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
    return cls


@untraced
class MPIWork(dist.Work):
    """One outstanding operation, as torch waits for it."""

    def __init__(self, outstanding: Outstanding, task: Task[Any], outputs: list[Tensor], place: str) -> None:
        super().__init__()
        self._outstanding, self._task, self._outputs, self._place = outstanding, task, outputs, place
        self._future: torch.futures.Future[list[Tensor]] | None = None

    def is_completed(self) -> bool:
        """Advance the operation, and return whether it is complete."""
        self._task.advance()
        return self._task.done

    def is_success(self) -> bool:
        """Return whether the operation is complete, without errors."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """Return the error, once complete."""
        return self._task.error

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until the operation is complete, up to ``timeout``, or the group's limit. Blocking.

        Raises:
            TimeoutError: the time is over; the operation remains outstanding.
            InvalidArgumentError: a message differs in size from the tensor.
        """
        self._outstanding.wait_for(self._task, timeout.total_seconds(), self._place)
        self._task.result()
        return True

    synchronize = wait

    def result(self) -> list[Tensor]:
        """Return the tensors with the results, once complete."""
        return self._outputs

    def source_rank(self) -> int:
        """Return the sender of a received message."""
        return int(self._task.result())

    _source_rank = source_rank

    def get_future(self) -> "torch.futures.Future[list[Tensor]]":
        """Return a future of :meth:`result`, which completes without a call of :meth:`wait`.

        An error becomes a RuntimeError with its text: only an error of a callback reaches waits in C++, such as those
        of DDP, which takes the argument of ``set_exception`` for tensors and crashes.
        """
        if self._future is None:
            done: torch.futures.Future[None] = torch.futures.Future()
            self._future = done.then(self._finished)
            self._task.then(partial(self._outstanding.call_back, partial(done.set_result, None)))
            self._outstanding.complete_unattended(self._task)
        return self._future

    def _finished(self, _: "torch.futures.Future[None]") -> list[Tensor]:
        self._task.result()
        return self._outputs
