"""Plain files: written so that a file with its final name is whole, and opened only if they are files.

A file is written under a temporary name that is the same in every attempt, so what a killed process left is used up by
the next one. The temporary file is locked while it is written, and never followed if it is a link.
"""

import errno
import fcntl
import hashlib
import json
import mmap
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.errors import MPIGraphError, StorageError
from mpigraph.memory import in_units

_PAGE = 4096  # disks require multiples of it as offsets and sizes of direct writes
_SECTOR = 512  # and of this as addresses
_LARGE = 1 << 20  # bytes at once that are worth a direct write
_DETOUR = 4 << 20  # bytes at a time that are copied to such an address
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # file systems without locks


def open_regular(path: str | os.PathLike[str]) -> int:
    """Open a file to read and return its descriptor; a FIFO, a device or a directory is refused without waiting.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return number


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the content of a regular file, which is UTF-8.

    Raises:
        OSError: it cannot be read, or is no regular file.
        ValueError: it is not UTF-8.
    """
    with open(open_regular(path), encoding="utf-8") as file:
        return file.read()


def checksum(content: Mapping[str, Any]) -> str:
    """Return the checksum of a JSON object, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def temporary_name(path: Path) -> Path:
    """Return the name that a file has while it is written."""
    return path.with_name(f".{path.name}.tmp")


def nearest_folder(path: str | os.PathLike[str]) -> Path:
    """Return a folder, or if it does not exist yet the nearest one above it."""
    whole = Path(path).absolute()
    return next(ancestor for ancestor in (whole, *whole.parents) if ancestor.exists())


def check_space(directory: str | os.PathLike[str], needed: int, what: str) -> None:
    """Check that the disk of a folder, which need not exist yet, has ``needed`` bytes; ``what`` names the data.

    Raises:
        StorageError: the disk has less; names both sizes.
    """
    free = shutil.disk_usage(nearest_folder(directory)).free
    if needed > free:
        raise StorageError(f"{directory} lacks space: {what} needs {in_units(needed)}, and {in_units(free)} are free")


@contextmanager
def storage_errors(path: Path, doing: str = "write") -> Iterator[None]:
    """Raise StorageError, "PATH: cannot DOING: ...", instead of an OSError inside; errors of this library pass."""
    try:
        yield
    except MPIGraphError:  # some are OSErrors, too, such as those of a damaged shard that is read meanwhile
        raise
    except OSError as error:
        raise StorageError(f"{path}: cannot {doing}: {error.strerror or error}") from error


class NewFile(FileIO):
    """A file that is being written; :meth:`publish` gives it its name.

    Large data of a ``durable`` file is written past the page cache: copying it there takes more of a core than all else
    that a save does, it is not read soon, and other files stay in the cache.

    A context manager: leaving it without an exception publishes the file, leaving it with one removes it.

    Args:
        path: final name. Its folder is made if it does not exist.
        durable: wait at the end until the disk has it, so that it survives a crash of the machine.
        queue: wait while another process writes the file, instead of raising; for small files.

    Raises:
        StorageError: it cannot be written, or another process is writing it.
    """

    def __init__(self, path: str | os.PathLike[str], durable: bool = False, queue: bool = False) -> None:
        self.path = Path(path)
        self._durable = durable
        self._direct = durable and hasattr(os, "O_DIRECT")
        self._detour: mmap.mmap | None = None
        self.temporary = temporary_name(self.path)
        with ExitStack() as stack, storage_errors(self.path):
            stack.callback(self.close)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            super().__init__(self.temporary, "w+", opener=_open_new)
            while not self._lock(queue):
                if not queue:
                    raise StorageError(f"{self.path}: another process is writing this file")
                super().__init__(self.temporary, "w+", opener=_open_new)  # it was published meanwhile
            self.truncate(0)
            stack.pop_all()

    def write(self, data: Any) -> int:
        """Write all bytes. Raises StorageError if that fails."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        with storage_errors(self.path):
            if self._direct and size >= _LARGE:
                rest = self._write_pages(rest)
            while rest:
                rest = rest[super().write(rest) or 0 :]
        return size

    def _write_pages(self, data: memoryview) -> memoryview:
        """Write up to the next page of the file, then whole pages past the page cache; return the rest."""
        head = -self.tell() % _PAGE
        while head:
            written = super().write(data[:head]) or 0
            head, data = head - written, data[written:]
        flags = fcntl.fcntl(self, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self, fcntl.F_SETFL, flags | os.O_DIRECT)
            while len(data) >= _PAGE and self._direct:
                written = super().write(self._at_page(data)) or 0
                data = data[written:]
                self._direct = written % _PAGE == 0  # else the disk is full, or something is odd
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._direct = False  # this file system, or disk, wants something else
        finally:
            fcntl.fcntl(self, fcntl.F_SETFL, flags)
        return data

    def _at_page(self, data: memoryview) -> memoryview:
        """Return whole pages of the data, in place if their address suits disks; else some of them, copied."""
        size = len(data) - len(data) % _PAGE
        if np.frombuffer(data, np.uint8).ctypes.data % _SECTOR == 0:
            return data[:size]
        size = min(size, _DETOUR)
        if self._detour is None:
            self._detour = mmap.mmap(-1, _DETOUR)
        self._detour[:size] = data[:size]
        return memoryview(self._detour)[:size]

    def publish(self) -> None:
        """Give the file its name, in place of any that has it.

        Raises:
            StorageError: the disk refuses; the file is removed.
        """
        try:
            with storage_errors(self.path):
                if self._durable:
                    os.fsync(self.fileno())
                os.replace(self.temporary, self.path)
                if self._durable:
                    _sync_folder(self.path.parent)
        finally:
            self.discard()  # removes it only if it has not been published

    def discard(self) -> None:
        """Remove the file, if it has not been published."""
        if not self.closed:
            with suppress(FileNotFoundError):
                if self._has_name():
                    self.temporary.unlink()
            self.close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and not self.closed:
            self.publish()
        self.discard()

    def _lock(self, wait: bool) -> bool:
        """Lock other processes out, until this one ends in any way; return whether that worked."""
        try:
            fcntl.flock(self, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        with suppress(FileNotFoundError):
            return self._has_name()
        return False  # it was published between our opening and locking it

    def _has_name(self) -> bool:
        return os.path.samestat(os.fstat(self.fileno()), os.lstat(self.temporary))


def _open_new(path: str, flags: int) -> int:
    """Open a temporary file without emptying it, since another process may be writing it."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


def _sync_folder(directory: Path) -> None:
    """Bring the names in a folder to the disk, where that can be done: the file is there in any case."""
    with suppress(OSError):  # some folders may be written and not opened, and not every file system can
        number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(number)
        finally:
            os.close(number)


class FileOfHDF5(NewFile):
    """The file that HDF5 writes to.

    After an error it discards all data, and :meth:`check` raises the error: HDF5 cannot close a file that it cannot
    write, and ends the process with a signal at its exit.
    """

    def __init__(self, path: Path, durable: bool) -> None:
        super().__init__(path, durable)
        self._error: StorageError | None = None

    def write(self, data: Any) -> int:
        """Write, or drop what comes after an error."""
        if self._error is None:
            try:
                return super().write(data)
            except StorageError as error:
                self._error = error
        return memoryview(data).nbytes

    def give_up(self) -> None:
        """Write nothing more."""
        self._error = self._error or StorageError(f"{self.path}: given up")

    def check(self) -> None:
        """Raise the first error of writing, if there was one."""
        if self._error is not None:
            raise self._error
