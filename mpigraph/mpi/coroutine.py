"""Collective work in steps: a generator that yields each MPI request that must complete before it can go on.

A thread that is alone in its work drives the steps with :func:`run`. A server takes part in the rounds of many
channels with one thread and drives each a little at a time, as :class:`Task`: two servers that waited inside
different rounds would wait for each other for ever.
"""

from collections.abc import Generator
from typing import Generic, TypeVar

from mpi4py import MPI

from mpigraph.mpi.watch import wait_politely

__all__ = ["Coroutine", "Task", "run"]

T = TypeVar("T")
Coroutine = Generator[MPI.Request, None, T]


def run(steps: Coroutine[T]) -> T:
    """Take all steps, waiting in naps, and return what they return. Collective on whom the steps name."""
    while True:
        try:
            request = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        wait_politely(request)


class Task(Generic[T]):
    """Coroutine that are taken as far as they go without waiting.

    Attributes:
        taken: how many steps were completed so far.
        result: what the steps returned, once :meth:`go_on` says that they are over.

    Collective on whom the steps name, in step with the others.
    """

    result: T

    def __init__(self, steps: Coroutine[T]) -> None:
        """Take the first step."""
        self._steps = steps
        self.taken = 0
        self._request = next(steps)

    def go_on(self) -> bool:
        """Take the steps whose request has completed; return whether they are over. Never waits."""
        try:
            while self._request.Test():
                self.taken += 1
                self._request = next(self._steps)
        except StopIteration as end:
            self.result = end.value
            return True
        return False

    def run(self) -> T:
        """Take the remaining steps in naps and return what they return. Collective on whom the steps name."""
        wait_politely(self._request)
        while not self.go_on():
            wait_politely(self._request)
        return self.result
