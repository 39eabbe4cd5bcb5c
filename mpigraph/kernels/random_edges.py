"""Draw the edges of a planted-community graph.

Every edge is a hash of its number, so that any chunk of edges can be drawn at any time, and twice with the same result.
"""

import numba
import numpy as np

from mpigraph.arrays import Array
from mpigraph.kernels.rng import draw_below, mix64, uniform01

__all__ = ["draw_edges"]


@numba.njit(nogil=True, cache=True)
def draw_edges(
    key: np.uint64,
    first: int,
    stubs: Array,
    block_of: Array,
    block_stubs: Array,
    class_of_block: Array,
    class_stubs: Array,
    p_block: float,
    p_class: float,
    low: Array,
    high: Array,
) -> None:
    """Draw edges number ``first`` onwards.

    Both ends are stubs (half-edges, as in the configuration model), so a node is drawn in proportion to its weight. The
    second is drawn from the block of the first with probability ``p_block``, from its class with ``p_class``, else from
    all nodes.

    key: hash of the seed.  stubs: int32[s], nodes, each repeated by weight, in order.  block_of: int32[n].
    block_stubs: int64[blocks + 1], class_stubs: int64[classes + 1], ranges in stubs.  class_of_block: int32[blocks].
    low, high: int64[m], filled here with the smaller and the larger end (equal for a self loop).
    """
    for i in range(len(low)):
        word = mix64(key ^ mix64(np.uint64(first + i)))
        u = stubs[draw_below(word, np.int64(len(stubs)))]
        word = mix64(word)
        where = uniform01(word)
        begin, end = np.int64(0), np.int64(len(stubs))
        block = block_of[u]
        if where < p_block:
            begin, end = block_stubs[block], block_stubs[block + 1]
        elif where < p_block + p_class:
            begin, end = class_stubs[class_of_block[block]], class_stubs[class_of_block[block] + 1]
        v = stubs[begin + draw_below(mix64(word), end - begin)]
        low[i] = min(u, v)
        high[i] = max(u, v)
