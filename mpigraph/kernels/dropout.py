"""Dropout and ReLU in one pass over flat arrays. The caller draws the bits and allocates the output.

``limit`` has the dtype of the bits and ``scale`` that of the numbers: with mixed types LLVM would not vectorize the
loops.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import Array
from mpigraph.kernels.cache import njit

_Bits = npt.NDArray[np.unsignedinteger[Any]]


@njit(nogil=True, cache=True)
def drop(x: Array, bits: _Bits, limit: Any, scale: Any, out: Array) -> None:
    """``out = x * scale`` where ``bits < limit``, else ``x * 0``.

    x, out: float[n].  bits: uint8[n] or uint16[n], uniform.  The backward pass is the same function, of the gradient.
    """
    zero = scale - scale  # 0 in the type of scale; x * 0, not 0, so that NaN and infinity show
    for i in range(len(x)):
        out[i] = x[i] * (scale if bits[i] < limit else zero)


@njit(nogil=True, cache=True)
def relu_drop(x: Array, bits: _Bits, limit: Any, scale: Any, out: Array) -> None:
    """:func:`drop` of ``max(x, 0)``; NaN stays.

    x, bits, out: as for :func:`drop`.
    """
    zero = scale - scale
    for i in range(len(x)):
        out[i] = (zero if x[i] <= zero else x[i]) * (scale if bits[i] < limit else zero)


@njit(nogil=True, cache=True)
def relu_drop_backward(grad: Array, kept: Array, scale: Any, out: Array) -> None:
    """``out = grad * scale`` where ``kept`` is not 0, else 0.

    grad, out: float[n].  kept: float[n], as :func:`relu_drop` filled it.
    """
    zero = scale - scale
    for i in range(len(grad)):
        out[i] = zero if kept[i] <= zero else grad[i] * scale
