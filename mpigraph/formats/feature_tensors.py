"""Rows of features as torch tensors, and as numpy arrays that need no other dtype than numpy's."""

import numpy as np
import torch

from mpigraph.arrays import Array
from mpigraph.partition.source import Feature

__all__ = ["as_numpy", "as_tensor_rows"]


def as_numpy(feature: Feature, rows: Array) -> Array:
    """Return rows of a feature as they were before they were stored; bfloat16 becomes float32."""
    rows = _wide(feature, rows)
    if feature.dtype == "bool":
        return rows.astype(np.bool_)
    return _from_bits(rows) if feature.dtype == "bfloat16" else rows


def as_tensor_rows(feature: Feature, rows: Array) -> torch.Tensor:
    """Return rows of a feature as a tensor, a copy of them, as they were before they were stored."""
    rows = _wide(feature, np.array(rows))
    if feature.dtype == "bool":
        return torch.from_numpy(rows.astype(np.bool_))
    if feature.dtype == "bfloat16":
        return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(rows)


def _wide(feature: Feature, rows: Array) -> Array:
    """Return rows that are stored in 16 bits as they were before."""
    if not feature.narrow:
        return rows
    return (_from_bits(rows) if feature.narrow == "bfloat16" else rows).astype(feature.dtype)


def _from_bits(rows: Array) -> Array:
    return (rows.astype(np.uint32) << np.uint32(16)).view(np.float32)
