"""Waits for gradients under DDP as spans, and spans as torch's profiler shows them.

DDP waits inside C++ for the gradients of other trainers, whatever the process group. While :class:`GradientWaits` is
open, each ``DistributedDataParallel`` on the CPU that is called gets a communication hook, which does what DDP does by
itself: it multiplies a bucket by ``1 / size`` and begins its ``all_reduce``. When the last bucket of a backward pass is
handed over, the trainer has arrived; when its sum is there, the wait is over. That is a span "meet" of the thread that
called the model. The hook stays with its model, as torch cannot take it away, and does nothing more than that.

It does not see: models with a hook of the user's own, models on an accelerator, whose waits are kernels, FSDP,
``all_reduce`` and other calls by the script itself except those of the "mpi4py" group, and DDP's broadcasts of buffers.
Computing of the backward pass after the last bucket was handed over, and buckets that are complete after the last one,
are rare and short, and count as computing. Under ``join(divide_by_initial_world_size=False)`` DDP divides by the number
of trainers that are left, which a hook does not know: a model that is first called there gets none. With
``gradient_as_bucket_view`` DDP multiplies some buckets and divides others: such a model gets none, unless the number of
trainers is a power of two, where both are the same.
"""

from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.autograd import profiler
from torch.futures import Future
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from mpigraph.trace import clock, past_span, show_spans, this_thread

__all__ = ["GradientWaits", "show_spans_to_profiler"]

_WHAT = "gradients of DistributedDataParallel"


def show_spans_to_profiler() -> None:
    """Show spans as ``record_function`` while ``torch.profiler`` is on: by default those of the thread it is on in."""
    if hasattr(profiler, "_is_profiler_enabled"):  # not in older torch
        show_spans(profiler, lambda name: profiler.record_function(f"mpigraph.{name}"))


class _Waits:
    """The waits of one model.

    Attributes:
        thread: the one that calls the model; None while nobody wants to see its waits.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.thread: Any = None
        self._group = group

    def reduce(self, bucket: Any) -> "Future[torch.Tensor]":
        """Begin the mean of a bucket over the trainers."""
        thread = self.thread
        arrived = clock()
        values = bucket.buffer()
        if values.is_sparse:
            values.div_(self._group.size())
        else:
            values.mul_(1 / self._group.size())
        work = dist.all_reduce(values, group=self._group, async_op=True)
        assert work is not None
        last = bucket.is_last() and thread is not None

        def take(done: "Future[list[torch.Tensor]]") -> torch.Tensor:
            if last:
                past_span(thread, "meet", arrived, _WHAT)
            return done.value()[0]

        summed: Future[torch.Tensor] = work.get_future().then(take)
        return summed


def _reduce(waits: _Waits, bucket: Any) -> "Future[torch.Tensor]":
    return waits.reduce(bucket)


class GradientWaits:
    """Sees waits for gradients, from construction to :meth:`close`."""

    def __init__(self) -> None:
        self._handle = register_module_forward_pre_hook(self._called)

    def close(self) -> None:
        """See no more."""
        self._handle.remove()
        for waits in _models.values():
            waits.thread = None

    @staticmethod
    def _called(module: torch.nn.Module, _: object) -> None:
        if not isinstance(module, DistributedDataParallel):
            return
        if module not in _models:
            _models[module] = waits = _Waits(module.process_group)
            if _averages_alike(module):
                with suppress(RuntimeError):  # it has a hook of the user's
                    dist._register_comm_hook(module.reducer, waits, _reduce)  # type: ignore[attr-defined]
        _models[module].thread = this_thread()


def _averages_alike(module: DistributedDataParallel) -> bool:
    """Return whether this model's gradients are the same bits with the hook as without."""
    size = module.process_group.size()
    joined = module._join_config.enable and not module._divide_by_initial_world_size
    divides = module.gradient_as_bucket_view and size & (size - 1)
    return module.device_type == "cpu" and not joined and not divides and not module._use_python_reducer


_models: "WeakKeyDictionary[torch.nn.Module, _Waits]" = WeakKeyDictionary()
