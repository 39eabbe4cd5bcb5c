"""Detect whether this process does anything while its main thread waits, also inside foreign code, such as torch's.

Foreign code does not announce its waits. A thread that waits for a message sleeps and uses no processor time. The other
threads of its process use none either, except those that poll, and none of the bytes that the process has sent are on
their way. A thread that swaps or reads a disk does not sleep as the kernel sees it. So :meth:`Idle.look` reports that
the thread is at a place where it may wait for other ranks, and that the process has done nothing for some time.

Where the thread is in a wait of this library, which polls, the process works if it has other threads of the user's,
and any of its threads works: one of those may go on, and send what others wait for.
"""

import fcntl
import gc
import os
import resource
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple, TypeVar

T = TypeVar("T")

_POLLING = 0.01  # of a core: used by a thread that polls, such as that of each of gloo's groups
_PREFIX = "mpigraph-"  # of the names of the library's own threads, which poll, too
_USERS = "mpigraph-callbacks"  # those that run the user's code


class ForeignWait(NamedTuple):
    """A wait inside foreign code; attributes as the arguments of :meth:`.Watchdog.meeting`."""

    what: str
    place: str = ""
    limited: bool = False


class Idle:
    """Watches the thread with identifier ``thread``; ``recognise`` returns the wait that a frame of it may be in.

    Attributes:
        since: when the process last did anything, or the thread came to the place where it is.
    """

    def __init__(self, thread: int, recognise: Callable[[FrameType], ForeignWait | None]) -> None:
        self._thread = thread
        known = next(t for t in threading.enumerate() if t.ident == thread)
        main = known is threading.main_thread()  # whose native_id is the parent's in a process that was forked
        self._task = os.getpid() if main else known.native_id or 0
        self._recognise = recognise
        self.since = 0.0
        self._last: tuple[ForeignWait, str] | None = None
        self._used: dict[int, float] = {}  # by each thread
        self._total = 0.0
        self._moved = (0, 0)
        self._looked = 0.0

    def look(self, now: float, waiting: Collection[int] = ()) -> ForeignWait | None:
        """Note whether this process works, and return the foreign wait that the thread is in, if it is in one.

        Args:
            now: the time, on any clock.
            waiting: identifiers of threads that are in waits of this library.
        """
        threads = threading.enumerate()
        users = [t for t in threads if t.ident not in waiting and (not t.name.startswith(_PREFIX) or _USERS in t.name)]
        inside = self._thread in waiting
        known = None if inside else self._look()
        try:
            apart = {t.native_id for t in threads if t not in users} | ({self._task} if inside else set())
            busy = self._works(now - self._looked, apart)
            busy = (busy and bool(users)) if inside else (busy or not self._sleeps())
        except OSError:  # the kernel does not say
            busy = not inside
        self._looked = now
        if busy or known != self._last or (known is None and not inside):
            self._last, self.since = known, now
            return None
        return None if known is None else known[0]

    def _look(self) -> tuple[ForeignWait, str] | None:
        """Return what the thread's innermost frame may wait for, and where its stack is."""

        def look(frame: FrameType | None) -> tuple[ForeignWait, str] | None:
            if frame is None or (wait := self._recognise(frame)) is None:
                return None
            lines = []
            while frame is not None:
                lines.append(f"{id(frame.f_code)}:{frame.f_lasti}")
                frame = frame.f_back
            return wait, " ".join(lines)

        return look_at_frame(self._thread, look)

    def _works(self, passed: float, apart: Collection[int | None]) -> bool:
        """Return whether any thread not ``apart`` has done anything in the seconds since this was asked before."""
        used = _seconds()
        more = {task: seconds - self._used.get(task, 0.0) for task, seconds in used.items()}
        total = time.process_time()
        ended = total - self._total - sum(more.values())  # by threads that are no more
        moved = resource.getrusage(resource.RUSAGE_SELF).ru_majflt, unsent()
        limit = max(_POLLING * passed, 2e-3)
        works = moved != self._moved or ended > limit
        limits = dict.fromkeys(more, limit) | {self._task: 0.0}
        works |= any(seconds > limits[task] for task, seconds in more.items() if task not in apart)
        self._used, self._total, self._moved = used, total, moved
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


def unsent() -> int:
    """Return the bytes that left this process by sockets and did not arrive yet: a message may be on its way."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # it was closed meanwhile
            if os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                count += struct.unpack("i", fcntl.ioctl(int(number), termios.TIOCOUTQ, bytes(4)))[0]
    return count


def _seconds() -> dict[int, float]:
    """Return the processor time of each thread of this process."""
    used = {}
    for task in map(int, os.listdir("/proc/self/task")):
        with suppress(OSError):  # it has ended meanwhile; pthread_getcpuclockid would crash
            used[task] = time.clock_gettime(~task << 3 | 6)  # the kernel's number of a thread's clock
    return used
