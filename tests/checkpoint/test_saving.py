"""Small tensors share a dataset: a model of many comes back as it was, and a damaged one is named."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from layouts import SharedJob, alone
from oracle import open_graph

from mpigraph import checkpoint
from mpigraph.checkpoint import saving
from mpigraph.errors import ShardFormatError
from mpigraph.storage.shard import ShardReader

MANY = 300
LIMIT = saving._SMALL_BYTES


def values(seed: int) -> list[torch.Tensor]:
    """Tensors of all kinds that are small, and one of each side of the limit."""
    draw = torch.Generator().manual_seed(seed)
    many = [torch.randn(1 + number % 5, 3, generator=draw) for number in range(MANY)]
    half = torch.randn(3, generator=draw).bfloat16()
    rest = [torch.tensor(seed), torch.zeros(0, 4), torch.tensor([True, seed > 1]), half]
    return [*many, *rest, *(torch.full((size,), seed, dtype=torch.uint8) for size in (LIMIT, LIMIT + 1))]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(a, b, strict=True))


def datasets(directory: Path) -> list[str]:
    with ShardReader(next(directory.glob("*-0.h5"))) as shard:
        return sorted(name for name in shard.names() if name.startswith("tensors/"))


@pytest.mark.parametrize("save", [checkpoint.save, checkpoint.async_save])
def test_small_tensors_share_a_dataset(job: SharedJob, oracle, tmp_path: Path, save: Any) -> None:
    directory = job.one_has(lambda: tmp_path) / "saved"
    g = job.open(oracle(3))
    tensors = values(1)
    expected = [tensor.clone() for tensor in tensors]
    save({"tensors": tensors}, checkpoint_id=directory)
    for tensor in tensors:
        tensor.fill_(0)  # while it is written
    checkpoint.wait()
    here = values(2)
    checkpoint.load({"tensors": here}, checkpoint_id=directory)
    same_here = same(here, expected)
    names = datasets(directory) if g.rank() == 0 else []
    g.barrier()
    assert same_here
    assert g.rank() > 0 or names == [f"tensors/{MANY + 5}", "tensors/small"]


def test_a_damaged_small_tensor_is_named(oracle, tmp_path: Path) -> None:
    def body() -> None:
        open_graph(oracle(2))
        directory = tmp_path / "saved"
        tensors = [torch.full((100,), float(number)) for number in range(50)]
        checkpoint.save({"tensors": tensors}, checkpoint_id=directory)
        path = next(directory.glob("*-0.h5"))
        data = bytearray(path.read_bytes())
        at = data.index(torch.full((100,), 37.0).numpy().tobytes()) + 99
        data[at] ^= 4
        path.write_bytes(data)
        error = f"{re.escape(str(path))}: tensor 37 is damaged"
        with pytest.raises(ShardFormatError, match=error):
            checkpoint.load({"tensors": tensors}, checkpoint_id=directory)
        with pytest.raises(ShardFormatError, match=error):
            checkpoint.export(directory, tmp_path / "x.pt", "tensors")
        assert checkpoint.latest(tmp_path) is None

    alone(body)
