"""Turn what a user writes between brackets into row ids."""

import numpy as np
import torch

from mpigraph.arrays import I64
from mpigraph.errors import MaskLengthError
from mpigraph.graphs import fields

__all__ = ["as_ids", "to_rows"]


def as_ids(ids: fields.IdsLike, what: str) -> I64:
    """:func:`mpigraph.graphs.fields.as_ids` as an array: int64[n] from a tensor, array, list or scalar of integers.

    Raises:
        InvalidArgumentError: the values are not integers in one dimension, or of uint8 like many masks.
    """
    array: I64 = fields.as_ids(ids, what).cpu().contiguous().numpy()
    return array


def to_rows(index: slice | fields.IdsLike, num_rows: int, name: str) -> I64:
    """int64[n]: the rows that an index of a tensor with ``num_rows`` rows means.

    Args:
        index: int, slice, list, ndarray or tensor of integers, or a mask of bool with one entry for each row.
        num_rows: rows of the tensor.
        name: the tensor's name, for messages.

    Raises:
        MaskLengthError: a mask of the wrong length.
        InvalidArgumentError: not an index.
    """
    if isinstance(index, slice):
        return np.arange(*index.indices(num_rows), dtype=np.int64)
    if isinstance(index, torch.Tensor):
        index = index.detach().cpu().numpy()
    array = np.asarray(index)
    if array.dtype != np.bool_:
        return as_ids(array, f"index of tensor {name!r}")
    if array.shape != (num_rows,):
        raise MaskLengthError(f"mask of tensor {name!r} must have {num_rows} entries (got shape {array.shape})")
    return np.flatnonzero(array)
