"""Rows of numbers as levels, int8: each column has 256, at equal distances from its lowest number to its highest.

Level 0 is the lowest number and level 255 the highest, exactly; those between are ``low + step * level`` in the
dtype of the numbers. Like 16-bit floats (``float16.py``), levels are turned into numbers in place, from the front of
the memory.
"""

import numpy as np

from mpigraph.arrays import Array
from mpigraph.kernels.cache import njit

LAST = 255
"""The highest level, counted from 0; it is stored as 127."""

_SHIFT = 128


@njit(nogil=True, cache=True, error_model="numpy")
def to_levels(rows: Array, low: Array, step: Array, out: Array) -> None:
    """Find the nearest level of each number; what lies outside of the levels gets the first or the last.

    Args:
        rows: float32 or float64[n].
        low: [k], the first level of each of k successive numbers, again and again.
        step: [k], between levels; 0 where all numbers are one.
        out: int8[n], to fill.
    """
    for begin in range(0, len(rows), max(1, len(low))):
        for i in range(begin, min(begin + len(low), len(rows))):
            first = np.float64(low[i - begin])
            distance = np.float64(step[i - begin])
            level = (rows[i] - first) / distance if distance > 0.0 else 0.0
            out[i] = np.int8(min(max(np.rint(level), 0.0), 255.0) - _SHIFT)


@njit(nogil=True, cache=True)
def widen_levels(levels: Array, wide: Array, low: Array, step: Array, high: Array) -> None:
    """Turn ``levels`` (int8[n]), which may be the last bytes of ``wide``, into numbers (float32 or float64[n]).

    ``low``, ``step`` and ``high`` are the first level, the distance between levels and the last level of each of k
    successive numbers, again and again: [k], of the dtype of ``wide``.
    """
    for begin in range(0, len(wide), max(1, len(low))):
        end = min(begin + len(low), len(wide))
        _widen_block(levels[begin:end], wide[begin:end], low, step, high)


@njit(nogil=True, cache=True)
def _widen_block(levels: Array, wide: Array, low: Array, step: Array, high: Array) -> None:
    for i in range(len(wide)):
        level = np.float32(np.int32(levels[i]) + np.int32(_SHIFT))  # wider types take longer
        between = low[i] + step[i] * level
        wide[i] = high[i] if level == np.float32(LAST) else between
