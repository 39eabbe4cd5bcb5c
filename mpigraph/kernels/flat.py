"""Loops over flat arrays of numbers: dropout and ReLU in one pass, and 16-bit floats, which numba lacks."""

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic

from mpigraph.arrays import U32, Array
from mpigraph.kernels.cache import njit

# Dropout and ReLU in one pass over flat arrays. The caller draws the bits and allocates the output.
#
# ``limit`` has the dtype of the bits and ``scale`` that of the numbers: with mixed types LLVM would not vectorize the
# loops.

_Bits = npt.NDArray[np.unsignedinteger[Any]]


@njit()
def drop(x: Array, bits: _Bits, limit: Any, scale: Any, relu: bool, out: Array) -> None:
    """``out = x * scale`` where ``bits < limit``, else ``x * 0``; of ``max(x, 0)`` with ``relu``, where NaN stays.

    x, out: float[n].  bits: uint8[n] or uint16[n], uniform.  Without ``relu`` the backward pass is the same function,
    of the gradient.
    """
    zero = scale - scale  # 0 in the type of scale; x * 0, not 0, so that NaN and infinity show
    for i in range(len(x)):
        out[i] = (zero if relu and x[i] <= zero else x[i]) * (scale if bits[i] < limit else zero)


@njit()
def relu_drop_backward(grad: Array, kept: Array, scale: Any, out: Array) -> None:
    """``out = grad * scale`` where ``kept`` is not 0, else 0.

    grad, out: float[n].  kept: float[n], as :func:`drop` filled it with ``relu``.
    """
    zero = scale - scale
    for i in range(len(grad)):
        out[i] = zero if kept[i] <= zero else grad[i] * scale


# 16-bit floats, which numba lacks: as bits, float16 and bfloat16 to float32, and float32 to bfloat16.
#
# float32 has every value of both, so widening is exact, subnormal numbers included. Rows are widened in place: the
# narrow rows lie in the last bytes of the memory of the wide ones. From the front on, each element is read before its
# memory is overwritten.

_BLOCK = 2048  # elements: only the last blocks overlap with their source, and are not vectorised

_MANTISSA, _EXPONENT, _SIGN = np.uint32(0x3FF), np.uint32(0x7C00), np.uint32(0x8000)  # of a float16
_SHIFT = np.uint32(13)  # between the mantissas
_REBIAS = np.uint32(112 << 23)  # 127 - 15: between the exponents
_SMALLEST, _SMALLEST_BITS = np.float32(2.0**-14), np.uint32(113 << 23)  # the smallest normal float16

_BFLOAT16_SHIFT = np.uint32(16)
_INFINITE = np.uint32(0x7F800000)  # float32
_QUIET = np.uint16(0x40)  # the bit of a bfloat16 that keeps NaN from becoming infinite


def _from_bits(typingctx: Any, bits: Any) -> Any:
    """Type and emit the cast: numba's protocol for intrinsics."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), emit


def _from_bits_slowly(bits: np.uint32) -> np.float32:
    """Cast in Python (``NUMBA_DISABLE_JIT=1``)."""
    return bits.view(np.float32)


_as_float: Any = _from_bits_slowly if config.DISABLE_JIT else intrinsic(_from_bits)  # type: ignore[attr-defined]


def narrow_part(wide: Array, dtype: np.dtype[np.generic]) -> Array:
    """View the last bytes of rows as rows of the same shape of a narrower dtype, the input of :func:`widen`."""
    nbytes = wide.size * dtype.itemsize
    return wide.reshape(-1).view(np.uint8)[wide.nbytes - nbytes :].view(dtype).reshape(wide.shape)


def widen(wide: Array, brain: bool) -> None:
    """Widen the 16-bit rows in the :func:`narrow_part` of ``wide``.

    Args:
        wide: float32 or float64[n, ...], C-contiguous.
        brain: the narrow rows are bfloat16, else float16.
    """
    _widen(narrow_part(wide, np.dtype(np.uint16)).reshape(-1), wide.reshape(-1), brain)


@njit()
def _widen(narrow: Array, wide: Array, brain: bool) -> None:
    for begin in range(0, len(wide), _BLOCK):
        end = min(begin + _BLOCK, len(wide))
        if brain:
            _brain_block(narrow[begin:end], wide[begin:end])
        else:
            _half_block(narrow[begin:end], wide[begin:end])


@njit()
def _brain_block(narrow: Array, wide: Array) -> None:
    for i in range(len(wide)):
        wide[i] = _as_float(np.uint32(narrow[i]) << _BFLOAT16_SHIFT)


@njit()
def _half_block(narrow: Array, wide: Array) -> None:
    for i in range(len(wide)):
        half = np.uint32(narrow[i])
        exponent = half & _EXPONENT
        # with the exponent of the smallest normal number, a subnormal one is too large by that
        small = _as_float(((half & _MANTISSA) << _SHIFT) | _SMALLEST_BITS) - _SMALLEST
        bits = ((half & (_EXPONENT | _MANTISSA)) << _SHIFT) + _REBIAS
        bits = bits + _REBIAS if exponent == _EXPONENT else bits  # infinite, or NaN
        value = small if exponent == np.uint32(0) else _as_float(bits)
        wide[i] = value if half & _SIGN == np.uint32(0) else -value


@njit()
def round_to_bfloat16(bits: U32, out: Array) -> int:
    """Round float32 numbers, given as bits, to the nearest bfloat16, ties to even; NaN stays NaN.

    Returns:
        Position of the first finite number that becomes infinite, or -1.
    """
    lost = -1
    for i in range(len(out)):
        word = bits[i]
        top = word >> _BFLOAT16_SHIFT
        magnitude = word & np.uint32(0x7FFFFFFF)
        if magnitude > _INFINITE:
            out[i] = np.uint16(top) | _QUIET
            continue
        rounded = (word + np.uint32(0x7FFF) + (top & np.uint32(1))) >> _BFLOAT16_SHIFT
        out[i] = np.uint16(rounded)
        if lost < 0 and magnitude < _INFINITE and (rounded & np.uint32(0x7FFF)) == np.uint32(0x7F80):
            lost = i
    return lost
