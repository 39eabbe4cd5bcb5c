"""Draw the edges of a planted-community graph.

Every edge is a hash of its number, so that any chunk of edges can be drawn at any time, by any rank, and twice with the
same result.
"""

from typing import Any

import numba
import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.kernels.rng import draw_below, mix64, uniform01

__all__ = ["draw_edges"]


@numba.njit(nogil=True, cache=True, inline="always")
def _node_of(stub: Any, stub_ends: Array, guide: Array, shift: int) -> Any:
    """Find the node to which a stub belongs, from that of the first stub of its interval on."""
    node = np.int64(guide[stub >> shift])
    while stub >= np.int64(stub_ends[node]):
        node += 1
    return node


@numba.njit(nogil=True, cache=True)
def draw_edges(
    key: np.uint64,
    first: int,
    stub_ends: Array,
    guide: Array,
    shift: int,
    block_of: Array,
    block_stubs: I64,
    class_of_block: Array,
    class_stubs: I64,
    p_block: float,
    p_class: float,
    pairs: Array,
) -> None:
    """Draw edges number ``first`` onwards.

    Both ends are stubs (half-edges, as in the configuration model), so a node is drawn in proportion to its weight. The
    second is drawn from the block of the first with probability ``p_block``, from its class with ``p_class``, else from
    all nodes.

    key: hash of the seed.  stub_ends: uint32[n], where the stubs of each node end and those of the next one begin; each
    has at least one.  guide: int32[intervals], the nodes of stubs 0, 2**shift, 2 * 2**shift and so on.
    block_of: int32[n].  block_stubs: int64[blocks + 1], class_stubs: int64[classes + 1], ranges of stubs.
    class_of_block: int32[blocks].  pairs: int32[m, 2], filled here with the smaller and the larger end (equal for a
    self loop).
    """
    num_stubs = np.int64(stub_ends[len(stub_ends) - 1])
    for i in range(len(pairs)):
        word = mix64(key ^ mix64(np.uint64(first + i)))
        u = _node_of(draw_below(word, num_stubs), stub_ends, guide, shift)
        word = mix64(word)
        where = uniform01(word)
        begin, end = np.int64(0), num_stubs
        block = block_of[u]
        if where < p_block:
            begin, end = block_stubs[block], block_stubs[block + 1]
        elif where < p_block + p_class:
            begin, end = class_stubs[class_of_block[block]], class_stubs[class_of_block[block] + 1]
        v = _node_of(begin + draw_below(mix64(word), end - begin), stub_ends, guide, shift)
        pairs[i, 0] = min(u, v)
        pairs[i, 1] = max(u, v)
