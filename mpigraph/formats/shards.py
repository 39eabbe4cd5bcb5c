"""Partitioned graphs as inputs, to be repartitioned without the original data. Nothing is read before its time.

Nodes are numbered by the ids that they have in the partition; their original ids go along, and so do those of edges.
All rows are compared with checksums, each of a few MiB: read in order, or large ranges.
"""

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, Array
from mpigraph.errors import InvalidArgumentError
from mpigraph.metadata.book import RangeBook, check_ids
from mpigraph.partition.row_arrays import DerivedRows, RowArray
from mpigraph.partition.source import Feature, GraphSource, Parts
from mpigraph.storage.contents import InEdges, PartFiles, StoredRows, overlaps, read_rows
from mpigraph.storage.format import index_dtype, node_orig_ids_name, relation_dataset_name, storage_dtype
from mpigraph.storage.part_config import FeatureInfo, PartConfig


class ShardRows(DerivedRows):
    """Rows of a dataset, in one file of each part."""

    def __init__(self, files: PartFiles, rows: StoredRows, dtype: npt.DTypeLike, shape: tuple[int, ...] = ()) -> None:
        self._files = files
        self._rows = rows
        super().__init__((), (int(rows.offsets[-1]), *shape), dtype)

    def __getitem__(self, rows: slice | npt.NDArray[np.integer]) -> Array:
        """Read a slice, or rows by their numbers (int[n], in any order).

        Raises:
            ShardFormatError: a file is missing or damaged.
            OutOfRangeError: a row does not exist.
        """
        if not isinstance(rows, slice):
            return self._chosen(rows)
        begin, end, step = rows.indices(len(self))
        if step != 1:
            return self._chosen(np.arange(begin, end, step))
        result = np.empty((max(end - begin, 0), *self.shape[1:]), self.dtype)
        read_rows(self._files, self._rows, begin, result)
        return result

    def _chosen(self, rows: npt.NDArray[np.integer]) -> Array:
        """Read rows in the order in which they lie in the files, those under one checksum at once."""
        which = self._rows.which
        name = self._rows.name
        offsets = self._rows.offsets
        begins = self._rows.begins
        check_ids(rows, len(self), f"row of {name!r}")
        result = np.empty((len(rows), *self.shape[1:]), self.dtype)
        order = np.argsort(rows, kind="stable")
        rising = rows[order]
        at = 0
        while at < len(rows):
            part = int(np.searchsorted(offsets, rising[at], side="right")) - 1
            shard = self._files.open(part, which)
            base = int(offsets[part] - begins[part])
            end = int(offsets[part + 1])
            segment = shard.segment(name)
            end = min(end, base + ((int(rising[at]) - base) // segment + 1) * segment)
            stop = at + int(np.searchsorted(rising[at:], end))
            low = int(rising[at])
            high = int(rising[stop - 1]) + 1
            read = shard.read(name, low - base, high - base)
            result[order[at:stop]] = read[rising[at:stop] - low]
            at = stop
        return result


class SharedRows(DerivedRows):
    """A number of each edge of a relation that shares tables with others, int64.

    ``field`` is "indices", "orig_ids" or "destinations"; the last are global ids here.
    """

    def __init__(self, files: PartFiles, relation: int, field: str) -> None:
        self._files = files
        self._relation = relation
        self._field = field
        super().__init__((), (files.config.book.num_edges(relation),), np.int64)

    def __getitem__(self, rows: slice | npt.NDArray[np.integer]) -> I64:
        """Read a slice, or rows by their numbers (int[n]); such relations are small.

        Raises ShardFormatError: a file is missing or damaged.
        """
        book = self._files.config.book
        begin = 0
        end = len(self)
        if isinstance(rows, slice):
            begin, end, _ = rows.indices(len(self))
        values = [np.empty(0, np.int64)]
        for part, first, last in overlaps(book.edge_offsets[self._relation], begin, end):
            values.append(self._files.read_edges(self._relation, part, self._field, first, last).astype(np.int64))
            if self._field == "destinations":
                values[-1] += book.node_range(part, book.schema.ends(self._relation)[1])[0]
        joined: I64 = np.concatenate(values)
        return joined[:: rows.step] if isinstance(rows, slice) else joined[rows]


class Destinations(DerivedRows):
    """The destinations of all edges of a relation, int64, for reading by slices."""

    def __init__(self, files: PartFiles, relation: int) -> None:
        self._files = files
        self._relation = relation
        super().__init__((), (files.config.book.num_edges(relation),), np.int64)
        self._known: tuple[int, InEdges] | None = None  # of the part that was read last

    def __getitem__(self, rows: slice) -> I64:
        """Read the destinations of a range of edges.

        Raises ShardFormatError: a file is missing or damaged, or contradicts itself.
        """
        begin, end, step = rows.indices(len(self))
        result = np.empty(max(end - begin, 0), np.int64)
        at = 0
        for part, first, last in overlaps(self._files.config.book.edge_offsets[self._relation], begin, end):
            if self._known is None or self._known[0] != part:
                self._known = (part, InEdges(self._files, self._relation, part))
            result[at : at + last - first] = self._known[1].destinations(first, last)
            at += last - first
        return result[::step]


def read_partition(path: str | os.PathLike[str]) -> GraphSource:
    """Return a graph that was partitioned, by its configuration ``<name>.json``, as an input; its files stay open.

    Raises:
        PartitionError: the configuration is missing or damaged, or is not one.
        ShardFormatError: a shard is missing or damaged.
    """
    config = PartConfig.read(path)
    book = config.book
    schema = config.schema
    files = PartFiles(config)
    for part in range(config.num_parts):
        files.check(part)
    keys = [schema.relation_key(relation) for relation in range(len(schema.relations))]

    def of_relation(relation: int, field: str, dtype: npt.DTypeLike) -> RowArray:
        if relation in config.place_of_shared:
            return SharedRows(files, relation, field)
        name = relation_dataset_name(keys[relation], field)
        return ShardRows(files, StoredRows.alone("part_graph", name, book.edge_offsets[relation]), dtype)

    edges = []
    node_feats = {}
    edge_feats = {}
    for t, ntype in enumerate(schema.ntypes):
        node_feats[ntype] = {
            name: _feature(files, StoredRows.of_feature(config, True, t, name), info)
            for name, info in config.node_features[ntype].items()
        }
    for r, key in enumerate(keys):
        sources = of_relation(r, "indices", index_dtype(book.num_nodes(schema.ends(r)[0])))
        is_shared = r in config.place_of_shared
        edges.append((sources, SharedRows(files, r, "destinations") if is_shared else Destinations(files, r)))
        edge_feats[key] = {
            name: _feature(files, StoredRows.of_feature(config, False, r, name), info)
            for name, info in config.edge_features[key].items()
        }
    return GraphSource(
        schema,
        tuple(book.num_nodes(t) for t in range(len(schema.ntypes))),
        tuple(edges),
        node_feats,
        edge_feats,
        node_ids=tuple(
            ShardRows(files, StoredRows.alone("part_graph", node_orig_ids_name(ntype), book.node_offsets[t]), np.int64)
            for t, ntype in enumerate(schema.ntypes)
        ),
        edge_ids=tuple(of_relation(r, "orig_ids", np.int64) for r in range(len(keys))),
        parts=parts_of(book),
    )


def parts_of(book: RangeBook) -> Parts:
    """Return the parts of all nodes, numbered as in the parts."""
    numbers = np.arange(book.num_parts, dtype=np.int32)
    rows = [np.repeat(numbers, np.diff(offsets)) for offsets in book.node_offsets]
    return Parts(np.concatenate(rows), book.num_parts)


def _feature(files: PartFiles, stored: StoredRows, info: FeatureInfo) -> Feature:
    rows = ShardRows(files, stored, storage_dtype(info.stored), info.shape)
    return Feature(rows, info.dtype, info.narrow, info.categories)


def check_apart(path: str | os.PathLike[str], out: str | os.PathLike[str]) -> None:
    """Raise InvalidArgumentError if a graph that is repartitioned would be written over the parts that are read."""
    source = Path(path)
    if source.suffix == ".json" and source.is_file() and source.parent.resolve() == Path(out).resolve():
        raise InvalidArgumentError(f"{out}: the parts of {path} lie there, which are read: write to another folder")
