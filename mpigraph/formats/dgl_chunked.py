"""Read DGL's chunked graph format: a folder with ``metadata.json``, which names the files of every array.

The format is that of DGL's ``chunk_graph.py`` and of its distributed partitioning, and of GraphStorm; in later versions
the metadata have counts by type instead of by chunk. Names of files are relative to the
folder, or absolute, and may lead out of it, as DGL's do: look at the metadata of strangers before you read them.
Formats of edges and of node and edge data:

===========  ==========================================================================================================
``numpy``    mapped; edges are integers [m, 2] or [2, m], data have one row for each node or edge
``parquet``  read by groups of rows (``table_files.py``); edges are the first two columns, data one column or several
``csv``      parsed once into a temporary file; no header; else as parquet
===========  ==========================================================================================================

Two edges in a numpy file, [2, 2], stand as those of the other files of their relation, or else of all relations. Where
no file tells, they are refused.

Types and relations get ids in alphabetical order, as from the other readers. Data keep their names and dtypes, except
"label", which becomes int64 (NaN: -1).
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import Array
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError, check_text
from mpigraph.formats.input_files import FolderFiles, graph_of
from mpigraph.formats.layout import Layout, ReadOptions
from mpigraph.formats.mapped_files import mapped_npy
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.formats.table_columns import NO_NUMBERS, read_columns
from mpigraph.formats.table_files import TextForm, open_tables
from mpigraph.metadata.schema import Relation, relations_in
from mpigraph.partition.row_arrays import RowArray, as_labels, concatenated, side_by_side
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.storage.files import read_text

METADATA = "metadata.json"

_COUNTS = [f"num_{kind}s_per_{part}" for kind in ("node", "edge") for part in ("chunk", "type")]
_SECTIONS = ("graph_name", "node_type", "edge_type", "edges", "node_data", "edge_data", *_COUNTS)


@collective("ranks")
def _read(path: Path, options: ReadOptions) -> GraphSource:
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
        self.path = self.folder_files.read(folder / METADATA)
        try:
            self.content: Any = json.loads(read_text(self.path))
        except ValueError as error:
            raise GraphDataError(f"{self.path}: not JSON: {error}") from error
        if not isinstance(self.content, dict):
            raise GraphDataError(f"{self.path} must be a JSON object")
        self.left_out = [f"{METADATA}: {name!r}" for name in self.content if name not in _SECTIONS]

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
        raise GraphDataError(f"{METADATA}: an edge type is {form} (got {name!r})")
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
            raise GraphDataError(f"{path} must have {count} rows, as {METADATA} says (got {length})")
    if lengths is not None and sum(lengths) != sum(counts):
        raise GraphDataError(f"{metadata.path}: {what} must have {sum(counts)} rows (got {sum(lengths)} in its files)")


CHUNKED = Layout("DGL's chunked graph", METADATA, lambda path: (path / METADATA).is_file(), _read, by_all_ranks=True)
