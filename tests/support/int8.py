"""Rows as int8 has them, computed by numpy."""

import numpy as np


def as_int8(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the levels of all rows of a feature, int8, and the numbers that they stand for, in the rows' dtype."""
    if not len(rows):
        return rows.astype(np.int8), rows
    low, high = rows.min(0), rows.max(0)
    step = ((high.astype(np.float64) - low) / 255).astype(rows.dtype)
    step_or_one = np.where(step > 0, step, 1).astype(np.float64)
    levels = np.clip(np.rint((rows.astype(np.float64) - low) / step_or_one), 0, 255).astype(rows.dtype)
    return (levels - 128).astype(np.int8), np.where(levels == 255, high, low + step * levels)
