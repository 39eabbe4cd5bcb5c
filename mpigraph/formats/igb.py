"""Read a dataset of the Illinois Graph Benchmark (IGB), homogeneous or typed, as it lies on disk.

=====================================  ==============================================================================
under ``processed/``                   what it becomes
=====================================  ==============================================================================
``<src>__<rel>__<dst>/edge_index.npy``  the edges of a relation; integers [m, 2]
``<type>/node_feat.npy``               node feature "feat" in its dtype
``<type>/node_label_19.npy``           node feature "label", int64
``<type>/node_label_2K.npy``           node feature "label_2K", int64
=====================================  ==============================================================================

Features and labels of the sizes large and full are float32 without the header of ``.npy``, 1024 numbers a node and one.
The number of nodes of a type is that of its features, else that of its labels, else its largest id in the edges and
one. Nodes behind the end of the labels are unlabelled (-1); of size full so are the papers from 227,130,858 on (19
classes), or from 157,675,969 on (2983 classes), whatever the files have there.

The split is that of the benchmark: "train_mask" are the first 60 % of the labelled nodes, "val_mask" the next 20 %,
"test_mask" the others. As in the files, edges go one way, and no loops are added.
"""

import os
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError
from mpigraph.formats.input_files import FolderFiles, first_bytes, in_natural_order
from mpigraph.formats.layout import Layout, ReadOptions
from mpigraph.metadata.schema import Relation, Schema
from mpigraph.partition.chunks import concatenated, mapped_npy
from mpigraph.partition.row_arrays import RowArray, as_floats, as_labels, largest
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.storage.files import open_regular

__all__ = ["IGB"]

_SEPARATOR = "__"
_WIDTH = 1024  # of features without a header
_LABELS = {"label": "node_label_19.npy", "label_2K": "node_label_2K.npy"}
_FULL = 269_346_174  # papers
_LABELLED_OF_FULL = {"label": 227_130_858, "label_2K": 157_675_969}


def _edge_files(path: Path) -> list[Path]:
    files = in_natural_order((path / "processed").glob(f"*{_SEPARATOR}*{_SEPARATOR}*/edge_index.npy"))
    return [file for file in files if f"{_SEPARATOR}_" not in file.parent.name]  # which OGB-LSC separates names by


def _is_at(path: Path) -> bool:
    return bool(_edge_files(path))


def _read(path: Path, options: ReadOptions) -> GraphSource:
    files = FolderFiles(path)
    edges: dict[Relation, tuple[Array, Array]] = {}
    for file in _edge_files(path):
        names = file.parent.name.split(_SEPARATOR)
        ends = mapped_npy(files.read(file))
        if len(names) != 3 or ends.ndim != 2 or ends.shape[1] != 2 or ends.dtype.kind not in "iu":
            got = f"{ends.dtype}{list(ends.shape)}"
            raise GraphDataError(f"{file} must hold the edges of one relation, two columns of integers (got {got})")
        edges[names[0], names[1], names[2]] = ends[:, 0], ends[:, 1]
    relations = tuple(sorted(edges))
    ntypes = tuple(sorted({ntype for relation in relations for ntype in (relation[0], relation[2])}))
    counts = []
    feats = {}
    for ntype in ntypes:
        arrays = _arrays(path / "processed" / ntype, files)
        counts.append(len(next(iter(arrays.values()))) if arrays else _largest_id(ntype, edges) + 1)
        feats[ntype] = _features(path / "processed" / ntype, arrays, counts[-1])
    return GraphSource(
        Schema(ntypes, relations),
        tuple(counts),
        tuple(edges[relation] for relation in relations),
        feats,
        left_out=files.left_out(),
    )


def _arrays(folder: Path, files: FolderFiles) -> dict[str, Array]:
    """Return features and labels of a type, those that are there."""
    names = {"feat": "node_feat.npy", **_LABELS}
    paths = {name: folder / file for name, file in names.items() if os.path.lexists(folder / file)}
    return {name: _mapped(files.read(path), _WIDTH if name == "feat" else 1) for name, path in paths.items()}


def _mapped(path: Path, width: int) -> Array:
    """Map a file of ``.npy``, or of float32 rows without its header."""
    if first_bytes(path, 6) == b"\x93NUMPY":
        return mapped_npy(path)
    with open(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
    if size % (4 * width):
        raise GraphDataError(f"{path} is no .npy file, and its {size} bytes are no rows of {width} float32")
    shape = size // (4 * width), width
    return np.memmap(path, "<f4", "r", shape=shape) if size else np.zeros(shape, np.float32)


def _largest_id(ntype: str, edges: Mapping[Relation, tuple[Array, Array]]) -> int:
    return max(
        largest(ends[side]) for relation, ends in edges.items() for side in (0, 1) if relation[2 * side] == ntype
    )


def _features(folder: Path, arrays: Mapping[str, Array], count: int) -> dict[str, Feature]:
    feats = {}
    if "feat" in arrays:
        feats["feat"] = Feature.rows(as_floats(arrays["feat"]))
    for name in _LABELS:
        if name not in arrays:
            continue
        label = arrays[name].reshape(-1)
        if len(label) > count or arrays[name].size != len(arrays[name]):
            raise GraphDataError(
                f"{folder / _LABELS[name]} must hold a label for each of {count} nodes (got {list(arrays[name].shape)})"
            )
        known = min(len(label), _LABELLED_OF_FULL[name] if count == _FULL else count)
        feats[name] = Feature(_followed_by(as_labels(label[:known]), -1, count - known), "int64")
        if "train_mask" not in feats:
            feats |= _split(known, count)
    return feats


def _split(known: int, count: int) -> dict[str, Feature]:
    """Return the masks: 60, 20 and 20 % of the first ``known`` nodes."""
    pieces = [int(known * 0.6), int(known * 0.2)]
    ends = [0, *accumulate(pieces), known]
    masks = {}
    for name, begin, end in zip(("train_mask", "val_mask", "test_mask"), ends, ends[1:], strict=False):
        masks[name] = Feature.of(_runs([(False, begin), (True, end - begin), (False, count - end)], np.bool_))
    return masks


def _followed_by(rows: RowArray, value: int, times: int) -> RowArray:
    return concatenated([rows, _runs([(value, times)], rows.dtype)]) if times else rows


def _runs(runs: Sequence[tuple[int, int]], dtype: type[np.generic] | np.dtype[np.generic]) -> RowArray:
    """Return values repeated so many times, which take no memory."""
    return concatenated([np.broadcast_to(np.array(value, dtype), times) for value, times in runs])


IGB = Layout("IGB", "processed/<src>__<rel>__<dst>/", _is_at, _read, by_all_ranks=True)
