"""The operations of a process group that were begun and are not complete."""

import sys
import time
from functools import partial
from typing import Any, NamedTuple

from mpigraph.mpi.coroutine import Task
from mpigraph.mpi.progress_thread import Progress
from mpigraph.tracebacks import line_calling

__all__ = ["Operation", "Outstanding"]


class Operation(NamedTuple):
    """An operation that was begun and is not complete.

    Attributes:
        what: the call, such as "all_reduce" or "recv from 1".
        since: when it was begun, on the clock of ``time.monotonic``.
        line: the line of the user's script that has called it, such as "train.py:12"; "" if that is unknown.
    """

    what: str
    since: float
    line: str


class Outstanding:
    """Tasks that the caller may not wait for: kept, with the memory that MPI writes to, until they are done.

    The progress thread advances them, if there is one. Otherwise those that are done leave when others come.
    """

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._operations: dict[Task[Any], Operation] = {}
        self._swept = 0

    @property
    def tasks(self) -> list[Task[Any]]:
        """The tasks, in the order in which they were begun."""
        return list(self._operations)

    @property
    def operations(self) -> list[Operation]:
        """What they are, for messages. Any thread may ask."""
        return list(self._operations.values())

    def keep(self, task: Task[Any]) -> None:
        """Keep a task until it is done; a second call does nothing."""
        if task.done or task in self._operations:
            return
        if self._progress is None and len(self._operations) > 2 * self._swept:  # so n calls look at O(n) tasks
            for kept in self.tasks:
                kept.advance()
            self._swept = len(self._operations)
        self._operations[task] = Operation(task.name, time.monotonic(), line_calling(sys._getframe(1)))
        task.then(partial(self._operations.pop, task, None))
        if self._progress is not None:
            self._progress.add(task)
