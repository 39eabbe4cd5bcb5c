"""Read DGL's chunked graph format: a folder with ``metadata.json``, which names the files of every array.

The format is that of DGL's ``chunk_graph.py`` and of its distributed partitioning. Relative names of files are relative
to the folder. Formats of edges and of node and edge data:

===========  ==========================================================================================================
``numpy``    mapped; edges are integers [m, 2] (or [2, m]), data have one row for each node or edge
===========  ==========================================================================================================

Types and relations get ids in alphabetical order, as from the other readers. Data keep their names and dtypes, except
"label", which becomes int64 (NaN: -1).
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mpigraph.errors import GraphDataError
from mpigraph.metadata.schema import Relation, Schema, relation_key
from mpigraph.partition.chunks import concatenated, mapped_npy
from mpigraph.partition.source import Feature, GraphSource, RowArray, as_labels
from mpigraph.storage.files import read_text

__all__ = ["METADATA", "read_chunked"]

METADATA = "metadata.json"


def read_chunked(folder: Path) -> GraphSource:
    """Read a chunked graph.

    Args:
        folder: where ``metadata.json`` lies.

    Raises:
        GraphDataError: the metadata contradict themselves or the files; names the file.
    """
    metadata = _Metadata(folder)
    counts = metadata.counts("node")
    sizes = {_as_relation(name): chunks for name, chunks in metadata.counts("edge").items()}
    ntypes = tuple(sorted(counts))
    relations = tuple(sorted(sizes))
    edges = tuple(_edges(metadata, relation, sizes[relation]) for relation in relations)
    return GraphSource(
        Schema(ntypes, relations),
        tuple(sum(counts[ntype]) for ntype in ntypes),
        edges,
        {ntype: _data(metadata, "node_data", ntype, counts[ntype]) for ntype in ntypes},
        {key: _data(metadata, "edge_data", key, sizes[r]) for r in relations for key in [relation_key(r)]},
    )


class _Metadata:
    """What ``metadata.json`` says, checked while it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / METADATA
        try:
            self.content: Any = json.loads(read_text(self.path))
        except ValueError as error:
            raise GraphDataError(f"{self.path}: not JSON: {error}") from error
        if not isinstance(self.content, dict):
            raise GraphDataError(f"{self.path} must be a JSON object")

    def counts(self, kind: str) -> dict[str, list[int]]:
        """Return for each type ("node" or "edge") the rows of each chunk."""
        names = self.content.get(f"{kind}_type")
        chunks = self.content.get(f"num_{kind}s_per_chunk")
        fits = isinstance(names, list) and isinstance(chunks, list) and len(names) == len(chunks)
        if not fits or not all(
            isinstance(name, str) and isinstance(sizes, list) and all(type(size) is int and size >= 0 for size in sizes)
            for name, sizes in zip(names, chunks, strict=True)
        ):
            raise GraphDataError(f"{self.path}: num_{kind}s_per_chunk must have a list of counts for each {kind}_type")
        return dict(zip(names, chunks, strict=True))

    def tables(self, section: str, name: str) -> Mapping[str, Any]:
        """Return a table of a section by name; an empty one if it is not there."""
        table = self.content.get(section) or {}
        table = table.get(name, {}) if isinstance(table, dict) else None
        if not isinstance(table, dict):
            raise GraphDataError(f"{self.path}: {section} must have a JSON object for {name!r}")
        return table

    def files(self, what: str, entry: object) -> tuple[str, Mapping[str, Any], list[Path]]:
        """Return format, its options and the files of one array."""
        try:
            options = dict(entry["format"])  # type: ignore[index]
            names = entry["data"]  # type: ignore[index]
            return str(options.pop("name")), options, [self.path.parent / name for name in names]
        except (TypeError, KeyError, ValueError) as error:
            raise GraphDataError(f"{self.path}: {what} must have a format with a name, and data, a list") from error


def _as_relation(name: str) -> Relation:
    names = name.split(":")
    if len(names) != 3:
        raise GraphDataError(f"{METADATA}: an edge type is <src>:<rel>:<dst> (got {name!r})")
    return names[0], names[1], names[2]


def _edges(metadata: _Metadata, relation: Relation, sizes: Sequence[int]) -> tuple[RowArray, RowArray]:
    what = f"edges of {relation_key(relation)!r}"
    name, _, paths = metadata.files(what, metadata.tables("edges", relation_key(relation)))
    if name != "numpy":
        raise GraphDataError(f"{metadata.path}: {what} have format {name!r} (known: numpy)")
    src = []
    dst = []
    for path, size in _chunks(metadata, what, paths, sizes):
        ends = mapped_npy(path)
        if ends.ndim == 2 and ends.shape[1] != 2 and len(ends) == 2:
            ends = ends.T
        if ends.ndim != 2 or ends.shape[1] != 2 or ends.dtype.kind not in "iu":
            raise GraphDataError(f"{path} must hold two columns of integers (got {ends.dtype}{list(ends.shape)})")
        _check_rows(path, len(ends), size)
        src.append(ends[:, 0])
        dst.append(ends[:, 1])
    return concatenated(src), concatenated(dst)


def _data(metadata: _Metadata, section: str, type_name: str, sizes: Sequence[int]) -> dict[str, Feature]:
    """Return the node or edge features of one type."""
    feats = {}
    for feature, entry in metadata.tables(section, type_name).items():
        what = f"{section} {feature!r} of {type_name!r}"
        name, _, paths = metadata.files(what, entry)
        if name != "numpy":
            raise GraphDataError(f"{metadata.path}: {what} has format {name!r} (known: numpy)")
        chunks = []
        for path, size in _chunks(metadata, what, paths, sizes):
            chunks.append(mapped_npy(path))
            _check_rows(path, len(chunks[-1]) if chunks[-1].ndim else 0, size)
        values = concatenated(chunks)
        feats[feature] = Feature(as_labels(values), "int64") if feature == "label" else Feature.of(values)
    return feats


def _chunks(
    metadata: _Metadata, what: str, paths: Sequence[Path], sizes: Sequence[int]
) -> Sequence[tuple[Path, int | None]]:
    """Return files with the rows that each must have; None where they are cut in another way than the counts."""
    if not paths:
        raise GraphDataError(f"{metadata.path}: {what} has no files")
    return list(zip(paths, sizes if len(paths) == len(sizes) else [None] * len(paths), strict=True))


def _check_rows(path: Path, found: int, wanted: int | None) -> None:
    if wanted is not None and found != wanted:
        raise GraphDataError(f"{path} must have {wanted} rows, as {METADATA} says (got {found})")
