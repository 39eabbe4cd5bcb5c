"""Ranks that read an input together: what one has made lies in a folder that all of them see.

The first rank removes the folder when it no longer uses the graph, or ends: ranks end their work on a graph together.
One that a killed job has left is removed by the next that reads in the same place.
"""

import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import Array
from mpigraph.collective import collective
from mpigraph.errors import StorageError
from mpigraph.partition.exchange import ALONE, Exchange, even_bounds
from mpigraph.storage.files import storage_errors

_PREFIX = ".mpigraph-read-"
_NEW = ".mpigraph-new-"
_LOCK = "lock"


class ReadingRanks:
    """All ranks, which make it together, and so is every call.

    Args:
        parent: a folder that all ranks see, in which their folder is made; None for the system's of temporary files.
        exchange: the ranks.

    Attributes:
        exchange: the ranks.
        parent: as given.
    """

    def __init__(self, parent: Path | None = None, exchange: Exchange = ALONE) -> None:
        self.parent = parent
        self.exchange = exchange
        self._folder: Path | None = None
        self._made = 0  # files

    @collective("ranks")
    def new_file(self, ending: str) -> Path:
        """Return the path of a new file, the same on every rank.

        Raises StorageError, on every rank: a rank does not see the folder, or it cannot be made.
        """
        if self._folder is None:
            place = self.parent or Path(tempfile.gettempdir())
            doing = f"making a folder in {place}"
            path = ""
            with self.exchange.together(doing), storage_errors(place, "make a temporary folder"):
                if self.exchange.rank == 0:
                    path, lock = _new_folder(place)
                    weakref.finalize(self, _remove, path, lock)
            self._folder = Path(self.exchange.gather_json(path)[0])
            with self.exchange.together(doing):
                if not self._folder.is_dir():
                    advice = "give --scratch a folder that the ranks of all hosts see"
                    raise StorageError(f"{place}: host {os.uname().nodename} does not see what another makes: {advice}")
        self._made += 1
        return self._folder / f"{self._made}{ending}"

    @collective("ranks")
    def rows(
        self, doing: str, count: int, dtype: npt.DTypeLike, own: Callable[[], Iterable[tuple[int, Array]]]
    ) -> Array:
        """Return an array [count] that ranks fill together: ``own()`` yields the first row and values, some at a time.

        Raises what a rank raised, on every rank; StorageError: there is no space.
        """
        path = self.new_file(".rows")
        dtype = np.dtype(dtype)
        with (
            self.exchange.together(doing),
            storage_errors(path, "write a temporary file"),
            open(os.open(path, os.O_RDWR | os.O_CREAT), "r+b") as file,
        ):
            for first, values in own():
                file.seek(first * dtype.itemsize)
                np.ascontiguousarray(values, dtype).tofile(file)
        with self.exchange.together(doing), storage_errors(path):
            return np.memmap(path, dtype, "r", shape=(count,)) if count else np.zeros(0, dtype)

    @collective("ranks")
    def joined(self, doing: str, own: Array) -> Array:
        """Return the arrays [n] of all ranks one after another, those of the first rank first."""
        own = self.of_one_width(own)
        lengths = self.exchange.gather(np.array([[len(own)]], np.int64))[:, 0]
        first = int(lengths[: self.exchange.rank].sum())
        return self.rows(doing, int(lengths.sum()), own.dtype, lambda: [(first, own)])

    @collective("ranks")
    def of_one_width(self, own: Array) -> Array:
        """Return strings, dtype S, as long as the longest of all ranks; other values as they are."""
        widths = self.exchange.gather(np.array([[own.dtype.itemsize]], np.int64))
        return own.astype(f"S{widths.max()}", copy=False) if own.dtype.kind == "S" else own

    def share_of(self, items: Sequence[Any]) -> Sequence[Any]:
        """Return the consecutive items that this rank works on."""
        first, last = even_bounds(len(items), self.exchange.size)[self.exchange.rank :][:2]
        return items[first:last]


def _new_folder(place: Path) -> tuple[str, IO[bytes]]:
    """Make a folder with a locked file, and remove those that killed jobs have left."""
    for left in place.glob(f"{_PREFIX}*"):
        with suppress(OSError), open(left / _LOCK, "r+b") as held:  # NFS locks for writing what is open for it
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_NEW, dir=place))
    lock = open(folder / _LOCK, "w+b")
    with suppress(OSError):  # of file systems without locks, where nothing that is left is removed
        fcntl.flock(lock, fcntl.LOCK_EX)
    return str(folder.rename(place / folder.name.replace(_NEW, _PREFIX))), lock


def _remove(folder: str, lock: IO[bytes]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    lock.close()
