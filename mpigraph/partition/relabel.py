"""Sending every node and edge, in new ids, to the rank that writes its part.

New ids of nodes are ordered by part, then by original id. Each rank knows the new ids of the nodes that it owns, and
asks the owners for others. Ranks own ranges of *global* original ids, which number the nodes of all types, type after
type. New ids are numbered within a type.

Edges are sorted by (new destination, new source, original edge). Relations that share tables travel as one
(:class:`EdgeTable`), by a key that is ordered by part, relation and destination, so that thousands of relations cost as
much as one with as many edges.
"""

from collections.abc import Sequence

import numpy as np

from mpigraph.arrays import I32, I64, Array, Mask
from mpigraph.collective import collective
from mpigraph.kernels.csr import count_keys
from mpigraph.partition.exchange import Exchange, Progress, Route, owners_of
from mpigraph.partition.loops import number_by_key
from mpigraph.partition.shuffle import Shuffle, Writers, arrays_of
from mpigraph.partition.source import EDGES_PER_CHUNK, GraphSource, edge_chunks
from mpigraph.partition.spill import Scratch, Spill
from mpigraph.storage.format import index_dtype


class Numbering:
    """New ids of all nodes.

    Args:
        exchange: the ranks.
        bounds: int64[ranks + 1], the nodes that each rank owns.
        bases: int64[types + 1], where each type begins.
        parts: int32[own nodes].
        num_parts: number of parts.

    Attributes (besides the first three arguments):
        offsets: for each type int64[parts + 1], the new ids of each part.
        first_nodes: int64[types * parts], the first node of each type and part, new ids of types one after the other.
        new_ids: int64[own nodes].
    """

    @collective("ranks")
    def __init__(self, exchange: Exchange, bounds: I64, bases: I64, parts: I32, num_parts: int) -> None:
        self.exchange = exchange
        self.bounds = bounds
        self.bases = bases
        self._num_parts = num_parts
        num_types = len(bases) - 1
        groups = parts.astype(np.int64)
        for ntype_id in range(num_types):
            groups[self.own(ntype_id)] += ntype_id * num_parts
        table = np.zeros((exchange.size, num_types * num_parts), np.int64)
        table[exchange.rank] = np.bincount(groups, minlength=num_types * num_parts)
        table = exchange.total(table)
        totals = table.sum(axis=0).reshape(num_types, num_parts)
        self.offsets = [np.concatenate([[0], np.cumsum(counts)]).astype(np.int64) for counts in totals]
        first = np.concatenate([offsets[:-1] for offsets in self.offsets])
        # among the new ids of all types, one after the other
        self.first_nodes = first + np.repeat(bases[:-1], num_parts)
        self.new_ids = np.empty(len(groups), np.int64)
        number_by_key(groups, first + table[: exchange.rank].sum(axis=0), self.new_ids)
        self._dtype = np.int32 if bases[-1] < 2**31 else np.int64

    def own(self, ntype_id: int) -> slice:
        """Return the range of the own nodes that are of a type."""
        first, last = self.bounds[self.exchange.rank : self.exchange.rank + 2]
        begin, end = np.clip(self.bases[ntype_id : ntype_id + 2], first, last) - first
        return slice(int(begin), int(end))

    def parts(self, new_ids: Array) -> tuple[I64, I64]:
        """Return the parts of nodes, int64[n], and their places in ``first_nodes``.

        New ids, int[n], are those of types one after the other.
        """
        places: I64 = np.searchsorted(self.first_nodes, new_ids, side="right") - 1
        return (places if len(self.bases) == 2 else places % self._num_parts), places

    @collective("ranks")
    def of(self, ids: I64, met: I64 | None = None) -> Array:
        """Return the new ids of nodes: int32[n], or int64[n] in a graph of 2**31 nodes and more.

        Args:
            ids: int64[n], global original ids.
            met: int64[own nodes], counts how often ranks asked for each node.
        """
        route = Route(self.exchange, owners_of(self.bounds, ids))
        asked = route.there(ids.astype(self._dtype)[:, None])[:, 0].astype(np.int64)
        asked -= self.bounds[self.exchange.rank]
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
        self, source: GraphSource, relations: Sequence[int], numbering: Numbering, writers: Writers, spill: Spill
    ) -> None:
        self.relations = relations
        self.ends = source.schema.all_ends[list(relations)]
        self.first_edges = np.append(0, np.cumsum([source.edge_counts[r] for r in relations])).astype(np.int64)
        nodes = np.diff(np.array(numbering.offsets), axis=1)[self.ends[:, 1]].T
        self.keys = np.append(0, np.cumsum(nodes)).astype(np.int64)
        arrays = arrays_of(source)[1][relations[0]] if len(relations) == 1 else {}
        columns = {"source": index_dtype(max(source.num_nodes[t] for t in self.ends[:, 0]))}
        count = int(self.first_edges[-1])
        self.shuffle = Shuffle(writers, spill, self.keys[:: len(relations)], count, columns, arrays)
        source_type = self.ends[0, 0]
        of_type = numbering.offsets[source_type], source.num_nodes[source_type]
        self.degrees = Shuffle(writers, spill, *of_type, {"degree": np.int64})


class Arrivals:
    """The nodes and edges that come to the rank that writes their parts.

    Nothing travels to parts that are ``done`` (bool[parts]), and they are not written.

    Attributes (besides ``source`` and ``numbering``):
        parts: a range; this rank writes those that are not done.
        nodes: the nodes of each type; their numbers are original ids.
        tables: the edges; numbers are positions in the table.
        counts: int64[parts, relations], the edges of all parts, and ``cut``, how many come from other parts.
    """

    def __init__(self, source: GraphSource, numbering: Numbering, done: Mask, scratch: Scratch) -> None:
        self.source = source
        self.numbering = numbering
        self._spill = spill = Spill(scratch)
        self._writers = writers = Writers.of(numbering.exchange, done)
        self.parts = writers.parts
        of_nodes, _ = arrays_of(source)
        offsets = numbering.offsets
        self.nodes = [
            Shuffle(writers, spill, offsets[t], count, arrays=of_nodes[t]) for t, count in enumerate(source.num_nodes)
        ]
        groups = ([list(source.shared)] if source.shared else []) + [[r] for r in source.own]
        self.tables = [EdgeTable(source, relations, numbering, writers, spill) for relations in groups]
        self.counts: I64 = np.zeros((len(done), len(source.edges)), np.int64)
        self.cut = 0

    @collective("ranks")
    def receive(self, progress: Progress) -> None:
        """Send this rank's nodes, and edges as they are read; receive those of this rank's parts."""
        exchange = self.numbering.exchange
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
        self._spill.close()

    @collective("ranks")
    def _send_nodes(self, shuffle: Shuffle, ntype_id: int, **columns: I64) -> None:
        """Send the own nodes of a type; columns have a number of each own node of all types."""
        numbering = self.numbering
        own = numbering.own(ntype_id)
        first_id = own.start + int(numbering.bounds[numbering.exchange.rank] - numbering.bases[ntype_id])
        most = int(np.diff(numbering.bounds.clip(*numbering.bases[ntype_id : ntype_id + 2])).max())
        for begin in range(0, most, EDGES_PER_CHUNK):
            here = slice(min(own.start + begin, own.stop), min(own.start + begin + EDGES_PER_CHUNK, own.stop))
            new_ids = numbering.new_ids[here]
            parts = owners_of(numbering.offsets[ntype_id], new_ids)
            of_nodes = {name: values[here] for name, values in columns.items()}
            shuffle.send(parts, new_ids, first_id + here.start - own.start, **of_nodes)

    @collective("ranks")
    def _send_edges(self, table: EdgeTable, degrees: I64, progress: Progress, done: int) -> int:
        """Send the edges that this rank reads, count them, and the edges from each own node (int64[own nodes]).

        Return how many edges all ranks have read then; ``done`` before.
        """
        numbering = self.numbering
        exchange = numbering.exchange
        relations = table.relations
        counts = np.zeros(len(self.counts) * len(relations), np.int64)
        end = done + int(table.first_edges[-1])
        for first, place, src, dst in edge_chunks(self.source, relations, exchange.rank, exchange.size):
            progress("relabel edges", done, sum(self.source.edge_counts))
            done = min(done + len(src) * exchange.size, end)
            src_base, dst_base = numbering.bases[table.ends[place]].T
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
