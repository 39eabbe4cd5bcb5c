"""A user's HDF5 file: its datasets, whose rows are read on demand. ``shard.py`` is for shards.

HDF5 takes a ``/`` in a name for a group, so a dataset's name is its whole path.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError

_META = "meta"


def open_hdf5(path: Path) -> tuple[dict[str, Any], list[str], str | bytes]:
    """Open a file, which stays open as long as one of its datasets is there.

    Returns:
        The datasets of numbers by path, as h5py has them; a text for everything else; and the attribute "meta", or "{}"
        if there is none.

    Raises:
        GraphDataError: a dataset was not written to the end.
        OSError: the file cannot be read.
    """
    file = h5py.File(path, "r", locking=False)
    datasets, left_out = {}, [f"attribute {name}" for name in file.attrs if name != _META]
    for name, item in _items(file, ""):
        if isinstance(item, h5py.Dataset) and item.dtype.kind in "biuf":
            _check_written(path, name, item)
            datasets[name] = item
        else:
            left_out.append(f"{name}: no numbers")
    return datasets, left_out, file.attrs.get(_META, "{}")


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
