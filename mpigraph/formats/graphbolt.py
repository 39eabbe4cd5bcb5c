"""Read the raw data of GraphBolt's OnDiskDataset: the directory with ``metadata.yaml``, before its preprocessing.

===================  =================================================================================================
``metadata.yaml``    what it becomes
===================  =================================================================================================
``graph: nodes``     node types, or none, and their numbers of nodes
``graph: edges``     relations ``<src>:<rel>:<dst>``; csv without header, or numpy [2, m]
``feature_data``     features of nodes and edges, by name, in their dtype; also ``graph: feature_data``
``tasks``            of the first one "train_mask", "val_mask", "test_mask" and "label": of nodes that are in no set -1,
                     or NaN where labels are floats. Sets of pairs (link prediction) are left out.
===================  =================================================================================================

Arrays of ``.npy`` are mapped. Those of torch (``format: torch``) are an error that says how to convert them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError
from mpigraph.formats.input_files import UNREADABLE, FolderFiles, graph_of
from mpigraph.formats.layout import Layout, ReadOptions
from mpigraph.formats.mapped_files import mapped_npy
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.formats.table_columns import read_columns
from mpigraph.formats.table_files import TextForm, open_tables
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Relation, relation_key
from mpigraph.partition.row_arrays import RowArray
from mpigraph.partition.source import EDGES_PER_CHUNK, Feature, GraphSource, mask_of
from mpigraph.partition.spill import Scratch
from mpigraph.storage.files import read_text

_METADATA = "metadata.yaml"
_ENDS = ("source", "destination")
_SETS = {"train_set": "train_mask", "validation_set": "val_mask", "test_set": "test_mask"}
_SEEDS = ("seeds", "seed_nodes")
_TO_NPY = "np.save('x.npy', torch.load('x.pt', weights_only=True).numpy())"


@dataclass
class _Dataset:
    """The directory and its ``metadata.yaml``, checked while it is read."""

    folder: Path
    files: FolderFiles
    scratch: Path | None
    left_out: list[str] = field(default_factory=list)

    def entries(self, table: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
        entries = table.get(key) or []
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise self.error(f"{key} must be a list of mappings (got {entries!r:.80})")
        return entries

    def text(self, entry: Mapping[str, Any], key: str, what: str) -> str:
        value = entry.get(key)
        if not isinstance(value, str) or not value or "\0" in value:
            raise self.error(f"{what}: {key} must be a string (got {value!r:.80})")
        return value

    def file(self, entry: Mapping[str, Any], what: str) -> tuple[str, Path]:
        kind = entry.get("format")
        path = self.files.read(self.folder / self.text(entry, "path", what))
        if kind == "torch":
            raise GraphDataError(
                f"{path}: a tensor of torch: write it by {_TO_NPY}, and set format: numpy in {_METADATA}"
            )
        if kind not in ("csv", "numpy"):
            raise self.error(f"{what}: format must be numpy, or csv of edges (got {kind!r})")
        return str(kind), path

    def array(self, entry: Mapping[str, Any], what: str) -> tuple[Path, Array]:
        kind, path = self.file(entry, what)
        if kind != "numpy":
            raise self.error(f"{what}: format must be numpy (got {kind!r})")
        rows = mapped_npy(path)
        if not rows.ndim or rows.dtype.kind not in "biuf":
            raise GraphDataError(f"{path} must be rows of numbers (got {rows.dtype}{list(rows.shape)})")
        return path, rows

    def error(self, text: str) -> GraphDataError:
        return GraphDataError(f"{self.folder / _METADATA}: {text}")


def _read(path: Path, options: ReadOptions) -> GraphSource:
    data = _Dataset(path, FolderFiles(path), options.scratch)
    content = _read_yaml(data.files.read(path / _METADATA))
    if "graph_topology" in content:
        raise data.error("a dataset that GraphBolt has preprocessed: give the directory of the data it was made of")
    graph = content.get("graph")
    if not isinstance(graph, dict):
        raise data.error("graph must be a mapping with nodes and edges")
    counts = _counts(data, graph)
    edges = _edges(data, graph, counts)
    node_feats: dict[str, dict[str, Feature]] = {ntype: {} for ntype in counts}
    edge_feats: dict[str, dict[str, Feature]] = {relation_key(relation): {} for relation in edges}
    for entry in (*data.entries(content, "feature_data"), *data.entries(graph, "feature_data")):
        _add_feature(data, entry, {"node": node_feats, "edge": edge_feats})
    for number, task in enumerate(data.entries(content, "tasks")):
        if number:
            data.left_out.append(f"task {number + 1}, {task.get('name')}: only the first one is read")
        else:
            _add_task(data, task, counts, node_feats)
    of_relations = {relation: edge_feats[relation_key(relation)] for relation in edges}
    return graph_of(counts, edges, node_feats, of_relations, left_out=(*data.left_out, *data.files.left_out()))


def _read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds: plain values, lists and mappings, no objects.

    Raises:
        GraphDataError: it is missing or no such file (names it, and the line if there is one), or there is no PyYAML.
    """
    try:
        import yaml
    except ImportError:
        raise GraphDataError(f"{path}: YAML files need PyYAML: pip install 'mpigraph[yaml]'") from None
    try:
        content = yaml.safe_load(read_text(path))
    except (yaml.YAMLError, *UNREADABLE) as error:  # PyYAML lets errors of Python through
        reason = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
        raise GraphDataError(f"{path}: cannot be read as YAML: {reason}") from error
    if not isinstance(content, dict):
        raise GraphDataError(f"{path} must be a YAML mapping (got {type(content).__name__})")
    return content


def _counts(data: _Dataset, graph: Mapping[str, Any]) -> dict[str, int]:
    entries = data.entries(graph, "nodes")
    counts = {}
    for entry in entries:
        ntype = data.text(entry, "type", "nodes") if len(entries) > 1 else _type_of(data, entry, DEFAULT_NTYPE)
        count = entry.get("num")
        if type(count) is not int or count < 0 or ntype in counts:
            raise data.error(f"nodes: {ntype!r} must be there once, with num, its number of nodes (got {count!r})")
        counts[ntype] = count
    if not counts:
        raise data.error("nodes must name at least one type")
    return counts


def _type_of(data: _Dataset, entry: Mapping[str, Any], default: str) -> str:
    return default if entry.get("type") is None else data.text(entry, "type", f"an entry with {list(entry)}")


def _edges(
    data: _Dataset, graph: Mapping[str, Any], counts: Mapping[str, int]
) -> dict[Relation, tuple[RowArray, RowArray]]:
    ends_of: dict[Relation, tuple[RowArray, RowArray]] = {}
    for entry in data.entries(graph, "edges"):
        names = _type_of(data, entry, ":".join(DEFAULT_ETYPE)).split(":")
        if len(names) != 3 or names[0] not in counts or names[2] not in counts or tuple(names) in ends_of:
            raise data.error(f"edges: {names} must be there once, <src>:<rel>:<dst> of types in nodes ({list(counts)})")
        relation = names[0], names[1], names[2]
        kind, path = data.file(entry, f"edges of {relation}")
        if kind == "csv":
            ends_of[relation] = _ends_in_csv(path, data.scratch)
            continue
        ends = mapped_npy(path)
        if ends.ndim != 2 or len(ends) != 2 or ends.dtype.kind not in "iu":
            raise GraphDataError(f"{path} must hold two rows of integers, [2, m] (got {ends.dtype}{list(ends.shape)})")
        ends_of[relation] = ends[0], ends[1]
    if not ends_of:
        raise data.error("edges must name at least one relation")
    return ends_of


def _ends_in_csv(path: Path, scratch: Path | None) -> tuple[RowArray, RowArray]:
    tables = open_tables([path], TextForm(",", _ENDS, headless=True), "csv")
    columns = {end: (end,) for end in _ENDS}
    read = read_columns(tables, (), columns, dict.fromkeys(_ENDS, "int64"), ReadingRanks(scratch))
    if not sum(read.lengths):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    src, dst = (read.values[end].rows for end in _ENDS)
    return src, dst


def _add_feature(data: _Dataset, entry: Mapping[str, Any], tables: Mapping[str, dict[str, dict[str, Feature]]]) -> None:
    name = data.text(entry, "name", "feature_data")
    domain = str(entry.get("domain"))
    if domain not in tables:
        raise data.error(f"feature_data: domain of {name!r} must be node or edge (got {domain!r})")
    owner = _type_of(data, entry, DEFAULT_NTYPE if domain == "node" else relation_key(DEFAULT_ETYPE))
    table = tables[domain].get(owner)
    if table is None or name in table:
        raise data.error(f"feature_data: {domain} feature {name!r} of {owner!r} is there twice, or of an unknown type")
    table[name] = Feature.of(data.array(entry, f"feature {name!r}")[1])


def _add_task(
    data: _Dataset, task: Mapping[str, Any], counts: Mapping[str, int], feats: dict[str, dict[str, Feature]]
) -> None:
    labels: dict[str, list[tuple[Path, Array, Array]]] = {}
    sets = [(entry, key) for key in _SETS for entry in data.entries(task, key)]
    for entry, key in sets:
        ntype = _type_of(data, entry, DEFAULT_NTYPE)
        mask = _SETS[key]
        entries = {data.text(array, "name", key): array for array in data.entries(entry, "data")}
        seeds = next((entries.pop(name) for name in _SEEDS if name in entries), None)
        place, ids = data.array(seeds, f"seeds of {mask}") if seeds is not None else (None, np.zeros((0, 2)))
        if ntype not in counts or ids.ndim != 1:
            data.left_out.append(f"{mask}: its seeds are no nodes of a type")
            continue
        if mask in feats[ntype]:
            raise data.error(f"tasks: there are two sets for {mask} of {ntype!r}, or a feature of that name")
        feats[ntype][mask] = mask_of(str(place), ids, counts[ntype])
        if "labels" in entries:
            path, values = data.array(entries.pop("labels"), f"labels of {mask}")
            labels.setdefault(ntype, []).append((path, ids, values))
        data.left_out += [f"{mask}: {name} of the task" for name in entries]
    for ntype, pieces in labels.items():
        if "label" in feats[ntype]:
            data.left_out.append(f"labels of the task: {ntype!r} has a feature 'label'")
        else:
            feats[ntype]["label"] = _label(pieces, counts[ntype], data.scratch)


def _label(pieces: Sequence[tuple[Path, Array, Array]], count: int, scratch: Path | None) -> Feature:
    """Return a row for each node, those of nodes without a label -1 or NaN."""
    shape = pieces[0][2].shape[1:]
    is_float = any(values.dtype.kind == "f" for _, _, values in pieces)
    dtype = np.dtype(np.float32 if is_float else np.int64)
    size = count * int(np.prod(shape))
    label = Scratch(scratch, mapping=True).empty(size, dtype).reshape(count, *shape)
    label[:] = np.nan if is_float else -1
    for path, ids, values in pieces:
        if values.shape != (len(ids), *shape):
            expected = [len(ids), *shape]
            raise GraphDataError(f"{path} must be labels of {expected}, as its seeds are (got {list(values.shape)})")
        for first in range(0, len(ids), EDGES_PER_CHUNK):
            chunk = slice(first, first + EDGES_PER_CHUNK)
            label[ids[chunk]] = values[chunk]
    return Feature.of(label)


GRAPHBOLT = Layout("GraphBolt", _METADATA, lambda path: (path / _METADATA).is_file(), _read)
