"""``DistTensor.gather``: into the caller's memory, for another device."""

import numpy as np
import pytest
import torch
from layouts import SharedJob
from oracle import NUM_NODES

import mpigraph.distributed as dist

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


def filled(dtype: torch.dtype, *row_shape: int) -> dist.DistTensor:
    def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.arange(int(np.prod(shape))).reshape(shape).remainder(7).to(dtype)

    return dist.DistTensor((NUM_NODES, *row_shape), dtype, init_func=numbers)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_come_into_given_memory(job: SharedJob, oracle, dtype: torch.dtype) -> None:
    job.open(oracle(3))
    ids = torch.randint(NUM_NODES, (150,), generator=torch.Generator().manual_seed(job.rank))
    for t in (filled(dtype, 5), filled(dtype)):
        want = t[ids]
        out = torch.zeros_like(want)
        assert t.gather(ids, out=out) is out and torch.equal(out, want)
        assert torch.equal(t.gather(ids), want)
        assert torch.equal(t.gather(ids, device="cpu"), want)
        columns = torch.zeros(*want.shape, 2, dtype=dtype)
        part = columns[..., 1]  # every other element
        assert t.gather(ids, out=part) is part and torch.equal(part, want) and not columns[..., 0].any()
        assert t.gather([], out=out[:0]).shape == out[:0].shape


def test_rows_go_to_another_device(job: SharedJob, oracle) -> None:
    """``meta`` is a device that every torch has."""
    job.open(oracle(3))
    t = filled(torch.float32, 5)
    rows = t.gather([3, 1], device="meta")
    assert rows.device.type == "meta" and rows.shape == (2, 5)
    out = torch.empty(2, 5, device="meta")
    assert t.gather([3, 1], out=out) is out
    assert t.gather([3, 1], out=out, device="meta") is out
    emb = dist.DistEmbedding(NUM_NODES, 5, dtype=torch.bfloat16)
    with torch.no_grad():
        assert emb([0, 1], "meta").dtype == torch.float32 and emb([0, 1], "meta").device.type == "meta"
