"""Writing the three files of a part from the nodes and edges that have arrived."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.kernels.csr import count_keys
from mpigraph.metadata.schema import relation_key
from mpigraph.partition.relabel import Arrivals, EdgeTable
from mpigraph.partition.row_arrays import RowArray, release
from mpigraph.partition.shuffle import ORIGINAL_IDS, Shuffle, arrays_of
from mpigraph.partition.source import Feature, joined_rows
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


class PartWriter:
    """Writer of the parts of one graph, of a content, to its folder, from the nodes and edges that have come to this
    rank.
    """

    def __init__(self, arrivals: Arrivals, graph_name: str, content: str, out: Path) -> None:
        self._source = arrivals.source
        self._arrivals = arrivals
        self._node_arrays, self._edge_arrays = arrays_of(arrivals.source)
        self._graph_name = graph_name
        self._content = content
        self._out = out

    def write(self, part: int) -> None:
        """Write a part; once. Raises StorageError: the disk is full, or another process is writing there."""
        with ExitStack() as stack:
            graph = stack.enter_context(self._open(part, "part_graph"))
            feats = stack.enter_context(self._open(part, "edge_feats"))
            node_feats = stack.enter_context(self._open(part, "node_feats"))
            for ntype_id, ntype in enumerate(self._source.schema.ntypes):
                shuffle = self._arrivals.nodes[ntype_id]
                offsets = self._arrivals.numbering.offsets[ntype_id]
                count = int(offsets[part + 1] - offsets[part])
                rows = {
                    name: _begin(node_feats, node_feature_name(ntype, name), feature, count)
                    for name, feature in self._source.node_feats.get(ntype, {}).items()
                }
                rows[ORIGINAL_IDS] = graph.create(node_orig_ids_name(ntype), (count,), "int64")
                for records in shuffle.take(part):
                    _write_rows(rows, self._node_arrays[ntype_id], records, shuffle)
            for table in self._arrivals.tables:
                if len(table.relations) == 1:
                    self._write_relation(graph, feats, table, part)
                else:
                    self._write_shared(graph, feats, table, part)

    def _write_relation(self, graph: ShardWriter, feats: ShardWriter, table: EdgeTable, part: int) -> None:
        """Write the in-edges of a part's nodes."""
        (relation,) = table.relations
        key = relation_key(self._source.schema.relations[relation])
        src_type, dst_type = self._source.schema.ends(relation)
        first, last = self._arrivals.numbering.offsets[dst_type][part : part + 2].tolist()
        width = index_dtype(self._source.num_nodes[src_type])
        count = int(self._arrivals.counts[part, relation])
        indices = graph.create(relation_dataset_name(key, "indices"), (count,), width.name)
        features = self._source.edge_feats.get(key, {})
        rows = {name: _begin(feats, edge_feature_name(key, name), f, count) for name, f in features.items()}
        rows[ORIGINAL_IDS] = graph.create(relation_dataset_name(key, "orig_ids"), (count,), "int64")
        indptr = np.zeros(last - first + 1, np.int64)
        for records in table.shuffle.take(part):
            count_keys(records["key"].astype(np.int64), 1 - first, indptr)
            indices.write(records["source"])
            _write_rows(rows, self._edge_arrays[relation], records, table.shuffle)
        graph.add(relation_dataset_name(key, "indptr"), np.cumsum(indptr))
        degrees = [records["degree"] for records in self._arrivals.degrees[relation].take(part)]
        graph.add(relation_dataset_name(key, "out_degrees"), np.concatenate([np.empty(0, np.int64), *degrees]))

    def _write_shared(self, graph: ShardWriter, feats: ShardWriter, table: EdgeTable, part: int) -> None:
        """Write the in-edges of a part's nodes in tables that relations share."""
        source = self._source
        width = index_dtype(max(source.num_nodes))
        counts_of = self._arrivals.counts[part]
        count = int(counts_of[table.relations].sum())
        dtypes = {"destinations": width.name, "indices": width.name, "orig_ids": "int64"}
        tables = {name: graph.create(shared_dataset_name(name), (count,), dtype) for name, dtype in dtypes.items()}
        apart, together = self._shared_rows(feats, counts_of)
        for records in table.shuffle.take(part):
            _, place = table.parts_and_places(records["key"])
            orig_ids = records["number"] - table.first_edges[place]
            for array, firsts, writer in together:
                _gather(array, (orig_ids + firsts[place])[firsts[place] >= 0], writer)
            bounds = np.searchsorted(place, np.arange(len(table.relations) + 1))  # keys ascend, and places with them
            for of_place, array, writer in apart:
                _gather(array, orig_ids[bounds[of_place] : bounds[of_place + 1]], writer)
            first_keys = table.keys[part * len(table.relations) + place]
            tables["destinations"].write((records["key"] - first_keys).astype(width))
            tables["indices"].write(records["source"].astype(width))
            if source.edge_ids is not None:
                orig_ids = joined_rows([source.edge_ids[r] for r in table.relations])[records["number"]]
            tables["orig_ids"].write(orig_ids)

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
    rows: Mapping[str, DatasetWriter], arrays: Mapping[str, RowArray], records: Array, shuffle: Shuffle
) -> None:
    """Append rows of all features and original ids to their datasets, by name, those that travelled and others.

    ``arrays`` are the source's rows, without original ids if these are the numbers of records.
    """
    for name, writer in rows.items():
        if name in shuffle.carried:
            writer.write(records[shuffle.carried[name]])
        elif name in arrays:
            _gather(arrays[name], records["number"], writer)
        else:
            writer.write(records["number"].astype(np.int64))


def _gather(array: RowArray, ids: Array, rows: DatasetWriter) -> None:
    step = max(1, _CHUNK_BYTES // max(array.dtype.itemsize * int(np.prod(array.shape[1:])), 1))
    for first in range(0, len(ids), step):
        rows.write(np.asarray(array[ids[first : first + step]]))
        release(array)
