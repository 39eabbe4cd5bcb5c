"""Clusters become the nodes of a coarser level; parts of the coarser level become those of the finer one."""

from dataclasses import dataclass

import numpy as np

from mpigraph.arrays import I32, I64
from mpigraph.kernels.clusters import merge_rows
from mpigraph.kernels.csr import count_keys, place_values
from mpigraph.partition.exchange import Route
from mpigraph.partition.multilevel.clustering import Clusters
from mpigraph.partition.multilevel.dist_csr import Level, Mirror, NodeTable

__all__ = ["Descent", "contract"]


@dataclass(frozen=True, eq=False)
class Descent:
    """The way from the parts of a level back to those of the finer one.

    Attributes:
        labels: int32[n + ghosts], the cluster of each node of the finer level.
        leaders: int64[coarse n], the own nodes of the finer level with which the own clusters began.
        mirror: by which owners tell of clusters.
        num_clusters: how many clusters this rank knows.
    """

    labels: I32
    leaders: I64
    mirror: Mirror
    num_clusters: int

    def project(self, parts: I32) -> I32:
        """Return int32[n + ghosts], the parts on the finer level. Collective on the ranks.

        Args:
            parts: int32[>= coarse n], of the nodes of the coarser level, own ones first.
        """
        of_cluster = np.full(self.num_clusters, -1, np.int32)
        of_cluster[self.leaders] = parts[: len(self.leaders)]
        told = np.full((self.mirror.num_own, 1), -1, np.int64)
        told[self.leaders, 0] = parts[: len(self.leaders)]
        positions, values = self.mirror.update(None, told)
        of_cluster[positions] = values[:, 0]
        return of_cluster[self.labels]


def contract(level: Level, clusters: Clusters) -> tuple[Level, Descent]:
    """Return the level whose nodes are the clusters, and the way back. Collective on the ranks.

    Weights of edges between two clusters are added up, and those of nodes in each criterion. A cluster stays with the
    owner of the node that it began with.
    """
    own = level.num_own
    leaders = np.flatnonzero(clusters.members > 0)
    descent = Descent(clusters.labels, leaders, clusters.mirror, len(clusters.table.keys))
    order = np.argsort(clusters.labels[:own], kind="stable")
    row_labels, begins = np.unique(clusters.labels[:own][order], return_index=True)
    rows = row_labels.astype(np.int64)
    bounds = np.append(begins, own)
    indptr, labels, edge_weights = _merged(
        order, bounds, level.indptr, level.indices, level.edge_weights, clusters.labels, rows, len(clusters.table.keys)
    )
    keys = level.keys[leaders]
    weights = clusters.loads[leaders]
    ghosts = level.ghosts
    table = NodeTable(keys, int(ghosts.bounds[-1]), level.exchange.size == 1)
    if level.exchange.size == 1:
        number = np.full(own, -1, np.int32)
        number[leaders] = np.arange(len(leaders))
        indices = number[labels]
    else:
        known = clusters.table.keys
        ends = np.stack([np.repeat(known[rows], np.diff(indptr)), known[labels]], axis=1)
        del labels
        route = Route(level.exchange, ghosts.owners(ends[:, 0]))
        came = route.there(ends)
        came_weights = route.there(edge_weights[:, None])[:, 0]
        del ends, edge_weights, route
        indptr, indices, edge_weights = _assembled(table, len(leaders), came, came_weights)
    coarse = Level.of_rows(level.exchange, ghosts.bounds, table, indptr, indices, edge_weights, weights)
    return coarse, descent


def _merged(
    order: I64, bounds: I64, indptr: I64, indices: I32, edge_weights: I32, labels: I32, rows: I64, num_labels: int
) -> tuple[I64, I32, I32]:
    """Count the merged entries, then make them: indptr, labels and weights of the rows."""
    rating = np.zeros(num_labels, np.int32)
    touched = np.empty(num_labels, np.int32)
    merged = np.zeros(len(bounds), np.int64)
    nothing = np.empty(0, np.int32)
    fixed = (order, bounds, indptr, indices, edge_weights, labels, rows, rating, touched, merged)
    merge_rows(*fixed, nothing, nothing)
    out_labels = np.empty(int(merged[-1]), np.int32)
    out_weights = np.empty(int(merged[-1]), np.int32)
    if len(out_labels):
        merge_rows(*fixed, out_labels, out_weights)
    return merged, out_labels, out_weights


def _assembled(table: NodeTable, num_rows: int, ends: I64, edge_weights: I32) -> tuple[I64, I32, I32]:
    """Make rows of edges that several ranks have sent: ``ends`` int64[m, 2], keys."""
    rows = table.positions(np.ascontiguousarray(ends[:, 0])).astype(np.int64)
    others = table.positions(np.ascontiguousarray(ends[:, 1]))
    counts = np.zeros(num_rows + 1, np.int64)
    count_keys(rows, 1, counts)
    indptr = np.cumsum(counts)
    indices = np.empty(len(rows), np.int32)
    weights = np.empty(len(rows), np.int32)
    place_values(rows, others, indptr[:-1].copy(), indices)
    place_values(rows, edge_weights, indptr[:-1].copy(), weights)
    identity = np.arange(len(table.keys), dtype=np.int32)
    every = np.arange(num_rows)
    return _merged(every, np.arange(num_rows + 1), indptr, indices, weights, identity, every, len(table.keys))
