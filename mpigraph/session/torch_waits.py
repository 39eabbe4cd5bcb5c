"""Waits for other ranks in foreign code: places seen from a thread's stack, and spans of torch's waits for gradients.

torch's C++ code waits silently: in a collective of ``torch.distributed``, in the reduction of gradients that DDP puts
behind a backward pass, in a rendezvous. The watchdog finds that a thread does nothing (:mod:`mpigraph.mpi.idle`) and
asks here whether that is one of these places.
"""

import dis
import inspect
import sys
from collections.abc import Callable
from functools import lru_cache, wraps
from types import CodeType, FrameType
from typing import Any, TypeVar
from weakref import finalize

import torch
from mpi4py import MPI
from torch.distributed import distributed_c10d
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from mpigraph.trace import span

T = TypeVar("T")
_WAITING = ("distributed/", "nn/parallel/distributed.py", "autograd/graph.py")  # modules of torch
_RENDEZVOUS = "distributed/rendezvous.py"
_COLLECTIVES = "distributed/distributed_c10d.py"
_MPI_COLLECTIVES = frozenset(
    "allgather allgatherv allreduce alltoall alltoallv alltoallw barrier bcast create dup exscan gather gatherv reduce "
    "reduce_scatter reduce_scatter_block scan scatter scatterv split split_type".split()
)


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


def _remembered(look: Callable[[CodeType, int], T]) -> Callable[[CodeType, int], T]:
    """Remember what a look at an instruction found. Code of torch.compile may have constants without a hash."""
    known = lru_cache(64)(look)

    @wraps(look)
    def again(code: CodeType, at: int) -> T:
        try:
            return known(code, at)
        except TypeError:
            return look(code, at)

    return again


@_remembered
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


class ServerWaits:
    """Names the MPI call of the user's that a frame is in if servers would have to take part: they never do.

    Such as ``MPI.COMM_WORLD.allreduce(x)``. MPI polls there, so that this process looks as if it worked.
    """

    def __init__(self, trainers: int, size: int) -> None:
        self._trainers, self._size = trainers, size

    def __call__(self, frame: FrameType) -> str:
        """Return the name; "" in other calls."""
        path = _collective_called(frame.f_code, frame.f_lasti) if self._trainers < self._size else ()
        if not path:
            return ""
        comm: Any = frame.f_locals.get(path[0], frame.f_globals.get(path[0]))
        for name in path[1:-1]:
            comm = inspect.getattr_static(comm, name, None)
        if not isinstance(comm, MPI.Intracomm) or not _has_more_ranks(comm, self._trainers):
            return ""
        return (
            f"{'.'.join(path)}(), for servers, which take no part in it: the communicator of the trainers is "
            "mpigraph.distributed.trainers()"
        )


def _has_more_ranks(comm: MPI.Intracomm, trainers: int) -> bool:
    """Return whether a communicator has more ranks than the trainers; the watchdog's thread may not always ask MPI."""
    if comm == MPI.COMM_WORLD:
        return True
    return bool(MPI.Query_thread() == MPI.THREAD_MULTIPLE and comm and comm.size > trainers)


@_remembered
def _collective_called(code: CodeType, at: int) -> tuple[str, ...]:
    """Return the names of the collective that an instruction calls, as ("MPI", "COMM_WORLD", "Barrier"); () if none."""
    line = line_called = 0
    path: list[str] = []
    called: tuple[str, ...] = ()
    for instruction in dis.get_instructions(code):
        value = instruction.argval
        name = str(value[-1] if isinstance(value, tuple) and value else value)  # two names from Python 3.13 on
        line = getattr(instruction, "line_number", instruction.starts_line) or line  # a bool from Python 3.13 on
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            path.append(name)
            if name.lower() in _MPI_COLLECTIVES:
                line_called, called = line, tuple(path)
        elif instruction.opname.startswith("LOAD_"):
            path = [name]
        if instruction.offset == at:
            return called if line == line_called and instruction.opname.startswith("CALL") else ()
    return ()


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
