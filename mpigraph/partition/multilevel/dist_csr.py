"""A symmetric graph on several ranks: each has the rows of the nodes that it owns, and *ghosts*, remote ends of edges.

Local ids count the own nodes first, by ascending key, then the ghosts.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from mpigraph.arrays import I32, I64, Array, Mask
from mpigraph.collective import collective
from mpigraph.partition.assigning import Task
from mpigraph.partition.exchange import Exchange, Route, owners_of
from mpigraph.partition.loops import distinct_in_rows
from mpigraph.partition.multilevel.loops import Graph, Rows
from mpigraph.partition.source import edge_chunks, ends_among_nodes
from mpigraph.partition.spill import MatrixSpill, Scratch
from mpigraph.storage.format import index_dtype

_CHUNK = 1 << 20


class NodeTable:
    """Positions of nodes by key: the own ones (int[n], ascending) first, then others as they are met.

    It has a position for each key, below ``num_keys``: fewer bytes than a hash table, since most ranks meet a good part
    of all nodes.
    """

    def __init__(self, own_keys: Array, num_keys: int) -> None:
        self._count = len(own_keys)
        self._listed = np.empty(num_keys, index_dtype(num_keys))  # pages beyond the last position are never touched
        self._listed[: self._count] = own_keys
        self._position: I32 = np.full(num_keys, -1, np.int32)
        self._position[own_keys] = np.arange(self._count, dtype=np.int32)

    @property
    def keys(self) -> Array:
        """int[k], the keys by position."""
        return self._listed[: self._count]

    def positions(self, keys: Array) -> I32:
        """Return int32[n], the positions of keys, adding those that are new."""
        positions = self._position.take(keys)
        new = np.flatnonzero(positions < 0)
        if len(new):
            met = np.unique(keys[new])
            end = self._count + len(met)
            self._listed[self._count : end] = met
            self._position[met] = np.arange(self._count, end, dtype=np.int32)
            self._count = end
            positions[new] = self._position.take(keys[new])
        return positions

    def close(self) -> None:
        """Keep only the keys: no more positions are looked up."""
        self._position = np.empty(0, np.int32)


class Mirror:
    """Values of nodes that their owners send to the ranks that follow these nodes.

    Each rank owns the keys between two ``bounds`` (int64[ranks + 1]), its first ``num_own`` nodes in ``table``.
    """

    def __init__(self, exchange: Exchange, bounds: I64, table: NodeTable, num_own: int) -> None:
        self.exchange = exchange
        self.bounds = bounds
        self.num_own = num_own
        self._table = table
        self._told: list[Array] = [np.empty(0, np.int32)] * exchange.size  # own nodes that each rank follows
        self._followed = list(self._told)  # positions of followed nodes, by their owners

    def copy(self) -> "Mirror":
        """Return a mirror of the same nodes that can follow more."""
        other = Mirror(self.exchange, self.bounds, self._table, self.num_own)
        other._told = list(self._told)
        other._followed = list(self._followed)
        return other

    def owners(self, keys: Array) -> I64:
        """Return int64[n], the ranks that own keys."""
        return owners_of(self.bounds, keys)

    @collective("ranks")
    def follow(self, keys: Array, positions: I32, values: Array) -> Array:
        """Follow more nodes of other ranks, with keys int[k], whose values are kept at positions int32[k].

        Return their values as of now, [k, columns]; ``values``, [n, columns], are those of the own nodes.
        """
        route = Route(self.exchange, self.owners(keys))
        asked = self._table.positions(route.there(keys[:, None])[:, 0])
        for told, begin, end in _runs(route.coming):
            self._told[told] = np.append(self._told[told], asked[begin:end])
        ordered = positions if route.order is None else positions[route.order]
        for owner, begin, end in _runs(route.counts):
            self._followed[owner] = np.append(self._followed[owner], ordered[begin:end])
        return route.back(values.take(asked, axis=0))

    @collective("ranks")
    def update(self, changed: Mask | None, *columns: Array) -> tuple[I32, Array]:
        """Send the values of own nodes to their followers: of the nodes where bool[n] ``changed`` is set; None: all.

        Columns are int[n] each, or one int[n, columns]. Return int32[k], positions of followed nodes that have changed,
        and int[k, columns], their values.
        """
        if changed is None:
            changed = np.ones(self.num_own, np.bool_)
        leaving = [_changed_rows(nodes, changed, columns) for nodes in self._told]
        counts = np.array(list(map(len, leaving)), np.int64)
        arrived, coming = self.exchange.all_to_all(np.concatenate(leaving), counts)
        del leaving
        positions = np.empty(len(arrived), np.int32)
        for owner, begin, end in _runs(coming):
            positions[begin:end] = self._followed[owner][arrived[begin:end, 0]]
        return positions, arrived[:, 1:]


@dataclass(frozen=True, eq=False)
class Level:
    """One level of the hierarchy, as one rank has it."""

    table: NodeTable  # positions of own nodes and ghosts, and perhaps of other nodes behind them
    num_nodes: int  # n + ghosts
    rows: Rows  # of the own nodes
    weights: I32  # int32[n, criteria]
    ghosts: Mirror  # keeps values of the ghosts up to date

    @property
    def keys(self) -> Array:
        """int[n + ghosts], the id of the node of the finest level that each one began with."""
        return self.table.keys[: self.num_nodes]

    @property
    def graph(self) -> Graph:
        """The own nodes."""
        return Graph(self.rows, self.weights, self.keys)

    @property
    def num_own(self) -> int:
        """Number of own nodes."""
        return len(self.rows.indptr) - 1

    @property
    def exchange(self) -> Exchange:
        """The ranks."""
        return self.ghosts.exchange

    def parked(self, scratch: Scratch) -> "Level":
        """Return the level with its edges in files, while other levels are worked on."""
        indptr, *of_edges = self.rows
        return replace(self, rows=Rows(indptr, *map(scratch.park, of_edges)))

    @collective("ranks")
    def tell(self, values: Array, changed: Mask | None = None) -> None:
        """Bring the ghosts' part of an array of all local nodes ([n + ghosts]) up to date."""
        positions, news = self.ghosts.update(changed, values[: self.num_own])
        values[positions] = news[:, 0]

    @classmethod
    @collective("ranks")
    def of_rows(cls, exchange: Exchange, bounds: I64, table: NodeTable, rows: Rows, weights: I32) -> "Level":
        """Return a level of complete rows; the owners of its ghosts learn that this rank follows them.

        Arguments are attributes of the class; ``bounds``, int64[ranks + 1], has the keys that each rank owns, and
        ``table`` holds own nodes and ghosts alone.
        """
        keys = table.keys
        own = len(weights)
        ghosts = Mirror(exchange, bounds, table, own)
        ghosts.follow(keys[own:], np.arange(own, len(keys), dtype=np.int32), weights)
        return cls(table, len(keys), rows, weights, ghosts)


@collective("ranks")
def finest_level(task: Task) -> Level:
    """Return the level of all nodes: ranks send edges to the owners of both ends; self loops and repeats are dropped.

    The task hears of the reading of edges.
    """
    exchange, bounds, scratch = task.exchange, task.bounds, task.scratch
    first, last = task.own.start, task.own.stop
    total = task.num_nodes
    dtype = index_dtype(total)
    arrived = MatrixSpill(scratch, last - first, 2, dtype)
    done, num_edges = 0, max(sum(task.source.edge_counts), 1)
    for chunk in edge_chunks(task.source, None, exchange.rank, exchange.size):
        src, dst = ends_among_nodes(task.source, chunk)
        task.report(min(done / num_edges, 1.0))
        done += len(src) * exchange.size
        ends = np.stack([src, dst], axis=1).astype(dtype)[src != dst]
        if not task.both_ways:
            ends = np.concatenate([ends, ends[:, ::-1]])
        rows = Route(exchange, owners_of(bounds, ends[:, 0])).there(ends)
        rows[:, 0] -= first
        arrived.add(rows)
    indptr = np.zeros(last - first + 1, np.int64)
    neighbours = scratch.empty(arrived.num_entries, dtype)  # pages that only repeats would need are never touched
    kept = 0
    for begin, end, starts, (sources,) in arrived.take():
        kept = distinct_in_rows(starts, sources, neighbours, kept, indptr[begin : end + 1])
    neighbours = neighbours[:kept]
    table = NodeTable(np.arange(first, last), total)
    indices = neighbours if dtype == np.int32 else scratch.empty(kept, np.int32)
    if exchange.size > 1:  # else nodes are at their positions
        for begin in range(0, kept, _CHUNK):
            entries = slice(begin, begin + _CHUNK)
            indices[entries] = table.positions(neighbours[entries])
    del neighbours
    rows_of_own = Rows(indptr, indices, np.empty(0, np.int32))
    return Level.of_rows(exchange, bounds, table, rows_of_own, task.weights)


def _changed_rows(nodes: Array, changed: Mask, columns: tuple[Array, ...]) -> Array:
    """Return int[k, 1 + columns]: numbers of those of the nodes that have changed, and their values."""
    starts = range(0, max(len(nodes), 1), _CHUNK)  # since numpy makes int64 of what it indexes by
    chunks = [first + np.flatnonzero(changed[nodes[first : first + _CHUNK]]).astype(np.int32) for first in starts]
    chosen = np.concatenate(chunks)
    return np.column_stack([chosen, *(values.take(nodes[chosen], axis=0) for values in columns)])


def _runs(counts: I64) -> Iterator[tuple[int, int, int]]:
    """Yield (rank, begin, end) of consecutive runs that are not empty."""
    ends = np.cumsum(counts)
    for rank, (end, count) in enumerate(zip(ends.tolist(), counts.tolist(), strict=True)):
        if count:
            yield rank, end - count, end
