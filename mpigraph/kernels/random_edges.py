"""Draw edges: those of a planted-community graph, and the corrupted ends of negative edges.

Each edge is a hash of its number. A row holds the edges of one node, and rows are drawn independently: any rank can
draw any of them.
"""

from typing import Any

import numpy as np

from mpigraph.arrays import I32, I64, Array, Mask
from mpigraph.kernels.cache import njit
from mpigraph.kernels.rng import LOW32, S32, draw_below, mix64, uniform01

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


# Draw the corrupted ends of negative edges.
#
# A draw is a hash of ``(key, edge id, number of the draw)``: it depends neither on the batch nor on the rank to which
# the edge is assigned.


@njit(inline="always")
def _below(h: Any, n: Any) -> Any:
    """Map a hash to an integer in ``[0, n)``: the high word of the product of 64-bit words.

    Lemire, "Fast random integer generation in an interval", ACM TOMACS 2019, without the rejection step. Unlike
    :func:`.rng.draw_below` it uses all 64 bits, so the bias is below n / 2**64: the range is that of all nodes here.
    """
    # schoolbook multiplication of 32-bit halves, since neither numba nor numpy has 128-bit integers
    low, high = h & LOW32, h >> S32
    n_low, n_high = n & LOW32, n >> S32
    middle = high * n_low + ((low * n_low) >> S32)
    crossed = low * n_high + (middle & LOW32)
    return np.int64(high * n_high + (middle >> S32) + (crossed >> S32))


@njit()
def draw_nodes(key: np.uint64, eids: I64, count: int, first: int, num: int, out: I64) -> None:
    """Draw nodes for each edge, uniformly and with replacement.

    Args:
        key: hash of everything that the draws depend on except the edge.
        eids: int64[n], edge ids.
        count: draws for each edge.
        first: the smallest node that can be drawn.
        num: how many nodes can be drawn: ``first .. first + num - 1``.
        out: int64[n * count], filled edge by edge.
    """
    for i in range(len(eids)):
        edge_key = mix64(key ^ mix64(eids[i]))
        for j in range(count):
            out[i * count + j] = first + _below(mix64(edge_key + np.uint64(j)), np.uint64(num))


@njit()
def draw_others(key: np.uint64, eids: I64, count: int, out: I64) -> None:
    """Draw positions of other edges for each edge, uniformly and with replacement.

    Args:
        key: as in :func:`draw_nodes`.
        eids: int64[n], n >= 2, edge ids.
        count: draws for each edge.
        out: int64[n * count], filled edge by edge with positions in ``eids``, never the edge's own.
    """
    num_others = np.uint64(len(eids) - 1)
    for i in range(len(eids)):
        edge_key = mix64(key ^ mix64(eids[i]))
        for j in range(count):
            position = _below(mix64(edge_key + np.uint64(j)), num_others)
            out[i * count + j] = position + (position >= i)  # leaves out the edge itself, without a second draw


@njit()
def keep_candidates(src: I64, dst: I64, tries: int, count: int, distinct: bool, allowed: Mask) -> None:
    """Keep the first ``count`` allowed candidates of each edge.

    Args:
        src: int64[n * tries], sources of the candidates, edge by edge.
        dst: int64[n * tries], their destinations.
        tries: candidates of an edge.
        count: most pairs to keep of an edge.
        distinct: skip pairs that were kept before, of this edge or another one.
        allowed: bool[n * tries], which pairs may be kept; cleared where they are not kept.
    """
    bits = 4
    while (1 << bits) < 2 * len(src):  # at most half full, so linear probing ends soon
        bits += 1
    table = np.full(1 << bits, -1, np.int64)  # positions of the kept pairs, by hash; open addressing
    for first in range(0, len(src), tries):
        kept = 0
        for i in range(first, first + tries):
            if not allowed[i] or kept == count:
                allowed[i] = False
                continue
            if distinct:
                at = np.int64(mix64(np.uint64(src[i]) ^ mix64(dst[i])) >> np.uint64(64 - bits))
                while table[at] >= 0 and (src[table[at]] != src[i] or dst[table[at]] != dst[i]):
                    at = (at + 1) & ((1 << bits) - 1)
                if table[at] >= 0:
                    allowed[i] = False
                    continue
                table[at] = i
            kept += 1
