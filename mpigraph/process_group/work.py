"""What a collective of torch gives back: a handle to wait with."""

# mypy: disable-error-code="override"
# (torch overloads each method; it calls the form that is here)

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from mpigraph.mpi.coroutine import Task
from mpigraph.process_group.untraced import untraced

__all__ = ["MPIWork"]


class Waits(Protocol):
    """The group that an operation is of."""

    def wait_for(self, task: Task[Any], seconds: float = 0.0, place: str = "") -> None:
        """Wait until a task is done. Blocking."""

    def complete_unattended(self, task: Task[Any]) -> None:
        """See that a task completes though nobody will wait for it."""

    def call_back(self, call: Callable[[], None]) -> None:
        """Do what follows a completed operation, which may wait for others."""


@untraced
class MPIWork(dist.Work):
    """One outstanding operation, as torch waits for it."""

    def __init__(self, group: Waits, task: Task[Any], outputs: list[Tensor], place: str) -> None:
        super().__init__()
        self._group, self._task, self._outputs, self._place = group, task, outputs, place
        self._future: torch.futures.Future[list[Tensor]] | None = None

    def is_completed(self) -> bool:
        """Whether all is done; also lets it advance."""
        self._task.advance()
        return self._task.done

    def is_success(self) -> bool:
        """Whether all is done, without errors."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """The error, once complete."""
        return self._task.error

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until all is done, for a time of one's own or the group's if there is one. Blocking.

        Raises:
            TimeoutError: the time is over; the operation remains outstanding.
            InvalidArgumentError: a message has not the size of the tensor.
        """
        self._group.wait_for(self._task, timeout.total_seconds(), self._place)
        self._task.result()
        return True

    def synchronize(self) -> None:
        """The same as :meth:`wait`. Blocking."""
        self.wait()

    def result(self) -> list[Tensor]:
        """The tensors with the results, once complete."""
        return self._outputs

    def source_rank(self) -> int:
        """The rank that a received message came from."""
        return int(self._task.result())

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> "torch.futures.Future[list[Tensor]]":
        """A future of :meth:`result`, which comes without a call of :meth:`wait`.

        An error becomes a RuntimeError with its words: only what a callback raises reaches those who wait in C++, such
        as DDP, which takes the argument of ``set_exception`` for tensors and crashes.
        """
        if self._future is None:
            done: torch.futures.Future[None] = torch.futures.Future()
            self._future = done.then(self._finished)
            self._task.then(partial(self._group.call_back, partial(done.set_result, None)))
            self._group.complete_unattended(self._task)
        return self._future

    def _finished(self, _: "torch.futures.Future[None]") -> list[Tensor]:
        self._task.result()
        return self._outputs
