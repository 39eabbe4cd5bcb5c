"""Write and read one shard file as plain named arrays.

A file is written under a temporary name and renamed at the end, so a file with the final name is complete.
Rows are read into the caller's buffer without a copy, and their checksums are verified. Whatever is wrong
with a file becomes one :class:`~mpigraph.errors.ShardFormatError` that names file and dataset. No MPI here:
each rank reads for itself.
"""

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import h5py
import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import InvalidArgumentError, ShardFormatError
from mpigraph.storage.format import FORMAT_NAME, FORMAT_VERSION, logical_dtype, segment_rows, storage_dtype

__all__ = ["DatasetInfo", "ShardReader", "ShardWriter"]


# Metadata of this file format version carry checksums, so that HDF5 notices damage instead of following a wild pointer;
# for the same reason attributes are of fixed length (text of variable length lies in a heap without a checksum).
_LIBVER = ("v110", "v110")


class DatasetInfo(NamedTuple):
    """Shape and logical dtype of a dataset."""

    shape: tuple[int, ...]
    dtype: str


class ShardWriter:
    """Write one shard file, dataset by dataset, each in chunks of rows.

    A context manager: leaving it without an exception renames the file into place,
    leaving it with one removes the temporary file.

    Args:
        path: final name.
        graph_name: the graph that the file belongs to.
        part: the part that the file belongs to.
    """

    def __init__(self, path: str | os.PathLike[str], graph_name: str, part: int) -> None:
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        # locking=False: parallel file systems often refuse HDF5's locks, and nobody else knows the temporary name
        self._file = h5py.File(self._temporary, "w", libver=_LIBVER, locking=False)
        self._file.attrs.update(
            magic=_text(FORMAT_NAME), version=FORMAT_VERSION, graph_name=_text(graph_name), part=part
        )
        self._current: _Appender | None = None

    def create(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        """Begin a dataset; :meth:`write` then appends its rows.

        Args:
            name: path inside the file.
            shape: full shape, first dimension the rows.
            dtype: logical dtype.
        """
        self._finish()
        self._current = _Appender(self._file, name, shape, dtype)

    def write(self, rows: Array) -> None:
        """Append rows to the dataset begun last.

        Args:
            rows: ``[k, ...]`` in the storage dtype.
        """
        if self._current is None:
            raise InvalidArgumentError(f"{self._path}: write() before create()")
        self._current.write(rows)

    def add(self, name: str, values: Array, dtype: str | None = None) -> None:
        """Write a whole dataset; the dtype defaults to that of ``values``."""
        self.create(name, values.shape, logical_dtype(values.dtype) if dtype is None else dtype)
        self.write(values)

    def close(self) -> None:
        """Complete the file and give it its name."""
        self._finish()
        self._file.close()
        os.replace(self._temporary, self._path)

    def discard(self) -> None:
        """Drop what was written."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.discard()
            return
        try:
            self.close()
        except BaseException:  # an interrupt too must leave no temporary file
            self.discard()
            raise

    def _finish(self) -> None:
        """Complete the dataset that :meth:`create` began, if any."""
        if self._current is not None:
            self._current.finish()
            self._current = None


class _Appender:
    """One dataset being written: rows so far and their running checksums."""

    def __init__(self, file: h5py.File, name: str, shape: tuple[int, ...], dtype: str) -> None:
        stored = storage_dtype(dtype)
        self._name = name
        self._shape = tuple(int(size) for size in shape)
        # without times, equal contents are equal files
        self._dataset = file.create_dataset(name, shape=self._shape, dtype=stored, track_times=False)
        self._segment = segment_rows(self._shape[0], stored.itemsize * int(np.prod(self._shape[1:])))
        self._dataset.attrs["dtype"] = _text(dtype)
        self._dataset.attrs["segment_rows"] = self._segment
        self._done = 0
        self._crcs = np.zeros(-(-self._shape[0] // self._segment), np.uint32)

    def write(self, rows: Array) -> None:
        """Append rows, and extend the checksums of the segments that they lie in."""
        if rows.shape[1:] != self._shape[1:] or rows.dtype != self._dataset.dtype:
            raise InvalidArgumentError(
                f"dataset {self._name!r} has rows {self._dataset.dtype}{list(self._shape[1:])} "
                f"(got {rows.dtype}{list(rows.shape[1:])})"
            )
        end = self._done + len(rows)
        if end > self._shape[0]:
            raise InvalidArgumentError(f"dataset {self._name!r} has {self._shape[0]} rows (got at least {end})")
        if len(rows) == 0 or rows.size == 0:
            self._done = end
            return
        rows = np.ascontiguousarray(rows)
        self._dataset.write_direct(rows, dest_sel=np.s_[self._done : end])
        for index, begin, stop in _segments(self._done, end, self._segment):
            block = rows[begin - self._done : stop - self._done]
            self._crcs[index] = zlib.crc32(_bytes(block), int(self._crcs[index]))
        self._done = end

    def finish(self) -> None:
        """Store the checksums; every row must have been written."""
        if self._done != self._shape[0]:
            raise InvalidArgumentError(f"dataset {self._name!r} has {self._shape[0]} rows (got only {self._done})")
        self._dataset.attrs["crc32"] = self._crcs


class ShardReader:
    """Read datasets of one shard file.

    A context manager.

    Args:
        path: file to open.
        graph_name: if given, the graph that the file must belong to.
        part: if given, the part that the file must belong to.

    Raises:
        ShardFormatError: the file is missing, truncated, foreign, of another version or of another graph or
            part.
    """

    def __init__(self, path: str | os.PathLike[str], graph_name: str | None = None, part: int | None = None) -> None:
        self._path = Path(path)
        if not self._path.is_file():
            raise ShardFormatError(f"{self._path}: shard file is missing")
        with self._failures("the file header"):
            self._file = h5py.File(self._path, "r", locking=False)
        try:
            self._check_header(graph_name, part)
        except BaseException:
            self.close()
            raise

    def names(self) -> list[str]:
        """Return the paths of all datasets."""
        found: list[str] = []

        def visit(name: str, item: object) -> None:
            if isinstance(item, h5py.Dataset):
                found.append(name)

        with self._failures("the list of datasets"):
            self._file.visititems(visit)
        return found

    def info(self, name: str) -> DatasetInfo:
        """Return shape and logical dtype of a dataset.

        Raises:
            ShardFormatError: there is no such dataset, or its dtype is not what it says.
        """
        dataset, logical, _, _ = self._open(name)
        return DatasetInfo(tuple(dataset.shape), logical)

    def checksums(self, name: str) -> Array:
        """Return uint32[segments], the checksums that a dataset carries."""
        return self._open(name)[3]

    def read_into(self, name: str, out: Array, begin: int = 0, verify: bool = True) -> None:
        """Read rows ``[begin, begin + len(out))`` straight into ``out``.

        Args:
            name: dataset.
            out: C-contiguous ``[k, ...]`` in the storage dtype; filled here.
            begin: first row.
            verify: check the checksums of all segments touched.

        Raises:
            ShardFormatError: the dataset is missing, has another dtype or shape, or is damaged.
        """
        dataset, _, rows, crcs = self._open(name)
        end = begin + len(out)
        if out.dtype != dataset.dtype or out.shape[1:] != dataset.shape[1:] or begin < 0 or end > len(dataset):
            raise ShardFormatError(
                f"{self._path}: dataset {name!r} holds {dataset.dtype}{list(dataset.shape)} "
                f"(asked for rows {begin} to {end} as {out.dtype}{list(out.shape)})"
            )
        if not out.flags.c_contiguous:
            raise InvalidArgumentError(f"the buffer for {name!r} must be C-contiguous")
        if out.size == 0:
            return
        with self._failures(f"dataset {name!r}"):
            dataset.read_direct(out, source_sel=np.s_[begin:end])
        if not verify:
            return
        # a checksum covers a whole segment, so the rows of it before and behind the range are read as well
        for index, first, stop in _segments(begin, end, rows):
            low, high = index * rows, min((index + 1) * rows, len(dataset))
            crc = zlib.crc32(_bytes(self._read_rest(name, dataset, low, first)))
            crc = zlib.crc32(_bytes(out[first - begin : stop - begin]), crc)
            crc = zlib.crc32(_bytes(self._read_rest(name, dataset, stop, high)), crc)
            if crc != int(crcs[index]):
                raise ShardFormatError(
                    f"{self._path}: dataset {name!r} is damaged: the checksum of rows {low} to {high} does not match"
                )

    def read(self, name: str, begin: int = 0, end: int | None = None, verify: bool = True) -> Array:
        """Return rows ``[begin, end)`` of a dataset in its storage dtype."""
        shape, logical = self.info(name)
        end = shape[0] if end is None else end
        out = np.empty((end - begin, *shape[1:]), storage_dtype(logical))
        self.read_into(name, out, begin, verify)
        return out

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> "ShardReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_header(self, graph_name: str | None, part: int | None) -> None:
        with self._failures("the file header"):
            header = {key: self._file.attrs.get(key) for key in ("version", "part")}
            header |= {key: _untext(self._file.attrs.get(key)) for key in ("magic", "graph_name")}
        if header["magic"] != FORMAT_NAME:
            raise ShardFormatError(f"{self._path}: not a shard of this library (magic {header['magic']!r})")
        if header["version"] != FORMAT_VERSION:
            raise ShardFormatError(
                f"{self._path}: format version {header['version']} (this library reads {FORMAT_VERSION})"
            )
        if graph_name is not None and header["graph_name"] != graph_name:
            raise ShardFormatError(f"{self._path}: belongs to graph {header['graph_name']!r}, not to {graph_name!r}")
        if part is not None and header["part"] != part:
            raise ShardFormatError(f"{self._path}: belongs to part {header['part']}, not to part {part}")

    def _open(self, name: str) -> tuple[Any, str, int, Array]:
        """Return the dataset, its logical dtype, the rows of a segment and the checksums; all checked."""
        with self._failures(f"dataset {name!r}"):
            dataset = self._file.get(name)
            if not isinstance(dataset, h5py.Dataset):
                raise ShardFormatError(f"{self._path}: dataset {name!r} is missing")
            logical = _untext(dataset.attrs["dtype"])
            rows = int(dataset.attrs["segment_rows"])
            crcs = np.asarray(dataset.attrs["crc32"])
            if storage_dtype(logical) != dataset.dtype:
                raise ShardFormatError(
                    f"{self._path}: dataset {name!r} says dtype {logical!r} but stores {dataset.dtype}"
                )
            # attributes may be damaged too, and a wrong segment size would check nothing
            if dataset.ndim < 1 or rows < 1 or len(crcs) != -(-len(dataset) // rows):
                raise ShardFormatError(f"{self._path}: dataset {name!r} has damaged checksums")
        return dataset, logical, rows, crcs

    def _read_rest(self, name: str, dataset: Any, begin: int, end: int) -> Array:
        """Read rows of a segment that the caller did not ask for."""
        with self._failures(f"dataset {name!r}"):
            return np.asarray(dataset[begin:end])

    @contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        """Turn all errors of HDF5 and numpy about a broken file into one."""
        try:
            yield
        except ShardFormatError:
            raise
        except (OSError, KeyError, RuntimeError, ValueError, TypeError, AttributeError) as error:
            raise ShardFormatError(f"{self._path}: cannot read {what}: {error}") from error


def _segments(begin: int, end: int, rows: int) -> Iterator[tuple[int, int, int]]:
    """Split ``[begin, end)`` at multiples of ``rows``: (segment, first row, last row + 1)."""
    while begin < end:
        index = begin // rows
        stop = min(end, (index + 1) * rows)
        yield index, begin, stop
        begin = stop


def _text(text: str) -> np.bytes_:
    """Return text as an HDF5 string of fixed length."""
    return np.bytes_(text.encode("utf-8"))


def _untext(value: object) -> str:
    """Undo :func:`_text`; anything else becomes a text that equals no name."""
    return value.decode("utf-8") if isinstance(value, bytes) else repr(value)


def _bytes(rows: Array) -> memoryview:
    """Return the memory of contiguous rows."""
    return rows.reshape(-1).view(np.uint8).data
