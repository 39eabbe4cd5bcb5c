"""Run an iterator in a thread, a few items ahead, and carry its exception to the consumer.

A thread, never a process: forking after ``MPI_Init`` is unsafe. Kernels and MPI calls release the interpreter lock,
so sampling and gathering hide behind the model's compute.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

__all__ = ["Prefetch", "Stoppable"]

_POLL = 0.05  # seconds between looks at the stop flag while the queue is full


class Stoppable(Protocol):
    """Something that runs in the background and can be told to end. Local; no communication of its own."""

    def stop(self) -> None:
        """End it and wait until it has ended."""


class Prefetch:
    """One pass over an iterator, produced in a thread.

    With ``depth=0`` the items are produced in the consumer's thread, and only ``after`` runs in the background.

    Local; no communication of its own.
    """

    def __init__(self, produce: Callable[[], Iterator[Any]], after: Callable[[], None], depth: int) -> None:
        """Begin.

        Args:
            produce: makes the iterator; called in the thread that runs it.
            after: called once the iterator is exhausted, failed or abandoned, in the background.
            depth: how many items to be ahead.
        """
        self._produce, self._after = produce, after
        self._items: queue.Queue[tuple[str, Any]] = queue.Queue(maxsize=max(depth, 1))
        self._stop = threading.Event()
        self._inline = depth == 0
        self._thread = threading.Thread(target=self._run, name="mpigraph-prefetch", daemon=True)
        if not self._inline:
            self._thread.start()

    def __iter__(self) -> Iterator[Any]:
        """Yield the items; leaving the loop early abandons the rest."""
        try:
            if self._inline:
                yield from self._produce()
                return
            while True:
                kind, item = self._take()
                if kind == "end":
                    return
                if kind == "error":
                    raise item
                yield item
        finally:
            self.abandon()

    def _take(self) -> tuple[str, Any]:
        """The next entry of the queue; an end if the thread was stopped from elsewhere."""
        while True:
            try:
                return self._items.get(timeout=1.0)
            except queue.Empty:
                if self._stop.is_set() and not self.running:
                    return "end", None

    @property
    def running(self) -> bool:
        """Whether the thread is at work."""
        return self._thread.is_alive()

    def abandon(self) -> None:
        """Ask the thread to end, without waiting for it. Local; no communication."""
        if self._inline and not self._stop.is_set():
            self._thread.start()
        self._stop.set()

    def stop(self) -> None:
        """Ask the thread to end and wait until ``after`` has returned."""
        self.abandon()
        self._thread.join()

    def _run(self) -> None:
        """The thread: items, then "end" so that the consumer can go on, then ``after``."""
        try:
            if not self._inline:
                self._produce_all()
            self._after()
        except BaseException as error:
            if not self._put("error", error):
                raise  # the consumer has left: the thread's uncaught exception ends the job

    def _produce_all(self) -> None:
        try:
            for item in self._produce():
                if not self._put("item", item):
                    return
        except Exception as error:  # raised by the consumer; the other ranks are still answered
            if not self._put("error", error):
                raise
        else:
            self._put("end", None)

    def _put(self, kind: str, item: Any) -> bool:
        """Queue an item; False if the consumer has left."""
        while not self._stop.is_set():
            try:
                self._items.put((kind, item), timeout=_POLL)
            except queue.Full:
                continue
            return True
        return False
