"""Waits for gradients inside DDP are spans, and change no bit; torch's profiler shows spans."""

import copy
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from layouts import Layout, SharedJob, needs_threads, on_layouts
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from mpigraph.session.context import current
from mpigraph.session.torch_spans import GradientWaits
from mpigraph.trace import Recording, met, span

LATE = 0.15


@contextmanager
def group(backend: str) -> Iterator[int]:
    gc.collect()  # models of an earlier test hold its store
    current().world.trainers.Barrier()
    method = "mpi4py://" if backend == "mpi4py" else None
    dist.init_process_group(backend, init_method=method, timeout=timedelta(seconds=60))
    try:
        yield dist.get_rank()
    finally:
        dist.destroy_process_group()


@contextmanager
def seen() -> Iterator[None]:
    waits = GradientWaits()
    try:
        yield
    finally:
        waits.close()


def gradients(model: nn.Module, rank: int, steps: int = 3) -> list[torch.Tensor]:
    """Of some steps; each trainer has its own data."""
    found = []
    for step in range(steps):
        data = torch.randn(20, 30, generator=torch.Generator().manual_seed(10 * step + rank))
        model(data).square().sum().backward()
        found += [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad(set_to_none=step % 2 == 0)
    return found


def keep(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook of the user's: no mean at all."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


@needs_threads
@on_layouts([Layout(3, 0, 0), Layout(2, 0, 0)])
@pytest.mark.parametrize("backend", ["gloo", "mpi4py"])
def test_gradients_are_the_same_bits(job: SharedJob, backend: str) -> None:
    """Of models in one bucket and in several, whose gradients lie in buckets, in 16 bits, or with a hook already."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 7))
    with group(backend) as rank:
        for options in ({}, {"bucket_cap_mb": 0.003}, {"gradient_as_bucket_view": True}):
            without = gradients(DistributedDataParallel(copy.deepcopy(plain), **options), rank)
            with seen():
                model = DistributedDataParallel(copy.deepcopy(plain), **options)
                watched = gradients(model, rank)
                copy.deepcopy(model)
            assert len(without) == 12 and all(map(torch.equal, without, watched))
            assert all(map(torch.equal, without, gradients(model, rank)))  # the hook is still there
        with seen():
            model = DistributedDataParallel(copy.deepcopy(plain))
            model.register_comm_hook(None, keep)
            alone = gradients(copy.deepcopy(plain), rank)
            assert all(map(torch.equal, alone, gradients(model, rank)))


@needs_threads
@on_layouts([Layout(2, 0, 0)])
@pytest.mark.parametrize("backend", ["gloo", "mpi4py"])
def test_who_comes_first_waits_for_gradients(job: SharedJob, backend: str) -> None:
    with group(backend) as rank:
        model = DistributedDataParallel(nn.Linear(3, 2))
        with seen():
            model(torch.ones(1, 3)).sum().backward()
            before = met()
            dist.barrier()
            recording = Recording()
            with span("backward"):
                out = model(torch.ones(1, 3)).sum()
                time.sleep(LATE if rank == 0 else 0)
                out.backward()
            waited = (met() - before) / 1e9
            recording.stop()
        done = recording.after["MainThread"].since(recording.before["MainThread"])
        assert done.stages["meet"].own <= waited
        others = [0.0, 0.0]
        dist.all_gather_object(others, (done.stages["meet"].own, done.stages["backward"].own))
        (met_late, own_late), (met_early, own_early) = others
        assert met_early >= 0.8 * LATE and own_late >= LATE > own_early + 0.5 * met_late
        (track,) = [track for track in recording.tracks if track.thread == "MainThread"]
        assert "gradients of DistributedDataParallel" in track.details
        model(torch.ones(1, 3)).sum().backward()
        assert met() / 1e9 - (before / 1e9 + waited) < 0.1 * LATE  # not seen any more


@on_layouts([Layout(1, 0, 0)])
def test_the_profiler_shows_spans(job: SharedJob) -> None:
    with span("before"):
        with profile(activities=[ProfilerActivity.CPU]) as seen_by:
            with span("fetch"), span("meet"):
                torch.ones(3) + 1
            left = span("left")
            left.__enter__()
        left.__exit__(None, None, None)
    names = [event.key for event in seen_by.key_averages()]
    assert {"mpigraph.fetch", "mpigraph.meet"} <= set(names) and "mpigraph.before" not in names
    with profile(activities=[ProfilerActivity.CPU]) as seen_by:
        torch.ones(3) + 1
    assert not [event.key for event in seen_by.key_averages() if "mpigraph" in event.key]
