"""16-bit floats, which numba has not: as bits, float16 and bfloat16 to float32, and float32 to bfloat16.

float32 has every value of both, so widening is exact, subnormal numbers included. Rows are widened where they lie: the
narrow ones in the last bytes of the memory of the wide ones. An element is read before anything is written there, as
long as the first ones go first.
"""

import numpy as np
from numba import njit

from mpigraph.arrays import U32, Array

__all__ = ["narrow_part", "round_to_bfloat16", "widen"]

_BLOCK = 2048  # elements: what is read and not yet written stays in the first cache

_MANTISSA, _EXPONENT, _SIGN = np.uint32(0x3FF), np.uint32(0x7C00), np.uint32(0x8000)  # of a float16
_SHIFT, _SIGN_SHIFT = np.uint32(13), np.uint32(16)  # where they are in a float32
_REBIAS = np.uint32(112 << 23)  # 127 - 15: between the exponents
_SMALLEST, _SMALLEST_BITS = np.float32(2.0**-14), np.uint32(113 << 23)  # the smallest normal float16

_BFLOAT16_SHIFT = np.uint32(16)
_INFINITE = np.uint32(0x7F800000)  # float32
_QUIET = np.uint16(0x40)  # the bit of a bfloat16 that keeps NaN from becoming infinite


def narrow_part(wide: Array, dtype: np.dtype[np.generic]) -> Array:
    """The last bytes of rows as rows of as many elements of a narrower dtype, for :func:`widen` to begin with."""
    nbytes = wide.size * dtype.itemsize
    return wide.reshape(-1).view(np.uint8)[wide.nbytes - nbytes :].view(dtype).reshape(wide.shape)


def widen(wide: Array, brain: bool) -> None:
    """Make rows of the 16-bit ones that lie in their :func:`narrow_part`.

    Args:
        wide: float32 or float64[n, ...], C-contiguous.
        brain: they are bfloat16, else float16.
    """
    narrow = narrow_part(wide, np.dtype(np.uint16)).reshape(-1)
    (_widen_brain if brain else _widen_half)(narrow, wide.reshape(-1))


@njit(nogil=True, cache=True)
def _copy(values: Array, out: Array) -> None:
    for i in range(len(out)):
        out[i] = values[i]


@njit(nogil=True, cache=True)
def _brain_bits(narrow: Array, words: U32) -> None:
    for i in range(len(words)):
        words[i] = np.uint32(narrow[i]) << _BFLOAT16_SHIFT


@njit(nogil=True, cache=True)
def _widen_brain(narrow: Array, wide: Array) -> None:
    words = np.empty(_BLOCK, np.uint32)
    floats = words.view(np.float32)
    for begin in range(0, len(wide), _BLOCK):
        count = min(_BLOCK, len(wide) - begin)
        _brain_bits(narrow[begin : begin + count], words[:count])
        _copy(floats[:count], wide[begin : begin + count])


@njit(nogil=True, cache=True)
def _subnormal_bits(narrow: Array, words: U32) -> None:
    """The mantissas of float16 numbers behind the exponent of the smallest normal one, which is too much by that."""
    for i in range(len(words)):
        words[i] = ((np.uint32(narrow[i]) & _MANTISSA) << _SHIFT) | _SMALLEST_BITS


@njit(nogil=True, cache=True)
def _take_smallest(floats: Array) -> None:
    for i in range(len(floats)):
        floats[i] -= _SMALLEST


@njit(nogil=True, cache=True)
def _half_bits(narrow: Array, words: U32) -> None:
    """The bits of float16 numbers as float32; ``words`` has those of subnormal ones."""
    for i in range(len(words)):
        half = np.uint32(narrow[i])
        exponent = half & _EXPONENT
        bits = ((half & (_EXPONENT | _MANTISSA)) << _SHIFT) + _REBIAS
        bits = bits + _REBIAS if exponent == _EXPONENT else bits  # infinite, or NaN
        bits = words[i] if exponent == np.uint32(0) else bits
        words[i] = bits | ((half & _SIGN) << _SIGN_SHIFT)


@njit(nogil=True, cache=True)
def _widen_half(narrow: Array, wide: Array) -> None:
    words = np.empty(_BLOCK, np.uint32)
    floats = words.view(np.float32)
    for begin in range(0, len(wide), _BLOCK):
        count = min(_BLOCK, len(wide) - begin)
        some = narrow[begin : begin + count]
        _subnormal_bits(some, words[:count])
        _take_smallest(floats[:count])
        _half_bits(some, words[:count])
        _copy(floats[:count], wide[begin : begin + count])


@njit(nogil=True, cache=True)
def round_to_bfloat16(bits: U32, out: Array) -> int:
    """Round float32 numbers, given as bits, to the nearest bfloat16, of two the even one; NaN stays NaN.

    Returns:
        Position of the first finite one that becomes infinite; -1 if there is none.
    """
    lost = -1
    for i in range(len(out)):
        word = bits[i]
        top = word >> _BFLOAT16_SHIFT
        magnitude = word & np.uint32(0x7FFFFFFF)
        if magnitude > _INFINITE:
            out[i] = np.uint16(top) | _QUIET
            continue
        found = (word + np.uint32(0x7FFF) + (top & np.uint32(1))) >> _BFLOAT16_SHIFT
        out[i] = np.uint16(found)
        if lost < 0 and magnitude < _INFINITE and (found & np.uint32(0x7FFF)) == np.uint32(0x7F80):
            lost = i
    return lost
