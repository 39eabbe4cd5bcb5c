"""Logical dtypes between torch and storage: bfloat16 rows are stored as uint16, bool ones as uint8."""

from typing import Any

import numpy as np
import torch

from mpigraph.errors import InvalidArgumentError
from mpigraph.storage.format import storage_dtype

__all__ = ["dtype_name", "to_storage", "to_torch"]


def dtype_name(dtype: torch.dtype) -> str:
    """The logical name of a torch dtype ("float32").

    Raises:
        InvalidArgumentError: not a dtype, or one that cannot be stored.
    """
    if not isinstance(dtype, torch.dtype):
        raise InvalidArgumentError(f"dtype must be a torch.dtype (got {dtype!r})")
    name = str(dtype).removeprefix("torch.")
    storage_dtype(name)
    return name


def to_torch(rows: np.ndarray[Any, Any], dtype: str) -> torch.Tensor:
    """View rows in their storage dtype as a tensor of the logical dtype."""
    if dtype == "bfloat16":
        return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)
    if dtype == "bool":
        return torch.from_numpy(rows.view(np.bool_))
    return torch.from_numpy(rows)


def to_storage(values: torch.Tensor, dtype: str) -> np.ndarray[Any, Any]:
    """View a contiguous CPU tensor of a logical dtype in its storage dtype."""
    if dtype == "bfloat16":
        return values.view(torch.int16).numpy().view(np.uint16)
    return values.numpy().view(storage_dtype(dtype))
