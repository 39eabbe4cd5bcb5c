"""Moves of nodes between parts: gains, who moves if the neighbours move too, and how much would move where.

``parts`` and what else is of nodes counts own nodes first, then ghosts. Ties are broken by hashes of the nodes' keys.
"""

import numba
import numpy as np

from mpigraph.arrays import Array
from mpigraph.kernels.group_sums import fits, sum_by_group
from mpigraph.kernels.prefetch_hint import prefetch
from mpigraph.kernels.rng import mix64

__all__ = ["best_parts", "confirm_moves", "leaving_parts", "tally"]

_AHEAD = 16  # entries between a prefetch and the access
NEVER = -(2**62)


@numba.njit(nogil=True, cache=True)
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

    indptr: int64[n + 1].  indices: int32[m].  edge_weights: int32[m], or empty: all 1.  weights: int64[n, criteria].
    keys: int64[nodes].  parts: int32[nodes].  locked: bool[n], who stays.  loads: int64[parts, criteria].
    limits: int64[criteria].  quarters: a move may lose so many quarters of the weight to the own part.
    keeping: consider only parts that stay within the limits.
    out_parts: int32[n], -1 for who does not move.  out_gains: int64[n].  Returns the weight of the cut edges.
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
        out_gains[u] = best_links - inside if best >= 0 else NEVER
    return cut


@numba.njit(nogil=True, cache=True)
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
    """Reckon each gain again as if all neighbours that gain more had moved already; keep what loses nothing then.

    targets: int32[nodes], -1 for who does not move.  gains: int64[nodes].  out: bool[n].  The others are as in
    :func:`best_parts`.
    """
    last = len(indices) - 1
    for u in range(len(indptr) - 1):
        out[u] = False
        if targets[u] < 0:
            continue
        gain = 0
        mine = mix64(np.uint64(keys[u]) ^ salt)
        for i in range(indptr[u], indptr[u + 1]):
            ahead = indices[min(i + _AHEAD, last)]
            prefetch(parts, ahead)
            prefetch(targets, ahead)
            prefetch(gains, ahead)
            v = indices[i]
            part = parts[v]
            if targets[v] >= 0 and gains[v] >= gains[u]:
                if gains[v] > gains[u] or mix64(np.uint64(keys[v]) ^ salt) > mine:
                    part = targets[v]
            weight = edge_weights[i] if len(edge_weights) > 0 else 1
            if part == targets[u]:
                gain += weight
            elif part == parts[u]:
                gain -= weight
        out[u] = gain >= 0


@numba.njit(nogil=True, cache=True)
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
            out_gains[u] = links[best] - links[here]
        for t in range(count):
            links[met[t]] = 0


@numba.njit(nogil=True, cache=True)
def tally(groups: Array, bins: Array, weights: Array, out: Array) -> None:
    """Sum weights by group and bin.

    groups: int32[p].  bins: int64[p].  weights: int64[p, criteria].  out: int64[groups, bins, criteria], increased
    here.
    """
    for i in range(len(groups)):
        for c in range(weights.shape[1]):
            out[groups[i], bins[i], c] += weights[i, c]
