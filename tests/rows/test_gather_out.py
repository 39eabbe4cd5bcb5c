"""``DistTensor.gather``: into the caller's memory, for another device, from pinned memory."""

import gc

import numpy as np
import pytest
import torch
from layouts import SharedJob
from oracle import NUM_NODES

import mpigraph.distributed as dist
from mpigraph.errors import InvalidArgumentError, OutOfRangeError
from mpigraph.rows.pool import RowPool
from mpigraph.session import context

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
    found = t.gather([3, 1], device="meta")
    assert found.device.type == "meta" and found.shape == (2, 5)
    out = torch.empty(2, 5, device="meta")
    assert t.gather([3, 1], out=out) is out
    assert t.gather([3, 1], out=out, device="meta") is out
    emb = dist.DistEmbedding(NUM_NODES, 5, dtype=torch.bfloat16)
    with torch.no_grad():
        assert emb([0, 1], "meta").dtype == torch.float32 and emb([0, 1], "meta").device.type == "meta"


def test_memory_that_does_not_fit_is_named(job: SharedJob, oracle) -> None:
    job.open(oracle(3))
    t = filled(torch.float32, 5)
    with pytest.raises(
        InvalidArgumentError, match=r"out must be \(2, 5\) torch.float32 \(got \(3, 5\) torch.float32\)"
    ):
        t.gather([0, 1], out=torch.empty(3, 5))
    with pytest.raises(InvalidArgumentError, match=r"out must be .* \(got \(2, 5\) torch.float64\)"):
        t.gather([0, 1], out=torch.empty(2, 5, dtype=torch.float64))
    with pytest.raises(InvalidArgumentError, match="out is on cpu, the rows are wanted on meta"):
        t.gather([0, 1], out=torch.empty(2, 5), device="meta")
    with pytest.raises(OutOfRangeError):
        t.gather([NUM_NODES], out=torch.empty(1, 5))


def test_pinned_memory_is_made_where_there_is_cuda(job: SharedJob, oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    job.open(oracle(3))
    t, made = filled(torch.float32, 5), []

    def allocate(nbytes: int) -> np.ndarray:
        made.append(nbytes)
        return np.empty(nbytes, np.uint8)

    monkeypatch.setattr(context, "_pinned_memory", allocate)
    monkeypatch.setattr(job.session, "_pinned_pool", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    want = t.gather([2, 1, 2], pin_memory=True)
    assert not made
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = t.gather([2, 1, 2], pin_memory=True)
    assert torch.equal(found, want) and len(made) == 1 and made[0] >= 60
    del found
    gc.collect()
    t.gather([2, 1, 2], pin_memory=True)
    assert len(made) == 2  # never memory from which the caller may still be copying
    t.gather([2, 1, 2])
    assert len(made) == 2


def test_a_pool_takes_its_memory_from_who_makes_it() -> None:
    made: list[int] = []

    def allocate(nbytes: int) -> np.ndarray:
        made.append(nbytes)
        return np.full(nbytes, 7, np.uint8)

    pool = RowPool(allocate)
    small, empty, large = pool.empty((3,), np.uint8), pool.empty((0, 4), np.float32), pool.empty(((1 << 28) + 8,), "u1")
    assert small.tolist() == [7, 7, 7] and empty.shape == (0, 4) and large.shape == ((1 << 28) + 8,)
    assert len(made) == 2 and made[1] == (1 << 28) + 8
    others = [pool.empty((3,), np.uint8) for _ in range(6)]
    assert len(made) == 8  # all are in use
    del small, others
    kept = [pool.empty((3,), np.uint8) for _ in range(6)]
    assert len(made) == 10 and len(kept) == 6  # four were kept
