"""The steps after a restart have the bits that they would have had: where the sum of DDP's gradients does."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from layouts import Layout, SharedJob, on_layouts
from torch.nn.parallel import DistributedDataParallel

import mpigraph.distributed as dist
from mpigraph import checkpoint

STEPS = 6


class Net(torch.nn.Module):
    """Layers that are used in another order than they were made: DDP orders its buckets anew after a step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(37, 37) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number in (3, 0, 5, 1, 4, 2):
            x = torch.tanh(self.layers[number](x))
        return x.square().mean()


@contextmanager
def group(backend: str) -> Iterator[None]:
    torch.distributed.init_process_group(backend, timeout=timedelta(seconds=60))
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def begin(**options: Any) -> dict[str, Any]:
    model = DistributedDataParallel(Net(), **options)
    return {"model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=0.02)}


def train(state: dict[str, Any], steps: range, rank: int) -> list[str]:
    losses = []
    for step in steps:
        x = torch.randn(9, 37, generator=torch.Generator().manual_seed(100 * step + rank))
        state["optimizer"].zero_grad()
        loss = state["model"](x)
        loss.backward()
        state["optimizer"].step()
        losses.append(loss.item().hex())
    return losses


def differences(job: SharedJob, directory: Path, backend: str, **options: Any) -> int:
    """Count the steps of a job resumed at its third step that differ from those of an undisturbed job."""
    with group(backend):
        state = begin(**options)
        train(state, range(3), job.rank)
        checkpoint.save(state, checkpoint_id=directory)
        expected = train(state, range(3, 3 + STEPS), job.rank)
        again = begin(**options)
        checkpoint.load(again, checkpoint_id=directory)
        result = train(again, range(3, 3 + STEPS), job.rank)
    return sum(job.trainers.allgather([a != b for a, b in zip(result, expected, strict=True)])[0])


@pytest.mark.slow
@on_layouts([Layout(4, 0, 2)])
@pytest.mark.parametrize("backend, options", [("mpi4py", {}), ("gloo", {"find_unused_parameters": True})])
@pytest.mark.filterwarnings("ignore:find_unused_parameters:UserWarning")
def test_the_same_bits_after_a_restart(
    job: SharedJob, g: dist.DistGraph, tmp_path: Path, backend: str, options: dict[str, Any]
) -> None:
    directory = job.one_has(lambda: tmp_path)
    assert differences(job, directory / "c", backend, **options) == 0  # with gloo alone it is 2
