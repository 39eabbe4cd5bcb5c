"""Write and read one shard file as plain named arrays.

A file is written under a temporary name and renamed at the end, so a file with the final name is complete.
Rows are read into the caller's buffer without a copy, and their checksums are verified. Any damage of a file
becomes one :class:`~mpigraph.errors.ShardFormatError` that names file and dataset. No MPI here:
each rank reads for itself.

Bits that rot are found: HDF5's own metadata have checksums, too. Files are not checked for what no program writes.
"""

import math
import os
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import InvalidArgumentError, ShardFormatError
from mpigraph.storage.files import FileOfHDF5, check_space
from mpigraph.storage.format import FORMAT_NAME, FORMAT_VERSION, logical_dtype, segment_rows, storage_dtype

_BESIDE = 4 << 20  # bytes whose checksums a thread takes while the disk writes: zlib's 0.15 ns a byte, beside 0.5
_READ_BYTES = 64 << 20

# Metadata of this file format version carry checksums, so that HDF5 notices damage instead of following a wild pointer.
# For the same reason attributes are of fixed length: text of variable length lies in a heap without a checksum.
_LIBVER = ("v110", "v110")

# Large datasets begin at a page of the file, so that they can be written straight from memory (``files.py``).
_ALIGNMENT = {"alignment_threshold": 1 << 20, "alignment_interval": 4096}


class DatasetInfo(NamedTuple):
    """Shape and logical dtype of a dataset."""

    shape: tuple[int, ...]
    dtype: str


class Dataset(NamedTuple):
    """A dataset of a file: its first byte, shape and dtype, rows of a segment, and uint32 checksums of the segments."""

    begin: int
    info: DatasetInfo
    segment: int
    crcs: Array


Fingerprint = Mapping[str, tuple[DatasetInfo, bytes]]
"""Shape, dtype and checksums of every dataset of a file."""


class ShardWriter:
    """Write one shard file, dataset by dataset, each in chunks of rows.

    A context manager: leaving it without an exception renames the file into place,
    leaving it with one removes the temporary file.

    Args:
        path: final name.
        graph_name: the graph that the file belongs to.
        part: the part that the file belongs to.
        identity: the partitioning that the file belongs to.
        durable: wait at the end until the disk has it.

    Raises:
        StorageError: the file cannot be written; by any method.
    """

    def __init__(
        self, path: str | os.PathLike[str], graph_name: str, part: int, identity: str, durable: bool = False
    ) -> None:
        self._path = Path(path)
        self._target = FileOfHDF5(self._path, durable)
        try:
            self._file = h5py.File(self._target, "w", libver=_LIBVER, **_ALIGNMENT)
        except BaseException:
            self._target.discard()
            raise
        names = {"magic": FORMAT_NAME, "version": FORMAT_VERSION, "graph_name": graph_name, "part": part}
        _set_attributes(self._file, **names, identity=identity)
        self._begun: list[DatasetWriter] = []

    def create(self, name: str, shape: tuple[int, ...], dtype: str) -> "DatasetWriter":
        """Begin a dataset of a full shape and a logical dtype, to append rows to; several may be in progress."""
        rows = DatasetWriter(self._file, self._target, name, shape, dtype)
        self._begun.append(rows)
        check_space(self._path.parent, rows.dataset.nbytes, f"dataset {name!r} of {self._path}")
        return rows

    def add(self, name: str, values: Array, dtype: str | None = None) -> None:
        """Write a whole dataset; the dtype defaults to that of ``values``."""
        self.create(name, values.shape, logical_dtype(values.dtype) if dtype is None else dtype).write(values)

    def close(self) -> None:
        """Complete the file and give it its name."""
        for rows in self._begun:
            rows.finish()
        self._file.close()
        self._target.check()
        self._target.publish()

    def discard(self) -> None:
        """Drop what was written, unless the file has its name."""
        self._target.give_up()
        with suppress(OSError, RuntimeError, ValueError):  # there is an error already, and the file is not wanted
            self._file.close()
        self._target.discard()

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.close()
        finally:  # an interrupt too must leave no temporary file
            self.discard()


class DatasetWriter:
    """A dataset of a shard that is being written: rows so far and their running checksums."""

    def __init__(self, file: Any, target: FileOfHDF5, name: str, shape: tuple[int, ...], dtype: str) -> None:
        self._target = target
        # without times, equal contents are equal files
        self.dataset = file.create_dataset(name, shape, storage_dtype(dtype), track_times=False)
        self._segment = segment_rows(len(self.dataset), self.dataset.dtype.itemsize * math.prod(shape[1:]))
        _set_attributes(self.dataset, dtype=dtype, segment_rows=self._segment)
        self._done = 0
        self._crcs = np.zeros(-(-len(self.dataset) // self._segment), np.uint32)

    def write(self, rows: Array) -> None:
        """Append rows ``[k, ...]`` in the storage dtype, and extend the checksums of their segments.

        Raises:
            StorageError: they cannot be written.
        """
        end = self._done + len(rows)
        if rows.size:
            rows = np.ascontiguousarray(rows)
            beside = rows.nbytes >= _BESIDE
            summing = threading.Thread(target=self._sum, args=(rows,), name="mpigraph-checksums")
            summing.start() if beside else summing.run()
            self.dataset.write_direct(rows, dest_sel=np.s_[self._done : end])
            if beside:
                summing.join()
        self._done = end
        self._target.check()

    def _sum(self, rows: Array) -> None:
        for index, begin, stop in _segments(self._done, self._done + len(rows), self._segment):
            segment = _bytes(rows[begin - self._done : stop - self._done])
            self._crcs[index] = zlib.crc32(segment, int(self._crcs[index]))

    def finish(self) -> None:
        """Store the checksums. Every row must have been written."""
        if self._done != len(self.dataset):
            raise InvalidArgumentError(f"{self.dataset.name} has {len(self.dataset)} rows (got {self._done})")
        _set_attributes(self.dataset, crc32=self._crcs)


class ShardReader:
    """Reads datasets of one shard file.

    HDF5 says once where they are; their rows are read without it. Between reads the file is closed, so that thousands
    of files may be known.

    Args:
        path: file to open.
        graph_name: if given, the graph that the file must belong to.
        part: if given, the part that the file must belong to.
        identity: if given, the partitioning that the file must belong to.

    Attributes:
        path: the file.
        identity: the partitioning that it belongs to.

    Raises:
        ShardFormatError: the file is missing, truncated, foreign, of another version or of another graph, part or
            partitioning.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        graph_name: str | None = None,
        part: int | None = None,
        identity: str | None = None,
    ) -> None:
        self.path = Path(path)
        if not self.path.exists():
            raise ShardFormatError(f"{self.path}: shard file is missing")
        names: list[bytes] = []

        def note(name: bytes, info: Any) -> None:
            if info.type == h5py.h5o.TYPE_DATASET:
                names.append(name)

        with self._failures("the file header"), h5py.File(self.path, "r", locking=False) as file:
            self._check_header(file, graph_name, part, identity)
            h5py.h5o.visit(file.id, note, info=True)
            self._datasets = {name.decode(): self._described(file.id, name) for name in names}

    def names(self) -> list[str]:
        """Return the paths of all datasets."""
        return list(self._datasets)

    def info(self, name: str) -> DatasetInfo:
        """Return shape and logical dtype of a dataset. Raises ShardFormatError if it is missing."""
        return self._dataset(name).info

    def fingerprint(self) -> Fingerprint:
        """Return shape, dtype and checksums of every dataset."""
        return {name: (of.info, of.crcs.tobytes()) for name, of in self._datasets.items()}

    def read_into(self, name: str, out: Array, begin: int = 0) -> None:
        """Read rows ``[begin, begin + len(out))`` straight into ``out``, and check all segments that they touch.

        Args:
            name: dataset.
            out: C-contiguous ``[k, ...]`` in the storage dtype; filled here.
            begin: first row.

        Raises:
            ShardFormatError: the dataset is missing, has another dtype or shape, or is damaged.
        """
        dataset = self._dataset(name)
        shape, logical = dataset.info
        stored = storage_dtype(logical)
        end = begin + len(out)
        fits = out.dtype == stored and out.shape[1:] == shape[1:] and 0 <= begin and end <= shape[0]
        if not fits or not out.flags.c_contiguous:
            raise ShardFormatError(
                f"{self.path}: dataset {name!r} holds {stored}{list(shape)} "
                f"(asked for rows {begin} to {end} as {out.dtype}{list(out.shape)}, C-contiguous)"
            )
        if out.size == 0:
            return
        with self._failures(f"dataset {name!r}"), open(self.path, "rb", buffering=0) as file:
            _fill(file, dataset, out, begin)
            self._verify(file, name, dataset, out, begin)

    def _verify(self, file: FileIO, name: str, dataset: Dataset, out: Array, begin: int) -> None:
        """Compare the rows in ``out`` with the checksums of the segments that they lie in."""
        rows = dataset.segment

        def rest(first: int, stop: int) -> memoryview:
            """Read rows of a segment before or behind ``out``: a checksum covers a whole segment."""
            around = np.empty((stop - first, *out.shape[1:]), out.dtype)
            if len(around):
                _fill(file, dataset, around, first)
            return _bytes(around)

        for index, first, stop in _segments(begin, begin + len(out), rows):
            low = index * rows
            high = min(low + rows, dataset.info.shape[0])
            crc = zlib.crc32(rest(low, first))
            crc = zlib.crc32(_bytes(out[first - begin : stop - begin]), crc)
            crc = zlib.crc32(rest(stop, high), crc)
            if crc != int(dataset.crcs[index]):
                raise ShardFormatError(
                    f"{self.path}: dataset {name!r} is damaged: the checksum of rows {low} to {high} does not match"
                )

    def read(self, name: str, begin: int = 0, end: int | None = None) -> Array:
        """Return rows ``[begin, end)`` of a dataset in its storage dtype."""
        shape, logical = self.info(name)
        end = shape[0] if end is None else end
        out = np.empty((end - begin, *shape[1:]), storage_dtype(logical))
        self.read_into(name, out, begin)
        return out

    def check_rows(self, names: Iterable[str]) -> None:
        """Read datasets from end to end. Raises ShardFormatError if one is damaged."""
        for name in names:
            for _ in read_chunks(self, name):
                pass

    def _check_header(self, file: Any, *expected: object) -> None:
        names = ("graph_name", "part", "identity")
        magic, version, *given = (_plain(file.attrs.get(name)) for name in ("magic", "version", *names))
        if magic != FORMAT_NAME:
            raise ShardFormatError(f"{self.path}: not a shard of this library (magic {magic!r})")
        if version != FORMAT_VERSION:
            raise ShardFormatError(
                f"{self.path}: format version {version} (this library reads {FORMAT_VERSION}; write it again)"
            )
        self.identity = given[-1]
        mixed = "files of two partitionings are mixed, or writing one was interrupted"
        of_identity = f"another partitioning ({{}}, not {{}}): {mixed}"
        texts = ("graph {!r}, not to {!r}", "part {}, not to part {}", of_identity)
        for text, its, wanted in zip(texts, given, expected, strict=True):
            if wanted is not None and its != wanted:
                raise ShardFormatError(f"{self.path}: belongs to {text.format(its, wanted)}")

    def _described(self, file: Any, name: bytes) -> Dataset:
        with self._failures(f"dataset {name.decode()!r}"):
            item = h5py.h5o.open(file, name)
            dtype, segment, crcs = (_attribute(item, key) for key in (b"dtype", b"segment_rows", b"crc32"))
            return Dataset(item.get_offset() or 0, DatasetInfo(item.shape, _plain(dtype)), int(segment), crcs)

    def _dataset(self, name: str) -> Dataset:
        if name not in self._datasets:
            raise ShardFormatError(f"{self.path}: dataset {name!r} is missing")
        return self._datasets[name]

    @contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        """Turn all errors of HDF5 and numpy about a broken file into one."""
        try:
            yield
        except ShardFormatError:
            raise
        except (OSError, KeyError, RuntimeError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise ShardFormatError(f"{self.path}: cannot read {what}: {error}") from error


def verify(
    path: str | os.PathLike[str],
    graph_name: str,
    part: int,
    identity: str | None = None,
    original: Fingerprint | None = None,
) -> None:
    """Read a file from end to end; graph, part and identity are those of :class:`ShardReader`.

    With the fingerprint of an original, which may be on a slow disk, the file must be a copy of it.

    Raises:
        ShardFormatError: it is missing, damaged, or of something else.
    """
    shard = ShardReader(path, graph_name, part, identity)
    if original is not None and shard.fingerprint() != original:
        raise ShardFormatError(f"{path}: not a copy of the original: their checksums differ")
    shard.check_rows(shard.names())


def read_chunks(shard: ShardReader, name: str, first: int = 0, last: int | None = None) -> Iterator[tuple[int, Array]]:
    """Yield ``(first row, rows)`` of the rows ``[first, last)`` of a dataset, or of all, verified.

    Each chunk has at most 64 MiB, or a segment, and ends where a segment does, so that none is read twice for its
    checksum. They share one buffer: each is valid until the next.

    Raises:
        ShardFormatError: the dataset is missing or damaged.
    """
    shape, dtype = shard.info(name)
    stored = storage_dtype(dtype)
    row_bytes = stored.itemsize * int(np.prod(shape[1:], dtype=np.int64))
    segment = segment_rows(shape[0], row_bytes)
    step = segment * max(1, _READ_BYTES // max(1, segment * row_bytes))
    last = shape[0] if last is None else last
    buffer = np.empty((min(step, last - first), *shape[1:]), stored)
    while first < last:
        rows = buffer[: min(last, (first // step + 1) * step) - first]
        shard.read_into(name, rows, first)
        yield first, rows
        first += len(rows)


def _fill(file: FileIO, dataset: Dataset, out: Array, begin: int) -> None:
    """Read rows of a dataset from ``begin`` on, or raise OSError."""
    left = _bytes(out)
    place = dataset.begin + begin * (out.nbytes // len(out))
    while len(left):
        count = os.preadv(file.fileno(), [left], place)  # while other threads run, unlike in h5py
        if not count:
            raise OSError("the file ends before its rows")
        left = left[count:]
        place += count


def _attribute(item: Any, name: bytes) -> Any:
    """Return an attribute of an HDF5 object, in half of the time of ``attrs``."""
    attribute = h5py.h5a.open(item, name)
    value = np.empty(attribute.shape, attribute.dtype)
    attribute.read(value)
    return value[()]


def _segments(begin: int, end: int, rows: int) -> Iterator[tuple[int, int, int]]:
    """Split ``[begin, end)`` at multiples of ``rows``: (segment, first row, last row + 1)."""
    while begin < end:
        index = begin // rows
        stop = min(end, (index + 1) * rows)
        yield index, begin, stop
        begin = stop


def _set_attributes(item: Any, **attributes: Any) -> None:
    """Give an HDF5 object attributes; text becomes a string of fixed length."""
    for name, value in attributes.items():
        item.attrs[name] = np.bytes_(value.encode()) if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    """Return the value of an attribute, text as a str."""
    return value.decode() if isinstance(value, bytes) else value


def _bytes(rows: Array) -> memoryview:
    """Return the memory of contiguous rows."""
    return rows.reshape(-1).view(np.uint8).data
