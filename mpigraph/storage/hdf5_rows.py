"""A user's HDF5 file: its datasets, whose rows are read on demand. ``shard.py`` is for shards.

HDF5 takes a ``/`` in a name for a group, so a dataset's name is its whole path.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h5py

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError

_META = "meta"


class UserFile(NamedTuple):
    """The content of a file, which stays open as long as one of its datasets is there.

    Attributes:
        datasets: those of numbers, by path; as h5py has them.
        left_out: a text for everything else: datasets of other things, attributes.
        meta: the text in the attribute "meta", if there is one.
    """

    datasets: dict[str, Any]
    left_out: list[str]
    meta: str | bytes | None


def open_hdf5(path: Path) -> UserFile:
    """Open a file. Raises GraphDataError: a dataset was not written to the end; OSError: it cannot be read."""
    file = h5py.File(path, "r", locking=False)
    content = UserFile({}, [f"attribute {name}" for name in file.attrs if name != _META], file.attrs.get(_META))

    for name, item in _items(file, ""):
        if not isinstance(item, h5py.Dataset) or item.dtype.kind not in "biuf":
            what = f"{item.dtype} is no number" if isinstance(item, h5py.Dataset) else "no dataset"
            content.left_out.append(f"{name}: {what}")
            continue
        _check_written(path, name, item)
        content.datasets[name] = item
    return content


def _items(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield path and object of all items below a group (``prefix``: its path), also behind links."""
    for name in group:
        item = group[name]
        if isinstance(item, h5py.Group):
            yield from _items(item, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", item


def read_dataset(path: Path, name: str, dataset: Any, begin: int, end: int) -> Array:
    """Return some rows of a dataset. Raises GraphDataError, which names the first of them."""
    try:
        rows: Array = dataset[begin:end]
    except (OSError, RuntimeError, ValueError) as error:
        raise GraphDataError(f"{path}: {name}, row {begin}: cannot be read: {error}") from error
    return rows


def _check_written(path: Path, name: str, dataset: Any) -> None:
    """Check that a dataset was written to the end: what was not would be read as zeros."""
    if dataset.is_virtual or dataset.external or not dataset.nbytes:
        return
    whole, written = 1, int(dataset.id.get_storage_size() > 0)
    if dataset.chunks:
        whole = math.prod(-(-size // step) for size, step in zip(dataset.shape, dataset.chunks, strict=True))
        written = dataset.id.get_num_chunks()
    if written < whole:
        raise GraphDataError(f"{path}: {name} was not written to the end: it has {written} of {whole} chunks")
