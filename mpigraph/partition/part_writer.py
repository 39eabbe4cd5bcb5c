"""Writing the three files of a part from the nodes and edges that have arrived."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, repeat
from pathlib import Path
from typing import TypeAlias

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.kernels.csr import count_keys
from mpigraph.partition.row_arrays import concatenated, release
from mpigraph.partition.shuffle import ORIGINAL_IDS, Arrivals, EdgeTable, Shuffle
from mpigraph.partition.source import Feature
from mpigraph.storage import format as stored
from mpigraph.storage.part_config import PartConfig
from mpigraph.storage.shard import ShardWriter

_CHUNK_BYTES = 32 << 20
_NUMBERS = Feature(np.empty(0, np.int64), "int64")  # of nodes and edges, where they have no other ids
Column: TypeAlias = Callable[[Array, I64, I64], None]
"""A function that appends the rows of records to a dataset. It gets the records, their numbers (int64[n]), and the
bounds between which those of each place in the table lie."""


def _column(
    file: ShardWriter, dataset: str, count: int, shuffle: Shuffle, name: str, features: Sequence[Feature],
    places: Sequence[int] = (0,),
) -> Column:  # fmt: skip
    """Begin the dataset of a feature of nodes, or of relations at some places in their table; or of original ids.

    Without features these are the numbers of the records.
    """
    form = features[0] if features else _NUMBERS
    writer = file.create(dataset, (count, *form.values.shape[1:]), form.info.stored)
    if name in shuffle.carried:
        field = shuffle.carried[name]
        return lambda records, numbers, bounds: writer.write(records[field])
    arrays = [feature.values for feature in features]
    rows = concatenated(arrays) if arrays else None
    runs = [*zip(places, accumulate(map(len, arrays), initial=0) if arrays else repeat(0), strict=False)]
    step = max(1, _CHUNK_BYTES // max(form.values.dtype.itemsize * int(np.prod(form.values.shape[1:])), 1))

    def write(records: Array, numbers: I64, bounds: I64) -> None:
        ids = np.concatenate([numbers[bounds[place] : bounds[place + 1]] + first for place, first in runs])
        for first in range(0, len(ids), step):
            chunk = ids[first : first + step]
            writer.write(chunk if rows is None else np.asarray(rows[chunk]))
            release(rows)

    return write


@dataclass(frozen=True, eq=False)
class PartWriter:
    """Writer of the parts of one graph, of a content, to its folder, from the nodes and edges that have come to this
    rank.
    """

    arrivals: Arrivals
    graph_name: str
    content: str
    out: Path

    def write(self, part: int) -> None:
        """Write a part; once. Raises StorageError: the disk is full, or another process is writing there."""
        with ExitStack() as stack:
            graph, node_feats, edge_feats = (
                stack.enter_context(ShardWriter(self.out / name, self.graph_name, part, self.content))
                for name in PartConfig.files_of(part).values()
            )
            for ntype_id in range(len(self.arrivals.source.schema.ntypes)):
                self._write_nodes(graph, node_feats, ntype_id, part)
            for table in self.arrivals.tables:
                self._write_edges(graph, edge_feats, table, part)

    def _write_nodes(self, graph: ShardWriter, feats: ShardWriter, ntype_id: int, part: int) -> None:
        """Write the nodes of a type."""
        source = self.arrivals.source
        ntype = source.schema.ntypes[ntype_id]
        shuffle = self.arrivals.nodes[ntype_id]
        count = int(np.diff(self.arrivals.numbering.offsets[ntype_id])[part])
        of = partial(_column, count=count, shuffle=shuffle)
        columns = [
            of(feats, stored.node_feature_name(ntype, name), name=name, features=[feature])
            for name, feature in source.node_feats.get(ntype, {}).items()
        ]
        ids = [] if source.node_ids is None else [Feature(source.node_ids[ntype_id], "int64")]
        columns.append(of(graph, stored.node_orig_ids_name(ntype), name=ORIGINAL_IDS, features=ids))
        for records in shuffle.take(part):
            for write in columns:
                write(records, records["number"].astype(np.int64), np.array([0, len(records)]))

    def _write_edges(self, graph: ShardWriter, feats: ShardWriter, table: EdgeTable, part: int) -> None:
        """Write the in-edges of a part's nodes: a table of one relation's own, or one that relations share."""
        source = self.arrivals.source
        relations = table.relations
        is_own = len(relations) == 1
        key = source.schema.relation_keys[relations[0]]
        name_of = partial(stored.relation_dataset_name, key) if is_own else stored.shared_dataset_name
        width = stored.index_dtype(source.num_nodes[table.ends[0, 0]] if is_own else max(source.num_nodes))
        counts = self.arrivals.counts[part]
        count = int(counts[relations].sum())
        ends = {
            name: graph.create(name_of(name), (count,), width.name) for name in ["destinations", "indices"][is_own:]
        }
        columns = self._edge_features(feats, table, counts)
        ids = [] if source.edge_ids is None else [Feature(source.edge_ids[r], "int64") for r in relations]
        places = range(len(relations))
        columns.append(_column(graph, name_of("orig_ids"), count, table.shuffle, ORIGINAL_IDS, ids, places))
        first_keys = table.keys[part * len(relations) : (part + 1) * len(relations) + 1]
        indptr = np.zeros(first_keys[1] - first_keys[0] + 1, np.int64)
        for records in table.shuffle.take(part):
            keys = records["key"].astype(np.int64)
            bounds = np.searchsorted(keys, first_keys)  # keys ascend, and relations with them
            of_relations = np.diff(bounds)
            if is_own:
                count_keys(keys, 1 - int(first_keys[0]), indptr)
            else:
                ends["destinations"].write((keys - np.repeat(first_keys[:-1], of_relations)).astype(width))
            ends["indices"].write(records["source"].astype(width, copy=False))
            numbers = records["number"] - np.repeat(table.first_edges[:-1], of_relations)
            for write in columns:
                write(records, numbers, bounds)
        if is_own:
            graph.add(name_of("indptr"), np.cumsum(indptr))
            degrees = [records["degree"] for records in table.degrees.take(part)]
            graph.add(name_of("out_degrees"), np.concatenate([np.empty(0, np.int64), *degrees]))

    def _edge_features(self, feats: ShardWriter, table: EdgeTable, counts: I64) -> list[Column]:
        """Begin the features of relations: those that relations share in one dataset, and others."""
        source = self.arrivals.source
        places = {relation: place for place, relation in enumerate(table.relations)}
        shared = source.shared_features if len(places) > 1 else []
        groups = [(stored.shared_feature_name(name), name, relations) for name, relations in shared]
        done = {(relation, name) for _, name, relations in groups for relation in relations}
        keys = source.schema.relation_keys
        for relation in places if source.edge_feats else ():
            names = (name for name in source.edge_feats.get(keys[relation], {}) if (relation, name) not in done)
            groups += [(stored.edge_feature_name(keys[relation], name), name, (relation,)) for name in names]
        columns = []
        for dataset, name, relations in groups:
            features = [source.edge_feats[keys[relation]][name] for relation in relations]
            count = int(counts[list(relations)].sum())
            own = [places[relation] for relation in relations]
            columns.append(_column(feats, dataset, count, table.shuffle, name, features, own))
        return columns
