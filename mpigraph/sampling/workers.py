"""Threads inside a rank: the same loop over slices of positions. Results do not depend on the slices."""

import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np

from mpigraph.arrays import I64

_C = ctypes.CDLL(None)
_WORTH_IT = 4096  # positions of a slice below which starting a thread costs more than it saves


class Workers:
    """Runs compiled loops, which release the interpreter lock, in several threads.

    Attributes:
        num_threads: number of threads, the caller's included.
    """

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._threads: list[int] = []
        self._pool: ThreadPoolExecutor | None = None
        if num_threads > 1:
            self._pool = ThreadPoolExecutor(num_threads - 1, "mpigraph-worker", _note_thread, (self._threads,))

    def run(self, work: Callable[[I64], object], positions: I64) -> None:
        """Call ``work`` on slices of ``positions``, each in a thread."""
        slices = min(self.num_threads, len(positions) // _WORTH_IT)
        if self._pool is None or slices < 2:
            work(positions)
            return
        own, *rest = np.array_split(positions, slices)
        self._leave_my_core()
        waiting = [self._pool.submit(work, part) for part in rest]
        try:
            work(own)
        finally:  # they write to buffers of the next call
            wait(waiting)
        for future in waiting:
            future.result()

    def _leave_my_core(self) -> None:
        """Keep the workers off the core of the caller, which is about to be busy.

        A thread that wakes up on a busy core may wait there for milliseconds though others are idle; virtual machines
        do that, since an idle virtual core looks like one that was taken away.
        """
        if not hasattr(os, "sched_setaffinity"):
            return
        cores = os.sched_getaffinity(0) - {_C.sched_getcpu()}
        if cores:
            for thread in self._threads:
                os.sched_setaffinity(thread, cores)


def _note_thread(threads: list[int]) -> None:
    threads.append(threading.get_native_id())
