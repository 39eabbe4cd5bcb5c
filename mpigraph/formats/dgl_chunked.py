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

Two edges in a numpy file, [2, 2], stand as those of the other files of their relation. Where none tells, they are
refused.

Types and relations get ids in alphabetical order, as from the other readers. Data keep their names and dtypes, except
"label", which becomes int64 (NaN: -1).
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

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
    keys = _counts(metadata, "edge")
    relations = {key: relation_of(key, ":", counts, file) for key in keys}
    for section, known in (("node_data", counts), ("edge_data", keys)):
        for name in metadata.mapping(section).values:
            if name not in known:  # it would be left out
                raise metadata.error(f"{section} of {name!r}, which is not one of the types {list(known)}")
    left_out = [f"{_METADATA}: {name!r}" for name in metadata.values if name not in _SECTIONS]

    def chunks_of(section: Entry, name: str) -> _Chunks:
        return _Chunks.of(section.mapping(name), path, files, options.ranks)

    edges: dict[Relation, tuple[RowArray, RowArray]] = {}
    for key, count in keys.items():
        chunks = chunks_of(metadata.mapping("edges"), key)
        edges[relations[key]] = src, _ = chunks.ends(count, left_out)
        if len(src) != count:
            raise GraphDataError(f"{chunks.place} must have {count} rows (got {len(src)} in its files)")

    def features(section: str, owner: str) -> dict[str, Feature]:
        entries = metadata.mapping(section).mapping(owner)
        return {name: chunks_of(entries, name).feature(name) for name in entries.values}

    node_feats = {ntype: features("node_data", ntype) for ntype in counts}
    edge_feats = {relation: features("edge_data", key) for key, relation in relations.items()}
    return graph_of(counts, edges, node_feats, edge_feats, left_out=(*left_out, *files.left_out()))


def _counts(metadata: Entry, kind: str) -> dict[str, int]:
    """Return the number of nodes or edges of each type."""
    names = metadata.values.get(f"{kind}_type")
    chunks = metadata.values.get(f"num_{kind}s_per_chunk") or metadata.values.get(f"num_{kind}s_per_type")
    try:
        sizes = [int(np.sum(of_type, dtype=np.int64)) for of_type in chunks or ()]
        return dict(zip(names or (), sizes, strict=True))
    except (TypeError, ValueError, OverflowError) as error:
        text = f"num_{kind}s_per_chunk must have counts for each {kind}_type: {error}"
        raise metadata.error(text) from error


class _Chunks(NamedTuple):
    """The files of one array: edges of a relation, or data.

    Attributes:
        place: the entry of the metadata.
        format: "numpy", "parquet" or "csv".
        paths: of the files.
        delimiter: between the columns of csv.
        ranks: that read it.
    """

    place: str
    format: str
    paths: list[Path]
    delimiter: str
    ranks: ReadingRanks

    @classmethod
    def of(cls, entry: Entry, folder: Path, files: FolderFiles, ranks: ReadingRanks) -> "_Chunks":
        form, names = entry.mapping("format"), entry.values.get("data")
        name = form.text("name")
        if name not in ("numpy", "parquet", "csv"):
            raise form.error(f"{name!r} is not known (known: numpy, parquet, csv)")
        if not isinstance(names, list) or not names:
            raise entry.error("data must be a list of files")
        paths = [files.read(folder / check_text("name of a file", name)) for name in names]
        return cls(entry.place, name, paths, form.text("delimiter", " "), ranks)

    def columns(self) -> list[RowArray]:
        """Return the columns of ``csv`` or ``parquet``."""
        paths = self.paths
        if self.format == "csv":  # a file without rows tells no columns
            paths = [path for path in paths if not path.exists() or path.stat().st_size] or paths[:1]
        return read_numbers(paths, self.ranks, TextForm(self.delimiter, headless=True), self.format)[0]

    def feature(self, name: str) -> Feature:
        """Return data as a feature."""
        numpy = self.format == "numpy"
        values = concatenated([*map(mapped_npy, self.paths)]) if numpy else side_by_side(self.columns())
        return label_of(values) if name == "label" else Feature.of(values)

    def ends(self, count: int, left_out: list[str]) -> tuple[RowArray, RowArray]:
        """Return the ends of ``count`` edges."""
        if self.format == "numpy":
            arrays = [*map(mapped_npy, self.paths)]
            in_columns = _stand_in_columns(self.paths[0], arrays)
            pairs = [ends_of(path, array, in_columns) for path, array in zip(self.paths, arrays, strict=True)]
            return concatenated([src for src, _ in pairs]), concatenated([dst for _, dst in pairs])
        if self.format == "csv" and not count:  # whose empty files tell no columns
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        src, dst, *more = self.columns()
        if more:
            left_out.append(f"{self.place}: columns after the second of {self.paths[0].name}")
        return src, dst


def _stand_in_columns(path: Path, arrays: Sequence[Array]) -> bool:
    """Return whether the edges of a relation stand in two columns, not in two rows."""
    told = {array.shape[1:] == (2,) for array in arrays if array.shape != (2, 2)}
    if not told:
        which = "in rows or in columns, which no other chunk tells"
        raise GraphDataError(f"{path} has two edges, {which}: put them into a chunk with others, or into csv")
    return True in told


CHUNKED = Layout("DGL's chunked graph", _METADATA, lambda path: (path / _METADATA).is_file(), _read)
