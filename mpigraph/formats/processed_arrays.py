"""Read MAG240M of OGB-LSC, and datasets of the Illinois Graph Benchmark (IGB), as they lie on disk; all is mapped.

Both have ``processed/``, with a folder for each relation and one for each node type with arrays:

==================================================  =========================================================
MAG240M                                             what it becomes
==================================================  =========================================================
``<src>___<rel>___<dst>/edge_index.npy``            the edges of a relation; integers [2, m]
``<src>___<rel>___<dst>/edge_<x>.npy``              edge feature "<x>" in its dtype
``<type>/node_feat.npy``                            node feature "feat" in its dtype (float16 in MAG240M)
``<type>/node_label.npy``                           node feature "label", int64; unlabelled (NaN) becomes -1
``<type>/node_<x>.npy``, such as ``node_year.npy``  node feature "<x>" in its dtype
==================================================  =========================================================

``meta.pt`` and ``split_dict.pt`` are pickles and are not read. The split is that of the benchmark, by year: labelled
nodes are in ``train_mask`` until 2018 and in ``val_mask`` in 2019. The nodes to test are not labelled, so only
``split_dict`` knows them: where ``split_dict.npz`` lies beside ``processed/``, with the ids of ``train``, ``valid`` and
others (``test``, ``test-dev``, ``test-challenge``), all masks come from it.

==================================================  =========================================================
IGB, homogeneous or typed                           what it becomes
==================================================  =========================================================
``<src>__<rel>__<dst>/edge_index.npy``              the edges of a relation; integers [m, 2]
``<type>/node_feat.npy``                            node feature "feat" in its dtype
``<type>/node_label_19.npy``                        node feature "label", int64
``<type>/node_label_2K.npy``                        node feature "label_2K", int64
==================================================  =========================================================

Features and labels of the sizes large and full are float32 without the header of ``.npy``, 1024 numbers a node and one.
Nodes behind the end of the labels are unlabelled (-1); of size full so are the papers from 227,130,858 on (19 classes),
or from 157,675,969 on (2983 classes), whatever the files have there. The split is that of the benchmark: "train_mask"
are the first 60 % of the labelled nodes, "val_mask" the next 20 %, "test_mask" the others. As in the files, edges go
one way, and no loops are added.

The number of nodes of a type is the length of its arrays, else its largest id in the edges and one.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import Array, Mask
from mpigraph.errors import GraphDataError
from mpigraph.formats.input_files import FolderFiles, first_bytes, graph_of
from mpigraph.formats.layout import Layout, ReadOptions
from mpigraph.formats.mapped_files import mapped_npy, mapped_npz
from mpigraph.metadata.schema import Relation
from mpigraph.partition.row_arrays import MadeRows, RowArray, as_floats, as_labels, concatenated, largest
from mpigraph.partition.source import Feature, GraphSource, mask_of
from mpigraph.storage.files import open_regular

_LAST_YEAR_OF = {"train_mask": 2018, "val_mask": 2019}
_WIDTH = 1024  # of IGB's features without a header
_LABELS = {"label": "node_label_19.npy", "label_2K": "node_label_2K.npy"}
_FULL = 269_346_174  # papers
_LABELLED_OF_FULL = {"label": 227_130_858, "label_2K": 157_675_969}

Edges = Mapping[Relation, tuple[Array, Array]]


def _relation_folders(path: Path, separator: str) -> list[Path]:
    files = sorted((path / "processed").glob(f"*{separator}*{separator}*/edge_index.npy"))
    return [file.parent for file in files if separator == "___" or "___" not in file.parent.name]


def _relation(folder: Path, ends: Array, separator: str, axis: int, expected: str) -> Relation:
    names = folder.name.split(separator)
    if len(names) != 3 or ends.ndim != 2 or ends.shape[axis] != 2 or ends.dtype.kind not in "iu":
        got = f"{ends.dtype}{list(ends.shape)}"
        raise GraphDataError(f"{folder}/edge_index.npy must hold the edges of one relation, {expected} (got {got})")
    return names[0], names[1], names[2]


def _count(ntype: str, arrays: Mapping[str, Array], edges: Edges) -> int:
    if arrays:
        return len(next(iter(arrays.values())))
    ids = [ends[side] for relation, ends in edges.items() for side in (0, 1) if relation[2 * side] == ntype]
    return 1 + max(map(largest, ids))


def _read_mag(path: Path, options: ReadOptions) -> GraphSource:
    files = FolderFiles(path)
    edges: dict[Relation, tuple[Array, Array]] = {}
    edge_feats: dict[Relation, dict[str, Feature]] = {}
    for folder in _relation_folders(path, "___"):
        arrays = _named_arrays(files, folder, "edge_")
        ends = arrays.pop("index")
        relation = _relation(folder, ends, "___", 0, "two rows of integers")
        edges[relation] = ends[0], ends[1]
        edge_feats[relation] = {name: Feature.of(values) for name, values in arrays.items()}
    with_arrays = {file.parent.name for file in (path / "processed").glob("*/node_*.npy")}
    ntypes = sorted(with_arrays.union(*(relation[::2] for relation in edges)))
    of_types = {ntype: _named_arrays(files, path / "processed" / ntype, "node_") for ntype in ntypes}
    counts = {ntype: _count(ntype, arrays, edges) for ntype, arrays in of_types.items()}
    feats = {ntype: _mag_features(arrays) for ntype, arrays in of_types.items()}
    split = path / "split_dict.npz"
    if os.path.lexists(split):
        split_type = next((ntype for ntype in ntypes if "label" in feats[ntype]), ntypes[0])
        feats[split_type] |= _masks(files.read(split), counts[split_type])
    return graph_of(counts, edges, feats, edge_feats, left_out=files.left_out())


def _named_arrays(files: FolderFiles, folder: Path, prefix: str) -> dict[str, Array]:
    paths = sorted(folder.glob(f"{prefix}*.npy"))
    return {path.stem.removeprefix(prefix): mapped_npy(files.read(path)) for path in paths}


def _mag_features(arrays: dict[str, Array]) -> dict[str, Feature]:
    feats = {name: Feature.of(values) for name, values in arrays.items() if name not in ("feat", "label")}
    if "feat" in arrays:
        feats["feat"] = Feature.of(as_floats(arrays["feat"]))
    if "label" in arrays:
        label = arrays["label"].reshape(-1) if arrays["label"].ndim == 2 else arrays["label"]
        feats["label"] = Feature(as_labels(label), "int64")
        if "year" in arrays:
            if arrays["year"].shape != label.shape:
                raise GraphDataError(f"node_year.npy must be one year for each label (got {arrays['year'].shape})")
            before = 0
            for name, last in _LAST_YEAR_OF.items():

                def labelled(labels: Array, years: Array, before: int = before, last: int = last) -> Mask:
                    known: Mask = labels >= 0  # NaN is not
                    return known & (years > before) & (years <= last)

                feats[name] = Feature.of(MadeRows(labelled, np.bool_, label, arrays["year"]))
                before = last
    return feats


def _masks(path: Path, num_nodes: int) -> dict[str, Feature]:
    """Return a mask for each array of ids: train_mask, val_mask (of "valid"), test_mask, test_dev_mask and so on."""
    arrays = mapped_npz(path)
    missing = [name for name in ("train", "valid") if name not in arrays]
    if missing:
        raise GraphDataError(f"{path} has no array {missing[0]!r} (it has {sorted(arrays)})")
    names = {name: "val" if name == "valid" else name.replace("-", "_") for name in arrays}
    return {f"{split}_mask": mask_of(f"{path}: {name}", arrays[name], num_nodes) for name, split in names.items()}


def _read_igb(path: Path, options: ReadOptions) -> GraphSource:
    files = FolderFiles(path)
    edges: dict[Relation, tuple[Array, Array]] = {}
    for folder in _relation_folders(path, "__"):
        ends = mapped_npy(files.read(folder / "edge_index.npy"))
        edges[_relation(folder, ends, "__", 1, "two columns of integers")] = ends[:, 0], ends[:, 1]
    counts = {}
    feats = {}
    for ntype in {ntype for relation in edges for ntype in relation[::2]}:
        folder = path / "processed" / ntype
        arrays = {}
        for name, file in {"feat": "node_feat.npy", **_LABELS}.items():
            if os.path.lexists(folder / file):
                arrays[name] = _with_or_without_header(files.read(folder / file), _WIDTH if name == "feat" else 1)
        counts[ntype] = _count(ntype, arrays, edges)
        feats[ntype] = _igb_features(folder, arrays, counts[ntype])
    return graph_of(counts, edges, feats, left_out=files.left_out())


def _with_or_without_header(path: Path, width: int) -> Array:
    """Map a file of ``.npy``, or of float32 rows without its header."""
    if first_bytes(path, 6) == b"\x93NUMPY":
        return mapped_npy(path)
    with open(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
    if size % (4 * width):
        raise GraphDataError(f"{path} is no .npy file, and its {size} bytes are no rows of {width} float32")
    shape = size // (4 * width), width
    return np.memmap(path, "<f4", "r", shape=shape) if size else np.zeros(shape, np.float32)


def _igb_features(folder: Path, arrays: Mapping[str, Array], count: int) -> dict[str, Feature]:
    feats = {}
    if "feat" in arrays:
        feats["feat"] = Feature.of(as_floats(arrays["feat"]))
    for name in _LABELS:
        if name not in arrays:
            continue
        label = arrays[name].reshape(-1)
        if len(label) > count or arrays[name].size != len(arrays[name]):
            got = list(arrays[name].shape)
            raise GraphDataError(f"{folder / _LABELS[name]} must hold a label for each of {count} nodes (got {got})")
        known = min(len(label), _LABELLED_OF_FULL[name] if count == _FULL else count)
        labels = as_labels(label[:known])
        unlabelled = [_runs([(-1, count - known)], labels.dtype)] if known < count else []
        feats[name] = Feature(concatenated([labels, *unlabelled]), "int64")
        if "train_mask" not in feats:
            ends = [0, *accumulate([int(known * 0.6), int(known * 0.2)]), known]
            for mask, begin, end in zip(("train_mask", "val_mask", "test_mask"), ends, ends[1:], strict=False):
                runs = [(False, begin), (True, end - begin), (False, count - end)]
                feats[mask] = Feature.of(_runs(runs, np.dtype(bool)))
    return feats


def _runs(runs: Sequence[tuple[int, int]], dtype: np.dtype[Any]) -> RowArray:
    """Return values repeated so many times, which take no memory."""
    return concatenated([np.broadcast_to(np.array(value, dtype), times) for value, times in runs])


def _has_relations(separator: str) -> Callable[[Path], bool]:
    return lambda path: bool(_relation_folders(path, separator))


MAG240M = Layout("MAG240M", "edges in processed/", _has_relations("___"), _read_mag, by_all_ranks=True)
IGB = Layout("IGB", "processed/<src>__<rel>__<dst>/", _has_relations("__"), _read_igb, by_all_ranks=True)
