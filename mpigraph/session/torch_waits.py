"""Waits for other trainers inside torch: places seen from a thread's stack, and spans of those for gradients.

torch's C++ code waits silently: in a collective of ``torch.distributed``, in the reduction of gradients that DDP puts
behind a backward pass, in a rendezvous. The watchdog finds that a thread does nothing (:mod:`mpigraph.mpi.idle`) and
asks here whether that is one of these places.
"""

import dis
import sys
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any
from weakref import finalize

import torch
from torch.distributed import distributed_c10d
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from mpigraph.trace import span

_WAITING = ("distributed/", "nn/parallel/distributed.py", "autograd/graph.py")  # modules of torch
_RENDEZVOUS = "distributed/rendezvous.py"
_COLLECTIVES = "distributed/distributed_c10d.py"


class TorchWaits:
    """Names the wait inside torch that the innermost frame of a thread may be in; ``trainers`` is their number."""

    def __init__(self, trainers: int) -> None:
        self._trainers = trainers
        self._torch = sys.modules["torch"].__path__[0].rstrip("/") + "/"

    def __call__(self, frame: FrameType) -> str:
        """Return the name; "" outside torch."""
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        inside = path.startswith(self._torch) and path.removeprefix(self._torch).startswith(_WAITING)
        path = path.removeprefix(self._torch)
        if not inside and not _calls_wait(frame.f_code, frame.f_lasti):
            return ""
        try:
            if path != _RENDEZVOUS and distributed_c10d.get_world_size() > self._trainers:
                return ""  # processes outside this job may do anything
        except Exception:  # there is no group, or the thread goes on meanwhile, and destroys it just now
            return ""
        if path not in (_COLLECTIVES, _RENDEZVOUS) and _accelerator_started():
            return ""  # a thread may wait for its kernels without using the processor
        return f"torch, in {name}" if inside else "torch.distributed"


@lru_cache(64)
def _calls_wait(code: CodeType, at: int) -> bool:
    """Return whether an instruction calls a method ``wait`` without arguments, such as that of ``dist.Work``."""
    before: list[dis.Instruction] = []
    for instruction in dis.get_instructions(code):
        if instruction.offset == at:
            called = [known.argval for known in before[-2:]]
            return instruction.opname.startswith("CALL") and called[1:] == ["wait"] and called[0] != "os"
        if instruction.opname not in ("PRECALL", "CACHE", "PUSH_NULL"):
            before.append(instruction)
    return False


def _accelerator_started() -> bool:
    device = torch.accelerator.current_accelerator()
    module = None if device is None else getattr(torch, device.type, None)
    return module is not None and bool(getattr(module, "is_initialized", lambda: True)())


# Spans of the waits for other trainers' gradients, which torch's C++ code makes without telling.
#
# DistributedDataParallel reduces gradients while the backward pass computes, and at its end waits for the rest. A hook
# on the outputs of its forward pass has autograd call this module where the pass has computed all gradients, which is
# before that wait, and again after it. Reductions by NCCL are no waits of the processor and are not seen.


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
