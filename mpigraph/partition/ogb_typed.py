"""Read the directory of a typed OGB dataset, such as ogbn_mag, as it lies on disk; see ``ogb.py``.

Text layout, under ``raw/``: ``num-node-dict.csv.gz`` (a line of type names, a line of counts),
``triplet-type-list.csv.gz``, ``relations/<src>___<rel>___<dst>/edge.csv.gz``, ``node-feat/<type>/node-feat.csv.gz``,
``node-label/<type>/node-label.csv.gz``. Binary layout: ``num_nodes_dict.npz``, ``edge_index_dict.npz``,
``node_feat_dict.npz``, ``node-label.npz``, with arrays named by type or by ``<src>___<rel>___<dst>``. Both:
``split/<name>/<type>/{train,valid,test}.csv.gz``. Features, labels and splits are there for some types or none. Types
and relations get ids in alphabetical order, as from OGB's own reader.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError
from mpigraph.metadata.schema import Relation, Schema
from mpigraph.partition.feature_rows import CastRows, RowArray
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.partition.tables import as_labels, read_edges, read_table, read_words, split_masks

__all__ = ["is_typed_ogb", "read_typed_ogb"]


_SEPARATOR = "___"


class _Contents(NamedTuple):
    """What lies under ``raw/``: by node type counts, features and labels, by relation the edges."""

    counts: dict[str, int]
    edges: dict[Relation, tuple[Array, Array]]
    feats: Mapping[str, RowArray]
    labels: Mapping[str, Array]


def is_typed_ogb(path: Path) -> bool:
    """Whether a directory holds a typed OGB dataset."""
    return any((path / "raw" / name).is_file() for name in ("triplet-type-list.csv.gz", "edge_index_dict.npz"))


def read_typed_ogb(path: Path) -> GraphSource:
    """Read a typed OGB dataset.

    Args:
        path: the dataset directory, e.g. ``ogbn_mag``.

    Raises:
        GraphDataError: a file is missing or does not fit the others.
    """
    raw = path / "raw"
    contents = _read_binary(raw) if (raw / "edge_index_dict.npz").is_file() else _read_text(raw)
    ntypes, relations = tuple(sorted(contents.counts)), tuple(sorted(contents.edges))
    tables = {}
    for ntype in ntypes:
        folders = [folder / ntype for folder in (path / "split").glob("*")]
        tables[ntype] = split_masks(folders, contents.counts[ntype])
        if ntype in contents.labels:
            tables[ntype]["label"] = Feature(as_labels(contents.labels[ntype]), "int64")
        if ntype in contents.feats:
            tables[ntype]["feat"] = Feature(contents.feats[ntype], "float32")
    return GraphSource(
        Schema(ntypes, relations),
        tuple(contents.counts[ntype] for ntype in ntypes),
        tuple(contents.edges[relation] for relation in relations),
        tables,
    )


def _read_text(raw: Path) -> _Contents:
    counts = _read_counts(raw / "num-node-dict.csv.gz")
    edges = {}
    for names in read_words(raw / "triplet-type-list.csv.gz"):
        relation = _as_relation(names, "triplet-type-list.csv.gz")
        path = raw / "relations" / _SEPARATOR.join(relation) / "edge.csv.gz"
        edges[relation] = read_edges(path, max(counts.values()))
    feats = {t: read_table(path, np.float32) for t in counts if (path := _of_type(raw, "node-feat", t)).is_file()}
    labels = {t: read_table(path, np.float64) for t in counts if (path := _of_type(raw, "node-label", t)).is_file()}
    return _Contents(counts, edges, feats, labels)


def _of_type(raw: Path, what: str, ntype: str) -> Path:
    return raw / what / ntype / f"{what}.csv.gz"


def _read_counts(path: Path) -> dict[str, int]:
    """A line of type names, then a line of counts for each graph that was put into this one."""
    names, *rows = read_words(path) or [[]]
    if not rows or any(len(row) != len(names) for row in rows):
        raise GraphDataError(f"{path.name} must have a count for each of the node types {names}")
    return {name: sum(int(row[i]) for row in rows) for i, name in enumerate(names)}


def _read_binary(raw: Path) -> _Contents:
    edges = {}
    for name, ends in _read_arrays(raw / "edge_index_dict.npz").items():
        relation = _as_relation(name.split(_SEPARATOR), "edge_index_dict.npz")
        edges[relation] = (ends[0], ends[1])
    counts = {name: int(numbers.sum()) for name, numbers in _read_arrays(raw / "num_nodes_dict.npz").items()}
    feats = _read_arrays(raw / "node_feat_dict.npz") if (raw / "node_feat_dict.npz").is_file() else {}
    labels = _read_arrays(raw / "node-label.npz") if (raw / "node-label.npz").is_file() else {}
    rows: dict[str, RowArray] = {
        ntype: feat if feat.dtype == np.float32 else CastRows(feat, np.float32) for ntype, feat in feats.items()
    }
    return _Contents(counts, edges, rows, labels)


def _read_arrays(path: Path) -> dict[str, Array]:
    if not path.is_file():
        raise GraphDataError(f"{path.parent.name}/{path.name} is missing")
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def _as_relation(names: list[str], where: str) -> Relation:
    if len(names) != 3:
        raise GraphDataError(f"{where}: a relation is three names (got {names})")
    return names[0], names[1], names[2]
