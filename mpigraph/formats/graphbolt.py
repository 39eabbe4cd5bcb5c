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

from collections.abc import Iterator
from itertools import chain
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError
from mpigraph.formats.input_files import FolderFiles, graph_of, mapped_npy, once, reading
from mpigraph.formats.layout import Layout, ReadOptions, ends_of, mask_name, relation_of
from mpigraph.formats.table_files import read_numbers
from mpigraph.formats.text_files import TextForm
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE
from mpigraph.partition.row_arrays import RowArray
from mpigraph.partition.source import Feature, GraphSource, mask_of
from mpigraph.storage.files import read_text

_METADATA = "metadata.yaml"
_SETS = ("train_set", "validation_set", "test_set")
_SEEDS = ("seeds", "seed_nodes")
_TO_NPY = "np.save('x.npy', torch.load('x.pt', weights_only=True).numpy())"

Named = Iterator[tuple[tuple[str, str, str], Feature]]
"""Features by "node" or "edge", type, and name."""


def _read(path: Path, options: ReadOptions) -> GraphSource:
    file = path / _METADATA
    content = _read_yaml(file)
    with reading(file, path):
        return _Dataset(path, content, options).source()


def _read_yaml(path: Path) -> Any:
    """Return what a YAML file holds: plain values, lists and mappings, no objects.

    Raises:
        GraphDataError: it is missing or no such file (names it, and the line if there is one), or there is no PyYAML.
    """
    with reading(path):
        try:
            import yaml
        except ImportError:
            raise GraphDataError("YAML files need PyYAML: pip install PyYAML") from None
        return yaml.safe_load(read_text(path))


class _Dataset:
    """The graph, while it is read."""

    def __init__(self, folder: Path, content: Any, options: ReadOptions) -> None:
        self._folder = folder
        self._content = content
        self._ranks = options.ranks
        self._files = FolderFiles(folder)
        self._left_out: list[str] = []

    def source(self) -> GraphSource:
        if "graph_topology" in self._content:
            advice = "give the directory of the data it was made of"
            raise GraphDataError(f"a dataset that GraphBolt has preprocessed: {advice}")
        graph, place = self._content["graph"], self._files.read(self._folder / _METADATA)
        self._counts = once((entry.get("type") or DEFAULT_NTYPE, index(entry["num"])) for entry in graph["nodes"])
        keys = [entry.get("type") or ":".join(DEFAULT_ETYPE) for entry in graph["edges"]]
        relations = [relation_of(key, ":", self._counts, place) for key in keys]
        edges = once(zip(relations, map(self._ends, graph["edges"]), strict=True))
        feats: dict[str, dict[str, dict[str, Feature]]] = {"node": {}, "edge": {}}
        for (domain, owner, name), feature in once(chain(self._features(), self._masks_and_labels())).items():
            feats[domain].setdefault(owner, {})[name] = feature
        named = dict(zip(keys, relations, strict=True))
        edge_feats = {named[key]: table for key, table in feats["edge"].items()}
        left_out = (*self._left_out, *self._files.left_out())
        return graph_of(self._counts, edges, feats["node"], edge_feats, left_out=left_out)

    def _ends(self, entry: Any) -> tuple[RowArray, RowArray]:
        if entry["format"] != "csv":
            return ends_of(*self._array(entry))
        paths = [self._files.read(self._folder / entry["path"])]
        src, dst = read_numbers(paths, self._ranks, TextForm(",", headless=True), "int64")
        return src, dst

    def _features(self) -> Named:
        for entry in (*(self._content.get("feature_data") or ()), *(self._content["graph"].get("feature_data") or ())):
            default = ":".join(DEFAULT_ETYPE) if entry["domain"] == "edge" else DEFAULT_NTYPE
            path, array = self._array(entry)
            with reading(path):
                yield (entry["domain"], entry.get("type") or default, entry["name"]), Feature.of(array)

    def _masks_and_labels(self) -> Named:
        """Yield those of the first task; note what else there is."""
        labels: dict[str, list[tuple[Path, Array, Array]]] = {}
        tasks: Any = self._content.get("tasks") or [{}]
        told = "task {}, {}: only the first one is read"
        self._left_out += [told.format(number, task.get("name")) for number, task in enumerate(tasks[1:], 2)]
        for mask, entry in (
            (mask_name(key.removesuffix("_set")), it) for key in _SETS for it in tasks[0].get(key) or ()
        ):
            ntype = entry.get("type") or DEFAULT_NTYPE
            arrays = once((array["name"], array) for array in entry["data"])
            seeds = next((arrays.pop(name) for name in _SEEDS if name in arrays), None)
            place, ids = (self._folder, np.zeros((0, 2))) if seeds is None else self._array(seeds)
            if ntype not in self._counts or ids.ndim != 1:
                self._left_out.append(f"{mask}: its seeds are no nodes of a type")
                continue
            yield ("node", ntype, mask), mask_of(str(place), ids, self._counts[ntype])
            if "labels" in arrays:
                path, values = self._array(arrays.pop("labels"))
                labels.setdefault(ntype, []).append((path, ids, values))
            self._left_out += [f"{mask}: {name} of the task" for name in arrays]
        for ntype, pieces in labels.items():
            yield ("node", ntype, "label"), _label(pieces, self._counts[ntype])

    def _array(self, entry: Any) -> tuple[Path, Array]:
        path, kind = self._files.read(self._folder / entry["path"]), entry["format"]
        if kind != "numpy":
            advice = f"a tensor of torch: write it by {_TO_NPY}, and set format: numpy"
            raise GraphDataError(f"{path}: {advice if kind == 'torch' else f'format must be numpy (got {kind!r})'}")
        return path, mapped_npy(path)


def _label(pieces: list[tuple[Path, Array, Array]], count: int) -> Feature:
    """Return a row for each node, those of nodes without a label -1 or NaN."""
    is_float = any(values.dtype.kind == "f" for _, _, values in pieces)
    shape = count, *pieces[0][2].shape[1:]
    label = np.full(shape, np.nan, np.float32) if is_float else np.full(shape, -1, np.int64)
    for path, ids, values in pieces:
        if len(values) != len(ids):
            raise GraphDataError(f"{path} must have a label for each of {len(ids)} seeds (got {len(values)})")
        with reading(path):
            label[ids] = values
    return Feature.of(label)


GRAPHBOLT = Layout("GraphBolt", _METADATA, lambda path: (path / _METADATA).is_file(), _read)
