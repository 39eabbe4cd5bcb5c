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

from pathlib import Path

import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError
from mpigraph.formats.declared import Entry, ends_of, mask_name, relation_of
from mpigraph.formats.input_files import FolderFiles, Once, graph_of, mapped_npy, reading
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
    data.add_types(content.mapping("graph"))
    for entry in (*content.mappings("feature_data"), *content.mapping("graph").mappings("feature_data")):
        data.add_feature(entry)
    for number, task in enumerate(content.mappings("tasks")):
        if number:
            data.left_out.append(f"task {number + 1}, {task.values.get('name')}: only the first one is read")
        else:
            data.add_task(task)
    node_feats = {ntype: data.feats["node"][ntype] for ntype in data.counts}
    edge_feats = {relation: data.feats["edge"][relation_key(relation)] for relation in data.edges}
    return graph_of(data.counts, data.edges, node_feats, edge_feats, left_out=(*data.left_out, *files.left_out()))


def _read_yaml(path: Path) -> Entry:
    """Return the mapping that a YAML file holds: plain values, lists and mappings, no objects.

    Raises:
        GraphDataError: it is missing or no such file (names it, and the line if there is one), or there is no PyYAML.
    """
    try:
        import yaml
    except ImportError:
        raise GraphDataError(f"{path}: YAML files need PyYAML: pip install PyYAML") from None
    with reading(path):
        try:
            return Entry.of(path, yaml.safe_load(read_text(path)))
        except yaml.YAMLError as error:
            raise GraphDataError(" ".join(str(error).split())) from error


class _Dataset:
    """The graph, while it is read; features by "node" and "edge", and by type."""

    def __init__(self, folder: Path, files: FolderFiles, ranks: ReadingRanks) -> None:
        self._folder = folder
        self._files = files
        self._ranks = ranks
        self.counts = Once[str, int]()
        self.edges = Once[Relation, tuple[RowArray, RowArray]]()
        self.feats: dict[str, dict[str, dict[str, Feature]]] = {"node": {}, "edge": {}}
        self.left_out: list[str] = []

    def add_types(self, graph: Entry) -> None:
        nodes = graph.mappings("nodes")
        for entry in nodes:
            ntype = entry.text("type", DEFAULT_NTYPE if len(nodes) == 1 else None)
            count = entry.values.get("num")
            if type(count) is not int:
                raise entry.error(f"num must be the number of {ntype!r} nodes (got {count!r})")
            self.counts[ntype] = count
            self.feats["node"][ntype] = Once[str, Feature]()
        for entry in graph.mappings("edges"):
            relation = relation_of(entry.text("type", ":".join(DEFAULT_ETYPE)), ":", self.counts, entry.place)
            if entry.values.get("format") == "csv":
                form = TextForm(",", _ENDS, headless=True)
                (src, dst), _ = read_numbers([self._file(entry)], self._ranks, form, dtype="int64")
                self.edges[relation] = src, dst
            else:
                path, array = self._array(entry)
                self.edges[relation] = ends_of(path, array)
            self.feats["edge"][relation_key(relation)] = Once[str, Feature]()

    def add_feature(self, entry: Entry) -> None:
        domain = entry.text("domain")
        owner = entry.text("type", relation_key(DEFAULT_ETYPE) if domain == "edge" else DEFAULT_NTYPE)
        if owner not in self.feats.get(domain, {}):
            raise entry.error(f"there is no {domain} type {owner!r}")
        path, array = self._array(entry)
        with reading(path):
            self.feats[domain][owner][entry.text("name")] = Feature.of(array)

    def add_task(self, task: Entry) -> None:
        labels: dict[str, list[tuple[Path, Array, Array]]] = {}
        sets = [(mask_name(key.removesuffix("_set")), entry) for key in _SETS for entry in task.mappings(key)]
        for mask, entry in sets:
            ntype = entry.text("type", DEFAULT_NTYPE)
            arrays = {array.text("name"): array for array in entry.mappings("data")}
            seeds = next((arrays.pop(name) for name in _SEEDS if name in arrays), None)
            place, ids = (self._folder, np.zeros((0, 2))) if seeds is None else self._array(seeds)
            if ntype not in self.counts or ids.ndim != 1:
                self.left_out.append(f"{mask}: its seeds are no nodes of a type")
                continue
            self.feats["node"][ntype][mask] = mask_of(str(place), ids, self.counts[ntype])
            if "labels" in arrays:
                path, values = self._array(arrays.pop("labels"))
                labels.setdefault(ntype, []).append((path, ids, values))
            self.left_out += [f"{mask}: {name} of the task" for name in arrays]
        for ntype, pieces in labels.items():
            self.feats["node"][ntype]["label"] = _label(pieces, self.counts[ntype], self._ranks.parent)

    def _file(self, entry: Entry) -> Path:
        return self._files.read(self._folder / entry.text("path"))

    def _array(self, entry: Entry) -> tuple[Path, Array]:
        path, kind = self._file(entry), entry.values.get("format")
        if kind != "numpy":
            advice = f"a tensor of torch: write it by {_TO_NPY}, and set format: numpy"
            raise entry.error(f"{path}: {advice if kind == 'torch' else f'format must be numpy (got {kind!r})'}")
        return path, mapped_npy(path)


def _label(pieces: list[tuple[Path, Array, Array]], count: int, scratch: Path | None) -> Feature:
    """Return a row for each node, those of nodes without a label -1 or NaN."""
    shape = pieces[0][2].shape[1:]
    is_float = any(values.dtype.kind == "f" for _, _, values in pieces)
    size = count * int(np.prod(shape))
    label = Scratch(scratch, mapping=True).empty(size, np.dtype(np.float32 if is_float else np.int64))
    label = label.reshape(count, *shape)
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
