"""Read the raw data of GraphBolt's OnDiskDataset, the directory with ``metadata.yaml``, before its preprocessing.

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

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError
from mpigraph.formats.declared import Entry, ends_of, mask_name, relation_of
from mpigraph.formats.input_files import UNREADABLE, FolderFiles, graph_of, mapped_npy
from mpigraph.formats.layout import Layout, ReadOptions
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.formats.table_columns import read_numbers
from mpigraph.formats.text_files import TextForm
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Relation, relation_key
from mpigraph.partition.row_arrays import RowArray
from mpigraph.partition.source import EDGES_PER_CHUNK, Feature, GraphSource, mask_of
from mpigraph.partition.spill import Scratch
from mpigraph.storage.files import read_text

_METADATA = "metadata.yaml"
_ENDS = ("source", "destination")
_SETS = ("train_set", "validation_set", "test_set")
_SEEDS = ("seeds", "seed_nodes")
_TO_NPY = "np.save('x.npy', torch.load('x.pt', weights_only=True).numpy())"


def _read(path: Path, options: ReadOptions) -> GraphSource:
    files = FolderFiles(path)
    content = _read_yaml(files.read(path / _METADATA))
    if "graph_topology" in content.values:
        raise content.error("a dataset that GraphBolt has preprocessed: give the directory of the data it was made of")
    data = _Dataset(path, files, options.ranks)
    graph = content.mapping("graph")
    data.add_types(graph)
    for entry in (*content.mappings("feature_data"), *graph.mappings("feature_data")):
        data.add_feature(entry)
    for number, task in enumerate(content.mappings("tasks")):
        if number:
            data.left_out.append(f"task {number + 1}, {task.values.get('name')}: only the first one is read")
        else:
            data.add_task(task)
    edge_feats = {relation: data.feats["edge"][relation_key(relation)] for relation in data.edges}
    left_out = (*data.left_out, *files.left_out())
    return graph_of(data.counts, data.edges, data.feats["node"], edge_feats, left_out=left_out)


def _read_yaml(path: Path) -> Entry:
    """Return the mapping that a YAML file holds: plain values, lists and mappings, no objects.

    Raises:
        GraphDataError: it is missing or no such file (names it, and the line if there is one), or there is no PyYAML.
    """
    try:
        import yaml
    except ImportError:
        raise GraphDataError(f"{path}: YAML files need PyYAML: pip install PyYAML") from None
    try:
        return Entry.of(path, yaml.safe_load(read_text(path)))
    except (yaml.YAMLError, *UNREADABLE) as error:  # PyYAML lets errors of Python through
        if isinstance(error, GraphDataError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
        raise GraphDataError(f"{path}: cannot be read as YAML: {reason}") from error


@dataclass
class _Dataset:
    """The graph, while it is read; features by "node" and "edge", and by type."""

    folder: Path
    files: FolderFiles
    ranks: ReadingRanks
    counts: dict[str, int] = field(default_factory=dict)
    edges: dict[Relation, tuple[RowArray, RowArray]] = field(default_factory=dict)
    feats: dict[str, dict[str, dict[str, Feature]]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def add_types(self, graph: Entry) -> None:
        nodes = graph.mappings("nodes")
        for entry in nodes:
            ntype = entry.text("type", DEFAULT_NTYPE if len(nodes) == 1 else None)
            count = entry.values.get("num")
            if type(count) is not int or count < 0 or ntype in self.counts:
                raise entry.error(f"{ntype!r} must be there once, with num, its number of nodes (got {count!r})")
            self.counts[ntype] = count
        if not self.counts:
            raise graph.error("nodes must name at least one type")
        for entry in graph.mappings("edges"):
            relation = relation_of(entry.text("type", ":".join(DEFAULT_ETYPE)), ":", self.counts, entry.place)
            if relation in self.edges:
                raise entry.error(f"{relation} must be there once")
            kind, path = self._file(entry)
            if kind == "csv":
                (src, dst), _ = read_numbers([path], self.ranks, TextForm(",", _ENDS, headless=True), dtype="int64")
            else:
                src, dst = ends_of(path, mapped_npy(path))
            self.edges[relation] = src, dst
        if not self.edges:
            raise graph.error("edges must name at least one relation")
        keys = map(relation_key, self.edges)
        self.feats = {"node": {ntype: {} for ntype in self.counts}, "edge": {key: {} for key in keys}}

    def add_feature(self, entry: Entry) -> None:
        name = entry.text("name")
        domain = entry.text("domain")
        if domain not in self.feats:
            raise entry.error(f"domain of {name!r} must be node or edge (got {domain!r})")
        owner = entry.text("type", DEFAULT_NTYPE if domain == "node" else relation_key(DEFAULT_ETYPE))
        table = self.feats[domain].get(owner)
        if table is None or name in table:
            raise entry.error(f"{domain} feature {name!r} of {owner!r} is there twice, or of an unknown type")
        table[name] = Feature.of(self._array(entry)[1])

    def add_task(self, task: Entry) -> None:
        labels: dict[str, list[tuple[Path, Array, Array]]] = {}
        sets = [(key, entry) for key in _SETS for entry in task.mappings(key)]
        for key, entry in sets:
            ntype = entry.text("type", DEFAULT_NTYPE)
            mask = mask_name(key.removesuffix("_set"))
            arrays = {array.text("name"): array for array in entry.mappings("data")}
            seeds = next((arrays.pop(name) for name in _SEEDS if name in arrays), None)
            place, ids = (None, np.zeros((0, 2))) if seeds is None else self._array(seeds)
            if ntype not in self.counts or ids.ndim != 1:
                self.left_out.append(f"{mask}: its seeds are no nodes of a type")
                continue
            feats = self.feats["node"][ntype]
            if mask in feats:
                raise entry.error(f"there are two sets for {mask} of {ntype!r}, or a feature of that name")
            feats[mask] = mask_of(str(place), ids, self.counts[ntype])
            if "labels" in arrays:
                path, values = self._array(arrays.pop("labels"))
                labels.setdefault(ntype, []).append((path, ids, values))
            self.left_out += [f"{mask}: {name} of the task" for name in arrays]
        for ntype, pieces in labels.items():
            if "label" in self.feats["node"][ntype]:
                self.left_out.append(f"labels of the task: {ntype!r} has a feature 'label'")
            else:
                self.feats["node"][ntype]["label"] = _label(pieces, self.counts[ntype], self.ranks.parent)

    def _file(self, entry: Entry) -> tuple[Any, Path]:
        kind = entry.values.get("format")
        path = self.files.read(self.folder / entry.text("path"))
        if kind == "torch":
            advice = f"write it by {_TO_NPY}, and set format: numpy in {_METADATA}"
            raise GraphDataError(f"{path}: a tensor of torch: {advice}")
        if kind not in ("csv", "numpy"):
            raise entry.error(f"format must be numpy, or csv of edges (got {kind!r})")
        return kind, path

    def _array(self, entry: Entry) -> tuple[Path, Array]:
        kind, path = self._file(entry)
        if kind != "numpy":
            raise entry.error(f"format must be numpy (got {kind!r})")
        rows = mapped_npy(path)
        if not rows.ndim or rows.dtype.kind not in "biuf":
            raise GraphDataError(f"{path} must be rows of numbers (got {rows.dtype}{list(rows.shape)})")
        return path, rows


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
