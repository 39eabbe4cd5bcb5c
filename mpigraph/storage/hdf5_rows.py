"""Datasets of a user's HDF5 file as arrays whose rows are read on demand. ``shard.py`` is for shards.

Nothing in the file is followed to another one (links, external storage, virtual datasets), and no filter runs that is
not part of HDF5: an input is data, not code. HDF5 takes a ``/`` in a name for a group, so a dataset's name is its whole
path. Datasets that are not numbers are reported by name.
"""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.errors import GraphDataError
from mpigraph.storage.files import open_regular

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_BLOCK_BYTES = 1 << 20  # read at once for rows that are not neighbours
_META = "meta"
_FILTERS = {
    h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32, h5py.h5z.FILTER_SZIP,
    h5py.h5z.FILTER_NBIT, h5py.h5z.FILTER_SCALEOFFSET, h5py.h5z.FILTER_LZF,
}  # fmt: skip


class HDF5Rows:
    """A dataset whose rows are read on demand.

    Args:
        path: the file, for messages.
        dataset: the open dataset, of one dimension or more; its file stays open as long as one of its datasets is.

    Attributes:
        sources: empty: no rows are in memory.
        block_bytes: bytes that are read at once.
    """

    sources = ()

    def __init__(self, path: Path, dataset: Any) -> None:
        self._path = path
        self._dataset = dataset
        self._name = str(dataset.name).strip("/")
        self.shape: tuple[int, ...] = tuple(dataset.shape)
        self.ndim = len(self.shape)
        self.dtype: np.dtype[Any] = dataset.dtype
        row_bytes = self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=object))
        self.nbytes: int = row_bytes * self.shape[0]
        # whole chunks, since HDF5 reads (and unpacks) no less
        chunk_rows = dataset.chunks[0] if dataset.chunks else 1
        self._block = chunk_rows * max(1, _BLOCK_BYTES // max(1, row_bytes * chunk_rows))
        self.block_bytes = min(self._block * row_bytes, self.nbytes)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Array:
        if isinstance(rows, slice):
            begin, end, step = rows.indices(len(self))
            return self._read(begin, max(begin, end)) if step == 1 else self[np.arange(begin, end, step)]
        return self._gather(np.asarray(rows, np.int64))

    def place(self, row: int) -> str:
        """File, dataset and row."""
        return f"{self._path}: {self._name}, row {row}"

    def _gather(self, rows: I64) -> Array:
        """Read rows in any order: each block with such rows once, from the first to the last of them."""
        order = np.argsort(rows, kind="stable")
        ascending = rows[order]
        gathered = np.empty((len(rows), *self.shape[1:]), self.dtype)
        starts = np.flatnonzero(np.diff(ascending // self._block, prepend=-1))
        for first, stop in zip(starts, np.append(starts, len(rows))[1:], strict=True):
            low = int(ascending[first])
            block = self._read(low, int(ascending[stop - 1]) + 1)
            gathered[order[first:stop]] = block[ascending[first:stop] - low]
        return gathered

    def _read(self, begin: int, end: int) -> Array:
        try:
            rows: Array = self._dataset[begin:end]
        except (OSError, RuntimeError, ValueError) as error:
            raise GraphDataError(f"{self.place(begin)}: cannot be read: {error}") from error
        return rows


def is_hdf5(path: Path) -> bool:
    """Return whether a file begins as HDF5 files do."""
    with open(open_regular(path), "rb") as file:
        return file.read(len(_SIGNATURE)) == _SIGNATURE


def open_hdf5(path: Path) -> tuple[dict[str, HDF5Rows | Array], list[str]]:
    """Open a file.

    Returns:
        The datasets of numbers by path, those without dimensions as arrays; and a text for everything else in the
        file: datasets of other things, attributes.

    Raises:
        GraphDataError: it cannot be read, is shorter than it says, or has data elsewhere; names file and dataset.
    """
    datasets: dict[str, HDF5Rows | Array] = {}
    left_out: list[str] = []
    name = ""
    try:
        file = h5py.File(path, "r", locking=False)
        left_out += [f"attribute {name}" for name in file.attrs if name != _META]
        for name, dataset in _own_items(path, file, "", set()):
            if not isinstance(dataset, h5py.Dataset) or dataset.dtype.kind not in "biuf":
                what = f"{dataset.dtype} is no number" if isinstance(dataset, h5py.Dataset) else "no dataset"
                left_out.append(f"{name}: {what}")
                continue
            _check_storage(path, name, dataset)
            datasets[name] = HDF5Rows(path, dataset) if dataset.ndim else np.asarray(dataset[()])
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        if isinstance(error, GraphDataError):
            raise
        raise GraphDataError(f"{path}{': ' + name if name else ''}: cannot be read: {error}") from error
    return datasets, left_out


def read_hdf5_meta(path: Path) -> dict[str, Any]:
    """Return the JSON in the attribute "meta" of a file; {} if it has none.

    Raises:
        GraphDataError: it is no JSON object.
    """
    try:
        with h5py.File(path, "r", locking=False) as file:
            meta = json.loads(file.attrs[_META]) if _META in file.attrs else {}
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        raise GraphDataError(f"{path}: the attribute {_META!r} is not JSON: {error}") from error
    if not isinstance(meta, dict):
        raise GraphDataError(f"{path}: the attribute {_META!r} must be a JSON object")
    return meta


def _own_items(path: Path, group: Any, prefix: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield path and object of all items below a group (``prefix``: its path); a link to another place is an error."""
    seen.add(h5py.h5o.get_info(group.id).addr)
    for name in group:
        title = f"{prefix}{name}"
        if group.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
            raise GraphDataError(f"{path}: {title} is a link to another place")
        item = group[name]
        if not isinstance(item, h5py.Group):
            yield title, item
        elif h5py.h5o.get_info(item.id).addr in seen:
            raise GraphDataError(f"{path}: {title} is another name of a group")
        else:
            yield from _own_items(path, item, f"{title}/", seen)


def _check_storage(path: Path, name: str, dataset: Any) -> None:
    """Check that all bytes of a dataset lie in this file, and can be read by HDF5 alone."""
    creation = dataset.id.get_create_plist()
    layout = creation.get_layout()
    if layout == h5py.h5d.VIRTUAL or creation.get_external_count():
        raise GraphDataError(f"{path}: {name} is stored in another file")
    for number in range(creation.get_nfilters()):
        if creation.get_filter(number)[0] not in _FILTERS:
            raise GraphDataError(f"{path}: {name} is compressed by a filter that is not HDF5's own")
    if dataset.nbytes and not dataset.id.get_storage_size():
        raise GraphDataError(f"{path}: {name} was never written")
    if layout == h5py.h5d.CHUNKED:
        chunks = math.prod(-(-size // step) for size, step in zip(dataset.shape, dataset.chunks, strict=True))
        written = dataset.id.get_num_chunks()
        if written < chunks:
            raise GraphDataError(f"{path}: {name} was not written to the end: it has {written} of {chunks} chunks")
    begin = dataset.id.get_offset()
    if layout == h5py.h5d.CONTIGUOUS and begin is not None:
        row_bytes = dataset.nbytes // max(1, dataset.shape[0] if dataset.ndim else 1)
        there = os.path.getsize(path) - begin
        if there < dataset.nbytes:
            raise GraphDataError(
                f"{path}: {name} is too short: it ends in row {max(0, there) // row_bytes} of {dataset.shape[0]}"
            )
