"""Read DGL's folders of raw data: its chunked graph format, and the raw data of GraphBolt.

A chunked graph is a folder with ``metadata.json``, which names the files of every array. The format is that of DGL's
``chunk_graph.py`` and of its distributed partitioning, and of GraphStorm; in later versions the metadata have counts by
type instead of by chunk. Names of files are relative to the folder, or absolute, and may lead out of it, as DGL's do:
look at the metadata of strangers before you read them. Formats of edges and of node and edge data:

===========  ==========================================================================================================
``numpy``    mapped; edges are integers [m, 2] or [2, m], data have one row for each node or edge
``parquet``  read by groups of rows (``table_files.py``); edges are the first two columns, data one column or several
``csv``      parsed once into a temporary file; no header; else as parquet
===========  ==========================================================================================================

Two edges in a numpy file, [2, 2], stand as those of the other files of their relation, or else of all relations. Where
no file tells, they are refused.

Types and relations get ids in alphabetical order, as from the other readers. Data keep their names and dtypes, except
"label", which becomes int64 (NaN: -1).

The raw data of GraphBolt's OnDiskDataset is the directory with ``metadata.yaml``, before its preprocessing.

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

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import Array
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError, check_text
from mpigraph.formats.input_files import UNREADABLE, FolderFiles, graph_of, mapped_npy
from mpigraph.formats.layout import Layout, ReadOptions
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.formats.table_columns import NO_NUMBERS, read_columns
from mpigraph.formats.table_files import TextForm, open_tables
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Relation, relation_key, relations_in
from mpigraph.partition.row_arrays import RowArray, as_labels, concatenated, side_by_side
from mpigraph.partition.source import EDGES_PER_CHUNK, Feature, GraphSource, mask_of
from mpigraph.partition.spill import Scratch
from mpigraph.storage.files import read_text

_CHUNKED_METADATA = "metadata.json"

_COUNTS = [f"num_{kind}s_per_{part}" for kind in ("node", "edge") for part in ("chunk", "type")]
_SECTIONS = ("graph_name", "node_type", "edge_type", "edges", "node_data", "edge_data", *_COUNTS)


@collective("ranks")
def _read_chunked(path: Path, options: ReadOptions) -> GraphSource:
    metadata = _Metadata(path, options.ranks)
    counts = metadata.counts("node")
    sizes = {_as_relation(name, sorted(counts)): chunks for name, chunks in metadata.counts("edge").items()}
    keys = [":".join(relation) for relation in sizes]
    for section, known in (("edges", keys), ("node_data", counts), ("edge_data", keys)):
        metadata.check_names(section, known)
    source = graph_of(
        {ntype: sum(chunks) for ntype, chunks in counts.items()},
        _all_edges(metadata, sizes),
        {ntype: _data(metadata, "node_data", ntype, chunks) for ntype, chunks in counts.items()},
        {relation: _data(metadata, "edge_data", ":".join(relation), chunks) for relation, chunks in sizes.items()},
    )
    return replace(source, left_out=(*metadata.left_out, *metadata.folder_files.left_out()))


class _Metadata:
    """The content of ``metadata.json``, checked while it is asked for."""

    def __init__(self, folder: Path, ranks: ReadingRanks) -> None:
        self.ranks = ranks
        self.folder_files = FolderFiles(folder)
        self.path = self.folder_files.read(folder / _CHUNKED_METADATA)
        try:
            self.content: Any = json.loads(read_text(self.path))
        except ValueError as error:
            raise GraphDataError(f"{self.path}: not JSON: {error}") from error
        if not isinstance(self.content, dict):
            raise GraphDataError(f"{self.path} must be a JSON object")
        self.left_out = [f"{_CHUNKED_METADATA}: {name!r}" for name in self.content if name not in _SECTIONS]

    def counts(self, kind: str) -> dict[str, list[int]]:
        names = self.content.get(f"{kind}_type")
        chunks = self.content.get(f"num_{kind}s_per_chunk")
        totals = self.content.get(f"num_{kind}s_per_type")  # of later versions
        if chunks is None and isinstance(totals, list):
            chunks, totals = [[total] for total in totals], None
        fits = isinstance(names, list) and isinstance(chunks, list) and len(names) == len(chunks)
        if not fits or not all(
            isinstance(name, str) and isinstance(sizes, list) and all(type(size) is int and size >= 0 for size in sizes)
            for name, sizes in zip(names, chunks, strict=True)
        ):
            raise GraphDataError(f"{self.path}: num_{kind}s_per_chunk must have a list of counts for each {kind}_type")
        if totals not in (None, list(map(sum, chunks))):
            raise GraphDataError(f"{self.path}: num_{kind}s_per_type and num_{kind}s_per_chunk contradict each other")
        if len(set(names)) < len(names):
            raise GraphDataError(f"{self.path}: {kind}_type has a name twice ({names})")
        return dict(zip(names, chunks, strict=True))

    def check_names(self, section: str, known: Collection[str]) -> None:
        """Check that a section names no types that the graph lacks, which would be left out."""
        table = self.content.get(section) or {}
        for name in table if isinstance(table, dict) else ():
            if name not in known:
                raise GraphDataError(f"{self.path}: {section} of {name!r}, which is not one of the types {list(known)}")

    def tables(self, section: str, name: str) -> Mapping[str, Any]:
        table = self.content.get(section) or {}
        table = table.get(name, {}) if isinstance(table, dict) else None
        if not isinstance(table, dict):
            raise GraphDataError(f"{self.path}: {section} must have a JSON object for {name!r}")
        return table

    def files(self, what: str, entry: object) -> tuple[str, Mapping[str, Any], list[Path]]:
        names = entry.get("data") if isinstance(entry, dict) else None
        if not isinstance(names, list):
            names = [None]  # which is no name
        try:
            options = dict(entry["format"])  # type: ignore[index]
            kind = str(options.pop("name"))
            files = [self.folder_files.read(self.path.parent / check_text("name of a file", name)) for name in names]
        except (TypeError, KeyError, ValueError) as error:
            raise GraphDataError(f"{self.path}: {what} must have a format with a name, and data, a list") from error
        return kind, options, files


def _as_relation(name: str, ntypes: Sequence[str]) -> Relation:
    relations = relations_in(name, ntypes)
    if len(relations) != 1:
        form = f"<src>:<rel>:<dst>, with types of {list(ntypes)}"
        raise GraphDataError(f"{_CHUNKED_METADATA}: an edge type is {form} (got {name!r})")
    return relations[0]


def _all_edges(
    metadata: _Metadata, sizes: Mapping[Relation, Sequence[int]]
) -> dict[Relation, tuple[RowArray, RowArray]]:
    edges: dict[Relation, tuple[RowArray, RowArray]] = {}
    chunks: dict[Relation, list[tuple[Path, Array]]] = {}
    for relation, counts in sizes.items():
        what = f"edges of {':'.join(relation)!r}"
        name, options, paths = metadata.files(what, metadata.tables("edges", ":".join(relation)))
        if name == "numpy":
            _check_rows(metadata, what, paths, None, counts)
            chunks[relation] = [(path, mapped_npy(path)) for path in paths]
        elif name == "csv" and not sum(counts):  # whose empty files tell no columns
            edges[relation] = np.zeros(0, np.int64), np.zeros(0, np.int64)
        else:
            columns = _columns(metadata, what, name, options, paths, counts)
            if len(columns) < 2:
                raise GraphDataError(f"{paths[0]} must have two columns (got {len(columns)})")
            if len(columns) > 2:
                metadata.left_out.append(f"{what}: columns after the second of {paths[0].name}")
            edges[relation] = columns[0], columns[1]
    in_all = _directions(chunk for files in chunks.values() for _, chunk in files)
    for relation, files in chunks.items():
        what = f"edges of {':'.join(relation)!r}"
        directions = _directions(chunk for _, chunk in files) or in_all
        pairs = [_pairs(path, chunk, directions) for path, chunk in files]
        _check_rows(metadata, what, [path for path, _ in files], [len(ends) for ends in pairs], sizes[relation])
        edges[relation] = concatenated([ends[:, 0] for ends in pairs]), concatenated([ends[:, 1] for ends in pairs])
    return edges


def _directions(chunks: Iterable[Array]) -> set[int]:
    """Return the dimensions along which the edges lie, of all chunks whose shape tells."""
    shapes = {chunk.shape for chunk in chunks}
    return {shape.index(2) ^ 1 for shape in shapes if len(shape) == 2 and shape.count(2) == 1}


def _pairs(path: Path, chunk: Array, directions: set[int]) -> Array:
    """Return int[m, 2], the ends of a chunk's edges; ``directions`` decides if the shape does not."""
    if chunk.ndim != 2 or 2 not in chunk.shape or chunk.dtype.kind not in "iu":
        raise GraphDataError(f"{path} must hold two columns of integers (got {chunk.dtype}{list(chunk.shape)})")
    if chunk.shape == (2, 2):
        if len(directions) != 1:
            which = "in rows or in columns, which no other chunk tells"
            raise GraphDataError(f"{path} has two edges, {which}: put them into a chunk with others, or into csv")
        return chunk.T if 1 in directions else chunk
    return chunk if chunk.shape[1] == 2 else chunk.T


def _data(metadata: _Metadata, section: str, type_name: str, sizes: Sequence[int]) -> dict[str, Feature]:
    feats = {}
    for feature, entry in metadata.tables(section, type_name).items():
        what = f"{section} {feature!r} of {type_name!r}"
        name, options, paths = metadata.files(what, entry)
        if name == "numpy":
            chunks = [mapped_npy(path) for path in paths]
            _check_rows(metadata, what, paths, [chunk.shape[0] if chunk.ndim else 0 for chunk in chunks], sizes)
            values = concatenated(chunks)
        else:
            values = side_by_side(_columns(metadata, what, name, options, paths, sizes))
        feats[feature] = Feature(as_labels(values), "int64") if feature == "label" else Feature.of(values)
    return feats


def _columns(
    metadata: _Metadata, what: str, name: str, options: Mapping[str, Any], paths: Sequence[Path], sizes: Sequence[int]
) -> list[RowArray]:
    if name not in ("csv", "parquet"):
        raise GraphDataError(f"{metadata.path}: {what} has format {name!r} (known: numpy, parquet, csv)")
    _check_rows(metadata, what, paths, None, sizes)
    if name == "csv":  # a file without rows tells no columns
        filled = [number for number, path in enumerate(paths) if not path.exists() or path.stat().st_size] or [0]
        if len(paths) == len(sizes):
            sizes = [sizes[number] for number in filled]
        paths = [paths[number] for number in filled]
    tables = open_tables(paths, TextForm(str(options.get("delimiter", " ")), headless=True), name)
    read = read_columns(tables, (), {column: (column,) for column in tables.names}, {}, metadata.ranks)
    for column, values in read.values.items():
        if values.kind in NO_NUMBERS and any(read.lengths):
            raise GraphDataError(f"{paths[0]}: column {column} must be numbers (got {values.kind})")
    _check_rows(metadata, what, paths, read.lengths, sizes)
    return [column.rows for column in read.values.values()]


def _check_rows(
    metadata: _Metadata, what: str, paths: Sequence[Path], lengths: Sequence[int] | None, counts: Sequence[int]
) -> None:
    """Check that all files together have the rows of all chunks; if they are divided as the counts are, also each."""
    if not paths:
        raise GraphDataError(f"{metadata.path}: {what} has no files")
    for path, length, count in zip(paths, lengths or [], counts, strict=False):
        if len(paths) == len(counts) and length != count:
            raise GraphDataError(f"{path} must have {count} rows, as {_CHUNKED_METADATA} says (got {length})")
    if lengths is not None and sum(lengths) != sum(counts):
        raise GraphDataError(f"{metadata.path}: {what} must have {sum(counts)} rows (got {sum(lengths)} in its files)")


CHUNKED = Layout(
    "DGL's chunked graph",
    _CHUNKED_METADATA,
    lambda path: (path / _CHUNKED_METADATA).is_file(),
    _read_chunked,
    by_all_ranks=True,
)


_GRAPHBOLT_METADATA = "metadata.yaml"
_ENDS = ("source", "destination")
_SETS = {"train_set": "train_mask", "validation_set": "val_mask", "test_set": "test_mask"}
_SEEDS = ("seeds", "seed_nodes")
_TO_NPY = "np.save('x.npy', torch.load('x.pt', weights_only=True).numpy())"


@dataclass
class _Dataset:
    """The directory and its ``metadata.yaml``, checked while it is read."""

    folder: Path
    files: FolderFiles
    scratch: Path | None
    left_out: list[str] = field(default_factory=list)

    def entries(self, table: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
        entries = table.get(key) or []
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise self.error(f"{key} must be a list of mappings (got {entries!r:.80})")
        return entries

    def text(self, entry: Mapping[str, Any], key: str, what: str) -> str:
        value = entry.get(key)
        if not isinstance(value, str) or not value or "\0" in value:
            raise self.error(f"{what}: {key} must be a string (got {value!r:.80})")
        return value

    def file(self, entry: Mapping[str, Any], what: str) -> tuple[str, Path]:
        kind = entry.get("format")
        path = self.files.read(self.folder / self.text(entry, "path", what))
        if kind == "torch":
            raise GraphDataError(
                f"{path}: a tensor of torch: write it by {_TO_NPY}, and set format: numpy in {_GRAPHBOLT_METADATA}"
            )
        if kind not in ("csv", "numpy"):
            raise self.error(f"{what}: format must be numpy, or csv of edges (got {kind!r})")
        return str(kind), path

    def array(self, entry: Mapping[str, Any], what: str) -> tuple[Path, Array]:
        kind, path = self.file(entry, what)
        if kind != "numpy":
            raise self.error(f"{what}: format must be numpy (got {kind!r})")
        rows = mapped_npy(path)
        if not rows.ndim or rows.dtype.kind not in "biuf":
            raise GraphDataError(f"{path} must be rows of numbers (got {rows.dtype}{list(rows.shape)})")
        return path, rows

    def error(self, text: str) -> GraphDataError:
        return GraphDataError(f"{self.folder / _GRAPHBOLT_METADATA}: {text}")


def _read_graphbolt(path: Path, options: ReadOptions) -> GraphSource:
    data = _Dataset(path, FolderFiles(path), options.scratch)
    content = _read_yaml(data.files.read(path / _GRAPHBOLT_METADATA))
    if "graph_topology" in content:
        raise data.error("a dataset that GraphBolt has preprocessed: give the directory of the data it was made of")
    graph = content.get("graph")
    if not isinstance(graph, dict):
        raise data.error("graph must be a mapping with nodes and edges")
    counts = _counts(data, graph)
    edges = _edges(data, graph, counts)
    node_feats: dict[str, dict[str, Feature]] = {ntype: {} for ntype in counts}
    edge_feats: dict[str, dict[str, Feature]] = {relation_key(relation): {} for relation in edges}
    for entry in (*data.entries(content, "feature_data"), *data.entries(graph, "feature_data")):
        _add_feature(data, entry, {"node": node_feats, "edge": edge_feats})
    for number, task in enumerate(data.entries(content, "tasks")):
        if number:
            data.left_out.append(f"task {number + 1}, {task.get('name')}: only the first one is read")
        else:
            _add_task(data, task, counts, node_feats)
    of_relations = {relation: edge_feats[relation_key(relation)] for relation in edges}
    return graph_of(counts, edges, node_feats, of_relations, left_out=(*data.left_out, *data.files.left_out()))


def _read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds: plain values, lists and mappings, no objects.

    Raises:
        GraphDataError: it is missing or no such file (names it, and the line if there is one), or there is no PyYAML.
    """
    try:
        import yaml
    except ImportError:
        raise GraphDataError(f"{path}: YAML files need PyYAML: pip install 'mpigraph[yaml]'") from None
    try:
        content = yaml.safe_load(read_text(path))
    except (yaml.YAMLError, *UNREADABLE) as error:  # PyYAML lets errors of Python through
        reason = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
        raise GraphDataError(f"{path}: cannot be read as YAML: {reason}") from error
    if not isinstance(content, dict):
        raise GraphDataError(f"{path} must be a YAML mapping (got {type(content).__name__})")
    return content


def _counts(data: _Dataset, graph: Mapping[str, Any]) -> dict[str, int]:
    entries = data.entries(graph, "nodes")
    counts = {}
    for entry in entries:
        ntype = data.text(entry, "type", "nodes") if len(entries) > 1 else _type_of(data, entry, DEFAULT_NTYPE)
        count = entry.get("num")
        if type(count) is not int or count < 0 or ntype in counts:
            raise data.error(f"nodes: {ntype!r} must be there once, with num, its number of nodes (got {count!r})")
        counts[ntype] = count
    if not counts:
        raise data.error("nodes must name at least one type")
    return counts


def _type_of(data: _Dataset, entry: Mapping[str, Any], default: str) -> str:
    return default if entry.get("type") is None else data.text(entry, "type", f"an entry with {list(entry)}")


def _edges(
    data: _Dataset, graph: Mapping[str, Any], counts: Mapping[str, int]
) -> dict[Relation, tuple[RowArray, RowArray]]:
    ends_of: dict[Relation, tuple[RowArray, RowArray]] = {}
    for entry in data.entries(graph, "edges"):
        names = _type_of(data, entry, ":".join(DEFAULT_ETYPE)).split(":")
        if len(names) != 3 or names[0] not in counts or names[2] not in counts or tuple(names) in ends_of:
            raise data.error(f"edges: {names} must be there once, <src>:<rel>:<dst> of types in nodes ({list(counts)})")
        relation = names[0], names[1], names[2]
        kind, path = data.file(entry, f"edges of {relation}")
        if kind == "csv":
            ends_of[relation] = _ends_in_csv(path, data.scratch)
            continue
        ends = mapped_npy(path)
        if ends.ndim != 2 or len(ends) != 2 or ends.dtype.kind not in "iu":
            raise GraphDataError(f"{path} must hold two rows of integers, [2, m] (got {ends.dtype}{list(ends.shape)})")
        ends_of[relation] = ends[0], ends[1]
    if not ends_of:
        raise data.error("edges must name at least one relation")
    return ends_of


def _ends_in_csv(path: Path, scratch: Path | None) -> tuple[RowArray, RowArray]:
    tables = open_tables([path], TextForm(",", _ENDS, headless=True), "csv")
    columns = {end: (end,) for end in _ENDS}
    read = read_columns(tables, (), columns, dict.fromkeys(_ENDS, "int64"), ReadingRanks(scratch))
    if not sum(read.lengths):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    src, dst = (read.values[end].rows for end in _ENDS)
    return src, dst


def _add_feature(data: _Dataset, entry: Mapping[str, Any], tables: Mapping[str, dict[str, dict[str, Feature]]]) -> None:
    name = data.text(entry, "name", "feature_data")
    domain = str(entry.get("domain"))
    if domain not in tables:
        raise data.error(f"feature_data: domain of {name!r} must be node or edge (got {domain!r})")
    owner = _type_of(data, entry, DEFAULT_NTYPE if domain == "node" else relation_key(DEFAULT_ETYPE))
    table = tables[domain].get(owner)
    if table is None or name in table:
        raise data.error(f"feature_data: {domain} feature {name!r} of {owner!r} is there twice, or of an unknown type")
    table[name] = Feature.of(data.array(entry, f"feature {name!r}")[1])


def _add_task(
    data: _Dataset, task: Mapping[str, Any], counts: Mapping[str, int], feats: dict[str, dict[str, Feature]]
) -> None:
    labels: dict[str, list[tuple[Path, Array, Array]]] = {}
    sets = [(entry, key) for key in _SETS for entry in data.entries(task, key)]
    for entry, key in sets:
        ntype = _type_of(data, entry, DEFAULT_NTYPE)
        mask = _SETS[key]
        entries = {data.text(array, "name", key): array for array in data.entries(entry, "data")}
        seeds = next((entries.pop(name) for name in _SEEDS if name in entries), None)
        place, ids = data.array(seeds, f"seeds of {mask}") if seeds is not None else (None, np.zeros((0, 2)))
        if ntype not in counts or ids.ndim != 1:
            data.left_out.append(f"{mask}: its seeds are no nodes of a type")
            continue
        if mask in feats[ntype]:
            raise data.error(f"tasks: there are two sets for {mask} of {ntype!r}, or a feature of that name")
        feats[ntype][mask] = mask_of(str(place), ids, counts[ntype])
        if "labels" in entries:
            path, values = data.array(entries.pop("labels"), f"labels of {mask}")
            labels.setdefault(ntype, []).append((path, ids, values))
        data.left_out += [f"{mask}: {name} of the task" for name in entries]
    for ntype, pieces in labels.items():
        if "label" in feats[ntype]:
            data.left_out.append(f"labels of the task: {ntype!r} has a feature 'label'")
        else:
            feats[ntype]["label"] = _label(pieces, counts[ntype], data.scratch)


def _label(pieces: Sequence[tuple[Path, Array, Array]], count: int, scratch: Path | None) -> Feature:
    """Return a row for each node, those of nodes without a label -1 or NaN."""
    shape = pieces[0][2].shape[1:]
    is_float = any(values.dtype.kind == "f" for _, _, values in pieces)
    dtype = np.dtype(np.float32 if is_float else np.int64)
    size = count * int(np.prod(shape))
    label = Scratch(scratch, mapping=True).empty(size, dtype).reshape(count, *shape)
    label[:] = np.nan if is_float else -1
    for path, ids, values in pieces:
        if values.shape != (len(ids), *shape):
            expected = [len(ids), *shape]
            raise GraphDataError(f"{path} must be labels of {expected}, as its seeds are (got {list(values.shape)})")
        for first in range(0, len(ids), EDGES_PER_CHUNK):
            chunk = slice(first, first + EDGES_PER_CHUNK)
            label[ids[chunk]] = values[chunk]
    return Feature.of(label)


GRAPHBOLT = Layout(
    "GraphBolt", _GRAPHBOLT_METADATA, lambda path: (path / _GRAPHBOLT_METADATA).is_file(), _read_graphbolt
)
