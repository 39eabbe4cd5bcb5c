"""Read a dataset of DGL's ``CSVDataset``: a directory with ``meta.yaml``, which names csv files of nodes and of edges.

Every column is a feature of its name, as far as it has numbers; vectors are one field, ``"0.1, 0.2"``. As in DGL, the
nodes of a type are numbered in the order of their ids; where these are not 0, 1, ..., n - 1 the node feature "id" has
them. A dataset of several graphs ("graph_id") is refused: a partitioned graph is one.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import I64
from mpigraph.errors import GraphDataError
from mpigraph.formats.input_files import read_yaml
from mpigraph.formats.layout import Layout, ReadOptions
from mpigraph.formats.table_files import TextFiles, TextForm
from mpigraph.formats.typed_tables import EdgeTable, NodeTable, read_typed_tables
from mpigraph.metadata.schema import DEFAULT_NTYPE, Relation
from mpigraph.partition.row_arrays import MadeRows, Reordered, RowArray
from mpigraph.partition.source import EDGES_PER_CHUNK, Feature, Features, GraphSource

_META = "meta.yaml"
_NODES: dict[str, Any] = {"ntype": "_V", "node_id_field": "node_id", "graph_id_field": "graph_id"}
_EDGES: dict[str, Any] = {
    "etype": ["_V", "_E", "_V"], "src_id_field": "src_id", "dst_id_field": "dst_id", "graph_id_field": "graph_id",
}  # fmt: skip
_OWN_ID = "id of the file"  # a column that DGL would call "id", as here the ids themselves are


def _read(path: Path, options: ReadOptions) -> GraphSource:
    meta = read_yaml(path / _META)
    if str(meta.get("version", "1.0.0")) != "1.0.0":
        raise GraphDataError(f"{path / _META}: version {meta['version']!r} is not known (known: '1.0.0')")
    if options.tables.columns:
        raise GraphDataError(f"{path / _META}: features are the columns of the files, which cannot be put together")
    if meta.get("graph_data") is not None:
        raise GraphDataError(f"{path / _META}: graph_data tells of several graphs, a partitioned graph is one")
    separator = meta.get("separator", ",")
    if not isinstance(separator, str) or len(separator) != 1:
        raise GraphDataError(f"{path / _META}: separator must be one character (got {separator!r})")
    form = TextForm(separator, None, True)
    left_out: list[str] = []
    graph_ids: set[str] = set()
    nodes: dict[str, NodeTable] = {}
    for entry in _entries(path, meta, "node_data", _NODES, left_out):
        ntype = _type(path, "node_data", entry["ntype"], 1)[0]
        columns = _columns(entry, form, graph_ids, left_out)
        if ntype in nodes:
            raise GraphDataError(f"{path / _META}: {ntype!r} has two files")
        nodes[ntype] = NodeTable(ntype, (entry["file_name"],), entry["node_id_field"], columns, form)
    edges: dict[Relation, EdgeTable] = {}
    for entry in _entries(path, meta, "edge_data", _EDGES, left_out):
        relation: Relation = _type(path, "edge_data", entry["etype"], 3)
        columns = _columns(entry, form, graph_ids, left_out)
        ends = entry["src_id_field"], entry["dst_id_field"]
        if relation in edges:
            raise GraphDataError(f"{path / _META}: {relation!r} has two files")
        edges[relation] = EdgeTable(relation, (entry["file_name"],), *ends, columns, form)
        for ntype in (relation[0], relation[2]):
            if ntype not in nodes:
                raise GraphDataError(f"{path / _META}: node_data has no file for node type {ntype!r} of {relation}")
    source = read_typed_tables(list(nodes.values()), list(edges.values()), options.ranks, options.tables)
    source = _of_one_graph(source, graph_ids)
    return replace(_in_order_of_ids(source), left_out=(*source.left_out, *left_out))


def _entries(
    path: Path, meta: Mapping[str, Any], section: str, defaults: Mapping[str, Any], left_out: list[str]
) -> list[dict[str, Any]]:
    entries = meta.get(section)
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise GraphDataError(f"{path / _META}: {section} must be a list of mappings with file_name")
    complete = []
    for own in entries:
        left_out += [f"{key!r} of {section} in {_META}" for key in own if key not in {"file_name", *defaults}]
        entry = {**defaults, **{key: value for key, value in own.items() if value is not None}}
        for key in ("file_name", *(key for key in defaults if key.endswith("_field"))):
            if not isinstance(entry.get(key), str):
                raise GraphDataError(f"{path / _META}: {section}: {key} must be a name (got {entry.get(key)!r:.60})")
        entry["file_name"] = path / entry["file_name"]
        if not entry["file_name"].is_file():
            raise GraphDataError(f"{path / _META}: {section}: there is no file {entry['file_name']}")
        complete.append(entry)
    return complete


def _columns(entry: Mapping[str, Any], form: TextForm, graph_ids: set[str], left_out: list[str]) -> dict[str, str]:
    file = entry["file_name"]
    names = TextFiles([file], form).names
    left_out += [f"column {number} of {file.name}: has no name" for number, name in enumerate(names, 1) if not name]
    ids = [entry[key] for key in entry if key.endswith("_id_field") and key != "graph_id_field"]
    graph_ids |= {entry["graph_id_field"]} & set(names)
    return {_OWN_ID if name == "id" else name: name for name in names if name and name not in ids}


def _type(path: Path, section: str, names: object, length: int) -> Any:
    """Return the names of a node type or a relation; DGL's default is that of this library."""
    listed = [names] if isinstance(names, str) else names
    if not isinstance(listed, list) or len(listed) != length or not all(isinstance(name, str) for name in listed):
        raise GraphDataError(f"{path / _META}: {section}: a type must be {length} name(s) (got {names!r:.60})")
    return tuple(DEFAULT_NTYPE if name == "_V" else name for name in listed)


def _of_one_graph(source: GraphSource, graph_ids: set[str]) -> GraphSource:
    """Leave out the columns of numbers of graphs, which must be the same everywhere."""
    numbers: set[int] = set()
    for features in (*source.node_feats.values(), *source.edge_feats.values()):
        for name in graph_ids & set(features):
            values = features[name].values
            for first in range(0, len(values), EDGES_PER_CHUNK):
                numbers |= set(np.unique(values[first : first + EDGES_PER_CHUNK]).tolist())
                if len(numbers) > 1:
                    raise GraphDataError(f"{name} has {sorted(numbers)[:2]}: a partitioned graph is one")

    def rest(table: Features) -> Features:
        return {key: {n: f for n, f in features.items() if n not in graph_ids} for key, features in table.items()}

    return replace(source, node_feats=rest(source.node_feats), edge_feats=rest(source.edge_feats))


def _in_order_of_ids(source: GraphSource) -> GraphSource:
    """Number the nodes of each type in the order of their ids, and name columns as DGL does."""
    node_feats = {}
    ranks: dict[str, I64] = {}
    for ntype, features in source.node_feats.items():
        node_feats[ntype] = dict(features)
        if "id" in features:
            ids = np.asarray(features["id"].values[:])
            keys = ids if ids.ndim == 1 else np.ascontiguousarray(ids).view(f"S{ids.shape[1]}").reshape(-1)
            order = np.argsort(keys, kind="stable")
            if not np.array_equal(order, np.arange(len(order))):
                ranks[ntype] = np.empty(len(order), np.int64)
                ranks[ntype][order] = np.arange(len(order))
                node_feats[ntype] = {n: f._replace(values=Reordered(f.values, order)) for n, f in features.items()}
            if ids.ndim == 1 and np.array_equal(ids[order], np.arange(len(ids))):
                del node_feats[ntype]["id"]

    def ranked(ntype: str, end: RowArray) -> RowArray:
        return MadeRows(ranks[ntype].__getitem__, np.int64, end) if ntype in ranks else end

    edges = tuple(
        (ranked(relation[0], src), ranked(relation[2], dst))
        for relation, (src, dst) in zip(source.schema.relations, source.edges, strict=True)
    )
    return replace(
        source,
        node_feats={ntype: _named(features) for ntype, features in node_feats.items()},
        edges=edges,
        edge_feats={key: _named(features) for key, features in source.edge_feats.items()},
    )


def _named(features: Mapping[str, Feature]) -> dict[str, Feature]:
    own = {"id": features[_OWN_ID]} if _OWN_ID in features else {}
    return {name: feature for name, feature in features.items() if name != _OWN_ID} | own


DGL_CSV = Layout(
    "DGL's CSVDataset", _META, lambda path: (path / _META).is_file(), _read, takes=("tables",), by_all_ranks=True
)
