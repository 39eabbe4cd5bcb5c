"""Read the directory of an OGB node-property dataset as it lies on disk, without the ogb package and without pickle.

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
"""

import io
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError
from mpigraph.formats.input_files import FolderFiles, graph_of, opened, reading
from mpigraph.formats.layout import Layout, ReadOptions, add_reverse_edges
from mpigraph.formats.mapped_files import mapped_npz
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Relation, relation_key
from mpigraph.partition.row_arrays import RowArray, RowError, as_float32, as_floats, as_labels
from mpigraph.partition.source import Feature, GraphSource, mask_of


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
_BLOCK_BYTES = 16 << 20
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
    if not path.is_file():
        raise GraphDataError(f"{_short(path)} is missing")
    return mapped_npz(files.read(path))


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


def _read_words(files: FolderFiles, path: Path) -> list[list[str]]:
    lines = (line for _, text in _blocks(files, path) for line in text.decode().splitlines())
    return [line.strip().split(",") for line in lines if line.strip()]


def _chunks(files: FolderFiles, path: Path, dtype: npt.DTypeLike) -> Iterator[Array]:
    is_narrow = np.dtype(dtype) == np.float32  # numpy would make infinity of a number that is too large
    width = 0
    for number, text in _blocks(files, path):
        try:
            read = np.float64 if is_narrow else dtype
            rows = np.loadtxt(io.BytesIO(text), read, comments=None, delimiter=",", ndmin=2)
            rows = as_float32(rows) if is_narrow else rows
        except RowError as error:
            raise GraphDataError(f"{_short(path)}, row {number - 1 + error.row}: {error}") from error
        except ValueError as error:
            raise GraphDataError(f"{_short(path)}, from line {number}: {error}") from error
        width = width or rows.shape[1]
        if rows.shape[1] != width:
            raise GraphDataError(f"{_short(path)}, from line {number}: {rows.shape[1]} columns, {width} before")
        yield rows


def _blocks(files: FolderFiles, path: Path) -> Iterator[tuple[int, bytes]]:
    if not path.is_file():
        raise GraphDataError(f"{_short(path)} is missing")
    return (block for block in _blocks_of_lines(files.read(path)) if block[1].strip())


def _blocks_of_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield some lines of a file, and the number of the first of them, from 1. All of them end in a newline alone.

    Raises GraphDataError if a line is longer than a block, or the file cannot be read.
    """
    number = 1
    rest = b""
    with reading(path), opened(path) as file:
        while data := file.read(_BLOCK_BYTES):
            while data.endswith(b"\r") and (more := file.read(1)):
                data += more
            text = rest + (data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data)
            end = text.rfind(b"\n") + 1
            if not end and len(text) > _BLOCK_BYTES:
                raise GraphDataError(f"{path}, line {number}: longer than {_BLOCK_BYTES} bytes")
            rest = text[end:]
            yield number, text[:end]
            number += text.count(b"\n", 0, end)
        yield number, rest


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
