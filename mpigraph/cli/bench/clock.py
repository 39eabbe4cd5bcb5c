"""Timing: medians of repetitions, in step with the other trainers where work needs them."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from mpigraph.mpi.wait import PEERS_COMPUTE, wait
from mpigraph.mpi.world import World

__all__ = ["Work", "alone_then_together", "meet", "process_age", "time_collective", "time_local"]

_FEWEST, _MOST = 3, 20_000

Work = Callable[[], object]


def process_age() -> float | None:
    """Seconds since this process was started, where Linux says so, else None."""
    try:
        after_name = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2]
        started = int(after_name.split()[19]) / os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return age if age >= 0 else None


def meet(world: World, what: str) -> None:
    """Wait for the other trainers, asleep: they may be measuring. Collective on ``world.trainers``."""
    with world.watch(what):
        wait(world.trainers.Ibarrier(), PEERS_COMPUTE)


def time_local(works: Sequence[Work], seconds: float) -> list[list[float]]:
    """Seconds of each call of some pieces of work that need nobody else, taken in turn."""
    spent: list[list[float]] = [[] for _ in works]
    for work in works:
        work()
    end = time.perf_counter() + seconds
    while len(spent[0]) < _FEWEST or (time.perf_counter() < end and len(spent[0]) < _MOST):
        for work, times in zip(works, spent, strict=True):
            begin = time.perf_counter()
            work()
            times.append(time.perf_counter() - begin)
    return spent


def time_collective(world: World, work: Work, seconds: float) -> float:
    """Median seconds of a call that all trainers make together, equally often. Collective on ``world.trainers``."""
    work()
    spent: list[float] = []
    begin = time.perf_counter()
    work()
    first = max(time.perf_counter() - begin, 1e-6)
    for _ in range(min(_MOST, max(_FEWEST, world.allreduce_minmax(int(seconds / first), largest=False)))):
        begin = time.perf_counter()
        work()
        spent.append(time.perf_counter() - begin)
    return median(spent)


def alone_then_together(world: World, works: Sequence[Work], seconds: float) -> tuple[list[float | None], list[float]]:
    """Seconds of local pieces of work: on one trainer of each node while the others sleep, then on all at once.

    In turn, so that pieces can be compared. Alone the fastest call counts: nobody else's work is to be measured.

    Returns:
        For each piece the first (None on the trainers that slept) and the second, a median.

    Collective on ``world.trainers``.
    """
    alone: list[float | None] = [None] * len(works)
    if world.local_trainer == 0:
        alone = [min(times) for times in time_local(works, seconds / 2)]
    meet(world, "measuring one trainer of each node")
    together = [median(times) for times in time_local(works, seconds / 2)]
    meet(world, "measuring all trainers")
    return alone, together
