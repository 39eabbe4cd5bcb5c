"""Draw the corrupted ends of negative edges.

A draw is a hash of ``(key, edge id, number of the draw)``: it depends neither on the batch nor on the rank to which the
edge is assigned.
"""

from typing import Any

import numpy as np

from mpigraph.arrays import I64, Mask
from mpigraph.kernels.cache import njit
from mpigraph.kernels.rng import LOW32, S32, mix64


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
def draw_nodes(key: np.uint64, eids: I64, count: int, num: int, out: I64) -> None:
    """Draw nodes for each edge, uniformly and with replacement.

    Args:
        key: hash of everything that the draws depend on except the edge.
        eids: int64[n], edge ids.
        count: draws for each edge.
        num: how many nodes can be drawn: ``0 .. num - 1``.
        out: int64[n * count], filled edge by edge.
    """
    for i in range(len(eids)):
        edge_key = mix64(key ^ mix64(eids[i]))
        for j in range(count):
            out[i * count + j] = _below(mix64(edge_key + np.uint64(j)), np.uint64(num))


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
