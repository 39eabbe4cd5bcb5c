"""Pinned memory, streams and events: the one place that asks torch for them.

Tests without a GPU put a fake into :data:`ACCELERATORS`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


class Accelerator:
    """Torch's functions for one ``kind`` of device, "cuda" or "xpu", that copies in the background, on streams.

    All pinned memory is a tensor of torch's own pinned allocator, never an array: torch then knows the copies from it,
    or from a slice of it, and does not reuse the memory before they are complete.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def _module(self) -> Any:
        return getattr(torch, self._kind)

    def available(self) -> bool:
        """Return whether there is such a device."""
        return hasattr(torch, self._kind) and bool(self._module().is_available())

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor in pinned memory, with undefined contents."""
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is in pinned memory."""
        return tensor.is_pinned()

    def new_stream(self, device: torch.device | None) -> Any:
        """Return a new stream on a device; None means this thread's current device."""
        return self._module().Stream(device)

    def current_stream(self, device: torch.device) -> Any:
        """Return this thread's current stream on a device."""
        return self._module().current_stream(device)

    @contextmanager
    def on(self, stream: Any, own_thread: bool) -> Iterator[None]:
        """Let this thread work on a stream and its device.

        A thread of the library (``own_thread``) stays on the device afterwards: going back to GPU 0, where threads
        begin, would take memory there.
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
        """Return an event that is complete when all present work of a stream is."""
        return stream.record_event()

    def wait(self, stream: Any, event: Any) -> None:
        """Let all later work of a stream wait for an event; the thread does not wait."""
        stream.wait_event(event)

    def used_on(self, tensor: torch.Tensor, stream: Any) -> None:
        """Keep the memory of a tensor of another stream until this stream has used it."""
        tensor.record_stream(stream)


ACCELERATORS = {kind: Accelerator(kind) for kind in ("cuda", "xpu")}
"""By type of device; ROCm's devices are "cuda". Copies to other devices are complete when a call returns."""


def accelerator_of(device: torch.device) -> Accelerator | None:
    """Return the accelerator of a device; None if copies to it do not run in the background."""
    return ACCELERATORS.get(device.type)


def accelerator_here() -> Accelerator | None:
    """Return the accelerator of this process; None without a device for which memory can be pinned."""
    return next((accelerator for accelerator in ACCELERATORS.values() if accelerator.available()), None)
