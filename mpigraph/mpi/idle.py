"""Whether the main thread waits inside code of others, such as torch's, without a word.

A thread that waits for a message sleeps, and uses no processor time; nor do the other threads of its process, except
those that look around. A thread that swaps, or reads a disk, does not sleep as the kernel sees it. So what
:func:`Idle.wait` tells is: the thread has been at one place for some time, where it may wait for others, and this
process has done nothing meanwhile.
"""

import gc
import resource
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple

__all__ = ["ForeignWait", "Idle"]

_LOOKING_AROUND = 0.005  # of a core: what threads use that poll, such as gloo's
_OURS = "mpigraph-"  # how the names of the library's own threads begin, which poll, too


class ForeignWait(NamedTuple):
    """A wait inside code of others.

    Attributes:
        what: for messages.
        place: the same for all that wait for one another, if every trainer must come; else "".
        limited: it ends by itself, after a time that the user gave.
    """

    what: str
    place: str = ""
    limited: bool = False


class Idle:
    """Watches one thread of this process.

    Args:
        thread: its identifier.
        recognise: tells what a frame of it may wait for.
    """

    def __init__(self, thread: int, recognise: Callable[[FrameType], ForeignWait | None]) -> None:
        self._thread = thread
        self._recognise = recognise
        main = threading.main_thread()
        self._state = Path(f"/proc/self/task/{main.native_id}/stat") if main.ident == thread else None
        self._since = 0.0
        self._last: tuple[ForeignWait, str] | None = None
        self._used = (0.0, 0.0, 0)
        self._looked = 0.0

    def wait(self, now: float) -> tuple[ForeignWait, float] | None:
        """Return what the thread waits for, and since when; None if it works, or waits elsewhere.

        Args:
            now: a clock that the answer is in.
        """
        known = self._look()
        used = self._usage()
        busy = used[0] - self._used[0] > 1e-3 or used[2] != self._used[2] or not self._sleeps()
        busy |= used[1] - self._used[1] > max(_LOOKING_AROUND * (now - self._looked), 2e-3)
        self._used, self._looked = used, now
        if known is None or known != self._last or busy:
            self._last, self._since = known, now
            return None
        return known[0], self._since

    def _look(self) -> tuple[ForeignWait, str] | None:
        """Return what the thread's innermost frame may wait for, and where its stack is."""
        collects = gc.isenabled()
        gc.disable()  # see line_of_script in watchdog.py
        try:
            frame = sys._current_frames().get(self._thread)
            if frame is None or (wait := self._recognise(frame)) is None:
                return None
            lines = []
            while frame is not None:
                lines.append(f"{id(frame.f_code)}:{frame.f_lasti}")
                frame = frame.f_back
            return wait, " ".join(lines)
        finally:
            if collects:
                gc.enable()

    def _usage(self) -> tuple[float, float, int]:
        """Return seconds of processor time of the thread, of all threads but the library's, and pages from disks."""
        ours = [t.ident for t in threading.enumerate() if t.name.startswith(_OURS) and t.ident is not None]
        mine = _seconds(self._thread)
        return mine, time.process_time() - sum(map(_seconds, ours)), resource.getrusage(resource.RUSAGE_SELF).ru_majflt

    def _sleeps(self) -> bool:
        """Return whether the kernel says that the thread sleeps, rather than reads a disk."""
        with suppress(OSError, AttributeError):
            return self._state.read_text().rpartition(")")[2].split()[0] == "S"  # type: ignore[union-attr]
        return True


def _seconds(thread: int) -> float:
    """Return the processor time of a thread that is alive."""
    return time.clock_gettime(time.pthread_getcpuclockid(thread))
