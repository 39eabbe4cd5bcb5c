"""The work of an epoch: sample minibatches ahead, and fetch the rows of each, in the epoch's order."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mpigraph.arrays import I64
from mpigraph.dataloading.fetcher import Stages
from mpigraph.mpi.interrupts import UNINTERRUPTED
from mpigraph.mpi.wait import join
from mpigraph.mpi.world import World
from mpigraph.trace import Totals, count, span
from mpigraph.trace_memory import Snapshot


@dataclass(frozen=True)
class LoaderStats:
    """Counts and times of a loader on this trainer.

    Remote rows are those of its ``features`` (and of the sampler's), with or without a cache; labels are not counted.

    Attributes:
        totals: all spans and counters, from which the other fields are computed.
        minibatches: minibatches made.
        remote_rows: remote rows, each as often as a minibatch reads it.
        cached_rows: remote rows found in a cache.
        fetched_rows: remote rows fetched from their hosts. The rest came with the same row of another minibatch.
        fetched_bytes: their bytes.
        fetch_seconds: time of gathering rows, local ones too.
        sample_seconds: time of sampling.
        plan_seconds: time of finding the remote rows and their next readers.
        place_seconds: time of the rest: copies out of and into the cache, moves to the device.
        wait_seconds: time in which the consumer waited for minibatches.
        step_seconds: time in which the consumer used them.
    """

    totals: Snapshot = field(default_factory=Snapshot)
    minibatches: int = 0
    remote_rows: int = 0
    cached_rows: int = 0
    fetched_rows: int = 0
    fetched_bytes: int = 0
    fetch_seconds: float = 0.0
    sample_seconds: float = 0.0
    plan_seconds: float = 0.0
    place_seconds: float = 0.0
    wait_seconds: float = 0.0
    step_seconds: float = 0.0

    @classmethod
    def of(cls, totals: Snapshot) -> "LoaderStats":
        """Compute the fields from sums of spans and counters."""
        counts = ("minibatches", "remote_rows", "cached_rows", "fetched_rows", "fetched_bytes")
        stages = ("fetch", "sample", "plan", "place", "wait", "step")
        seconds = _seconds(totals)
        return cls(
            totals, *(totals.counts.get(name, 0) for name in counts), *(seconds.get(name, 0.0) for name in stages)
        )

    @property
    def hit_rate(self) -> float:
        """The fraction of remote rows that were not fetched."""
        return 1 - self.fetched_rows / self.remote_rows if self.remote_rows else 0.0

    def since(self, before: "LoaderStats") -> "LoaderStats":
        """Return the difference to earlier stats of the same loader."""
        return self.of(self.totals.since(before.totals))

    def __str__(self) -> str:
        times = ", ".join(f"{name} {seconds:.2f}" for name, seconds in _seconds(self.totals).items())
        return (
            f"{self.minibatches} minibatches, {self.remote_rows} remote rows, {self.cached_rows} of them in the cache, "
            f"{self.fetched_rows} fetched ({self.fetched_bytes / 1e6:.1f} MB, {self.hit_rate:.0%} saved); "
            f"seconds: {times}"
        )


def _seconds(totals: Snapshot) -> dict[str, float]:
    """Return the seconds of each stage, those of "place" without the fetch inside."""
    seconds = {name: stage.seconds for name, stage in totals.stages.items()}
    if "place" in seconds:
        seconds["place"] -= seconds.get("fetch", 0.0)
    return seconds


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

    def produce(
        self, batches: Iterator[I64], sample: Callable[[I64], Any], stages: Stages[Any], all_sampled: Callable[[], None]
    ) -> Iterator[Any]:
        """Yield the minibatches of an epoch.

        The first one is fetched as soon as it is sampled; then two are sampled for each fetch, until ``lookahead`` are
        ahead. If sampling fails, the minibatches sampled before come first. ``batches`` has the positions of each
        minibatch's seeds; ``all_sampled`` is called after the last sample, if minibatches are still to be fetched.
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
            if ahead:
                all_sampled()
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


class Answering:
    """Answers the other trainers by ``serve()``, once this one has sampled its last minibatch, until all have."""

    def __init__(self, serve: Callable[[], None], world: World) -> None:
        self._serve = serve
        self._world = world
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin in a thread: others may need answers before this trainer has used its last minibatches."""
        self._thread = threading.Thread(target=self._run, name="mpigraph-answering", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Begin unless it has begun, and wait until all trainers are idle."""
        if self._thread is None:
            self._serve()
            return
        with self._world.watchdog.own("the end of every trainer's rounds"):
            join(self._thread)

    def _run(self) -> None:
        with self._world.watchdog.working():
            self._serve()
