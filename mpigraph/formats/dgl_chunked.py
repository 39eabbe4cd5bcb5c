"""Read DGL's chunked graph format: a folder with ``metadata.json``, which names the files of every array.

The format is that of DGL's ``chunk_graph.py`` and of its distributed partitioning, and of GraphStorm; in later versions
the metadata have counts by type instead of by chunk. Names of files are relative to the folder, or absolute, and may
lead out of it, as DGL's do: look at the metadata of strangers before you read them. Formats of edges and of node and
edge data:

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import Array
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError, check_text
from mpigraph.formats.declared import Entry, ends_of, label_of, relation_of
from mpigraph.formats.input_files import FolderFiles, graph_of, mapped_npy
from mpigraph.formats.layout import Layout, ReadOptions
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.formats.table_columns import read_numbers
from mpigraph.formats.text_files import TextForm
from mpigraph.metadata.schema import Relation
from mpigraph.partition.row_arrays import RowArray, concatenated, side_by_side
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.storage.files import read_text

_METADATA = "metadata.json"

_COUNTS = [f"num_{kind}s_per_{part}" for kind in ("node", "edge") for part in ("chunk", "type")]
_SECTIONS = ("graph_name", "node_type", "edge_type", "edges", "node_data", "edge_data", *_COUNTS)


@collective("ranks")
def _read(path: Path, options: ReadOptions) -> GraphSource:
    files = FolderFiles(path)
    file = files.read(path / _METADATA)
    try:
        metadata = Entry.of(file, json.loads(read_text(file)))
    except ValueError as error:
        raise GraphDataError(f"{file}: not JSON: {error}") from error
    counts = _counts(metadata, "node")
    sizes = {relation_of(name, ":", counts, file): chunks for name, chunks in _counts(metadata, "edge").items()}
    keys = {":".join(relation): relation for relation in sizes}
    sections = {name: metadata.mapping(name) for name in ("edges", "node_data", "edge_data")}
    for section, entry in sections.items():
        known = counts if section == "node_data" else keys
        for name in entry.values:
            if name not in known:  # it would be left out
                raise metadata.error(f"{section} of {name!r}, which is not one of the types {list(known)}")
    left_out = [f"{_METADATA}: {name!r}" for name in metadata.values if name not in _SECTIONS]
    chunks_of = partial(_Chunks, file, files, options.ranks)
    edges = {
        relation: chunks_of(f"edges of {key!r}", sections["edges"].mapping(key), sizes[relation])
        for key, relation in keys.items()
    }

    def features(section: str, owner: str, counts: Sequence[int]) -> dict[str, Feature]:
        entries = sections[section].mapping(owner)
        titles = {name: f"{section} {name!r} of {owner!r}" for name in entries.values}
        return {name: chunks_of(title, entries.mapping(name), counts).feature(name) for name, title in titles.items()}

    source = graph_of(
        {ntype: sum(chunks) for ntype, chunks in counts.items()},
        _all_ends(edges, left_out),
        {ntype: features("node_data", ntype, chunks) for ntype, chunks in counts.items()},
        {relation: features("edge_data", key, sizes[relation]) for key, relation in keys.items()},
    )
    return replace(source, left_out=(*left_out, *files.left_out()))


def _counts(metadata: Entry, kind: str) -> dict[str, list[int]]:
    """Return the numbers of nodes or edges of each type, chunk by chunk."""
    names: Any = metadata.values.get(f"{kind}_type")
    chunks: Any = metadata.values.get(f"num_{kind}s_per_chunk")
    totals = metadata.values.get(f"num_{kind}s_per_type")  # of later versions
    if chunks is None and isinstance(totals, list):
        chunks, totals = [[total] for total in totals], None
    fits = isinstance(names, list) and isinstance(chunks, list) and len(names) == len(chunks)
    if not fits or not all(
        isinstance(name, str) and isinstance(sizes, list) and all(type(size) is int and size >= 0 for size in sizes)
        for name, sizes in zip(names, chunks, strict=True)
    ):
        raise metadata.error(f"num_{kind}s_per_chunk must have a list of counts for each {kind}_type")
    if totals not in (None, list(map(sum, chunks))):
        raise metadata.error(f"num_{kind}s_per_type and num_{kind}s_per_chunk contradict each other")
    if len(set(names)) < len(names):
        raise metadata.error(f"{kind}_type has a name twice ({names})")
    return dict(zip(names, chunks, strict=True))


class _Chunks:
    """The files of one array, the edges of a relation or data; ``counts`` are the rows of each chunk."""

    def __init__(
        self, file: Path, files: FolderFiles, ranks: ReadingRanks, what: str, entry: Entry, counts: Sequence[int]
    ) -> None:
        form, names = entry.values.get("format"), entry.values.get("data")
        self.title = f"{file}: {what}"
        if not isinstance(form, dict) or "name" not in form or not isinstance(names, list):
            raise GraphDataError(f"{self.title} must have a format with a name, and data, a list of files")
        self.format = str(form["name"])
        if self.format not in ("numpy", "parquet", "csv"):
            raise GraphDataError(f"{self.title} has format {self.format!r} (known: numpy, parquet, csv)")
        if not names:
            raise GraphDataError(f"{self.title} has no files")
        self.paths = [files.read(file.parent / check_text("name of a file", name)) for name in names]
        self.counts = counts
        self._delimiter = str(form.get("delimiter", " "))
        self._ranks = ranks

    def arrays(self) -> list[Array]:
        """Return the arrays of ``numpy``."""
        return [mapped_npy(path) for path in self.paths]

    def columns(self) -> list[RowArray]:
        """Return the columns of ``csv`` or ``parquet``."""
        paths = self.paths
        if self.format == "csv":  # a file without rows tells no columns
            paths = [path for path in paths if not path.exists() or path.stat().st_size] or paths[:1]
        columns, lengths = read_numbers(paths, self._ranks, TextForm(self._delimiter, headless=True), self.format)
        rows = dict(zip(paths, lengths, strict=True))
        self.check_rows([rows.get(path, 0) for path in self.paths])
        return columns

    def feature(self, name: str) -> Feature:
        """Return data as a feature."""
        values: RowArray
        if self.format == "numpy":
            chunks = self.arrays()
            self.check_rows([chunk.shape[0] if chunk.ndim else 0 for chunk in chunks])
            values = concatenated(chunks)
        else:
            values = side_by_side(self.columns())
        return label_of(values) if name == "label" else Feature.of(values)

    def check_rows(self, lengths: Sequence[int]) -> None:
        """Check that all files have the rows of all chunks; if they are divided as the counts are, also each."""
        if len(lengths) == len(self.counts):
            for path, length, count in zip(self.paths, lengths, self.counts, strict=True):
                if length != count:
                    raise GraphDataError(f"{path} must have {count} rows, as {_METADATA} says (got {length})")
        if sum(lengths) != sum(self.counts):
            raise GraphDataError(f"{self.title} must have {sum(self.counts)} rows (got {sum(lengths)} in its files)")


def _all_ends(chunks_of: Mapping[Relation, _Chunks], left_out: list[str]) -> dict[Relation, tuple[RowArray, RowArray]]:
    edges: dict[Relation, tuple[RowArray, RowArray]] = {}
    arrays = {relation: chunks.arrays() for relation, chunks in chunks_of.items() if chunks.format == "numpy"}
    in_all = _stand_in_columns(array for of_relation in arrays.values() for array in of_relation)
    for relation, chunks in chunks_of.items():
        if relation in arrays:
            told = _stand_in_columns(arrays[relation]) or in_all
            pairs = [_pairs(path, array, told) for path, array in zip(chunks.paths, arrays[relation], strict=True)]
            chunks.check_rows([len(src) for src, _ in pairs])
            edges[relation] = concatenated([src for src, _ in pairs]), concatenated([dst for _, dst in pairs])
        elif chunks.format == "csv" and not sum(chunks.counts):  # whose empty files tell no columns
            edges[relation] = np.zeros(0, np.int64), np.zeros(0, np.int64)
        else:
            columns = chunks.columns()
            if len(columns) < 2:
                raise GraphDataError(f"{chunks.paths[0]} must have two columns (got {len(columns)})")
            if len(columns) > 2:
                what = f"edges of {':'.join(relation)!r}"
                left_out.append(f"{what}: columns after the second of {chunks.paths[0].name}")
            edges[relation] = columns[0], columns[1]
    return edges


def _stand_in_columns(arrays: Iterable[Array]) -> set[bool]:
    """Return whether the edges stand in two columns, or in two rows, of all arrays whose shape tells."""
    shapes = {array.shape for array in arrays}
    return {shape[1] == 2 for shape in shapes if len(shape) == 2 and shape.count(2) == 1}


def _pairs(path: Path, array: Array, told: set[bool]) -> tuple[Array, Array]:
    """Return the ends of the edges in a file; ``told`` decides if the shape does not."""
    if array.shape != (2, 2):
        return ends_of(path, array, in_columns=array.shape[1:] == (2,))
    if len(told) != 1:
        which = "in rows or in columns, which no other chunk tells"
        raise GraphDataError(f"{path} has two edges, {which}: put them into a chunk with others, or into csv")
    return ends_of(path, array, in_columns=True in told)


CHUNKED = Layout("DGL's chunked graph", _METADATA, lambda path: (path / _METADATA).is_file(), _read)
