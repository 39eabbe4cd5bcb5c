"""Read MAG240M of OGB-LSC, and datasets of the Illinois Graph Benchmark (IGB), as they lie on disk, without pickle.

All arrays are mapped. Both have ``processed/``, with a folder for each relation and one for each node type with arrays:

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
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import Array, Mask
from mpigraph.formats.input_files import FolderFiles, graph_of, is_npy, mapped_npy, mapped_npz, reading
from mpigraph.formats.layout import MASKS, Layout, ReadOptions, as_column, ends_of, feature_of, masks_of, relation_of
from mpigraph.metadata.schema import Relation
from mpigraph.partition.row_arrays import RowArray, as_labels, concatenated, largest, made_rows
from mpigraph.partition.source import Feature, GraphSource

_OF_MAG, _OF_IGB = "___", "__"
_YEARS = {"train_mask": range(1, 2019), "val_mask": range(2019, 2020)}
_WIDTH = 1024  # of IGB's features without a header
_LABELS = {"label": "node_label_19.npy", "label_2K": "node_label_2K.npy"}
_FULL = 269_346_174  # papers
_LABELLED_OF_FULL = {"label": 227_130_858, "label_2K": 157_675_969}

Edges = dict[Relation, tuple[Array, Array]]


def _relation_folders(path: Path, separator: str) -> list[Path]:
    files = sorted((path / "processed").glob(f"*{separator}*{separator}*/edge_index.npy"))
    return [file.parent for file in files if separator == _OF_MAG or _OF_MAG not in file.parent.name]


def _edges(files: FolderFiles, path: Path, separator: str) -> Edges:
    edges: Edges = {}
    for folder in _relation_folders(path, separator):
        file = files.read(folder / "edge_index.npy")
        relation = relation_of(folder.name, separator, None, file)
        edges[relation] = ends_of(file, mapped_npy(file), in_columns=separator == _OF_IGB)
    return edges


def _counts(arrays: Mapping[str, Mapping[str, Array]], edges: Edges) -> dict[str, int]:
    counts = {}
    for ntype, of_type in arrays.items():
        ids = (ends[side] for relation, ends in edges.items() for side in (0, 1) if relation[2 * side] == ntype)
        counts[ntype] = len(next(iter(of_type.values()))) if of_type else 1 + max(map(largest, ids))
    return counts


def _read_mag(path: Path, options: ReadOptions) -> GraphSource:
    files = FolderFiles(path)
    processed = path / "processed"
    edges = _edges(files, path, _OF_MAG)
    edge_feats = {}
    for relation in edges:
        arrays = _arrays(files, processed / _OF_MAG.join(relation), "edge_")
        edge_feats[relation] = {name: Feature.of(values) for name, values in arrays.items() if name != "index"}
    with_arrays = {file.parent.name for file in processed.glob("*/node_*.npy")}
    ntypes = sorted(with_arrays.union(*(relation[::2] for relation in edges)))
    of_types = {ntype: _arrays(files, processed / ntype, "node_") for ntype in ntypes}
    counts = _counts(of_types, edges)
    feats = {ntype: _mag_features(arrays) for ntype, arrays in of_types.items()}
    split = path / "split_dict.npz"
    if os.path.lexists(split):
        ntype = next((ntype for ntype in ntypes if "label" in feats[ntype]), ntypes[0])
        ids = {name: (f"{split}: {name}", its) for name, its in mapped_npz(files.read(split)).items()}
        feats[ntype] |= masks_of(ids, counts[ntype])
    return graph_of(counts, edges, feats, edge_feats, left_out=files.left_out())


def _arrays(files: FolderFiles, folder: Path, prefix: str) -> dict[str, Array]:
    paths = sorted(folder.glob(f"{prefix}*.npy"))
    return {path.stem.removeprefix(prefix): mapped_npy(files.read(path)) for path in paths}


def _mag_features(arrays: dict[str, Array]) -> dict[str, Feature]:
    if "label" in arrays:
        arrays["label"] = as_column(arrays["label"])
    feats = {name: feature_of(name, values) for name, values in arrays.items()}
    if "label" in arrays and "year" in arrays:
        labels, years = arrays["label"], as_column(arrays["year"])
        for name, of_mask in _YEARS.items():
            feats[name] = Feature.of(made_rows(partial(_labelled_in, of_mask), np.bool_, labels, years))
    return feats


def _labelled_in(years: range, labels: Array, year: Array) -> Mask:
    known: Mask = labels >= 0  # NaN is not
    return known & (year >= years.start) & (year < years.stop)


def _read_igb(path: Path, options: ReadOptions) -> GraphSource:
    files = FolderFiles(path)
    edges = _edges(files, path, _OF_IGB)
    of_types: dict[str, dict[str, Array]] = {ntype: {} for relation in edges for ntype in relation[::2]}
    for ntype, arrays in of_types.items():
        for name, file in {"feat": "node_feat.npy", **_LABELS}.items():
            there = path / "processed" / ntype / file
            if os.path.lexists(there):
                arrays[name] = _with_or_without_header(files.read(there), _WIDTH if name == "feat" else 1)
    counts = _counts(of_types, edges)
    feats = {ntype: _igb_features(of_types[ntype], counts[ntype]) for ntype in counts}
    return graph_of(counts, edges, feats, left_out=files.left_out())


def _with_or_without_header(path: Path, width: int) -> Array:
    """Map a file of ``.npy``, or of float32 rows without its header."""
    if is_npy(path):
        return mapped_npy(path)
    with reading(path):
        return np.memmap(path, "<f4", "r").reshape(-1, width) if path.stat().st_size else np.zeros((0, width), "<f4")


def _igb_features(arrays: Mapping[str, Array], count: int) -> dict[str, Feature]:
    feats = {"feat": feature_of("feat", arrays["feat"])} if "feat" in arrays else {}
    for name in [name for name in _LABELS if name in arrays]:
        labels = as_labels(as_column(arrays[name])[: _LABELLED_OF_FULL[name] if count == _FULL else None])
        known = min(len(labels), count)  # the graph refuses more of them
        unlabelled = [_runs([(-1, count - known)], labels.dtype)] if known < count else []
        feats[name] = Feature(concatenated([labels, *unlabelled]), "int64")
        if MASKS[0] not in feats:
            ends = [0, *accumulate([int(known * 0.6), int(known * 0.2)]), known]
            for mask, (begin, end) in zip(MASKS, pairwise(ends), strict=True):
                runs = [(False, begin), (True, end - begin), (False, count - end)]
                feats[mask] = Feature.of(_runs(runs, np.dtype(bool)))
    return feats


def _runs(runs: Iterable[tuple[int, int]], dtype: np.dtype[Any]) -> RowArray:
    """Return values repeated so many times, which take no memory."""
    return concatenated([np.broadcast_to(np.array(value, dtype), times) for value, times in runs])


MAG240M = Layout("MAG240M", "edges in processed/", lambda path: bool(_relation_folders(path, _OF_MAG)), _read_mag)
IGB = Layout("IGB", "processed/<src>__<rel>__<dst>/", lambda path: bool(_relation_folders(path, _OF_IGB)), _read_igb)
