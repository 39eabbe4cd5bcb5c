"""Optimizers of sparse rows: add up the gradients of each touched row in a given order, and update the row once.

A gradient is in one of two arrays: ``own[~s]`` where its source s is negative, ``arrived[s]`` else; so neither those of
this rank nor those received are copied together. Those of distinct row d are the sources
``sources[bounds[d]:bounds[d + 1]]``, added from the first to the last; so the sum, which is not associative in floating
point, depends on that order alone. Everything is computed in float32, except the powers in the bias correction of Adam
and the mean square of row-wise Adagrad, which are float64 and then rounded.
"""

from typing import Any, NamedTuple

import numpy as np

from mpigraph.arrays import F32, I32, I64
from mpigraph.kernels.cache import njit
from mpigraph.kernels.csr import by_key


class Gradients(NamedTuple):
    """Gradients by distinct row.

    Attributes:
        own: float32[n, width].
        arrived: float32[k, width].
        sources: int64[m], where each gradient is, sorted by distinct row.
        bounds: int64[d + 1], where those of each distinct row begin.
        mean: divide the sum by the number of gradients.
    """

    own: F32
    arrived: F32
    sources: I64
    bounds: I64
    mean: bool


def collect(places: I32, count: int, own: F32, arrived: F32, sources: I64, mean: bool) -> Gradients:
    """Sort gradients by distinct row, stably.

    Args:
        places: int32[m], the distinct row of each gradient.
        count: how many distinct rows there are.
        own: float32[n, width].
        arrived: float32[k, width].
        sources: int64[m], where each gradient is.
        mean: divide the sum by the number of gradients.
    """
    bounds, order = by_key(places, count)
    return Gradients(own, arrived, sources[order], bounds, mean)


@njit(error_model="numpy")
def _reduce(gradients: Any, row: int, total: F32) -> None:
    """``total`` (float32[width]) = the sum or mean of the gradients of a distinct row."""
    begin, end = gradients.bounds[row], gradients.bounds[row + 1]
    for i in range(begin, end):
        s = gradients.sources[i]
        gradient = gradients.own[~s] if s < 0 else gradients.arrived[s]
        if i == begin:
            for j in range(len(total)):
                total[j] = gradient[j]  # not 0 + gradient, which would turn -0.0 into 0.0
        else:
            for j in range(len(total)):
                total[j] += gradient[j]
    if gradients.mean and end - begin > 1:
        count = np.float32(end - begin)
        for j in range(len(total)):
            total[j] /= count


@njit(error_model="numpy")
def descend(
    gradients: Any, which: I64, table: F32, places: I64, sums: Any, row_sums: Any, rows: I64, lr: Any, eps: Any
) -> None:
    """Gradient descent ``w -= lr * g``, or Adagrad ``G += g * g; w -= lr * g / (sqrt(G) + eps)``.

    Duchi, Hazan, Singer: "Adaptive subgradient methods for online learning and stochastic optimization", JMLR 2011.
    With one G for a row, ``G += mean(g * g)``, as for the embedding tables of recommenders, e.g. Naumov et al.: "Deep
    learning recommendation model for personalization and recommendation systems", 2019.

    Args:
        gradients: :class:`Gradients`.
        which: int64[k], distinct rows, by number in ``gradients``.
        table: float32[n, width], updated here.
        places: int64[k], the row of ``table`` for each of them.
        sums: float32[n, width], G, updated here; or None.
        row_sums: float32[n], G with one for a row, updated here; or None.
        rows: int64[k], the row of ``sums`` or ``row_sums`` for each of ``which``.
        lr: float32, the learning rate; a float64 would make the loop compute in float64.
        eps: float32.
    """
    g = np.empty(table.shape[1], np.float32)
    for k in range(len(which)):
        _reduce(gradients, which[k], g)
        w = table[places[k]]
        if sums is not None:
            total = sums[rows[k]]
            for j in range(len(g)):
                total[j] += g[j] * g[j]
                w[j] -= lr * g[j] / (np.sqrt(total[j]) + eps)
        elif row_sums is not None:
            square = 0.0
            for j in range(len(g)):
                square += np.float64(g[j]) * np.float64(g[j])
            row_sums[rows[k]] += np.float32(square / len(g))
            scale = np.sqrt(row_sums[rows[k]]) + eps
            for j in range(len(g)):
                w[j] -= lr * g[j] / scale
        else:
            for j in range(len(g)):
                w[j] -= lr * g[j]


@njit(error_model="numpy")
def adam(
    gradients: Any,
    which: I64,
    table: F32,
    places: I64,
    exp_avg: F32,
    exp_avg_sq: F32,
    steps: F32,
    rows: I64,
    lr: float,
    beta1: float,
    beta2: float,
    eps: np.float32,
) -> None:
    """Adam of the touched rows, each with its own number of steps t.

    ``t += 1; m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g g; w -= lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)``.
    Kingma, Ba: "Adam: a method for stochastic optimization", ICLR 2015.

    gradients, which, table, places: as for :func:`descend`.  exp_avg, exp_avg_sq: float32[n, width], m and v, updated
    here.  steps: float32[n], t, updated here.  rows: int64[k], the row of the state for each of ``which``.
    """
    g = np.empty(table.shape[1], np.float32)
    # rounded once, from float64: 1 - float32(beta) is another number
    keep1 = np.float32(beta1)
    keep2 = np.float32(beta2)
    add1 = np.float32(1.0 - beta1)
    add2 = np.float32(1.0 - beta2)
    for k in range(len(which)):
        _reduce(gradients, which[k], g)
        r = rows[k]
        steps[r] += np.float32(1.0)
        t = np.float64(steps[r])
        # the bias corrections 1 - b^t are small at first, and float32 would lose their digits
        rate = np.float32(lr / (1.0 - beta1**t))
        scale = np.float32(1.0 / np.sqrt(1.0 - beta2**t))
        w = table[places[k]]
        m = exp_avg[r]
        v = exp_avg_sq[r]
        for j in range(len(g)):
            m[j] = keep1 * m[j] + add1 * g[j]
            v[j] = keep2 * v[j] + add2 * g[j] * g[j]
            w[j] -= rate * m[j] / (np.sqrt(v[j]) * scale + eps)
