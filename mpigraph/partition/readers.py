"""Read graphs from files into a :class:`~mpigraph.partition.source.GraphSource`. numpy only, no pickle.

Three inputs: an ``.npz`` file, a directory of ``.npy`` files as ``python -m mpigraph generate`` writes it
(memory-mapped), and the directory of an OGB node-property dataset (``ogb.py``). Labels become the
node feature "label" (int64), masks bool, features "feat" (float32, or float16 where they are).
"""

import json
import os
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError
from mpigraph.metadata.schema import Relation, Schema, relation_key
from mpigraph.partition.ogb import read_ogb
from mpigraph.partition.shards import read_partition
from mpigraph.partition.source import Feature, GraphSource, RowArray, SparseRows, as_floats

__all__ = ["add_reverse_edges", "read_source"]


_MASKS = ("train_mask", "val_mask", "test_mask")
_COUNT = "__num_nodes"


def read_source(path: str | os.PathLike[str]) -> GraphSource:
    """Read a graph.

    Args:
        path: an ``.npz`` file, a directory with ``edge_src.npy``, an OGB dataset directory with ``raw/``, or the
            ``.json`` of a partitioned graph.

    Raises:
        GraphDataError: there is nothing that can be read; the message names the path.
        PartitionError: the same for a partitioned graph.
        ShardFormatError: a shard of a partitioned graph is missing or damaged.
    """
    path = Path(path)
    if not path.exists():
        raise GraphDataError(f"{path}: no such file or directory")
    if path.is_file() and path.suffix == ".json":
        return read_partition(path)
    try:
        if path.is_dir() and (path / "edge_src.npy").is_file():
            return _read_npy_directory(path)
        if path.is_dir() and (path / "raw").is_dir():
            return read_ogb(path)
        if path.is_file():
            return _read_npz(path)
    except GraphDataError as error:
        raise GraphDataError(f"{path}: {error}") from error
    except (OSError, ValueError, KeyError, EOFError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise GraphDataError(f"{path}: cannot be read: {error}") from error
    raise GraphDataError(f"{path}: a directory with neither edge_src.npy nor raw/ (OGB)")


def add_reverse_edges(source: GraphSource, own_relations: bool = False) -> GraphSource:
    """Return the graph with the reverse of every edge.

    A relation gets a reverse ``(dst_type, "rev_<rel>", src_type)``; one from a type to itself becomes twice as long
    instead, as by DGL's ``AddReverse``. Edge features go along. Arrays are copied where they become longer.

    Args:
        source: the graph.
        own_relations: a relation from a type to itself gets a reverse, too (``AddReverse(sym_new_etype=True)``).

    Raises:
        GraphDataError: there is a relation of a reverse's name already, or edges have original ids.
    """
    if source.edge_ids is not None:
        raise GraphDataError("reverse edges cannot be added to a partitioned graph: they would have no original ids")
    edges: dict[Relation, tuple[RowArray, RowArray]] = {}
    feats: dict[Relation, Mapping[str, Feature]] = {}
    for relation, (src, dst) in zip(source.schema.relations, source.edges, strict=True):
        given = source.edge_feats.get(relation_key(relation), {})
        if relation[0] == relation[2] and not own_relations:
            edges[relation] = np.concatenate([src, dst]), np.concatenate([dst, src])
            feats[relation] = {n: Feature(np.concatenate([f.values, f.values]), f.dtype) for n, f in given.items()}
        else:
            reverse = _reverse(relation, source.schema)
            edges |= {relation: (src, dst), reverse: (dst, src)}
            feats |= {relation: given, reverse: given}
    relations = sorted(edges)  # the order of relations in every graph, which numbers the matrices of layers
    return replace(
        source,
        schema=Schema(source.schema.ntypes, tuple(relations)),
        edges=tuple(edges[relation] for relation in relations),
        edge_feats={relation_key(relation): feats[relation] for relation in relations},
    )


def _reverse(relation: Relation, schema: Schema) -> Relation:
    reverse = relation[2], f"rev_{relation[1]}", relation[0]
    if reverse in schema.relations:
        raise GraphDataError(f"the reverse of {relation} cannot be added: there is a relation {reverse} already")
    return reverse


def _read_npy_directory(path: Path) -> GraphSource:
    """Map the files of a generated graph; only pages in use are in memory."""
    names = [name for name in ("feat", "label", *_MASKS) if (path / f"{name}.npy").is_file()]
    arrays = {name: np.load(path / f"{name}.npy", mmap_mode="r") for name in names}
    src = np.load(path / "edge_src.npy", mmap_mode="r")
    dst = np.load(path / "edge_dst.npy", mmap_mode="r")
    meta = json.loads((path / "meta.json").read_text(encoding="utf-8")) if (path / "meta.json").is_file() else {}
    return _homogeneous_source(src, dst, arrays, meta)


def _read_npz(path: Path) -> GraphSource:
    if not zipfile.is_zipfile(path):
        raise GraphDataError("not an .npz file")
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    meta = json.loads(str(arrays.pop("meta"))) if "meta" in arrays else {}
    if "edge_src" in arrays and "edge_dst" in arrays:
        return _homogeneous_source(arrays["edge_src"], arrays["edge_dst"], arrays, meta)
    if any(name.endswith(_COUNT) for name in arrays):
        source = _read_typed(arrays)
        return source if meta.get("both_directions", True) else add_reverse_edges(source, own_relations=True)
    raise GraphDataError("holds neither edge_src and edge_dst nor <type>__num_nodes")


def _homogeneous_source(src: Array, dst: Array, arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> GraphSource:
    num_nodes = int(meta["num_nodes"]) if "num_nodes" in meta else _count_nodes(arrays, (src, dst))
    source = GraphSource(Schema.homogeneous(), (num_nodes,), ((src, dst),), {"_N": _node_features(arrays)})
    return source if meta.get("both_directions", True) else add_reverse_edges(source)


def _read_typed(arrays: dict[str, Array]) -> GraphSource:
    """Read ``<type>__num_nodes``, ``<src>__<rel>__<dst>__{src,dst}`` and ``<type>__<feature>``."""
    counts = {name[: -len(_COUNT)]: int(array) for name, array in arrays.items() if name.endswith(_COUNT)}
    ntypes = sorted(counts)
    relations = sorted({relation for name in arrays if (relation := _relation_in(name, ntypes)) is not None})
    edges = []
    for relation in relations:
        names = ["__".join([*relation, end]) for end in ("src", "dst")]
        missing = [name for name in names if name not in arrays]
        if missing:
            raise GraphDataError(f"{missing[0]} is missing")
        edges.append((arrays[names[0]], arrays[names[1]]))
    feats = {}
    for ntype in ntypes:
        prefix = f"{ntype}__"
        feats[ntype] = _node_features({n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)})
    schema = Schema(tuple(ntypes), tuple(relations))
    return GraphSource(schema, tuple(counts[ntype] for ntype in ntypes), tuple(edges), feats)


def _relation_in(name: str, ntypes: list[str]) -> Relation | None:
    """Return the relation whose sources or destinations an array holds, None if it holds something else.

    A name with one field more, such as ``test__user__buys__item__src``, is of edges held out of the graph.

    Raises:
        GraphDataError: the name can be read in several ways, or names a type that does not exist.
    """
    *fields, end = name.split("__")
    if end == "num_nodes" and len(fields) > 1:
        raise GraphDataError(f"{name}: a node type's name must not contain '__', which separates names")
    if end not in ("src", "dst") or len(fields) < 3 or (len(fields) > 3 and fields[0] not in ntypes):
        return None
    if len(fields) > 3:
        raise GraphDataError(f"{name}: a relation's name must not contain '__', which separates names")
    for ntype in (fields[0], fields[2]):
        if ntype not in ntypes:
            raise GraphDataError(f"{name}: node type {ntype!r} does not exist, there is no {ntype}{_COUNT}")
    return fields[0], fields[1], fields[2]


def _node_features(arrays: Mapping[str, Array]) -> dict[str, Feature]:
    """Return label, masks and dense or CSR features of one node type."""
    feats = {name: Feature.of(_as_bool(arrays[name])) for name in _MASKS if name in arrays}
    if "label" in arrays:
        feats["label"] = Feature(arrays["label"].astype(np.int64, copy=False), "int64")
    if "feat" in arrays:
        feats["feat"] = Feature.rows(as_floats(arrays["feat"]))
    elif "feat_data" in arrays:
        shape = tuple(int(size) for size in arrays["feat_shape"])
        rows = SparseRows(arrays["feat_indptr"], arrays["feat_indices"], arrays["feat_data"], shape)
        feats["feat"] = Feature.rows(rows)
    return feats


def _as_bool(mask: Array) -> Array:
    return mask if mask.dtype == np.bool_ else mask != 0


def _count_nodes(arrays: Mapping[str, Array], ends: Iterable[Array]) -> int:
    """Number of nodes: rows of a node array, else the largest endpoint plus one."""
    for name in ("label", "feat", *_MASKS):
        if name in arrays:
            return len(arrays[name])
    if "feat_shape" in arrays:
        return int(arrays["feat_shape"][0])
    return max((int(end.max()) + 1 for end in ends if len(end)), default=0)
