"""Read the directory of an OGB node-property dataset as it lies on disk, without the ogb package and without pickle.

==================  =============================================  ==================================================
under ``raw/``      homogeneous, such as ogbn_products             typed, such as ogbn_mag
==================  =============================================  ==================================================
text layout         ``num-node-list.csv.gz``                       ``num-node-dict.csv.gz`` (names, then counts)
                                                                   ``triplet-type-list.csv.gz``
                    ``edge.csv.gz``                                ``relations/<src>___<rel>___<dst>/edge.csv.gz``
                    ``node-feat.csv.gz``                           ``node-feat/<type>/node-feat.csv.gz``
                    ``node-label.csv.gz``                          ``node-label/<type>/node-label.csv.gz``
binary layout       ``data.npz``                                   ``num_nodes_dict.npz``, ``edge_index_dict.npz``,
                                                                   ``node_feat_dict.npz``
                    ``node-label.npz``                             ``node-label.npz``
beside ``raw/``     ``split/<name>/{train,valid,test}.csv.gz``     ``split/<name>/<type>/{train,valid,test}.csv.gz``
==================  =============================================  ==================================================

In typed datasets features, labels and splits are there for some types or none, the arrays of npz files are named by
type or by ``<src>___<rel>___<dst>``, and types and relations get ids in alphabetical order, as from OGB's own reader.
Arrays that an npz file stores as they are (``np.savez``) are mapped, compressed ones (``np.savez_compressed``) read.
"""

import gzip
import os
from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError
from mpigraph.metadata.schema import Relation, Schema
from mpigraph.partition.chunks import both_ways, mapped_npz
from mpigraph.partition.row_arrays import RowArray, RowError, as_float32, as_floats, as_labels
from mpigraph.partition.source import Feature, GraphSource, mask_of

__all__ = ["read_ogb"]


_STORED_ONCE = ("ogbn_products", "ogbn_proteins")  # OGB's own loader adds the reverse edges of these
_SEPARATOR = "___"
_LINES_PER_CHUNK = 1 << 19


def read_ogb(path: Path) -> GraphSource:
    """Read an OGB node-property dataset, homogeneous or typed.

    Args:
        path: the dataset directory, e.g. ``ogbn_products``.

    Raises:
        GraphDataError: a file is missing or does not fit the others.
    """
    raw = path / "raw"
    if (raw / "edge_index_dict.npz").is_file():
        return _typed_source(path, _read_typed_binary(raw))
    if (raw / "triplet-type-list.csv.gz").is_file():
        return _typed_source(path, _read_typed_text(raw))
    if (raw / "data.npz").is_file():
        return _homogeneous_source(path, _read_binary(raw))
    if (raw / "edge.csv.gz").is_file():
        return _homogeneous_source(path, _read_text(raw))
    raise GraphDataError("raw/ has neither edge.csv.gz nor data.npz, nor the files of a typed dataset")


class _Homogeneous(NamedTuple):
    """What lies under ``raw/`` of a homogeneous dataset."""

    num_nodes: int
    src: RowArray
    dst: RowArray
    feat: RowArray | None
    label: Array


class _Typed(NamedTuple):
    """What lies under ``raw/`` of a typed dataset: by node type counts, features and labels, by relation the edges."""

    counts: dict[str, int]
    edges: dict[Relation, tuple[Array, Array]]
    feats: Mapping[str, RowArray]
    labels: Mapping[str, Array]


def _homogeneous_source(path: Path, contents: _Homogeneous) -> GraphSource:
    src, dst = contents.src, contents.dst
    if path.name in _STORED_ONCE:
        src, dst = both_ways(src, dst)
    feats = _split_masks((path / "split").glob("*"), contents.num_nodes)
    feats["label"] = _label(contents.label)
    if contents.feat is not None:
        feats["feat"] = Feature.rows(contents.feat)
    return GraphSource(Schema.homogeneous(), (contents.num_nodes,), ((src, dst),), {"_N": feats})


def _typed_source(path: Path, contents: _Typed) -> GraphSource:
    ntypes = tuple(sorted(contents.counts))
    relations = tuple(sorted(contents.edges))
    tables = {}
    for ntype in ntypes:
        folders = [folder / ntype for folder in (path / "split").glob("*")]
        tables[ntype] = _split_masks(folders, contents.counts[ntype])
        if ntype in contents.labels:
            tables[ntype]["label"] = _label(contents.labels[ntype])
        if ntype in contents.feats:
            tables[ntype]["feat"] = Feature.rows(contents.feats[ntype])
    return GraphSource(
        Schema(ntypes, relations),
        tuple(contents.counts[ntype] for ntype in ntypes),
        tuple(contents.edges[relation] for relation in relations),
        tables,
    )


def _read_binary(raw: Path) -> _Homogeneous:
    arrays = _read_arrays(raw / "data.npz", ("edge_index", "num_nodes_list", "node_feat"))
    src, dst = _ends(arrays["edge_index"], "data.npz: edge_index")
    num_nodes = int(arrays["num_nodes_list"].sum())
    feat = as_floats(arrays["node_feat"]) if "node_feat" in arrays else None
    label = _read_arrays(raw / "node-label.npz")["node_label"]
    return _Homogeneous(num_nodes, src, dst, feat, label)


def _read_text(raw: Path) -> _Homogeneous:
    num_nodes = int(_read_table(raw / "num-node-list.csv.gz", np.int64).sum())
    src, dst = _read_edges(raw / "edge.csv.gz", num_nodes)
    feat = None
    if os.path.lexists(raw / "node-feat.csv.gz"):
        feat = _read_table(raw / "node-feat.csv.gz", np.float32)
    label = _read_table(raw / "node-label.csv.gz", np.float64)
    return _Homogeneous(num_nodes, src, dst, feat, label)


def _read_typed_binary(raw: Path) -> _Typed:
    edges = {}
    for name, ends in _read_arrays(raw / "edge_index_dict.npz").items():
        relation = _as_relation(name.split(_SEPARATOR), "edge_index_dict.npz")
        edges[relation] = _ends(ends, f"edge_index_dict.npz: {name}")
    counts = {name: int(numbers.sum()) for name, numbers in _read_arrays(raw / "num_nodes_dict.npz").items()}
    feats = _read_arrays(raw / "node_feat_dict.npz") if os.path.lexists(raw / "node_feat_dict.npz") else {}
    labels = _read_arrays(raw / "node-label.npz") if os.path.lexists(raw / "node-label.npz") else {}
    return _Typed(counts, edges, {ntype: as_floats(feat) for ntype, feat in feats.items()}, labels)


def _read_typed_text(raw: Path) -> _Typed:
    counts = _read_counts(raw / "num-node-dict.csv.gz")
    for ntype in counts:
        _check_folder(ntype, "num-node-dict.csv.gz")
    edges = {}
    for names in _read_words(raw / "triplet-type-list.csv.gz"):
        relation = _as_relation(names, "triplet-type-list.csv.gz")
        if relation in edges:
            raise GraphDataError(f"triplet-type-list.csv.gz: {relation} is there twice")
        for name in relation:
            _check_folder(name, "triplet-type-list.csv.gz")
        path = raw / "relations" / _SEPARATOR.join(relation) / "edge.csv.gz"
        edges[relation] = _read_edges(path, max(counts.values()))
    feats = {}
    labels = {}
    for ntype in counts:
        feat_path = raw / "node-feat" / ntype / "node-feat.csv.gz"
        if os.path.lexists(feat_path):
            feats[ntype] = _read_table(feat_path, np.float32)
        label_path = raw / "node-label" / ntype / "node-label.csv.gz"
        if os.path.lexists(label_path):
            labels[ntype] = _read_table(label_path, np.float64)
    return _Typed(counts, edges, feats, labels)


def _read_counts(path: Path) -> dict[str, int]:
    """A line of type names, then a line of counts for each graph that was put into this one."""
    names, *rows = _read_words(path) or [[]]
    if not rows or any(len(row) != len(names) for row in rows):
        raise GraphDataError(f"{path.name} must have a count for each of the node types {names}")
    if len(set(names)) < len(names):
        raise GraphDataError(f"{path.name}: a node type is there twice ({names})")
    return {name: sum(int(row[i]) for row in rows) for i, name in enumerate(names)}


def _check_folder(name: str, file_name: str) -> None:
    """Check that the name of a type is also one of a folder here, and leads nowhere else."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise GraphDataError(f"{file_name}: {name!r} is no name of a type")


def _as_relation(names: list[str], file_name: str) -> Relation:
    if len(names) != 3:
        raise GraphDataError(f"{file_name}: a relation is three names (got {names})")
    return names[0], names[1], names[2]


def _ends(edge_index: Array, what: str) -> tuple[Array, Array]:
    if edge_index.ndim != 2 or len(edge_index) != 2:
        raise GraphDataError(f"{what} must be two rows (got {list(edge_index.shape)})")
    return edge_index[0], edge_index[1]


def _label(label: Array) -> Feature:
    """Return the feature int64[n] or int64[n, k]."""
    return Feature(as_labels(label[:, 0] if label.ndim == 2 and label.shape[1] == 1 else label), "int64")


def _split_masks(folders: Iterable[Path], num_nodes: int) -> dict[str, Feature]:
    """Return train_mask, val_mask and test_mask of the first folder that holds a split; nothing if none does.

    Args:
        folders: where ``{train,valid,test}.csv.gz`` may be, one for each kind of split.
        num_nodes: nodes of the type that is split.

    Raises:
        GraphDataError: the split names a node that does not exist.
    """
    folder = next((folder for folder in sorted(folders) if (folder / "train.csv.gz").is_file()), None)
    masks: dict[str, Feature] = {}
    if folder is None:
        return masks
    for name, file_name in (("train", "train"), ("val", "valid"), ("test", "test")):
        path = folder / f"{file_name}.csv.gz"
        masks[f"{name}_mask"] = mask_of(_short(path), _read_table(path, np.int64).reshape(-1), num_nodes)
    return masks


def _read_arrays(path: Path, names: Container[str] | None = None) -> dict[str, Array]:
    if not path.is_file():
        raise GraphDataError(f"{_short(path)} is missing")
    return mapped_npz(path, names)


def _read_edges(path: Path, num_nodes: int) -> tuple[Array, Array]:
    """Return source and destination of each edge of a compressed csv file of two columns.

    Args:
        path: the file.
        num_nodes: of the larger type; int32 is used where it suffices.

    Returns:
        int32[m] or int64[m], twice.
    """
    dtype = np.dtype(np.int32 if num_nodes < 2**31 else np.int64)
    chunks = []
    for chunk in _chunks(path, np.int64):
        as_small = chunk.astype(dtype)
        chunks.append(as_small if (as_small == chunk).all() else chunk)  # what does not fit is no node, and is told so
    edges = np.concatenate(chunks) if chunks else np.zeros((0, 2), dtype)
    if edges.shape[1] != 2:
        raise GraphDataError(f"{_short(path)} must have two columns (got {edges.shape[1]})")
    return np.ascontiguousarray(edges[:, 0]), np.ascontiguousarray(edges[:, 1])


def _read_table(path: Path, dtype: npt.DTypeLike) -> Array:
    """Return ``[lines, columns]`` of a compressed csv file of numbers; an empty field is NaN where the dtype has it."""
    chunks = list(_chunks(path, dtype))
    return np.concatenate(chunks) if chunks else np.zeros((0, 1), dtype)


def _read_words(path: Path) -> list[list[str]]:
    """Return the fields of each line of a compressed csv file of names."""
    return [line.strip().split(",") for line in _lines(path) if line.strip()]


def _chunks(path: Path, dtype: npt.DTypeLike) -> Iterator[Array]:
    """Yield ``[<= lines, columns]`` blocks."""
    lines = _lines(path)
    done = 0
    is_narrow = np.dtype(dtype) == np.float32  # of which numpy makes infinity where a number is too large
    while block := list(islice(lines, _LINES_PER_CHUNK)):
        try:
            rows = np.loadtxt(block, delimiter=",", dtype=np.float64 if is_narrow else dtype, ndmin=2, comments=None)
            yield as_float32(rows) if is_narrow else rows
        except RowError as error:
            raise GraphDataError(f"{_short(path)}, row {done + error.row}: {error}") from error
        except ValueError as error:
            raise GraphDataError(f"{_short(path)}: {error}") from error
        done += len(block)


def _lines(path: Path) -> Iterator[str]:
    if not path.is_file():
        raise GraphDataError(f"{_short(path)} is missing")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from lines


def _short(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"
