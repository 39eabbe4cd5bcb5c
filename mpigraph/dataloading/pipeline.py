"""The work of an epoch: sample minibatches, some of them ahead, and fetch what each reads, in the epoch's order."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from mpigraph.dataloading.fetcher import Stages
from mpigraph.dataloading.lookahead import Counts
from mpigraph.mpi.world import World

__all__ = ["Answering", "Pipeline"]


class Pipeline:
    """Makes minibatches of one loader, an epoch at a time.

    Attributes:
        lookahead: how many minibatches are sampled before the first of them is fetched.
        counts: of all epochs.
    """

    def __init__(self) -> None:
        self.lookahead = 0
        self.counts = Counts()
        self._batch = 0

    def run(self, samples: Iterator[Any], stages: Stages[Any], all_sampled: Callable[[], None]) -> Iterator[Any]:
        """Yield the minibatches of an epoch.

        The first one is fetched as soon as it is sampled; then two are sampled for each that is fetched, until enough
        are ahead. If sampling fails, those that were sampled before come first.

        Args:
            samples: draws them.
            stages: what is done with them.
            all_sampled: called once nothing is left to sample, if minibatches are still to be fetched.
        """
        ahead: deque[Any] = deque()
        sampled = 0
        error: Exception | None = None
        _forget(stages)
        try:
            while error is None:
                try:
                    ahead.append(self._sample(samples, stages))
                    sampled += 1
                except StopIteration:
                    break
                except Exception as failed:
                    error = failed
                while len(ahead) > min(self.lookahead, sampled // 2):
                    yield self._fetch(ahead.popleft(), stages)
            if ahead:
                all_sampled()
            while ahead:
                yield self._fetch(ahead.popleft(), stages)
            if error is not None:
                raise error
        finally:
            _forget(stages)

    def _sample(self, samples: Iterator[Any], stages: Stages[Any]) -> Any:
        """Draw the next minibatch and announce what it reads. Raises StopIteration if there is none."""
        begin = time.perf_counter()
        sample = next(samples)
        drawn = time.perf_counter()
        self._batch += 1
        stages.announce(sample, self._batch)
        self.counts.sample_seconds += drawn - begin
        self.counts.plan_seconds += time.perf_counter() - drawn
        return sample

    def _fetch(self, sample: Any, stages: Stages[Any]) -> Any:
        counts = self.counts
        begin = time.perf_counter()
        waited = counts.fetch_seconds
        batch = stages.fetch(sample)
        counts.place_seconds += time.perf_counter() - begin - (counts.fetch_seconds - waited)
        counts.minibatches += 1
        return batch


def _forget(stages: Stages[Any]) -> None:
    for fetcher in stages.inputs:
        fetcher.forget()


class Answering:
    """Answers the other trainers' requests from when this one has sampled its last minibatch until all have."""

    def __init__(self, serve: Callable[[], None], world: World) -> None:
        """``serve()`` answers until all trainers are idle."""
        self._serve = serve
        self._world = world
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin in a thread: the others may need answers before minibatches that are sampled already are used."""
        self._thread = threading.Thread(target=self._run, name="mpigraph-answering", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Begin unless it has begun, and wait until all trainers are idle."""
        if self._thread is None:
            self._serve()
            return
        with self._world.watchdog.own("the end of every trainer's rounds"):
            self._thread.join()

    def _run(self) -> None:
        with self._world.watchdog.working():
            self._serve()
