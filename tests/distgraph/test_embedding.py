"""DistEmbedding: reads and their records, rows that do not depend on the layout, dtypes, names, bad input."""

import pickle
import random
from copy import deepcopy
from functools import cache

import numpy as np
import pytest
import torch
from layouts import Job, alone, on_all, rotated
from oracle import NUM_NODES, open_graph
from torch.optim.swa_utils import AveragedModel

import mpigraph.distributed as dist
from mpigraph.distgraph import new_tensor
from mpigraph.errors import ClosedError, InvalidArgumentError, TensorMismatchError
from mpigraph.nn import SAGEConv

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def own_id(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Rows that say their number, of a graph that fits one chunk."""
    return torch.arange(shape[0])[:, None].expand(shape).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reads_are_leaves_in_float32(g: dist.DistGraph, dtype: torch.dtype) -> None:
    emb = dist.DistEmbedding(NUM_NODES, 3, "emb", init_func=own_id, dtype=dtype)
    assert (emb.name, emb.num_embeddings, emb.embedding_dim) == ("emb", NUM_NODES, 3)
    assert emb.weight.dtype == dtype and emb.weight.shape == (NUM_NODES, 3)
    assert emb.part_policy.policy_str == g.get_node_partition_policy().policy_str
    ids = np.random.default_rng(g.rank()).integers(0, NUM_NODES, 300)
    want = torch.from_numpy(ids)[:, None].expand(-1, 3).float()
    for form in (ids, ids.astype(np.int32), torch.from_numpy(ids), ids.tolist()):
        rows = emb(form)
        assert rows.dtype == torch.float32 and rows.requires_grad and rows.is_leaf
        assert torch.equal(rows.detach(), want)
    with torch.no_grad():
        rows = emb(ids, device=torch.device("cpu"))
    assert not rows.requires_grad and torch.equal(rows, want)
    assert len(emb.trace) == 4 and all(np.array_equal(lookup.ids, ids) for lookup in emb.trace)
    assert emb([]).shape == (0, 3)
    emb.reset_trace()
    assert emb.trace == []


def test_modules_with_an_embedding_say_what_copies_it(g: dist.DistGraph) -> None:
    model = SAGEConv(3, 2, "mean")
    averaged = AveragedModel(model)
    averaged.update_parameters(model)
    assert torch.equal(averaged.module.fc_neigh.weight, model.fc_neigh.weight)
    model.rows = dist.DistEmbedding(NUM_NODES, 3)
    for copy in (deepcopy, pickle.dumps, AveragedModel):
        with pytest.raises(
            InvalidArgumentError, match=r"embedding .* cannot be pickled or deep-copied.*checkpoint\.save"
        ):
            copy(model)
    assert "rows" not in model.state_dict()


def test_records_keep_what_was_read(g: dist.DistGraph) -> None:
    """Ids may be overwritten by who gave them, and rows are not in memory that the next read uses again."""
    emb = dist.DistEmbedding(NUM_NODES, 128, init_func=own_id)
    ids = np.random.default_rng(3).integers(0, NUM_NODES, 3000)  # large enough for the pool
    want = torch.from_numpy(ids.copy())[:, None].expand(-1, 128).float()
    rows = emb(ids)
    ids[:] = 0
    for _ in range(8):
        with torch.no_grad():
            assert not emb(ids).any()
    (lookup,) = emb.trace
    assert lookup.leaf is rows and torch.equal(rows.detach(), want)
    assert np.array_equal(lookup.ids, want[:, 0].numpy().astype(np.int64))


INITS = {
    "torch": lambda shape, dtype: torch.randn(shape, dtype=dtype),
    "uniform": lambda shape, dtype: torch.empty(shape, dtype=dtype).uniform_(-1, 1),
    "numpy": lambda shape, dtype: torch.from_numpy(np.random.random(shape)).to(dtype),  # noqa: NPY002
    "python": lambda shape, dtype: torch.full(shape, random.random(), dtype=dtype),
}


def states() -> tuple[object, ...]:
    """The states of the default generators."""
    _, words, at, *_ = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().tolist(), words.tolist(), at, random.getstate()


def made(path: str) -> dict[tuple[str, torch.dtype], torch.Tensor]:
    """The rows of an embedding for each function and dtype, some without a name, and of a tensor."""
    open_graph(path)
    rows = {}
    for name, init in INITS.items():
        for dtype in DTYPES if name == "torch" else DTYPES[:1]:
            label = None if name == "uniform" else f"{name} {dtype}"
            emb = dist.DistEmbedding(NUM_NODES, 3, label, init, dtype=dtype)
            rows[name, dtype] = emb.weight[:]
    tensor = dist.DistTensor((NUM_NODES, 3), torch.float32, "tensor", INITS["torch"])
    return rows | {("tensor", torch.float32): tensor[:]}


@cache
def made_alone(path: str, seed: int) -> dict[tuple[str, torch.dtype], torch.Tensor]:
    return alone(lambda: made(path), seed=seed)


@rotated(2)
@pytest.mark.parametrize("chunk", [7, 1 << 14])
def test_rows_do_not_depend_on_the_layout(layout: Job, oracle, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_tensor, "CHUNK", chunk)
    made_alone.cache_clear()
    reference, other = (made_alone(oracle(1, "given"), seed) for seed in (5, 6))
    path = oracle(3, "given")

    def body() -> list:
        before = states()
        rows_by_key = made(path)
        assert states() == before  # the user's generators are where they were
        return [key for key, rows in rows_by_key.items() if not torch.equal(rows, reference[key])]

    wrong = layout.run(body, seed=5) or []
    on_all(layout.comm, not wrong, f"{wrong}")
    assert all(not torch.equal(rows, reference[key]) for key, rows in other.items())
    for (name, dtype), rows in reference.items():
        chunks = rows.split(chunk)
        assert len({tuple(rows.reshape(-1)[:3].tolist()) for rows in chunks}) == len(chunks), (name, dtype)


def test_rows_of_two_names_differ_and_zeros_are_the_default(g: dist.DistGraph) -> None:
    assert not dist.DistEmbedding(NUM_NODES, 3, "zeros").weight[:].any()
    named = [dist.DistEmbedding(NUM_NODES, 3, name, INITS["torch"]) for name in ("a", "b", None, None)]
    assert len({emb.name for emb in named}) == 4
    rows = [emb.weight[:] for emb in named]
    assert not any(torch.equal(x, y) for k, x in enumerate(rows) for y in rows[:k])


def test_a_name_attaches(g: dist.DistGraph) -> None:
    first = dist.DistEmbedding(NUM_NODES, 2, "emb", own_id)
    g.barrier()
    if g.rank() == 0:
        first.weight[[4]] = 7
    g.barrier()
    again = dist.nn.DistEmbedding(NUM_NODES, 2, "emb", INITS["torch"])
    want = own_id((NUM_NODES, 2), torch.float32)
    want[4] = 7
    assert torch.equal(again.weight[:], want)  # not made anew
    again([1, 2])
    assert first.trace == [] and len(again.trace) == 1
    for wrong in ({"embedding_dim": 3}, {"dtype": torch.bfloat16}):
        with pytest.raises(TensorMismatchError, match="'emb' exists with shape"):
            dist.DistEmbedding(NUM_NODES, **{"embedding_dim": 2, "name": "emb"} | wrong)
    first.weight.close()
    with pytest.raises(ClosedError, match="'emb' was closed"):
        again([1])


def test_an_init_func_that_fails_leaves_the_generators(g: dist.DistGraph) -> None:
    before = torch.get_rng_state()
    with pytest.raises(InvalidArgumentError, match=r"'x' failed on every rank.*shape \(101, 2\) \(got \(101,\)"):
        dist.DistEmbedding(NUM_NODES, 2, "x", lambda shape, dtype: torch.zeros(shape[0]))
    assert torch.equal(torch.get_rng_state(), before)
    assert not dist.DistEmbedding(NUM_NODES, 2, "x").weight[:].any()  # the name is free
