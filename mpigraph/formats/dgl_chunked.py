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

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.collective import collective
from mpigraph.errors import GraphDataError
from mpigraph.formats.input_files import FolderFiles, graph_of, mapped_npy, named, read_json, reading
from mpigraph.formats.layout import Layout, ReadOptions, ends_of, label_of, relation_of
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.formats.table_files import read_numbers
from mpigraph.formats.text_files import TextForm
from mpigraph.partition.row_arrays import RowArray, concatenated, side_by_side
from mpigraph.partition.source import Feature, GraphSource

_METADATA = "metadata.json"

_COUNTS = [f"num_{kind}s_per_{part}" for kind in ("node", "edge") for part in ("chunk", "type")]
_SECTIONS = ("graph_name", "node_type", "edge_type", "edges", "node_data", "edge_data", *_COUNTS)


@collective("ranks")
def _read(path: Path, options: ReadOptions) -> GraphSource:
    files = FolderFiles(path)
    file = files.read(path / _METADATA)
    metadata = read_json(file)
    with reading(file, path):
        return _graph(path, metadata, files, options.ranks)


@collective("ranks")
def _graph(path: Path, metadata: Mapping[str, Any], files: FolderFiles, ranks: ReadingRanks) -> GraphSource:
    counts = _counts(metadata, "node")
    keys = _counts(metadata, "edge")
    relations = {key: relation_of(key, ":", counts, path / _METADATA) for key in keys}
    left_out = [f"{_METADATA}: {name!r}" for name in metadata if name not in _SECTIONS]

    def paths_of(entry: Any) -> list[Path]:
        return [files.read(path / name) for name in entry["data"]]

    edges = {}
    for key, count in keys.items():
        entry = metadata["edges"][key]
        edges[relations[key]] = src, _, *more = _ends(entry["format"], paths_of(entry), ranks)
        if len(src) != count:
            raise GraphDataError(f"edges of {key} must have {count} rows (got {len(src)} in its files)")
        if more:
            left_out.append(f"edges of {key}: columns after the second")

    def features(section: str) -> dict[str, dict[str, Feature]]:
        tables = (metadata.get(section) or {}).items()
        return {
            owner: {name: _feature(name, entry["format"], paths_of(entry), ranks) for name, entry in table.items()}
            for owner, table in tables
        }

    ends = {relation: (src, dst) for relation, (src, dst, *_) in edges.items()}
    node_feats, edge_feats = features("node_data"), features("edge_data")
    of_relations = {relations[key]: table for key, table in edge_feats.items()}
    return graph_of(counts, ends, node_feats, of_relations, left_out=(*left_out, *files.left_out()))


def _counts(metadata: Mapping[str, Any], kind: str) -> dict[str, int]:
    """Return the number of nodes or edges of each type."""
    chunks = metadata.get(f"num_{kind}s_per_chunk") or metadata.get(f"num_{kind}s_per_type") or ()
    with reading(f"{kind}_type and num_{kind}s_per_chunk"):
        sizes = [int(np.sum(of_type, dtype=np.int64)) for of_type in chunks]
        return named(metadata[f"{kind}_type"], sizes)


def _feature(name: str, form: Any, paths: Sequence[Path], ranks: ReadingRanks) -> Feature:
    if form["name"] == "numpy":
        values = concatenated([*map(mapped_npy, paths)])
    else:
        values = side_by_side(_columns(form, paths, ranks))
    return label_of(values) if name == "label" else Feature.of(values)


def _ends(form: Any, paths: Sequence[Path], ranks: ReadingRanks) -> list[RowArray]:
    """Return sources and destinations, and further columns."""
    if form["name"] != "numpy":
        return _columns(form, paths, ranks, ("src", "dst"))
    arrays = [*map(mapped_npy, paths)]
    told = {array.shape[1:] == (2,) for array in arrays if array.shape != (2, 2)}
    if not told:
        which = "in rows or in columns, which no other chunk tells"
        raise GraphDataError(f"{paths[0]} has two edges, {which}: put them into a chunk with others, or into csv")
    pairs = [ends_of(path, array, True in told) for path, array in zip(paths, arrays, strict=True)]
    return [concatenated(ends) for ends in zip(*pairs, strict=True)]


def _columns(form: Any, paths: Sequence[Path], ranks: ReadingRanks, first: tuple[str, ...] = ()) -> list[RowArray]:
    if form["name"] == "csv":  # a file without rows tells no columns
        paths = [path for path in paths if path.stat().st_size] or paths[:1]
    elif form["name"] != "parquet":
        raise GraphDataError(f"format {form['name']!r} is not known (known: numpy, parquet, csv)")
    return read_numbers(paths, ranks, TextForm(form.get("delimiter", " "), headless=True, first=first))


CHUNKED = Layout("DGL's chunked graph", _METADATA, lambda path: (path / _METADATA).is_file(), _read)
