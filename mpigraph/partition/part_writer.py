"""Giving nodes new ids, sending every node and edge to the rank that writes its part, and writing a part's three files.

New ids of nodes are ordered by part, then by original id. Each rank knows the new ids of the nodes that it owns, and
asks the owners for others. Ranks own ranges of *global* original ids, which number the nodes of all types, type after
type. New ids are numbered within a type.

Edges are sorted by (new destination, new source, original edge). Relations that share tables travel as one
(:class:`EdgeTable`), by a key that is ordered by part, relation and destination, so that thousands of relations cost as
much as one with as many edges.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import accumulate, repeat
from typing import TypeAlias

import numpy as np

from mpigraph.arrays import I32, I64, Array, Mask
from mpigraph.collective import collective
from mpigraph.kernels.csr import count_keys
from mpigraph.partition.assigning import Task
from mpigraph.partition.exchange import Progress, Route, owners_of
from mpigraph.partition.loops import number_by_key
from mpigraph.partition.row_arrays import RowArray, concatenated, release
from mpigraph.partition.shuffle import ORIGINAL_IDS, Arrays, Shuffle, Writers, arrays_of
from mpigraph.partition.source import EDGES_PER_CHUNK, GraphSource, edge_chunks
from mpigraph.storage import format as stored
from mpigraph.storage.contents import datasets
from mpigraph.storage.part_config import FILES, PartConfig
from mpigraph.storage.shard import DatasetWriter, ShardWriter

_CHUNK_BYTES = 32 << 20
Column: TypeAlias = Callable[[Array, I64, I64], None]
"""A function that appends the rows of records to a dataset. It gets the records, their numbers (int64[n]), and the
bounds between which those of each place in the table lie."""
Datasets: TypeAlias = Mapping[tuple[str, str], DatasetWriter]
"""The datasets of a part, by file and name."""


def _column(
    writer: DatasetWriter, shuffle: Shuffle, name: str, arrays: Sequence[RowArray], places: Sequence[int] = (0,)
) -> Column:
    """Return the column of a feature of nodes, or of relations at some places in their table; or of original ids.

    Without arrays these are the numbers of the records.
    """
    if name in shuffle.carried:
        field = shuffle.carried[name]
        return lambda records, numbers, bounds: writer.write(records[field])
    rows = concatenated(arrays) if arrays else None
    runs = [*zip(places, accumulate(map(len, arrays), initial=0) if arrays else repeat(0), strict=False)]
    size = 8 if rows is None else rows.dtype.itemsize * int(np.prod(rows.shape[1:]))
    step = max(1, _CHUNK_BYTES // max(size, 1))

    def write(records: Array, numbers: I64, bounds: I64) -> None:
        ids = np.concatenate([numbers[bounds[place] : bounds[place + 1]] + first for place, first in runs])
        for first in range(0, len(ids), step):
            chunk = ids[first : first + step]
            writer.write(chunk if rows is None else np.asarray(rows[chunk]))
            release(rows)

    return write


class Numbering:
    """New ids of all nodes; ``parts`` are int32[own nodes].

    Attributes:
        offsets: for each type int64[parts + 1], the new ids of each part.
        first_nodes: int64[types * parts], the first node of each type and part, new ids of types one after the other.
        new_ids: int64[own nodes].
    """

    @collective("ranks")
    def __init__(self, task: Task, parts: I32) -> None:
        self._task = task
        bases, num_parts = task.source.node_bases, task.num_parts
        num_types = len(bases) - 1
        groups = parts.astype(np.int64)
        for ntype_id in range(num_types):
            groups[task.own_of(ntype_id)] += ntype_id * num_parts
        table = task.exchange.gather(np.bincount(groups, minlength=num_types * num_parts)[None])
        totals = table.sum(axis=0).reshape(num_types, num_parts)
        self.offsets = [np.concatenate([[0], np.cumsum(counts)]).astype(np.int64) for counts in totals]
        first = np.concatenate([offsets[:-1] for offsets in self.offsets])
        # among the new ids of all types, one after the other
        self.first_nodes = first + np.repeat(bases[:-1], num_parts)
        self.new_ids = np.empty(len(groups), np.int64)
        number_by_key(groups, first + table[: task.exchange.rank].sum(axis=0), self.new_ids)
        self._dtype = np.int32 if bases[-1] < 2**31 else np.int64

    def parts(self, new_ids: Array) -> tuple[I64, I64]:
        """Return the parts of nodes, int64[n], and their places in ``first_nodes``.

        New ids, int[n], are those of types one after the other.
        """
        places: I64 = np.searchsorted(self.first_nodes, new_ids, side="right") - 1
        return (places if len(self.offsets) == 1 else places % self._task.num_parts), places

    @collective("ranks")
    def of(self, ids: I64, met: I64 | None = None) -> Array:
        """Return the new ids of nodes: int32[n], or int64[n] in a graph of 2**31 nodes and more.

        Args:
            ids: int64[n], global original ids.
            met: int64[own nodes], counts how often ranks asked for each node.
        """
        route = Route(self._task.exchange, owners_of(self._task.bounds, ids))
        asked = route.there(ids.astype(self._dtype)[:, None])[:, 0].astype(np.int64)
        asked -= self._task.own.start
        if met is not None:
            count_keys(asked, 0, met)
        return route.back(self.new_ids[asked].astype(self._dtype)[:, None])[:, 0]


class EdgeTable:
    """The edges of relations that share tables, or those of one relation, and what is known of them.

    Attributes:
        relations: their ids, ascending.
        ends: int64[relations, 2], the node types of source and destination.
        first_edges: int64[relations + 1], the first edge of each relation in the table.
        keys: int64[parts * relations + 1], the first key of each part and relation.
        shuffle: their way.
        degrees: that of the source nodes of one relation, with the "degree" of each.
    """

    def __init__(
        self, source: GraphSource, relations: Sequence[int], numbering: Numbering, writers: Writers, arrays: Arrays
    ) -> None:
        self.relations = relations
        self.ends = source.schema.all_ends[list(relations)]
        self.first_edges = np.append(0, np.cumsum([source.edge_counts[r] for r in relations])).astype(np.int64)
        nodes = np.diff(np.array(numbering.offsets), axis=1)[self.ends[:, 1]].T
        self.keys = np.append(0, np.cumsum(nodes)).astype(np.int64)
        columns = {"source": stored.index_dtype(max(source.num_nodes[t] for t in self.ends[:, 0]))}
        self.shuffle = Shuffle(writers, self.keys[:: len(relations)], int(self.first_edges[-1]), columns, arrays)
        ntype_id = self.ends[0, 0]
        self.degrees = Shuffle(writers, numbering.offsets[ntype_id], source.num_nodes[ntype_id], {"degree": np.int64})


class PartWriter:
    """Writer of the parts of one graph: their nodes and edges come to this rank, and go to files.

    Nothing travels to parts that are ``done`` (bool[parts]), and they are not written.

    Attributes (besides ``task``, ``source`` and ``numbering``):
        config: the partitioned graph; needed to write.
        parts: a range; this rank writes those that are not done.
        nodes: the nodes of each type; their numbers are original ids.
        tables: the edges; numbers are positions in the table.
        counts: int64[parts, relations], the edges of all parts, and ``cut``, how many come from other parts.
    """

    config: PartConfig

    def __init__(self, task: Task, numbering: Numbering, done: Mask) -> None:
        self.task = task
        self.source = source = task.source
        self.numbering = numbering
        self._writers = writers = Writers(task.exchange, done, task.scratch)
        self.parts = writers.parts
        of_nodes, of_edges = arrays_of(source)
        offsets = numbering.offsets
        self.nodes = [Shuffle(writers, offsets[t], n, arrays=of_nodes[t]) for t, n in enumerate(source.num_nodes)]
        groups = ([list(source.shared)] if source.shared else []) + [[r] for r in source.own]
        self.tables = [
            EdgeTable(source, relations, numbering, writers, of_edges[relations[0]] if len(relations) == 1 else {})
            for relations in groups
        ]
        self.counts: I64 = np.zeros((len(done), len(source.edges)), np.int64)
        self.cut = 0

    @collective("ranks")
    def receive(self, progress: Progress) -> None:
        """Send this rank's nodes, and edges as they are read; receive those of this rank's parts."""
        exchange = self.task.exchange
        for ntype_id, shuffle in enumerate(self.nodes):
            self._send_nodes(shuffle, ntype_id)
        done = 0
        for table in self.tables:
            degrees = np.zeros(len(self.numbering.new_ids), np.int64)
            done = self._send_edges(table, degrees, progress, done)
            if len(table.relations) == 1:
                self._send_nodes(table.degrees, int(table.ends[0, 0]), degree=degrees)
        self.counts = exchange.total(self.counts)
        self.cut = exchange.sum_of(self.cut)
        progress("relabel edges", done, done)

    def close(self) -> None:
        """Forget all."""
        self._writers.spill.close()

    def _send_nodes(self, shuffle: Shuffle, ntype_id: int, **columns: I64) -> None:
        """Send the own nodes of a type; columns have a number of each own node of all types."""
        task, numbering, bases = self.task, self.numbering, self.source.node_bases
        own = task.own_of(ntype_id)
        first_id = own.start + int(task.own.start - bases[ntype_id])
        most = int(np.diff(task.bounds.clip(*bases[ntype_id : ntype_id + 2])).max())
        for begin in range(0, most, EDGES_PER_CHUNK):
            here = slice(min(own.start + begin, own.stop), min(own.start + begin + EDGES_PER_CHUNK, own.stop))
            new_ids = numbering.new_ids[here]
            parts = owners_of(numbering.offsets[ntype_id], new_ids)
            of_nodes = {name: values[here] for name, values in columns.items()}
            shuffle.send(parts, new_ids, first_id + here.start - own.start, **of_nodes)

    def _send_edges(self, table: EdgeTable, degrees: I64, progress: Progress, done: int) -> int:
        """Send the edges that this rank reads, count them, and the edges from each own node (int64[own nodes]).

        Return how many edges all ranks have read then; ``done`` before.
        """
        numbering = self.numbering
        exchange = self.task.exchange
        relations = table.relations
        counts = np.zeros(len(self.counts) * len(relations), np.int64)
        end = done + int(table.first_edges[-1])
        for first, place, src, dst in edge_chunks(self.source, relations, exchange.rank, exchange.size):
            progress("relabel edges", done, sum(self.source.edge_counts))
            done = min(done + len(src) * exchange.size, end)
            src_base, dst_base = self.source.node_bases[table.ends[place]].T
            new_src = numbering.of(src + src_base, degrees)
            keys = numbering.of(dst + dst_base)
            src_part, _ = numbering.parts(new_src + src_base)
            part, of_type = numbering.parts(keys + dst_base)
            if len(relations) > 1:
                keys = table.keys[part * len(relations) + place] + keys + dst_base - numbering.first_nodes[of_type]
            self.cut += int(np.count_nonzero(src_part != part))
            count_keys(part * len(relations) + place, 0, counts)
            table.shuffle.send(part, keys, first, source=new_src)
        self.counts[:, relations] = counts.reshape(-1, len(relations))
        return end

    def write(self, part: int) -> None:
        """Write a part; once. Raises StorageError: the disk is full, or another process is writing there."""
        config = self.config
        with ExitStack() as stack:
            files = {
                which: stack.enter_context(
                    ShardWriter(config.part_path(part, which), config.graph_name, part, config.content)
                )
                for which in FILES
            }
            begun = {(which, name): files[which].create(name, *info) for which, name, info in datasets(config, part)}
            for ntype_id in range(len(self.source.schema.ntypes)):
                self._write_nodes(begun, ntype_id, part)
            for table in self.tables:
                self._write_edges(begun, table, part)

    def _write_nodes(self, begun: Datasets, ntype_id: int, part: int) -> None:
        """Write the nodes of a type."""
        source = self.source
        ntype = source.schema.ntypes[ntype_id]
        shuffle = self.nodes[ntype_id]
        columns = [
            _column(begun["node_feats", stored.node_feature_name(ntype, name)], shuffle, name, [feature.values])
            for name, feature in source.node_feats.get(ntype, {}).items()
        ]
        ids = [] if source.node_ids is None else [source.node_ids[ntype_id]]
        columns.append(_column(begun["part_graph", stored.node_orig_ids_name(ntype)], shuffle, ORIGINAL_IDS, ids))
        for records in shuffle.take(part):
            for write in columns:
                write(records, records["number"].astype(np.int64), np.array([0, len(records)]))

    def _write_edges(self, begun: Datasets, table: EdgeTable, part: int) -> None:
        """Write the in-edges of a part's nodes: a table of one relation's own, or one that relations share."""
        source = self.source
        relations = table.relations
        is_own = len(relations) == 1
        key = source.schema.relation_keys[relations[0]]
        name_of = partial(stored.relation_dataset_name, key) if is_own else stored.shared_dataset_name
        width = stored.index_dtype(source.num_nodes[table.ends[0, 0]] if is_own else max(source.num_nodes))
        columns = self._edge_features(begun, table)
        ids = [] if source.edge_ids is None else [source.edge_ids[r] for r in relations]
        original = begun["part_graph", name_of("orig_ids")]
        columns.append(_column(original, table.shuffle, ORIGINAL_IDS, ids, range(len(relations))))
        first_keys = table.keys[part * len(relations) : (part + 1) * len(relations) + 1]
        indptr = np.zeros(first_keys[1] - first_keys[0] + 1, np.int64)
        for records in table.shuffle.take(part):
            keys = records["key"].astype(np.int64)
            bounds = np.searchsorted(keys, first_keys)  # keys ascend, and relations with them
            of_relations = np.diff(bounds)
            if is_own:
                count_keys(keys, 1 - int(first_keys[0]), indptr)
            else:
                destinations = (keys - np.repeat(first_keys[:-1], of_relations)).astype(width)
                begun["part_graph", name_of("destinations")].write(destinations)
            begun["part_graph", name_of("indices")].write(records["source"].astype(width, copy=False))
            numbers = records["number"] - np.repeat(table.first_edges[:-1], of_relations)
            for write in columns:
                write(records, numbers, bounds)
        if is_own:
            begun["part_graph", name_of("indptr")].write(np.cumsum(indptr))
            for records in table.degrees.take(part):
                begun["part_graph", name_of("out_degrees")].write(records["degree"])

    def _edge_features(self, begun: Datasets, table: EdgeTable) -> list[Column]:
        """Return the features of relations: those that relations share in one dataset, and others."""
        source = self.source
        places = {relation: place for place, relation in enumerate(table.relations)}
        shared = source.shared_features if len(places) > 1 else []
        groups = [(stored.shared_feature_name(name), name, relations) for name, relations in shared]
        keys = source.schema.relation_keys
        for relation in places if source.edge_feats else ():
            names = self.config.own_features(relation)
            groups += [(stored.edge_feature_name(keys[relation], name), name, (relation,)) for name in names]
        columns = []
        for dataset, name, relations in groups:
            arrays = [source.edge_feats[keys[relation]][name].values for relation in relations]
            own = [places[relation] for relation in relations]
            columns.append(_column(begun["edge_feats", dataset], table.shuffle, name, arrays, own))
        return columns
