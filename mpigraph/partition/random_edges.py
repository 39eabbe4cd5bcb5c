"""Draw the edges of a planted-community graph, each a hash of its number.

A row holds the edges of one node, and rows are drawn independently: any rank can draw any of them.
"""

from typing import Any

import numpy as np

from mpigraph.arrays import I32, I64, Array
from mpigraph.kernels.cache import njit
from mpigraph.kernels.rng import draw_below, mix64, uniform01

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
