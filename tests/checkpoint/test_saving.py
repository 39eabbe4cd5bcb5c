"""Dense tensors share a dataset: a model of many comes back as it was."""

from pathlib import Path
from typing import Any

import pytest
import torch
from layouts import SharedJob

import mpigraph.distributed as dist
from mpigraph import checkpoint
from mpigraph.checkpoint import folder, saving


def values(seed: int) -> list[torch.Tensor]:
    """Tensors of all kinds; the last ones are larger than a block of a save, and empty."""
    draw = torch.Generator().manual_seed(seed)
    many = [torch.randn(1 + number % 5, 3, generator=draw) for number in range(300)]
    half = torch.randn(3, generator=draw).bfloat16()
    rest = [torch.tensor(seed), torch.zeros(0, 4), torch.tensor([True, seed > 1]), half]
    return [*many, *rest, torch.full((5000,), seed, dtype=torch.uint8), torch.rand(4, 6, generator=draw)[::2, 1::2]]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("save", [checkpoint.save, checkpoint.async_save])
@pytest.mark.parametrize("block", [1000, 1 << 26])
def test_tensors_share_a_dataset(
    job: SharedJob, g: dist.DistGraph, tmp_path: Path, save: Any, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((saving, "_BLOCK"), (saving, "_BLOCK_BESIDE"), (folder, "_BLOCK")):
        monkeypatch.setattr(module, name, block)
    directory = job.one_has(lambda: tmp_path) / "saved"
    tensors = values(1)
    expected = [tensor.clone() for tensor in tensors]
    save({"tensors": tensors, "last": tensors[7]}, checkpoint_id=directory)
    for tensor in tensors:
        tensor.fill_(0)  # while it is written
    checkpoint.wait()
    here, part = values(2), {"last": torch.zeros(3, 3)}
    checkpoint.load({"tensors": here}, checkpoint_id=directory)
    checkpoint.load(part, checkpoint_id=directory)
    assert same(here, expected) and torch.equal(part["last"], expected[7])
