"""Clusters of nodes: proposing and accepting moves, packing what is left over, merging the edges of clusters.

A *label* is the position of a cluster in a table of clusters; a cluster's key is that of the node that it began with.
Ties go to the larger hash of a key, never to the first in memory, so that the order of nodes and edges does not matter.
Outputs are allocated by the caller. ``rating`` (int32[clusters], zeros) and ``touched`` (int32[clusters]) are scratch.
"""

import numba
import numpy as np

from mpigraph.arrays import Array
from mpigraph.kernels.group_sums import fits, sum_by_group
from mpigraph.kernels.rng import mix64

__all__ = ["accept_in_order", "add_rows", "favourite_labels", "merge_rows", "pack_in_order", "propose_labels"]


@numba.njit(nogil=True, cache=True)
def propose_labels(
    indptr: Array,
    indices: Array,
    edge_weights: Array,
    weights: Array,
    labels: Array,
    label_keys: Array,
    loads: Array,
    caps: Array,
    turn: int,
    salt: np.uint64,
    rating: Array,
    touched: Array,
    out_nodes: Array,
    out_labels: Array,
) -> int:
    """Find the cluster to which most edge weight of a node leads, for the nodes whose turn it is (hash modulo 8).

    indptr: int64[n + 1].  indices: int32[m], local nodes.  edge_weights: int32[m], or empty: all 1.
    weights: int64[n, criteria].  labels: int32[nodes].  label_keys: int64[clusters]; the first n are those of the own
    nodes.  loads: int64[clusters, criteria].  caps: int64[criteria], what a cluster may weigh.
    out_nodes, out_labels: int32[n], filled with those who want to move, and where.  Returns their number.
    """
    found = 0
    for u in range(len(indptr) - 1):
        if np.int64(mix64(np.uint64(label_keys[u]) ^ salt) & np.uint64(7)) != turn:
            continue
        count = sum_by_group(indptr, indices, edge_weights, u, labels, rating, touched, 0)
        own = labels[u]
        best = own
        best_rating = rating[own]
        best_tie = mix64(mix64(np.uint64(label_keys[own])) ^ salt)
        for t in range(count):
            label = touched[t]
            value = rating[label]
            rating[label] = 0
            if label == own or value < best_rating:
                continue
            tie = mix64(mix64(np.uint64(label_keys[label])) ^ salt)
            if value == best_rating and tie < best_tie:
                continue
            if fits(weights, u, loads, label, caps):
                best = label
                best_rating = value
                best_tie = tie
        if best != own:
            out_nodes[found] = u
            out_labels[found] = best
            found += 1
    return found


@numba.njit(nogil=True, cache=True)
def accept_in_order(clusters: Array, weights: Array, caps: Array, loads: Array, members: Array, out: Array) -> None:
    """Let nodes join clusters in the given order while the caps allow it.

    clusters: int64[p].  weights: int64[p, criteria].  caps: int64[criteria].  loads: int64[clusters, criteria] and
    members: int32[clusters], increased here.  out: int64[p], 1 where a node may join.
    """
    for i in range(len(clusters)):
        cluster = clusters[i]
        out[i] = fits(weights, i, loads, cluster, caps)
        if out[i]:
            members[cluster] += 1
            for c in range(len(caps)):
                loads[cluster, c] += weights[i, c]


@numba.njit(nogil=True, cache=True)
def add_rows(clusters: Array, sign: int, weights: Array, loads: Array, members: Array) -> None:
    """Add nodes to clusters, or take them away.

    clusters: int64[p].  sign: 1 or -1.  weights: int64[p, criteria].  loads: int64[clusters, criteria] and
    members: int32[clusters], changed here.
    """
    for i in range(len(clusters)):
        members[clusters[i]] += sign
        for c in range(weights.shape[1]):
            loads[clusters[i], c] += sign * weights[i, c]


@numba.njit(nogil=True, cache=True)
def favourite_labels(
    indptr: Array,
    indices: Array,
    edge_weights: Array,
    nodes: Array,
    labels: Array,
    label_keys: Array,
    salt: np.uint64,
    rating: Array,
    touched: Array,
    out: Array,
) -> None:
    """Find for some nodes the cluster that they would join if it were not full.

    nodes: int64[p].  out: int32[p], the labels; -1 for a node without edges to other clusters.  The others are as in
    :func:`propose_labels`.
    """
    for k in range(len(nodes)):
        u = nodes[k]
        count = sum_by_group(indptr, indices, edge_weights, u, labels, rating, touched, 0)
        out[k] = -1
        best_rating = 0
        best_tie = np.uint64(0)
        for t in range(count):
            label = touched[t]
            value = rating[label]
            rating[label] = 0
            if label == labels[u] or value < best_rating:
                continue
            tie = mix64(mix64(np.uint64(label_keys[label])) ^ salt)
            if value > best_rating or tie > best_tie:
                out[k] = label
                best_rating = value
                best_tie = tie


@numba.njit(nogil=True, cache=True)
def pack_in_order(groups: Array, weights: Array, caps: Array, out: Array) -> None:
    """Cut each run of equal groups into packs that the caps allow.

    groups: int64[p].  weights: int64[p, criteria].  caps: int64[criteria].  out: int64[p], the index of the first of
    each one's pack.
    """
    load = np.zeros((1, len(caps)), np.int64)
    for i in range(len(groups)):
        joins = i > 0 and groups[i] == groups[i - 1] and fits(weights, i, load, 0, caps)
        if not joins:
            load[:] = 0
        out[i] = out[i - 1] if joins else i
        for c in range(len(caps)):
            load[0, c] += weights[i, c]


@numba.njit(nogil=True, cache=True)
def merge_rows(
    order: Array,
    bounds: Array,
    indptr: Array,
    indices: Array,
    edge_weights: Array,
    labels: Array,
    row_labels: Array,
    rating: Array,
    touched: Array,
    out_indptr: Array,
    out_labels: Array,
    out_weights: Array,
    at: int,
) -> int:
    """Join the rows of the nodes of each cluster: one entry for each other cluster, with the sum of the weights.

    order: int64[n], nodes cluster after cluster; those of row r are ``order[bounds[r]:bounds[r + 1]]``.
    indptr, indices, edge_weights, labels: as in :func:`propose_labels`.  row_labels: int64[rows], what is left out of
    each row, its own label.  rating, touched: int32[labels], scratch; rating is 0.  out_indptr: int64[rows + 1].
    out_labels, out_weights: int32[>= at + entries], all three filled here.  at: where they begin in the latter two.
    Returns where they end.
    """
    out_indptr[0] = at
    for r in range(len(bounds) - 1):
        count = 0
        for k in range(bounds[r], bounds[r + 1]):
            count = sum_by_group(indptr, indices, edge_weights, order[k], labels, rating, touched, count)
        for t in range(count):
            label = touched[t]
            if label != row_labels[r]:
                out_labels[at] = label
                out_weights[at] = rating[label]
                at += 1
            rating[label] = 0
        out_indptr[r + 1] = at
    return at
