"""Moves minibatches to a GPU, or into pinned memory.

Rows of features are gathered into pinned memory. The structure of a minibatch, dozens of small arrays, is packed into
one piece of it. Copies run on a stream of their own, so that the model's stream computes meanwhile; it waits for them,
on the device, when the consumer takes the minibatch. The consumer's thread waits for nothing.
"""

import itertools
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from mpigraph.dataloading.fetcher import Stages
from mpigraph.graphs.accelerators import Accelerator, accelerator_here, accelerator_of
from mpigraph.graphs.in_memory import InMemoryGraph, exact_device
from mpigraph.log import stack_level

_CPU = torch.device("cpu")
_ALIGNED = 256  # bytes, as kernels like tensors to be
_Change = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class _Sent:
    """A minibatch whose copies were begun."""

    batch: Any
    event: Any = None  # completes with the copies; None if nothing is outstanding
    memory: Sequence[torch.Tensor] = ()  # tensors made on the copying stream


class ToDevice:
    """Moves the minibatches of one loader to their device; with ``pin_memory`` rows are gathered into pinned memory."""

    def __init__(self, device: torch.device | str | None, pin_memory: bool) -> None:
        """Set up in the consumer's thread: "cuda" is the GPU that is current there.

        Args:
            device: device of the minibatches; the CPU if None.
            pin_memory: put minibatches that stay on the CPU into pinned memory. Without a GPU this is a warning, as in
                ``torch.utils.data.DataLoader``.

        Raises:
            InvalidArgumentError: there is no such device.
        """
        self._device = _CPU if device is None else exact_device(device)
        self._accelerator: Accelerator | None = None
        if self._device != _CPU:
            self._accelerator = accelerator_of(self._device)
        elif pin_memory:
            self._accelerator = accelerator_here()
            if self._accelerator is None:
                level = stack_level(sys._getframe())
                warnings.warn("pin_memory=True, but torch has no GPU: memory is not pinned", stacklevel=level)
        self.pin_memory = self._accelerator is not None
        if self._accelerator is not None:
            self._stream = self._accelerator.new_stream(None if self._device == _CPU else self._device)

    def of(self, stages: Stages[Any], own_thread: bool) -> Stages[Any]:
        """Return the stages followed by the move to the device, if there is any.

        ``own_thread``: a thread of the library makes the minibatches, not the consumer's.
        """
        if self._device == _CPU and self._accelerator is None:
            return stages
        return replace(stages, fetch=partial(self._fetch, stages.fetch, own_thread), receive=self._receive)

    def _fetch(self, fetch: Callable[[Any], Any], own_thread: bool, sample: object) -> _Sent:
        """Make a minibatch, and begin to move it. One-sided."""
        accelerator = self._accelerator
        if accelerator is None:
            return _Sent(moved(fetch(sample), self._device))
        with accelerator.on(self._stream, own_thread):
            batch, memory = self._begin(fetch(sample), accelerator)
            return _Sent(batch, accelerator.record(self._stream) if memory else None, memory)

    def _begin(self, batch: object, accelerator: Accelerator) -> tuple[Any, list[torch.Tensor]]:
        """Begin to copy a minibatch on the current stream; return the new one, and the memory that the copies fill."""
        memory: list[torch.Tensor] = []

        def send(tensor: torch.Tensor) -> torch.Tensor:
            if self._device == _CPU:
                return tensor
            memory.append(accelerator.copy(tensor, self._device))
            return memory[-1]

        def send_alone(tensor: torch.Tensor) -> torch.Tensor:
            if _to_pin(tensor, accelerator):
                tensor = accelerator.pinned(tensor.shape, tensor.dtype).copy_(tensor)
            return send(tensor)

        inside: dict[int, torch.Tensor] = {}  # tensors of graphs by id; each once, in however many graphs it is
        _changed(batch, _same, lambda tensor: inside.setdefault(id(tensor), tensor), None)
        small = [tensor for tensor in inside.values() if _to_pin(tensor, accelerator)]
        sent = dict(zip(map(id, small), _views(send(_pack(small, accelerator)), small), strict=True))
        for key, tensor in inside.items():
            if key not in sent:
                sent[key] = send(tensor)
        device = None if self._device == _CPU else self._device
        return _changed(batch, send_alone, lambda tensor: sent[id(tensor)], device), memory

    def _receive(self, sent: _Sent) -> Any:
        """Return the minibatch in the consumer's thread, whose stream waits for the copies."""
        accelerator = self._accelerator
        if accelerator is not None and sent.event is not None:
            stream = accelerator.current_stream(self._device)
            accelerator.wait(stream, sent.event)
            for tensor in sent.memory:
                accelerator.used_on(tensor, stream)
        return sent.batch


def moved(batch: object, device: torch.device) -> Any:
    """Return a minibatch with all tensors in it on a device."""
    move: _Change = partial(torch.Tensor.to, device=device)
    return _changed(batch, move, move, device)


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _changed(part: Any, alone: _Change, inside: _Change, device: torch.device | None) -> Any:
    """Replace the tensors of a minibatch, or of a part of it; a PyG object is changed in place.

    ``alone`` replaces tensors by themselves, ``inside`` those in graphs and PyG objects. None as ``device`` of the new
    tensors means that of the old ones.
    """
    if isinstance(part, torch.Tensor):
        return alone(part)
    if isinstance(part, InMemoryGraph):
        return part.changed(inside, device or part.device)
    if isinstance(part, dict):
        return {key: _changed(value, alone, inside, device) for key, value in part.items()}
    if isinstance(part, list | tuple):
        values = [_changed(value, alone, inside, device) for value in part]
        return type(part)(*values) if hasattr(part, "_fields") else type(part)(values)  # a NamedTuple takes each
    if hasattr(part, "apply"):  # of PyG, which gives everything to the function
        return part.apply(lambda value: inside(value) if isinstance(value, torch.Tensor) else value)
    return part


def _to_pin(tensor: torch.Tensor, accelerator: Accelerator) -> bool:
    """Return whether to copy a tensor into pinned memory: not if it is there, or sparse, or needs gradients."""
    plain = tensor.layout == torch.strided and not tensor.requires_grad
    return plain and tensor.device == _CPU and not accelerator.is_pinned(tensor)


def _places(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return the bytes at which tensors begin in shared memory, and last, its size."""
    sizes = (-(-tensor.nbytes // _ALIGNED) * _ALIGNED for tensor in tensors)
    return list(itertools.accumulate(sizes, initial=0))


def _pack(tensors: Sequence[torch.Tensor], accelerator: Accelerator) -> torch.Tensor:
    """Copy tensors into one piece of pinned memory, uint8[n]."""
    packed = accelerator.pinned([_places(tensors)[-1]], torch.uint8)
    for tensor, view in zip(tensors, _views(packed, tensors), strict=True):
        view.copy_(tensor)
    return packed


def _views(packed: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return packed tensors as views of the memory, or of its copy."""
    pieces = zip(_places(tensors), tensors, strict=False)
    return [packed[at : at + like.nbytes].view(like.dtype).view(like.shape) for at, like in pieces]
