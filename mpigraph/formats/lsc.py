"""Read the directory of OGB-LSC's MAG240M, or one of its layout, as it lies on disk; nothing is copied into memory.

==================================================  =========================================================
under ``processed/``                                what it becomes
==================================================  =========================================================
``<src>___<rel>___<dst>/edge_index.npy``            the edges of a relation; integers [2, m]
``<src>___<rel>___<dst>/edge_<x>.npy``              edge feature "<x>" in its dtype
``<type>/node_feat.npy``                            node feature "feat" in its dtype (float16 in MAG240M)
``<type>/node_label.npy``                           node feature "label", int64; unlabelled (NaN) becomes -1
``<type>/node_<x>.npy``, such as ``node_year.npy``  node feature "<x>" in its dtype
==================================================  =========================================================

``meta.pt`` and ``split_dict.pt`` are pickles and are not read. The number of nodes of a type is the length of its
arrays; a type without any (authors and institutions) has as many nodes as its largest id in the edges says. The split
is that of the benchmark, by year: labelled nodes are in ``train_mask`` until 2018 and in ``val_mask`` in 2019. The
nodes to test are not labelled, so only ``split_dict`` knows them: where ``split_dict.npz`` lies beside ``processed/``,
with the ids of ``train``, ``valid`` and others (``test``, ``test-dev``, ``test-challenge``), all masks come from it.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mpigraph.arrays import Array, Mask
from mpigraph.errors import GraphDataError
from mpigraph.formats.input_files import FolderFiles
from mpigraph.metadata.schema import Relation, Schema, relation_key
from mpigraph.partition.chunks import mapped_npy, mapped_npz
from mpigraph.partition.row_arrays import MadeRows, RowArray, as_floats, as_labels, largest
from mpigraph.partition.source import Feature, GraphSource, mask_of

__all__ = ["is_lsc", "read_lsc"]

_SEPARATOR = "___"
_LAST_YEAR_OF = {"train_mask": 2018, "val_mask": 2019}


def is_lsc(path: Path) -> bool:
    """Return whether a directory has this layout."""
    return next((path / "processed").glob(f"*{_SEPARATOR}*{_SEPARATOR}*/edge_index.npy"), None) is not None


def read_lsc(path: Path) -> GraphSource:
    """Read a dataset.

    Args:
        path: its directory, e.g. ``mag240m_kddcup2021``.

    Raises:
        GraphDataError: a file does not fit the others.
    """
    files = FolderFiles(path)
    edges: dict[Relation, tuple[Array, Array]] = {}
    edge_feats: dict[str, dict[str, Feature]] = {}
    for file in sorted((path / "processed").glob(f"*{_SEPARATOR}*{_SEPARATOR}*/edge_index.npy")):
        names = file.parent.name.split(_SEPARATOR)
        arrays = _arrays(files, file.parent, "edge_")
        ends = arrays.pop("index")
        if len(names) != 3 or ends.ndim != 2 or len(ends) != 2:
            raise GraphDataError(f"{file} must hold the two rows of edges of one relation (got {list(ends.shape)})")
        relation = names[0], names[1], names[2]
        edges[relation] = ends[0], ends[1]
        edge_feats[relation_key(relation)] = {name: Feature.of(values) for name, values in arrays.items()}
    relations = tuple(sorted(edges))
    with_arrays = {file.parent.name for file in (path / "processed").glob("*/node_*.npy")}
    ntypes = tuple(sorted(with_arrays.union(*((relation[0], relation[2]) for relation in relations))))
    of_types = {ntype: _arrays(files, path / "processed" / ntype, "node_") for ntype in ntypes}
    counts = tuple(_count(ntype, of_types[ntype], edges) for ntype in ntypes)
    feats = {ntype: _features(of_types[ntype]) for ntype in ntypes}
    split = path / "split_dict.npz"
    if os.path.lexists(split):
        split_type = next((ntype for ntype in ntypes if "label" in feats[ntype]), ntypes[0])
        feats[split_type] |= _masks(files.read(split), counts[ntypes.index(split_type)])
    return GraphSource(
        Schema(ntypes, relations),
        counts,
        tuple(edges[relation] for relation in relations),
        feats,
        edge_feats,
        left_out=files.left_out(),
    )


def _arrays(files: FolderFiles, folder: Path, prefix: str) -> dict[str, Array]:
    """Return the arrays of a node type or a relation, by what follows the prefix in their names."""
    return {
        file.stem.removeprefix(prefix): mapped_npy(files.read(file)) for file in sorted(folder.glob(f"{prefix}*.npy"))
    }


def _count(ntype: str, arrays: Mapping[str, Array], edges: Mapping[Relation, tuple[Array, Array]]) -> int:
    if arrays:
        return len(next(iter(arrays.values())))
    ids = [ends[side] for relation, ends in edges.items() for side in (0, 1) if relation[2 * side] == ntype]
    return 1 + max(map(largest, ids))


def _features(arrays: dict[str, Array]) -> dict[str, Feature]:
    """Return the features of a node type, and masks of the years of its labels."""
    feats = {name: Feature.of(values) for name, values in arrays.items() if name not in ("feat", "label")}
    if "feat" in arrays:
        feats["feat"] = Feature.rows(as_floats(arrays["feat"]))
    if "label" in arrays:
        label = arrays["label"].reshape(-1) if arrays["label"].ndim == 2 else arrays["label"]
        feats["label"] = Feature(as_labels(label), "int64")
        if "year" in arrays:
            if arrays["year"].shape != label.shape:
                raise GraphDataError(f"node_year.npy must be one year for each label (got {arrays['year'].shape})")
            before = 0
            for name, last in _LAST_YEAR_OF.items():
                feats[name] = Feature.of(_labelled_in(label, arrays["year"], before, last))
                before = last
    return feats


def _labelled_in(label: Array, year: Array, before: int, last: int) -> RowArray:
    """Return a mask, made when it is asked for: labelled, and later than ``before`` until ``last``."""

    def make(labels: Array, years: Array) -> Mask:
        known: Mask = labels >= 0  # NaN is not
        return known & (years > before) & (years <= last)

    return MadeRows(make, np.bool_, label, year)


def _masks(path: Path, num_nodes: int) -> dict[str, Feature]:
    """Return a mask for each array of ids: train_mask, val_mask (of "valid"), test_mask, test_dev_mask and so on."""
    arrays = mapped_npz(path)
    missing = [name for name in ("train", "valid") if name not in arrays]
    if missing:
        raise GraphDataError(f"{path} has no array {missing[0]!r} (it has {sorted(arrays)})")
    names = {name: "val" if name == "valid" else name.replace("-", "_") for name in arrays}
    return {f"{ours}_mask": mask_of(f"{path}: {name}", arrays[name], num_nodes) for name, ours in names.items()}
