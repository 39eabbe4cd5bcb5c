"""The engine of all that takes several MPI operations: coroutines that yield each request which must complete first.

A coroutine is a generator. It begins MPI operations, yields a request, and is resumed with its status once that has
completed. Its frame keeps the arrays alive.

A thread with nothing else to do drives coroutines with :func:`finish`. A thread with several things to do makes each a
:class:`Task` and advances all in turn. A host does so with its replies: two hosts that waited until the other takes one
would wait for ever. The progress thread does so with operations that no other thread waits for (:class:`Progress`).
"""

import math
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar

from mpi4py import MPI

from mpigraph.mpi.deadlines import WAITS
from mpigraph.mpi.wait import IDLE, TRAVELLING, UNINTERRUPTED, Backoff, Policy, no_way_back, until
from mpigraph.trace import clock, count

_CELL = 4 << 10  # bytes that MPI may move at a call

T = TypeVar("T")
Coroutine = Generator[MPI.Request, MPI.Status, T]

NOT_YET = MPI.Request()
"""Yielded to wait for what no request stands for, such as a turn, and to look again later: that is no progress."""


class Task(Generic[T]):
    """A coroutine that was begun, and advances when it is polled, by any thread.

    Attributes:
        name: for messages.
        taken: the number of steps completed so far.
        done: whether it is over, with a result or an error.
        error: its exception, or None.
        awaited: whether a thread waits for it, and so polls it.
        in_progress_thread: whether the progress thread polls it.
    """

    def __init__(self, steps: Coroutine[T], name: str = "") -> None:
        """Take the first step, and raise its error if it fails."""
        self.name = name
        self.taken = 0
        self.done = self.awaited = self.in_progress_thread = False
        self.error: Exception | None = None
        self._value: T | None = None
        self._steps = steps
        self._status = MPI.Status()
        self._lock = Lock()
        self._after: list[Callable[[], object]] = []
        with UNINTERRUPTED:
            try:
                self._request = next(steps)
            except StopIteration as end:  # it had nothing to do
                self._value, self.done = end.value, True

    def advance(self) -> bool:
        """Take the next step if its request has completed; return whether there was progress.

        Never waits, never raises.
        """
        if self.done:
            return False
        with UNINTERRUPTED, self._lock:
            try:
                if self.done or not self._request.Test(self._status):
                    return False
                self.taken += 1
                self._request = self._steps.send(self._status)
                if self._request is NOT_YET:
                    return False
            except StopIteration as end:
                self._value, self.done = end.value, True
            except Exception as error:  # for the thread that asks, which need not be this one
                UNINTERRUPTED.end_if_fatal(error)
                self.error, self.done = error, True
            calls = self._after if self.done else []
            self._after = self._after if not self.done else []
        for call in calls:
            call()
        return True

    def cancel(self) -> None:
        """Cancel the receive that it waits for, if nothing has come."""
        with self._lock:
            if not self.done:
                self._request.Cancel()

    def then(self, call: Callable[[], object]) -> None:
        """Make a call, which must not raise, once the task is done: in the thread that notices, or now."""
        with self._lock:
            if not self.done:
                self._after.append(call)
                return
        call()

    def result(self) -> T:
        """Return the coroutine's result, or raise its error, once done."""
        assert self.done
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]

    def take(self) -> T:
        """Return :meth:`result`, and forget the error: a task that has it keeps alive all that its traceback names."""
        try:
            return self.result()
        finally:
            self.error = None


def advance(tasks: Sequence[Task[Any]], policy: Policy, seconds: float = math.inf) -> bool:
    """Advance tasks in turn until all are done or for some seconds; return whether they are. Blocking."""
    for task in tasks:
        task.awaited = True
    try:
        return until(
            lambda: all([task.done for task in tasks]), policy, lambda: any([task.advance() for task in tasks]), seconds
        )
    finally:
        for task in tasks:
            task.awaited = False


def finish(
    coroutines: Iterable[Coroutine[T]],
    what: str = "",
    policy: Policy = TRAVELLING,
    *,
    meanwhile: Callable[[], None] | None = None,
    asked: Sequence[int] = (),
    nbytes: int = 0,
    stage: str = "meet",
) -> list[T]:
    """Take the steps of all coroutines in turn, and return their results. Blocking; collective if the steps are.

    Meanwhile MPI writes to memory, and other ranks count on this one. So an error that is not this library's ends the
    job (:func:`.no_way_back`).

    Args:
        coroutines: those that ask other ranks post their receives before.
        what: names the wait, which has the deadline of a protocol step; "" inside of another wait.
        policy: when to test again.
        meanwhile: the caller's own work, done once all have begun. Its error is raised once all are done.
        asked: the rank that each coroutine asks, for the counters.
        nbytes: what travels while all ranks that take part do nothing else.
        stage: the name of the wait's span.
    """
    waiting = WAITS.watch(what, stage=stage) if what else nullcontext()
    with UNINTERRUPTED, waiting, no_way_back() as aside:
        tasks = [Task(steps) for steps in coroutines]
        if meanwhile is not None:
            aside(meanwhile)
        begin = clock()  # what has come by now made no thread wait
        for rank, task in zip(asked, tasks, strict=False):
            task.then(partial(answered, rank, begin))
        advance(tasks, policy._replace(yields=nbytes // _CELL) if nbytes else policy)
        return [task.take() for task in tasks]  # inside: after another error MPI may still write


def run(steps: Coroutine[T], policy: Policy = TRAVELLING, nbytes: int = 0) -> T:
    """:func:`finish` one coroutine inside of another wait, and return its result."""
    return finish([steps], policy=policy, nbytes=nbytes)[0]


def answered(by: int, begin: float) -> None:
    """Count a request that a rank of the job has answered, and the time since ``begin``, on the clock of spans."""
    count("requests", 1, by)
    count("answered_ns", int(1e9 * (clock() - begin)), by)


# The progress thread: advances operations that no other thread waits for, and answers other ranks. One a process, on
# trainers, and on servers that ranks of other nodes may ask.
#
# MPI advances an operation, and lets others read or ask for this rank's rows, only while this process is inside MPI
# (MPI 4.1, section 12.7.3). A trainer that computes is not. Without this thread, a trainer that waits in torch for
# another which reads from it would wait for ever, and a gradient's all_reduce would not move before the wait for it.


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

    def __init__(self, name: str) -> None:
        self._inbox: queue.SimpleQueue[Task[Any] | None] = queue.SimpleQueue()
        self._listeners: list[Listener] = []
        self._polling = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
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
                seconds = backoff.next(TRAVELLING if busy or left else IDLE)
            else:
                seconds = None
