"""The operations of a process group: compared across its ranks before they begin, then kept until they are complete.

MPI trusts its callers: where counts, dtypes, roots or calls differ it gives wrong values, crashes or hangs. So each
call begins with a comparison (:class:`.Sameness`) of the arguments that must be the same on all ranks. It is the same
MPI operation for every call, on a communicator of its own, and has the same result on every rank: either all begin the
call's own operation, in the order of the calls, or none does and all raise an error.

An operation that was begun is kept until it is complete, waited for, and followed by callbacks.
"""

# mypy: disable-error-code="override,assignment"
# (torch overloads each method; it calls these forms)

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from threading import Lock
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor

from mpigraph.collective import collective
from mpigraph.errors import CollectiveError
from mpigraph.log import line_calling
from mpigraph.mpi.agree import Sameness, everywhere
from mpigraph.mpi.coroutine import Coroutine, Progress, Task, advance
from mpigraph.mpi.deadlines import WAITS
from mpigraph.mpi.wait import NOW

_LONGEST = 400  # bytes of a call's description
_TAGS = 2**15 - 1  # MPI has at least as many
_LOOKS = 20  # a few microseconds: where the ranks come at the same time, it is faster than to yield


class Call(NamedTuple):
    """A collective call of one rank, the same on all.

    Attributes:
        kind: such as "all_reduce".
        dtype: of the tensors; None without one.
        values: number of values of the tensor that each rank gives, or of the one that each gets if that is smaller.
        op: the reduction, such as "SUM"; "" for none.
        root: the rank that is the source, or None.
    """

    kind: str
    dtype: torch.dtype | None = None
    values: int = 0
    op: str = ""
    root: int | None = None

    def text(self, trainers: Sequence[int]) -> str:
        """Return a description for people."""
        parts = [f"{self.kind}({self.op})" if self.op else self.kind]
        if self.dtype is not None:
            parts.append(f"of {self.values} {self.dtype}")
        if self.root is not None:
            parts.append(f"with root {trainers[self.root]}")
        return " ".join(parts)


class _Turn:
    """A call that waits for its operation to begin: a request, for coroutines."""

    def __init__(self, calls: "Calls", call: Call, begin: Callable[[], MPI.Request]) -> None:
        self.calls, self.call, self.begin = calls, call, begin
        self.sameness = Sameness(call)
        self.compared = calls.comm.Iallreduce(MPI.IN_PLACE, self.sameness.words, MPI.MAX)
        self.request: MPI.Request | None = None
        self.error: Exception | None = None
        self.same = True
        self.done = False

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Return whether the operation was begun, or the calls differ."""
        if not self.done:
            self.calls.proceed()
        return self.done

    def conclude(self) -> None:
        """Begin the operation if the comparison, which is complete, shows that all ranks have made the same call."""
        self.same = self.sameness.holds
        if self.same and self.request is None:
            try:
                self.request = self.begin()
            except Exception as error:  # for the thread that waits, which need not be this one
                self.error = error
        self.done = True


class Calls:
    """Compares the calls of a group and begins their operations, in the same order on every rank.

    Attributes:
        comm: carries comparisons; ``size`` is the number of its ranks.
    """

    @collective("group")
    def __init__(self, comm: MPI.Intracomm, trainers: Sequence[int], name: str, at_once: bool) -> None:
        """Begin.

        Args:
            comm: the group's.
            trainers: the numbers of its ranks.
            name: names the group in messages.
            at_once: begin each operation beside its comparison: no thread would begin it while this one computes.
        """
        self.comm = comm.Dup()
        self.size = comm.size
        self._trainers, self._name, self._at_once = trainers, name, at_once
        self._lock = Lock()
        self._turns: deque[_Turn] = deque()
        self._in_vain: list[_Turn] = []
        self._number = 0

    @collective("group")
    def together(self, call: Call, begin: Callable[[], MPI.Request]) -> Coroutine[MPI.Request]:
        """Begin an operation once every rank has made the same call, and return its request.

        Raises CollectiveError if the calls differ; on every rank, with all calls, lines and trainers.
        """
        if self.size == 1:
            return begin()
        with self._lock:
            self._number += 1
            number = self._number
            turn = _Turn(self, call, begin)
            self._turns.append(turn)
            if self._at_once:
                turn.request = begin()
        looks = 0
        while not turn.Test() and looks < _LOOKS:
            looks += 1
        # the caller is on the stack until the first yield
        line = "" if turn.done and turn.same else line_calling(sys._getframe())
        if not turn.done:
            yield turn  # type: ignore[misc]
        if not turn.same:
            yield from self._explain(call, line, number)
        if turn.error is not None:
            raise turn.error
        assert turn.request is not None
        return turn.request

    def proceed(self) -> None:
        """Begin the operations whose calls were compared, in order. For any thread."""
        with self._lock:
            while self._turns and self._turns[0].compared.Test():
                turn = self._turns.popleft()
                turn.conclude()
                if not turn.same and turn.request is not None:
                    self._in_vain.append(turn)  # with the memory that MPI may write to

    def _explain(self, call: Call, line: str, number: int) -> Coroutine[NoReturn]:
        """Raise an error with every rank's call; by messages, since comparisons of later calls may have begun."""
        sent = np.zeros(_LONGEST, np.uint8)
        text = f"{call.text(self._trainers)}{f' at {line}' if line else ''}".encode(errors="backslashreplace")
        text = text[-_LONGEST:]
        sent[: len(text)] = np.frombuffer(text, np.uint8)
        texts = np.zeros((self.size, _LONGEST), np.uint8)
        tag = number % _TAGS
        requests = [self.comm.Irecv(texts[rank], rank, tag) for rank in range(self.size)]
        requests += [self.comm.Isend(sent, rank, tag) for rank in range(self.size)]
        while requests:
            yield requests.pop()
        calls: dict[str, list[int]] = {}
        for trainer, words in zip(self._trainers, texts, strict=True):
            calls.setdefault(words.tobytes().rstrip(b"\0").decode(errors="replace"), []).append(trainer)
        lines = [f"\n  trainer(s) {', '.join(map(str, ranks))}: {text}" for text, ranks in calls.items()]
        error = CollectiveError(
            f"call {number} of {self._name} is not the same on all its trainers, which must make the same calls in the "
            f"same order:{''.join(lines)}"
        )
        raise everywhere(error) if 0 in self._trainers else error

    @property
    def broken(self) -> bool:
        """True if operations of calls that differ were begun, which MPI may never complete."""
        return bool(self._in_vain)

    @collective("group")
    def close(self) -> None:
        """Free the communicator."""
        self.comm.Free()


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
        seconds: limit of a wait.

    Attributes:
        operations: the operation of each task, for messages, in the order of their begin.
    """

    def __init__(self, progress: Progress | None, seconds: float) -> None:
        self._progress = progress
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

    def wait_for(self, task: Task[Any], seconds: float = 0.0) -> None:
        """Wait until a task is done, up to ``seconds``, or the group's limit where these are 0. Blocking.

        Raises TimeoutError if it is not done by then.
        """
        limit = seconds if seconds > 0 else self._seconds
        with WAITS.meeting(task.name):
            if not advance([task], NOW, limit):
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

    def __init__(self, outstanding: Outstanding, task: Task[Any], outputs: list[Tensor]) -> None:
        super().__init__()
        self._outstanding, self._task, self._outputs = outstanding, task, outputs
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
        self._outstanding.wait_for(self._task, timeout.total_seconds())
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
