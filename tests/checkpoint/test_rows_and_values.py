"""Checkpoints restore rows, tensors of torch, numbers and trainers' own values, in every layout."""

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gradients import DIM, MAKE, Arrays, differences, embedding, everything, minibatch, push, train
from layouts import SharedJob, alone, everywhere, needs_threads, on_all, rotated
from oracle import NUM_NODES, open_graph

import mpigraph.distributed as dist
from mpigraph import checkpoint
from mpigraph.checkpoint import api, folder, saving
from mpigraph.dataloading import NeighborSampler
from mpigraph.errors import InvalidArgumentError


def together(*parts: Any) -> dict[str, Any]:
    return dict(zip(("emb", "other", "optimizer"), parts, strict=True))


@pytest.mark.slow
@everywhere
@rotated(4)
@pytest.mark.parametrize("kind", MAKE)
def test_embeddings_are_loaded_in_every_layout(job: SharedJob, oracle, shared_path: Path, kind: str) -> None:
    """Saved here and loaded by one process alone, and the other way round; both go on as if nothing had happened."""
    here, there = shared_path / "here", shared_path / "there"

    def write(g: dist.DistGraph, directory: Path) -> None:
        emb, other = embedding(), dist.DistEmbedding(NUM_NODES, 2, "other", dtype=torch.bfloat16)
        optimizer = MAKE[kind]([emb, other])
        for steps, save in ((range(1), checkpoint.save), (range(1, 2), checkpoint.async_save)):
            train(emb, optimizer, steps)
            save(together(emb, other, optimizer), checkpoint_id=directory)  # the second in place of the first
        train(emb, optimizer, range(2, 3))  # while the second is written
        checkpoint.wait()

    def read(g: dist.DistGraph, directory: Path) -> Arrays:
        emb, other = dist.DistEmbedding(NUM_NODES, DIM, "emb"), dist.DistEmbedding(NUM_NODES, 2, "other")
        other = dist.DistEmbedding(NUM_NODES, 2, "other16", dtype=torch.bfloat16)
        other.weight.handle.rows.name = "other"
        optimizer = MAKE[kind]([other, emb])
        optimizer.lr = 7
        push(emb, *minibatch(0))
        checkpoint.load(together(emb, other, optimizer), checkpoint_id=directory)
        assert optimizer.lr != 7 and emb.take_gradients() == []
        train(emb, optimizer, range(2, 3))
        return everything(emb)

    def reference() -> Arrays:
        open_graph(oracle(3, "given"))
        emb = embedding()
        train(emb, MAKE[kind]([emb]), range(3))
        return everything(emb)

    expected = alone(reference)
    write(job.open(oracle(3, "given")), here)
    if job.trainers.rank == 0:
        assert len(list(here.iterdir())) == job.layout.trainers + 1  # nothing of the first save is left
        alone(lambda: write(open_graph(oracle(3, "given")), there))
    job.trainers.Barrier()
    result = [read(job.open(oracle(3, "given")), there), read(job.open(oracle(3, "given")), here)]
    if job.trainers.rank == 0:
        result.append(alone(lambda: read(open_graph(oracle(3, "given")), here)))
    wrong = [differences(arrays, expected) for arrays in result]
    on_all(job.trainers, not any(wrong), f"{wrong}")


class Custom:
    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


VALUES = {
    "numbers": [0, -1, 1 << 80, 0.1, 1e-320, float("inf"), -float("inf"), True, None],
    "text": "ünïcode \n \x01",
    "tuple": ((1, [2.5]), (), {"a": {1: "x", (1, "b"): "y", None: "z", 2.5: 0}}),
    "counter": Counter({3: 2}),
    "scalar": np.float32(0.5),
}


def model_and_more(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * seed)
    schedulers = [
        torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3]),
        torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
    ]
    for _ in range(seed):
        model(torch.rand(5, 3)).sum().backward()
        optimizer.step()
        schedulers[0].step()
        schedulers[1].step(0.3 * seed)
    kinds = (torch.float64, torch.bfloat16, torch.int32, torch.bool, torch.complex64, torch.uint8)
    tensors = {str(dtype): (torch.rand(3, 2) * 9).to(dtype) for dtype in kinds}
    tensors |= {"number": torch.tensor(1.5 * seed), "empty": torch.zeros(0, 3), "strided": torch.rand(4, 6)[::2, 1::2]}
    tensors |= {"large": torch.full((5000,), seed, dtype=torch.uint8)}
    tensors |= {f"small {number}": torch.rand(1 + number % 5, 3) for number in range(300)}
    return {"model": model, "optimizer": optimizer, "schedulers": schedulers, "tensors": tensors}


def flat(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape), value.detach().float().tolist()]
    if isinstance(value, np.ndarray):
        return flat(torch.from_numpy(value))
    if isinstance(value, dict):
        return {key: flat(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(flat, value))
    if hasattr(value, "state_dict"):
        return flat(value.state_dict())
    return value


@pytest.mark.filterwarnings("ignore:Casting complex values:UserWarning")
@pytest.mark.parametrize("save", [checkpoint.save, checkpoint.async_save])
@pytest.mark.parametrize("block", [1000, 1 << 26])
def test_what_torch_has_and_plain_values(
    g: dist.DistGraph, shared_path: Path, save: Any, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((saving, "_BLOCK"), (saving, "_BLOCK_BESIDE"), (folder, "_BLOCK")):
        monkeypatch.setattr(module, name, block)
    saved = model_and_more(3) | VALUES | {"array": np.arange(6.0).reshape(2, 3), "custom": Custom([1, VALUES])}
    saved["one"] = np.array(2.5)
    saved["rank"] = checkpoint.OfTrainer(torch.full((2, 3), g.rank()))
    torch.manual_seed(50 + g.rank())
    expected = flat(saved)
    save(saved, checkpoint_id=shared_path / "c")
    drawn = torch.rand(4)
    for tensor in saved["tensors"].values():
        tensor.fill_(0)  # while it is written
    checkpoint.wait()
    result = model_and_more(1) | dict.fromkeys(VALUES) | {"array": None, "one": None, "custom": Custom(0), "rank": 0}
    result["rank"] = checkpoint.OfTrainer(torch.zeros(0))
    tensors = dict(result["tensors"])
    checkpoint.load(result, checkpoint_id=shared_path / "c")
    assert flat(result) | {"rank": 0} == expected | {"rank": 0}
    assert torch.equal(result["rank"].rows, torch.full((2, 3), g.rank()))
    assert torch.equal(torch.rand(4), drawn)  # dropout goes on
    assert all(result["tensors"][name] is tensor for name, tensor in tensors.items())  # in place
    part = {"text": ""}
    checkpoint.load(part, checkpoint_id=shared_path / "c")
    assert part == {"text": VALUES["text"]}


def draws(g: dist.DistGraph) -> list[Any]:
    """Of numpy, of Python, and of this library outside loaders."""
    sampled = dist.sample_neighbors(g, torch.arange(60, 80), 2).edges()
    return [np.random.normal(size=3).tolist(), random.gauss(0, 1), random.random(), flat(sampled)]  # noqa: NPY002


def test_generators_go_on(g: dist.DistGraph, shared_path: Path) -> None:
    np.random.seed(g.rank())  # noqa: NPY002 - what a user draws from
    random.seed(g.rank())
    np.random.normal()  # noqa: NPY002
    random.gauss(0, 1)
    checkpoint.save({}, checkpoint_id=shared_path / "c")
    expected = draws(g)
    draws(g)
    checkpoint.load({}, checkpoint_id=shared_path / "c")
    assert draws(g) == expected


@pytest.mark.parametrize("background", [False, True])
def test_what_cannot_be_saved_is_one_error(
    job: SharedJob, g: dist.DistGraph, shared_path: Path, background: bool
) -> None:
    save = checkpoint.async_save if background else checkpoint.save
    rank, last = job.rank, job.layout.trainers - 1
    for state, words in [
        ({"a": [1, {"b": {1}}]}, r"state_dict\['a'\]\[1\]\['b'\] is a set, which a checkpoint cannot hold"),
        ({"f": lambda: 0} if rank == last else {"f": 0}, "on .*: state_dict\\['f'\\] is a function"),
        ({"t": torch.zeros(2).to_sparse()}, "state_dict\\['t'\\] is a tensor of a kind"),
        ({"o": np.array([object()])}, "state_dict\\['o'\\]: can't convert"),
        ({"b": np.arange(2).astype(">i8")}, "state_dict\\['b'\\]: .*byte order"),
        ({"m": np.ma.array([1, 2], mask=[0, 1])}, r"state_dict\['m'\] is a MaskedArray"),
        ({"l": np.longdouble(1)}, r"state_dict\['l'\] is a longdouble"),
    ]:
        with pytest.raises(InvalidArgumentError, match=words):
            save(state, checkpoint_id=shared_path / "c")
    if last:
        with pytest.raises(InvalidArgumentError, match=r"state_dict\['x'\]\[1\]: 0 on trainer 0.*; 1 on trainer 1"):
            save({"y": 3, "x": [2, min(rank, 1)]}, checkpoint_id=shared_path / "c")
        with pytest.raises(InvalidArgumentError, match='checkpoint_id: "c0" on trainer 0.*; "c1" on trainer 1'):
            save({}, checkpoint_id=shared_path / f"c{rank}")  # each would be half a checkpoint
    with pytest.raises(InvalidArgumentError, match="OfTrainer holds a tensor of rows"):
        checkpoint.OfTrainer(torch.tensor(1))
    with pytest.raises(InvalidArgumentError, match="function of an OfTrainer must return a tensor of rows"):
        save({"f": checkpoint.OfTrainer(lambda: torch.tensor(1))}, checkpoint_id=shared_path / "f")
        checkpoint.wait()
    for arguments, words in [
        ({"checkpoint_id": ""}, "checkpoint_id must be the path of a folder"),
        ({"checkpoint_id": 3}, "checkpoint_id must be the path of a folder"),
        ({"checkpoint_id": shared_path, "keep": 1}, "keep must be an integer >= 2"),
    ]:
        with pytest.raises(InvalidArgumentError, match=words):
            save({}, **arguments)
    assert not (shared_path / "c").exists()


def test_rows_in_their_original_order(g: dist.DistGraph, shared_path: Path) -> None:
    path = shared_path / "feat.npy"
    g.ndata["feat"].save(path)
    saved = np.load(path)
    assert saved.dtype == np.float32 and (saved == np.arange(NUM_NODES)[:, None]).all()  # node v has v
    again = dist.DistTensor((NUM_NODES, 3), torch.bfloat16, "again")
    again.load(path)
    assert torch.equal(again[:], g.ndata["feat"][:].bfloat16())
    again.save(path)
    assert np.load(path).dtype == np.float32
    g.edata["edge"].save(shared_path / "edge.npy")
    numbers = np.load(shared_path / "edge.npy")
    degrees = np.arange(NUM_NODES) % 13
    assert (numbers // 1000 == np.repeat(np.arange(NUM_NODES), degrees)).all()  # in the order in which they were given
    if g.rank() == 0:
        np.save(shared_path / "big.npy", saved.astype(">f4"))  # as other machines have it
        np.savez(shared_path / "several.npz", saved)
        (shared_path / "several.npz").rename(shared_path / "several.npy")
        np.save(shared_path / "text.npy", np.full((NUM_NODES, 3), "a"))
    g.barrier()
    again.load(shared_path / "big.npy")
    assert torch.equal(again[:], g.ndata["feat"][:].bfloat16())
    for name, words in [
        ("x.h5", "path must end in .npy"),
        ("x.npy", "cannot read rows: .*No such file"),
        ("several.npy", "cannot read rows"),
        ("text.npy", "are not numbers|expected numbers"),
    ]:
        with pytest.raises(InvalidArgumentError, match=words):
            again.load(shared_path / name)
    again.load(g.ndata["orig"][:].argsort()[:, None].expand(-1, 3))  # an object with rows: row v of node v's place
    assert torch.equal(again[:], torch.arange(NUM_NODES)[:, None].expand(-1, 3).bfloat16())
    with pytest.raises(InvalidArgumentError, match=r"holds \[101, 3\], not \[101, 5\]"):
        embedding().load(path)


@pytest.fixture
def late_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies of a save take a while, in which training goes on."""
    copied = saving._copied

    def late(*args: Any) -> Any:
        time.sleep(0.1)
        return copied(*args)

    monkeypatch.setattr(saving, "_copied", late)


def test_writers_wait_for_the_copies_of_a_save(
    job: SharedJob, g: dist.DistGraph, shared_path: Path, late_copies: None
) -> None:
    """Training that goes on at once, and writes from afar, change nothing of what is saved."""
    emb = embedding()
    optimizer = MAKE["adagrad"]([emb])
    tensor = dist.DistTensor((NUM_NODES, 2), torch.int32, "t")
    own = torch.full((1,), g.rank())
    train(emb, optimizer, range(1))
    expected = emb.weight[:], optimizer.state["emb"]["sum"][:]
    state = {"emb": emb, "optimizer": optimizer, "t": tensor, "mine": checkpoint.OfTrainer(own)}
    checkpoint.async_save(state, checkpoint_id=shared_path / "c")
    own.fill_(-1)
    if g.rank() == job.layout.trainers - 1:
        tensor[torch.arange(NUM_NODES)] = 7
    train(emb, optimizer, range(1, 3))
    checkpoint.wait()
    g.barrier()
    assert tensor[:].min() == 7
    checkpoint.load(state, checkpoint_id=shared_path / "c")
    g.barrier()
    assert torch.equal(emb.weight[:], expected[0]) and torch.equal(optimizer.state["emb"]["sum"][:], expected[1])
    assert not tensor[:].any() and int(state["mine"].rows) == g.rank()


def test_views_are_written_once_a_save_has_copied(job: SharedJob, oracle, shared_path: Path, late_copies: None) -> None:
    """A view has rows that other trainers of the node own, and copy."""
    g = job.open(oracle(len(job.session.world.hosts)))  # each host has one part
    tensor = dist.DistTensor((NUM_NODES,), torch.int32, None)
    view = tensor.local_partition if g.rank() == 0 else None
    checkpoint.async_save({"t": tensor}, checkpoint_id=shared_path / "c")
    if view is not None:
        view.fill_(9)
    g.barrier()
    assert tensor[:].any()
    checkpoint.load({"t": tensor}, checkpoint_id=shared_path / "c")
    assert not tensor[:].any()


@needs_threads
def test_whoever_was_interrupted_waits_again(
    job: SharedJob, g: dist.DistGraph, shared_path: Path, late_copies: None
) -> None:
    checkpoint.async_save({"t": dist.DistTensor((NUM_NODES,), torch.int32, None)}, checkpoint_id=shared_path / "c")
    thread = job.session.saver._thread  # type: ignore[union-attr]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.wait()
    checkpoint.wait()
    assert not thread.is_alive()


def interrupted(thread: object) -> None:
    raise KeyboardInterrupt


def test_a_tensor_is_closed_once_it_is_copied(g: dist.DistGraph, shared_path: Path, late_copies: None) -> None:
    """By its user, or by the collector: its memory is there as long as a save copies it."""
    for close in (True, False):
        tensor: Any = dist.DistTensor((NUM_NODES, 2), torch.int32, None)
        tensor[torch.arange(NUM_NODES)] = 7
        g.barrier()
        checkpoint.async_save({"t": tensor}, checkpoint_id=shared_path / "c")
        if close:
            tensor.close()
        del tensor
        g.barrier()
        checkpoint.wait()
        again = dist.DistTensor((NUM_NODES, 2), torch.int32, None)
        checkpoint.load({"t": again}, checkpoint_id=shared_path / "c")
        assert (again[:] == 7).all()


def test_what_is_in_lists_is_loaded_in_place(g: dist.DistGraph, shared_path: Path) -> None:
    tensor = dist.DistTensor((NUM_NODES,), torch.int32, "t")
    saved, result = model_and_more(3), model_and_more(1)
    saved["pair"] = (saved["model"], [1, {"t": tensor, "n": 5}], torch.ones(2))
    result["pair"] = (result["model"], [0, {"t": tensor, "n": 0}], torch.zeros(2))
    saved["history"], result["history"] = [1.0, 2.0], []  # of values alone: replaced
    tensor[torch.arange(NUM_NODES)] = 3
    checkpoint.save(saved, checkpoint_id=shared_path / "c")
    expected = flat(saved["schedulers"])
    tensor[torch.arange(NUM_NODES)] = 4
    schedulers, dense = list(result["schedulers"]), result["pair"][2]
    checkpoint.load(result, checkpoint_id=shared_path / "c")
    assert flat(schedulers) == expected and all(a is b for a, b in zip(result["schedulers"], schedulers, strict=True))
    assert result["pair"][0] is result["model"] and result["pair"][2] is dense and dense.all()
    assert result["pair"][1][0] == 1 and result["pair"][1][1]["n"] == 5 and (tensor[:] == 3).all()
    assert result["history"] == [1.0, 2.0]


def test_trainers_that_ask_for_different_values_are_told(job: SharedJob, g: dist.DistGraph, shared_path: Path) -> None:
    last = job.layout.trainers - 1
    checkpoint.save({"x": torch.zeros(2), "y": torch.zeros(2), "z": 1}, checkpoint_id=shared_path / "c")
    if last:
        for more, words in [
            ({"y": torch.ones(2)}, r"state_dict\['y'\]: not set on trainer 0 .*; \"Tensor\" on trainer \d"),
            ({"z": None}, r"state_dict\['z'\]: not set on trainer 0"),
        ]:
            with pytest.raises(InvalidArgumentError, match=words):
                state = {"x": torch.ones(2)} | (more if g.rank() == last else {})
                checkpoint.load(state, checkpoint_id=shared_path / "c")


def test_what_depends_on_rows_is_made_anew(g: dist.DistGraph, shared_path: Path) -> None:
    """Tables of edge weights, and copies of remote rows."""
    feat, weight = g.ndata["feat"], g.edata["weight"]
    saved = {"feat": feat, "weight": weight}
    checkpoint.save(saved, checkpoint_id=shared_path / "c")
    if g.rank() == 0:
        feat[torch.arange(NUM_NODES)] = -1
        weight[torch.arange(g.num_edges())] = 0
    g.barrier()
    sampler = NeighborSampler([2], prob="weight")
    seeds = dist.node_split(np.ones(NUM_NODES))
    loader = dist.DistNodeDataLoader(g, seeds, sampler, batch_size=9, features=["feat"], cache="1MiB")
    result = []
    for _ in range(2):
        edges, wrong = 0, 0
        for inputs, _, blocks in loader:
            edges += blocks[0].num_edges()
            wrong += int((blocks[0].srcdata["feat"][:, 0] != g.ndata["orig"][inputs]).sum())
        result.append((edges > 0, wrong > 0))
        checkpoint.load(saved, checkpoint_id=shared_path / "c")
    assert result == [(False, True), (True, False)]


def test_a_gpu_of_some_trainers(g: dist.DistGraph, shared_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake: the first trainer alone has one."""
    state = torch.arange(16, dtype=torch.uint8)
    got: list[Any] = []
    if g.rank() == 0:
        for name, does in [
            ("is_available", lambda: True),
            ("is_initialized", lambda: True),
            ("get_rng_state", lambda: state),
            ("set_rng_state", got.append),
        ]:
            monkeypatch.setattr(torch.cuda, name, does)
    checkpoint.save({}, checkpoint_id=shared_path / "c")
    checkpoint.load({}, checkpoint_id=shared_path / "c")
    assert [one.tolist() for one in got] == ([state.tolist()] if g.rank() == 0 else [])
