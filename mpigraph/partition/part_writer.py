"""Writing the three files of a part from the nodes and edges that have arrived."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.metadata.schema import relation_key
from mpigraph.partition.relabel import Arrivals
from mpigraph.partition.row_arrays import RowArray, release
from mpigraph.partition.source import Feature, joined_rows
from mpigraph.partition.spill import ORIGINAL_IDS, arrays_of
from mpigraph.storage.format import (
    edge_feature_name,
    index_dtype,
    node_feature_name,
    node_orig_ids_name,
    relation_dataset_name,
    shared_dataset_name,
    shared_feature_name,
)
from mpigraph.storage.part_config import PartConfig
from mpigraph.storage.shard import DatasetWriter, ShardWriter

_CHUNK_BYTES = 32 << 20


class WrittenPart(NamedTuple):
    """The record of a written part, in JSON's types.

    num_edges: of each relation.  num_cut: edges from other parts' nodes.
    """

    num_edges: list[int]
    num_cut: int


class PartWriter:
    """Writer of the parts of one graph, of a content, to its folder, from the nodes and edges that have come to this
    rank.
    """

    def __init__(self, arrivals: Arrivals, graph_name: str, content: str, out: Path) -> None:
        self._source = arrivals.source
        self._numbering = arrivals.numbering
        self._arrivals = arrivals
        self._node_arrays, self._edge_arrays = arrays_of(arrivals.source)
        self._graph_name = graph_name
        self._content = content
        self._out = out

    def write(self, part: int) -> WrittenPart:
        """Write a part; once. Raises StorageError: the disk is full, or another process is writing there."""
        schema = self._source.schema
        num_cut = 0
        counts = self._arrivals.edge_counts(part)
        with ExitStack() as stack:
            graph = stack.enter_context(self._open(part, "part_graph"))
            feats = stack.enter_context(self._open(part, "edge_feats"))
            node_feats = stack.enter_context(self._open(part, "node_feats"))
            for ntype_id in range(len(schema.ntypes)):
                self._write_nodes(graph, node_feats, ntype_id, part)
            if self._source.shared:
                num_cut += self._write_shared(graph, feats, part, counts)
            for relation_id in self._source.own:
                num_cut += self._write_relation(graph, feats, relation_id, part, int(counts[relation_id]))
        return WrittenPart(counts.tolist(), num_cut)

    def _write_nodes(self, graph: ShardWriter, feats: ShardWriter, ntype_id: int, part: int) -> None:
        ntype = self._source.schema.ntypes[ntype_id]
        ids = self._arrivals.orig_ids(ntype_id, part)
        rows = {
            name: _begin(feats, node_feature_name(ntype, name), feature, len(ids))
            for name, feature in self._source.node_feats.get(ntype, {}).items()
        }
        rows[ORIGINAL_IDS] = graph.create(node_orig_ids_name(ntype), (len(ids),), "int64")
        _write_rows(rows, self._node_arrays[ntype_id], ids, self._arrivals.node_rows(ntype_id, part))

    def _write_relation(self, graph: ShardWriter, feats: ShardWriter, relation_id: int, part: int, count: int) -> int:
        """Write the ``count`` in-edges of a part's nodes; return how many come from other parts."""
        schema = self._source.schema
        key = relation_key(schema.relations[relation_id])
        src_type, dst_type = schema.ends(relation_id)
        first_src, last_src = self._numbering.offsets[src_type][part : part + 2]
        first_dst, last_dst = self._numbering.offsets[dst_type][part : part + 2]
        width = index_dtype(self._source.num_nodes[src_type]).name
        indices = graph.create(relation_dataset_name(key, "indices"), (count,), width)
        features = self._source.edge_feats.get(key, {})
        rows = {name: _begin(feats, edge_feature_name(key, name), f, count) for name, f in features.items()}
        rows[ORIGINAL_IDS] = graph.create(relation_dataset_name(key, "orig_ids"), (count,), "int64")
        in_degrees = [np.zeros(1, np.int64)]
        num_cut = 0
        for bucket in self._arrivals.buckets(relation_id, part):
            num_cut += int(np.count_nonzero((bucket.indices < first_src) | (bucket.indices >= last_src)))
            in_degrees.append(bucket.in_degrees)
            indices.write(bucket.indices)
            _write_rows(rows, self._edge_arrays[relation_id], bucket.orig_ids, bucket.rows)
        indptr = np.cumsum(np.concatenate(in_degrees))
        assert len(indptr) == last_dst - first_dst + 1
        graph.add(relation_dataset_name(key, "indptr"), indptr)
        graph.add(relation_dataset_name(key, "out_degrees"), self._arrivals.out_degrees(relation_id, part))
        return num_cut

    def _write_shared(self, graph: ShardWriter, feats: ShardWriter, part: int, counts_of: I64) -> int:
        """Write the in-edges of a part's nodes in shared tables; return how many come from other parts."""
        source = self._source
        width = index_dtype(max(source.num_nodes))
        count = int(counts_of[list(source.shared)].sum())
        dtypes = {"destinations": width.name, "indices": width.name, "orig_ids": "int64"}
        tables = {name: graph.create(shared_dataset_name(name), (count,), dtype) for name, dtype in dtypes.items()}
        apart, together = self._shared_rows(feats, counts_of)
        sources = source.schema.all_ends[list(source.shared), 0]
        first, last = (np.array([of[end] for of in self._numbering.offsets])[sources] for end in (part, part + 1))
        sizes = np.array([source.edge_counts[r] for r in source.shared])
        edges = np.cumsum(sizes) - sizes
        num_cut = 0
        for piece in self._arrivals.shared.pieces(part):
            counts = np.diff(piece.bounds)
            inside = (piece.indices >= np.repeat(first, counts)) & (piece.indices < np.repeat(last, counts))
            num_cut += int(np.count_nonzero(~inside))
            for array, firsts, writer in together:
                rows = piece.orig_ids + np.repeat(firsts, counts)
                _gather(array, rows[np.repeat(firsts >= 0, counts)], writer)
            for place, array, writer in apart:
                _gather(array, piece.orig_ids[slice(*piece.bounds[place : place + 2].tolist())], writer)
            tables["destinations"].write(piece.destinations.astype(width))
            tables["indices"].write(piece.indices.astype(width))
            orig_ids = piece.orig_ids
            if source.edge_ids is not None:
                orig_ids = joined_rows([source.edge_ids[r] for r in source.shared])[orig_ids + np.repeat(edges, counts)]
            tables["orig_ids"].write(orig_ids)
        return num_cut

    def _shared_rows(
        self, feats: ShardWriter, counts: I64
    ) -> tuple[list[tuple[int, RowArray, DatasetWriter]], list[tuple[RowArray, I64, DatasetWriter]]]:
        """Begin the features of relations that share tables.

        Returns:
            Those of one relation, with its place; and those of several, with the first row of each relation, -1 for one
            without the feature: int64[relations that share].
        """
        source = self._source
        keys = [relation_key(source.schema.relations[r]) for r in source.shared]
        places = {relation: place for place, relation in enumerate(source.shared)}
        apart: list[tuple[int, RowArray, DatasetWriter]] = []
        together: list[tuple[RowArray, I64, DatasetWriter]] = []
        done: set[tuple[int, str]] = set()
        for name, relations in source.shared_features:
            own = [places[relation] for relation in relations]
            arrays = [source.edge_feats[keys[place]][name].values for place in own]
            firsts = np.full(len(keys), -1, np.int64)
            firsts[own] = np.cumsum([0, *map(len, arrays[:-1])])
            feature = source.edge_feats[keys[own[0]]][name]
            writer = _begin(feats, shared_feature_name(name), feature, int(counts[list(relations)].sum()))
            together.append((joined_rows(arrays), firsts, writer))
            done.update((place, name) for place in own)
        for place, key in enumerate(keys if source.edge_feats else ()):
            for name, feature in source.edge_feats.get(key, {}).items():
                if (place, name) not in done:
                    count = int(counts[source.shared[place]])
                    writer = _begin(feats, edge_feature_name(key, name), feature, count)
                    apart.append((place, feature.values, writer))
        return apart, together

    def _open(self, part: int, kind: str) -> ShardWriter:
        path = self._out / PartConfig.files_of(part)[kind]
        return ShardWriter(path, self._graph_name, part, self._content)


def _begin(writer: ShardWriter, name: str, feature: Feature, count: int) -> DatasetWriter:
    return writer.create(name, (count, *feature.values.shape[1:]), feature.stored)


def _write_rows(
    rows: Mapping[str, DatasetWriter], arrays: Mapping[str, RowArray], ids: Array, carried: Iterator[dict[str, Array]]
) -> None:
    """Append rows of all features and original ids to their datasets, by name, at positions ``ids`` (int[n]).

    ``arrays`` are the source's rows, without original ids if these are the positions; ``carried`` are rows that
    traveled.
    """
    traveled = set[str]()
    for piece in carried:
        traveled.update(piece)
        for name, values in piece.items():
            rows[name].write(values)
    for name, array in arrays.items():
        if name not in traveled:
            _gather(array, ids, rows[name])
    if ORIGINAL_IDS not in arrays:
        rows[ORIGINAL_IDS].write(ids.astype(np.int64))


def _gather(array: RowArray, ids: Array, rows: DatasetWriter) -> None:
    step = max(1, _CHUNK_BYTES // max(array.dtype.itemsize * int(np.prod(array.shape[1:])), 1))
    for first in range(0, len(ids), step):
        rows.write(np.asarray(array[ids[first : first + step]]))
        release(array)
