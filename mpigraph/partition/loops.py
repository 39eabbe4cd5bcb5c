"""Compiled loops of partitioning: adjacency arrays, limits of parts, digests, edges of generated graphs.

The caller allocates every output. All sorts are stable: edges of equal key keep their order.
"""

from typing import Any

import numpy as np

from mpigraph.arrays import I32, I64, U64, Array
from mpigraph.kernels.cache import njit
from mpigraph.kernels.rng import draw_below, mix64, uniform01


@njit()
def number_by_key(keys: Array, fill: Array, out: Array) -> None:
    """Number items, those of each key through.

    keys: int[m].  fill: int64[n], the next number of each key; advanced here.  out: int64[m], filled here.
    """
    for i in range(len(keys)):
        out[i] = fill[keys[i]]
        fill[keys[i]] += 1


@njit()
def sort_rows(indptr: Array, values: Array, ids: Array) -> None:
    """Sort the entries of each row by value, in place; entries of equal value keep their order.

    indptr: int64[n + 1].  values, ids: int[m].
    """
    for row in range(len(indptr) - 1):
        begin, end = indptr[row], indptr[row + 1]
        if end - begin > 32:
            order = np.argsort(values[begin:end], kind="mergesort")
            values[begin:end] = values[begin:end][order]
            ids[begin:end] = ids[begin:end][order]
            continue
        for i in range(begin + 1, end):
            value, its_id = values[i], ids[i]
            j = i
            while j > begin and values[j - 1] > value:
                values[j] = values[j - 1]
                ids[j] = ids[j - 1]
                j -= 1
            values[j] = value
            ids[j] = its_id


@njit()
def distinct_in_rows(indptr: Array, values: Array, first: int, out_indptr: Array) -> int:
    """Sort each row and keep its distinct values, at the beginning of ``values``; return how many there are.

    indptr: int64[n + 1].  values: int[m], changed here.  first: entries of earlier rows.  out_indptr: int64[n + 1],
    filled here.
    """
    kept = 0
    out_indptr[0] = first
    for row in range(len(indptr) - 1):
        entries = values[indptr[row] : indptr[row + 1]]
        entries.sort()
        before = np.int64(-1)  # no value is negative
        for i in range(len(entries)):
            if entries[i] != before:
                before = np.int64(entries[i])
                values[kept] = entries[i]
                kept += 1
        out_indptr[row + 1] = first + kept
    return kept


@njit()
def add_asymmetry(src: Array, dst: Array, total: U64) -> None:
    """Add a hash of each edge; modulo 2**64 the sum of all is 0 if each edge has its reverse, and seldom if not.

    src, dst: int64[m].  total: uint64[1], increased here.  Both directions of an edge cancel; a missing one leaves a
    remainder except with probability 2**-64.
    """
    for i in range(len(src)):
        u, v = src[i], dst[i]
        word = mix64(np.uint64(min(u, v)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(max(u, v)))
        if u < v:
            total[0] += word
        elif u > v:
            total[0] -= word


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


# A row holds the edges of one node of a generated graph, each a hash of its number. Rows are drawn independently: any
# rank can draw any of them.

_MAX_DRAWS = 64  # of one edge; where communities are nearly complete, the next free node is taken then


@njit(inline="always")
def _node_of(stub: Any, stub_ends: Array, guide: Array, shift: int) -> Any:
    """Return the node to which a stub belongs, searching from the node of the first stub of its interval on."""
    node = np.int64(guide[stub >> shift])
    while stub >= np.int64(stub_ends[node]):
        node += 1
    return node


@njit(inline="always")
def _draws(u: Any, v: Any) -> Any:
    """Return whether ``u`` may draw ``v``: of two nodes, exactly one may draw the other, so no pair is drawn twice."""
    return u != v and (u < v) == ((u ^ v) & 1 == 1)


@njit()
def draw_rows(
    key: np.uint64,
    first: int,
    indptr: I64,
    stub_ends: Array,
    guide: Array,
    shift: int,
    block_of: Array,
    block_stubs: I64,
    class_of_block: Array,
    class_stubs: I64,
    p_block: float,
    p_class: float,
    last_row: I32,
    ends: I32,
) -> None:
    """Draw the other ends of the edges of nodes ``first`` onwards; no pair of nodes occurs twice in the graph.

    The other end is a stub (a half-edge, as in the configuration model), so a node is drawn in proportion to its
    weight: from the block of the first end with probability ``p_block``, from its class with ``p_class``, else from all
    nodes. A node that a row holds already, or must leave to the other's row, is drawn again.

    key: hash of the seed.  indptr: int64[rows + 1], numbers of the edges of each row.  stub_ends: uint32[n], where the
    stubs of each node end and those of the next one begin; each has at least one.  guide: int32[intervals], the nodes
    of stubs 0, 2**shift, 2 * 2**shift and so on.  block_of: int32[n].  block_stubs: int64[blocks + 1], class_stubs:
    int64[classes + 1], ranges of stubs.  class_of_block: int32[blocks].  last_row: int32[n], the last row that holds
    each node, at first -1.  ends: int32[edges], filled here.
    """
    num_nodes = np.int64(len(stub_ends))
    num_stubs = np.int64(stub_ends[num_nodes - 1])
    for row in range(len(indptr) - 1):
        u = first + row
        block = block_of[u]
        for edge in range(indptr[row], indptr[row + 1]):
            word = mix64(key ^ mix64(np.uint64(edge)))
            v = np.int64(u)
            draws = 0
            while draws < _MAX_DRAWS and not (_draws(u, v) and last_row[v] != u):
                draws += 1
                word = mix64(word)
                where = uniform01(word)
                begin, end = np.int64(0), num_stubs
                if where < p_block:
                    begin, end = block_stubs[block], block_stubs[block + 1]
                elif where < p_block + p_class:
                    begin, end = class_stubs[class_of_block[block]], class_stubs[class_of_block[block] + 1]
                word = mix64(word)
                v = _node_of(begin + draw_below(word, end - begin), stub_ends, guide, shift)
            while not (_draws(u, v) and last_row[v] != u):
                v = np.int64((v + 1) % num_nodes)
            last_row[v] = u
            ends[edge - indptr[0]] = v
