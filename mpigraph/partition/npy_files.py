"""``.npy`` files that ranks write together, each its own rows; they get their names when all of them are whole."""

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import Array
from mpigraph.collective import collective
from mpigraph.errors import StorageError
from mpigraph.partition.exchange import Exchange
from mpigraph.storage.files import check_space, storage_errors

UNFINISHED = ".generating-"  # beginning of the name of a folder with unfinished files


class NpyFile:
    """A ``.npy`` file that several ranks fill, of a shape and dtype; a context manager, in which it is open.

    It is open for writing only: an NFS client that could also read it would read whole blocks, and later write back the
    bytes that another node has written meanwhile.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self._path = path
        self._shape = shape
        self._dtype = np.dtype(dtype)
        self._row_bytes = self._dtype.itemsize * int(np.prod(shape[1:]))
        self.num_bytes = shape[0] * self._row_bytes
        self._number = -1

    def create(self) -> None:
        """Create the file, of full size, without values."""
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": self._shape}
        with open(self._path, "xb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + self.num_bytes)

    def write(self, rows: Array, at: int) -> None:
        """Write rows from row number ``at`` on, or raise OSError."""
        rest = np.ascontiguousarray(rows, dtype=self._dtype).reshape(-1).view(np.uint8)
        place = os.fstat(self._number).st_size - self.num_bytes + at * self._row_bytes
        while len(rest):
            written = os.pwrite(self._number, rest.data, place)
            rest = rest[written:]
            place += written

    def close(self) -> None:
        """Close the file, or raise OSError; a second call does nothing."""
        number, self._number = self._number, -1
        if number >= 0:
            os.close(number)

    def __enter__(self) -> "NpyFile":
        self._number = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextmanager
@collective("ranks")
def new_npy_files(
    exchange: Exchange, directory: Path, contents: Mapping[str, tuple[tuple[int, ...], npt.DTypeLike]]
) -> Iterator[tuple[Path, dict[str, NpyFile]]]:
    """Create ``.npy`` files that the ranks fill inside the ``with`` block; ``contents`` has shape and dtype by name.

    Yields a temporary folder with the files, and the files by name. At the end of the block all files of that folder
    move to the directory, which is created if missing, those that are not ``.npy`` last; if the block raises, on every
    rank, they are removed.

    Raises:
        StorageError: a rank cannot write, or does not see the first rank's files; on every rank.
    """
    number = exchange.sum_of(secrets.randbits(48) if exchange.rank == 0 else 0)  # so that no rank finds an older folder
    folder = directory / f"{UNFINISHED}{number:012x}"
    files = {name: NpyFile(folder / f"{name}.npy", *content) for name, content in contents.items()}
    try:
        with exchange.together(f"creating files in {directory}"), storage_errors(directory):
            if exchange.rank == 0:
                folder.mkdir(parents=True)
                check_space(folder, sum(file.num_bytes for file in files.values()), "the graph")
                for file in files.values():
                    file.create()
        with ExitStack() as stack:
            with exchange.together(f"opening files in {directory}"), storage_errors(directory):
                if not folder.is_dir():
                    raise StorageError(f"{directory} is not the directory that rank 0 sees: every rank must see it")
                for file in files.values():
                    stack.enter_context(file)
            yield folder, files
            with exchange.together(f"writing to {directory}"), storage_errors(directory):
                for file in files.values():
                    file.close()
        with exchange.together(f"writing to {directory}"), storage_errors(directory):
            if exchange.rank == 0:
                # files that describe the others are removed first and moved last: they exist only with all others
                described = [path for path in folder.iterdir() if path.suffix != ".npy"]
                for path in described:
                    (directory / path.name).unlink(missing_ok=True)
                for path in [*sorted(set(folder.iterdir()) - set(described)), *described]:
                    path.replace(directory / path.name)
    finally:
        if exchange.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
