"""Arrays that lie in files and are mapped into memory: ``.npy``, ``.npz``, and a temporary file that grows."""

import os
import tempfile
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError, StorageError
from mpigraph.formats.input_files import reading
from mpigraph.storage.files import open_regular

_LOCAL_HEADER = 30  # bytes before the names of an entry of a zip file


class GrowingFile:
    """An array that grows in a temporary file without a name, and is then mapped. A context manager.

    ``row_shape`` has all dimensions except the first. The file takes space in ``folder``, None for the system's folder
    of temporary files.

    Raises:
        StorageError: the file cannot be written; by any method.
    """

    def __init__(self, dtype: npt.DTypeLike, row_shape: tuple[int, ...] = (), folder: Path | None = None) -> None:
        self.dtype = np.dtype(dtype)
        self.row_shape = row_shape
        self._folder = folder or Path(tempfile.gettempdir())
        self._length = 0
        try:
            self._file = tempfile.TemporaryFile(dir=self._folder)
        except OSError as error:
            raise self._failure(error) from error

    def __enter__(self) -> "GrowingFile":
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self._length

    def fileno(self) -> int:
        """Return the descriptor of the file."""
        return self._file.fileno()

    def append(self, rows: Array) -> None:
        """Append rows, which are cast."""
        try:
            np.ascontiguousarray(rows, self.dtype).tofile(self._file)
        except OSError as error:
            raise self._failure(error) from error
        self._length += len(rows)

    def finish(self) -> Array:
        """Return all rows as a memory map, which outlives the closed file."""
        shape = (self._length, *self.row_shape)
        if 0 in shape:
            return np.zeros(shape, self.dtype)
        try:
            self._file.flush()
            return np.memmap(self._file, dtype=self.dtype, mode="r", shape=shape)
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> StorageError:
        return StorageError(f"{self._folder}: a temporary file cannot be written: {error.strerror or error}")


def mapped_npy(path: Path) -> Array:
    """Map an ``.npy`` file.

    Raises GraphDataError: it is missing, damaged or too short, or holds Python objects; names it, and the row.
    """
    with reading(path), open(open_regular(path), "rb") as file:
        return _mapped(path, str(path), file, os.fstat(file.fileno()).st_size)


def mapped_npz(path: Path) -> dict[str, Array]:
    """Return the arrays of an ``.npz`` file: mapped if not compressed (``np.savez``), else read.

    Raises:
        GraphDataError: it is missing or damaged, or holds Python objects; names the file and the array.
    """
    arrays: dict[str, Array] = {}
    with reading(path), open(open_regular(path), "rb") as file, zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            what = f"{path}: {name}"
            with reading(what), archive.open(info) as stream:  # which checks that the entry is there
                if info.compress_type != zipfile.ZIP_STORED:
                    arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
                    continue
                file.seek(info.header_offset + _LOCAL_HEADER - 4)
                lengths = np.frombuffer(file.read(4), "<u2")
                begin = file.seek(int(lengths.sum()), os.SEEK_CUR)
                arrays[name] = _mapped(path, what, file, begin + info.file_size)
    return arrays


def _read_header(what: str, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, in_fortran_order, dtype = read_header(file)
    if dtype.hasobject:
        raise GraphDataError(f"{what} holds Python objects, which are not read")
    return shape, in_fortran_order, dtype


def _mapped(path: Path, what: str, file: IO[bytes], end: int) -> Array:
    """Map the array whose ``.npy`` header begins at the file's position, and which ends before ``end``."""
    shape, in_fortran_order, dtype = _read_header(what, file)
    begin = file.tell()
    end = min(end, os.fstat(file.fileno()).st_size)
    needed = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if needed == 0:
        return np.zeros(shape, dtype)
    if end - begin < needed:
        rows = shape[0] if shape else 1
        row = max(0, end - begin) * rows // needed
        raise GraphDataError(f"{what} is too short: it ends in row {row} of {rows}")
    return np.memmap(path, dtype=dtype, mode="r", offset=begin, shape=shape, order="F" if in_fortran_order else "C")
