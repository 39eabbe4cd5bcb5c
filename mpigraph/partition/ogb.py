"""Read the directory of an OGB node-property dataset as it lies on disk, without the ogb package and without pickle.

Text layout: ``raw/{edge,num-node-list,node-feat,node-label}.csv.gz``; binary layout of the large ones:
``raw/data.npz`` and ``raw/node-label.npz``. Both: ``split/<name>/{train,valid,test}.csv.gz``. Typed datasets are read
by ``ogb_typed.py``.
"""

from pathlib import Path

import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError
from mpigraph.metadata.schema import Schema
from mpigraph.partition.feature_rows import CastRows, RowArray
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.partition.tables import as_labels, read_edges, read_table, split_masks

__all__ = ["read_ogb"]


_STORED_ONCE = ("ogbn_products", "ogbn_proteins")  # OGB's own loader adds the reverse edges of these


def read_ogb(path: Path) -> GraphSource:
    """Read a homogeneous OGB node-property dataset.

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
        label = read_table(raw / "node-label.csv.gz", np.float64)
    else:
        raise GraphDataError("raw/ has neither edge.csv.gz nor data.npz, nor the files of a typed dataset")
    if path.name in _STORED_ONCE:
        src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
    feats = split_masks((path / "split").glob("*"), num_nodes)
    feats["label"] = Feature(as_labels(label), "int64")
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
    num_nodes = int(read_table(raw / "num-node-list.csv.gz", np.int64).sum())
    src, dst = read_edges(raw / "edge.csv.gz", num_nodes)
    feat = None
    if (raw / "node-feat.csv.gz").is_file():
        feat = read_table(raw / "node-feat.csv.gz", np.float32)
    return src, dst, num_nodes, feat
