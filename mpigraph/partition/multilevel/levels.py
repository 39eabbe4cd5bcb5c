"""The levels of a graph on several ranks, and how nodes become clusters, the nodes of the next level.

Each rank has the rows of the nodes that it owns, and *ghosts*, remote ends of edges. Local ids count the own nodes
first, by ascending key, then the ghosts.

Clusters are found by size-constrained label propagation: every node joins the cluster to which most of its edges lead,
as caps allow. After Meyerhenke, Sanders, Schulz (see the package), in synchronous sub-rounds, one for each value of a
hash of nodes modulo 8. Nodes choose by the state before the sub-round; the owner of a cluster admits them in the order
of hashes until the cap. So the result depends neither on the number of ranks nor on the order of nodes, and neighbours
seldom swap places. Nodes that stay alone are packed afterwards with others that prefer the same cluster (two-hop
clustering: LaSalle et al., "Improving Graph Partitioning for Modern Graphs and Architectures", IA3 2015), and nodes
without edges together. Clusters become the nodes of a coarser level; parts of the coarser level become those of the
finer one.
"""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from mpigraph.arrays import I32, I64, Array, Mask
from mpigraph.collective import collective
from mpigraph.kernels.rng import combine
from mpigraph.partition.assigning import ALL_NODES, ONE_BIN, Task
from mpigraph.partition.exchange import Exchange, Route, owners_of
from mpigraph.partition.loops import distinct_in_rows, tally
from mpigraph.partition.multilevel import loops
from mpigraph.partition.multilevel.loops import Graph, Rows, hashes
from mpigraph.partition.source import edge_chunks, ends_among_nodes
from mpigraph.partition.spill import MatrixSpill, Scratch
from mpigraph.storage.format import index_dtype

_CHUNK = 1 << 20
_ITERATIONS = 3
_TURNS = 8
_ISOLATED = 64  # nodes without edges that are packed together, at least
_PACKED = 1 << 19  # nodes that a rank sends to be packed at a time, about
_ENTRIES_PER_ROUND = 1 << 20


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
        ordered = positions if route.order is None else positions[route.order]
        self._told = _appended(self._told, asked, route.coming)  # new lists, so that a copy of a mirror stays as it is
        self._followed = _appended(self._followed, ordered, route.counts)
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
        numbers = np.split(arrived[:, 0], np.cumsum(coming)[:-1])
        positions = [followed[chosen] for followed, chosen in zip(self._followed, numbers, strict=True)]
        return np.concatenate(positions), arrived[:, 1:]

    @collective("ranks")
    def tell(self, values: Array, changed: Mask | None = None) -> None:
        """Bring the rows of followed nodes in an array of nodes, own ones first, up to date; as :meth:`update`.

        The array is [nodes] or [nodes, columns].
        """
        positions, news = self.update(changed, values[: self.num_own])
        values[positions] = news.reshape(len(news), *values.shape[1:])


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
    indices = scratch.empty(arrived.num_entries, np.int32)  # pages that only repeats would need are never touched
    table = NodeTable(np.arange(first, last), total)
    kept = 0
    for begin, end, starts, (sources,) in arrived.take():
        neighbours = sources[: distinct_in_rows(starts, sources, kept, indptr[begin : end + 1])]
        positions = table.positions(neighbours) if exchange.size > 1 else neighbours  # which one rank has in order
        indices[kept : kept + len(positions)] = positions
        kept += len(positions)
    rows_of_own = Rows(indptr, indices[:kept], np.empty(0, np.int32))
    return Level.of_rows(exchange, bounds, table, rows_of_own, task.weights)


def _changed_rows(nodes: Array, changed: Mask, columns: tuple[Array, ...]) -> Array:
    """Return int[k, 1 + columns]: numbers of those of the nodes that have changed, and their values."""
    starts = range(0, max(len(nodes), 1), _CHUNK)  # since numpy makes int64 of what it indexes by
    chunks = [first + np.flatnonzero(changed[nodes[first : first + _CHUNK]]).astype(np.int32) for first in starts]
    chosen = np.concatenate(chunks)
    return np.column_stack([chosen, *(values.take(nodes[chosen], axis=0) for values in columns)])


def _appended(lists: list[Array], values: Array, counts: I64) -> list[Array]:
    """Return arrays with the next ``counts`` (int64[arrays]) of the values behind each."""
    more = np.split(values, np.cumsum(counts)[:-1])
    return [np.append(of, new) if len(new) else of for of, new in zip(lists, more, strict=True)]


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

    def __init__(self, level: Level, caps: I64, seed: int) -> None:
        self._level = level
        self._caps = caps
        self._seed = seed
        own = level.num_own
        self.table = level.table
        self.labels = np.arange(level.num_nodes, dtype=np.int32)
        self.mirror = copy(level.ghosts)
        self.loads = np.zeros((level.num_nodes, len(caps)), np.int32)
        self.loads[:own] = level.weights
        self.mirror.tell(self.loads)
        self.members = np.ones(own, np.int32)
        self.sums = _sums_of(level.num_nodes)
        self._turns = np.empty(own, np.int8)  # of own nodes, in this iteration

    @property
    def known(self) -> loops.Clusters:
        """All clusters that this rank knows."""
        return loops.Clusters(self.labels, self.table.keys, self.loads, self.sums)

    def count(self) -> int:
        """Return the number of clusters."""
        return self._level.exchange.sum_of(int(np.count_nonzero(self.members)))

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
        tally(ALL_NODES, clusters, ONE_BIN, -came[:, 1:].astype(np.int32), self.loads[:, None])
        np.subtract.at(self.members, clusters, 1)
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
        self.mirror.tell(self.loads, self._changed)

    def _meet(self, known: int) -> None:
        """Follow the clusters that this rank has met beyond the first ``known``."""
        keys = self.table.keys[known:]
        own_loads = self.loads[: self._level.num_own]
        loads = self.mirror.follow(keys, np.arange(known, known + len(keys), dtype=np.int32), own_loads)
        if len(keys):
            del self.sums  # before there are two copies of the loads
            self.loads = np.concatenate([self.loads, loads])
            self.sums = _sums_of(len(self.loads))

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


@dataclass(frozen=True, eq=False)
class Descent:
    """The way from the parts of a level back to those of the finer one, which lies in files meanwhile."""

    level: Level  # the finer one
    labels: I32  # int32[n + ghosts], the cluster of each node of the finer level
    leaders: I64  # int64[coarse n], the own nodes of the finer level with which the own clusters began
    mirror: Mirror  # keeps copies of remote clusters up to date
    num_clusters: int  # number of clusters that this rank knows

    @collective("ranks")
    def project(self, parts: Array) -> Array:
        """Return int[n + ghosts], the parts on the finer level; ``parts``, int[>= coarse n], are of the nodes of the
        coarser level, own ones first.
        """
        of_cluster = np.full(self.num_clusters, -1, parts.dtype)
        of_cluster[self.leaders] = parts[: len(self.leaders)]
        self.mirror.tell(of_cluster)
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
    table = NodeTable(level.keys[leaders], int(level.ghosts.bounds[-1]))
    if exchange.size == 1:
        ((_, rows),) = _merged(level, clusters, len(level.rows.indices), scratch)
        known = clusters.table.keys
        for begin in range(0, len(rows.indices), _ENTRIES_PER_ROUND):
            chunk = slice(begin, begin + _ENTRIES_PER_ROUND)
            rows.indices[chunk] = table.positions(known[rows.indices[chunk]])
    else:
        rows = _assembled(level, clusters, table, len(leaders), scratch)
    indptr, *of_edges = level.rows
    finer = replace(level, rows=Rows(indptr, *map(scratch.park, of_edges)))
    descent = Descent(finer, scratch.park(clusters.labels), leaders, clusters.mirror, len(clusters.table.keys))
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
