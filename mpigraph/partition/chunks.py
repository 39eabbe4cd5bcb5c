"""Arrays in files that are opened without reading them, and several of them one after another as one array."""

import lzma
import os
import struct
import tempfile
import tokenize
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Container, Sequence
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, Array
from mpigraph.errors import GraphDataError, StorageError
from mpigraph.partition.row_arrays import CastRows, MadeRows, RowArray, as_int64, place_of
from mpigraph.storage.files import open_regular

__all__ = [
    "UNREADABLE",
    "Concatenated",
    "GrowingFile",
    "NamedRows",
    "Reordered",
    "both_ways",
    "concatenated",
    "mapped_npy",
    "mapped_npz",
]

_LOCAL_HEADER = 30  # bytes before the names of an entry of a zip file
_ENCRYPTED = 1

UNREADABLE = (
    OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, EOFError, RuntimeError, MemoryError,
    SyntaxError, tokenize.TokenError, struct.error, zlib.error, lzma.LZMAError, zipfile.BadZipFile,
)  # fmt: skip
"""What Python and numpy raise for damaged files of their formats."""


class Concatenated:
    """Arrays one after another, as one; rows are copied when they are asked for.

    Args:
        sources: at least one array, of one dtype and equal in all dimensions except the first.

    Raises:
        GraphDataError: they do not fit together; names the file where it is known.
    """

    def __init__(self, sources: Sequence[RowArray]) -> None:
        first = sources[0]
        for source in sources:
            if source.dtype != first.dtype or source.shape[1:] != first.shape[1:]:
                place = place_of(source, 0)
                raise GraphDataError(
                    f"{place}{': ' if place else ''}rows are {source.dtype}{list(source.shape[1:])}, "
                    f"in the chunks before {first.dtype}{list(first.shape[1:])}"
                )
        self.sources = tuple(sources)
        self._ends = list(accumulate(map(len, sources)))
        self._begins: I64 = np.array([0, *self._ends[:-1]], np.int64)
        self.shape: tuple[int, ...] = (self._ends[-1], *first.shape[1:])
        self.ndim = len(self.shape)
        self.dtype: np.dtype[Any] = first.dtype
        self.nbytes: int = sum(source.nbytes for source in sources)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Array:
        if isinstance(rows, slice):
            return self._range(*rows.indices(len(self)))
        rows = np.asarray(rows)
        found = np.empty((len(rows), *self.shape[1:]), self.dtype)
        order = np.argsort(rows, kind="stable")
        ascending = rows[order]
        bounds = np.searchsorted(ascending, [0, *self._ends])
        for chunk in np.flatnonzero(np.diff(bounds)).tolist():
            here = slice(bounds[chunk], bounds[chunk + 1])
            found[order[here]] = self.sources[chunk][ascending[here] - self._begins[chunk]]
        return found

    def place(self, row: int) -> str:
        """File and row of a row, counted in its own chunk."""
        chunk = bisect_right(self._ends, row)
        return place_of(self.sources[chunk], row - int(self._begins[chunk]))

    def _range(self, begin: int, end: int, step: int) -> Array:
        """Copy rows of a slice."""
        if step != 1:
            return self[np.arange(begin, end, step)]
        found = np.empty((max(0, end - begin), *self.shape[1:]), self.dtype)
        done = 0
        chunk = bisect_right(self._ends, begin)
        while done < len(found):
            first = begin + done - int(self._begins[chunk])
            rows = self.sources[chunk][first : first + len(found) - done]
            found[done : done + len(rows)] = rows
            done += len(rows)
            chunk += 1
        return found


class NamedRows(MadeRows):
    """Rows that stood in another file before they came to their array.

    Args:
        values: the array.
        name: the file, for messages.
        first_row: what its first row is called there.
    """

    def __init__(self, values: RowArray, name: str, first_row: int = 0) -> None:
        super().__init__(lambda rows: rows, values.dtype, values)
        self._name = name
        self._first_row = first_row

    def place(self, row: int) -> str:
        """File and row."""
        return f"{self._name}, row {self._first_row + row}"


class Reordered:
    """Rows of an array in another order, in which they are read when they are asked for.

    Args:
        values: the array.
        order: int64[n], which of its rows each row is.
    """

    def __init__(self, values: RowArray, order: I64) -> None:
        self.sources: Sequence[RowArray] = (values, order)
        self._values = values
        self._order = order
        self.shape: tuple[int, ...] = (len(order), *values.shape[1:])
        self.ndim = len(self.shape)
        self.dtype: np.dtype[Any] = values.dtype
        self.nbytes: int = values.nbytes + order.nbytes

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Array:
        found: Array = self._values[self._order[rows]]
        return found

    def place(self, row: int) -> str:
        """File and row."""
        return place_of(self._values, int(self._order[row]))


class GrowingFile:
    """An array that grows in a temporary file without a name, and is then mapped. A context manager.

    Args:
        dtype: of the rows.
        row_shape: all dimensions except the first.
        folder: where the file takes space; None for the system's folder of temporary files.

    Attributes:
        dtype: of the rows.
        row_shape: all dimensions except the first.

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
        """Return all rows, mapped, which stay when the file is closed."""
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


def concatenated(sources: Sequence[RowArray]) -> RowArray:
    """Return arrays one after another as one, a single one as it is; integers of several dtypes become int64."""
    if len(sources) == 1:
        return sources[0]
    if len({source.dtype for source in sources}) > 1 and all(source.dtype.kind in "iu" for source in sources):
        sources = [
            MadeRows(as_int64, np.int64, source) if source.dtype == np.uint64 else CastRows(source, np.int64)
            for source in sources
        ]
    return Concatenated(sources)


def both_ways(src: RowArray, dst: RowArray) -> tuple[RowArray, RowArray]:
    """Return the ends of edges and of their reverses."""
    return concatenated([src, dst]), concatenated([dst, src])


def mapped_npy(path: Path) -> Array:
    """Map an ``.npy`` file.

    Raises:
        GraphDataError: it is missing, no such file, holds Python objects or is too short; names it, and the row.
    """
    try:
        with open(open_regular(path), "rb") as file:
            return _mapped(path, str(path), file, os.fstat(file.fileno()).st_size)
    except UNREADABLE as error:
        if isinstance(error, GraphDataError):
            raise
        raise GraphDataError(f"{path}: cannot be read: {_reason(error)}") from error


def mapped_npz(path: Path, names: Container[str] | None = None) -> dict[str, Array]:
    """Return the arrays of an ``.npz`` file: mapped where they are stored as they are (``np.savez``), else read.

    Args:
        path: the file.
        names: which of them; None for all.

    Raises:
        GraphDataError: it is missing or damaged, or holds Python objects; names the file and the array.
    """
    arrays: dict[str, Array] = {}
    entry = ""
    try:
        with open(open_regular(path), "rb") as file, zipfile.ZipFile(file) as archive:
            begins = sorted([*(info.header_offset for info in archive.infolist()), archive.start_dir])
            for info in archive.infolist():
                entry = info.filename
                name = entry.removesuffix(".npy")
                if names is not None and name not in names:
                    continue
                if name in arrays:
                    raise GraphDataError(f"{path}: {name} is there twice")
                with archive.open(info) as stream:  # which checks that the entry is there
                    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & _ENCRYPTED:
                        arrays[name] = _unpacked(f"{path}: {name}", stream, info.file_size)
                        continue
                file.seek(info.header_offset + _LOCAL_HEADER - 4)
                lengths = np.frombuffer(file.read(4), "<u2")
                begin = file.seek(int(lengths.sum()), os.SEEK_CUR)
                if begin + info.file_size > begins[bisect_right(begins, info.header_offset)]:
                    raise GraphDataError(f"{path}: {name} overlaps what follows it")
                arrays[name] = _mapped(path, f"{path}: {name}", file, begin + info.file_size)
    except UNREADABLE as error:
        if isinstance(error, GraphDataError):
            raise
        raise GraphDataError(f"{path}{': ' + entry if entry else ''}: cannot be read: {_reason(error)}") from error
    return arrays


def _reason(error: Exception) -> str:
    return str(error.strerror if isinstance(error, OSError) and error.strerror else error) or type(error).__name__


def _unpacked(what: str, stream: IO[bytes], size: int) -> Array:
    """Read a compressed array of so many bytes, of which the header is read first: memory is taken as it says."""
    shape, _, dtype = _read_header(what, stream)
    rows = size - stream.tell()
    if _bytes_of(shape, dtype) > rows:
        raise GraphDataError(f"{what} is too short: {dtype}{list(shape)} do not fit {rows} bytes")
    stream.seek(0)
    found: Array = np.lib.format.read_array(stream, allow_pickle=False)
    return found


def _read_header(what: str, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether the order is Fortran's, and dtype."""
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, in_fortran_order, dtype = read_header(file)
    if dtype.hasobject:
        raise GraphDataError(f"{what} holds Python objects, which are not read")
    if not dtype.itemsize or min(shape, default=0) < 0:
        raise GraphDataError(f"{what} can be no array: {dtype}{list(shape)}")
    return shape, in_fortran_order, dtype


def _bytes_of(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return int(np.prod(shape, dtype=object)) * dtype.itemsize


def _mapped(path: Path, what: str, file: IO[bytes], end: int) -> Array:
    """Map the array whose ``.npy`` header begins where a file stands, and which ends before ``end``."""
    shape, in_fortran_order, dtype = _read_header(what, file)
    begin = file.tell()
    end = min(end, os.fstat(file.fileno()).st_size)
    needed = _bytes_of(shape, dtype)
    if needed == 0:
        return np.zeros(shape, dtype)
    if end - begin < needed:
        rows = shape[0] if shape else 1
        row = max(0, end - begin) * rows // needed
        raise GraphDataError(f"{what} is too short: it ends in row {row} of {rows}")
    return np.memmap(path, dtype=dtype, mode="r", offset=begin, shape=shape, order="F" if in_fortran_order else "C")
