"""Where a thread may wait inside torch for other trainers, as seen from its Python stack.

torch's C++ code waits without a word: in a collective of ``torch.distributed``, in the reduction of gradients that DDP
puts behind a backward pass, in a rendezvous. The watchdog finds that a thread does nothing (:mod:`mpigraph.mpi.idle`)
and asks here whether that is one of these places.
"""

import sys
from datetime import timedelta
from types import FrameType

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from mpigraph.mpi.idle import ForeignWait

__all__ = ["TorchWaits"]

_DEFAULT_GROUP = "torch.distributed's default group"
_BACKWARD = ("autograd/graph.py", "_engine_run_backward")
_FORWARD = "nn/parallel/distributed.py"
_COLLECTIVES = "distributed/distributed_c10d.py"
_RENDEZVOUS = "distributed/rendezvous.py"
_OF_TWO = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list"})
_ENDING_BY_THEMSELVES = frozenset({"monitored_barrier"})


class TorchWaits:
    """Tells what a frame of Python waits for inside torch.

    Args:
        trainers: how many the job has.
    """

    def __init__(self, trainers: int) -> None:
        self._trainers = trainers
        self._torch = sys.modules["torch"].__path__[0].rstrip("/") + "/"

    def __call__(self, frame: FrameType) -> ForeignWait | None:
        """Return what the innermost frame of a thread may wait for; None if that is nothing of torch's."""
        path = frame.f_code.co_filename
        if not path.startswith(self._torch):
            return None
        path, name = path.removeprefix(self._torch), frame.f_code.co_name
        if path == _RENDEZVOUS:
            return ForeignWait("torch.distributed.init_process_group", self._place(None))
        if not distributed_c10d.is_initialized():
            return None
        if (path, name) == _BACKWARD or path == _FORWARD:
            # a backward pass on an accelerator waits for its kernels without using the processor
            if _accelerator_started():
                return None
            return ForeignWait("DistributedDataParallel", self._place(None), _timeout_given())
        if path != _COLLECTIVES:
            return None
        group = frame.f_locals.get("group")
        place = "" if name in _OF_TWO else self._place(group)
        limited = name in _ENDING_BY_THEMSELVES or _timeout_given(group)
        return ForeignWait(f"torch.distributed.{name}", place, limited)

    def _place(self, group: dist.ProcessGroup | None) -> str:
        """Return the name of the default group if all trainers must come to it, and ``group`` is no other one."""
        if not distributed_c10d.is_initialized():
            return _DEFAULT_GROUP  # it is being made
        others = len(distributed_c10d._world.pg_map) > 1
        default = distributed_c10d._get_default_group()
        if group is None:
            mine = not others
        else:
            mine = group is default or group is distributed_c10d.GroupMember.WORLD
        slow = distributed_c10d.get_backend() == "mpi4py"  # its thread moves large tensors, and is not looked at
        return _DEFAULT_GROUP if mine and default.size() == self._trainers and not slow else ""


def _timeout_given(group: dist.ProcessGroup | None = None) -> bool:
    """Return whether the user has chosen how long a group waits."""
    try:
        default = distributed_c10d._get_default_group() if group is None else group
        known: timedelta = default._get_backend(torch.device("cpu")).options._timeout
    except (RuntimeError, AttributeError, ValueError):
        return False
    return known != distributed_c10d.default_pg_timeout


def _accelerator_started() -> bool:
    device = torch.accelerator.current_accelerator()
    module = None if device is None else getattr(torch, device.type, None)
    return module is not None and bool(getattr(module, "is_initialized", lambda: True)())
