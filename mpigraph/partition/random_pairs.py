"""The edges of a generated graph, drawn by any number of ranks: which pairs of nodes, and in which order.

Every draw is a hash of its number. So each rank draws a part of the numbers and sends each pair to the owner of its
smaller end, which sorts by that end and drops repeats. In round t, rank r draws chunk t * R + r, and what arrives comes
by rank: every owner sees its pairs in the order of their numbers, as a single rank does, and the result does not depend
on the number of ranks.

Nodes have *sorted* ids here, by which those of a class or block are contiguous. Every rank holds what is proportional
to the number of nodes; draws and pairs are divided, by ranges of the smaller end that hold equally many draws.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mpigraph.arrays import F64, I32, I64
from mpigraph.errors import InvalidArgumentError
from mpigraph.kernels.csr import count_keys, drop_repeats, place_values
from mpigraph.kernels.random_edges import draw_edges
from mpigraph.partition.exchange import Exchange, Route, owners_of
from mpigraph.partition.progress import Progress

__all__ = ["EDGES_PER_CHUNK", "Communities", "Rows", "draw_pairs"]

EDGES_PER_CHUNK = 1 << 20
_MAX_ATTEMPTS = 8
_MAX_STUBS = 2**32 - 1  # what draw_below can choose from


class Communities:
    """Classes and blocks by sorted ids, and how often each node is to be the end of an edge.

    Args:
        key: hash of the seed.
        weights: float64[n], the expected number of stubs (half-edges) of each node.
        rng: rounds them.
        class_offsets: int64[classes + 1], ranges of sorted ids.
        block_offsets: int64[blocks + 1], likewise; every block lies in a class.
        p_block, p_class: probabilities that an edge is drawn inside a block, and inside a class.

    Raises:
        InvalidArgumentError: there are 2**32 stubs or more.
    """

    def __init__(
        self,
        key: np.uint64,
        weights: F64,
        rng: np.random.Generator,
        class_offsets: I64,
        block_offsets: I64,
        p_block: float,
        p_class: float,
    ) -> None:
        self._key = key
        self.num_nodes = len(weights)
        counts = np.maximum(np.floor(weights + rng.random(self.num_nodes)).astype(np.int64), 1)
        stubs = np.concatenate([[0], np.cumsum(counts)])
        num_stubs = int(stubs[-1])
        if num_stubs > _MAX_STUBS:
            raise InvalidArgumentError(f"the graph is too large: {num_stubs} ends of edges, at most {_MAX_STUBS}")
        self._stub_ends = stubs[1:].astype(np.uint32)
        self._shift = max(0, (num_stubs // self.num_nodes).bit_length() - 1)  # about one interval for each node
        firsts = np.arange(0, num_stubs, 1 << self._shift)
        self._guide = (np.searchsorted(stubs, firsts, "right") - 1).astype(np.int32)
        sizes = np.diff(block_offsets)
        self._block_of = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        self._class_of_block = (np.searchsorted(class_offsets, block_offsets[:-1], "right") - 1).astype(np.int32)
        self._block_stubs = stubs[block_offsets]
        self._class_stubs = stubs[class_offsets]
        self._p_block = p_block
        self._p_class = p_class

    def draw(self, first: int, count: int) -> I32:
        """Return draws ``first`` to ``first + count`` as int32[m, 2], smaller end first, without self loops."""
        pairs = np.empty((count, 2), np.int32)
        draw_edges(
            self._key, first, self._stub_ends, self._guide, self._shift, self._block_of, self._block_stubs,
            self._class_of_block, self._class_stubs, self._p_block, self._p_class, pairs,
        )  # fmt: skip
        kept: I32 = pairs[pairs[:, 0] != pairs[:, 1]]
        return kept


@dataclass
class Rows:
    """The pairs of a range of smaller ends, which one rank has.

    Attributes:
        first: the first of these nodes.
        indptr: int64[rows + 1].
        high: int32[pairs], the larger ends.
        dropped: int64[d], ascending: places in ``high`` that are not part of the graph.
        begin: number of this rank's first pair in the graph.
    """

    first: int
    indptr: I64
    high: I32
    dropped: I64
    begin: int

    def __len__(self) -> int:
        return len(self.high) - len(self.dropped)

    def chunks(self) -> Iterator[tuple[I64, I32]]:
        """Yield the pairs as (smaller, larger ends), int64[m] and int32[m]."""
        for begin in range(0, len(self.high), EDGES_PER_CHUNK):
            end = min(begin + EDGES_PER_CHUNK, len(self.high))
            keep = np.ones(end - begin, bool)
            dropped = self.dropped[slice(*np.searchsorted(self.dropped, [begin, end]))]
            keep[dropped - begin] = False
            first = int(np.searchsorted(self.indptr, begin, "right")) - 1
            last = int(np.searchsorted(self.indptr, end))
            bounds = np.clip(self.indptr[first : last + 1], begin, end)
            low = np.repeat(np.arange(self.first + first, self.first + last), bounds[1:] - bounds[:-1])
            yield low[keep], self.high[begin:end][keep]


def draw_pairs(
    exchange: Exchange, communities: Communities, num_pairs: int, rng: np.random.Generator, progress: Progress
) -> Rows:
    """Draw exactly ``num_pairs`` distinct pairs.

    Draws until there are enough, with some surplus that is dropped at random.

    Args:
        exchange: the ranks.
        communities: the same on every rank.
        num_pairs: how many.
        rng: chooses what is dropped, on the first rank, which needs memory for it: some 20 bytes for each dropped pair,
            but 8 for each pair of the graph if a twentieth or more is dropped, as after a second attempt.
        progress: what this rank reports to.

    Returns:
        The rows of this rank; ascending ranks have ascending ranges.

    Raises:
        InvalidArgumentError: that many are not found; on every rank.

    Collective on the ranks.
    """
    count = round(num_pairs * 1.05) + 16
    attempts = _Attempts(exchange, communities, progress)
    for _ in range(_MAX_ATTEMPTS):
        first, indptr, high = attempts.make(count)
        found = exchange.sum_of(len(high))
        if found >= num_pairs:
            attempts.end()
            dropped = _choose_dropped(exchange, len(high), found - num_pairs, rng)
            begin = int(_offsets(exchange, len(high) - len(dropped))[exchange.rank])
            return Rows(first, indptr, high, dropped, begin)
        tried = count
        count = round(count * min(4.0, max(1.1, 1.1 * num_pairs / max(found, 1))))
    with exchange.together("drawing edges"):  # so that it counts as an error of every rank
        raise InvalidArgumentError(
            f"num_edges {2 * num_pairs} is too dense for {communities.num_nodes} nodes: "
            f"{tried} draws gave only {found} of {num_pairs} pairs; lower it or homophily"
        )


class _Attempts:
    """Distinct pairs among more and more draws. Two passes draw, of which the first counts only what is new.

    Args:
        exchange: the ranks.
        communities: what to draw from.
        progress: what this rank reports to.
    """

    def __init__(self, exchange: Exchange, communities: Communities, progress: Progress) -> None:
        self._exchange = exchange
        self._communities = communities
        self._progress = progress
        self._degrees = np.zeros(communities.num_nodes, np.int64)  # of smaller ends, with repeats
        self._counted = 0
        self._done = 0

    def make(self, count: int) -> tuple[int, I64, I32]:
        """Sort ``count`` draws by smaller end, in their order, and drop repeats.

        Returns:
            This rank's first row, indptr of its rows and the larger ends in them.

        Collective on the ranks.
        """
        exchange = self._exchange
        new = np.zeros_like(self._degrees)
        for pairs in self._rounds(self._counted, count, later=count):
            count_keys(pairs[:, 0], 0, new)
        _add_up(exchange, new)
        self._degrees += new
        del new
        self._counted = count
        indptr = np.concatenate([[0], np.cumsum(self._degrees)])
        inner = np.searchsorted(indptr, indptr[-1] * np.arange(1, exchange.size) // exchange.size)
        bounds = np.concatenate([[0], inner, [len(self._degrees)]])
        row, last = bounds[exchange.rank : exchange.rank + 2].tolist()
        indptr = indptr[row : last + 1] - indptr[row]
        fill = indptr[:-1].copy()
        high = np.empty(int(indptr[-1]), np.int32)
        for pairs in self._rounds(0, count):
            arrived = Route(exchange, owners_of(bounds, pairs[:, 0])).there(pairs)
            place_values(arrived[:, 0] - row, arrived[:, 1], fill, high)
        out = np.empty_like(indptr)
        kept = drop_repeats(indptr, fill, high, np.full(len(self._degrees), -1, np.int32), out)
        return row, out, high[:kept]

    def end(self) -> None:
        """Report that the draws are enough."""
        self._progress("draw edges", self._done, self._done)

    def _rounds(self, first: int, last: int, later: int = 0) -> Iterator[I32]:
        """Yield what this rank draws of ``first`` to ``last`` in each round; ``later`` draws are known to follow."""
        size = self._exchange.size
        chunk = max(1, min(EDGES_PER_CHUNK, -(-(last - first) // size)))
        for begin in range(first, last, size * chunk):
            self._progress("draw edges", self._done, self._done + last - begin + later)
            mine = min(begin + self._exchange.rank * chunk, last)
            yield self._communities.draw(mine, min(chunk, last - mine))
            self._done += min(size * chunk, last - begin)


def _add_up(exchange: Exchange, values: I64) -> None:
    """Replace an array by its sum over the ranks. Collective on the ranks."""
    if exchange.size > 1:
        for begin in range(0, len(values), EDGES_PER_CHUNK):
            values[begin : begin + EDGES_PER_CHUNK] = exchange.total(values[begin : begin + EDGES_PER_CHUNK])


def _offsets(exchange: Exchange, size: int) -> I64:
    """Return int64[ranks + 1]: where each rank's elements begin if each has ``size``. Collective on the ranks."""
    sizes = np.zeros(exchange.size, np.int64)
    sizes[exchange.rank] = size
    return np.concatenate([[0], np.cumsum(exchange.total(sizes))])


def _choose_dropped(exchange: Exchange, size: int, surplus: int, rng: np.random.Generator) -> I64:
    """Choose ``surplus`` of all ranks' pairs, of which this rank has ``size``; return the places of its own.

    The first rank chooses: the generator's algorithm cannot be divided. Collective on the ranks.
    """
    offsets = _offsets(exchange, size)
    chosen = np.empty(0, np.int64)
    if exchange.rank == 0:
        chosen = rng.choice(int(offsets[-1]), surplus, replace=False, shuffle=False)
        chosen.sort()
    counts = np.diff(np.searchsorted(chosen, offsets))
    mine, _ = exchange.all_to_all(chosen.reshape(-1, 1), counts.astype(np.int64))
    places: I64 = mine[:, 0] - offsets[exchange.rank]
    return places
