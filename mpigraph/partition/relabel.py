"""Sending every node and edge, in new ids, to the rank that writes its part.

New ids of nodes are ordered by part, then by original id. Each rank knows the new ids of the nodes that it owns, and
asks the owners for others. Ranks own ranges of *global* original ids, which number the nodes of all types, type after
type. New ids are numbered within a type.

Relations that share tables travel together (:class:`SharedArrivals`): an edge travels with a key, ordered by part,
relation and destination, so that thousands of relations cost as much as one with as many edges. Other
edges are sorted by (new destination, new source, original edge). They arrive in the order of the input, since ranks
read them in turn, and wait in a :class:`.Spill` by ranges of destinations (*buckets*), each sorted on its own. So the
result depends neither on the number of ranks nor on the size of the buckets. Rows that are slow to read
at random (:class:`.CarriedRows`) travel with them.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from mpigraph.arrays import I32, I64, Array, Mask
from mpigraph.collective import collective
from mpigraph.kernels.csr import count_keys, number_by_key, sort_rows
from mpigraph.partition.exchange import Exchange, Progress, Route, even_bounds, owners_of
from mpigraph.partition.row_arrays import RowArray
from mpigraph.partition.source import EDGES_PER_CHUNK, GraphSource, chunks_of, edge_chunks
from mpigraph.partition.spill import CarriedRows, Scratch, Spill, arrays_of, evenly_cut, sorted_by_row, to_carry
from mpigraph.storage.format import index_dtype

EDGES_PER_BUCKET = 1 << 22


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
        new_ids: int64[own nodes].
    """

    @collective("ranks")
    def __init__(self, exchange: Exchange, bounds: I64, bases: I64, parts: I32, num_parts: int) -> None:
        self.exchange = exchange
        self.bounds = bounds
        self.bases = bases
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
        self.new_ids = np.empty(len(groups), np.int64)
        number_by_key(groups, first + table[: exchange.rank].sum(axis=0), self.new_ids)
        self._dtype = np.int32 if bases[-1] < 2**31 else np.int64

    def own(self, ntype_id: int) -> slice:
        """Return the range of the own nodes that are of a type."""
        first, last = self.bounds[self.exchange.rank : self.exchange.rank + 2]
        begin, end = np.clip(self.bases[ntype_id : ntype_id + 2], first, last) - first
        return slice(int(begin), int(end))

    def own_ids(self, ntype_id: int) -> I64:
        """Return int64[n], the original ids of the own nodes of a type, as ids of that type."""
        own = self.own(ntype_id)
        shift = int(self.bounds[self.exchange.rank] - self.bases[ntype_id])
        return np.arange(own.start + shift, own.stop + shift)

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


class SharedPiece(NamedTuple):
    """Consecutive edges of a part, by relation, destination, source.

    bounds int64[relations + 1]: the first edge of each relation in this piece.
    destinations int64[m]: counted within the part.  indices int[m]: new source ids.
    orig_ids int64[m]: the position of each edge among those of its relation in the input.
    """

    bounds: I64
    destinations: I64
    indices: Array
    orig_ids: I64


class SharedArrivals:
    """The edges of the relations of a graph that share tables, as they come to this rank.

    Args:
        source: the graph.
        numbering: the new ids of nodes.
        part_bounds: int64[ranks + 1], the parts of each rank.
        done: bool[parts], parts to which nothing travels.
        scratch: for temporary files.
    """

    def __init__(
        self,
        source: GraphSource,
        numbering: Numbering,
        part_bounds: I64,
        done: Mask,
        scratch: Scratch,
    ) -> None:
        self._source = source
        self._numbering = numbering
        offsets = numbering.offsets
        self._done = done
        self._part_bounds = part_bounds
        self._ends = source.schema.all_ends[list(source.shared)]
        self._first_edge = np.append(0, np.cumsum(np.diff(source.first_edges)[list(source.shared)])).astype(np.int64)
        # the first new id of each type and part among those of all types, and the first key of each part and relation
        self._first_node = np.concatenate(
            [of[:-1] + base for of, base in zip(offsets, source.node_bases, strict=False)]
        )
        nodes = np.diff(np.array(offsets), axis=1)[self._ends[:, 1]].T
        self._keys = np.append(0, np.cumsum(nodes)).astype(np.int64)
        rank = numbering.exchange.rank
        first, last = part_bounds[rank : rank + 2].tolist()
        self._first_part = first
        self._buckets = int(max(1, -(-self._first_edge[-1] // (len(done) * EDGES_PER_BUCKET))))
        of_parts = self._keys[:: len(self._ends)] if source.shared else np.zeros(len(done) + 1, np.int64)
        self._cuts = evenly_cut(of_parts[first : last + 1], self._buckets)
        wide = max(int(self._keys[-1]), int(self._first_edge[-1]), *source.num_nodes) >= 2**31
        groups = len(self._cuts) - 1 if source.shared else 0
        self._spill = Spill(scratch, groups, 3, np.int64 if wide else np.int32)
        self.counts: I64 = np.zeros((last - first, len(self._ends)), np.int64)

    @collective("ranks")
    def receive(self) -> None:
        """Send the edges that this rank reads to the ranks that write their parts; receive those of its own parts."""
        source = self._source
        numbering = self._numbering
        exchange = numbering.exchange
        if not source.shared:
            return
        parts = len(self._done)
        relations = len(self._ends)
        for first, src_ids, dst_ids in chunks_of(*source.joined(source.shared), exchange.rank, exchange.size):
            positions = np.arange(first, first + len(src_ids))
            place = np.searchsorted(self._first_edge, positions, side="right") - 1
            src_base, dst_base = source.node_bases[self._ends[place]].T
            new_dst = numbering.of(dst_ids + dst_base) + dst_base
            of_type = np.searchsorted(self._first_node, new_dst, side="right") - 1
            part = of_type % parts
            keys = self._keys[part * relations + place] + new_dst - self._first_node[of_type]
            rows = np.stack([keys, numbering.of(src_ids + src_base), positions], axis=1)
            leaving = ~self._done[part]
            came = Route(exchange, owners_of(self._part_bounds, part[leaving])).there(rows[leaving])
            self._spill.add(np.searchsorted(self._cuts, came[:, 0], side="right") - 1, came)
            of_own = self._places(came[:, 0]) - self._first_part * relations
            self.counts += np.bincount(of_own, minlength=self.counts.size).reshape(self.counts.shape)

    def pieces(self, part: int) -> Iterator[SharedPiece]:
        """Yield the edges of a part; once."""
        relations = len(self._ends)
        own = part - self._first_part
        for bucket in range(own * self._buckets, (own + 1) * self._buckets):
            rows = self._spill.take(bucket)
            rows = rows.take(np.lexsort((rows[:, 1], rows[:, 0])), axis=0).astype(np.int64)
            at = self._places(rows[:, 0])
            place = at - part * relations
            bounds = np.searchsorted(place, np.arange(relations + 1))
            orig_ids = rows[:, 2] - self._first_edge[place]
            yield SharedPiece(bounds, rows[:, 0] - self._keys[at], rows[:, 1], orig_ids)

    def close(self) -> None:
        """Forget all."""
        self._spill.close()

    def _places(self, keys: Array) -> I64:
        """Return int64[n], the part of each key times the number of relations, plus its relation's place."""
        places: I64 = np.searchsorted(self._keys[:-1], keys, side="right") - 1
        return places


class Bucket(NamedTuple):
    """The in-edges of consecutive nodes of a part.

    in_degrees int64[nodes].  indices int32 or int64[m]: new source ids, ascending inside a row.
    orig_ids int[m]: the position of each edge in the input.
    rows: carried rows of the edges, by name, piece by piece.
    """

    in_degrees: I64
    indices: Array
    orig_ids: Array
    rows: Iterator[dict[str, Array]]


class Arrivals:
    """The nodes and edges that come to the rank that writes their parts.

    Nothing travels to parts that are ``done`` (bool[parts]), and they are not written.

    Attributes (besides ``source`` and ``numbering``):
        parts: a range; this rank writes those that are not done.
        shared: the edges of the relations that share tables; other methods are about the others.
    """

    def __init__(self, source: GraphSource, numbering: Numbering, done: Mask, scratch: Scratch) -> None:
        self.source = source
        self.numbering = numbering
        self._done = done
        missing_before = np.concatenate([[0], np.cumsum(~done)])
        even = even_bounds(int(missing_before[-1]), numbering.exchange.size)  # nearly as many incomplete parts each
        self._part_bounds = np.searchsorted(missing_before, even).astype(np.int64)
        self._part_bounds[-1] = len(done)
        rank = numbering.exchange.rank
        self.parts = range(int(self._part_bounds[rank]), int(self._part_bounds[rank + 1]))
        self.shared = SharedArrivals(source, numbering, self._part_bounds, done, scratch)
        sizes = source.edge_counts
        self._total = sum(sizes)
        self._received = 0  # edges that all ranks have read, about
        buckets = np.maximum(1, -(-np.array(sizes, np.int64) // (len(done) * EDGES_PER_BUCKET)))
        buckets[list(source.shared)] = 0
        self._buckets: list[int] = buckets.tolist()
        groups = len(self.parts) * buckets
        self._first_group = np.concatenate([[0], np.cumsum(groups)]).astype(np.int64)
        wide = max([*source.num_nodes, *sizes], default=0) >= 2**31
        self._edges = Spill(scratch, int(self._first_group[-1]), 3, np.int64 if wide else np.int32)
        # new ids with a value of each, by part: original ids of each type's nodes, then out degrees in each relation
        # (those of relations that share are not needed)
        self._degrees = np.cumsum(buckets > 0) - 1 + len(source.num_nodes)  # by relation, the number of its table
        tables = len(source.num_nodes) + len(source.own)
        self._nodes = Spill(scratch, tables * len(self.parts), 2, self._edges.dtype)
        of_nodes, of_edges = arrays_of(source)
        self._node_rows = [self._carrier(to_carry(arrays), t, 1, scratch) for t, arrays in enumerate(of_nodes)]
        self._edge_rows = [
            self._carrier(to_carry(arrays), source.schema.ends(r)[1], buckets, scratch) if arrays and buckets else None
            for r, (arrays, buckets) in enumerate(zip(of_edges, self._buckets, strict=True))
        ]

    @collective("ranks")
    def receive(self, progress: Progress) -> None:
        """Send this rank's nodes, and edges as they are read; receive those of this rank's parts."""
        self._receive_nodes()
        self.shared.receive()
        for relation_id in np.flatnonzero(self._buckets).tolist():
            self._receive_relation(relation_id, progress)
        progress("relabel edges", self._total, self._total)

    def _receive_nodes(self) -> None:
        for ntype_id in range(len(self.source.num_nodes)):
            ids = self.numbering.own_ids(ntype_id)
            self._receive_values(ntype_id, ntype_id, ids)
            rows = self._node_rows[ntype_id]
            if rows is not None:
                new_ids = self.numbering.new_ids[self.numbering.own(ntype_id)]
                most = int(self.numbering.exchange.gather(np.array([[len(ids)]], np.int64)).max())
                first = int(ids[0]) if len(ids) else 0
                rows.send(most, first, new_ids, new_ids, self._leaving(ntype_id, new_ids))
                rows.settle()

    def _receive_relation(self, relation_id: int, progress: Progress) -> None:
        numbering = self.numbering
        exchange = numbering.exchange
        src_type, dst_type = self.source.schema.ends(relation_id)
        out_degrees = np.zeros(len(numbering.new_ids), np.int64)
        rank_bounds = numbering.offsets[dst_type][self._part_bounds]
        cuts = self._cuts(relation_id)
        carried = self._edge_rows[relation_id]
        most = min(EDGES_PER_CHUNK, self.source.num_edges(relation_id))
        for first, src, dst in edge_chunks(self.source, relation_id, rank=exchange.rank, ranks=exchange.size):
            progress("relabel edges", self._received, self._total)
            self._received = min(self._received + len(src) * exchange.size, self._total)
            new_src = numbering.of(src + numbering.bases[src_type], out_degrees)
            new_dst = numbering.of(dst + numbering.bases[dst_type])
            rows = np.empty((len(src), 3), self._edges.dtype)
            rows[:, 0] = new_dst
            rows[:, 1] = new_src
            rows[:, 2] = np.arange(first, first + len(src))
            leaving = self._leaving(dst_type, new_dst)
            came = Route(exchange, owners_of(rank_bounds, new_dst[leaving])).there(rows[leaving])
            groups = np.searchsorted(cuts, came[:, 0], side="right") - 1
            self._edges.add(groups + self._first_group[relation_id], came)
            if carried is not None:
                carried.send(most, first, new_dst, rows[:, 2], leaving)
        if carried is not None:
            carried.settle()
        own = numbering.own(src_type)
        self._receive_values(int(self._degrees[relation_id]), src_type, out_degrees[own])

    def orig_ids(self, ntype_id: int, part: int) -> I64:
        """Return int64[n], the original ids of a part's nodes, in the order of their new ids; once."""
        return self._values(ntype_id, ntype_id, part)

    def out_degrees(self, relation_id: int, part: int) -> I64:
        """Return int64[n], of a part's own sources; once."""
        src_type, _ = self.source.schema.ends(relation_id)
        return self._values(int(self._degrees[relation_id]), src_type, part)

    def node_rows(self, ntype_id: int, part: int) -> Iterator[dict[str, Array]]:
        """Yield the carried rows of a part's nodes, by name, in the order of their new ids; once."""
        rows = self._node_rows[ntype_id]
        first, last = self.numbering.offsets[ntype_id][part : part + 2].tolist()
        return iter(()) if rows is None else rows.take(part, 0, np.arange(first, last), np.arange(last - first + 1))

    def edge_counts(self, part: int) -> I64:
        """Return int64[relations], the numbers of a part's edges, those that share tables among them."""
        before = np.append(0, np.cumsum(self._edges.counts))
        buckets = np.array(self._buckets, np.int64)
        first = self._first_group[:-1] + (part - self.parts.start) * buckets
        counts: I64 = before[first + buckets] - before[first]
        counts[list(self.source.shared)] = self.shared.counts[part - self.parts.start]
        return counts

    def buckets(self, relation_id: int, part: int) -> Iterator[Bucket]:
        """Yield the in-edges of a part's nodes, bucket after bucket; once."""
        src_type, _ = self.source.schema.ends(relation_id)
        cuts = self._cuts(relation_id)
        dtype = index_dtype(self.source.num_nodes[src_type])
        carried = self._edge_rows[relation_id]
        begin = (part - self.parts.start) * self._buckets[relation_id]
        for number, group in enumerate(self._groups(relation_id, part)):
            first, last = (int(cut) for cut in cuts[begin + number : begin + number + 2])
            indptr, (sources, orig_ids) = sorted_by_row(self._edges.take(group), first, last - first)
            indices = sources.astype(dtype, copy=False)
            sort_rows(indptr, indices, orig_ids)
            rows = iter(()) if carried is None else carried.take(part, number, orig_ids, indptr)
            yield Bucket(np.diff(indptr), indices, orig_ids, rows)

    def close(self) -> None:
        """Forget all."""
        self.shared.close()
        self._edges.close()
        self._nodes.close()
        for rows in (*self._node_rows, *self._edge_rows):
            if rows is not None:
                rows.close()

    def _carrier(
        self, carried: Mapping[str, RowArray], ntype_id: int, buckets: int, scratch: Scratch
    ) -> CarriedRows | None:
        """Return the carrier of rows to nodes of a type; None if no array needs one."""
        if not carried:
            return None
        numbering = self.numbering
        offsets = numbering.offsets[ntype_id]
        return CarriedRows(carried, numbering.exchange, scratch, offsets, self._part_bounds, buckets)

    def _cuts(self, relation_id: int) -> I64:
        """Return int64[buckets + 1], the new destination ids of this rank's buckets."""
        _, dst_type = self.source.schema.ends(relation_id)
        offsets = self.numbering.offsets[dst_type][self.parts.start : self.parts.stop + 1]
        return evenly_cut(offsets, self._buckets[relation_id])

    def _groups(self, relation_id: int, part: int) -> range:
        first = int(self._first_group[relation_id]) + (part - self.parts.start) * self._buckets[relation_id]
        return range(first, first + self._buckets[relation_id])

    def _receive_values(self, table: int, ntype_id: int, values: I64) -> None:
        """Send a value of each own node of a type to its part."""
        numbering = self.numbering
        exchange = numbering.exchange
        offsets = numbering.offsets[ntype_id]
        own_ids = numbering.new_ids[numbering.own(ntype_id)]
        for first in range(0, int(exchange.gather(np.array([[len(own_ids)]], np.int64)).max()), EDGES_PER_CHUNK):
            new_ids = own_ids[first : first + EDGES_PER_CHUNK]
            rows = np.stack([new_ids, values[first : first + EDGES_PER_CHUNK]], axis=1)
            rows = rows[self._leaving(ntype_id, new_ids)].astype(self._nodes.dtype, copy=False)
            came = Route(exchange, owners_of(offsets[self._part_bounds], rows[:, 0])).there(rows)
            parts = owners_of(offsets[self.parts.start : self.parts.stop + 1], came[:, 0])
            self._nodes.add(table * len(self.parts) + parts, came)

    def _leaving(self, ntype_id: int, new_ids: Array) -> Mask | slice:
        """Return which nodes of a type lie in parts that are not done."""
        if not self._done.any():
            return slice(None)
        return ~self._done[owners_of(self.numbering.offsets[ntype_id], new_ids)]

    def _values(self, table: int, ntype_id: int, part: int) -> I64:
        """Return int64[n], a value of each node of a part, in the order of their new ids; once."""
        rows = self._nodes.take(table * len(self.parts) + part - self.parts.start)
        values = np.empty(len(rows), np.int64)
        values[rows[:, 0] - self.numbering.offsets[ntype_id][part]] = rows[:, 1]
        return values
