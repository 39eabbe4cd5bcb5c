"""Read graphs whose arrays have names: ``.npz`` and HDF5 files, and directories of ``.npy`` files.

==================================  ===================================================================================
without types                       with types
==================================  ===================================================================================
``edge_src``, ``edge_dst``          ``<src>__<rel>__<dst>__src`` and ``__dst``
``num_nodes``, or in ``meta``       ``<type>__num_nodes``
``label``, ``train_mask``,          ``<type>__label``, ``<type>__train_mask``, ...
``val_mask``, ``test_mask``
``feat``                            ``<type>__feat``
``node_<name>``, ``edge_<name>``    ``<type>__<name>``, ``<src>__<rel>__<dst>__<name>``
``<name>``
==================================  ===================================================================================

Every other array of numbers with a row for each node, or for each edge, becomes a feature: of nodes or edges as its
name begins, else by its length. Where there are as many edges as nodes, a name that does not tell is an error.
``left_out`` names arrays that fit neither. Arrays are mapped, or read slice by slice, except compressed ones of
``.npz``. ``meta`` (``meta.json``, an array of ``.npz``, an attribute of HDF5) is a JSON object.
"""

import json
import math
import os
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.errors import GraphDataError, InvalidArgumentError
from mpigraph.formats.declared import MASKS, feature_of, relation_in
from mpigraph.formats.input_files import FolderFiles, graph_of, mapped_npy, mapped_npz
from mpigraph.formats.layout import Layout, ReadOptions, add_reverse_edges
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Relation, relation_key, unescape
from mpigraph.partition.row_arrays import FileRows, NamedRows, RowArray, even_blocks, largest
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.storage.files import read_text
from mpigraph.storage.format import logical_dtype
from mpigraph.storage.hdf5_rows import is_hdf5, open_hdf5, read_dataset

_NODE_ARRAYS = ("label", "feat", *MASKS)
_COUNT = "__num_nodes"
_NODE = "node_"
_EDGE = "edge_"
_BLOCK_BYTES = 1 << 20  # of HDF5, read at once for rows that are no neighbours

Arrays = dict[str, RowArray]
Owner = str | Relation
"""A node type or a relation."""


def _read_npy_directory(path: Path, options: ReadOptions) -> GraphSource:
    files = FolderFiles(path)
    arrays: Arrays = {unescape(file.stem, "%"): mapped_npy(files.read(file)) for file in sorted(path.glob("*.npy"))}
    meta = path / "meta.json"
    files.read(path / "README")  # of an export
    content = _meta(read_text(files.read(meta))) if os.path.lexists(meta) else {}
    return _with_categories(_source(arrays, content, files.left_out()), content.get("categories", {}))


def _with_categories(source: GraphSource, categories: Mapping[str, Mapping[str, Iterable[str]]]) -> GraphSource:
    """Return the graph with the names that numbers of features stand for, by type or relation as an export has them."""

    def named(tables: Mapping[str, Mapping[str, Feature]]) -> dict[str, dict[str, Feature]]:
        return {
            owner: {
                name: feature._replace(categories=tuple(categories.get(owner, {}).get(name, ())))
                for name, feature in table.items()
            }
            for owner, table in tables.items()
        }

    return replace(source, node_feats=named(source.node_feats), edge_feats=named(source.edge_feats))


def _read_npz(path: Path, options: ReadOptions) -> GraphSource:
    if not zipfile.is_zipfile(path):
        raise GraphDataError("not an .npz file, and neither HDF5, .csv nor .parquet")
    arrays = mapped_npz(path)
    meta = _meta(str(arrays.pop("meta"))) if "meta" in arrays else {}
    named = {name: NamedRows(array, f"{path}: {name}") for name, array in arrays.items() if array.ndim}
    return _source({**arrays, **named}, meta, ())


def _read_hdf5(path: Path, options: ReadOptions) -> GraphSource:
    file = open_hdf5(path)
    arrays: Arrays = {}
    for name, dataset in file.datasets.items():
        if not dataset.ndim:
            arrays[name] = np.asarray(dataset[()])
            continue
        chunk = dataset.chunks[0] if dataset.chunks else 1  # whole chunks, since HDF5 reads (and unpacks) no less
        row_bytes = dataset.dtype.itemsize * math.prod(dataset.shape[1:])
        block = chunk * max(1, _BLOCK_BYTES // max(1, row_bytes * chunk))
        arrays[name] = FileRows(
            partial(read_dataset, path, name, dataset),
            dataset.shape,
            dataset.dtype,
            even_blocks(len(dataset), block),
            f"{path}: {name}, row {{}}".format,
        )
    return _source(arrays, {} if file.meta is None else _meta(file.meta), file.left_out)


def _meta(text: str | bytes) -> dict[str, Any]:
    try:
        meta = json.loads(text)
    except ValueError as error:
        raise GraphDataError(f"meta is not JSON: {error}") from error
    if not isinstance(meta, dict):
        raise GraphDataError(f"meta must be a JSON object (got {meta!r:.60})")
    return meta


@dataclass
class _Leftover:
    """Arrays that become features by their lengths, by node type or relation."""

    left_out: list[str]
    feats: dict[Owner, dict[str, Feature]] = field(default_factory=dict)

    def add(self, name: str, values: RowArray, owners: Mapping[str, tuple[Owner, str, int]]) -> None:
        got = f"{name}: {values.dtype}{list(values.shape)}"
        try:
            logical_dtype(values.dtype)
        except InvalidArgumentError:
            self.left_out.append(f"{got} are no numbers")
            return
        fitting = [words for words, (*_, count) in owners.items() if values.shape[:1] == (count,)]
        if len(fitting) > 1:
            remedy = f"call it {_NODE}{name} or {_EDGE}{name}"
            raise GraphDataError(f"{name} may be of the {len(values)} nodes or of as many edges: {remedy}")
        if not fitting:
            counts = " or ".join(f"{count} {words}" for words, (*_, count) in owners.items())
            self.left_out.append(f"{got} has no row for each of {counts}" if counts else f"{got} is of no type here")
            return
        owner, short, _ = owners[fitting[0]]
        table = self.feats.setdefault(owner, {})
        if short in table:
            raise GraphDataError(f"{name}: feature {short!r} of {fitting[0]} is there twice")
        table[short] = Feature.of(values)


def _source(arrays: Arrays, meta: Mapping[str, Any], left_out: Iterable[str]) -> GraphSource:
    for name in arrays:
        if name.endswith("_indptr"):
            raise GraphDataError(f"{name}: rows in CSR form are not read: write {name.removesuffix('_indptr')} dense")
    leftover = _Leftover(list(left_out))
    is_typed = "edge_src" not in arrays or "edge_dst" not in arrays
    if not is_typed:
        source = _homogeneous(dict(arrays), meta, leftover)
    elif any(name.endswith(_COUNT) for name in arrays):
        source = _typed(arrays, leftover)
    else:
        raise GraphDataError("holds neither edge_src and edge_dst nor <type>__num_nodes")
    both = meta.get("both_directions")
    if both is None or both:
        return replace(source, has_reverse=bool(both))
    return add_reverse_edges(source, own_relations=is_typed)


def _homogeneous(rest: Arrays, meta: Mapping[str, Any], leftover: _Leftover) -> GraphSource:
    ends = rest.pop("edge_src"), rest.pop("edge_dst")
    for name, ids in zip(("edge_src", "edge_dst"), ends, strict=True):
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise GraphDataError(f"{name} must be integers in one dimension (got {ids.dtype}{list(ids.shape)})")
    for name in _NODE_ARRAYS:
        if _NODE + name in rest:
            if name in rest:
                raise GraphDataError(f"{_NODE}{name} is there twice, also as {name}")
            rest[name] = rest.pop(_NODE + name)
    num_nodes = _num_nodes(rest, meta, ends)
    leftover.feats[DEFAULT_NTYPE] = _node_features(rest)
    for name, values in rest.items():
        short = name.removeprefix(_EDGE if name.startswith(_EDGE) else _NODE)
        owners: dict[str, tuple[Owner, str, int]] = {
            "nodes": (DEFAULT_NTYPE, short, num_nodes),
            "edges": (DEFAULT_ETYPE, short, len(ends[0])),
        }
        if short != name:
            del owners["nodes" if name.startswith(_EDGE) else "edges"]
        leftover.add(name, values, owners)
    return _graph({DEFAULT_NTYPE: num_nodes}, {DEFAULT_ETYPE: ends}, leftover)


def _graph(
    counts: Mapping[str, int], edges: Mapping[Relation, tuple[RowArray, RowArray]], leftover: _Leftover
) -> GraphSource:
    node_feats = {ntype: leftover.feats.get(ntype, {}) for ntype in counts}
    edge_feats = {relation: leftover.feats.get(relation, {}) for relation in edges}
    return graph_of(counts, edges, node_feats, edge_feats, left_out=tuple(leftover.left_out))


def _typed(arrays: Arrays, leftover: _Leftover) -> GraphSource:
    rest = dict(arrays)
    names = [name for name in rest if name.endswith(_COUNT)]
    counts = {name.removesuffix(_COUNT): _number(name, rest.pop(name)) for name in names}
    ntypes = sorted(counts)
    edges = {}
    for relation in dict.fromkeys(relation for name in arrays if (relation := _relation_in(name, ntypes)) is not None):
        ends = ["__".join([*relation, end]) for end in ("src", "dst")]
        missing = [name for name in ends if name not in rest]
        if missing:
            raise GraphDataError(f"{missing[0]} is missing")
        edges[relation] = rest.pop(ends[0]), rest.pop(ends[1])
    owners: dict[str, tuple[str, Owner, int]] = {f"{t}__": ("nodes", t, count) for t, count in counts.items()}
    owners |= {"__".join(r) + "__": ("edges", r, len(src)) for r, (src, _) in edges.items()}
    for ntype in ntypes:
        known = [name for name in _NODE_ARRAYS if f"{ntype}__{name}" in rest]
        of_type = {name: rest.pop(f"{ntype}__{name}") for name in known}
        leftover.feats[ntype] = _node_features(of_type)
        rest |= {f"{ntype}__{name}": values for name, values in of_type.items()}
    for name, values in rest.items():
        prefix = max((prefix for prefix in owners if name.startswith(prefix)), key=len, default="")
        kind, owner, count = owners.get(prefix, ("", "", 0))
        key = owner if isinstance(owner, str) else relation_key(owner)
        title = f"{kind} of {key!r}"
        leftover.add(name, values, {title: (owner, name.removeprefix(prefix), count)} if prefix else {})
    return _graph(counts, edges, leftover)


def _number(name: str, array: RowArray) -> int:
    values = np.asarray(array[...] if array.ndim == 0 else array[:])
    if values.size != 1 or values.dtype.kind not in "iu":
        raise GraphDataError(f"{name} must be one integer (got {values.dtype}{list(values.shape)})")
    return int(values.reshape(-1)[0])


def _relation_in(name: str, ntypes: list[str]) -> Relation | None:
    """Return the relation whose sources or destinations an array holds, None if it holds something else.

    A name with one field more, such as ``test__user__buys__item__src``, is of edges held out of the graph.
    """
    joined, _, end = name.rpartition("__")
    if end not in ("src", "dst"):
        return None
    relation = relation_in(joined, ntypes, name, "rename a type or the relation")
    fields = joined.split("__")
    for ntype in (fields[0], fields[2]) if len(fields) == 3 and relation is None else ():
        if ntype not in ntypes:
            raise GraphDataError(f"{name}: node type {ntype!r} does not exist, there is no {ntype}{_COUNT}")
    return relation


def _node_features(arrays: Arrays) -> dict[str, Feature]:
    """Take label, masks and "feat" of one node type out of its arrays."""
    for name in _NODE_ARRAYS:
        _check_rows(arrays, name)
    return {name: feature_of(name, arrays.pop(name)) for name in _NODE_ARRAYS if name in arrays}


def _check_rows(arrays: Mapping[str, RowArray], name: str) -> None:
    if name in arrays and not arrays[name].ndim:
        raise GraphDataError(f"{name} must have a row for each node (got one value)")


def _num_nodes(arrays: Arrays, meta: Mapping[str, Any], ends: Iterable[RowArray]) -> int:
    """Return the number of nodes: as the file says, else rows of a node array, else the largest endpoint plus one."""
    said = [_number("num_nodes", arrays.pop("num_nodes"))] if "num_nodes" in arrays else []
    if "num_nodes" in meta:
        if type(meta["num_nodes"]) is not int:
            raise GraphDataError(f"num_nodes in meta must be an integer (got {meta['num_nodes']!r})")
        said.append(meta["num_nodes"])
    if len(set(said)) > 1:
        raise GraphDataError(f"num_nodes is {said[0]}, but {said[1]} in meta")
    if said:
        return said[0]
    for name in (*_NODE_ARRAYS, *(name for name in arrays if name.startswith(_NODE))):
        if name in arrays:
            _check_rows(arrays, name)
            return len(arrays[name])
    return 1 + max(largest(end) for end in ends)


NPY_DIRECTORY = Layout(
    "generated arrays",
    "edge_src.npy",
    lambda path: (path / "edge_src.npy").is_file() or any(path.glob(f"*{_COUNT}.npy")),
    _read_npy_directory,
)
HDF5 = Layout("HDF5", "", lambda path: path.is_file() and is_hdf5(path), _read_hdf5)
NPZ = Layout("npz", "", Path.is_file, _read_npz)
