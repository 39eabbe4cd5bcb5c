"""Read the directory of an OGB node-property dataset as it lies on disk, without the ogb package and without pickle.

Text layout: ``raw/{edge,num-node-list,node-feat,node-label}.csv.gz``; binary layout of the large ones:
``raw/data.npz`` and ``raw/node-label.npz``. Both: ``split/<name>/{train,valid,test}.csv.gz``.
"""

import gzip
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpigraph.errors import GraphDataError
from mpigraph.metadata.schema import Schema
from mpigraph.partition.rows import CastRows, RowArray
from mpigraph.partition.source import Feature, GraphSource

__all__ = ["read_ogb"]

Array = npt.NDArray[Any]

_LINES_PER_CHUNK = 1 << 19
_STORED_ONCE = ("ogbn_products", "ogbn_proteins")  # OGB's own loader adds the reverse edges of these


def read_ogb(path: Path) -> GraphSource:
    """Read a homogeneous OGB node-property dataset. Local; no communication.

    Args:
        path: the dataset directory, e.g. ``ogbn_products``.

    Raises:
        GraphDataError: a file is missing or does not fit the others.
    """
    raw = path / "raw"
    if (raw / "data.npz").is_file():
        src, dst, num_nodes, feat = _read_binary(raw / "data.npz")
        label = _read_npz_label(raw / "node-label.npz")
    elif (raw / "edge.csv.gz").is_file():
        src, dst, num_nodes, feat = _read_text(raw)
        label = _concatenated(raw / "node-label.csv.gz", np.float64)
    else:
        raise GraphDataError("raw/ has neither edge.csv.gz nor data.npz (typed OGB datasets are not read)")
    if path.name in _STORED_ONCE:
        src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
    feats = _masks(path, num_nodes)
    feats["label"] = Feature(_as_labels(label), "int64")
    if feat is not None:
        feats["feat"] = Feature(feat, "float32")
    return GraphSource(Schema.homogeneous(), (num_nodes,), ((src, dst),), {"_N": feats})


def _read_binary(path: Path) -> tuple[Array, Array, int, RowArray | None]:
    with np.load(path) as file:
        edges, num_nodes = file["edge_index"], int(file["num_nodes_list"].sum())
        feat: RowArray | None = file["node_feat"] if "node_feat" in file.files else None
    if feat is not None and feat.dtype != np.float32:
        feat = CastRows(np.asarray(feat), np.float32)
    return edges[0], edges[1], num_nodes, feat


def _read_npz_label(path: Path) -> Array:
    with np.load(path) as file:
        return np.asarray(file["node_label"])


def _read_text(raw: Path) -> tuple[Array, Array, int, Array | None]:
    num_nodes = int(_concatenated(raw / "num-node-list.csv.gz", np.int64).sum())
    dtype = np.dtype(np.int32 if num_nodes < 2**31 else np.int64)
    chunks = [chunk.astype(dtype) for chunk in _csv_chunks(raw / "edge.csv.gz", np.int64)]
    edges = np.concatenate(chunks) if chunks else np.zeros((0, 2), dtype)
    src, dst = np.ascontiguousarray(edges[:, 0]), np.ascontiguousarray(edges[:, 1])
    feat = None
    if (raw / "node-feat.csv.gz").is_file():
        feat = _concatenated(raw / "node-feat.csv.gz", np.float32)
    return src, dst, num_nodes, feat


def _masks(path: Path, num_nodes: int) -> dict[str, Feature]:
    splits = sorted(folder for folder in (path / "split").glob("*") if (folder / "train.csv.gz").is_file())
    masks = {}
    for ours, theirs in (("train", "train"), ("val", "valid"), ("test", "test")):
        if splits:
            mask = np.zeros(num_nodes, bool)
            ids = _concatenated(splits[0] / f"{theirs}.csv.gz", np.int64).reshape(-1)
            if len(ids) and (ids.min() < 0 or ids.max() >= num_nodes):
                raise GraphDataError(f"{splits[0].name}/{theirs}.csv.gz names a node beyond {num_nodes - 1}")
            mask[ids] = True
            masks[f"{ours}_mask"] = Feature.of(mask)
    return masks


def _as_labels(label: Array) -> Array:
    """Return int64[n] or int64[n, k]; unlabelled (NaN) becomes -1."""
    if label.dtype.kind == "f":
        label = np.where(np.isnan(label), -1, label)
    label = label.astype(np.int64)
    return label[:, 0] if label.ndim == 2 and label.shape[1] == 1 else label


def _concatenated(path: Path, dtype: npt.DTypeLike) -> Array:
    chunks = list(_csv_chunks(path, dtype))
    return np.concatenate(chunks) if chunks else np.zeros((0, 1), dtype)


def _csv_chunks(path: Path, dtype: npt.DTypeLike) -> Iterator[Array]:
    """Yield ``[<= lines, columns]`` blocks of a compressed csv file; an empty field is read as NaN where that
    exists.
    """
    if not path.is_file():
        raise GraphDataError(f"{path.parent.name}/{path.name} is missing")
    with gzip.open(path, "rt", encoding="ascii") as lines:
        while block := list(islice(lines, _LINES_PER_CHUNK)):
            try:
                yield np.loadtxt(block, delimiter=",", dtype=dtype, ndmin=2)
            except ValueError as error:
                raise GraphDataError(f"{path.parent.name}/{path.name}: {error}") from error
