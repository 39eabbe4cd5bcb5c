"""Tensors as arrays for MPI, and the reductions of a process group."""

from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor

from mpigraph.arrays import Array
from mpigraph.errors import InvalidArgumentError

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64)
_EXACT = (*_INTEGERS, torch.float32, torch.float64, torch.complex64, torch.complex128)
_SUMMED_IN = {dtype: dtype for dtype in _EXACT}
_SUMMED_IN |= {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.bool: torch.uint8}
_OF_NUMBERS = {"SUM": MPI.SUM, "PRODUCT": MPI.PROD, "MAX": MPI.MAX, "MIN": MPI.MIN}
_OF_FLOATS = _OF_NUMBERS | {"AVG": MPI.SUM}
_OF_INTEGERS = _OF_NUMBERS | {"BAND": MPI.BAND, "BOR": MPI.BOR, "BXOR": MPI.BXOR}
_OF_COMPLEX = {"SUM": MPI.SUM, "AVG": MPI.SUM}
_OF_BOOL = {"SUM": MPI.MAX, "PRODUCT": MPI.MIN, "MAX": MPI.MAX, "MIN": MPI.MIN}
_OF_BOOL |= {"BOR": MPI.MAX, "BAND": MPI.MIN, "BXOR": MPI.BXOR}


def flat(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return the values as a contiguous vector (of ``dtype``): the tensor's own memory if possible."""
    dtype = tensor.dtype if dtype is None else dtype
    if tensor.dtype is dtype and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        vector = tensor.detach() if tensor.requires_grad else tensor
        return vector if vector.dim() == 1 else vector.view(-1)
    return torch.empty(tensor.shape, dtype=dtype).copy_(tensor.detach()).view(-1)


def refill(tensor: Tensor, vector: Tensor, divisor: int = 1) -> None:
    """Divide a vector that :func:`flat` made of a tensor, and write it back unless it is the tensor's memory."""
    if divisor > 1:
        (torch.view_as_real(vector) if vector.is_complex() else vector).div_(divisor)
    if vector is not tensor and vector.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(vector.view(tensor.shape))


def words(vector: Tensor) -> Array:
    """Return the memory of a contiguous vector as an array of a type that MPI can move."""
    return vector.view(_WORDS[vector.element_size()]).numpy()


def apart(tensor: Tensor, other: Tensor) -> Tensor:
    """Return the tensor, or a copy if it may overlap the other, which MPI forbids."""
    same = tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    return tensor.clone() if same else tensor


def check(what: str, *tensors: Tensor) -> None:
    """Raise an InvalidArgumentError unless all are dense CPU tensors of one dtype."""
    for tensor in tensors:
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            raise InvalidArgumentError(
                f"{what} by mpi4py needs dense CPU tensors (got {tensor.layout} on {tensor.device}): "
                "use gloo or nccl for others"
            )
        if tensor.dtype is not tensors[0].dtype:
            raise InvalidArgumentError(f"{what} needs one dtype (got {tensors[0].dtype} and {tensor.dtype})")


def op_name(opts: Any) -> str:
    """Return the name of the reduction in torch's options, such as "SUM"."""
    return _name(getattr(opts, "reduceOp", dist.ReduceOp.SUM))


@cache
def _name(op: Any) -> str:
    name: str = getattr(op, "op", op).name
    return name


def reduction(what: str, dtype: torch.dtype, name: str) -> tuple[MPI.Op, torch.dtype]:
    """Return the operation that reduces tensors of a dtype, and the dtype to do it in.

    Raises InvalidArgumentError if there is no such reduction; the message names both.
    """
    if dtype is torch.bool:
        known = _OF_BOOL
    elif dtype.is_complex:
        known = _OF_COMPLEX
    else:
        known = _OF_INTEGERS if dtype in _INTEGERS else _OF_FLOATS
    if dtype not in _SUMMED_IN or name not in known:
        raise InvalidArgumentError(f"{what} by mpi4py cannot do {name} of {dtype}")
    return known[name], _SUMMED_IN[dtype]


def check_shares(what: str, whole: Tensor, each: Tensor, ranks: int) -> None:
    """Raise an InvalidArgumentError unless ``whole`` has as many values as ``each`` for each rank."""
    if whole.numel() != ranks * each.numel():
        raise InvalidArgumentError(f"{what}: {whole.numel()} values are not {each.numel()} for each of {ranks} rank(s)")
