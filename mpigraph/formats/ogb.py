"""Read the directory of an OGB node-property dataset, without the ogb package and without pickle.

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

The files do not tell if each edge is stored once: OGB's package knows it by the name of the dataset
(``_STORED_ONCE``). Where neither the directory's name nor the user tells it, ``left_out`` asks.
"""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.errors import GraphDataError
from mpigraph.formats.input_files import FolderFiles, graph_of, mapped_npz, named, once, opened, reading
from mpigraph.formats.layout import (
    Layout,
    ReadOptions,
    add_reverse_edges,
    as_column,
    ends_of,
    feature_of,
    masks_of,
    relation_of,
)
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.formats.table_files import read_numbers
from mpigraph.formats.text_files import TextForm
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Relation
from mpigraph.partition.row_arrays import RowArray, as_floats, made_rows, side_by_side
from mpigraph.partition.source import Feature, GraphSource

_STORED_ONCE = ("ogbn-products", "ogbn-proteins")
_KNOWN = (*_STORED_ONCE, "ogbn-arxiv", "ogbn-papers100m", "ogbn-mag")
_SEPARATOR = "___"
_ARRAY = re.compile(r"(?:num[-_](node|edge)s?[-_](?:list|dict)|(node|edge)[-_](.+?)(?:_dict)?)(?:\.csv\.gz|\.npz)?")
_OLD_NAMES = {"species.csv.gz": "node_species.csv.gz"}  # of ogbn-proteins, which OGB's package renames, too
_DTYPES = {"": "int64", "feat": "float32", "label": "float64"}  # of text

Owner = str | Relation
"""A node type or a relation."""


def _read(path: Path, options: ReadOptions) -> GraphSource:
    raw = _Raw(path / "raw", FolderFiles(path), options.ranks)
    readers = {
        "edge_index_dict.npz": raw.read_typed_arrays,
        "triplet-type-list.csv.gz": raw.read_typed_text,
        "data.npz": raw.read_arrays,
        "edge.csv.gz": raw.read_text,
    }
    layout = next((name for name in readers if (raw.folder / name).is_file()), None)
    if layout is None:
        raise GraphDataError("raw/ has neither edge.csv.gz nor data.npz, nor the files of a typed dataset")
    readers[layout]()
    raw.read_split(path / "split")
    source = raw.source()
    dataset = path.resolve().name.lower().replace("_", "-")
    if dataset in _STORED_ONCE:
        source = add_reverse_edges(source)
    elif layout == "edge.csv.gz" and dataset not in _KNOWN and not options.adds_reverse:
        raw.left_out.append(
            f"reverse edges: no file says whether each of the {source.edge_counts[0]} edges is stored once, as those "
            f"of {' and '.join(_STORED_ONCE)} are: if it is, add them by --undirected"
        )
    names = {name for feats in raw.feats.values() for name in feats}
    if "train_mask" in names and "label" not in names:
        raw.left_out.append("labels: there is a split of nodes, but no file node-label")
    return replace(source, left_out=(*raw.left_out, *raw.files.left_out()))


@dataclass
class _Raw:
    """The content of ``raw/``, while it is read."""

    folder: Path
    files: FolderFiles
    ranks: ReadingRanks
    counts: dict[str, int] = field(default_factory=dict)
    said: dict[Relation, int] = field(default_factory=dict)  # numbers of edges
    edges: dict[Relation, tuple[RowArray, RowArray]] = field(default_factory=dict)
    feats: dict[Owner, dict[str, Feature]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def read_arrays(self) -> None:
        for path in (self.folder / "data.npz", self.folder / "node-label.npz"):
            for key, values in mapped_npz(self.files.read(path)).items():
                kind, name = _kind_and_name(key)
                if kind:
                    self._add(f"{path}: {key}", DEFAULT_NTYPE if kind == "node" else DEFAULT_ETYPE, name, values)
                else:
                    self.left_out.append(f"raw/{path.name}: {key} begins with neither node_ nor edge_")

    def read_typed_arrays(self) -> None:
        for path in sorted(self.folder.glob("*.npz")):
            kind, name = _kind_and_name(path.name)
            for key, values in mapped_npz(self.files.read(path)).items() if kind else ():
                owner = key if kind == "node" else relation_of(key, _SEPARATOR, None, path)
                self._add(f"{path}: {key}", owner, name, values)

    def read_text(self) -> None:
        self._read_folder(self.folder, "node", DEFAULT_NTYPE)
        self._read_folder(self.folder, "edge", DEFAULT_ETYPE)

    def read_typed_text(self) -> None:
        path, *lines = self._lines("num-node-dict.csv.gz")
        with reading(path):
            names, counts = lines
            self.counts = named(names, [*map(int, counts)])
        path, *triples = self._lines("triplet-type-list.csv.gz")
        with reading(path):
            relations = once((relation_of(",".join(its), ",", self.counts, path), None) for its in triples)
        for relation in relations:
            self._read_folder(self.folder / "relations" / _SEPARATOR.join(relation), "edge", relation)
        for name in ("feat", "label"):
            self.files.read(self.folder / f"nodetype-has-{name}.csv.gz")  # the folders tell it, too
            for ntype in self.counts:
                self._read_folder(self.folder / f"node-{name}" / ntype, "node", ntype)

    def read_split(self, folder: Path) -> None:
        """Read the first folder that is a split, of all nodes or of those of some types."""
        trains = (sorted([*it.glob("train.csv.gz"), *it.glob("*/train.csv.gz")]) for it in sorted(folder.glob("*")))
        for train in next(filter(None, trains), []):
            of_types = train.parent.parent != folder
            self.files.read(train.parent.parent / "nodetype-has-split.csv.gz")
            ids = {}
            for path in (train.with_name(f"{name}.csv.gz") for name in ("train", "valid", "test")):
                columns = self._columns(path, "int64")
                ids[path.name.partition(".")[0]] = str(path), np.asarray(columns[0][:] if columns else [])
            ntype = train.parent.name if of_types else DEFAULT_NTYPE
            self.feats[ntype] = self.feats.get(ntype, {}) | masks_of(ids, self.counts[ntype])

    def source(self) -> GraphSource:
        for relation, count in self.said.items():
            found = len(self.edges[relation][0]) if relation in self.edges else 0
            if count != found:  # a file of edges that is not whole
                raise GraphDataError(f"the number of edges of {relation} is said to be {count}, but there are {found}")
        node_feats = {owner: feats for owner, feats in self.feats.items() if isinstance(owner, str)}
        edge_feats = {owner: feats for owner, feats in self.feats.items() if isinstance(owner, tuple)}
        return graph_of(self.counts, self.edges, node_feats, edge_feats)

    def _add(self, place: str, owner: Owner, name: str, values: RowArray) -> None:
        """Add an array of a node type or relation, which ``place`` holds; a name "" means their number."""
        if not name:
            numbers: dict[Any, int] = self.counts if isinstance(owner, str) else self.said  # type: ignore[assignment]
            (numbers[owner],) = np.asarray(values[:]).reshape(-1).tolist()
        elif name == "index":
            assert isinstance(owner, tuple) and isinstance(values, np.ndarray)  # only arrays of npz are called so
            self.edges[owner] = ends_of(place, values)
        else:
            rows = as_column(values) if name == "label" and isinstance(values, np.ndarray) else values
            self.feats.setdefault(owner, {})[name] = feature_of(name, rows)

    def _read_folder(self, folder: Path, kind: str, owner: Owner) -> None:
        """Read the files of text in a folder that are of nodes, or of edges."""
        if isinstance(owner, tuple):
            path = folder / "edge.csv.gz"
            ends = self._columns(path, "int64")
            if len(ends) != 2:
                raise GraphDataError(f"{path}: has {len(ends)} columns, not sources and destinations")
            self.edges[owner] = ends[0], ends[1]
        for path in sorted(folder.glob("*.csv.gz")):
            of_kind, name = _kind_and_name(_OLD_NAMES.get(path.name, path.name))
            if of_kind == kind:
                with reading(path):
                    columns = self._columns(path, _DTYPES.get(name, ""))
                    values = side_by_side(columns)
                    if name == "feat" and len(columns) == 1:
                        values = made_rows(lambda rows: rows[:, None], np.float32, values, row_shape=(1,))
                    elif name != "label" and values.dtype == np.float64:
                        values = as_floats(values)
                    self._add(str(path), owner, name, values)

    def _columns(self, path: Path, dtype: str = "") -> list[RowArray]:
        """Return the columns of a csv file of numbers; an empty field is NaN where floats are."""
        form = TextForm(",", headless=True, first=("src", "dst") if path.name == "edge.csv.gz" else ())
        return read_numbers([self.files.read(path)], self.ranks, form, dtype)

    def _lines(self, name: str) -> list[Any]:
        """Return the path of a file of text, and the words of each line."""
        path = self.files.read(self.folder / name)
        with opened(path) as file, reading(path):
            return [path, *(line.strip().split(",") for line in file.read().decode().splitlines() if line.strip())]


def _kind_and_name(name: str) -> tuple[str, str]:
    """Return "node" or "edge" and the name of a file or array of them, "" for their number; "" and "" for another."""
    match = _ARRAY.fullmatch(name)
    return (match[1] or match[2], match[3] or "") if match else ("", "")


OGB = Layout("OGB", "", lambda path: (path / "raw").is_dir(), _read)
