"""Threads inside a rank: the same loop over slices of positions. What it fills does not depend on the slices."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

__all__ = ["Workers"]

_I64 = npt.NDArray[np.int64]
_WORTH_IT = 4096  # positions of a slice below which starting a thread costs more than it saves


class Workers:
    """Runs compiled loops, which release the interpreter lock, in several threads. Local; no communication.

    Attributes:
        num_threads: how many threads work, the caller's included.
    """

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._pool = ThreadPoolExecutor(num_threads - 1, "mpigraph-worker") if num_threads > 1 else None

    def run(self, work: Callable[[_I64], object], positions: _I64) -> None:
        """Call ``work`` on slices of ``positions`` that are together all of them. Local; no communication."""
        slices = min(self.num_threads, len(positions) // _WORTH_IT)
        if self._pool is None or slices < 2:
            work(positions)
            return
        mine, *others = np.array_split(positions, slices)
        waiting = [self._pool.submit(work, part) for part in others]
        work(mine)
        for future in waiting:
            future.result()
