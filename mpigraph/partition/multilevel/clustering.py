"""Size-constrained label propagation: every node joins the cluster to which most of its edges lead, as caps allow.

After Meyerhenke, Sanders, Schulz (see the package), in synchronous sub-rounds, one for each value of a hash of nodes
modulo 8. Nodes choose by the state before the sub-round; the owner of a cluster admits them in the order of hashes
until the cap. So the result depends neither on the number of ranks nor on the order of nodes, and neighbours seldom
swap places. Nodes that stay alone are packed afterwards with others that prefer the same cluster (two-hop clustering:
LaSalle et al., "Improving Graph Partitioning for Modern Graphs and Architectures", IA3 2015), and nodes without edges
together. Clusters become the nodes of a coarser level; parts of the coarser level become those of the finer one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from mpigraph.arrays import I32, I64, Array
from mpigraph.collective import collective
from mpigraph.kernels.rng import combine
from mpigraph.partition.exchange import Route
from mpigraph.partition.multilevel import loops
from mpigraph.partition.multilevel.dist_csr import Level, Mirror, NodeTable
from mpigraph.partition.multilevel.loops import Rows, hashes
from mpigraph.partition.spill import MatrixSpill, Scratch

_ITERATIONS = 3
_TURNS = 8
_ISOLATED = 64  # nodes without edges that are packed together, at least
_PACKED = 1 << 19  # nodes that a rank sends to be packed at a time, about


@collective("ranks")
def find_clusters(level: Level, caps: I64, target: int, seed: int) -> "_Clusters":
    """Cluster the nodes of a level until at most ``target`` clusters are left; see :class:`_Clusters`."""
    clusters = _Clusters(level, caps, seed)
    for turn in range(_ITERATIONS * _TURNS):
        if clusters.count() <= target:
            break
        clusters.sub_round(turn)
    if clusters.count() > target:
        clusters.pack()
    clusters.table.close()
    return clusters


class _Clusters:
    """Clusters of the nodes of a level; at first each node is one.

    Args:
        level: the graph.
        caps: int64[criteria], the largest weight of a cluster.
        seed: for ties.

    Attributes:
        labels: int32[n + ghosts], a position in ``table`` for each node.
        table: the level's, in which a cluster has the position of the node that it began with.
        loads: int32[clusters, criteria], the weight of each known cluster.
        members: int32[n], the number of nodes of each cluster that began with an own node.
        mirror: keeps copies of remote clusters up to date.
        sums: working memory of kernels.
    """

    @collective("ranks")
    def __init__(self, level: Level, caps: I64, seed: int) -> None:
        self._level = level
        self._caps = caps
        self._seed = seed
        own = level.num_own
        self.table = level.table
        self.labels = np.arange(level.num_nodes, dtype=np.int32)
        self.mirror = level.ghosts.copy()
        self.loads = np.zeros((level.num_nodes, len(caps)), np.int32)
        self.loads[:own] = level.weights
        positions, values = self.mirror.update(None, level.weights)
        self.loads[positions] = values
        self.members = np.ones(own, np.int32)
        self.sums = _sums_of(level.num_nodes)
        self._turns = np.empty(own, np.int8)  # of own nodes, in this iteration

    @property
    def known(self) -> loops.Clusters:
        """All clusters that this rank knows."""
        return loops.Clusters(self.labels, self.table.keys, self.loads, self.sums)

    @collective("ranks")
    def count(self) -> int:
        """Return the number of clusters."""
        return self._level.exchange.sum_of(int(np.count_nonzero(self.members)))

    @collective("ranks")
    def sub_round(self, turn: int) -> None:
        """Let the nodes of a turn choose a cluster."""
        level = self._level
        salt = combine(self._seed, 1, turn // _TURNS)
        if turn % _TURNS == 0:
            loops.draw_turns(self.table.keys, salt, _TURNS, self._turns)
        nodes = np.flatnonzero(self._turns == turn % _TURNS).astype(np.int32)
        labels = np.empty(len(nodes), np.int32)
        loops.best_labels(level.graph, self.known, self._caps, nodes, True, salt, labels)
        moving = labels != self.labels[nodes]
        self._join(nodes[moving], labels[moving], combine(self._seed, 2, turn))

    def _ask(self, ranks: I64, groups: Array, nodes: I32, salt: np.uint64, judge: Callable[..., Array]) -> Array:
        """Send own nodes to the ranks that judge their groups (int[p] each); return the answers, int[p].

        ``judge`` gets the groups, the keys and the weights of the nodes that come, in the order of groups and hashes.
        """
        level = self._level
        route = Route(level.exchange, ranks)
        came = route.there(np.column_stack([groups, self.table.keys[nodes], level.weights[nodes]]))
        order = np.lexsort((hashes(came[:, 1], salt), came[:, 0]))
        came = came[order]
        answers = np.empty(len(came), np.int64)
        answers[order] = judge(came[:, 0], came[:, 1], came[:, 2:].astype(np.int32))
        return route.back(answers[:, None])[:, 0]

    def _let_in(self, groups: Array, keys: Array, weights: Array) -> I64:
        """Return 1 where a node may join its cluster, int64[p]."""
        clusters = self.table.positions(groups)
        admitted = np.empty(len(groups), np.int64)
        loops.accept_in_order(clusters, weights, self._caps, self.loads, self.members, admitted)
        self._changed = np.zeros(self._level.num_own, np.bool_)
        self._changed[clusters[admitted == 1]] = True
        return admitted

    def _join(self, nodes: I32, labels: I32, salt: np.uint64) -> None:
        """Move own nodes to clusters (int32[p] each) as far as these admit them; tell the ranks that follow them."""
        level = self._level
        targets = self.table.keys[labels]
        accepted = self._ask(self.mirror.owners(targets), targets, nodes, salt, self._let_in) == 1
        nodes, labels = nodes[accepted], labels[accepted]
        left = self.table.keys[self.labels[nodes]]
        came = Route(level.exchange, self.mirror.owners(left)).there(np.column_stack([left, level.weights[nodes]]))
        clusters = self.table.positions(came[:, 0])
        loops.take_away(clusters, came[:, 1:].astype(np.int32), self.loads, self.members)
        self._changed[clusters] = True
        self.labels[nodes] = labels
        moved = np.zeros(level.num_own, np.bool_)
        moved[nodes] = True
        told = np.empty(level.num_own, self.table.keys.dtype)
        told[nodes] = self.table.keys[labels]
        ghosts, keys = level.ghosts.update(moved, told)
        del moved, told
        known = len(self.table.keys)
        self.labels[ghosts] = self.table.positions(keys[:, 0])
        self._meet(known)
        positions, values = self.mirror.update(self._changed, self.loads[: level.num_own])
        self.loads[positions] = values

    def _meet(self, known: int) -> None:
        """Follow the clusters that this rank has met beyond the first ``known``."""
        keys = self.table.keys[known:]
        own_loads = self.loads[: self._level.num_own]
        loads = self.mirror.follow(keys, np.arange(known, known + len(keys), dtype=np.int32), own_loads)
        if len(keys):
            del self.sums  # before there are two copies of the loads
            self.loads = np.concatenate([self.loads, loads])
            self.sums = _sums_of(len(self.loads))

    @collective("ranks")
    def pack(self) -> None:
        """Join nodes that are alone with others that prefer the same cluster; nodes without edges by hash."""
        level = self._level
        own = np.arange(level.num_own, dtype=np.int32)
        alone = own[(self.members == 1) & (self.labels[: level.num_own] == own)]
        del own
        favourites = np.empty(len(alone), np.int32)
        salt = combine(self._seed, 3)
        keys = self.table.keys
        loops.best_labels(level.graph, self.known, np.full_like(self._caps, 2**62), alone, False, salt, favourites)
        isolated = level.rows.indptr[alone + 1] == level.rows.indptr[alone]
        packed = isolated | (favourites >= 0)
        alone, favourites, isolated = alone[packed], favourites[packed], isolated[packed]
        buckets = max(1, level.exchange.sum_of(int(np.count_nonzero(isolated))) // _ISOLATED)
        groups = keys[np.maximum(favourites, 0)]
        groups[isolated] = -1 - (hashes(keys[alone[isolated]], salt) % np.uint64(buckets)).astype(groups.dtype)
        del favourites, isolated
        rounds = -(-level.exchange.sum_of(len(alone)) // (_PACKED * level.exchange.size))
        for turn in range(rounds):
            chosen = np.flatnonzero(groups % rounds == turn)
            group, nodes = groups[chosen], alone[chosen]
            ranks = np.where(group >= 0, self.mirror.owners(np.maximum(group, 0)), (-1 - group) % level.exchange.size)
            leaders = self._ask(ranks, group, nodes, salt, self._pack)
            moving = leaders != keys[nodes]
            known = len(self.table.keys)
            labels = self.table.positions(leaders[moving])
            self._meet(known)
            self._join(nodes[moving], labels, salt)  # a pack fits: its first node is all that is in its cluster

    def _pack(self, groups: Array, keys: Array, weights: Array) -> Array:
        """Return the key of the first node of each node's pack, int[p]."""
        first = np.empty(len(groups), np.int64)
        loops.pack_in_order(groups.astype(np.int64), weights, self._caps, first)
        return keys[first]


def _sums_of(count: int) -> loops.Sums:
    return loops.Sums(np.zeros(count, np.int32), np.empty(count, np.int32))


_ENTRIES_PER_ROUND = 1 << 20


@dataclass(frozen=True, eq=False)
class Descent:
    """The way from the parts of a level back to those of the finer one."""

    labels: I32  # int32[n + ghosts], the cluster of each node of the finer level
    leaders: I64  # int64[coarse n], the own nodes of the finer level with which the own clusters began
    mirror: Mirror  # keeps copies of remote clusters up to date
    num_clusters: int  # number of clusters that this rank knows

    def parked(self, scratch: Scratch) -> "Descent":
        """Return the way back with its labels in a file, while other levels are worked on."""
        return replace(self, labels=scratch.park(self.labels))

    @collective("ranks")
    def project(self, parts: Array) -> Array:
        """Return int[n + ghosts], the parts on the finer level; ``parts``, int[>= coarse n], are of the nodes of the
        coarser level, own ones first.
        """
        of_cluster = np.full(self.num_clusters, -1, parts.dtype)
        of_cluster[self.leaders] = parts[: len(self.leaders)]
        told = np.full(self.mirror.num_own, -1, parts.dtype)
        told[self.leaders] = parts[: len(self.leaders)]
        positions, values = self.mirror.update(None, told)
        of_cluster[positions] = values[:, 0]
        return of_cluster[self.labels]


@collective("ranks")
def contract(level: Level, clusters: _Clusters, scratch: Scratch) -> tuple[Level, Descent]:
    """Return the level whose nodes are the clusters, and the way back.

    Weights of edges between two clusters are added up, and those of nodes in each criterion. A cluster stays with the
    owner of the node that it began with.
    """
    exchange = level.exchange
    leaders = np.flatnonzero(clusters.members > 0)
    weights = clusters.loads[leaders]
    clusters.loads = np.empty((0, weights.shape[1]), np.int32)  # no longer needed, nor is this:
    clusters.members = np.empty(0, np.int32)
    descent = Descent(clusters.labels, leaders, clusters.mirror, len(clusters.table.keys))
    table = NodeTable(level.keys[leaders], int(level.ghosts.bounds[-1]))
    if exchange.size == 1:
        ((_, rows),) = _merged(level, clusters, len(level.rows.indices), scratch)
        known = clusters.table.keys
        for begin in range(0, len(rows.indices), _ENTRIES_PER_ROUND):
            chunk = slice(begin, begin + _ENTRIES_PER_ROUND)
            rows.indices[chunk] = table.positions(known[rows.indices[chunk]])
    else:
        rows = _assembled(level, clusters, table, len(leaders), scratch)
    return Level.of_rows(exchange, level.ghosts.bounds, table, rows, weights), descent


def _merged(level: Level, clusters: _Clusters, most: int, scratch: Scratch) -> Iterator[tuple[I64, Rows]]:
    """Yield clusters that own nodes are in, and their merged rows, whose indices are clusters, too; piece by piece.

    A piece has at most ``most`` entries before merging, or one row.
    """
    labels = clusters.labels[: level.num_own]
    order = np.argsort(labels, kind="stable").astype(np.int32)
    ordered = labels[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: level.num_own])
    groups = ordered[begins].astype(np.int64)
    del ordered
    bounds = np.append(begins, level.num_own)
    degrees = np.diff(level.rows.indptr).astype(np.int32)[order]
    sizes = np.append(0, np.cumsum(np.add.reduceat(degrees, begins, dtype=np.int64))) if len(begins) else bounds
    del begins, degrees
    row = 0
    while row < len(groups):
        first, row = row, max(row + 1, int(np.searchsorted(sizes, sizes[row] + most, side="right")) - 1)
        merged = _empty_rows(row - first, int(sizes[row] - sizes[first]), scratch)
        of = groups[first:row]
        end = loops.merge_rows(
            order, bounds[first : row + 1], level.rows, clusters.labels, of, clusters.sums, merged, 0
        )
        yield of, _cut_off(merged, end)


def _empty_rows(count: int, most: int, scratch: Scratch) -> Rows:
    """Return rows to be filled; pages of unused entries are never touched."""
    return Rows(np.zeros(count + 1, np.int64), scratch.empty(most, np.int32), scratch.empty(most, np.int32))


def _cut_off(rows: Rows, end: int) -> Rows:
    return Rows(rows.indptr, rows.indices[:end], rows.weights[:end])


def _assembled(level: Level, clusters: _Clusters, table: NodeTable, num_rows: int, scratch: Scratch) -> Rows:
    """Send merged rows to the owners of their clusters, in rounds, and join rows from several ranks."""
    arrived = MatrixSpill(scratch, num_rows, 3, np.int32)
    known = clusters.table.keys
    pieces = _merged(level, clusters, _ENTRIES_PER_ROUND, scratch)
    nothing = np.empty(0, np.int64), Rows(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.int32))
    while level.exchange.sum_of(int((piece := next(pieces, None)) is not None)) > 0:
        of, (indptr, indices, weights) = piece or nothing
        rows = np.repeat(known[of], np.diff(indptr))
        edges = np.column_stack([rows, known[indices], weights])
        came = Route(level.exchange, level.ghosts.owners(rows)).there(edges)
        local = np.empty(came.shape, np.int32)
        local[:, 0] = table.positions(np.ascontiguousarray(came[:, 0]))
        local[:, 1] = table.positions(np.ascontiguousarray(came[:, 1]))
        local[:, 2] = came[:, 2]
        arrived.add(local)
    joined = _empty_rows(num_rows, arrived.num_entries, scratch)
    identity = np.arange(len(table.keys), dtype=np.int32)
    sums = _sums_of(len(identity))
    at = 0
    for begin, end, starts, of_edges in arrived.take():
        every = np.arange(end - begin)
        out = joined._replace(indptr=joined.indptr[begin : end + 1])
        bounds = np.arange(len(every) + 1)
        at = loops.merge_rows(every, bounds, Rows(starts, *of_edges), identity, every + begin, sums, out, at)
    return _cut_off(joined, at)
