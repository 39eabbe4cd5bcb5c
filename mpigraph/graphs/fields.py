"""Field names and small helpers that every module above torch shares; no graph class lives here."""

import operator
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from mpigraph.errors import InvalidArgumentError
from mpigraph.metadata.schema import Relation

TensorLike: TypeAlias = torch.Tensor | npt.ArrayLike
"""Numbers in any form that torch or numpy takes: a tensor, an array, (nested) lists."""
IdsLike: TypeAlias = TensorLike
"""Ids in one dimension: int[n], in any form; see :func:`as_ids`."""
EdgeType: TypeAlias = str | Relation | None
"""A relation as users name it: the triple, its name, "src:rel:dst"; None means the only one."""

NID: Final = "_ID"
"""Name of the node field that holds the original (global) ids."""
EID: Final = "_ID"
"""Name of the edge field that holds the original (global) ids."""
NTYPE: Final = "_TYPE"
"""Name of the node field that holds type ids."""
ETYPE: Final = "_TYPE"
"""Name of the edge field that holds type ids."""
TREE: Final = "_TREE"
"""Name of the node field that holds the number of the tree, where trees of a minibatch are disjoint."""
SEED_TIME: Final = "seed_time"
"""Name of the node field that holds the time of the tree's root."""
ALL: Final = "__ALL__"
"""Stands for all nodes or all edges where ids are expected."""


def as_tensor(values: TensorLike, what: str = "") -> torch.Tensor:
    """View tensors, arrays and nested lists of numbers as a tensor, without a copy where torch allows it.

    Raises InvalidArgumentError, which calls them ``what``, if the values are not numbers, or sparse.
    """
    if isinstance(values, torch.Tensor):
        if type(values) is torch.Tensor and values.layout != torch.strided:
            raise _no_numbers(what, "a sparse tensor: use its to_dense()")
        return values
    try:
        array = np.asarray(values)
    except ValueError:
        raise _no_numbers(what, "lists of several lengths") from None
    if array.dtype.hasobject or array.dtype.kind in "USmM":
        got = "None" if values is None else f"an array of {array.dtype}"
        raise _no_numbers(what, "a sparse matrix: use its toarray()" if hasattr(values, "tocoo") else got)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()  # torch has no read-only tensors and no negative strides
    # torch knows no other byte order, and one kind of int64
    plain = np.dtype(f"{array.dtype.kind}{array.dtype.itemsize}")
    array = array.view(plain) if array.dtype.isnative else array.astype(plain)
    try:
        return torch.from_numpy(array)
    except TypeError:
        raise _no_numbers(what, f"an array of {array.dtype}") from None


def _no_numbers(what: str, got: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{what}{': ' if what else ''}expected numbers (got {got})")


def as_ids(ids: IdsLike, what: str) -> torch.Tensor:
    """Turn n integer ids, or one, into int64[n], on the device where they are; an empty list of any dtype is fine.

    Raises:
        InvalidArgumentError: the ids, called ``what``, are not integers in one dimension, of uint8 like many masks, or
            above those of int64.
    """
    tensor = as_tensor(ids, what)
    if tensor.dtype == torch.bool and tensor.numel():
        raise InvalidArgumentError(f"{what} must be integers (got a mask of bool: give the ids where it is set)")
    no_ids = tensor.is_floating_point() or tensor.is_complex()
    if tensor.dim() > 1 or (tensor.numel() and no_ids):
        got = f"{tensor.dtype}, shape {tuple(tensor.shape)}"
        raise InvalidArgumentError(f"{what} must be integers in one dimension (got {got})")
    if tensor.numel() and tensor.dtype == torch.uint8:
        raise InvalidArgumentError(f"{what} of uint8 look like a mask: use mask.bool() for a mask, int64 for ids")
    flat = tensor.reshape(-1).to(torch.int64)
    if tensor.dtype == torch.uint64 and bool((flat < 0).any()):
        raise InvalidArgumentError(f"{what} must fit int64 (got uint64 numbers of 2**63 and more)")
    return flat


def is_number(ids: IdsLike) -> bool:
    """Return whether ``ids`` is a plain number: DGL then answers with a number, too."""
    if isinstance(ids, torch.Tensor | np.ndarray):
        return False
    try:
        operator.index(ids)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def by_first_appearance(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the distinct ids in order of first appearance, and the position of each id among them; int64[n] each."""
    # torch.unique sorts: find where each value appears first, and renumber the values in the order of these places
    values, inverse = torch.unique(ids, return_inverse=True)
    places = torch.arange(ids.shape[0], device=ids.device)
    first = torch.full_like(values, ids.shape[0]).scatter_reduce_(0, inverse, places, "amin")
    order = torch.argsort(first)
    number = torch.empty_like(order)
    number[order] = torch.arange(order.shape[0], device=ids.device)
    return values[order], number[inverse]
