"""The work of an epoch: sample minibatches ahead, in a thread, and fetch the rows of each, in the epoch's order.

A thread, never a process: forking after ``MPI_Init`` is unsafe. Kernels and MPI calls release the interpreter lock,
so sampling and gathering hide behind the model's compute.
"""

import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from mpigraph.arrays import I64
from mpigraph.dataloading.fetcher import Stages
from mpigraph.errors import ClosedError
from mpigraph.log import get_logger
from mpigraph.mpi.wait import UNINTERRUPTED, is_running, join
from mpigraph.mpi.world import World
from mpigraph.session.context import BackgroundLoop
from mpigraph.trace import Snapshot, Totals, count, span

T = TypeVar("T")

_END = object()
_POLL = 0.05  # seconds between looks at the stop flag while the queue is full


class Prefetch(BackgroundLoop, Generic[T]):
    """One pass over an iterator, produced in a thread.

    With ``depth=0`` there is no thread: the items are produced in the consumer's.
    """

    def __init__(self, produce: Callable[[], Iterator[T]], after: Callable[[], None], depth: int, world: World) -> None:
        """Begin.

        Args:
            produce: makes the iterator; called in the thread that runs it.
            after: called once the iterator is exhausted, failed or abandoned, in the thread that produces. Below
                ``MPI_THREAD_MULTIPLE`` it runs in the main thread, when it ends or abandons the iterator; where the
                garbage collector abandons it, when the main thread next waits for other ranks.
            depth: number of items to prefetch.
            world: the job that ``after`` and the items communicate in.
        """
        self._world = world
        self._produce = produce
        self._after = after
        # not one Queue with a limit: Ctrl-C may leave its lock taken for ever
        self._items: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(max(depth, 1)):
            self._room.put(None)
        self._stop = threading.Event()
        self._because = ""
        self._thread: threading.Thread | None = None
        if depth:
            self._thread = threading.Thread(target=self._run, name="mpigraph-prefetch", daemon=True)
            self._thread.start()

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
            for item in self._from_thread() if self._thread else self._produce():
                yield item
                self._check()
            self._check()  # it may have been abandoned while this waited for an item
        finally:
            self.abandon()

    def _from_thread(self) -> Iterator[T]:
        while (item := self._take()) is not _END:
            yield item

    def _check(self) -> None:
        """Raise ClosedError if the pass was ended from elsewhere: the rest of it must not be lost in silence."""
        if self._stop.is_set():
            raise ClosedError(self._because)

    def _take(self) -> Any:
        """Return the next item, or raise the thread's error; _END after the last one, or if the thread was stopped."""
        with self._world.watchdog.own("the next minibatch"):
            while True:
                try:
                    item, error = self._items.get(timeout=1.0)
                except queue.Empty:
                    if self._stop.is_set() and not self.running:
                        return _END
                    continue
                self._room.put(None)
                if error is not None:
                    try:
                        raise error
                    finally:
                        del error  # else it keeps alive itself, and the minibatches that its traceback names
                return item

    @property
    def running(self) -> bool:
        """True while the thread is at work."""
        return self._thread is not None and is_running(self._thread)

    def abandon(self, because: str = "its consumer has left") -> None:
        """Ask the thread to end, without waiting for it; without one, run ``after``.

        ``because`` is the message for a consumer that goes on.
        """
        with UNINTERRUPTED:  # "after" is to run, whatever comes between
            if self._stop.is_set():
                return
            self._because = because
            self._stop.set()
            if self._thread is not None:
                return  # which ends by itself
            if self._world.threads_may_communicate:
                self._after()
            else:
                self._world.in_main_thread(self._after)

    def stop(self, because: str) -> None:
        """Ask the thread to end and wait until ``after`` has returned."""
        self.abandon(because)
        if self._thread is not None:
            join(self._thread)

    def _run(self) -> None:
        """The thread: items, then "end" so that the consumer can go on, then ``after``.

        The consumer may have gone on when ``after`` fails: the thread's uncaught exception then ends the job.
        """
        with self._world.watchdog.working():
            self._produce_all()
            self._after()

    def _produce_all(self) -> None:
        try:
            for item in self._produce():
                if not self._put(item):
                    return
        except BaseException as error:  # raised by the consumer; the other ranks are still answered
            if self._put(None, error):
                return
            if not isinstance(error, Exception):
                raise
            # The consumer has left, and may have closed what this thread reads.
            get_logger().info("an epoch that was left had an error: %s: %s", type(error).__name__, error)
        else:
            self._put(_END)

    def _put(self, item: object, error: BaseException | None = None) -> bool:
        """Queue an item; False if the consumer has left."""
        with self._world.watchdog.own("the use of minibatches"):
            while not self._stop.is_set():
                try:
                    self._room.get(timeout=_POLL)
                except queue.Empty:
                    continue
                self._items.put((item, error))
                return True
        return False


@dataclass(frozen=True)
class LoaderStats:
    """Counts and times of a loader on this trainer.

    Remote rows are those of all features and labels that it gathers, with or without a cache.

    Attributes:
        totals: all spans and counters, from which the other fields are computed.
        minibatches: minibatches made.
        remote_rows: remote rows, each as often as a minibatch reads it.
        cached_rows: remote rows found in a cache.
        fetched_rows: remote rows fetched from their hosts. The rest came with the same row of another minibatch.
        fetched_bytes: their bytes.
    """

    totals: Snapshot = field(default_factory=Snapshot)
    minibatches: int = 0
    remote_rows: int = 0
    cached_rows: int = 0
    fetched_rows: int = 0
    fetched_bytes: int = 0

    @classmethod
    def of(cls, totals: Snapshot) -> "LoaderStats":
        """Compute the fields from sums of spans and counters."""
        names = ("minibatches", "remote_rows", "cached_rows", "fetched_rows", "fetched_bytes")
        return cls(totals, *(totals.counts.get(name, 0) for name in names))

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each stage by name.

        "sample"; "plan", finding the remote rows and their next readers; "fetch", gathering rows, local ones too;
        "place", copies out of and into the cache, and moves to the device; "wait", in which the consumer waited for
        minibatches; "step", in which it used them.
        """
        seconds = dict.fromkeys(("sample", "plan", "fetch", "place", "wait", "step"), 0.0)
        seconds |= {name: stage.seconds for name, stage in self.totals.stages.items()}
        seconds["place"] -= seconds["fetch"]  # which is inside
        return seconds

    @property
    def hit_rate(self) -> float:
        """The fraction of remote rows that were not fetched."""
        return 1 - self.fetched_rows / self.remote_rows if self.remote_rows else 0.0

    def since(self, before: "LoaderStats") -> "LoaderStats":
        """Return the difference to earlier stats of the same loader."""
        return self.of(self.totals.since(before.totals))

    def __str__(self) -> str:
        times = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.seconds.items())
        remote = (
            f", {self.remote_rows} remote rows, {self.cached_rows} of them in the cache, "
            f"{self.fetched_rows} fetched ({self.fetched_bytes / 1e6:.1f} MB, {self.hit_rate:.0%} saved)"
        )
        return f"{self.minibatches} minibatches{remote if self.remote_rows else ''}; seconds: {times}"


class Pipeline:
    """Makes the minibatches of one loader, an epoch at a time, and samples ``lookahead`` before the first fetch."""

    def __init__(self) -> None:
        self.lookahead = 0
        self.totals = Totals()
        self._batch = 0
        self._epoch = 0

    def stats(self) -> LoaderStats:
        """Return the stats so far."""
        return LoaderStats.of(self.totals.snapshot())

    def produce(self, batches: Iterator[I64], sample: Callable[[I64], Any], stages: Stages[Any]) -> Iterator[Any]:
        """Yield the minibatches of an epoch.

        The first one is fetched as soon as it is sampled; then two are sampled for each fetch, until ``lookahead`` are
        ahead. If sampling fails, the minibatches sampled before come first. ``batches`` has the positions of each
        minibatch's seeds.
        """
        ahead: deque[Any] = deque()
        error: Exception | None = None
        self._epoch += 1
        epoch = self._epoch
        _forget(stages)
        try:
            for number, positions in enumerate(batches, 1):
                try:
                    with UNINTERRUPTED, self.totals:  # announcements and fetches stay in step
                        self._batch += 1
                        with span("sample", self._batch):
                            sampled = sample(positions)
                        with span("plan", self._batch):
                            stages.announce(sampled, self._batch)
                except Exception as failed:
                    error = failed
                    break
                ahead.append(sampled)
                while len(ahead) > min(self.lookahead, number // 2):
                    yield self._fetch(ahead.popleft(), stages)
            while ahead:
                yield self._fetch(ahead.popleft(), stages)
            if error is not None:
                raise error
        finally:
            if epoch == self._epoch:  # else it was left and dies late, while another epoch announces
                _forget(stages)

    def _fetch(self, sample: object, stages: Stages[Any]) -> Any:
        with UNINTERRUPTED, self.totals:
            with span("place"):
                batch = stages.fetch(sample)
            count("minibatches", 1)
        return batch


def _forget(stages: Stages[Any]) -> None:
    for fetcher in stages.inputs:
        fetcher.forget()
