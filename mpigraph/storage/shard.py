"""Write and read one shard file as plain named arrays.

A file is written under a temporary name and renamed at the end, so a file with the final name is complete.
Rows are read into the caller's buffer without a copy, and their checksums are verified. Any damage of a file
becomes one :class:`~mpigraph.errors.ShardFormatError` that names file and dataset. No MPI here:
each rank reads for itself.

Behind what HDF5 wrote a file ends with a list of its datasets (``dataset_list.py``); where it is missing or odd, HDF5
finds them.

A file may come from anywhere. So nothing in it is followed to another file (links, external storage, virtual datasets),
no filter runs, and nothing is allocated that the file's size does not justify.
"""

import hashlib
import math
import os
import threading
import weakref
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import InvalidArgumentError, ShardFormatError
from mpigraph.storage import dataset_list
from mpigraph.storage.dataset_list import ATTRIBUTE_BYTES, MOST_DATASETS, Dataset, DatasetInfo, is_possible
from mpigraph.storage.files import FileOfHDF5, check_space, open_regular
from mpigraph.storage.format import FORMAT_NAME, FORMAT_VERSION, logical_dtype, segment_rows, storage_dtype

_SIGNATURE = b"\x89HDF\r\n\x1a\n\x03"  # of HDF5's superblock, and the version of it that _LIBVER gives
_FLAGS = 11  # the byte of it that says that a program writes to the file
_BESIDE = 4 << 20  # bytes whose checksums a thread takes while the disk writes: zlib's 0.15 ns a byte, beside 0.5
_READ_BYTES = 64 << 20

# Metadata of this file format version carry checksums, so that HDF5 notices damage instead of following a wild pointer.
# For the same reason attributes are of fixed length: text of variable length lies in a heap without a checksum.
_LIBVER = ("v110", "v110")

# Large datasets begin at a page of the file, so that they can be written straight from memory (``files.py``).
_ALIGNMENT = {"alignment_threshold": 1 << 20, "alignment_interval": 4096}


Fingerprint = Mapping[str, tuple[DatasetInfo, bytes]]
"""Shape, dtype and checksums of every dataset of a file."""


def seal_of(content: Fingerprint) -> str:
    """Return the hash of a file's fingerprint."""
    seal = hashlib.sha256()
    for name, (info, crcs) in sorted(content.items()):
        seal.update(repr((name, info.shape, info.dtype, crcs)).encode())
    return seal.hexdigest()


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
            self._file = _h5().File(self._target, "w", libver=_LIBVER, **_ALIGNMENT)
        except BaseException:
            self._target.discard()
            raise
        names = {"magic": FORMAT_NAME, "version": FORMAT_VERSION, "graph_name": graph_name, "part": part}
        for name, value in (names | {"identity": identity}).items():
            _set_attribute(self._file.id, name, value)
        self._owner = graph_name, part, identity
        self._begun: list[DatasetWriter] = []
        self._datasets: dict[str, Dataset] = {}

    @property
    def seal(self) -> str:
        """The seal of the datasets written so far."""
        return seal_of({name: dataset.content for name, dataset in self._datasets.items()})

    def create(self, name: str, shape: tuple[int, ...], dtype: str) -> "DatasetWriter":
        """Begin a dataset of a full shape and a logical dtype, to append rows to; several may be in progress."""
        rows = DatasetWriter(self._file, self._target, name, shape, dtype)
        self._begun.append(rows)
        check_space(self._path.parent, rows.nbytes, f"dataset {name!r} of {self._path}")
        return rows

    def add(self, name: str, values: Array, dtype: str | None = None) -> None:
        """Write a whole dataset; the dtype defaults to that of ``values``."""
        self.create(name, values.shape, logical_dtype(values.dtype) if dtype is None else dtype).write(values)

    def close(self) -> None:
        """Complete the file and give it its name."""
        while self._begun:
            written = self._begun.pop()
            self._datasets[written.name] = written.finish()
        self._file.close()
        self._target.seek(0, os.SEEK_END)
        self._target.write(dataset_list.packed(self._owner, self._datasets))
        self._target.check()
        self._target.publish()

    def discard(self) -> None:
        """Drop what was written."""
        self._target.give_up()
        with suppress(OSError, RuntimeError, ValueError):  # there is an error already, and the file is not wanted
            self._file.close()
        self._target.discard()

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


class DatasetWriter:
    """A dataset of a shard that is being written: rows so far and their running checksums."""

    def __init__(self, file: Any, target: FileOfHDF5, name: str, shape: tuple[int, ...], dtype: str) -> None:
        self._target = target
        stored = storage_dtype(dtype)
        self.name = name
        self._dtype = dtype
        self._shape = tuple(int(size) for size in shape)
        # without times, equal contents are equal files
        self._dataset = file.create_dataset(name, shape=self._shape, dtype=stored, track_times=False)
        self._segment = segment_rows(self._shape[0], stored.itemsize * int(np.prod(self._shape[1:])))
        _set_attribute(self._dataset.id, "dtype", dtype)
        _set_attribute(self._dataset.id, "segment_rows", self._segment)
        self.nbytes = stored.itemsize * math.prod(self._shape)
        self._done = 0
        self._crcs = np.zeros(-(-self._shape[0] // self._segment), np.uint32)

    def write(self, rows: Array) -> None:
        """Append rows ``[k, ...]`` in the storage dtype, and extend the checksums of their segments.

        Raises:
            StorageError: they cannot be written.
        """
        if rows.shape[1:] != self._shape[1:] or rows.dtype != self._dataset.dtype:
            raise InvalidArgumentError(
                f"dataset {self.name!r} has rows {self._dataset.dtype}{list(self._shape[1:])} "
                f"(got {rows.dtype}{list(rows.shape[1:])})"
            )
        end = self._done + len(rows)
        if end > self._shape[0]:
            raise InvalidArgumentError(f"dataset {self.name!r} has {self._shape[0]} rows (got at least {end})")
        if rows.size == 0:
            self._done = end
            return
        rows = np.ascontiguousarray(rows)
        beside = rows.nbytes >= _BESIDE
        summing = threading.Thread(target=self._sum, args=(rows,), name="mpigraph-checksums")
        summing.start() if beside else summing.run()
        self._dataset.write_direct(rows, dest_sel=np.s_[self._done : end])
        if beside:
            summing.join()
        self._done = end
        self._target.check()

    def _sum(self, rows: Array) -> None:
        for index, begin, stop in _segments(self._done, self._done + len(rows), self._segment):
            segment = _bytes(rows[begin - self._done : stop - self._done])
            self._crcs[index] = zlib.crc32(segment, int(self._crcs[index]))

    def finish(self) -> Dataset:
        """Store the checksums and return what is known of the dataset; every row must have been written."""
        if self._done != self._shape[0]:
            raise InvalidArgumentError(f"dataset {self.name!r} has {self._shape[0]} rows (got only {self._done})")
        _set_attribute(self._dataset.id, "crc32", self._crcs)
        info = DatasetInfo(self._shape, self._dtype)
        return Dataset(self._dataset.id.get_offset(), info, self._dataset.dtype, self._segment, self._crcs)


class ShardReader:
    """Reads datasets of one shard file; a context manager.

    The list at the end of the file, or else HDF5, says where they are; their rows are read without HDF5.

    Args:
        path: file to open.
        graph_name: if given, the graph that the file must belong to.
        part: if given, the part that the file must belong to.
        identity: if given, the partitioning that the file must belong to.
        by_list: use the list; False lets HDF5 check its own part of the file, which other programs read.

    Attributes:
        path: the file.

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
        by_list: bool = True,
    ) -> None:
        self._number: int | None = None  # of the file, where HDF5 has not opened it
        self.path = Path(path)
        self._owner = graph_name, part, identity
        self._datasets: dict[str, Dataset] = {}
        self._file: Any = None
        self._listed = False  # whether all datasets are known from the list
        if by_list:
            with self._failures("the file header"):
                known = self._check_file(by_list=True)
            if known is not None:
                owner, self._datasets = known
                self._check_owner(*owner)
                self._listed = True
        if not self._listed:
            self._hdf5()

    def _hdf5(self) -> Any:
        """Open the file by HDF5, unless it is open, and check its header; return its id."""
        if self._file is None:
            try:
                with self._failures("the file header"):
                    self._check_file()
                    self._file = _h5().File(self.path, "r", locking=False)
                    self._check_header()
            except ImportError as error:
                self.close()
                what = f"its list of datasets is missing or damaged, and HDF5 cannot find them without h5py ({error})"
                raise ShardFormatError(f"{self.path}: {what}") from error
            except BaseException:
                self.close()
                raise
        return self._file.id

    def rest(self) -> None:
        """Close the file until something is read; what is known of its datasets is kept."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._number is not None:
            self._close_number()
            self._number = None

    def names(self) -> list[str]:
        """Return the paths of all datasets."""
        if self._listed:
            return list(self._datasets)
        names: list[str] = []

        def visit(name: bytes, info: Any) -> None:
            if info.type == _h5().h5o.TYPE_DATASET:
                names.append(name.decode())

        with self._failures("the list of datasets"):
            _h5().h5o.visit(self._hdf5(), visit, info=True)
        return names

    def info(self, name: str) -> DatasetInfo:
        """Return shape and logical dtype of a dataset.

        Raises:
            ShardFormatError: there is no such dataset, or its dtype is not what it says.
        """
        return self.describe(name)[0]

    def describe(self, name: str) -> tuple[DatasetInfo, bytes]:
        """Return shape, logical dtype and the bytes of the checksums of a dataset."""
        return self._open(name).content

    def segment(self, name: str) -> int:
        """Return the rows of a dataset that one checksum is for. Raises ShardFormatError as :meth:`info`."""
        return self._open(name).segment

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
        dataset = self._open(name)
        shape, logical = dataset.info
        end = begin + len(out)
        if out.dtype != dataset.stored or out.shape[1:] != shape[1:] or begin < 0 or end > shape[0]:
            raise ShardFormatError(
                f"{self.path}: dataset {name!r} holds {dataset.stored}{list(shape)} "
                f"(asked for rows {begin} to {end} as {out.dtype}{list(out.shape)})"
            )
        if not out.flags.c_contiguous:
            raise InvalidArgumentError(f"the buffer for {name!r} must be C-contiguous")
        if out.size == 0:
            return
        self._fill(name, dataset, out, begin)
        if verify:
            self._verify(name, dataset, out, begin)
        if logical == "bool" and int(out.max()) > 1:
            raise ShardFormatError(f"{self.path}: dataset {name!r} contradicts itself: a bool is neither 0 nor 1")

    def _fill(self, name: str, dataset: Dataset, out: Array, begin: int) -> None:
        """Read rows from ``begin`` on."""
        left = _bytes(out)
        with self._failures(f"dataset {name!r}"):
            if self._file is None and self._number is None:
                self._number = open_regular(self.path)
                self._close_number = weakref.finalize(self, os.close, self._number)  # with the last reader of its rows
            number: Any = self._number if self._file is None else self._file.id.get_vfd_handle()
            place = (dataset.begin or 0) + begin * dataset.row_bytes
            while len(left):
                count = os.preadv(number, [left], place)
                if not count:
                    raise OSError("the file ends before its rows")
                left, place = left[count:], place + count

    def _verify(self, name: str, dataset: Dataset, out: Array, begin: int) -> None:
        """Compare the rows in ``out`` with the checksums of the segments that they lie in."""
        end = begin + len(out)
        rows = dataset.segment
        # a checksum covers a whole segment, so the rows of it before and behind the range are read as well
        for index, first, stop in _segments(begin, end, rows):
            low, high = index * rows, min((index + 1) * rows, dataset.info.shape[0])
            crc = zlib.crc32(self._read_rest(name, dataset, low, first))
            crc = zlib.crc32(_bytes(out[first - begin : stop - begin]), crc)
            crc = zlib.crc32(self._read_rest(name, dataset, stop, high), crc)
            if crc != int(dataset.crcs[index]):
                raise ShardFormatError(
                    f"{self.path}: dataset {name!r} is damaged: the checksum of rows {low} to {high} does not match"
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
        self._datasets.clear()
        self.rest()

    def __enter__(self) -> "ShardReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_file(self, by_list: bool = False) -> tuple[tuple[Any, ...], dict[str, Dataset]] | None:
        """Check that HDF5 can open the file without waiting or searching, and note its size; return its list, if asked.

        None of the list where it is missing, damaged or odd.
        """
        try:
            number = open_regular(self.path)
        except FileNotFoundError:
            raise ShardFormatError(f"{self.path}: shard file is missing") from None
        try:
            begin = os.pread(number, _FLAGS + 1, 0)
            if not begin.startswith(_SIGNATURE[:-1]):
                raise OSError("not an HDF5 file")
            if not begin.startswith(_SIGNATURE):  # older versions have no checksums of metadata
                raise ShardFormatError(f"{self.path}: not a shard of this library (HDF5 superblock of another version)")
            if any(begin[_FLAGS:]):  # HDF5 refuses it, too
                raise ShardFormatError(f"{self.path}: a program is writing to this file, or was killed while it did")
            self._size = os.fstat(number).st_size
            return dataset_list.read(number, self._size) if by_list else None
        finally:
            os.close(number)

    def _check_header(self) -> None:
        magic, its_graph, its_identity = map(_untext, map(self._header, ("magic", "graph_name", "identity")))
        version, its_part = map(self._header, ("version", "part"))
        if magic != FORMAT_NAME:
            raise ShardFormatError(f"{self.path}: not a shard of this library (magic {magic!r})")
        if version != FORMAT_VERSION:
            raise ShardFormatError(
                f"{self.path}: format version {version} (this library reads {FORMAT_VERSION}; write it again)"
            )
        self._check_owner(its_graph, its_part, its_identity)

    def _check_owner(self, its_graph: str, its_part: int, its_identity: str) -> None:
        graph_name, part, identity = self._owner
        if graph_name is not None and its_graph != graph_name:
            raise ShardFormatError(f"{self.path}: belongs to graph {its_graph!r}, not to {graph_name!r}")
        if part is not None and its_part != part:
            raise ShardFormatError(f"{self.path}: belongs to part {its_part}, not to part {part}")
        if identity is not None and its_identity != identity:
            raise ShardFormatError(
                f"{self.path}: belongs to another partitioning ({its_identity}, not {identity}): files of two "
                "partitionings are mixed, or writing one was interrupted"
            )

    def _header(self, name: str) -> Any:
        """Return an attribute of the file, None if it is missing."""
        file = self._hdf5()
        return _attribute(file, name) if _h5().h5a.exists(file, name.encode()) else None

    def _open(self, name: str) -> Dataset:
        """Return a dataset, checked; the last ones are kept open."""
        known = self._datasets.get(name)
        if known is not None:
            return known
        with self._failures(f"dataset {name!r}"):
            item = None if self._listed else self._find(name)
            if item is None:
                raise ShardFormatError(f"{self.path}: dataset {name!r} is missing")
            logical = _untext(_attribute(item, "dtype"))
            rows = int(_attribute(item, "segment_rows"))
            crcs = np.asarray(_attribute(item, "crc32"))
            stored = item.dtype
            shape = item.shape
            if storage_dtype(logical) != stored:
                raise ShardFormatError(f"{self.path}: dataset {name!r} says dtype {logical!r} but stores {stored}")
            # attributes may be damaged too, and a wrong segment size would check nothing
            if len(shape) < 1 or rows < 1 or crcs.dtype != np.uint32 or crcs.shape != (-(-shape[0] // rows),):
                raise ShardFormatError(f"{self.path}: dataset {name!r} has damaged checksums")
            begin = self._check_storage(name, item, math.prod(shape) * stored.itemsize)
        if len(self._datasets) == MOST_DATASETS:
            del self._datasets[next(iter(self._datasets))]
        self._datasets[name] = Dataset(begin, DatasetInfo(shape, logical), stored, rows, crcs)
        return self._datasets[name]

    def _find(self, name: str) -> Any:
        """Return the dataset of this name in this very file, None if it is missing."""
        file = self._hdf5()
        path = b""
        for step in filter(None, name.encode().split(b"/")):
            path += b"/" + step
            if not file.links.exists(path):
                return None
            if file.links.get_info(path).type != _h5().h5l.TYPE_HARD:
                raise ShardFormatError(f"{self.path}: dataset {name!r} is a link to another place")
        item = _h5().h5o.open(file, path)
        return item if isinstance(item, _h5().h5d.DatasetID) else None

    def _check_storage(self, name: str, item: Any, size: int) -> int | None:
        """Check that all bytes of a dataset lie in this file, as they are; return where they begin."""
        creation = item.get_create_plist()
        if creation.get_layout() != _h5().h5d.CONTIGUOUS or creation.get_external_count():
            raise ShardFormatError(f"{self.path}: dataset {name!r} is not stored contiguously in this file")
        begin: int | None = item.get_offset()
        inside = size == 0 or (begin is not None and begin + size <= self._size)
        if not (inside and is_possible(item.shape, item.dtype)) or item.get_storage_size() != size:
            raise ShardFormatError(f"{self.path}: dataset {name!r} is larger than the file")
        return begin

    def _read_rest(self, name: str, dataset: Dataset, begin: int, end: int) -> bytes | memoryview:
        if begin == end:
            return b""
        rest = np.empty((end - begin, *dataset.info.shape[1:]), dataset.stored)
        self._fill(name, dataset, rest, begin)
        return _bytes(rest)

    @contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        """Turn all errors of HDF5 and numpy about a broken file into one."""
        try:
            yield
        except ShardFormatError:
            raise
        except (OSError, KeyError, RuntimeError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise ShardFormatError(f"{self.path}: cannot read {what}: {error}") from error


def fingerprint(shard: ShardReader) -> Fingerprint:
    """Return shape, dtype and checksums of every dataset.

    Raises:
        ShardFormatError: the file is damaged.
    """
    return {name: shard.describe(name) for name in shard.names()}


def verify_copy(
    path: str | os.PathLike[str], original: Fingerprint, graph_name: str, part: int, identity: str | None = None
) -> None:
    """Read a copy from end to end and compare it with the fingerprint of the original, which may be on a slow disk.

    Graph, part and identity are those of :class:`ShardReader`.

    Raises:
        ShardFormatError: it is missing, damaged, or a copy of something else.
    """
    with ShardReader(path, graph_name, part, identity) as shard:
        if fingerprint(shard) != original:
            raise ShardFormatError(f"{path}: not a copy of the original: their checksums differ")
        for name in original:
            for _ in read_chunks(shard, name):
                pass


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


def _h5() -> Any:
    """Return the module of HDF5, which jobs whose files end with lists of their datasets need not load."""
    import h5py

    return h5py


def _attribute(item: Any, name: str) -> Any:
    """Return an attribute of a kind and size that this library writes.

    Raises:
        ValueError: it is of another kind, or too large.
        KeyError: it does not exist.
    """
    attribute = _h5().h5a.open(item, name.encode())
    dtype = attribute.dtype
    shape = attribute.shape
    if dtype.kind not in "iuS" or dtype.itemsize * math.prod(shape) > ATTRIBUTE_BYTES:
        raise ValueError(f"attribute {name!r} is not one of this library")
    value = np.empty(shape, dtype)
    attribute.read(value)
    return value[()]


def _segments(begin: int, end: int, rows: int) -> Iterator[tuple[int, int, int]]:
    """Split ``[begin, end)`` at multiples of ``rows``: (segment, first row, last row + 1)."""
    while begin < end:
        index = begin // rows
        stop = min(end, (index + 1) * rows)
        yield index, begin, stop
        begin = stop


def _set_attribute(item: Any, name: str, value: Any) -> None:
    """Give a new HDF5 object a new attribute; text becomes a string of fixed length. A third of ``attrs``' time."""
    data = np.asarray(value.encode() if isinstance(value, str) else value)
    kind = _h5().h5t.py_create(data.dtype, logical=True)
    _h5().h5a.create(item, name.encode(), kind, _h5().h5s.create_simple(data.shape)).write(data)


def _untext(value: object) -> str:
    """Return the text of an attribute; anything else becomes a text that equals no name."""
    return value.decode("utf-8") if isinstance(value, bytes) else repr(value)


def _bytes(rows: Array) -> memoryview:
    """Return the memory of contiguous rows."""
    return rows.reshape(-1).view(np.uint8).data
