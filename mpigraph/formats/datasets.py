"""Read benchmark datasets as they lie on disk, without pickle: those of OGB, and MAG240M and IGB.

The directory of an OGB node-property dataset is read without the ogb package.

==================  =============================================  ==================================================
under ``raw/``      homogeneous, such as ogbn_products             typed, such as ogbn_mag
==================  =============================================  ==================================================
text layout         ``num-node-list.csv.gz``                       ``num-node-dict.csv.gz`` (names, then counts)
                                                                   ``triplet-type-list.csv.gz``
                    ``edge.csv.gz``, ``edge-feat.csv.gz``,         the same in ``relations/<src>___<rel>___<dst>/``
                    ``edge_<x>.csv.gz``, ``num-edge-list.csv.gz``
                    ``node-feat.csv.gz``, ``node_<x>.csv.gz``      the same in ``node-feat/<type>/``
                    ``node-label.csv.gz``                          ``node-label/<type>/node-label.csv.gz``
binary layout       ``data.npz``: ``edge_index``,                  ``num_nodes_dict.npz``, ``num_edges_dict.npz``,
                    ``num_nodes_list``, ``num_edges_list``,        ``edge_index_dict.npz``, ``node_<x>.npz`` and
                    ``node_<x>``, ``edge_<x>``                     ``edge_<x>.npz`` (also ``..._dict.npz``)
                    ``node-label.npz``                             ``node-label.npz``
beside ``raw/``     ``split/<name>/{train,valid,test}.csv.gz``     ``split/<name>/<type>/{train,valid,test}.csv.gz``
==================  =============================================  ==================================================

``node_<x>`` and ``edge_<x>`` become features "<x>": int64 where all are integers, else float32. In typed datasets
features, labels and splits are there for some types or none, the arrays of npz files are named by type or by
``<src>___<rel>___<dst>``, and types and relations get ids in alphabetical order, as from OGB's own reader. Arrays that
an npz file stores as they are (``np.savez``) are mapped, compressed ones (``np.savez_compressed``) read.

The files do not tell if each edge is stored once: OGB's package knows it by the name of the dataset (``_KNOWN``).
Where neither the directory's name nor the user tells it, ``left_out`` asks.

MAG240M of OGB-LSC, and datasets of the Illinois Graph Benchmark (IGB), are all mapped. Both have ``processed/``, with
a folder for each relation and one for each node type with arrays:

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
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import Array, Mask
from mpigraph.errors import GraphDataError
from mpigraph.formats.input_files import FolderFiles, first_bytes, graph_of, mapped_npy, mapped_npz, opened, reading
from mpigraph.formats.layout import Layout, ReadOptions, add_reverse_edges
from mpigraph.formats.table_columns import chunks_of_numbers
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Relation, relation_key
from mpigraph.partition.row_arrays import (
    MadeRows,
    RowArray,
    as_floats,
    as_labels,
    concatenated,
    largest,
)
from mpigraph.partition.source import Feature, GraphSource, mask_of
from mpigraph.storage.files import open_regular


class _Known(NamedTuple):
    """A dataset of OGB: counts as its files have them, the name of its split, and whether each edge is stored once."""

    num_nodes: int
    num_edges: int
    split: str
    stored_once: bool


_KNOWN = {
    "ogbn-products": _Known(2_449_029, 61_859_140, "sales_ranking", stored_once=True),
    "ogbn-proteins": _Known(132_534, 39_561_252, "species", stored_once=True),
    "ogbn-arxiv": _Known(169_343, 1_166_243, "time", stored_once=False),
    "ogbn-papers100M": _Known(111_059_956, 1_615_685_872, "time", stored_once=False),
    "ogbn-mag": _Known(1_939_743, 21_111_007, "time", stored_once=False),
}
_SEPARATOR = "___"
_VALUES = re.compile(r"(node|edge)[-_](.+?)(_dict)?(\.csv\.gz|\.npz)?")
_OLD_NAMES = {"species.csv.gz": "node_species.csv.gz"}  # of ogbn-proteins, which OGB's package renames, too


def _read(path: Path, options: ReadOptions) -> GraphSource:
    known = _known(path, options.dataset)
    files = FolderFiles(path)
    raw = path / "raw"
    is_binary = (raw / "edge_index_dict.npz").is_file() or (raw / "data.npz").is_file()
    if (raw / "edge_index_dict.npz").is_file():
        contents = _read_typed_binary(files, raw)
    elif (raw / "triplet-type-list.csv.gz").is_file():
        contents = _read_typed_text(files, raw)
    elif is_binary:
        contents = _read_binary(files, raw)
    elif (raw / "edge.csv.gz").is_file():
        contents = _read_text(files, raw)
    else:
        raise GraphDataError("raw/ has neither edge.csv.gz nor data.npz, nor the files of a typed dataset")
    source = _source(path, files, contents)
    if known is not None and _KNOWN[known].stored_once:
        source = add_reverse_edges(source)
    asks = known is None and source.schema.is_homogeneous and not is_binary and not options.adds_reverse
    questions = _questions(path, source) if asks else []
    return replace(source, left_out=(*questions, *contents.left_out, *files.left_out()))


@dataclass
class _Contents:
    """The content of ``raw/`` by node type or relation; ``feats`` by both."""

    counts: dict[str, int]
    edges: Mapping[Relation, tuple[RowArray, RowArray]]
    labels: Mapping[str, Array]
    feats: dict[Any, dict[str, Feature]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def add(self, owner: str | Relation, name: str, values: RowArray) -> None:
        table = self.feats.setdefault(owner, {})
        is_of_node = isinstance(owner, str)
        if name in table or (is_of_node and name == "label"):
            kind, key = ("node", owner) if isinstance(owner, str) else ("edge", relation_key(owner))
            raise GraphDataError(f"raw/: {kind} feature {name!r} of {key!r} is there twice")
        table[name] = Feature.of(as_floats(values)) if name == "feat" else Feature.of(values)


def _known(path: Path, dataset: str | None) -> str | None:
    """Return the known dataset that the user names, or else the directory; None if the directory names none."""
    name = (path.resolve().name if dataset is None else dataset).lower().replace("_", "-")
    known = next((known for known in _KNOWN if known.lower() == name), None)
    if dataset is not None and known is None:
        raise GraphDataError(f"there is no OGB dataset {dataset!r} (known: {', '.join(_KNOWN)})")
    return known


def _questions(path: Path, source: GraphSource) -> list[str]:
    """Return what to ask about reverse edges: nothing if the counts are those of a dataset that stores both."""
    counts = source.num_nodes[0], source.num_edges()
    splits = [folder.name for folder in (path / "split").glob("*")]
    for name, known in _KNOWN.items():
        if counts == known[:2] and not known.stored_once:
            return []
        if known.stored_once and (counts == known[:2] or known.split in splits):
            split = f" and split {known.split!r}" if known.split in splits else ""
            return [
                f"reverse edges: it has {counts[0]} nodes, {counts[1]} edges{split}, {name} has {known.num_nodes} and "
                f"{known.num_edges}, each stored once: add them by --undirected or --dataset {name}"
            ]
    return [
        f"reverse edges: no file says whether each of the {counts[1]} edges is stored once: if it is, add them by "
        "--undirected, or name a dataset of OGB by --dataset"
    ]


def _source(path: Path, files: FolderFiles, contents: _Contents) -> GraphSource:
    node_feats: dict[str, dict[str, Feature]] = {ntype: {} for ntype in contents.counts}
    node_feats |= {owner: feats for owner, feats in contents.feats.items() if isinstance(owner, str)}
    edge_feats = {owner: feats for owner, feats in contents.feats.items() if isinstance(owner, tuple)}
    splits = sorted((path / "split").glob("*"))  # the first that is one, of all nodes or of those of some types
    split = next((it for it in splits if any((*it.glob("train.csv.gz"), *it.glob("*/train.csv.gz")))), None)
    if split is not None:
        _check_promises(files, split / "nodetype-has-split.csv.gz", split)
    for ntype, count in contents.counts.items():
        if split is not None:
            folder = split if set(contents.counts) == {DEFAULT_NTYPE} else split / ntype
            node_feats[ntype] |= _split_masks(files, folder, count)
        if ntype in contents.labels:
            label = contents.labels[ntype]
            label = label[:, 0] if label.ndim == 2 and label.shape[1] == 1 else label
            node_feats[ntype]["label"] = Feature(as_labels(label), "int64")
    return graph_of(contents.counts, contents.edges, node_feats, edge_feats, path=str(path))


def _read_binary(files: FolderFiles, raw: Path) -> _Contents:
    arrays = _read_arrays(files, raw / "data.npz")
    src, dst = _ends(arrays.pop("edge_index"), "data.npz: edge_index")
    counts = {DEFAULT_NTYPE: _count("data.npz: num_nodes_list", arrays.pop("num_nodes_list"))}
    _check_count("data.npz: num_edges_list", arrays.pop("num_edges_list", None), len(src))
    labels = {DEFAULT_NTYPE: _read_arrays(files, raw / "node-label.npz")["node_label"]}
    contents = _Contents(counts, {DEFAULT_ETYPE: (src, dst)}, labels)
    for key, values in arrays.items():
        kind, name = _kind_and_name(key)
        if kind:
            contents.add(DEFAULT_NTYPE if kind == "node" else DEFAULT_ETYPE, name, values)
        else:
            contents.left_out.append(f"raw/data.npz: {key} begins with neither node_ nor edge_")
    return contents


def _read_text(files: FolderFiles, raw: Path) -> _Contents:
    path = raw / "num-node-list.csv.gz"
    num_nodes = _count(_short(path), _read_table(files, path, np.int64))
    labels = {DEFAULT_NTYPE: _read_table(files, raw / "node-label.csv.gz", np.float64)}
    contents = _Contents({DEFAULT_NTYPE: num_nodes}, {DEFAULT_ETYPE: _read_edges(files, raw, num_nodes)}, labels)
    _read_values(files, raw, contents, {"node": DEFAULT_NTYPE, "edge": DEFAULT_ETYPE})
    return contents


def _read_typed_binary(files: FolderFiles, raw: Path) -> _Contents:
    edges = {}
    path = raw / "edge_index_dict.npz"
    for name, ends in _read_arrays(files, path).items():
        edges[_as_relation(name.split(_SEPARATOR), path.name)] = _ends(ends, f"{path.name}: {name}")
    path = raw / "num_nodes_dict.npz"
    counts = {name: _count(f"{path.name}: {name}", numbers) for name, numbers in _read_arrays(files, path).items()}
    path = raw / "num_edges_dict.npz"
    for name, numbers in (_read_arrays(files, path) if os.path.lexists(path) else {}).items():
        relation = _as_relation(name.split(_SEPARATOR), path.name)
        _check_count(f"{path.name}: {name}", numbers, len(edges[relation][0]) if relation in edges else 0)
    path = raw / "node-label.npz"
    labels = _read_arrays(files, path) if os.path.lexists(path) else {}
    contents = _Contents(counts, edges, labels)
    for path in sorted(raw.glob("*.npz")):
        kind, name = _kind_and_name(path.name)
        if not kind or path.name in ("edge_index_dict.npz", "node-label.npz"):
            continue
        for key, values in _read_arrays(files, path).items():
            owner = _as_relation(key.split(_SEPARATOR), path.name) if kind == "edge" else key
            contents.add(owner, name, values)
    unknown = [name for name in labels if name not in counts]
    if unknown:
        raise GraphDataError(f"node-label.npz has labels of {unknown}, which are not among the types {list(counts)}")
    return contents


def _read_typed_text(files: FolderFiles, raw: Path) -> _Contents:
    names, *rows = _read_words(files, raw / "num-node-dict.csv.gz") or [[]]  # lines of type names and of counts
    if len(rows) != 1 or len(rows[0]) != len(names):
        raise GraphDataError(f"num-node-dict.csv.gz must have a count for each of the node types {names}, of one graph")
    if len(set(names)) < len(names):
        raise GraphDataError(f"num-node-dict.csv.gz: a node type is there twice ({names})")
    counts = {name: int(count) for name, count in zip(names, rows[0], strict=True)}
    for ntype in counts:
        _check_folder(ntype, "num-node-dict.csv.gz")
    edges: dict[Relation, tuple[Array, Array]] = {}
    labels: dict[str, Array] = {}
    contents = _Contents(counts, edges, labels)
    for triple in _read_words(files, raw / "triplet-type-list.csv.gz"):
        relation = _as_relation(triple, "triplet-type-list.csv.gz")
        if relation in edges:
            raise GraphDataError(f"triplet-type-list.csv.gz: {relation} is there twice")
        for name in relation:
            _check_folder(name, "triplet-type-list.csv.gz")
        folder = raw / "relations" / _SEPARATOR.join(relation)
        edges[relation] = _read_edges(files, folder, max(counts.values()))
        _read_values(files, folder, contents, {"edge": relation})
    for ntype in counts:
        _read_values(files, raw / "node-feat" / ntype, contents, {"node": ntype})
        label_path = raw / "node-label" / ntype / "node-label.csv.gz"
        if os.path.lexists(label_path):
            labels[ntype] = _read_table(files, label_path, np.float64)
    _check_promises(files, raw / "nodetype-has-feat.csv.gz", raw / "node-feat")
    _check_promises(files, raw / "nodetype-has-label.csv.gz", raw / "node-label")
    return contents


def _read_values(files: FolderFiles, folder: Path, contents: _Contents, owners: Mapping[str, str | Relation]) -> None:
    """Read the features in a folder of text; ``owners`` has their owner by kind, "node" or "edge"."""
    for path in sorted(folder.glob("*.csv.gz")):
        kind, name = _kind_and_name(_OLD_NAMES.get(path.name, path.name))
        if kind not in owners or name == "label":
            continue
        if name == "feat":
            values = _read_table(files, path, np.float32)
        else:
            try:
                values = _read_table(files, path, np.int64)
            except GraphDataError:  # no integers
                values = _read_table(files, path, np.float32)
            values = values[:, 0] if values.shape[1] == 1 else values
        contents.add(owners[kind], name, values)


def _kind_and_name(name: str) -> tuple[str, str]:
    """Return "node" or "edge" and the name of the feature that a file or an array holds; "" and "" for no feature."""
    match = _VALUES.fullmatch(name)
    return (match[1], match[2]) if match else ("", "")


def _count(what: str, numbers: Array) -> int:
    if numbers.size != 1:
        raise GraphDataError(f"{what} must be one number, of one graph (got {numbers.size} numbers)")
    return int(numbers.reshape(-1)[0])


def _check_count(what: str, numbers: Array | None, num_edges: int) -> None:
    if numbers is not None and _count(what, numbers) != num_edges:
        raise GraphDataError(f"{what} says {_count(what, numbers)} edges, but there are {num_edges}")


def _check_promises(files: FolderFiles, path: Path, folder: Path) -> None:
    """Check that a folder has what a file says: a line of type names, then a line of True and False."""
    names, *rows = (_read_words(files, path) if os.path.lexists(path) else []) or [[]]
    for name, promise in ((name, promise) for row in rows for name, promise in zip(names, row, strict=False)):
        if promise == "True" and not (folder / name).is_dir():
            raise GraphDataError(f"{_short(path)} says that {name!r} has files in {_short(folder)}, which has none")


def _check_folder(name: str, file_name: str) -> None:
    """Check that the name of a type is also one of a folder here, and leads nowhere else."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise GraphDataError(f"{file_name}: {name!r} is no name of a type")


def _as_relation(names: list[str], file_name: str) -> Relation:
    if len(names) != 3:
        raise GraphDataError(f"{file_name}: a relation is three names (got {names})")
    return names[0], names[1], names[2]


def _ends(edge_index: Array, what: str) -> tuple[Array, Array]:
    if edge_index.ndim != 2 or len(edge_index) != 2:
        raise GraphDataError(f"{what} must be two rows (got {list(edge_index.shape)})")
    return edge_index[0], edge_index[1]


def _split_masks(files: FolderFiles, folder: Path, num_nodes: int) -> dict[str, Feature]:
    masks: dict[str, Feature] = {}
    if not (folder / "train.csv.gz").is_file():
        return masks
    for name, file_name in (("train", "train"), ("val", "valid"), ("test", "test")):
        path = folder / f"{file_name}.csv.gz"
        masks[f"{name}_mask"] = mask_of(_short(path), _read_table(files, path, np.int64).reshape(-1), num_nodes)
    return masks


def _read_arrays(files: FolderFiles, path: Path) -> dict[str, Array]:
    return mapped_npz(files.read(_checked(path)))


def _read_edges(files: FolderFiles, folder: Path, num_nodes: int) -> tuple[Array, Array]:
    """Return source and destination of each edge in ``edge.csv.gz``, a compressed csv file of two columns."""
    dtype = np.dtype(np.int32 if num_nodes < 2**31 else np.int64)
    path = folder / "edge.csv.gz"
    chunks = []
    for chunk in _chunks(files, path, np.int64):
        as_small = chunk.astype(dtype)
        chunks.append(as_small if (as_small == chunk).all() else chunk)  # what does not fit is no node, and is told so
    edges = np.concatenate(chunks) if chunks else np.zeros((0, 2), dtype)
    if edges.shape[1] != 2:
        raise GraphDataError(f"{_short(path)} must have two columns (got {edges.shape[1]})")
    counts = folder / "num-edge-list.csv.gz"
    if os.path.lexists(counts):
        _check_count(_short(counts), _read_table(files, counts, np.int64), len(edges))
    return np.ascontiguousarray(edges[:, 0]), np.ascontiguousarray(edges[:, 1])


def _read_table(files: FolderFiles, path: Path, dtype: npt.DTypeLike) -> Array:
    """Return ``[lines, columns]`` of a compressed csv file of numbers; an empty field is NaN where the dtype has it."""
    chunks = list(_chunks(files, path, dtype))
    return np.concatenate(chunks) if chunks else np.zeros((0, 1), dtype)


def _chunks(files: FolderFiles, path: Path, dtype: npt.DTypeLike) -> Iterator[Array]:
    return chunks_of_numbers(files.read(_checked(path)), np.dtype(dtype))


def _read_words(files: FolderFiles, path: Path) -> list[list[str]]:
    with reading(path), opened(files.read(_checked(path))) as file:
        return [line.strip().split(",") for line in file.read().decode().splitlines() if line.strip()]


def _checked(path: Path) -> Path:
    if not path.is_file():
        raise GraphDataError(f"{_short(path)} is missing")
    return path


def _short(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


OGB_TEXT = Layout(
    "OGB",
    "raw/",
    lambda path: any((path / "raw" / name).is_file() for name in ("edge.csv.gz", "triplet-type-list.csv.gz")),
    _read,
    ("dataset",),
)
OGB = Layout("OGB", "", lambda path: (path / "raw").is_dir(), _read, ("dataset",), by_all_ranks=True)


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


def _count_of(ntype: str, arrays: Mapping[str, Array], edges: Edges) -> int:
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
    counts = {ntype: _count_of(ntype, arrays, edges) for ntype, arrays in of_types.items()}
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
        counts[ntype] = _count_of(ntype, arrays, edges)
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
