"""Multilevel partitioning: clusters of nodes, the edges between clusters, and moves of nodes between parts.

A *label* is the position of a cluster in a table of clusters; a cluster's key is that of the node that it began with.
``parts`` and other arrays of nodes have own nodes first, then ghosts. Ties go by hashes of keys, never to the first in
memory, so that the order of nodes and edges does not matter. Outputs are allocated by the caller. ``rating``
(int32[clusters], zeros) and ``touched`` (int32[clusters]) are scratch.
"""

from typing import Any

import numpy as np

from mpigraph.arrays import Array
from mpigraph.kernels.cache import njit
from mpigraph.kernels.intrinsics import prefetch
from mpigraph.kernels.rng import mix64
from mpigraph.partition.loops import fits

_AHEAD = 16  # entries between a prefetch and the access
_LARGEST = 2**31 - 1


@njit()
def sum_by_group(
    indptr: Array, indices: Array, edge_weights: Array, u: int, groups: Array, sums: Array, met: Array, count: int
) -> int:
    """Add the weight of each edge of a node to the sum of the group that the neighbour is in.

    indptr: int64[n + 1].  indices: int32[m], local nodes.  edge_weights: int32[m], or empty: all 1.
    groups: int32[nodes].  sums: integers[groups], 0 for a group that was not met; increased here.
    met: int32[groups], whose first ``count`` were met before; those that are new follow.  Returns how many then are.
    """
    last = len(indices) - 1
    for i in range(indptr[u], indptr[u + 1]):
        prefetch(groups, indices[min(i + 2 * _AHEAD, last)])
        prefetch(sums, groups[indices[min(i + _AHEAD, last)]])
        group = groups[indices[i]]
        if sums[group] == 0:
            met[count] = group
            count += 1
        sums[group] += edge_weights[i] if len(edge_weights) > 0 else 1
    return count


@njit(inline="always")
def _gain(weight: Any) -> Any:
    """Return a gain as it fits int32."""
    return min(max(weight, -_LARGEST), _LARGEST)


@njit()
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
    weights: int32[n, criteria].  labels: int32[nodes].  label_keys: int64[clusters]; the first n are those of the own
    nodes.  loads: int32[clusters, criteria].  caps: int64[criteria], what a cluster may weigh.
    out_nodes, out_labels: int32[n], filled with the nodes that want to move, and their targets.  Returns their number.
    """
    count_moves = 0
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
            out_nodes[count_moves] = u
            out_labels[count_moves] = best
            count_moves += 1
    return count_moves


@njit()
def accept_in_order(clusters: Array, weights: Array, caps: Array, loads: Array, members: Array, out: Array) -> None:
    """Let nodes join clusters in the given order while the caps allow it.

    clusters: int64[p].  weights: int32[p, criteria].  caps: int64[criteria].  loads: int32[clusters, criteria] and
    members: int32[clusters], increased here.  out: int64[p], 1 where a node may join.
    """
    for i in range(len(clusters)):
        cluster = clusters[i]
        out[i] = fits(weights, i, loads, cluster, caps)
        if out[i]:
            members[cluster] += 1
            for c in range(len(caps)):
                loads[cluster, c] += weights[i, c]


@njit()
def add_rows(clusters: Array, sign: int, weights: Array, loads: Array, members: Array) -> None:
    """Add nodes to clusters, or take them away.

    clusters: int64[p].  sign: 1 or -1.  weights: int32[p, criteria].  loads: int32[clusters, criteria] and
    members: int32[clusters], changed here.
    """
    for i in range(len(clusters)):
        members[clusters[i]] += sign
        for c in range(weights.shape[1]):
            loads[clusters[i], c] += sign * weights[i, c]


@njit()
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

    nodes: int32[p].  out: int32[p], the labels; -1 for a node without edges to other clusters, -2 without any.  The
    others are as in :func:`propose_labels`.
    """
    for k in range(len(nodes)):
        u = nodes[k]
        count = sum_by_group(indptr, indices, edge_weights, u, labels, rating, touched, 0)
        out[k] = -1 if indptr[u] < indptr[u + 1] else -2
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


@njit()
def pack_in_order(groups: Array, weights: Array, caps: Array, out: Array) -> None:
    """Cut each run of equal groups into packs that the caps allow.

    groups: int64[p].  weights: int32[p, criteria].  caps: int64[criteria].  out: int64[p], the index of the first of
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


@njit()
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


@njit()
def best_parts(
    indptr: Array,
    indices: Array,
    edge_weights: Array,
    weights: Array,
    keys: Array,
    parts: Array,
    locked: Array,
    loads: Array,
    limits: Array,
    quarters: int,
    keeping: bool,
    salt: np.uint64,
    out_parts: Array,
    out_gains: Array,
) -> int:
    """Find for each node the other part with most of its edge weight, if a move there loses little enough.

    indptr: int64[n + 1].  indices: int32[m].  edge_weights: int32[m], or empty: all 1.  weights: int32[n, criteria].
    keys: int64[nodes].  parts: int32[nodes].  locked: bool[n], who stays.  loads: int64[parts, criteria].
    limits: int64[criteria].  quarters: a move may lose so many quarters of the weight to the own part.
    keeping: consider only parts that stay within the limits.
    out_parts: int32[n], -1 for who does not move.  out_gains: int32[n], of those that move.  Returns the weight of the
    cut edges.
    """
    num_parts = len(loads)
    links = np.zeros(num_parts, np.int64)
    met = np.empty(num_parts, np.int32)
    cut = 0
    for u in range(len(indptr) - 1):
        here = parts[u]
        count = sum_by_group(indptr, indices, edge_weights, u, parts, links, met, 0)
        inside = links[here]
        best = -1
        best_links = 0
        best_tie = np.uint64(0)
        for t in range(count):
            part = met[t]
            value = links[part]
            links[part] = 0
            if part == here:
                continue
            cut += value
            if locked[u] or value < best_links or 4 * (inside - value) > quarters * inside:
                continue
            tie = mix64(mix64(np.uint64(keys[u]) ^ salt) + np.uint64(part))
            if value == best_links and tie < best_tie:
                continue
            if not keeping or fits(weights, u, loads, part, limits):
                best = part
                best_links = value
                best_tie = tie
        out_parts[u] = best
        if best >= 0:
            out_gains[u] = _gain(best_links - inside)
    return cut


@njit()
def confirm_moves(
    indptr: Array,
    indices: Array,
    edge_weights: Array,
    keys: Array,
    parts: Array,
    targets: Array,
    gains: Array,
    salt: np.uint64,
    out: Array,
) -> None:
    """Compute each gain again as if all neighbours that gain more had moved; keep moves that then lose nothing.

    targets: int32[nodes], -1 for nodes that do not move.  gains: int32[nodes].  out: bool[n].  The others are as in
    :func:`best_parts`.
    """
    last = len(indices) - 1
    for u in range(len(indptr) - 1):
        out[u] = False
        if targets[u] < 0:
            continue
        gain = 0
        own_tie = mix64(np.uint64(keys[u]) ^ salt)
        for i in range(indptr[u], indptr[u + 1]):
            ahead = indices[min(i + _AHEAD, last)]
            prefetch(parts, ahead)
            prefetch(targets, ahead)
            prefetch(gains, ahead)
            v = indices[i]
            part = parts[v]
            if targets[v] >= 0 and gains[v] >= gains[u]:
                if gains[v] > gains[u] or mix64(np.uint64(keys[v]) ^ salt) > own_tie:
                    part = targets[v]
            weight = edge_weights[i] if len(edge_weights) > 0 else 1
            if part == targets[u]:
                gain += weight
            elif part == parts[u]:
                gain -= weight
        out[u] = gain >= 0


@njit()
def leaving_parts(
    indptr: Array,
    indices: Array,
    edge_weights: Array,
    weights: Array,
    keys: Array,
    parts: Array,
    loads: Array,
    limits: Array,
    caps: Array,
    salt: np.uint64,
    out_parts: Array,
    out_gains: Array,
) -> None:
    """Find for each node of an overloaded part another one that can take it: where most of its edges lead, or any.

    A node can help if it has a weight in a criterion that is over its limit. caps: int64[criteria], what a part may
    hold that takes one. The others are as in :func:`best_parts`.
    """
    num_parts = len(loads)
    links = np.zeros(num_parts, np.int64)
    met = np.empty(num_parts, np.int32)
    over = np.zeros(num_parts, np.bool_)
    for part in range(num_parts):
        for c in range(len(limits)):
            if loads[part, c] > limits[c]:
                over[part] = True
    for u in range(len(indptr) - 1):
        here = parts[u]
        out_parts[u] = -1
        helps = False
        if over[here]:
            for c in range(len(limits)):
                if weights[u, c] > 0 and loads[here, c] > limits[c]:
                    helps = True
        if not helps:
            continue
        count = sum_by_group(indptr, indices, edge_weights, u, parts, links, met, 0)
        hashed = mix64(np.uint64(keys[u]) ^ salt)
        start = int(hashed % np.uint64(num_parts))
        best = -1
        for t in range(num_parts):
            part = (start + t) % num_parts
            if part == here or (best >= 0 and links[part] <= links[best]):
                continue
            if fits(weights, u, loads, part, caps):
                best = part
        if best >= 0:
            out_parts[u] = best
            out_gains[u] = _gain(links[best] - links[here])
        for t in range(count):
            links[met[t]] = 0


@njit()
def tally(nodes: Array, groups: Array, bins: Array, weights: Array, out: Array) -> None:
    """Sum weights of nodes by group and bin.

    nodes: int64[p], or empty: the first p.  groups: int32[p].  bins: int16[p], or empty: all 0.
    weights: int32[n, criteria].  out: int64[groups, bins, criteria], increased here.
    """
    for i in range(len(groups)):
        u = nodes[i] if len(nodes) > 0 else i
        k = bins[i] if len(bins) > 0 else 0
        for c in range(weights.shape[1]):
            out[groups[i], k, c] += weights[u, c]
