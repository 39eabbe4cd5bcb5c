"""Sparse optimizers: their formulas, one result in every layout, consistency, what is dropped when, and bad input."""

import json
import os
from functools import cache
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from gradients import BATCH, DIM, MAKE, Arrays, Plain, differences, embedding, everything, minibatch, piece, push, train
from jobs import run_script
from layouts import SharedJob, alone, everywhere, on_all, rotated, several
from oracle import NUM_NODES, open_graph

import mpigraph.distributed as dist
from mpigraph.errors import (
    ClosedError,
    CollectiveError,
    InvalidArgumentError,
    MPIGraphError,
    ShardFormatError,
    StorageError,
)
from mpigraph.optim import base, checkpoint
from mpigraph.sampling.protocol import Operation
from mpigraph.session.context import current

SUPPORT = Path(__file__).resolve().parents[1] / "support"
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
    monkeypatch.setattr(base, "_BLOCK", 16)  # several blocks of 16-bit rows
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
def test_formulas_row_by_row(job: SharedJob, oracle, kind: str, reduction: str) -> None:
    job.open(oracle(3))
    emb = embedding()
    plain = Plain(kind, emb.weight[:], reduction)
    optimizer = MAKE[kind]([emb], reduction=reduction)
    for step in range(STEPS):
        train(emb, optimizer, range(step, step + 1))
        plain.step(*minibatch(step))
        torch.testing.assert_close(emb.weight[:].double(), plain.weight, rtol=1e-6, atol=1e-6)
    for name, tensor in optimizer.state["emb"].items():
        assert tensor.name == f"emb_{name}" and tensor.dtype == torch.float32
        for (row, which), value in plain.state.items():
            if which == name:
                torch.testing.assert_close(tensor[row][0].double(), value, rtol=1e-5, atol=1e-6)


def dense(kind: str, weight: torch.Tensor) -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
    """The same with torch: a dense parameter."""
    parameter = torch.nn.Parameter(weight.clone())
    made = {
        "adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
        "adam": lambda p: torch.optim.Adam(p, 0.05),
        "sgd": lambda p: torch.optim.SGD(p, 0.2),
    }
    return parameter, made[kind]([parameter])


@pytest.mark.parametrize("kind", ["adagrad", "adam", "sgd"])
def test_torch_does_the_same_to_a_dense_embedding(job: SharedJob, oracle, kind: str) -> None:
    """With sums, and for Adam with every row in every minibatch, since torch counts steps and not touches."""
    job.open(oracle(3))
    emb, session = embedding(), current()
    optimizer = MAKE[kind]([emb], reduction="sum")
    parameter, peer = dense(kind, emb.weight[:])
    for step in range(STEPS):
        ids, grads = minibatch(step, BATCH + NUM_NODES if kind == "adam" else BATCH)
        if kind == "adam":
            ids[-NUM_NODES:] = torch.arange(NUM_NODES)
        mine = piece(len(ids), session.rank, session.num_trainers)
        push(emb, ids[mine], grads[mine])
        optimizer.step()
        peer.zero_grad()
        (torch.nn.functional.embedding(ids, parameter) * grads).sum().backward()
        peer.step()
        torch.testing.assert_close(emb.weight[:], parameter.detach(), rtol=1e-6, atol=1e-6)


def test_every_trainer_reads_what_a_step_wrote_and_nothing_is_lost(job: SharedJob, oracle) -> None:
    """Each step every trainer pushes -1 to rows of everybody: rows count the steps, and no read lags behind."""
    steps = 60
    g = job.open(oracle(3))
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


@pytest.mark.parametrize("who", ["first", "last", "nobody"])
def test_trainers_without_gradients_take_part(job: SharedJob, oracle, who: str) -> None:
    job.open(oracle(3))
    session = current()
    emb, other = embedding("a"), embedding("b")
    before, others = emb.weight[:], other.weight[:]
    optimizer = MAKE["adagrad"]([other, emb])
    ids, grads = minibatch(0)
    if session.rank == {"first": 0, "last": session.num_trainers - 1, "nobody": -1}[who]:
        emb([5])  # without gradient
        push(emb, ids, grads)
    optimizer.step()
    plain = Plain("adagrad", before)
    if who != "nobody":
        plain.step(ids, grads)
    torch.testing.assert_close(emb.weight[:].double(), plain.weight, rtol=1e-6, atol=1e-6)
    assert torch.equal(other.weight[:], others)
    assert emb.take_gradients() == [] and emb._trace == []


def test_several_reads_of_several_embeddings(job: SharedJob, oracle) -> None:
    """As head, tail and negatives of a knowledge graph; what is averaged is averaged over all of them."""
    job.open(oracle(3))
    session = current()
    embs = [embedding("a"), dist.DistEmbedding(NUM_NODES, DIM, "b")]
    plains = [Plain("adam", emb.weight[:]) for emb in embs]
    optimizer = MAKE["adam"](embs)
    ids, grads = minibatch(0, 90)
    mine = piece(90, session.rank, session.num_trainers)
    parts = [(ids[mine][k::3], grads[mine][k::3]) for k in range(3)]
    loss = sum((emb(i) * g).sum() for i, g in parts for emb in embs)
    loss.backward()
    optimizer.step()
    for emb, plain in zip(embs, plains, strict=True):
        plain.step(ids, grads)
        torch.testing.assert_close(emb.weight[:].double(), plain.weight, rtol=1e-6, atol=1e-6)


def test_gradients_are_dropped_and_kept_as_zero_grad_says(job: SharedJob, oracle) -> None:
    job.open(oracle(3))
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
    assert rows() == [-3, -3, -2] and emb._trace == []  # what is dead cannot get a gradient
    emb([3]).sum().backward()
    emb.reset_trace()
    optimizer.step()
    assert rows() == [-3, -3, -2]


@pytest.mark.parametrize("num_prefetch", [0, 1, 4])
def test_what_a_loader_reads_ahead_is_trained(job: SharedJob, oracle, num_prefetch: int) -> None:
    job.open(oracle(3))
    emb = dist.DistEmbedding(NUM_NODES, 2)
    optimizer = dist.SparseSGD([emb], 1.0, reduction="sum")

    def train_one(rows: torch.Tensor) -> None:
        rows.sum().backward()

    loader = dist.DistDataLoader(np.arange(NUM_NODES), 7, collate_fn=emb, num_prefetch=num_prefetch)
    for rows in loader:
        optimizer.zero_grad()
        train_one(rows * 1.0)
        del rows  # its gradient is not lost with it
        optimizer.step()
    optimizer.step()
    assert torch.equal(emb.weight[:], torch.full((NUM_NODES, 2), -1.0 * job.trainers.size))
    assert emb._trace == []


def test_gradients_that_are_not_finite_raise_on_all_before_any_update(job: SharedJob, oracle) -> None:
    job.open(oracle(3))
    emb = embedding()
    before = emb.weight[:]
    optimizer = MAKE["sgd"]([emb])
    for bad in (float("nan"), float("inf")):
        ids, grads = minibatch(0)
        if current().rank == current().num_trainers - 1:
            grads[4, 2] = bad
        push(emb, ids, grads)
        with pytest.raises(InvalidArgumentError, match=r"'emb': the gradient of row \d+ is not finite: .*(nan|inf)"):
            optimizer.step()
        assert torch.equal(emb.weight[:], before)
    push(emb, ids[:9], torch.full((9, DIM), 1e37))  # finite, though their sum is not
    optimizer.step()
    assert emb.weight[:].isfinite().all()


def test_sparse_and_wide_gradients_are_taken(job: SharedJob, oracle) -> None:
    job.open(oracle(3))
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
def test_rows_of_16_bits_are_rounded_once(job: SharedJob, oracle, kind: str, dtype: torch.dtype) -> None:
    """A step on 16-bit rows is the step on the same rows in float32, then rounded."""
    job.open(oracle(3))
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


def test_a_new_optimizer_begins_anew_and_memory_is_freed(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    emb = embedding()
    g.barrier()
    tensors = len(current().state.tensors)
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
        optimizer.lr = 0
    g.barrier()
    assert len(current().state.tensors) == tensors + 1


def bad_params(emb: dist.DistEmbedding) -> list[tuple[object, str]]:
    twin = dist.DistEmbedding(NUM_NODES, DIM, emb.name)
    return [
        ([torch.nn.Embedding(3, 2)], "params must be DistEmbeddings (got a Embedding among them)"),
        ([emb, emb.weight], "params must be DistEmbeddings (got a DistTensor among them)"),
        (emb, "params must be a list of DistEmbeddings (got a DistEmbedding)"),
        (None, "params must be a list of DistEmbeddings (got a NoneType)"),
        ([], "params are empty: give at least one DistEmbedding"),
        ([emb, twin], "two of the embeddings are called 'emb'"),
    ]


BAD_SETTINGS = [
    ("adagrad", {"lr": 0}, "lr must be a number from 1.175494e-38 to 1e+30 (got 0)"),
    ("adagrad", {"lr": -0.1}, "(got -0.1)"),
    ("sgd", {"lr": float("nan")}, "(got nan)"),
    ("sgd", {"lr": "0.1"}, "(got '0.1')"),
    ("adagrad", {"eps": -1}, "eps must be a number from 0"),
    ("adam", {"betas": (0.9, 1.0)}, "each of betas must be a number from 0 to 1 (got 1.0)"),
    ("adam", {"betas": 0.9}, "betas must be two numbers (got 0.9)"),
    ("sgd", {"reduction": "max"}, "reduction must be 'mean' or 'sum' (got 'max')"),
]
CLASSES = {"adagrad": dist.SparseAdagrad, "adam": dist.SparseAdam, "sgd": dist.SparseSGD}


@pytest.mark.parametrize("everywhere", [True, False])
def test_bad_arguments_are_one_error_on_every_trainer(job: SharedJob, oracle, everywhere: bool) -> None:
    job.open(oracle(3))
    emb = embedding()
    mine = everywhere or current().rank == current().num_trainers - 1
    for params, words in bad_params(emb):
        with pytest.raises(InvalidArgumentError) as caught:
            dist.SparseAdam(params if mine else [emb], 0.1)
        assert words in str(caught.value) and "creating SparseAdam failed on" in str(caught.value)
    for kind, wrong, words in BAD_SETTINGS:
        with pytest.raises(InvalidArgumentError) as caught:
            CLASSES[kind]([emb], **({"lr": 0.1} | (wrong if mine else {})))
        assert words in str(caught.value)
    MAKE["sgd"]([emb]).step()


def test_gradients_of_a_wrong_shape_raise_on_all_before_any_update(job: SharedJob, oracle) -> None:
    job.open(oracle(3))
    good, bad = embedding("good"), embedding("bad")
    before = good.weight[:]
    optimizer = MAKE["adagrad"]([good, bad])
    push(good, *minibatch(0))
    push(bad, *minibatch(0))
    if current().rank == current().num_trainers - 1:
        bad._trace[0].leaf.grad.data = torch.zeros(3, DIM)
    with pytest.raises(InvalidArgumentError, match=r"'bad': the gradient of 70 rows must have shape \(70, 5\)"):
        optimizer.step()
    assert torch.equal(good.weight[:], before)
    optimizer.step()  # what failed is not applied later
    assert torch.equal(good.weight[:], before)
    train(good, optimizer, range(1))
    assert not torch.equal(good.weight[:], before)


def test_an_update_that_fails_on_one_trainer_raises_on_all(
    job: SharedJob, oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply, failing = base.SparseOptimizer._update, [0, 1, -1]

    def fail(optimizer: dist.optim.SparseOptimizer, number: int, pushed: object) -> None:
        if (number, current().rank) == (failing[0], current().num_trainers - 1):
            raise MemoryError("no room for a row")
        apply(optimizer, number, pushed)

    monkeypatch.setattr(base.SparseOptimizer, "_update", fail)
    job.open(oracle(3))
    optimizer = MAKE["adagrad"]([embedding("a"), embedding("b")])
    while failing[0] >= 0:
        words = "step of SparseAdagrad for 'a', 'b' failed on .*: MemoryError: no room for a row"
        with pytest.raises(CollectiveError, match=words):
            optimizer.step()
        del failing[0]
    optimizer.step()


@several
def test_trainers_with_different_optimizers_get_one_error(job: SharedJob, oracle) -> None:
    job.open(oracle(3))
    rank, a, b = current().rank, embedding("a"), embedding("b")
    optimizers = [MAKE["sgd"]([a]), MAKE["adagrad"]([b])]
    with pytest.raises(CollectiveError, match=r"trainer 0: here it is step of SparseSGD for 'a'; on trainer 1"):
        optimizers[min(rank, 1)].step()
    with pytest.raises(CollectiveError, match=r"make different optimizers: 0 .*0\.5.*, 1 .*0\.25"):
        dist.SparseSGD([a], lr=0.5 if rank == 0 else 0.25)
    with pytest.raises(CollectiveError, match="make different optimizers"):
        MAKE["sgd"]([a] if rank == 0 else [a, b])
    optimizers[0].step()


def test_a_closed_embedding_cannot_be_stepped(job: SharedJob, oracle) -> None:
    job.open(oracle(3))
    emb = embedding()
    optimizer = MAKE["adagrad"]([emb])
    push(emb, *minibatch(0))
    emb.weight.close()
    with pytest.raises(ClosedError, match="'emb' was closed"):
        optimizer.step()


# Saving and loading


@pytest.fixture
def shared_path(job: SharedJob, tmp_path: Path) -> Path:
    """A directory that all trainers see."""
    return job.one_has(lambda: tmp_path)


@everywhere
@rotated(4)
@pytest.mark.parametrize("kind", MAKE)
def test_a_saved_state_is_loaded_in_every_layout(job: SharedJob, oracle, shared_path: Path, kind: str) -> None:
    """Saved here and loaded by one process alone, and the other way round, with other parts of the graph."""
    here, there = shared_path / "here", shared_path / "there"

    def write(g: dist.DistGraph, directory: os.PathLike[str]) -> None:
        emb = embedding()
        optimizer = MAKE[kind]([emb, dist.DistEmbedding(NUM_NODES, 2, "other", dtype=torch.bfloat16)])
        for steps in (range(1), range(1, 2)):
            train(emb, optimizer, steps)
            optimizer.save(directory)  # the second in place of the first

    def read(g: dist.DistGraph, directory: os.PathLike[str]) -> Arrays:
        emb = dist.DistEmbedding(NUM_NODES, DIM, "emb")
        optimizer = MAKE[kind]([dist.DistEmbedding(NUM_NODES, 2, "other", dtype=torch.bfloat16), emb])
        optimizer.lr = 7
        push(emb, *minibatch(0))
        optimizer.load(directory)
        assert optimizer.lr != 7 and emb.take_gradients() == []
        train(emb, optimizer, range(2, 3))
        return everything(emb)

    reference = alone(lambda: trained(oracle(1, "given"), kind, "mean", torch.float32, 3))
    write(job.open(oracle(3, "given")), here)
    if job.trainers.rank == 0:
        assert len(list(here.iterdir())) == job.layout.trainers + 1  # nothing of the first save is left
        alone(lambda: write(open_graph(oracle(1, "given")), there))
    job.trainers.Barrier()
    found = [read(job.open(oracle(3, "given")), there), read(job.open(oracle(4, "given")), here)]
    if job.trainers.rank == 0:
        found.append(alone(lambda: read(open_graph(oracle(1, "given")), here)))
    wrong = [differences(arrays, reference) for arrays in found]
    on_all(job.trainers, not any(wrong), f"{wrong}")


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def damage(directory: Path, how: str) -> str:
    """Damage what was saved; return what the error must say."""
    files = sorted(directory.glob("*.h5"))
    index = directory / "index.json"
    if how == "no directory":
        for path in (*files, index):
            path.unlink()
        return f"{index}: cannot read the index of a saved optimizer: No such file"
    if how == "no JSON":
        index.write_text(index.read_text()[:-20])
        return f"{index}: damaged index"
    if how == "foreign":
        index.write_text('{"format": "x"}')
        return f"{index}: not the index of a saved optimizer"
    if how == "rows missing":
        content = json.loads(index.read_text())
        content["rows"][0][0][0][1] -= 1
        index.write_text(json.dumps(content))
        return f"{index}: damaged index: ValueError('the files do not hold each of 101 rows once')"
    if how == "no file":
        files[-1].unlink()
        return f"{files[-1]}: shard file is missing"
    with h5py.File(files[-1]) as file:
        at = file["0/weight/0"].id.get_offset()
    data = bytearray(files[-1].read_bytes())
    data[at + 5] ^= 1
    files[-1].write_bytes(data)
    return f"{files[-1]}: dataset '0/weight/0' is damaged"


@pytest.mark.parametrize("how", ["no directory", "no JSON", "foreign", "rows missing", "no file", "flipped"])
def test_a_damaged_save_names_itself_on_every_trainer(job: SharedJob, oracle, shared_path: Path, how: str) -> None:
    directory = shared_path / "saved"
    g = job.open(oracle(3))
    emb = embedding()
    optimizer = MAKE["adagrad"]([emb])
    optimizer.save(directory)
    g.barrier()
    words = damage(directory, how) if g.rank() == 0 else ""
    g.barrier()
    words = current().world.trainers.bcast(words)
    with pytest.raises(ShardFormatError) as caught:
        optimizer.load(directory)
    assert words in str(caught.value)
    optimizer.save(directory)  # which makes it whole
    optimizer.load(directory)


def test_a_save_of_something_else_is_refused(job: SharedJob, oracle, shared_path: Path) -> None:
    directory = shared_path / "saved"
    job.open(oracle(3))
    emb, other = embedding("emb"), embedding("other")
    MAKE["adagrad"]([emb]).save(directory)
    before = emb.weight[:]
    saved = files_of(directory)
    twin = dist.DistEmbedding(NUM_NODES, DIM + 1, None)
    twin.weight._handle.rows.name = "emb"
    for optimizer, words in [
        (MAKE["adam"]([emb]), "the optimizer is 'SparseAdagrad' there, and 'SparseAdam' here"),
        (MAKE["row-wise"]([emb]), "row_wise is False there, and True here"),
        (MAKE["adagrad"]([emb], reduction="sum"), "reduction is 'mean' there, and 'sum' here"),
        (MAKE["adagrad"]([other]), "the embeddings are ['emb'] there, and ['other'] here"),
        (MAKE["adagrad"]([emb, other]), "the embeddings are ['emb'] there, and ['emb', 'other'] here"),
        (MAKE["adagrad"]([twin]), "embedding 'emb' is {'weight': ['float32', 101, 5], "),
    ]:
        with pytest.raises(InvalidArgumentError) as caught:
            optimizer.load(directory)
        assert words in str(caught.value) and str(directory) in str(caught.value)
        with pytest.raises(InvalidArgumentError, match="another optimizer is saved there") as caught:
            optimizer.save(directory)
        assert words in str(caught.value) and files_of(directory) == saved
    again = MAKE["adagrad"]([emb])
    again.lr = 7
    again.save(directory)
    assert not set(files_of(directory)) & {name for name in saved if name.endswith(".h5")}
    assert torch.equal(emb.weight[:], before)


@several
def test_a_save_into_a_folder_that_trainers_do_not_share_is_refused(
    job: SharedJob, oracle, shared_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index is written only where trainer 0 sees every file; what was saved before stays, and nothing else."""
    directory = shared_path / "saved"
    g = job.open(oracle(3))
    optimizer = MAKE["adagrad"]([embedding()])
    optimizer.save(directory)
    g.barrier()
    before = sorted(path.name for path in directory.iterdir())
    publish = checkpoint._publish
    last = job.trainers.size - 1

    def on_its_own_disk(directory: Path, word: str, *args: object) -> None:
        (directory / f"{word}-{last}.h5").unlink()
        publish(directory, word, *args)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_publish", on_its_own_disk)
        with pytest.raises(StorageError, match=f"does not see what trainer {last} wrote; is the folder shared"):
            optimizer.save(directory)
    g.barrier()
    assert sorted(path.name for path in directory.iterdir()) == before
    optimizer.load(directory)
    g.barrier()
    for name in ("0123456789ab-0.h5", ".0123456789ab-1.h5.tmp", "notes-1.h5"):  # what killed saves left, and the user's
        (directory / name).touch()
    g.barrier()
    optimizer.save(directory)
    g.barrier()
    names = {path.name for path in directory.iterdir()}
    assert "notes-1.h5" in names and len(names) == len(before) + 1 and not names & {"0123456789ab-0.h5"}


def test_a_directory_that_cannot_be_written_is_one_error(job: SharedJob, oracle, shared_path: Path) -> None:
    directory = shared_path / "file"
    g = job.open(oracle(3))
    if g.rank() == 0:
        directory.write_text("")
    g.barrier()
    with pytest.raises(MPIGraphError, match="saving embeddings to .* failed on .*/file/.*: cannot write: "):
        MAKE["sgd"]([embedding()]).save(directory)


SCRIPT = """
sys.path.insert(0, {tests!r})
import gradients, hashlib
emb = gradients.embedding()
optimizer = gradients.MAKE[{kind!r}]([emb])
if {load!r}:
    optimizer.load({directory!r})
else:
    gradients.train(emb, optimizer, range(3))
    optimizer.save({directory!r})
gradients.train(emb, optimizer, range(3, 5))
if rank == 0:
    state = hashlib.sha256()
    for name, rows in sorted(gradients.everything(emb).items()):
        state.update(name.encode() + rows.numpy().tobytes())
    print("digest", state.hexdigest())
g.barrier()
"""


@pytest.mark.slow
def test_four_ranks_save_and_two_and_one_go_on(oracle, tmp_path: Path) -> None:
    """Jobs of their own: with a server, without one, alone; all end with the rows of the one that went through."""

    def job(ranks: int, servers: int, load: bool) -> str:
        values = {"tests": str(SUPPORT), "kind": "adam", "directory": str(tmp_path / "saved")}
        status, output, _ = run_script(tmp_path, oracle(2), SCRIPT.format(**values, load=load), ranks, servers)
        assert status == 0, output
        (line,) = [line for line in output.splitlines() if line.startswith("digest")]
        return line

    whole = job(4, 1, load=False)
    assert job(2, 0, load=True) == whole
    assert job(1, 0, load=True) == whole
