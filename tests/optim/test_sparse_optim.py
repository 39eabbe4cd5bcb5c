"""Sparse optimizers: their formulas, one result in every layout, consistency, what is dropped when, and bad input."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from gradients import DIM, MAKE, Arrays, Plain, differences, embedding, everything, minibatch, piece, push, train
from layouts import SharedJob, alone, everywhere, on_all, rotated, several
from oracle import NUM_NODES, open_graph

import mpigraph.distributed as dist
from mpigraph import optim
from mpigraph.errors import CollectiveError, InvalidArgumentError, MPIGraphError
from mpigraph.session.context import current
from mpigraph.session.control import Operation

STEPS = 4


def trained(path: str, kind: str, reduction: str, dtype: torch.dtype, steps: int = STEPS) -> Arrays:
    open_graph(path)
    emb = embedding(dtype=dtype)
    train(emb, MAKE[kind]([emb], reduction=reduction), range(steps))
    return everything(emb)


@cache
def trained_alone(path: str, kind: str, reduction: str, dtype: torch.dtype) -> Arrays:
    return alone(lambda: trained(path, kind, reduction, dtype))


@everywhere
@rotated(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_result_is_the_same_bits_in_every_layout(
    job: SharedJob, oracle, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optim, "_BLOCK", 16)  # several blocks of 16-bit rows
    cases = [(kind, "mean") for kind in MAKE]
    if dtype == torch.float32:
        cases.append(("adagrad", "sum"))
    references = {case: trained_alone(oracle(1, "given"), *case, dtype) for case in cases}
    path = oracle(3, "given")
    job.open(path)
    results = [f"{case}: {differences(trained(path, *case, dtype), references[case])}" for case in cases]
    wrong = [text for text in results if not text.endswith("[]")]
    on_all(job.trainers, not wrong, f"{wrong}")


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("kind", MAKE)
def test_rows_are_those_of_torchs_optimizers(g: dist.DistGraph, kind: str, reduction: str) -> None:
    emb = embedding()
    plain = Plain(kind, emb.weight[:], reduction)
    optimizer = MAKE[kind]([emb], reduction=reduction)
    for step in range(STEPS):
        train(emb, optimizer, range(step, step + 1))
        plain.step(*minibatch(step))
        torch.testing.assert_close(emb.weight[:].double(), plain.weight, rtol=1e-6, atol=1e-6)
    for name, tensor in optimizer.state["emb"].items():
        assert tensor.name == f"emb_{name}" and tensor.dtype == torch.float32
        wanted = plain.state(name)
        assert wanted
        for row, value in wanted.items():
            torch.testing.assert_close(tensor[row][0].double(), value, rtol=1e-5, atol=1e-6)


def test_every_trainer_reads_what_a_step_wrote_and_nothing_is_lost(g: dist.DistGraph) -> None:
    """Each step every trainer pushes -1 to rows of everybody: rows count the steps, and no read lags behind."""
    steps = 30
    emb = dist.DistEmbedding(NUM_NODES, 33)
    optimizer = dist.SparseSGD([emb], lr=1.0, reduction="sum")
    rng = np.random.default_rng(7)
    want = torch.zeros(NUM_NODES)
    loader = dist.DistDataLoader(
        np.arange(20 * steps) % NUM_NODES, 20, collate_fn=lambda ids: g.sample_blocks(ids, [3, 2])
    )
    for _, _ in zip(range(steps), loader, strict=True):  # which samples ahead meanwhile
        ids = torch.from_numpy(rng.integers(0, NUM_NODES, 40))
        push(emb, ids, torch.full((40, 33), -1.0))
        optimizer.step()
        want.index_add_(0, ids, torch.full((40,), float(current().num_trainers)))
        assert torch.equal(emb.weight[:], want[:, None].expand(-1, 33))
    assert want.sum() == 40 * steps * current().num_trainers


@pytest.mark.parametrize("who", ["first", "last", "none", "all"])
def test_trainers_and_embeddings_with_and_without_gradients(g: dist.DistGraph, who: str) -> None:
    """Several reads, as head, tail and negatives of a knowledge graph; the mean is of all of them."""
    session = current()
    embs, other = [embedding("a"), dist.DistEmbedding(NUM_NODES, DIM, "b")], embedding("other")
    plains, others = [Plain("adam", emb.weight[:]) for emb in embs], other.weight[:]
    optimizer = MAKE["adam"]([other, *embs])
    ids, grads = minibatch(0, 90)
    chosen = {"first": 0, "last": session.num_trainers - 1, "none": -1, "all": session.rank}[who]
    if session.rank == chosen:
        embs[0]([5])  # without gradient
        own = piece(90, session.rank, session.num_trainers) if who == "all" else slice(None)
        parts = [(ids[own][k::3], grads[own][k::3]) for k in range(3)]
        sum((emb(i) * g).sum() for i, g in parts for emb in embs).backward()
    optimizer.step()
    for emb, plain in zip(embs, plains, strict=True):
        if who != "none":
            plain.step(ids, grads)
        torch.testing.assert_close(emb.weight[:].double(), plain.weight, rtol=1e-6, atol=1e-6)
        assert emb.take_gradients() == [] and emb.trace == []
    assert torch.equal(other.weight[:], others)


def test_gradients_are_dropped_and_kept_as_zero_grad_says(g: dist.DistGraph) -> None:
    emb = dist.DistEmbedding(NUM_NODES, 2)
    optimizer = dist.SparseSGD([emb], 1.0)

    def rows() -> list[float]:
        return [float(emb.weight[row][0, 0]) for row in (1, 2, 3)]

    optimizer.zero_grad()  # zero_grad, forward, backward, step
    emb([1]).sum().backward()
    optimizer.step()
    assert rows() == [-1, 0, 0]
    loss = emb([2]).sum()  # forward, zero_grad, backward, step
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    assert rows() == [-1, -1, 0]
    optimizer.step()  # nothing is applied twice, with or without zero_grad
    emb([3]).sum().backward()
    optimizer.step()
    assert rows() == [-1, -1, -1]
    emb([1]).sum().backward()
    later = emb([2]).sum()
    optimizer.zero_grad()  # drops the first, and the second may still come
    later.backward()
    optimizer.step()
    assert rows() == [-1, -2, -1]
    late = emb([3]).sum()
    optimizer.step()  # keeps what may still get a gradient
    late.backward()
    optimizer.step()
    assert rows() == [-1, -2, -2]
    held = emb([1, 2])
    for _ in range(2):  # the same rows in two steps
        held[:1].sum().backward()
        optimizer.step()
        assert held.grad is None
    held.sum().backward()
    optimizer.zero_grad()
    held[1:].sum().backward()
    optimizer.step()
    assert rows() == [-3, -3, -2]
    del held, loss, later, late
    emb([3])
    optimizer.step()
    assert rows() == [-3, -3, -2] and emb.trace == []  # what is dead cannot get a gradient
    emb([3]).sum().backward()
    emb.reset_trace()
    optimizer.step()
    assert rows() == [-3, -3, -2]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "shape"])
def test_a_bad_gradient_raises_on_all_before_any_update(g: dist.DistGraph, bad: float | str) -> None:
    embs = [embedding("good"), embedding("bad")]
    before = [emb.weight[:] for emb in embs]
    optimizer = MAKE["adagrad"](embs)
    for emb in embs:
        push(emb, *minibatch(0))
    if current().rank == current().num_trainers - 1:
        leaf = embs[1].trace[0].leaf
        if bad == "shape":
            leaf.grad.data = torch.zeros(3, DIM)
        else:
            leaf.grad[4, 2] = bad
    words = "of 70 rows must have shape \\(70, 5\\)" if bad == "shape" else f"of row \\d+ is not finite: .*{bad}"
    with pytest.raises(InvalidArgumentError, match=f"'bad': the gradient {words}"):
        optimizer.step()
    optimizer.step()  # what failed is not applied later
    assert all(torch.equal(emb.weight[:], rows) for emb, rows in zip(embs, before, strict=True))
    push(embs[0], *minibatch(0))
    push(embs[1], torch.zeros(9, dtype=torch.int64), torch.full((9, DIM), 1e37))  # finite, though their sum is not
    optimizer.step()
    assert not torch.equal(embs[0].weight[:], before[0]) and embs[1].weight[:].isfinite().all()


def test_sparse_and_wide_gradients_are_taken(job: SharedJob, g: dist.DistGraph) -> None:
    emb = dist.DistEmbedding(NUM_NODES, 2)
    optimizer = dist.SparseSGD([emb], 1.0, reduction="sum")
    leaf = emb([4, 9, 16])
    torch.nn.functional.embedding(torch.tensor([2, 0, 2]), leaf, sparse=True).sum().backward()
    assert leaf.grad.is_sparse
    optimizer.step()
    want = torch.zeros(NUM_NODES, 2)
    want[4], want[16] = -1.0 * job.trainers.size, -2.0 * job.trainers.size
    assert torch.equal(emb.weight[:], want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", MAKE)
def test_rows_of_16_bits_are_rounded_once(g: dist.DistGraph, kind: str, dtype: torch.dtype) -> None:
    """A step on 16-bit rows is the step on the same rows in float32, then rounded."""
    narrow = embedding("narrow", dtype)
    wide = dist.DistEmbedding(NUM_NODES, DIM, "wide")
    optimizers = [MAKE[kind]([emb]) for emb in (narrow, wide)]
    for step in range(3):
        current().control.call(Operation.BARRIER)
        if current().rank == 0:
            wide.weight[:] = narrow.weight[:].float()
        current().control.call(Operation.BARRIER)
        for emb, optimizer in zip((narrow, wide), optimizers, strict=True):
            train(emb, optimizer, range(step, step + 1))
        assert torch.equal(narrow.weight[:], wide.weight[:].to(dtype))
        assert not torch.equal(narrow.weight[:].float(), wide.weight[:])
    for name, state in optimizers[0].state["narrow"].items():
        assert torch.equal(state[:], optimizers[1].state["wide"][name][:])


def test_a_new_optimizer_begins_anew_and_memory_is_freed(g: dist.DistGraph) -> None:
    emb = embedding()
    g.barrier()
    tensors = len(current().store.tensors)
    optimizer = MAKE["adam"]([emb])
    assert {name: t.shape for name, t in emb.optm_state.items()} == {
        "mem": (NUM_NODES, DIM),
        "power": (NUM_NODES, DIM),
        "step": (NUM_NODES,),
    }
    train(emb, optimizer, range(1))
    assert optimizer.state["emb"]["step"].count_nonzero() > 0
    optimizer = MAKE["adam"]([emb])
    assert optimizer.state["emb"]["step"].count_nonzero() == 0
    optimizer = MAKE["row-wise"]([emb])
    assert optimizer.state["emb"]["sum"].shape == (NUM_NODES,)
    optimizer.lr = 0.5
    assert optimizer.lr == optimizer.settings["lr"] == 0.5
    with pytest.raises(InvalidArgumentError, match="lr must be"):
        optimizer.lr = -1
    g.barrier()
    assert len(current().store.tensors) == tensors + 1


def test_an_update_that_fails_on_one_trainer_raises_on_all(g: dist.DistGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    apply, failing = optim.SparseOptimizer._update, [0, 1, -1]

    def fail(optimizer: dist.optim.SparseOptimizer, number: int, pushed: object) -> None:
        if (number, current().rank) == (failing[0], current().num_trainers - 1):
            raise MemoryError("no room for a row")
        apply(optimizer, number, pushed)

    monkeypatch.setattr(optim.SparseOptimizer, "_update", fail)
    optimizer = MAKE["adagrad"]([embedding("a"), embedding("b")])
    while failing[0] >= 0:
        words = "step of SparseAdagrad for 'a', 'b' failed on .*: MemoryError: no room for a row"
        with pytest.raises(CollectiveError, match=words):
            optimizer.step()
        del failing[0]
    optimizer.step()


def test_a_setting_that_became_wrong_is_one_error(g: dist.DistGraph) -> None:
    for name, value, words in (("lr", None, "lr must be"), ("reduction", "sum", "cannot be")):
        optimizer = MAKE["adagrad"]([embedding()])
        optimizer.param_groups[0][name] = value
        with pytest.raises(InvalidArgumentError, match=words):
            optimizer.step()
    with pytest.raises(InvalidArgumentError, match="SparseAdagrad has one group"):
        optimizer.add_param_group({"params": []})


schedules = torch.optim.lr_scheduler
SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], schedules.LRScheduler]] = {
    "from zero": lambda o: schedules.LambdaLR(o, lambda step: step / 10),
    "cosine": lambda o: schedules.CosineAnnealingLR(o, 3),
    "one cycle": lambda o: schedules.OneCycleLR(o, 0.5, total_steps=STEPS + 1),
    "sequence": lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o, total_iters=2), schedules.ExponentialLR(o, 0.5)], [2]
    ),
    "plateau": lambda o: schedules.ReduceLROnPlateau(o, patience=0),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_of_torch_set_the_rate_that_rows_are_updated_with(g: dist.DistGraph, name: str) -> None:
    """Rows move by the rate that a dense optimizer with the same schedule has, and the rate goes through a state."""
    emb = dist.DistEmbedding(NUM_NODES, DIM)
    optimizer = dist.SparseAdam([emb], 0.1) if name == "one cycle" else dist.SparseSGD([emb], 0.1)
    dense = (torch.optim.Adam if name == "one cycle" else torch.optim.SGD)([torch.nn.Parameter(torch.zeros(1))], 0.1)
    own, reference = SCHEDULES[name](optimizer), SCHEDULES[name](dense)
    assert isinstance(optimizer, torch.optim.Optimizer)
    for _ in range(STEPS):
        before = emb.weight[:]
        current().control.call(Operation.BARRIER)
        rate = dense.param_groups[0]["lr"]
        assert optimizer.param_groups[0]["lr"] == optimizer.lr == rate
        push(emb, torch.arange(NUM_NODES), torch.ones(NUM_NODES, DIM))
        optimizer.step()
        dense.step()
        if name != "one cycle":
            torch.testing.assert_close(emb.weight[:], before - rate)
        for schedule in (own, reference):
            schedule.step(*[1.0] if name == "plateau" else [])
    saved = optimizer.state_dict()
    optimizer.lr = 7.0
    optimizer.param_groups[0].pop("initial_lr", None)
    optimizer.load_state_dict(saved)
    assert optimizer.lr == dense.param_groups[0]["lr"]
    assert optimizer.param_groups[0].get("initial_lr") == dense.param_groups[0].get("initial_lr")


def test_a_closure_gives_the_loss(g: dist.DistGraph) -> None:
    emb = dist.DistEmbedding(NUM_NODES, 1)
    optimizer = dist.SparseSGD([emb], 1.0)

    def closure() -> float:
        loss = (emb([3]) - 2.0).square().sum()
        loss.backward()
        return loss.item()

    with torch.no_grad():
        assert optimizer.step(closure) == 4.0
    assert emb.weight[3].item() == 4.0


@several
def test_trainers_with_different_optimizers_get_one_error_and_change_nothing(g: dist.DistGraph) -> None:
    rank, a, b = current().rank, embedding("a"), embedding("b")
    before, optimizers = a.weight[:], [MAKE["adam"]([a]), MAKE["adagrad"]([b])]
    with pytest.raises(CollectiveError, match=r"trainer 0: here it is step of SparseAdam for 'a'.*; on trainer 1"):
        optimizers[min(rank, 1)].step()
    with pytest.raises(CollectiveError, match=r"different optimizers\n.*0\.5.* on trainer 0 .*0\.25.* on trainer 1"):
        dist.SparseSGD([a], lr=0.5 if rank == 0 else 0.25)
    with pytest.raises(CollectiveError, match="make different optimizers"):
        MAKE["sgd"]([a] if rank == 0 else [a, b])
    optimizers[0].param_groups[0]["lr"] = 0.5 if rank == 0 else 0.25
    push(a, *minibatch(0))
    with pytest.raises(CollectiveError, match=r"trainer 0: here it is .*'lr': 0\.5.*on trainer 1.*'lr': 0\.25"):
        optimizers[0].step()
    assert torch.equal(a.weight[:], before)
    optimizers[0].lr = 0.5
    optimizers[0].step()


def test_local_state_is_that_of_owned_rows(job: SharedJob, g: dist.DistGraph) -> None:
    emb = embedding()
    optimizer = MAKE["adam"]([emb])
    train(emb, optimizer, range(2))
    saved = optimizer.local_state_dict()
    ids = saved["emb_states"]["emb"]["ids"]
    assert sorted(sum(job.trainers.allgather(ids.tolist()), [])) == list(range(NUM_NODES))
    assert saved["params"]["world_size"] == job.trainers.size
    want = {name: tensor[:] for name, tensor in optimizer.state["emb"].items()}
    g.barrier()
    train(emb, optimizer, range(2, 3))
    optimizer.load_local_state_dict(saved)
    assert all(torch.equal(tensor[:], want[name]) for name, tensor in optimizer.state["emb"].items())
    with pytest.raises(MPIGraphError, match="the embeddings are"):
        optimizer.load_local_state_dict(saved | {"emb_states": {}})
    g.barrier()
