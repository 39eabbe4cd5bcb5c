"""Dropout and ReLU in one pass over flat arrays. The caller draws the bits and allocates the output.

``limit`` is of the type of the bits and ``scale`` of the type of the numbers, so that the loops vectorize.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from mpigraph.arrays import Array

__all__ = ["drop", "relu_drop", "relu_drop_backward"]

_Bits = npt.NDArray[np.unsignedinteger[Any]]


@njit(nogil=True, cache=True)
def drop(x: Array, bits: _Bits, limit: Any, scale: Any, out: Array) -> None:
    """``out = x * scale`` where ``bits < limit``, else ``x * 0``.

    x, out: float[n].  bits: uint8[n] or uint16[n], uniform.  The gradient is the same function of the gradient.
    """
    zero = scale - scale
    for i in range(len(x)):
        out[i] = x[i] * (scale if bits[i] < limit else zero)


@njit(nogil=True, cache=True)
def relu_drop(x: Array, bits: _Bits, limit: Any, scale: Any, out: Array) -> None:
    """:func:`drop` of ``max(x, 0)``; not-a-number stays."""
    zero = scale - scale
    for i in range(len(x)):
        out[i] = (zero if x[i] <= zero else x[i]) * (scale if bits[i] < limit else zero)


@njit(nogil=True, cache=True)
def relu_drop_backward(grad: Array, kept: Array, scale: Any, out: Array) -> None:
    """``out = grad * scale`` where ``kept``, what :func:`relu_drop` returned, is not 0."""
    zero = scale - scale
    for i in range(len(grad)):
        out[i] = zero if kept[i] <= zero else grad[i] * scale
