"""Read the directory of OGB-LSC's MAG240M, or one of its layout, as it lies on disk; nothing is copied into memory.

==================================================  =========================================================
under ``processed/``                                what it becomes
==================================================  =========================================================
``<src>___<rel>___<dst>/edge_index.npy``            the edges of a relation; integers [2, m]
``<type>/node_feat.npy``                            node feature "feat" in its dtype (float16 in MAG240M)
``<type>/node_label.npy``                           node feature "label", int64; unlabelled (NaN) becomes -1
``<type>/node_year.npy``                            node feature "year" in its dtype
==================================================  =========================================================

``meta.pt`` and ``split_dict.pt`` are pickles and are not read. The number of nodes of a type is the length of its
arrays; a type without any (authors and institutions) has as many nodes as its largest id in the edges says. The split
is that of the benchmark, by year: labelled nodes are in ``train_mask`` until 2018 and in ``val_mask`` in 2019. The
nodes to test are not labelled, so only ``split_dict`` knows them: where ``split_dict.npz`` lies beside ``processed/``,
with the ids of ``train``, ``valid`` and ``test``, all three masks come from it.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mpigraph.arrays import Array, Mask
from mpigraph.errors import GraphDataError
from mpigraph.metadata.schema import Relation, Schema
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
    edges: dict[Relation, tuple[Array, Array]] = {}
    for file in sorted((path / "processed").glob(f"*{_SEPARATOR}*{_SEPARATOR}*/edge_index.npy")):
        names = file.parent.name.split(_SEPARATOR)
        ends = mapped_npy(file)
        if len(names) != 3 or ends.ndim != 2 or len(ends) != 2:
            raise GraphDataError(f"{file} must hold the two rows of edges of one relation (got {list(ends.shape)})")
        edges[names[0], names[1], names[2]] = ends[0], ends[1]
    relations = tuple(sorted(edges))
    ntypes = tuple(sorted({ntype for relation in relations for ntype in (relation[0], relation[2])}))
    arrays = {ntype: _arrays(path / "processed" / ntype) for ntype in ntypes}
    counts = tuple(_count(ntype, arrays[ntype], edges) for ntype in ntypes)
    feats = {ntype: _features(arrays[ntype]) for ntype in ntypes}
    split = path / "split_dict.npz"
    if os.path.lexists(split):
        split_type = next((ntype for ntype in ntypes if "label" in feats[ntype]), ntypes[0])
        feats[split_type] |= _masks(split, counts[ntypes.index(split_type)])
    return GraphSource(Schema(ntypes, relations), counts, tuple(edges[relation] for relation in relations), feats)


def _arrays(folder: Path) -> dict[str, Array]:
    """Return the arrays of a node type that are there."""
    names = ("feat", "label", "year")
    paths = {name: folder / f"node_{name}.npy" for name in names}
    return {name: mapped_npy(path) for name, path in paths.items() if os.path.lexists(path)}


def _count(ntype: str, arrays: Mapping[str, Array], edges: Mapping[Relation, tuple[Array, Array]]) -> int:
    if arrays:
        return len(next(iter(arrays.values())))
    ids = [ends[side] for relation, ends in edges.items() for side in (0, 1) if relation[2 * side] == ntype]
    return 1 + max(map(largest, ids))


def _features(arrays: Mapping[str, Array]) -> dict[str, Feature]:
    feats = {}
    if "feat" in arrays:
        feats["feat"] = Feature.rows(as_floats(arrays["feat"]))
    if "year" in arrays:
        feats["year"] = Feature.of(arrays["year"])
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
    arrays = mapped_npz(path)
    masks = {}
    for name, theirs in (("train", "train"), ("val", "valid"), ("test", "test")):
        if theirs not in arrays:
            raise GraphDataError(f"{path} has no array {theirs!r} (it has {sorted(arrays)})")
        masks[f"{name}_mask"] = mask_of(f"{path}: {theirs}", arrays[theirs], num_nodes)
    return masks
