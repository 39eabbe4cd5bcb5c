"""Partitioned graphs as inputs, to be repartitioned without the original data. Nothing is read before its time.

Nodes are numbered by the ids that they have in the partition; their original ids go along, and so do those of edges.
All rows are compared with checksums, each of a few MiB: read in order, or large ranges.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import Array
from mpigraph.errors import InvalidArgumentError
from mpigraph.partition.row_arrays import FileRows, even_blocks
from mpigraph.partition.source import Feature, GraphSource, Parts
from mpigraph.storage.contents import InEdges, PartFiles, StoredRows, overlaps, read_rows
from mpigraph.storage.format import index_dtype, node_orig_ids_name, segment_rows, storage_dtype
from mpigraph.storage.part_config import FeatureInfo, PartConfig


def _rows_of(
    files: PartFiles, stored: StoredRows, dtype: npt.DTypeLike = np.int64, shape: tuple[int, ...] = ()
) -> FileRows:
    """Return the rows of a dataset, in one file of each part."""

    def read(begin: int, end: int) -> Array:
        rows = np.empty((end - begin, *shape), dtype)
        read_rows(files, stored, begin, rows)
        return rows

    count = int(stored.offsets[-1])
    segment = segment_rows(count, np.dtype(dtype).itemsize * math.prod(shape))
    return FileRows(read, (count, *shape), dtype, even_blocks(count, segment))


def _numbers_of(files: PartFiles, relation: int, field: str, dtype: npt.DTypeLike = np.int64) -> FileRows:
    """Return "indices", "orig_ids" or "destinations" of the edges of a relation, the last as global ids."""
    config = files.config
    book = config.book
    offsets = book.edge_offsets[relation]
    in_edges: dict[int, InEdges] = {}  # of the part that was read last

    def of_part(part: int, first: int, last: int) -> Array:
        if field != "destinations":
            return files.read_edges(relation, part, field, first, last)
        if relation in config.place_of_shared:
            base = book.node_range(part, config.schema.ends(relation)[1])[0]
            return files.read_edges(relation, part, field, first, last) + np.int64(base)
        if part not in in_edges:
            in_edges.clear()
            in_edges[part] = InEdges(files, relation, part)
        return in_edges[part].destinations(first, last)

    def read(begin: int, end: int) -> Array:
        pieces = [of_part(*piece) for piece in overlaps(offsets, begin, end)]
        return np.concatenate([np.empty(0, dtype), *pieces], dtype=dtype, casting="same_kind")

    return FileRows(read, (book.num_edges(relation),), dtype, offsets)


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

    def features(is_node: bool, owner: int, infos: Mapping[str, FeatureInfo]) -> dict[str, Feature]:
        of_owner = {}
        for name, info in infos.items():
            stored = StoredRows.of_feature(config, is_node, owner, name)
            rows = _rows_of(files, stored, storage_dtype(info.stored), info.shape)
            of_owner[name] = Feature(rows, info.dtype, info.narrow, info.categories)
        return of_owner

    ntypes = list(enumerate(schema.ntypes))
    relations = range(len(schema.relations))
    numbers = np.arange(book.num_parts, dtype=np.int32)
    return GraphSource(
        schema,
        tuple(book.num_nodes(t) for t, _ in ntypes),
        tuple(
            (
                _numbers_of(files, r, "indices", index_dtype(book.num_nodes(schema.ends(r)[0]))),
                _numbers_of(files, r, "destinations"),
            )
            for r in relations
        ),
        {ntype: features(True, t, config.node_features[ntype]) for t, ntype in ntypes},
        {key: features(False, r, config.edge_features[key]) for r, key in enumerate(schema.relation_keys)},
        node_ids=tuple(
            _rows_of(files, StoredRows.alone("part_graph", node_orig_ids_name(ntype), book.node_offsets[t]))
            for t, ntype in ntypes
        ),
        edge_ids=tuple(_numbers_of(files, r, "orig_ids") for r in relations),
        parts=Parts(np.concatenate([np.repeat(numbers, np.diff(of)) for of in book.node_offsets]), book.num_parts),
    )


def check_apart(path: str | os.PathLike[str], out: str | os.PathLike[str]) -> None:
    """Raise InvalidArgumentError if a graph that is repartitioned would be written over the parts that are read."""
    source = Path(path)
    if source.suffix == ".json" and source.is_file() and source.parent.resolve() == Path(out).resolve():
        raise InvalidArgumentError(f"{out}: the parts of {path} lie there, which are read: write to another folder")
