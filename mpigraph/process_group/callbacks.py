"""Threads for what users attach to futures, which may wait for other operations of the group."""

import threading
from collections.abc import Callable
from queue import SimpleQueue

__all__ = ["Callbacks"]


class Callbacks:
    """Runs calls in threads of its own, each at once: a new thread where all others are inside a call.

    A call may wait for an operation that another call completes. In the progress thread, which polls all operations, it
    would wait for ever.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads = 0
        self._closed = False

    def run(self, call: Callable[[], None]) -> None:
        """Run a call, which must not raise; once closed, here."""
        if self._closed:
            call()
            return
        self._calls.put(call)
        if not self._idle.acquire(blocking=False):
            self._threads += 1
            threading.Thread(target=self._work, name="mpigraph-callbacks", daemon=True).start()

    def close(self) -> None:
        """Have the threads end after their calls."""
        self._closed = True
        for _ in range(self._threads):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            self._idle.release()
