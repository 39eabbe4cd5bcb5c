"""A graph that one rank of each node reads, and whose arrays all ranks of the node map."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mpigraph.arrays import Array
from mpigraph.formats.node_ranks import Grow, NodeRanks
from mpigraph.metadata.schema import Schema
from mpigraph.partition.chunks import Concatenated, GrowingFile
from mpigraph.partition.row_arrays import RowArray, mapping_of, numpy_under, release
from mpigraph.partition.source import Feature, Features, GraphSource, Parts

__all__ = ["read_once", "temporary_bytes"]

_CHUNK_BYTES = 32 << 20


def read_once(ranks: NodeRanks, doing: str, read: Callable[[], GraphSource]) -> GraphSource:
    """Return what ``read`` does, which one rank of each node calls. Collective on the ranks.

    What it has mapped from named files is mapped by the others, too. Everything else is copied to temporary files,
    unless there is only one rank.

    Args:
        ranks: the ranks.
        doing: what, for the message of an error.
        read: reads the graph.

    Raises:
        MPIGraphError: what ``read`` raised; on every rank.
    """
    if ranks.are_one:
        return read()

    def make(grow: Grow) -> tuple[Any, Sequence[GrowingFile]]:
        writer = _Writer(grow)
        return writer.described(read()), writer.files

    note, arrays = ranks.once(doing, make)
    return _source(note, arrays)


def temporary_bytes(source: GraphSource) -> int:
    """Return the size of the temporary files that a graph's arrays lie in."""
    held = {}
    for array in _arrays_of(source):
        for part in numpy_under(array):
            mapping = mapping_of(part)
            if mapping is not None and getattr(part, "filename", None) is None:
                held[id(mapping)] = len(mapping)
    return sum(held.values())


def _arrays_of(source: GraphSource) -> Iterator[RowArray]:
    for ends in source.edges:
        yield from ends
    for table in (*source.node_feats.values(), *source.edge_feats.values()):
        for feature in table.values():
            yield feature.values
    yield from source.node_ids or ()
    yield from source.edge_ids or ()


class _Writer:
    """Describes a graph so that JSON and temporary files hold it.

    Args:
        grow: makes temporary files.

    Attributes:
        files: those made.
    """

    def __init__(self, grow: Grow) -> None:
        self._grow = grow
        self.files: list[GrowingFile] = []

    def described(self, source: GraphSource) -> dict[str, Any]:
        """Return everything in a graph, with arrays as :meth:`_place` describes them."""
        parts = source.parts
        return {
            "ntypes": source.schema.ntypes,
            "relations": source.schema.relations,
            "num_nodes": source.num_nodes,
            "edges": [[self._place(end) for end in ends] for ends in source.edges],
            "node_feats": self._features(source.node_feats),
            "edge_feats": self._features(source.edge_feats),
            "path": source.path,
            "node_ids": None if source.node_ids is None else [self._place(ids) for ids in source.node_ids],
            "edge_ids": None if source.edge_ids is None else [self._place(ids) for ids in source.edge_ids],
            "parts": None if parts is None else [self._place(parts.of_nodes), parts.number],
            "left_out": source.left_out,
            "has_reverse": source.has_reverse,
        }

    def _features(self, features: Features) -> dict[str, Any]:
        return {
            owner: {name: [self._place(f.values), f.dtype, f.narrow] for name, f in table.items()}
            for owner, table in features.items()
        }

    def _place(self, array: RowArray) -> Any:
        """Return a list of chunks, a place in a named file, or the number of a temporary file."""
        if isinstance(array, Concatenated):
            return [self._place(chunk) for chunk in array.sources]
        place = _place_in_file(array)
        if place is not None:
            return place
        file = self._grow(array.dtype, tuple(array.shape[1:]))
        row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:]))
        step = max(1, _CHUNK_BYTES // max(row_bytes, 1))
        for first in range(0, len(array), step):
            file.append(np.asarray(array[first : first + step]))
        release(array)
        self.files.append(file)
        return len(self.files) - 1


def _place_in_file(array: RowArray) -> dict[str, Any] | None:
    """Return where in which file an array is mapped from; None if it is not, or not as it lies there."""
    name = getattr(array, "filename", None)
    if not isinstance(array, np.memmap) or name is None or not array.flags.c_contiguous or not array.size:
        return None
    whole: Any = array
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    if not isinstance(whole, np.memmap):
        return None
    begin = whole.offset + array.ctypes.data - whole.ctypes.data
    return {"file": os.fspath(name), "offset": int(begin), "dtype": array.dtype.str, "shape": array.shape}


def _source(note: Mapping[str, Any], files: Sequence[Array]) -> GraphSource:
    """Return the graph that was described."""

    def array(place: Any) -> Any:
        if isinstance(place, list):
            return Concatenated([array(chunk) for chunk in place])
        if isinstance(place, dict):
            dtype, shape = np.dtype(place["dtype"]), tuple(place["shape"])
            return np.memmap(place["file"], dtype, "r", place["offset"], shape)
        return files[place]

    def ids(places: Any) -> Any:
        return None if places is None else tuple(map(array, places))

    def features(tables: Any) -> Features:
        return {
            owner: {name: Feature(array(place), dtype, narrow) for name, (place, dtype, narrow) in table.items()}
            for owner, table in tables.items()
        }

    return GraphSource(
        Schema(tuple(note["ntypes"]), tuple(map(tuple, note["relations"]))),  # type: ignore[arg-type]
        tuple(note["num_nodes"]),
        tuple((array(src), array(dst)) for src, dst in note["edges"]),
        features(note["node_feats"]),
        features(note["edge_feats"]),
        note["path"],
        ids(note["node_ids"]),
        ids(note["edge_ids"]),
        None if note["parts"] is None else Parts(array(note["parts"][0]), note["parts"][1]),
        tuple(note["left_out"]),
        note["has_reverse"],
    )
