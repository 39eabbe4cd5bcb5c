"""Waits for other trainers inside torch: places seen from a thread's stack, and spans of those for gradients.

torch's C++ code waits silently: in a collective of ``torch.distributed``, in the reduction of gradients that DDP puts
behind a backward pass, in a rendezvous. The watchdog finds that a thread does nothing (:mod:`mpigraph.mpi.idle`) and
asks here whether that is one of these places.
"""

import dis
import sys
from datetime import timedelta
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any
from weakref import finalize

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import default_pg_timeout
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from mpigraph.mpi.idle import ForeignWait
from mpigraph.trace import span

_DEFAULT_GROUP = "torch.distributed's default group"
_BACKWARD = ("autograd/graph.py", "_engine_run_backward")
_FORWARD = "nn/parallel/distributed.py"
_COLLECTIVES = "distributed/distributed_c10d.py"
_RENDEZVOUS = "distributed/rendezvous.py"
_OTHERS = tuple(f"distributed/{name}" for name in ("fsdp/", "_composable/", "_functional_", "algorithms/", "optim/"))
_OF_TWO = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list"})
_ENDING_BY_THEMSELVES = frozenset({"monitored_barrier"})


class TorchWaits:
    """Recognises frames of Python that wait inside torch; ``trainers`` is their number."""

    def __init__(self, trainers: int) -> None:
        self._trainers = trainers
        self._torch = sys.modules["torch"].__path__[0].rstrip("/") + "/"

    def __call__(self, frame: FrameType) -> ForeignWait | None:
        """Return the wait that the innermost frame of a thread may be in; None outside torch."""
        try:
            return self._wait(frame)
        except Exception:  # the thread goes on meanwhile, and may just destroy the group
            return None

    def _wait(self, frame: FrameType) -> ForeignWait | None:
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        in_torch = path.startswith(self._torch)
        path = path.removeprefix(self._torch)
        if in_torch and path == _RENDEZVOUS:
            everybody = frame.f_locals.get("world_size") == self._trainers
            limited = frame.f_locals.get("timeout", default_pg_timeout) != default_pg_timeout
            return ForeignWait("torch.distributed.init_process_group", _DEFAULT_GROUP if everybody else "", limited)
        if not distributed_c10d.is_initialized() or distributed_c10d.get_world_size() > self._trainers:
            return None  # processes outside this job may do anything
        if in_torch and path == _COLLECTIVES:
            group = frame.f_locals.get("group")
            place = "" if name in _OF_TWO or "group" not in frame.f_locals else self._place(group)
            limited = name in _ENDING_BY_THEMSELVES or _timeout_given(group)
            limited |= (frame.f_locals.get("timeout") or default_pg_timeout) != default_pg_timeout
            return ForeignWait(f"torch.distributed.{name}", place, limited)
        if _accelerator_started():  # a thread may wait for its kernels without using the processor
            return None
        if in_torch and ((path, name) == _BACKWARD or path == _FORWARD):
            return ForeignWait("DistributedDataParallel", self._place(None), _timeout_given())
        if (in_torch and path.startswith(_OTHERS)) or (not in_torch and _calls_wait(frame.f_code, frame.f_lasti)):
            return ForeignWait("torch.distributed", "", _timeout_given())
        return None

    def _place(self, group: dist.ProcessGroup | None) -> str:
        """Return the name of the default group if ``group`` is that, and all trainers must come to it."""
        default = distributed_c10d._get_default_group()
        if group is None:
            is_default = len(distributed_c10d._world.pg_map) <= 1
        else:
            is_default = group is default or group is distributed_c10d.GroupMember.WORLD
        slow = distributed_c10d.get_backend() == "mpi4py"  # its thread moves large tensors, and is not looked at
        return _DEFAULT_GROUP if is_default and default.size() == self._trainers and not slow else ""


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


def _timeout_given(group: dist.ProcessGroup | None = None) -> bool:
    """Return whether the user has chosen how long a group waits."""
    try:
        default = distributed_c10d._get_default_group() if group is None else group
        known: timedelta = default._get_backend(torch.device("cpu")).options._timeout
    except (RuntimeError, AttributeError, ValueError):
        return False
    return known != default_pg_timeout


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
