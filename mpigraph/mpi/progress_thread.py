"""The progress thread: advances operations that no other thread waits for. One a process, on trainers.

MPI advances an operation, and lets others read or ask for this rank's rows, only while this process is inside MPI
(MPI 4.1, section 12.7.3). A trainer that computes is not. Without this thread, a trainer that waits in torch for
another which reads from it would wait for ever, and a gradient's all_reduce would not move before the wait for it.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

from mpigraph.mpi.coroutine import Task
from mpigraph.mpi.wait import IDLE_SERVER_REMOTE, PROGRESS, TRANSFER, Backoff


class Listener(Protocol):
    """Something that other ranks may ask of this one at any time."""

    @property
    def outstanding(self) -> bool:
        """True while a request is not complete."""

    def progress(self) -> bool:
        """Advance it without waiting; return whether anything moved."""


class Progress:
    """A thread that polls tasks until they are done, and listeners until they stop; it sleeps while it has neither.

    The longer nothing moves, the longer it sleeps between polls (:mod:`.wait`); a new task, or the end, wakes it up.
    """

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Task[Any] | None] = queue.SimpleQueue()
        self._listeners: list[Listener] = []
        self._polling = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="mpigraph-progress", daemon=True)
        self._thread.start()

    def add(self, task: Task[Any]) -> None:
        """Advance a task until it is done. A second call for the same task does nothing."""
        if task.in_progress_thread:
            return
        task.in_progress_thread = True
        self._inbox.put(task)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call the listener's ``progress`` again and again; return the function that ends that."""
        self._listeners.append(listener)
        self._inbox.put(None)  # wake it up

        def stop() -> None:
            with self._polling:  # not in the middle of a call
                self._listeners.remove(listener)

        return stop

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        tasks: list[Task[Any]] = []
        backoff = Backoff()
        seconds: float | None = None
        while True:
            try:
                task = self._inbox.get(seconds != 0, seconds)
                if self._closed:
                    return
                tasks += [] if task is None else [task]
                backoff.reset()
            except queue.Empty:
                pass
            with self._polling:
                moved = any([listener.progress() for listener in self._listeners])
                busy = any(listener.outstanding for listener in self._listeners)
            moved |= any([task.advance() for task in tasks if not task.awaited])
            tasks = [task for task in tasks if not task.done]
            if moved:
                backoff.reset()
            if tasks or self._listeners:
                left = any(not task.awaited for task in tasks)
                seconds = backoff.next(TRANSFER if busy else PROGRESS if left else IDLE_SERVER_REMOTE)
            else:
                seconds = None
