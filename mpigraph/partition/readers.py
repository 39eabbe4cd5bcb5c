"""Read graphs from files into a :class:`~mpigraph.partition.source.GraphSource`. numpy only, no pickle.

The inputs: an ``.npz`` or HDF5 file, a text file of METIS (``metis_files.py``), a directory of ``.npy`` files as
``python -m mpigraph generate`` writes it, the directory of an OGB node-property dataset (``ogb.py``), of OGB-LSC's
MAG240M (``lsc.py``), and of DGL's chunked format (``dgl_chunked.py``), edge lists in csv and parquet files
(``arrow_tables.py``), what other programs write in layouts of their own (``layouts/``), and graphs that are cut into
parts, by this library (``shards.py``) or by DGL (``dgl_parts.py``).
Arrays are mapped, not read, wherever the file allows it. Labels become the node feature "label" (int64), masks bool,
features "feat" (float32, or float16 where they are).
"""

import json
import operator
import os
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import Array, Mask
from mpigraph.errors import GraphDataError, StorageError
from mpigraph.metadata.schema import Relation, Schema, relation_key
from mpigraph.partition.arrow_tables import read_edge_list, table_files
from mpigraph.partition.chunks import UNREADABLE, Concatenated, NamedRows, both_ways, mapped_npy, mapped_npz
from mpigraph.partition.dgl_chunked import METADATA, read_chunked
from mpigraph.partition.dgl_parts import is_dgl_partition, read_dgl_partition
from mpigraph.partition.layouts.layout import ReadOptions
from mpigraph.partition.layouts.registry import layout_of, marks_of_directories
from mpigraph.partition.lsc import is_lsc, read_lsc
from mpigraph.partition.metis_files import is_metis, read_metis
from mpigraph.partition.ogb import read_ogb
from mpigraph.partition.row_arrays import (
    MadeRows,
    RowArray,
    RowError,
    SparseRows,
    as_floats,
    as_labels,
    largest,
    place_of,
)
from mpigraph.partition.shards import read_partition
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.storage.files import read_text
from mpigraph.storage.hdf5_rows import is_hdf5, open_hdf5, read_hdf5_meta

__all__ = ["add_reverse_edges", "read_source"]


_MASKS = ("train_mask", "val_mask", "test_mask")
_COUNT = "__num_nodes"


def read_source(
    path: str | os.PathLike[str], num_nodes: int | None = None, scratch: str | os.PathLike[str] | None = None
) -> GraphSource:
    """Read a graph.

    Args:
        path: an ``.npz`` or HDF5 file, a csv, parquet or METIS file, the ``.json`` of a partitioned graph, of this
            library or of DGL; or a directory with ``edge_src.npy``, ``metadata.json`` (DGL), ``raw/`` (OGB),
            ``processed/`` (MAG240M), or csv or parquet files.
        num_nodes: of an edge list in csv or parquet, if its ids are to be taken as they are.
        scratch: folder of temporary files, which text and DGL's parts need; None for the system's.

    Raises:
        GraphDataError: there is nothing that can be read; the message names the path.
        PartitionError: the same for a partitioned graph.
        ShardFormatError: a shard of a partitioned graph is missing or damaged.
        StorageError: a temporary file cannot be written.
    """
    path = Path(path)
    if not path.exists():
        raise GraphDataError(f"{path}: no such file or directory")
    if not path.is_file() and not path.is_dir():
        raise GraphDataError(f"{path}: neither a file nor a directory")
    if path.is_file() and path.suffix == ".json":
        if is_dgl_partition(path):
            return read_dgl_partition(path, None if scratch is None else Path(scratch))
        return read_partition(path)
    try:
        options = ReadOptions(num_nodes, None if scratch is None else Path(scratch))
        return replace(_read(path, options), path=str(path))
    except StorageError:
        raise
    except GraphDataError as error:
        raise error if str(path) in str(error) else GraphDataError(f"{path}: {error}") from error
    except UNREADABLE as error:
        raise GraphDataError(f"{path}: cannot be read: {error}") from error


def _read(path: Path, options: ReadOptions) -> GraphSource:
    num_nodes, scratch = options.num_nodes, options.scratch
    layout = layout_of(path)
    if layout is not None:
        if num_nodes is not None and not layout.takes_num_nodes:
            raise GraphDataError(f"the number of nodes cannot be given for {layout.name}: its files say it")
        return layout.read(path, options)
    source = _read_directory(path, scratch) if path.is_dir() else None
    tables = table_files(path) if source is None else []
    if tables:
        return read_edge_list(tables, num_nodes, scratch)
    if num_nodes is not None:
        raise GraphDataError("the number of nodes can be given only for edge lists in csv and parquet files")
    if source is not None:
        return source
    if path.is_dir():
        raise GraphDataError(
            f"a directory with neither edge_src.npy nor {METADATA} (DGL), raw/ (OGB), edges in processed/ (MAG240M), "
            f"csv or parquet files{''.join(f', nor {marks}' for marks in marks_of_directories())}"
        )
    if is_metis(path):
        return read_metis(path, scratch)
    if is_hdf5(path):
        return _read_arrays(open_hdf5(path), read_hdf5_meta(path))
    return _read_npz(path)


def _read_directory(path: Path, scratch: Path | None) -> GraphSource | None:
    """Read a directory of which the names of files tell the layout; None if they do not."""
    if (path / "edge_src.npy").is_file():
        return _read_npy_directory(path)
    if (path / METADATA).is_file():
        return read_chunked(path, scratch)
    if (path / "raw").is_dir():
        return read_ogb(path)
    if is_lsc(path):
        return read_lsc(path)
    return None


def add_reverse_edges(source: GraphSource, own_relations: bool = False) -> GraphSource:
    """Return the graph with the reverse of every edge.

    A relation gets a reverse ``(dst_type, "rev_<rel>", src_type)``; one from a type to itself becomes twice as long
    instead, as by DGL's ``AddReverse``. Edge features go along. Nothing is copied.

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
            edges[relation] = both_ways(src, dst)
            feats[relation] = {n: f._replace(values=Concatenated([f.values] * 2)) for n, f in given.items()}
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
    names = [name for name in ("feat", "label", *_MASKS) if os.path.lexists(path / f"{name}.npy")]
    arrays = {name: mapped_npy(path / f"{name}.npy") for name in names}
    src = mapped_npy(path / "edge_src.npy")
    dst = mapped_npy(path / "edge_dst.npy")
    meta = path / "meta.json"
    return _homogeneous_source(src, dst, arrays, _meta(read_text(meta)) if os.path.lexists(meta) else {})


def _read_npz(path: Path) -> GraphSource:
    if not zipfile.is_zipfile(path):
        raise GraphDataError("not an .npz file, and neither HDF5, .csv nor .parquet")
    arrays = mapped_npz(path)
    meta = _meta(str(arrays.pop("meta"))) if "meta" in arrays else {}
    named = {name: NamedRows(array, f"{path}: {name}") if array.ndim else array for name, array in arrays.items()}
    return _read_arrays(named, meta)


def _meta(text: str) -> dict[str, Any]:
    meta = json.loads(text)
    if not isinstance(meta, dict):
        raise GraphDataError(f"meta must be a JSON object (got {text:.60})")
    return meta


def _read_arrays(arrays: Mapping[str, RowArray], meta: Mapping[str, Any]) -> GraphSource:
    """Read the arrays of an ``.npz`` or HDF5 file, and what "meta" says."""
    if "edge_src" in arrays and "edge_dst" in arrays:
        return _homogeneous_source(arrays["edge_src"], arrays["edge_dst"], arrays, meta)
    if any(name.endswith(_COUNT) for name in arrays):
        source = _read_typed(arrays)
        return source if meta.get("both_directions", True) else add_reverse_edges(source, own_relations=True)
    raise GraphDataError("holds neither edge_src and edge_dst nor <type>__num_nodes")


def _homogeneous_source(
    src: RowArray, dst: RowArray, arrays: Mapping[str, RowArray], meta: Mapping[str, Any]
) -> GraphSource:
    for name, ends in (("edge_src", src), ("edge_dst", dst)):
        if ends.ndim != 1 or ends.dtype.kind not in "iu":
            raise GraphDataError(f"{name} must be integers in one dimension (got {ends.dtype}{list(ends.shape)})")
    num_nodes = meta["num_nodes"] if "num_nodes" in meta else _count_nodes(arrays, (src, dst))
    if type(num_nodes) is not int:
        raise GraphDataError(f"num_nodes in meta must be an integer (got {num_nodes!r})")
    source = GraphSource(Schema.homogeneous(), (num_nodes,), ((src, dst),), {"_N": _node_features(arrays)})
    return source if meta.get("both_directions", True) else add_reverse_edges(source)


def _read_typed(arrays: Mapping[str, RowArray]) -> GraphSource:
    """Read ``<type>__num_nodes``, ``<src>__<rel>__<dst>__{src,dst}`` and ``<type>__<feature>``."""
    counts = {name[: -len(_COUNT)]: _number(name, array) for name, array in arrays.items() if name.endswith(_COUNT)}
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


def _number(name: str, array: RowArray) -> int:
    values = np.asarray(array[...] if array.ndim == 0 else array[:])
    if values.size != 1 or values.dtype.kind not in "iu":
        raise GraphDataError(f"{name} must be one integer (got {values.dtype}{list(values.shape)})")
    return int(values.reshape(-1)[0])


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


def _node_features(arrays: Mapping[str, RowArray]) -> dict[str, Feature]:
    """Return label, masks and dense or CSR features of one node type."""
    for name in (*_MASKS, "label", "feat"):
        _check_rows(arrays, name)
    feats = {name: Feature.of(_as_bool(arrays[name])) for name in _MASKS if name in arrays}
    if "label" in arrays:
        feats["label"] = Feature(as_labels(arrays["label"]), "int64")
    if "feat" in arrays:
        feats["feat"] = Feature.rows(as_floats(arrays["feat"]))
    elif "feat_data" in arrays:
        shape = tuple(operator.index(size) for size in arrays["feat_shape"][:])
        rows = SparseRows(arrays["feat_indptr"], arrays["feat_indices"], arrays["feat_data"], shape)
        feats["feat"] = Feature.rows(rows)
    return feats


def _check_rows(arrays: Mapping[str, RowArray], name: str) -> None:
    if name in arrays and not arrays[name].ndim:
        raise GraphDataError(f"{name} must have a row for each node (got one value)")


def _as_bool(mask: RowArray) -> RowArray:
    if mask.dtype.kind not in "biuf":
        place = place_of(mask, 0)
        got = f"{mask.dtype}{list(mask.shape)}"
        raise GraphDataError(f"{place}{': ' if place else ''}a mask must be numbers (got {got})")
    return mask if mask.dtype == np.bool_ else MadeRows(_is_set, np.bool_, mask)


def _is_set(mask: Array) -> Mask:
    if mask.dtype.kind == "f" and np.isnan(mask).any():
        raise RowError(int(np.argwhere(np.isnan(mask))[0][0]), "a mask has NaN")
    return np.asarray(mask != 0)


def _count_nodes(arrays: Mapping[str, RowArray], ends: Iterable[RowArray]) -> int:
    """Number of nodes: rows of a node array, else the largest endpoint plus one."""
    for name in ("label", "feat", *_MASKS):
        if name in arrays:
            _check_rows(arrays, name)
            return len(arrays[name])
    if "feat_shape" in arrays:
        return int(arrays["feat_shape"][:][0])
    return 1 + max(largest(end) for end in ends)
