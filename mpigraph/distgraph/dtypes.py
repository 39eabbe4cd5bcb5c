"""Logical dtypes between torch and storage, where numpy lacks some, such as bfloat16; names of dtypes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs import fields
from mpigraph.graphs.fields import TensorLike
from mpigraph.storage.format import storage_dtype
from mpigraph.storage.narrow import FeatDtype, check_feat_dtype

GivenDtype = str | torch.dtype | Mapping[str, str | torch.dtype] | None
"""The dtype in which features are stored, ``torch.float16``, ``bfloat16`` or its name; for all or by name."""


def dtype_name(dtype: torch.dtype) -> str:
    """Return the logical name of a torch dtype ("float32"). Raises InvalidArgumentError if it cannot be stored."""
    if not isinstance(dtype, torch.dtype):
        raise InvalidArgumentError(f"dtype must be a torch.dtype (got {dtype!r})")
    name = str(dtype).removeprefix("torch.")
    storage_dtype(name)
    return name


def feat_dtype_names(feat_dtype: GivenDtype) -> FeatDtype:
    """Return the same with names of dtypes. Raises InvalidArgumentError if it is no :data:`GivenDtype`."""

    def name(dtype: object) -> object:
        return str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype

    if isinstance(feat_dtype, Mapping):
        return check_feat_dtype({feature: name(dtype) for feature, dtype in feat_dtype.items()})
    return check_feat_dtype(name(feat_dtype))


def convert(values: TensorLike, dtype: torch.dtype, what: str) -> torch.Tensor:
    """Convert values to a tensor of a dtype on the CPU; fractions are cut off for integers, as torch does.

    Raises:
        InvalidArgumentError: a value is no number, or has none in this dtype: it is complex, or for integers NaN or
            out of range.
    """
    try:
        tensor = fields.as_tensor(values).detach().cpu()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InvalidArgumentError(f"{what}: {error}") from None
    if tensor.dtype != dtype and tensor.numel():
        _check_values(tensor, dtype, what)
    return tensor.to(dtype)


def _check_values(tensor: torch.Tensor, dtype: torch.dtype, what: str) -> None:
    if tensor.is_complex() and not dtype.is_complex:
        raise InvalidArgumentError(f"{what} are complex, and {dtype} is not")
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        return
    limits = torch.iinfo(dtype)
    if tensor.is_floating_point():
        wide = tensor.double()
        bad = ~((wide >= float(limits.min)) & (wide < float(limits.max + 1)))  # NaN is neither
    elif tensor.dtype == torch.bool or (limits.min <= (own := torch.iinfo(tensor.dtype)).min and own.max <= limits.max):
        return
    else:
        array = tensor.numpy()
        bad = torch.from_numpy(np.asarray((array < limits.min) | (array > limits.max)))
    if bad.any():
        first = tensor[bad][0].item()
        raise InvalidArgumentError(f"{what} must be from {limits.min} to {limits.max} in {dtype} (got {first})")


def to_torch(rows: np.ndarray[Any, Any], dtype: str) -> torch.Tensor:
    """View rows in their storage dtype as a tensor of the logical dtype."""
    if rows.dtype.name == dtype:
        return torch.from_numpy(rows)
    return torch.from_numpy(rows.view(f"i{rows.itemsize}")).view(getattr(torch, dtype))  # numpy has no such dtype


def to_storage(values: torch.Tensor, dtype: str) -> np.ndarray[Any, Any]:
    """View a contiguous CPU tensor of a logical dtype in its storage dtype."""
    stored = storage_dtype(dtype)
    if stored.name == dtype:
        return values.numpy()
    return values.view(getattr(torch, f"int{8 * stored.itemsize}")).numpy().view(stored)
