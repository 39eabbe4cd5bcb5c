"""Pinned memory, streams and events: the one place that asks torch for them.

Tests without a GPU put a fake into :data:`ACCELERATORS`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["ACCELERATORS", "Accelerator", "accelerator_here", "accelerator_of"]


class Accelerator:
    """What torch has for one kind of device that copies in the background, on streams.

    All pinned memory is a tensor of torch's own pinned allocator, never an array: torch then knows the copies that were
    begun from it, or from a slice of it, and gives it to nobody else before they are complete.
    """

    def __init__(self, kind: str) -> None:
        """``kind`` is the type of its devices, which is also the name of torch's module for them."""
        self._kind = kind

    def _module(self) -> Any:
        return getattr(torch, self._kind)

    def available(self) -> bool:
        """Whether there is such a device."""
        return hasattr(torch, self._kind) and bool(self._module().is_available())

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor in pinned memory, with undefined contents."""
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is in pinned memory."""
        return tensor.is_pinned()

    def new_stream(self, device: torch.device | None) -> Any:
        """A stream on a device; on this thread's current one if None."""
        return self._module().Stream(device)

    def current_stream(self, device: torch.device) -> Any:
        """This thread's current stream on a device."""
        return self._module().current_stream(device)

    @contextmanager
    def on(self, stream: Any, own_thread: bool) -> Iterator[None]:
        """Inside, this thread works on a stream and its device.

        Args:
            stream: the stream.
            own_thread: whether the thread is the library's. It then stays on the device: to go back to GPU 0, on which
                a thread begins, would take memory there.
        """
        module = self._module()
        if own_thread:
            module.set_device(stream.device)
        with module.stream(stream):
            yield

    def copy(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Begin to copy a tensor to a device, on this thread's current stream there."""
        return tensor.to(device, non_blocking=True)

    def record(self, stream: Any) -> Any:
        """An event that is over when all that a stream was given so far is."""
        return stream.record_event()

    def wait(self, stream: Any, event: Any) -> None:
        """What a stream is given from now on begins after an event; the thread does not wait."""
        stream.wait_event(event)

    def used_on(self, tensor: torch.Tensor, stream: Any) -> None:
        """A tensor that was made on another stream is used on this one: its memory is free only after that."""
        tensor.record_stream(stream)


ACCELERATORS = {kind: Accelerator(kind) for kind in ("cuda", "xpu")}
"""By type of device; ROCm's devices are "cuda". Devices of other types get their copies before a call returns."""


def accelerator_of(device: torch.device) -> Accelerator | None:
    """What copies to a device in the background; None where nothing does."""
    return ACCELERATORS.get(device.type)


def accelerator_here() -> Accelerator | None:
    """The kind of device that this process has; None if there is none for which memory can be pinned."""
    return next((found for found in ACCELERATORS.values() if found.available()), None)
