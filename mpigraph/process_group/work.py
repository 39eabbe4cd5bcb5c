"""What lies between torch and MPI in a process group: tensors as arrays, reductions by name, handles to wait with."""

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mpigraph.arrays import Array
from mpigraph.errors import InvalidArgumentError
from mpigraph.process_group.collectives import Collectives, Pending

__all__ = ["MPIWork", "apart", "check", "flat", "reduction", "refill", "words"]

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64)
_SUMMED_IN = {dtype: dtype for dtype in (*_INTEGERS, torch.float32, torch.float64)}
_SUMMED_IN |= {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.bool: torch.uint8}
_OF_NUMBERS = {"SUM": "SUM", "PRODUCT": "PRODUCT", "MAX": "MAX", "MIN": "MIN"}
_OF_FLOATS = _OF_NUMBERS | {"AVG": "SUM"}
_OF_INTEGERS = _OF_NUMBERS | {"BAND": "BAND", "BOR": "BOR", "BXOR": "BXOR"}
_OF_BOOL = {"SUM": "MAX", "PRODUCT": "MIN", "MAX": "MAX", "MIN": "MIN", "BOR": "MAX", "BAND": "MIN"}


def flat(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The values as a contiguous vector (of ``dtype``): the tensor's own memory where it is one."""
    dtype = tensor.dtype if dtype is None else dtype
    if tensor.dtype is dtype and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor.detach().view(-1)
    return torch.empty(tensor.shape, dtype=dtype).copy_(tensor.detach()).view(-1)


def refill(tensor: Tensor, vector: Tensor, divisor: int = 1) -> None:
    """Divide a vector that :func:`flat` made of a tensor, and write it back unless it is the tensor's memory."""
    if divisor > 1:
        vector.div_(divisor)
    if vector.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(vector.view(tensor.shape))


def words(vector: Tensor) -> Array:
    """The memory of a contiguous vector as an array of a type that MPI can move."""
    return vector.view(_WORDS[vector.element_size()]).numpy()


def apart(tensor: Tensor, other: Tensor) -> Tensor:
    """The tensor, or a copy if it may overlap the other, which MPI forbids."""
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


def reduction(what: str, dtype: torch.dtype, op: Any) -> tuple[str, torch.dtype, bool]:
    """How to reduce tensors of a dtype: the operation, the dtype to do it in, whether to divide by the ranks.

    Raises:
        InvalidArgumentError: there is no such reduction; the message names both.
    """
    name = getattr(op, "op", op).name
    if dtype is torch.bool:
        known = _OF_BOOL
    else:
        known = _OF_INTEGERS if dtype in _INTEGERS else _OF_FLOATS
    if dtype not in _SUMMED_IN or name not in known:
        raise InvalidArgumentError(f"{what} by mpi4py cannot do {name} of {dtype}")
    return known[name], _SUMMED_IN[dtype], name == "AVG"


class MPIWork(dist.Work):
    """One or several operations under way."""

    def __init__(self, group: Collectives, parts: Sequence[Pending], outputs: list[Tensor]) -> None:
        super().__init__()
        self._group, self._parts, self._outputs = group, parts, outputs
        self._future: torch.futures.Future[list[Tensor]] | None = None
        self._lock = threading.Lock()
        self._left = len(parts)

    def is_completed(self) -> bool:
        """Whether all is done; also lets it advance."""
        return all([part.poll() for part in self._parts])

    def is_success(self) -> bool:
        """Whether all is done, without errors."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """The first error, once complete."""
        return next((part.error for part in self._parts if part.error is not None), None)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until all is done, as long as any wait may last, or for a time of one's own.

        Raises:
            TimeoutError: the time of one's own is over; the operation goes on.
            InvalidArgumentError: a message has not the size of the tensor.
        """
        for part in self._parts:
            if not self._group.wait(part, timeout.total_seconds()):
                raise TimeoutError(f"{part.what} is not complete after {timeout.total_seconds()} s")
        error = self.exception()
        if error is not None:
            raise error
        return True

    def synchronize(self) -> None:
        """The same as :meth:`wait`."""
        self.wait()

    def result(self) -> list[Tensor]:
        """The tensors with the results, once complete."""
        return self._outputs

    def source_rank(self) -> int:
        """The rank that a received message came from."""
        return self._parts[0].source

    def _source_rank(self) -> int:
        return self.source_rank()

    def go_on(self) -> None:
        """See that all advances without being waited for."""
        for part in self._parts:
            self._group.go_on(part)

    def get_future(self) -> "torch.futures.Future[list[Tensor]]":
        """A future of :meth:`result`, which comes without a call of :meth:`wait`."""
        if self._future is None:
            self._future = torch.futures.Future()
            if not self._parts:
                self._future.set_result(self._outputs)
            for part in self._parts:
                part.then(self._settle)
                self._group.finish_alone(part)
        return self._future

    def _settle(self) -> None:
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last and self._future is not None:
            error = self.exception()
            if error is None:
                self._future.set_result(self._outputs)
            else:
                self._future.set_exception(error)  # type: ignore[arg-type]
