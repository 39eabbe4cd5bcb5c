"""Clusters become the nodes of a coarser level; parts of the coarser level become those of the finer one."""

from dataclasses import dataclass, replace

import numpy as np

from mpigraph.arrays import I32, I64, Array
from mpigraph.collective import collective
from mpigraph.kernels.multilevel import merge_rows
from mpigraph.partition.exchange import Route
from mpigraph.partition.multilevel.clustering import Clusters
from mpigraph.partition.multilevel.dist_csr import Level, Mirror, NodeTable
from mpigraph.partition.spill import MatrixSpill, Scratch

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
def contract(level: Level, clusters: Clusters, scratch: Scratch) -> tuple[Level, Descent]:
    """Return the level whose nodes are the clusters, and the way back.

    Weights of edges between two clusters are added up, and those of nodes in each criterion. A cluster stays with the
    owner of the node that it began with.
    """
    own = level.num_own
    exchange = level.exchange
    leaders = np.flatnonzero(clusters.members > 0)
    weights = clusters.loads[leaders]
    clusters.loads = np.empty((0, weights.shape[1]), np.int32)  # no longer needed, nor is this:
    clusters.members = np.empty(0, np.int32)
    descent = Descent(clusters.labels, leaders, clusters.mirror, len(clusters.table.keys))
    table = NodeTable(level.keys[leaders], int(level.ghosts.bounds[-1]), exchange.size)
    merging = _Merging(level, clusters, scratch)
    if exchange.size == 1:
        number = np.full(own, -1, np.int32)
        number[leaders] = np.arange(len(leaders))
        indptr, indices, edge_weights = merging.rows(0, merging.num_rows)
        for begin in range(0, len(indices), _ENTRIES_PER_ROUND):
            chunk = slice(begin, begin + _ENTRIES_PER_ROUND)
            indices[chunk] = number[indices[chunk]]
    else:
        indptr, indices, edge_weights = _assembled(merging, table, len(leaders), scratch)
    bounds = level.ghosts.bounds
    return Level.of_rows(exchange, bounds, table, indptr, indices, edge_weights, weights), descent


class _Merging:
    """Rows of clusters, merged from the own nodes' rows, piece by piece."""

    def __init__(self, level: Level, clusters: Clusters, scratch: Scratch) -> None:
        labels = clusters.labels[: level.num_own]
        self._order = np.argsort(labels, kind="stable").astype(np.int32)
        ordered = labels[self._order]
        begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: level.num_own])
        self._labels = ordered[begins].astype(np.int64)
        del ordered
        self._bounds = np.append(begins, level.num_own)
        self.level = level
        self._clusters = clusters
        self._scratch = scratch
        degrees = np.diff(level.indptr).astype(np.int32)[self._order]
        sizes = np.add.reduceat(degrees, begins, dtype=np.int64) if len(begins) else begins
        self._sizes = np.append(0, np.cumsum(sizes))  # before merging

    @property
    def num_rows(self) -> int:
        """Number of clusters of own nodes."""
        return len(self._labels)

    def end_of(self, first: int, entries: int) -> int:
        """Return the end of the rows from ``first`` on that have at most ``entries`` before merging; at least one."""
        last = int(np.searchsorted(self._sizes, self._sizes[first] + entries, side="right")) - 1
        return min(max(last, first + 1), self.num_rows)

    def rows(self, first: int, last: int) -> tuple[I64, I32, I32]:
        """Return indptr int64[rows + 1], labels and weights int32[m] of a range of rows."""
        most = int(self._sizes[last] - self._sizes[first])
        indptr = np.zeros(last - first + 1, np.int64)
        labels = self._scratch.empty(most, np.int32)  # unused pages are never touched
        weights = self._scratch.empty(most, np.int32)
        level = self.level
        end = merge_rows(
            self._order, self._bounds[first : last + 1], level.indptr, level.indices, level.edge_weights,
            self._clusters.labels, self._labels[first:last], self._clusters.rating,
            self._clusters.touched, indptr, labels, weights, 0,
        )  # fmt: skip
        return indptr, labels[:end], weights[:end]

    def edges(self, first: int, last: int) -> Array:
        """Return int[m, 3] of a range of rows: the keys of both clusters, and the weight."""
        known = self._clusters.table.keys
        indptr, labels, weights = self.rows(first, last)
        edges = np.empty((len(labels), 3), known.dtype)
        edges[:, 0] = np.repeat(known[self._labels[first:last]], np.diff(indptr))
        edges[:, 1] = known[labels]
        edges[:, 2] = weights
        return edges


def _assembled(merging: _Merging, table: NodeTable, num_rows: int, scratch: Scratch) -> tuple[I64, I32, I32]:
    """Send merged rows to the owners of their clusters, in rounds, and join rows from several ranks."""
    level = merging.level
    arrived = MatrixSpill(scratch, num_rows, 3, np.int32)
    row = 0
    while level.exchange.sum_of(merging.num_rows - row) > 0:
        end = merging.end_of(row, _ENTRIES_PER_ROUND) if row < merging.num_rows else row
        edges = merging.edges(row, end)
        row = end
        came = Route(level.exchange, level.ghosts.owners(edges[:, 0])).there(edges)
        local = np.empty(came.shape, np.int32)
        local[:, 0] = table.positions(np.ascontiguousarray(came[:, 0]))
        local[:, 1] = table.positions(np.ascontiguousarray(came[:, 1]))
        local[:, 2] = came[:, 2]
        arrived.add(local)
    del merging
    indptr = np.zeros(num_rows + 1, np.int64)
    indices = scratch.empty(arrived.num_entries, np.int32)
    weights = scratch.empty(arrived.num_entries, np.int32)
    identity = np.arange(len(table.keys), dtype=np.int32)
    rating = np.zeros(len(identity), np.int32)
    touched = np.empty(len(identity), np.int32)
    at = 0
    for begin, end, starts, (labels, values) in arrived.take():
        every = np.arange(end - begin)
        at = merge_rows(
            every, np.arange(len(every) + 1), starts, labels, values, identity, every + begin,
            rating, touched, indptr[begin : end + 1], indices, weights, at,
        )  # fmt: skip
    return indptr, indices[:at], weights[:at]
