"""Compiled loops of partitioning: adjacency arrays, moves between parts that restore balance, digests.

The caller allocates every output. ``kernels/csr.py`` says how edges are placed into rows (``fill``).
"""

from typing import Any

import numpy as np

from mpigraph.arrays import I64, U64, Array
from mpigraph.kernels.cache import njit
from mpigraph.kernels.rng import mix64


@njit()
def place_both_ways(src: Array, dst: Array, fill: Array, out: Array) -> None:
    """Place each edge of a chunk into the rows of both ends; self loops are left out.

    src, dst: int64[m].  fill: int64[n], advanced here.  out: int32 or int64[2 m], filled here.
    """
    for i in range(len(src)):
        u, v = src[i], dst[i]
        if u == v:
            continue
        out[fill[u]] = v
        fill[u] += 1
        out[fill[v]] = u
        fill[v] += 1


@njit()
def drop_repeats(indptr: Array, ends: Array, indices: Array, mark: Array, out_indptr: Array) -> int:
    """Keep the first of equal entries of each row and close the gaps, in place.

    indptr: int64[n + 1].  ends: int64[n], where each row really ends, which may be before the next one begins.
    indices: int[m], compacted here.  mark: int[n] of -1, scratch: the last row in which each value was met, so that it
    needs no clearing between rows.  out_indptr: int64[n + 1], filled here.  Returns the number of entries kept.
    """
    kept = 0
    for row in range(len(ends)):
        begin, end = indptr[row], ends[row]
        out_indptr[row] = kept
        for i in range(begin, end):
            value = indices[i]
            if mark[value] != row:
                mark[value] = row
                indices[kept] = value
                kept += 1
    out_indptr[len(ends)] = kept
    return kept


@njit()
def distinct_in_rows(indptr: Array, values: Array, out: Array, kept: int, out_indptr: Array) -> int:
    """Sort each row and append its distinct values to those of earlier rows.

    indptr: int64[n + 1].  values: int[m], sorted here.  out: int[>= kept + m], filled from ``kept`` on.
    out_indptr: int64[n + 1], filled here.  Returns the number of entries in ``out`` then.
    """
    out_indptr[0] = kept
    for row in range(len(indptr) - 1):
        entries = values[indptr[row] : indptr[row + 1]]
        entries.sort()
        for i in range(len(entries)):
            if i == 0 or entries[i] != entries[i - 1]:
                out[kept] = entries[i]
                kept += 1
        out_indptr[row + 1] = kept
    return kept


@njit(inline="always")
def _pair_word(u: Any, v: Any) -> Any:
    """Return a hash of an unordered pair, 0 for one node twice, with the sign of its direction."""
    # the mixer of kernels/rng.py on a word that is distinct for each pair
    word = np.uint64(min(u, v)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(max(u, v))
    word ^= word >> np.uint64(31)
    word *= np.uint64(0xBF58476D1CE4E5B9)
    word ^= word >> np.uint64(27)
    word *= np.uint64(0x94D049BB133111EB)
    return word if u < v else np.uint64(0) - word if u > v else np.uint64(0)


@njit()
def asymmetry_of_edges(src: Array, dst: Array) -> Any:
    """Return a sum modulo 2**64 over edges; that of all edges is 0 if each has its reverse (see :func:`asymmetry`).

    src, dst: int64[m].
    """
    remainder = np.uint64(0)
    for i in range(len(src)):
        remainder += _pair_word(src[i], dst[i])
    return remainder


@njit()
def asymmetry(indptr: Array, indices: Array) -> int:
    """Return 0 for a symmetric adjacency without repeats or self loops.

    Sums a 64-bit hash of the pair (smaller, larger end), with its sign by direction: both directions
    cancel, and a missing one leaves a remainder except with probability 2**-64.

    indptr: int64[n + 1].  indices: int[m].
    """
    remainder = np.uint64(0)
    for row in range(len(indptr) - 1):
        for i in range(indptr[row], indptr[row + 1]):
            if indices[i] == row:
                return 1
            remainder += _pair_word(row, indices[i])
    return 0 if remainder == np.uint64(0) else 1


@njit()
def fits(weights: Array, row: int, loads: Array, group: int, limits: Array) -> bool:
    """Return whether a group stays within the limits with a row added, in each criterion in which the row has a weight.

    weights: integers[rows, criteria].  loads: integers[groups, criteria].  limits: int64[criteria].
    """
    for c in range(len(limits)):
        if weights[row, c] > 0 and loads[group, c] + weights[row, c] > limits[c]:
            return False
    return True


@njit()
def rebalance(
    indptr: Array, indices: Array, weights: Array, limits: Array, max_loss: int, loads: Array, parts: Array
) -> int:
    """Move nodes out of overloaded parts to where most of their neighbours are.

    A node moves if its part exceeds the limit of a criterion in which the node has a weight, if the target stays within
    all limits, and if the cut grows by no more than ``max_loss`` edges. One greedy pass over the nodes, in their order.

    indptr: int64[n + 1], indices: int[m]: symmetric adjacency.  weights: int64[n, criteria].
    limits: int64[criteria].  loads: int64[parts, criteria], kept up to date here.  parts: int32[n], changed here.
    Returns the number of moves.
    """
    num_parts, num_criteria = loads.shape
    links = np.zeros(num_parts, np.int64)
    moves = 0
    for node in range(len(parts)):
        here = parts[node]
        over = False
        for c in range(num_criteria):
            if weights[node, c] > 0 and loads[here, c] > limits[c]:
                over = True
        if not over:
            continue
        links[:] = 0  # edges of the node into each part: a move from here to there cuts links[here] - links[there] more
        for i in range(indptr[node], indptr[node + 1]):
            links[parts[indices[i]]] += 1
        best = -1
        for there in range(num_parts):
            if there == here or links[here] - links[there] > max_loss or not fits(weights, node, loads, there, limits):
                continue
            if best < 0 or links[there] > links[best]:
                best = there
        if best >= 0:
            loads[here] -= weights[node]
            loads[best] += weights[node]
            parts[node] = best
            moves += 1
    return moves


@njit()
def add_digest(keys: U64, begins: I64, first: int, a: Array, b: Array, total: Array) -> None:
    """Add the hashes of rows (number, a, b) to a digest.

    keys: uint64[kinds], what the rows are.  begins: int64[kinds + 1], the first row of each kind; in a kind they are
    numbered from 0.  first: number of the first row among all kinds.  a, b: int[n].  total: uint64[2], increased here.
    """
    for kind in range(len(keys)):
        key, shift = keys[kind], first - begins[kind]
        for i in range(max(0, -shift), min(len(a), begins[kind + 1] - first)):
            h = mix64(key ^ mix64(np.uint64(shift + i)))
            h = mix64(h ^ np.uint64(a[i]))
            h = mix64(h ^ np.uint64(b[i]))
            total[0] += h
            total[1] += mix64(h ^ key)
