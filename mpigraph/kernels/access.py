"""How likely nodes are in a minibatch: the chance that an edge is drawn, and its way to the edge's source.

A node is missed if every edge that leads from it to a node of the frontier is. Chances to be missed are multiplied, so
their logarithms are added: as integers, in units of 2**-52 and no more than :data:`MOST`, so that the sum is the same
in whatever order it is made, on however many ranks.
"""

import math

import numpy as np
from numba import njit

from mpigraph.arrays import F64, I32, I64, Array

__all__ = ["MOST", "add_amounts", "add_to_sources", "as_amounts", "draw_odds", "list_sources", "reach"]

_ONE = 2.0**52
_SURE = 64.0  # exp(-64) is nothing beside 1
MOST = 64 << 52
"""The amount of what cannot be missed."""


@njit(nogil=True, cache=True)
def draw_odds(rows: I64, indptr: I64, chances: F64, fanout: int, replace: bool, odds: F64) -> None:
    """Fill float64[n] with the chance that a given in-edge of each destination is drawn.

    Args:
        rows: int64[n], the destinations.
        indptr: int64[destinations + 1].
        chances: float64[n], how likely each is in the frontier.
        fanout: neighbours that are drawn; all, if below 0.
        replace: with replacement.
        odds: filled.
    """
    for i in range(len(rows)):
        degree = indptr[rows[i] + 1] - indptr[rows[i]]
        odd = 1.0
        if degree == 0:
            odd = 0.0
        elif fanout >= 0 and replace and degree > 1:
            odd = -math.expm1(fanout * math.log1p(-1.0 / degree))
        elif 0 <= fanout < degree:
            odd = fanout / degree
        odds[i] = odd * chances[i]


@njit(nogil=True, cache=True)
def as_amounts(odds: F64, amounts: I64) -> None:
    """Fill int64[n] with minus the logarithm of the chance that something of each of ``odds`` (float64[n]) fails."""
    for i in range(len(odds)):
        amount = _SURE if odds[i] >= 1.0 else min(-math.log1p(-odds[i]), _SURE)
        amounts[i] = np.int64(math.floor(amount * _ONE + 0.5))


@njit(nogil=True, cache=True)
def list_sources(rows: I64, indptr: I64, indices: Array, bases: I64, keys: I64) -> None:
    """Fill ``keys`` with base + source of each in-edge of some destinations.

    Args:
        rows: int64[n], the destinations.
        indptr: int64[destinations + 1].
        indices: int32 or int64 [nnz], the sources.
        bases: int64[n].
        keys: int64[edges of the rows], filled.
    """
    at = 0
    for i in range(len(rows)):
        for e in range(indptr[rows[i]], indptr[rows[i] + 1]):
            keys[at] = bases[i] + indices[e]
            at += 1


@njit(nogil=True, cache=True)
def add_to_sources(rows: I64, indptr: I64, amounts: I64, positions: I32, sums: I64) -> None:
    """Add the amount of each destination (int64[n]) at the position of each of its in-edges (int32[edges])."""
    at = 0
    for i in range(len(rows)):
        for _ in range(indptr[rows[i] + 1] - indptr[rows[i]]):
            p = positions[at]
            sums[p] = min(sums[p] + amounts[i], MOST)
            at += 1


@njit(nogil=True, cache=True)
def add_amounts(positions: I32, amounts: I64, sums: I64) -> None:
    """Add ``amounts`` (int64[n]) at ``positions`` (int32[n]) of ``sums``."""
    for i in range(len(positions)):
        p = positions[i]
        sums[p] = min(sums[p] + amounts[i], MOST)


@njit(nogil=True, cache=True)
def reach(total: F64, fresh: F64, sums: I64) -> None:
    """After a hop: the chances that nodes are in the minibatch, and that they are and were not before.

    Args:
        total: float64[n], how likely each node was found before the hop; made what it is after the hop.
        fresh: float64[n], filled with the difference.
        sums: int64[n], the amounts of the hop's edges; made 0.
    """
    for i in range(len(total)):
        fresh[i] = (1.0 - total[i]) * -math.expm1(-(sums[i] / _ONE))
        total[i] += fresh[i]
        sums[i] = 0
