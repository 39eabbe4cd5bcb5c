"""Draw the other ends of negative edges.

A draw is a hash of ``(key, edge id, number of the draw)``: it depends neither on the batch nor on the rank that the
edge falls in.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from mpigraph.kernels.rng import mix64

__all__ = ["draw_nodes", "draw_others"]

_I64 = npt.NDArray[np.int64]
_LOW32, _S32 = np.uint64(0xFFFFFFFF), np.uint64(32)


@njit(nogil=True, cache=True, inline="always")
def _below(h: Any, n: Any) -> Any:
    """Map a hash to an integer in ``[0, n)``: the high word of the product of 64-bit words.

    Lemire, "Fast random integer generation in an interval", ACM TOMACS 2019, without the rejection step. Unlike
    :func:`.rng.draw_below` it uses all 64 bits, so the bias is below n / 2**64: the range is that of all nodes here.
    """
    low, high = h & _LOW32, h >> _S32
    n_low, n_high = n & _LOW32, n >> _S32
    middle = high * n_low + ((low * n_low) >> _S32)
    crossed = low * n_high + (middle & _LOW32)
    return np.int64(high * n_high + (middle >> _S32) + (crossed >> _S32))


@njit(nogil=True, cache=True)
def draw_nodes(key: np.uint64, eids: _I64, count: int, first: int, num: int, out: _I64) -> None:
    """Draw nodes for each edge, uniformly and with replacement. Local; no communication.

    Args:
        key: hash of everything that the draws depend on but the edge.
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


@njit(nogil=True, cache=True)
def draw_others(key: np.uint64, eids: _I64, count: int, out: _I64) -> None:
    """Draw positions of other edges for each edge, uniformly and with replacement. Local; no communication.

    Args:
        key: as in :func:`draw_nodes`.
        eids: int64[n], n >= 2, edge ids.
        count: draws for each edge.
        out: int64[n * count], filled edge by edge with positions in ``eids``, never the edge's own.
    """
    others = np.uint64(len(eids) - 1)
    for i in range(len(eids)):
        edge_key = mix64(key ^ mix64(eids[i]))
        for j in range(count):
            position = _below(mix64(edge_key + np.uint64(j)), others)
            out[i * count + j] = position + (position >= i)
