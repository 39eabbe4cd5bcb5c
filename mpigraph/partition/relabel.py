"""Every node and edge travels to the rank that writes its part, in new ids.

Edges are sorted by (new destination, new source, original edge). They arrive in the order of the input, since ranks
read them in turn, and wait in a :class:`.Spill` by ranges of destinations, each of which is then sorted on its own. So
neither the number of ranks nor the size of these *buckets* shows in the result.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.kernels.csr import sort_rows
from mpigraph.partition.exchange import Route, even_bounds, owners_of
from mpigraph.partition.numbering import Numbering
from mpigraph.partition.progress import Progress
from mpigraph.partition.ranged_rows import sorted_by_row
from mpigraph.partition.source import GraphSource, edge_chunks
from mpigraph.partition.spill import Scratch
from mpigraph.storage.format import index_dtype

__all__ = ["Arrivals", "Bucket", "relabel"]

EDGES_PER_BUCKET = 1 << 22


class Bucket(NamedTuple):
    """The in-edges of consecutive nodes of a part.

    in_degrees int64[nodes].  indices int32 or int64[m]: new source ids, rising inside a row.
    orig_ids int[m]: the position of each edge in the input.
    """

    in_degrees: I64
    indices: Array
    orig_ids: Array


class Arrivals:
    """What has come to the rank that writes some parts.

    Args:
        source: the graph.
        numbering: the new ids.
        num_parts: number of parts.
        scratch: for what does not fit into memory.

    Attributes:
        parts: those that this rank writes.
    """

    def __init__(self, source: GraphSource, numbering: Numbering, num_parts: int, scratch: Scratch) -> None:
        self._source = source
        self._numbering = numbering
        self._part_bounds = even_bounds(num_parts, numbering.exchange.size)
        rank = numbering.exchange.rank
        self.parts = range(int(self._part_bounds[rank]), int(self._part_bounds[rank + 1]))
        num_relations = len(source.edges)
        sizes = source.edge_counts
        self._total = sum(sizes)
        self._received = 0  # edges that all ranks have read, about
        self._buckets = [max(1, -(-size // (num_parts * EDGES_PER_BUCKET))) for size in sizes]
        groups = len(self.parts) * np.array(self._buckets, np.int64)
        self._first_group = np.concatenate([[0], np.cumsum(groups)]).astype(np.int64)
        wide = max([*source.num_nodes, *sizes], default=0) >= 2**31
        self._edges = scratch.spill(int(self._first_group[-1]), 3, np.int64 if wide else np.int32)
        # by part: the original ids of each type's nodes, then the out degrees in each relation
        self._nodes = scratch.spill((len(source.num_nodes) + num_relations) * len(self.parts), 1, np.int64)

    def receive_nodes(self) -> None:
        """Send the own nodes' original ids on their way, and take what comes. Collective on the ranks."""
        for ntype_id in range(len(self._source.num_nodes)):
            self._receive_values(ntype_id, ntype_id, self._numbering.own_ids(ntype_id))

    def receive_relation(self, relation_id: int, progress: Progress) -> None:
        """Send edges on their way as they are read, and take what comes. Collective on the ranks."""
        numbering = self._numbering
        exchange = numbering.exchange
        src_type, dst_type = self._source.schema.ends(relation_id)
        out_degrees = np.zeros(len(numbering.new_ids), np.int64)
        rank_bounds = numbering.offsets[dst_type][self._part_bounds]
        cuts = self._cuts(relation_id)
        for first, src, dst in edge_chunks(self._source, relation_id, rank=exchange.rank, ranks=exchange.size):
            progress("relabel edges", self._received, self._total)
            self._received = min(self._received + len(src) * exchange.size, self._total)
            new_src = numbering.of(src + numbering.bases[src_type], out_degrees)
            new_dst = numbering.of(dst + numbering.bases[dst_type])
            rows = np.empty((len(src), 3), self._edges.dtype)
            rows[:, 0] = new_dst
            rows[:, 1] = new_src
            rows[:, 2] = np.arange(first, first + len(src))
            came = Route(exchange, owners_of(rank_bounds, new_dst)).there(rows)
            groups = np.searchsorted(cuts, came[:, 0], side="right") - 1
            self._edges.add(groups + self._first_group[relation_id], came)
        own = numbering.own(src_type)
        self._receive_values(len(self._source.num_nodes) + relation_id, src_type, out_degrees[own])

    def orig_ids(self, ntype_id: int, part: int) -> I64:
        """Return int64[n], the original ids of a part's nodes, in the order of their new ids; once."""
        return self._values(ntype_id, part)

    def out_degrees(self, relation_id: int, part: int) -> I64:
        """Return int64[n], of a part's own sources; once."""
        return self._values(len(self._source.num_nodes) + relation_id, part)

    def num_edges(self, relation_id: int, part: int) -> int:
        """Return how many edges of a relation a part has."""
        groups = self._groups(relation_id, part)
        return int(self._edges.counts[groups.start : groups.stop].sum())

    def buckets(self, relation_id: int, part: int) -> Iterator[Bucket]:
        """Yield the in-edges of a part's nodes, bucket after bucket; once."""
        src_type, _ = self._source.schema.ends(relation_id)
        cuts = self._cuts(relation_id)
        dtype = index_dtype(self._source.num_nodes[src_type])
        begin = (part - self.parts.start) * self._buckets[relation_id]
        for number, group in enumerate(self._groups(relation_id, part), begin):
            first, last = (int(cut) for cut in cuts[number : number + 2])
            indptr, (sources, orig_ids) = sorted_by_row(self._edges.take(group), first, last - first)
            indices = sources.astype(dtype, copy=False)
            sort_rows(indptr, indices, orig_ids)
            yield Bucket(np.diff(indptr), indices, orig_ids)

    def close(self) -> None:
        """Forget all."""
        self._edges.close()
        self._nodes.close()

    def _cuts(self, relation_id: int) -> I64:
        """Return int64[buckets + 1]: the ranges of new destination ids of this rank's buckets."""
        _, dst_type = self._source.schema.ends(relation_id)
        offsets = self._numbering.offsets[dst_type]
        number = self._buckets[relation_id]
        begins = offsets[self.parts.start : self.parts.stop]
        sizes = np.diff(offsets[self.parts.start : self.parts.stop + 1])
        cuts = begins[:, None] + sizes[:, None] * np.arange(number) // number
        return np.append(cuts.reshape(-1), offsets[self.parts.stop]).astype(np.int64)

    def _groups(self, relation_id: int, part: int) -> range:
        first = int(self._first_group[relation_id]) + (part - self.parts.start) * self._buckets[relation_id]
        return range(first, first + self._buckets[relation_id])

    def _receive_values(self, table: int, ntype_id: int, values: I64) -> None:
        """Send a value of each own node of a type to its part, where they arrive in the order of the new ids."""
        numbering = self._numbering
        offsets = numbering.offsets[ntype_id]
        new_ids = numbering.new_ids[numbering.own(ntype_id)]
        route = Route(numbering.exchange, owners_of(offsets[self._part_bounds], new_ids))
        came = route.there(np.stack([new_ids, values], axis=1))
        parts = owners_of(offsets[self.parts.start : self.parts.stop + 1], came[:, 0])
        self._nodes.add(table * len(self.parts) + parts, came[:, 1:])

    def _values(self, table: int, part: int) -> I64:
        values: I64 = self._nodes.take(table * len(self.parts) + part - self.parts.start)[:, 0]
        return values


def relabel(
    source: GraphSource, numbering: Numbering, num_parts: int, scratch: Scratch, progress: Progress
) -> Arrivals:
    """Bring every node and edge to the rank that writes its part. Collective on the ranks.

    Args:
        source: the graph.
        numbering: the new ids.
        num_parts: number of parts.
        scratch: for what does not fit into memory.
        progress: what to report to.
    """
    arrivals = Arrivals(source, numbering, num_parts, scratch)
    arrivals.receive_nodes()
    for relation_id in range(len(source.edges)):
        arrivals.receive_relation(relation_id, progress)
    progress("relabel edges", sum(source.edge_counts), sum(source.edge_counts))
    return arrivals
