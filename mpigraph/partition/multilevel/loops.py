"""Multilevel partitioning: clusters of nodes, the edges between clusters, and moves of nodes between parts.

A *label* is the position of a cluster in a table of clusters; a cluster's key is that of the node that it began with.
``parts`` and other arrays of nodes have own nodes first, then ghosts. Ties go by hashes of keys, never to the first in
memory, so that the order of nodes and edges does not matter. Outputs are allocated by the caller.
"""

from typing import Any, NamedTuple

import numpy as np

from mpigraph.arrays import I32, I64, U64, Array
from mpigraph.kernels.cache import njit
from mpigraph.kernels.intrinsics import prefetch
from mpigraph.kernels.rng import mix64
from mpigraph.partition.loops import fits

_AHEAD = 16  # entries between a prefetch and the access
_LARGEST = 2**31 - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # that mix64 adds at first


class Rows(NamedTuple):
    """Rows of a graph, or of clusters, as adjacency arrays."""

    indptr: I64  # int64[n + 1]
    indices: Array  # int[m], local nodes
    weights: Array  # int[m], of the edges; empty: all 1


class Graph(NamedTuple):
    """The own nodes of a level."""

    rows: Rows
    weights: I32  # int32[n, criteria]
    keys: Array  # int[nodes]


class Sums(NamedTuple):
    """Working memory for sums by label."""

    of: I32  # int32[labels], zeros
    met: I32  # int32[labels]


class Clusters(NamedTuple):
    """Clusters that a rank knows; the first n began with its own nodes."""

    labels: I32  # int32[nodes], the cluster of each node
    keys: Array  # int[clusters]
    loads: I32  # int32[clusters, criteria]
    sums: Sums


class Moves(NamedTuple):
    """The parts that nodes would move to."""

    targets: I32  # int32[nodes], -1 for nodes that stay
    gains: I32  # int32[nodes], of those that move


@njit()
def hashes(keys: Array, salt: np.uint64) -> U64:
    """Return uint64[n], a hash of each key (int[n]), one to one for a salt."""
    hashed = np.empty(len(keys), np.uint64)
    for i in range(len(keys)):
        hashed[i] = mix64((np.uint64(keys[i]) ^ salt) - _GOLDEN)
    return hashed


@njit()
def sum_by_group(rows: Rows, u: int, groups: Array, sums: Sums, count: int) -> int:
    """Add the weight of each edge of a node to the sum of the group (int32[nodes]) that the neighbour is in.

    sums: 0 for a group that was not met; increased here.  The first ``count`` groups in ``sums.met`` were met before;
    those that are new follow.  Returns how many then are.
    """
    last = len(rows.indices) - 1
    for i in range(rows.indptr[u], rows.indptr[u + 1]):
        prefetch(groups, rows.indices[min(i + 2 * _AHEAD, last)])
        prefetch(sums.of, groups[rows.indices[min(i + _AHEAD, last)]])
        group = groups[rows.indices[i]]
        if sums.of[group] == 0:
            sums.met[count] = group
            count += 1
        sums.of[group] += rows.weights[i] if len(rows.weights) > 0 else 1
    return count


@njit(inline="always")
def _gain(weight: Any) -> Any:
    """Return a gain as it fits int32."""
    return min(max(weight, -_LARGEST), _LARGEST)


@njit()
def draw_turns(keys: Array, salt: np.uint64, count: int, out: Array) -> None:
    """Draw a turn for each node, below ``count``, by a hash.  keys: int[n or more].  out: int8[n]."""
    for u in range(len(out)):
        out[u] = np.int8(mix64(np.uint64(keys[u]) ^ salt) % np.uint64(count))


@njit()
def best_labels(
    graph: Graph, clusters: Clusters, caps: I64, nodes: Array, stay: bool, salt: np.uint64, out: I32
) -> None:
    """Find for each of some nodes the other cluster that can take it and to which most of its edge weight leads.

    caps: int64[criteria], the most that a cluster may weigh.  nodes: int[p].  stay: a node may stay where it is, unless
    another cluster is better.  out: int32[p], the labels; -1 for a node that may not stay and finds no other cluster.
    """
    of_label = clusters.sums.of
    for k in range(len(nodes)):
        u = nodes[k]
        own = clusters.labels[u]
        count = sum_by_group(graph.rows, u, clusters.labels, clusters.sums, 0)
        best = own if stay else -1
        best_rating = of_label[own] if stay else 0
        best_tie = mix64(mix64(np.uint64(clusters.keys[own])) ^ salt) if stay else np.uint64(0)
        for t in range(count):
            label = clusters.sums.met[t]
            value = of_label[label]
            of_label[label] = 0
            if label == own or value < best_rating:
                continue
            tie = mix64(mix64(np.uint64(clusters.keys[label])) ^ salt)
            if value == best_rating and tie < best_tie:
                continue
            if fits(graph.weights, u, clusters.loads, label, caps):
                best = label
                best_rating = value
                best_tie = tie
        out[k] = best


@njit()
def accept_in_order(clusters: Array, weights: Array, caps: Array, loads: Array, members: Array, out: Array) -> None:
    """Let nodes join clusters in the given order while the caps allow it.

    clusters: int32[p].  weights: int32[p, criteria].  caps: int64[criteria].  loads: int32[clusters, criteria] and
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
    order: Array, bounds: I64, rows: Rows, labels: I32, row_labels: I64, sums: Sums, out: Rows, at: int
) -> int:
    """Join the rows of the nodes of each cluster: one entry for each other cluster, with the sum of the weights.

    order: int[n], nodes cluster after cluster; those of row r are ``order[bounds[r]:bounds[r + 1]]``.  labels:
    int32[nodes].  row_labels: int64[rows], what is left out of each row, its own label.  out: filled here, entries from
    ``at`` on.  Returns where they end.
    """
    out.indptr[0] = at
    for r in range(len(bounds) - 1):
        count = 0
        for k in range(bounds[r], bounds[r + 1]):
            count = sum_by_group(rows, order[k], labels, sums, count)
        for t in range(count):
            label = sums.met[t]
            if label != row_labels[r]:
                out.indices[at] = label
                out.weights[at] = sums.of[label]
                at += 1
            sums.of[label] = 0
        out.indptr[r + 1] = at
    return at


@njit()
def best_parts(
    graph: Graph, parts: I32, locked: Array, loads: I64, caps: I64, quarters: int, salt: np.uint64, moves: Moves
) -> int:
    """Find for each node the other part with most of its edge weight, if a move there loses little enough.

    parts: int32[nodes].  locked: bool[n], the nodes that stay.  loads: int64[parts, criteria].  caps: int64[criteria],
    the most that a part may hold that takes one.  quarters: a move may lose so many quarters of the weight to the own
    part.  moves: filled here.  Returns the weight of the cut edges.
    """
    num_parts = len(loads)
    links = Sums(np.zeros(num_parts, np.int64), np.empty(num_parts, np.int32))
    cut = 0
    for u in range(len(graph.rows.indptr) - 1):
        here = parts[u]
        count = sum_by_group(graph.rows, u, parts, links, 0)
        inside = links.of[here]
        best = -1
        best_links = 0
        best_tie = np.uint64(0)
        for t in range(count):
            part = links.met[t]
            value = links.of[part]
            links.of[part] = 0
            if part == here:
                continue
            cut += value
            if locked[u] or value < best_links or 4 * (inside - value) > quarters * inside:
                continue
            tie = mix64(mix64(np.uint64(graph.keys[u]) ^ salt) + np.uint64(part))
            if value == best_links and tie < best_tie:
                continue
            if fits(graph.weights, u, loads, part, caps):
                best = part
                best_links = value
                best_tie = tie
        moves.targets[u] = best
        if best >= 0:
            moves.gains[u] = _gain(best_links - inside)
    return cut


@njit()
def confirm_moves(graph: Graph, parts: I32, moves: Moves, salt: np.uint64, out: Array) -> None:
    """Compute each gain again as if all neighbours that gain more had moved; keep moves that then lose nothing.

    parts: int32[nodes].  out: bool[n].
    """
    rows = graph.rows
    targets = moves.targets
    gains = moves.gains
    last = len(rows.indices) - 1
    for u in range(len(rows.indptr) - 1):
        out[u] = False
        if targets[u] < 0:
            continue
        gain = 0
        own_tie = mix64(np.uint64(graph.keys[u]) ^ salt)
        for i in range(rows.indptr[u], rows.indptr[u + 1]):
            ahead = rows.indices[min(i + _AHEAD, last)]
            prefetch(parts, ahead)
            prefetch(targets, ahead)
            prefetch(gains, ahead)
            v = rows.indices[i]
            part = parts[v]
            if targets[v] >= 0 and gains[v] >= gains[u]:
                if gains[v] > gains[u] or mix64(np.uint64(graph.keys[v]) ^ salt) > own_tie:
                    part = targets[v]
            weight = rows.weights[i] if len(rows.weights) > 0 else 1
            if part == targets[u]:
                gain += weight
            elif part == parts[u]:
                gain -= weight
        out[u] = gain >= 0


@njit()
def leaving_parts(graph: Graph, parts: I32, loads: I64, excess: I64, caps: I64, salt: np.uint64, moves: Moves) -> None:
    """Find for each node of an overloaded part another one that can take it: where most of its edges lead, or any.

    excess: int64[parts, criteria], what is to leave each part: a node can help that has a weight in such a criterion.
    The others are as in :func:`best_parts`.
    """
    num_parts = len(loads)
    links = Sums(np.zeros(num_parts, np.int64), np.empty(num_parts, np.int32))
    for u in range(len(graph.rows.indptr) - 1):
        here = parts[u]
        moves.targets[u] = -1
        helps = False
        for c in range(len(caps)):
            if graph.weights[u, c] > 0 and excess[here, c] > 0:
                helps = True
        if not helps:
            continue
        count = sum_by_group(graph.rows, u, parts, links, 0)
        hashed = mix64(np.uint64(graph.keys[u]) ^ salt)
        start = int(hashed % np.uint64(num_parts))
        best = -1
        for t in range(num_parts):
            part = (start + t) % num_parts
            if part == here or (best >= 0 and links.of[part] <= links.of[best]):
                continue
            if fits(graph.weights, u, loads, part, caps):
                best = part
        if best >= 0:
            moves.targets[u] = best
            moves.gains[u] = _gain(links.of[best] - links.of[here])
        for t in range(count):
            links.of[links.met[t]] = 0
