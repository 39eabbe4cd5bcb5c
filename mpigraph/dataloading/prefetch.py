"""Run an iterator in a thread, a few items ahead, and carry its exception to the consumer.

A thread, never a process: forking after ``MPI_Init`` is unsafe. Kernels and MPI calls release the interpreter lock,
so sampling and gathering hide behind the model's compute.
"""

import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

from mpigraph.errors import ClosedError
from mpigraph.log import get_logger
from mpigraph.mpi.interrupts import UNINTERRUPTED
from mpigraph.mpi.wait import is_running, join
from mpigraph.mpi.world import World
from mpigraph.session.context import BackgroundLoop

T = TypeVar("T")

_POLL = 0.05  # seconds between looks at the stop flag while the queue is full


class Prefetch(BackgroundLoop, Generic[T]):
    """One pass over an iterator, produced in a thread.

    With ``depth=0`` the items are produced in the consumer's thread, and only ``after`` runs in the background.
    """

    def __init__(
        self,
        produce: Callable[[], Iterator[T]],
        after: Callable[[], None],
        depth: int,
        background: bool = True,
        world: World | None = None,
    ) -> None:
        """Begin.

        Args:
            produce: makes the iterator; called in the thread that runs it.
            after: called once the iterator is exhausted, failed or abandoned, in the background.
            depth: number of items to prefetch.
            background: there may be a thread. Without one (``depth=0``) ``after`` runs in the main thread, when it ends
                or abandons the iterator, and waits for it; where the garbage collector abandons it, when the main
                thread next waits for other ranks.
            world: the job that ``after`` and the items communicate in, if any.
        """
        assert background or depth == 0
        self._world = world
        self._produce = produce
        self._after = after
        # not one Queue with a limit: Ctrl-C may leave its lock taken for ever
        self._items: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(max(depth, 1)):
            self._room.put(None)
        self._stop = threading.Event()
        self._because = ""
        self._inline = depth == 0
        self._background = background
        self._thread: threading.Thread | None = None
        if not self._inline:
            self._begin()

    def __iter__(self) -> Iterator[T]:
        """Yield the items; leaving the loop early, or never beginning it, abandons the rest.

        The iterator raises ClosedError if the pass was abandoned from elsewhere.
        """
        items = self._take_all()
        weakref.finalize(items, self.abandon).atexit = False  # what was never advanced runs no "finally"
        return items

    def _take_all(self) -> Iterator[T]:
        try:
            self._check()
            for item in self._produce() if self._inline else self._from_thread():
                yield item
                self._check()
            self._check()  # it may have been abandoned while this waited for an item
        finally:
            self.abandon()

    def _from_thread(self) -> Iterator[T]:
        while True:
            kind, item = self._take()
            if kind == "end":
                return
            if kind == "error":
                raise item
            yield item

    def _check(self) -> None:
        """Raise ClosedError if the pass was ended from elsewhere: the rest of it must not be lost in silence."""
        if self._stop.is_set():
            raise ClosedError(self._because)

    def _take(self) -> tuple[str, Any]:
        """The next entry of the queue; an end if the thread was stopped from elsewhere."""
        with self._own("the next minibatch"):
            while True:
                try:
                    entry = self._items.get(timeout=1.0)
                except queue.Empty:
                    if self._stop.is_set() and not self.running:
                        return "end", None
                else:
                    self._room.put(None)
                    return entry

    def _own(self, what: str) -> AbstractContextManager[None]:
        """Watch a wait for this trainer's own threads."""
        return nullcontext() if self._world is None else self._world.watchdog.own(what)

    @property
    def running(self) -> bool:
        """True while the thread is at work."""
        return self._thread is not None and is_running(self._thread)

    def abandon(self, because: str = "its consumer has left") -> None:
        """Ask the thread to end, without waiting for it; without a background, run ``after``.

        ``because`` is the message for a consumer that goes on.
        """
        with UNINTERRUPTED:  # "after" is to run, whatever comes between
            if self._stop.is_set():
                return
            self._because = because
            self._stop.set()
            if self._inline:
                self._begin()

    def stop(self, because: str) -> None:
        """Ask the thread to end and wait until ``after`` has returned."""
        self.abandon(because)
        if self._thread is not None:
            join(self._thread)

    def _begin(self) -> None:
        if not self._background:
            self._run() if self._world is None else self._world.in_main_thread(self._run)
            return
        self._thread = threading.Thread(target=self._run, name="mpigraph-prefetch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """The thread: items, then "end" so that the consumer can go on, then ``after``.

        The consumer may have gone on when ``after`` fails: the thread's uncaught exception then ends the job.
        """
        working = nullcontext() if self._world is None or not self._background else self._world.watchdog.working()
        with working:
            if not self._inline:
                self._produce_all()
            self._after()

    def _produce_all(self) -> None:
        try:
            for item in self._produce():
                if not self._put("item", item):
                    return
        except BaseException as error:  # raised by the consumer; the other ranks are still answered
            if self._put("error", error):
                return
            if not isinstance(error, Exception):
                raise
            # The consumer has left, and may have closed what this thread reads.
            get_logger().info("an epoch that was left had an error: %s: %s", type(error).__name__, error)
        else:
            self._put("end", None)

    def _put(self, kind: str, item: T | BaseException | None) -> bool:
        """Queue an item; False if the consumer has left."""
        with self._own("the use of minibatches"):
            while not self._stop.is_set():
                try:
                    self._room.get(timeout=_POLL)
                except queue.Empty:
                    continue
                self._items.put((kind, item))
                return True
        return False
