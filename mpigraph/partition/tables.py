"""Compressed csv files as OGB writes them, and what its homogeneous and its typed layout make of them alike."""

import gzip
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError
from mpigraph.partition.source import Feature

__all__ = ["as_labels", "read_edges", "read_table", "read_words", "split_masks"]


_LINES_PER_CHUNK = 1 << 19


def read_table(path: Path, dtype: npt.DTypeLike) -> Array:
    """Return ``[lines, columns]`` of a compressed csv file of numbers.

    An empty field is NaN where the dtype has that.

    Raises:
        GraphDataError: the file is missing or holds something else.
    """
    chunks = list(_chunks(path, dtype))
    return np.concatenate(chunks) if chunks else np.zeros((0, 1), dtype)


def read_edges(path: Path, largest: int) -> tuple[Array, Array]:
    """Return source and destination of each edge of a compressed csv file.

    Args:
        path: the file, two columns.
        largest: how many nodes the larger type has; int32 is used where it suffices.

    Returns:
        int32[m] or int64[m], twice.

    Raises:
        GraphDataError: the file is missing or holds something else.
    """
    dtype = np.dtype(np.int32 if largest < 2**31 else np.int64)
    chunks = [chunk.astype(dtype) for chunk in _chunks(path, np.int64)]
    edges = np.concatenate(chunks) if chunks else np.zeros((0, 2), dtype)
    if edges.shape[1] != 2:
        raise GraphDataError(f"{_name(path)} must have two columns (got {edges.shape[1]})")
    return np.ascontiguousarray(edges[:, 0]), np.ascontiguousarray(edges[:, 1])


def read_words(path: Path) -> list[list[str]]:
    """Return the fields of each line of a compressed csv file of names.

    Raises:
        GraphDataError: the file is missing.
    """
    return [line.strip().split(",") for line in _lines(path) if line.strip()]


def as_labels(label: Array) -> Array:
    """Return int64[n] or int64[n, k]; unlabelled (NaN) becomes -1."""
    if label.dtype.kind == "f":
        label = np.where(np.isnan(label), -1, label)
    label = label.astype(np.int64)
    return label[:, 0] if label.ndim == 2 and label.shape[1] == 1 else label


def split_masks(folders: Iterable[Path], num_nodes: int) -> dict[str, Feature]:
    """Return train_mask, val_mask and test_mask of the first folder that holds a split; nothing if none does.

    Args:
        folders: where ``{train,valid,test}.csv.gz`` may be, one for each kind of split.
        num_nodes: nodes of the type that is split.

    Raises:
        GraphDataError: the split names a node that does not exist.
    """
    found = [folder for folder in sorted(folders) if (folder / "train.csv.gz").is_file()]
    masks: dict[str, Feature] = {}
    for ours, theirs in (("train", "train"), ("val", "valid"), ("test", "test")) if found else ():
        path = found[0] / f"{theirs}.csv.gz"
        ids = read_table(path, np.int64).reshape(-1)
        if len(ids) and (ids.min() < 0 or ids.max() >= num_nodes):
            raise GraphDataError(f"{_name(path)} names a node beyond {num_nodes - 1}")
        mask = np.zeros(num_nodes, bool)
        mask[ids] = True
        masks[f"{ours}_mask"] = Feature.of(mask)
    return masks


def _chunks(path: Path, dtype: npt.DTypeLike) -> Iterator[Array]:
    """Yield ``[<= lines, columns]`` blocks."""
    lines = _lines(path)
    while block := list(islice(lines, _LINES_PER_CHUNK)):
        try:
            yield np.loadtxt(block, delimiter=",", dtype=dtype, ndmin=2)
        except ValueError as error:
            raise GraphDataError(f"{_name(path)}: {error}") from error


def _lines(path: Path) -> Iterator[str]:
    if not path.is_file():
        raise GraphDataError(f"{_name(path)} is missing")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from lines


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"
