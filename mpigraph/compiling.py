"""Messages while kernels are compiled: their number and the time.

Numba compiles a kernel when it is first called and its cache lacks it; ``kernels/cache.py`` tells :data:`REPORT`.
"""

import threading
import time

from mpigraph.config import launcher_rank
from mpigraph.log import get_logger

_FIRST = "compiling kernels (first use), which takes a minute or so; NUMBA_CACHE_DIR sets where they are kept"
_SECONDS = 10.0  # between two lines


class Report:
    """Count and report the kernels that this process compiles.

    Attributes:
        compiled: the number of kernels.
        known: calls of kernels so far, and in all, while a job makes sure that those of training are compiled; a call
            may compile several. (0, 0) else.
    """

    def __init__(self) -> None:
        self.compiled = 0
        self.known = (0, 0)
        self._lock = threading.Lock()
        self._depth = 0  # kernels that call each other are compiled inside each other
        self._begin = self._spoke = 0.0
        self._seconds = 0.0

    def status(self) -> str:
        """Return the line to show while a kernel is compiled, else ""."""
        if not self._depth:
            return ""
        seconds = self._seconds + time.monotonic() - self._begin
        done, of = self.known
        return f"compiling kernels: {f'{done} of {of}' if of else f'{self.compiled} done'}, {seconds:.0f} s"

    def begin(self) -> None:
        """Note that this process compiles a kernel, which is not in the cache."""
        with self._lock:
            now = time.monotonic()
            if not self._depth:
                self._begin = now
            self._depth += 1
            if not self._spoke:
                self._say(_FIRST)
            elif now - self._spoke >= _SECONDS:
                self._say(self.status())

    def end(self) -> None:
        """Note that the kernel is compiled."""
        with self._lock:
            self.compiled += 1
            self._depth -= 1
            if not self._depth:
                self._seconds += time.monotonic() - self._begin

    def _say(self, text: str) -> None:
        self._spoke = time.monotonic()
        if launcher_rank() == 0:  # the others wait for the same kernels
            get_logger().warning(text)
        else:
            get_logger().info(text)


REPORT = Report()
"""The report of this process."""
