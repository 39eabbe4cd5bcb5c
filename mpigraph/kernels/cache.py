"""The folder of compiled kernels, one compiling process for each kernel and machine, and notes beside the kernels.

numba keeps kernels beside the source, else in the user's cache, or in ``NUMBA_CACHE_DIR``, and raises an error where it
cannot write, as in containers and in installations by an administrator. Then this module uses a folder of this user's
in the temporary directory.

Of the processes of a machine that need a kernel one compiles it; the others wait for it, and load it.

A process loads a kernel when it first calls it. So that no rank compiles while others wait, a job compiles all kernels
at its start, unless a note says that they are in the cache (:func:`is_complete`). Other rooms note measurements here.
A damaged file counts as missing, and a kernel that cannot be saved is used all the same. A kernel contains those that
it calls, so it is compiled again when one of them has changed.
"""

import hashlib
import os
import re
import stat
import sys
import tempfile
import time
import warnings
import zlib
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from functools import cache, cached_property
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numba
from numba import config
from numba.core import caching, dispatcher, event
from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.runtime import nrt

from mpigraph.compiling import REPORT
from mpigraph.config import timeout
from mpigraph.errors import StorageError
from mpigraph.log import get_logger

_POLL = 0.02  # seconds between looks at a lock


def prepare() -> None:
    """Let numba find a folder for its cache, before the first kernel asks for one.

    Raises StorageError if no folder can be written.
    """
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        # numpy warns where compiled integers wrap around, as hashes do
        warnings.filterwarnings("ignore", "overflow encountered", RuntimeWarning, r"mpigraph\.kernels")
        return
    try:
        FunctionCache(prepare)  # type: ignore[no-untyped-call]
    except RuntimeError:  # numba cannot write anywhere
        try:
            folder = _temporary_folder()
        except OSError as error:
            raise StorageError(
                "no folder for compiled kernels: set TMPDIR or NUMBA_CACHE_DIR to a folder that can be written "
                f"({error.strerror})"
            ) from None
        config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]


def _temporary_folder() -> Path:
    return private_folder(Path(tempfile.gettempdir()) / f"mpigraph-kernels-{os.getuid()}")


_folder_of_locks = cache(_temporary_folder)


def _wait_for(lock: TextIOWrapper, seconds: float) -> None:
    """Take a lock; go on without it after ``seconds``, since a stopped process may hold it."""
    end = time.monotonic() + seconds
    while True:
        try:
            return flock(lock, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return
        time.sleep(_POLL)


@cache
def _hash_of_source(module: str) -> str:
    """Hash the source of a module of kernels and of the modules of kernels that it imports."""
    try:
        text = Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
    except OSError:
        return ""
    imported = sorted(set(re.findall(r"^from mpigraph\.kernels\.(\w+) import", text, re.MULTILINE)))
    return hashlib.sha256("\n".join([text, *map(_hash_of_source, imported)]).encode()).hexdigest()


@cache
def _register_runtime() -> None:
    """Let kernels find numba's functions for memory. To start numba's runtime would also compile some, for 20 ms."""
    runtime: Any = nrt
    for name, address in runtime._nrt.c_helpers.items():
        runtime.ll.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


def _with_checksum(data: bytes) -> bytes:
    return data + zlib.crc32(data).to_bytes(4, "little")


def _checked(name: str, data: bytes) -> str:
    """Return the name of a file, or raise ValueError if its data is damaged: LLVM ends the process by damaged code."""
    if data != _with_checksum(data[:-4]):
        raise ValueError(f"{name} is damaged")
    return name


class _SharedCache:
    """numba's cache of one kernel; from a miss until the kernel is saved, other processes of the machine wait."""

    def __init__(self, py_func: Any) -> None:
        self._kernel = py_func
        self._lock: TextIOWrapper | None = None
        self._missing = False
        self._damaged = False
        self._name = f"{py_func.__module__}.{py_func.__qualname__}"

    @cached_property
    def _own(self) -> Any:
        """The cache as numba has it, made when the kernel is first called: most processes call few kernels."""
        own: Any = FunctionCache(self._kernel)  # type: ignore[no-untyped-call]
        file = own._cache_file  # numba looks at the source of this kernel alone
        file._source_stamp = file._source_stamp, _hash_of_source(self._kernel.__module__.rpartition(".")[2])
        dump, load = file._dump, file._load_data
        file._dump = lambda what: _with_checksum(dump(what))
        file._load_data = lambda name: load(_checked(name, Path(file._data_path(name)).read_bytes()))
        return own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def load_overload(self, *what: Any) -> Any:
        """Return a kernel; None if this process must compile it."""
        loaded = self._load(*what)
        if loaded is None:
            self.leave()
            REPORT.begin()
            self._missing = True
            with suppress(OSError):  # without locks each process compiles
                self._lock = open(_folder_of_locks() / f"{self._name}.lock", "w")
                _wait_for(self._lock, timeout())
            loaded = self._load(*what)
            if loaded is not None:
                self.leave()
            elif self._damaged:  # numba reads the index again before it saves
                with suppress(OSError):
                    self._own.flush()
        return loaded

    def _load(self, *what: Any) -> Any:
        """Return a kernel; None if its files are missing or damaged, as after a full disk or a crash of the machine."""
        self._damaged = False
        try:
            return self._load_fast(*what)
        except OSError:
            return None
        except Exception:  # unpickling raises any
            self._damaged = True
            return None

    def _load_fast(self, signature: Any, target: Any) -> Any:
        """Load a kernel as numba does, without importing what only compiling needs (its own functions, and scipy).

        This calls private methods of numba. Where numba has no such method, its public ``load_overload`` does the work.
        """
        try:
            guard, load = self._own._guard_against_spurious_io_errors, self._own._load_overload
            _register_runtime()
        except AttributeError:
            return self._own.load_overload(signature, target)
        with guard():
            return load(signature, target)

    def save_overload(self, *what: Any) -> None:
        """Save a kernel that this process has compiled; go on without that if its folder is full or was removed."""
        try:
            self._own.save_overload(*what)
        except OSError as error:
            _warn_not_kept(self._own.cache_path, error.strerror)
        finally:
            self.leave(compiled=True)

    def leave(self, compiled: bool = False) -> None:
        """Let waiting processes go on."""
        if self._missing:
            self._missing = False
            REPORT.end(compiled)
        if self._lock is not None:
            flock(self._lock, LOCK_UN)  # a fork may have it, too
            self._lock.close()
            self._lock = None


@cache
def _warn_not_kept(folder: str, reason: str | None) -> None:
    get_logger().warning("compiled kernels cannot be kept in %s (%s): each job compiles them", folder, reason)


class _Failures(event.Listener):  # type: ignore[misc]
    """Releases the lock of a kernel that cannot be compiled, and so is never saved."""

    def on_start(self, _: Any) -> None:
        """Do nothing."""

    def on_end(self, of: Any) -> None:
        """Let other processes go on after a failure."""
        kernel = of.data["dispatcher"]
        if isinstance(kernel._cache, _SharedCache) and tuple(of.data["args"]) not in kernel.overloads:
            kernel._cache.leave()


def _folder() -> Path:
    return Path(FunctionCache(prepare).cache_path)  # type: ignore[no-untyped-call]


def read_note(name: str) -> str:
    """Return a note from the folder of compiled kernels; "" without one."""
    try:
        return (_folder() / f"{name}.txt").read_text(encoding="utf-8")
    except (OSError, ValueError, RuntimeError):
        return ""


def write_note(name: str, text: str) -> None:
    """Keep a note in the folder of compiled kernels, whole or not at all; do nothing if the folder is read-only."""
    with suppress(OSError, RuntimeError):
        path = _folder() / f"{name}.txt"
        number, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=path.parent)
        try:
            with open(number, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise


def _note_of_this_machine() -> str:
    """Name the note on these sources, this compiler and this processor."""
    sources = sorted((path.stem, _hash_of_source(path.stem)) for path in Path(__file__).parent.glob("*.py"))
    target = cpu_target.target_context.codegen().magic_tuple()  # type: ignore[no-untyped-call]
    words = repr([numba.__version__, sys.implementation.cache_tag, target, sources])
    return f"kernels-{hashlib.sha256(words.encode()).hexdigest()[:16]}"


def is_complete() -> bool:
    """Return whether all kernels of the usual path were compiled and all their files are as they were then."""
    files = read_note(_note_of_this_machine()).splitlines()
    if not files or config.DISABLE_JIT:  # type: ignore[attr-defined]
        return False
    with suppress(OSError, RuntimeError):
        return set(files) <= set(_files())
    return False


def note_complete() -> None:
    """Note that all kernels of the usual path have been compiled, unless they were not, or not kept."""
    if config.DISABLE_JIT or _warn_not_kept.cache_info().currsize:  # type: ignore[attr-defined]
        return
    with suppress(OSError, RuntimeError):
        write_note(_note_of_this_machine(), "\n".join(_files()))


def _files() -> list[str]:
    """Return the size and the name of each file of kernels."""
    with os.scandir(_folder()) as entries:
        return sorted(f"{it.stat().st_size} {it.name}" for it in entries if it.name.endswith((".nbi", ".nbc")))


def _cache_of(py_func: Any) -> Any:
    own = py_func.__module__.startswith("mpigraph.kernels.")
    return (_SharedCache if own else FunctionCache)(py_func)  # type: ignore[no-untyped-call]


@cache
def _test_folder(path: str) -> None:
    """Make a folder and write a file there, to see that numba can: once, not for each kernel, as ranks share disks."""
    os.makedirs(path, exist_ok=True)
    tempfile.TemporaryFile(dir=path).close()


def _share() -> None:
    """Let numba make caches that processes share; it looks the class up by name in its own module."""
    numbas: Any = dispatcher
    numbas.FunctionCache = _cache_of
    locators: Any = getattr(caching, "_CacheLocator", object)
    if hasattr(locators, "ensure_cache_path"):
        locators.ensure_cache_path = lambda locator: _test_folder(locator.get_cache_path())
    event.register("numba:compile", _Failures())  # type: ignore[no-untyped-call]
    # a process forked while a thread loads a kernel could load none: the lock would stay taken in the child
    lock: Any = global_compiler_lock
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


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


_share()
prepare()
