"""Detect whether this process does anything while its main thread waits, also inside foreign code, such as torch's.

Foreign code does not announce its waits. A thread that waits for a message sleeps and uses no processor time. The other
threads of its process use none either, except those that poll. A thread that swaps or reads a disk does not sleep as
the kernel sees it. So :meth:`Idle.look` reports that the thread is at a place where it may wait for other ranks, and
that the process has done nothing for some time.

Where the thread is in a wait of this library, which polls, the process works if it has other threads of the user's,
and any of its threads works: one of those may go on, and send what others wait for.
"""

import gc
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

_POLLING = 0.01  # of a core: used by a thread that polls, such as that of each of gloo's groups
_PREFIX = "mpigraph-"  # of the names of the library's own threads, which poll, too
_USERS = "mpigraph-callbacks"  # those that run the user's code


class Idle:
    """Watches one thread.

    Attributes:
        since: when the process last did anything.
    """

    def __init__(
        self, thread: int, recognise: Callable[[FrameType], str], polling: Callable[[FrameType], str] = lambda _: ""
    ) -> None:
        """Begin.

        Args:
            thread: its identifier.
            recognise: names the wait that a frame of the thread may be in, "" if it is in none.
            polling: the same of waits that use the processor and never end, as MPI's for ranks that take no part.
        """
        self._thread = thread
        known = next(t for t in threading.enumerate() if t.ident == thread)
        main = known is threading.main_thread()  # whose native_id is the parent's in a process that was forked
        self._task = os.getpid() if main else known.native_id or 0
        self._recognise, self._polling = recognise, polling
        self.since = 0.0
        self._used: dict[int, float] = {}  # by each thread
        self._rest = (0.0, 0)  # used by threads that have ended; major faults
        self._looked = 0.0

    def look(self, now: float, waiting: Collection[int] = ()) -> str:
        """Note whether this process works, and return the foreign wait that the thread is in, "" if it is in none.

        Args:
            now: the time, on any clock.
            waiting: identifiers of threads that are in waits of this library.
        """
        polling = "" if self._thread in waiting else self._named(self._polling)
        if polling:
            waiting = {*waiting, self._thread}
        threads = threading.enumerate()
        users = [t for t in threads if t.ident not in waiting and (not t.name.startswith(_PREFIX) or _USERS in t.name)]
        inside = self._thread in waiting
        known = polling if inside else self._named(self._recognise)
        try:
            apart = {t.native_id for t in threads if t not in users} | ({self._task} if inside else set())
            works = self._works(now - self._looked, apart)
            busy = (works and bool(users)) if inside else (works or not self._sleeps())
        except OSError:  # the kernel does not say
            busy = not inside
        self._looked = now
        if busy or not (known or inside):
            self.since = now
            return ""
        return known

    def _named(self, recognise: Callable[[FrameType], str]) -> str:
        return look_at_frame(self._thread, lambda frame: recognise(frame) if frame else "") or ""

    def _works(self, passed: float, apart: Collection[int | None]) -> bool:
        """Return whether any thread not ``apart`` has done anything in the seconds since this was asked before."""
        used = _seconds()
        rest = time.process_time() - sum(used.values()), resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        limit = max(_POLLING * passed, 2e-3)
        works = rest[0] - self._rest[0] > limit or rest[1] != self._rest[1]
        for task, seconds in used.items():
            if task not in apart:
                works |= seconds - self._used.get(task, 0.0) > (0.0 if task == self._task else limit)
        self._used, self._rest = used, rest
        return works

    def _sleeps(self) -> bool:
        return Path(f"/proc/self/task/{self._task}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def look_at_frame(thread: int, look: Callable[[FrameType | None], T]) -> T:
    """Return ``look`` of a thread's innermost frame, None if it has ended.

    CPython 3.11 makes the frame objects of another thread while they are walked. That may collect garbage, whose
    finalizers let the thread go on; its frames are gone then, and the process crashes. So collection is off meanwhile.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return look(sys._current_frames().get(thread))
    finally:
        if collects:
            gc.enable()


def _seconds() -> dict[int, float]:
    """Return the processor time of each thread of this process."""
    used = {}
    for task in map(int, os.listdir("/proc/self/task")):
        with suppress(OSError):  # it has ended meanwhile; pthread_getcpuclockid would crash
            used[task] = time.clock_gettime(~task << 3 | 6)  # the kernel's number of a thread's clock
    return used
