"""Spans of the waits for other trainers' gradients, which torch's C++ code makes without telling.

DistributedDataParallel reduces gradients while the backward pass computes, and at its end waits for the rest. A hook on
the outputs of its forward pass has autograd call this module where the pass has computed all gradients, which is before
that wait, and again after it. Reductions by NCCL are no waits of the processor and are not seen.
"""

from typing import Any
from weakref import finalize

import torch
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from mpigraph.trace import span


def watch_gradients() -> RemovableHandle:
    """Time the waits of all DistributedDataParallel that are made from now on, as spans "meet"; return what ends it."""
    return register_module_module_registration_hook(_watch)


def _watch(module: torch.nn.Module, name: str, _: torch.nn.Module | None) -> None:
    if isinstance(module, DistributedDataParallel) and name == "module":
        module.register_forward_hook(_Waits())


class _Waits:
    """A forward hook on one DistributedDataParallel."""

    def __init__(self) -> None:
        self._queued = False

    def __call__(self, _: torch.nn.Module, __: Any, outputs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._queued = False  # the backward pass before may have ended by an error
        for tensor in tree_leaves(outputs):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(self._at_begin)  # type: ignore[no-untyped-call]

    def _at_begin(self, _: torch.Tensor) -> None:
        if not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._at_wait)

    def _at_wait(self) -> None:
        """The local pass is over; DistributedDataParallel queued its wait later than this call, but before the next."""
        self._queued = False
        torch.autograd.Variable._execution_engine.queue_callback(_Wait())


class _Wait:
    """A span from now on until the wait ends: by a call, or by an error, for which torch drops what is queued."""

    def __init__(self) -> None:
        self._span = span("meet", detail="gradients").__enter__()
        self._dropped = finalize(self, self._span.__exit__, RuntimeError, None, None)
        self._dropped.atexit = False

    def __call__(self) -> None:
        if self._dropped.detach():
            self._span.__exit__(None, None, None)
