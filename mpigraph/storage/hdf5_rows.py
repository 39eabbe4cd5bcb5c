"""Datasets of a user's HDF5 file as arrays whose rows are read on demand. ``shard.py`` is for shards.

HDF5 takes a ``/`` in a name for a group, so a dataset's name is its whole path. Datasets that are not numbers are
reported by name.
"""

import json
import math
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
        GraphDataError: it cannot be read, or was not written to the end; names file and dataset.
    """
    datasets: dict[str, HDF5Rows | Array] = {}
    left_out: list[str] = []
    name = ""
    try:
        file = h5py.File(path, "r", locking=False)
        left_out += [f"attribute {name}" for name in file.attrs if name != _META]
        for name, dataset in _items(file, ""):
            if not isinstance(dataset, h5py.Dataset) or dataset.dtype.kind not in "biuf":
                what = f"{dataset.dtype} is no number" if isinstance(dataset, h5py.Dataset) else "no dataset"
                left_out.append(f"{name}: {what}")
                continue
            _check_written(path, name, dataset)
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


def _items(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield path and object of all items below a group (``prefix``: its path)."""
    for name in group:
        title = f"{prefix}{name}"
        item = group[name]
        if isinstance(item, h5py.Group):
            yield from _items(item, f"{title}/")
        else:
            yield title, item


def _check_written(path: Path, name: str, dataset: Any) -> None:
    """Check that a dataset was written to the end: what was not would be read as zeros."""
    creation = dataset.id.get_create_plist()
    layout = creation.get_layout()
    if layout == h5py.h5d.VIRTUAL or creation.get_external_count():
        return
    if dataset.nbytes and not dataset.id.get_storage_size():
        raise GraphDataError(f"{path}: {name} was never written")
    if layout == h5py.h5d.CHUNKED:
        chunks = math.prod(-(-size // step) for size, step in zip(dataset.shape, dataset.chunks, strict=True))
        written = dataset.id.get_num_chunks()
        if written < chunks:
            raise GraphDataError(f"{path}: {name} was not written to the end: it has {written} of {chunks} chunks")
