"""Field names and small helpers that every module above torch shares; no graph class lives here."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from mpigraph.errors import GraphDataError

__all__ = ["ALL", "EID", "ETYPE", "NID", "NTYPE", "as_ids", "as_tensor"]

NID: Final = "_ID"
"""Name of the node field that holds the original (global) ids."""
EID: Final = "_ID"
"""Name of the edge field that holds the original (global) ids."""
NTYPE: Final = "_TYPE"
"""Name of the node field that holds type ids."""
ETYPE: Final = "_TYPE"
"""Name of the edge field that holds type ids."""
ALL: Final = "__ALL__"
"""Stands for all nodes or all edges where ids are expected."""


def as_tensor(values: torch.Tensor | npt.ArrayLike | Sequence[Any]) -> torch.Tensor:
    """View tensors and arrays as a tensor, without a copy where torch allows it.

    Local; no communication.

    Args:
        values: a tensor, an array, or nested lists of numbers.
    """
    if isinstance(values, torch.Tensor):
        return values
    array = np.asarray(values)
    if array.dtype.hasobject or array.dtype.kind in "USmM":
        raise GraphDataError(f"expected numbers (got an array of {array.dtype})")
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()  # torch has no read-only tensors and no negative strides
    return torch.from_numpy(array)


def as_ids(ids: torch.Tensor | npt.ArrayLike | Sequence[int], what: str) -> torch.Tensor:
    """Turn ids of any integer dtype into a one-dimensional int64 tensor.

    Local; no communication.

    Args:
        ids: n integers; an empty list of any dtype is fine.
        what: names the ids in the error.

    Raises:
        GraphDataError: the ids are not integers or not one-dimensional.
    """
    tensor = as_tensor(ids)
    if tensor.dim() == 0:
        tensor = tensor.reshape(1)
    if tensor.dim() != 1:
        raise GraphDataError(f"{what} must be one-dimensional (got shape {tuple(tensor.shape)})")
    if tensor.numel() and (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool):
        raise GraphDataError(f"{what} must be integers (got {tensor.dtype})")
    return tensor.to(torch.int64)
