"""Where compiled kernels are kept, and which process compiles one that is not there.

numba keeps what it compiles beside the source, else in the user's cache, or in ``NUMBA_CACHE_DIR``, and raises an error
where it can write nowhere, as in containers and installations by an administrator. Then a folder of this user's in the
temporary directory is used.

Of the processes of a machine that need a kernel one compiles it; the others wait for it, and load it.
"""

import os
import stat
import tempfile
import time
import warnings
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from functools import cache
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from numba import config
from numba.core import dispatcher, event
from numba.core.caching import FunctionCache

from mpigraph.compiling import REPORT
from mpigraph.config import timeout
from mpigraph.errors import StorageError

__all__ = ["prepare"]

_POLL = 0.02  # seconds between looks at a lock


def prepare() -> None:
    """Make numba find a place for its cache, before the first kernel asks for one.

    Raises:
        StorageError: there is none.
    """
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        # numpy warns where compiled integers wrap around, as hashes do
        warnings.filterwarnings("ignore", "overflow encountered", RuntimeWarning, r"mpigraph\.kernels")
        return
    try:
        FunctionCache(prepare)  # type: ignore[no-untyped-call]
    except RuntimeError:  # there is no place
        try:
            folder = _temporary_folder()
        except OSError as error:
            raise StorageError(
                "compiled kernels can be kept nowhere: set TMPDIR or NUMBA_CACHE_DIR to a folder that can be written "
                f"({error.strerror})"
            ) from None
        config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]


def _temporary_folder() -> Path:
    return private_folder(Path(tempfile.gettempdir()) / f"mpigraph-kernels-{os.getuid()}")


_folder_of_locks = cache(_temporary_folder)


def _wait_for(lock: TextIOWrapper, seconds: float) -> None:
    """Take a lock; go on without it if another process, which may be stopped, holds it for so many seconds."""
    end = time.monotonic() + seconds
    while True:
        try:
            return flock(lock, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return
        time.sleep(_POLL)


class _SharedCache:
    """numba's cache of one kernel. Between a miss and what is saved then, other processes of the machine wait."""

    def __init__(self, py_func: Any) -> None:
        self._own: Any = FunctionCache(py_func)  # type: ignore[no-untyped-call]
        self._lock: TextIOWrapper | None = None
        self._missing = False
        self._name = f"{py_func.__module__}.{py_func.__qualname__}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def load_overload(self, *what: Any) -> Any:
        """Load a kernel; None if this process is to compile it."""
        loaded = self._own.load_overload(*what)
        if loaded is None:
            self.leave()
            REPORT.begin()
            self._missing = True
            with suppress(OSError):  # without a place for locks each process compiles
                self._lock = open(_folder_of_locks() / f"{self._name}.lock", "w")
                _wait_for(self._lock, timeout())
            loaded = self._own.load_overload(*what)
            if loaded is not None:
                self.leave()
        return loaded

    def save_overload(self, *what: Any) -> None:
        """Save a kernel that this process has compiled."""
        try:
            self._own.save_overload(*what)
        finally:
            self.leave(compiled=True)

    def leave(self, compiled: bool = False) -> None:
        """Let other processes go on, if they wait."""
        if self._missing:
            self._missing = False
            REPORT.end(compiled)
        if self._lock is not None:
            flock(self._lock, LOCK_UN)  # a fork may have it, too
            self._lock.close()
            self._lock = None


class _Failures(event.Listener):  # type: ignore[misc]
    """A kernel that cannot be compiled is not saved, either."""

    def on_start(self, _: Any) -> None:
        """Nothing yet."""

    def on_end(self, of: Any) -> None:
        """Let other processes go on after a failure."""
        kernel = of.data["dispatcher"]
        if isinstance(kernel._cache, _SharedCache) and tuple(of.data["args"]) not in kernel.overloads:
            kernel._cache.leave()


def _cache_of(py_func: Any) -> Any:
    ours = py_func.__module__.startswith("mpigraph.kernels.")
    return (_SharedCache if ours else FunctionCache)(py_func)  # type: ignore[no-untyped-call]


def _share() -> None:
    """Have each kernel's cache be one that processes share; numba makes it by a name in its own module."""
    numbas: Any = dispatcher
    numbas.FunctionCache = _cache_of
    event.register("numba:compile", _Failures())  # type: ignore[no-untyped-call]


def private_folder(path: Path) -> Path:
    """Return a folder that only this user can write, since numba runs what lies in its cache: ``path``, else a new one.

    One that another user has put there is not taken.
    """
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
            return path
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="mpigraph-kernels-"))


prepare()
_share()
