"""The edges of relations that share tables, on their way to the ranks that write their parts.

All these relations are one stream: an edge travels with a key, ordered by part, relation and destination, so that
thousands of relations cost as much as one with as many edges.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mpigraph.arrays import I64, Array, Mask
from mpigraph.collective import collective
from mpigraph.partition.exchange import Route, owners_of
from mpigraph.partition.numbering import Numbering
from mpigraph.partition.source import GraphSource, chunks_of
from mpigraph.partition.spill import Scratch, Spill, evenly_cut

EDGES_PER_BUCKET = 1 << 22


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
        source, numbering = self._source, self._numbering
        exchange = numbering.exchange
        if not source.shared:
            return
        parts, relations = len(self._done), len(self._ends)
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
