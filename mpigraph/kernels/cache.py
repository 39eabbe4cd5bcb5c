"""The folder of compiled kernels, and one compiling process for each kernel and machine.

The folder is named by a hash of the sources of all kernels, of the compiler and of the processor: a kernel contains
those that it calls, and numba looks at the source of each alone. It lies beside the sources, else in the user's cache,
or in ``NUMBA_CACHE_DIR``; where none of these can be written, as in containers and in installations by an
administrator, in a folder of this user's in the temporary directory.

Of the processes of a machine that need a kernel one compiles it; the others wait for it, and load it. A process loads a
kernel when it first calls it. So that no rank compiles while others wait, a job compiles all kernels at its start,
unless a note in the folder says that they are there (:func:`is_complete`). A file that cannot be read counts as
missing, and a kernel that cannot be saved is used all the same.
"""

import hashlib
import os
import stat
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from functools import cache
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TypeVar

import llvmlite
import llvmlite.binding
import numba
from numba import config
from numba.core import event
from numba.core.errors import NumbaError

from mpigraph.compiling import REPORT
from mpigraph.config import timeout
from mpigraph.errors import StorageError
from mpigraph.log import get_logger

Function = TypeVar("Function", bound=Callable[..., Any])

_POLL = 0.02  # seconds between looks at a lock
_PROBE = 1 << 20  # bytes that must fit into a folder
_NOTE = "complete.txt"
_ELSEWHERE = ("partition/loops.py", "partition/multilevel/loops.py")
_compiling = threading.RLock()  # of this process; taken before any lock of a file, and before numba's own


def njit(**options: Any) -> Callable[[Function], Function]:
    """Compile a function as ``numba.njit`` does, to run without the interpreter's lock, and keep it in :func:`folder`.

    Other processes wait while one compiles.
    """

    def decorate(function: Function) -> Function:
        kernel: Any = numba.njit(nogil=True, **options)(function)  # no cache: the folder is known at the first call
        if kernel is not function:  # numba compiles
            kernel.compile = _Compile(kernel)
        return kernel  # type: ignore[no-any-return]

    return decorate


class _Compile:
    """A kernel's ``compile``, which numba calls for each new combination of types."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._compile = kernel.compile
        self._name = f"{kernel.py_func.__module__}.{kernel.py_func.__qualname__}"
        self._is_kept = False

    def __call__(self, types: Any) -> Any:
        """Load or compile the kernel; return its entry."""
        with _compiling:
            # The first kernel has numba import the rest of itself, for half a second: not one rank after the other
            self._kernel.targetctx.refresh()
            with _alone_on_this_machine(self._name):
                return self._load(types)

    def _load(self, types: Any) -> Any:
        self._keep()
        try:
            return self._compile(types)
        except OSError as error:  # the folder is full or was removed; the kernel is compiled
            _warn_not_kept(str(folder()), error.strerror)
        except NumbaError:  # not a kernel for these types
            raise
        except Exception:  # unpickling damaged files raises any
            for path in folder().rglob(f"*.{self._kernel.py_func.__qualname__}-*"):
                path.unlink(missing_ok=True)
        return self._compile(types)

    def _keep(self) -> None:
        """Have numba look for the kernel in the folder, from the first call on."""
        if not self._is_kept:
            self._is_kept = True
            before = config.CACHE_DIR  # type: ignore[attr-defined]
            config.CACHE_DIR = str(folder())  # type: ignore[attr-defined]
            try:
                self._kernel.enable_caching()
            except (OSError, RuntimeError) as error:  # RuntimeError: numba cannot write there any more
                _warn_not_kept(str(folder()), str(error))
            finally:
                config.CACHE_DIR = before  # type: ignore[attr-defined]


class _Compiled(event.Listener):  # type: ignore[misc]
    """Reports the kernels that this process compiles."""

    def on_start(self, of: Any) -> None:
        """Report that a kernel is not in the folder."""
        if isinstance(getattr(of.data["dispatcher"], "compile", None), _Compile):
            REPORT.begin()

    def on_end(self, of: Any) -> None:
        """Report that it is compiled."""
        if isinstance(getattr(of.data["dispatcher"], "compile", None), _Compile):
            REPORT.end()


@contextmanager
def _alone_on_this_machine(name: str) -> Iterator[None]:
    """Be the only process that loads or compiles a kernel; go on after the timeout, since a stopped one may hold it."""
    lock: TextIOWrapper | None = None
    with suppress(OSError):  # without locks each process compiles
        lock = open(_folder_of_locks() / f"{name}-{_hash()}.lock", "w")
    end = time.monotonic() + timeout()
    while lock is not None:
        try:
            flock(lock, LOCK_EX | LOCK_NB)
            break
        except OSError:
            if time.monotonic() > end:
                break
        time.sleep(_POLL)
    try:
        yield
    finally:
        if lock is not None:
            lock.close()


@cache
def folder() -> Path:
    """Return the folder of compiled kernels of these sources, this compiler and this processor.

    Raises StorageError if no folder can be written.
    """
    name = f"mpigraph-{_hash()}"
    user = Path(os.path.expanduser("~/.cache")) / "numba"
    chosen = config.CACHE_DIR  # type: ignore[attr-defined]
    for base in [Path(chosen)] if chosen else [Path(__file__).parent / "__pycache__", user]:
        with suppress(OSError):
            path = base / name
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path) as file:
                file.write(bytes(_PROBE))
            return path
    try:
        path = _folder_of_locks() / name
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise StorageError(
            "no folder for compiled kernels: set TMPDIR or NUMBA_CACHE_DIR to a folder that can be written "
            f"({error.strerror})"
        ) from None
    return path


def sources() -> list[Path]:
    """Return the files whose code kernels consist of: those of this folder, and those of other rooms' loops."""
    here = Path(__file__)
    inside = sorted(path for path in here.parent.glob("*.py") if path != here)
    return inside + [here.parents[1] / name for name in _ELSEWHERE]


@cache
def _hash() -> str:
    contents = [path.read_bytes() for path in sources()]
    binding = llvmlite.binding
    features = binding.get_host_cpu_features().flatten()
    of_cpu = [binding.get_host_cpu_name(), features, config.CPU_NAME, config.CPU_FEATURES]  # type: ignore[attr-defined]
    words = [numba.__version__, llvmlite.__version__, sys.implementation.cache_tag, *of_cpu]
    return hashlib.sha256(repr([words, contents]).encode()).hexdigest()[:16]


@cache
def _folder_of_locks() -> Path:
    return private_folder(Path(tempfile.gettempdir()) / f"mpigraph-kernels-{os.getuid()}")


def private_folder(path: Path) -> Path:
    """Return a folder that only this user can write, since numba runs files in its cache: ``path`` or a new one."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
            return path
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="mpigraph-kernels-"))


@cache
def _warn_not_kept(place: str, reason: str | None) -> None:
    get_logger().warning("compiled kernels cannot be kept in %s (%s): each job compiles them", place, reason)


def is_complete() -> bool:
    """Return whether all kernels of the usual path were compiled, and are where they were kept."""
    try:
        noted = (folder() / _NOTE).read_text(encoding="utf-8", errors="replace").splitlines()
        return bool(noted) and {*noted} <= {*_files()}
    except (OSError, StorageError):
        return False


def note_complete() -> None:
    """Note that all kernels of the usual path have been compiled, unless they were not, or not kept."""
    if config.DISABLE_JIT or _warn_not_kept.cache_info().currsize:  # type: ignore[attr-defined]
        return
    with suppress(OSError), tempfile.NamedTemporaryFile("w", dir=folder(), delete=False) as file:
        file.write("\n".join(_files()))
        file.flush()
        os.replace(file.name, folder() / _NOTE)


def _files() -> list[str]:
    return [str(path.relative_to(folder())) for path in sorted(folder().rglob("*.nb?"))]


event.register("numba:compile", _Compiled())  # type: ignore[no-untyped-call]
# a process forked while a thread loads a kernel could load none: the lock would stay taken in the child
os.register_at_fork(before=_compiling.acquire, after_in_parent=_compiling.release, after_in_child=_compiling.release)
if config.DISABLE_JIT:  # type: ignore[attr-defined]
    # numpy warns where compiled integers wrap around, as hashes do
    warnings.filterwarnings("ignore", "overflow encountered", RuntimeWarning, r"mpigraph\.kernels")
