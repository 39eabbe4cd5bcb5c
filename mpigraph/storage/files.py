"""Plain files: written so that a file with its final name is whole, and opened only if they are files.

A file is written under a temporary name that is the same in every attempt, so what a killed process left is used up by
the next one. The temporary file is locked while it is written, and never followed if it is a link.
"""

import errno
import fcntl
import os
import shutil
import stat
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

from mpigraph.errors import StorageError

__all__ = ["NewFile", "check_space", "open_regular", "read_text", "temporary_name"]

_LARGE = 1 << 20  # bytes at once that are worth a call of the system
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


def temporary_name(path: Path) -> Path:
    """Return the name that a file has while it is written."""
    return path.with_name(f".{path.name}.tmp")


def check_space(directory: str | os.PathLike[str], needed: int, what: str) -> None:
    """Check that a disk has space.

    Args:
        directory: a folder on it, or one that is to be made there.
        needed: bytes.
        what: what is to be written, for the message.

    Raises:
        StorageError: it has not; names both sizes.
    """
    path = Path(directory).absolute()
    nearest = next(ancestor for ancestor in (path, *path.parents) if ancestor.exists())
    free = shutil.disk_usage(nearest).free
    if needed > free:
        sizes = f"needs {needed / 2**20:.1f} MiB, but {free / 2**20:.1f} MiB are free"
        raise StorageError(f"{directory} lacks space: {what} {sizes}")


class NewFile(FileIO):
    """A file that is being written; :meth:`publish` gives it its name.

    A context manager: leaving it without an exception publishes the file, leaving it with one removes it.

    Args:
        path: final name. Its folder is made if it does not exist.
        durable: wait at the end until the disk has it, for what must survive a crash of the machine.
        queue: wait while another process writes the file, instead of raising; for small files.
        busy: the error's text where another process is writing it.

    Raises:
        StorageError: it cannot be written, or another process is writing it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        durable: bool = False,
        queue: bool = False,
        busy: str | None = None,
    ) -> None:
        self.path = Path(path)
        self._durable = durable
        self.temporary = temporary_name(self.path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            super().__init__(self.temporary, "w+", opener=_open_new)
            while not self._lock(queue):
                if not queue:
                    raise StorageError(busy or f"{self.path}: another process is writing this file")
                super().__init__(self.temporary, "w+", opener=_open_new)  # it was published meanwhile
            self.truncate(0)
        except OSError as error:
            self.close()
            raise self.failure(error) from error

    def failure(self, error: OSError) -> StorageError:
        """The one error for whatever the system says."""
        return (
            error if isinstance(error, StorageError) else StorageError(f"{self.path}: cannot write: {error.strerror}")
        )

    def write(self, data: Any) -> int:
        """Write all of some bytes.

        Raises:
            StorageError: they cannot be written.
        """
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while rest:
                rest = rest[super().write(rest) or 0 :]
            if self._durable and size >= _LARGE:
                self._begin_to_sync(size)
        except OSError as error:
            raise self.failure(error) from error
        return size

    def _begin_to_sync(self, size: int) -> None:
        """Have the system begin to bring what was just written to the disk: the wait at the end is then shorter."""
        with suppress(OSError, AttributeError):  # not every system can
            os.posix_fadvise(self.fileno(), self.tell() - size, size, os.POSIX_FADV_DONTNEED)

    def publish(self) -> None:
        """Give the file its name, in place of any that has it.

        Raises:
            StorageError: the disk refuses; the file is removed.
        """
        try:
            if self._durable:
                os.fsync(self.fileno())
            os.replace(self.temporary, self.path)
            if self._durable:
                _sync_folder(self.path.parent)
        except OSError as error:
            self.discard()
            raise self.failure(error) from error
        self.close()

    def discard(self) -> None:
        """Remove the file, if it has not been published."""
        if not self.closed:
            with suppress(FileNotFoundError):
                if self._is_mine():
                    self.temporary.unlink()
            self.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self.closed:
            self.publish()
        self.discard()

    def _lock(self, wait: bool) -> bool:
        """Keep other processes out; the lock goes with the process, however it ends. Return whether it is ours."""
        try:
            fcntl.flock(self, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        with suppress(FileNotFoundError):
            return self._is_mine()
        return False  # it was published between our opening and locking it

    def _is_mine(self) -> bool:
        return os.path.samestat(os.fstat(self.fileno()), os.lstat(self.temporary))


def _open_new(path: str, flags: int) -> int:
    """Open a temporary file without emptying it, since another process may be writing it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    number = os.open(path, flags, 0o666)
    found = os.fstat(number)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:  # another name of a file that is not ours to overwrite
        os.close(number)
        raise OSError(errno.EEXIST, f"{path} is in the way")
    return number


def _sync_folder(directory: Path) -> None:
    """Bring the names in a folder to the disk, where that can be done: the file is there in any case."""
    with suppress(OSError):  # some folders may be written and not opened, and not every file system can
        number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(number)
        finally:
            os.close(number)
