"""Minibatches on their way to a GPU, or into pinned memory: the order of things, how long memory lives, what it costs
where there is no way to go.

``fake`` is a fake GPU (``support/fake_gpu.py``), since most machines that run the tests have none: it records the order
in which the library asks for memory, copies, events and waits, and is as late as a GPU may be. ``cuda`` is a real one,
and skips where torch has none.
"""

import gc
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import DEVICE, FakeGpu
from jobs import soon
from layouts import SharedJob, rotated
from oracle import NUM_NODES
from typed_oracle import NUM_NODES as TYPED_NODES

import mpigraph.distributed as dist
from mpigraph.dataloading import NeighborSampler
from mpigraph.dataloading.fetcher import WindowFeatures
from mpigraph.dataloading.negative_sampler import Uniform
from mpigraph.graphs import accelerators
from mpigraph.graphs.in_memory import InMemoryGraph

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no CUDA on this machine")
DEPTHS = pytest.mark.parametrize("depth", [0, 2])
CITES = ("paper", "cites", "paper")
ROWS = {"features": ["feat", "orig"], "labels": "label"}
CYCLES = 400_000_000  # some 0.2 seconds of a GPU's time


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    gpu = FakeGpu()
    monkeypatch.setattr(accelerators, "ACCELERATORS", {"cuda": gpu})
    monkeypatch.setattr("mpigraph.dataloading.to_device.exact_device", lambda _: DEVICE)  # torch has no such device
    return gpu


@pytest.fixture(params=["fake", pytest.param("cuda", marks=NEEDS_GPU)])
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "fake":
        request.getfixturevalue("fake")
        return DEVICE
    return torch.device("cuda", 0)


def node_loader(g: dist.DistGraph, device: Any = None, **options: Any) -> dist.DistNodeDataLoader:
    return dist.DistNodeDataLoader(
        g, np.arange(NUM_NODES), NeighborSampler([3, 2]), device, **{"batch_size": 12, "shuffle": True} | ROWS | options
    )


def edge_loader(g: dist.DistGraph, device: Any = None, **options: Any) -> dist.DistEdgeDataLoader:
    options = {"batch_size": 30, "features": ["feat"], "labels": ["edge"], "negative_sampler": Uniform(2)} | options
    return dist.DistEdgeDataLoader(g, np.arange(120), NeighborSampler([3, 2]), device, **options)


def typed_loader(g: dist.DistGraph, device: Any = None, **options: Any) -> dist.DistNodeDataLoader:
    options = {"batch_size": 17, "features": ["feat"], "labels": {"paper": "year"}} | options
    seeds = {"paper": np.arange(TYPED_NODES["paper"])}
    return dist.DistNodeDataLoader(g, seeds, NeighborSampler([2, 2]), device, **options)


def typed_edge_loader(g: dist.DistGraph, device: Any = None, **options: Any) -> dist.DistEdgeDataLoader:
    options = {"batch_size": 20, "features": ["feat"], "labels": ["edge"]} | options
    return dist.DistEdgeDataLoader(g, {CITES: np.arange(60)}, NeighborSampler([2]), device, **options)


PLAIN = (node_loader, edge_loader, partial(node_loader, output="pyg"))
TYPED = (typed_loader, typed_edge_loader, partial(typed_loader, output="pyg"))
LOADERS = pytest.mark.parametrize("make", PLAIN + TYPED)


def open_for(make: Any, job: SharedJob, oracle: Any, typed_oracle: str) -> dist.DistGraph:
    return job.open(typed_oracle if make in TYPED else oracle(3))


def contents(part: Any) -> Iterator[Any]:
    if isinstance(part, InMemoryGraph):
        sides = [(part.srcnodes, part.srctypes), (part.dstnodes, part.dsttypes)]
        for frame in [nodes[t].data for nodes, types in sides for t in types]:
            yield from (frame[name] for name in sorted(frame))
        for relation in part.canonical_etypes:
            frame = part.edges[relation].data
            yield from (*part.edges(etype=relation), *(frame[name] for name in sorted(frame)))
            if part.is_block:
                structure = part.structure(relation)
                yield from (structure.indptr, structure.indices)
    elif isinstance(part, dict):
        for key in sorted(part, key=str):
            yield from contents(part[key])
    elif isinstance(part, list | tuple):
        for one in part:
            yield from contents(one)
    elif hasattr(part, "to_dict"):
        yield from contents(part.to_dict())
    else:
        yield part


def tensors(batch: Any) -> list[torch.Tensor]:
    return [one for one in contents(batch) if isinstance(one, torch.Tensor)]


def assert_same(found: Any, wanted: Any) -> None:
    pairs = list(zip(contents(found), contents(wanted), strict=True))
    assert len(pairs) > 5
    for one, other in pairs:
        if isinstance(one, torch.Tensor):
            assert one.dtype == other.dtype and torch.equal(one.cpu(), other)
        else:
            assert one == other


def graphs(batch: Any) -> list[InMemoryGraph]:
    parts = batch if isinstance(batch, list | tuple) else []
    return [part for part in parts if isinstance(part, InMemoryGraph)] + [g for p in parts for g in graphs(p)]


def copying_stream(loader: Any) -> Any:
    return loader._stages.receive.__self__._stream


def keep_busy(stream: Any, device: torch.device, cycles: int = CYCLES) -> None:
    """Give a stream, this thread's current one if None, long work. The fake is always late."""
    if device != DEVICE:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(cycles)


def tensors_of(graph: InMemoryGraph) -> list[torch.Tensor]:
    """Those that it was made with, and not what it derives of them."""
    own: list[torch.Tensor] = []
    graph.changed(lambda one: own.append(one) or one, graph.device)
    return own


# What arrives


@LOADERS
@DEPTHS
@rotated(4)
def test_the_same_minibatches_arrive(
    make: Any, depth: int, device: torch.device, job: SharedJob, oracle: Any, typed_oracle: str
) -> None:
    g = open_for(make, job, oracle, typed_oracle)
    wanted = list(make(g, seed=5))
    kept = list(make(g, device, seed=5, num_prefetch=depth))  # all at once: none may lie in what a later one uses
    assert len(kept) == len(wanted) >= 3
    for batch, like in zip(kept, wanted, strict=True):
        assert_same(batch, like)
        assert all(graph.device == device for graph in graphs(batch))


@LOADERS
@rotated(3)
def test_minibatches_are_pinned(
    make: Any, device: torch.device, job: SharedJob, oracle: Any, typed_oracle: str
) -> None:
    g = open_for(make, job, oracle, typed_oracle)
    gpu = accelerators.accelerator_here()
    assert gpu is not None
    for batch, like in zip(make(g, seed=5, pin_memory=True), make(g, seed=5), strict=True):
        own = [one for graph in graphs(batch) for one in tensors_of(graph)] or tensors(batch)
        assert len(own) > 5 and all(gpu.is_pinned(one) for one in own if one.numel())
        assert all(graph.device.type == "cpu" for graph in graphs(batch))
        assert_same(batch, like)


# The order of things, with the fake


@DEPTHS
def test_the_consumers_stream_waits_before_the_minibatch_is_handed_over(
    depth: int, fake: FakeGpu, g: dist.DistGraph
) -> None:
    loader = node_loader(g, DEVICE, num_prefetch=depth)
    mine = fake.current_stream(DEVICE)
    num_taken = 0
    for _ in loader:
        calls = list(fake.calls)
        at = [n for n, call in enumerate(calls) if call.what == "wait"]
        recorded = [n for n, call in enumerate(calls) if call.what == "record"]
        assert len(at) == num_taken + 1 and recorded[num_taken] < at[num_taken]
        copies = calls[recorded[num_taken - 1] if num_taken else 0 : recorded[num_taken]]
        copies = [call for call in copies if call.what == "copy"]
        # structure in one piece; two features, a label; input nodes, output nodes: there is nothing else to copy
        assert len(copies) == 6 and len({call.stream for call in copies}) == 1 and copies[0].stream is not mine
        assert copies[0].stream.device == DEVICE
        assert (copies[0].thread == calls[at[num_taken]].thread) == (depth == 0)
        # this thread's stream waits, and then all that copies fill is marked as used by it
        wait, *uses = [call for call in calls[at[num_taken] :] if call.what in ("wait", "used on")]
        assert {call.what for call in uses} == {"used on"} and {call.stream for call in (wait, *uses)} == {mine}
        assert sorted(call.memory for call in uses) == sorted(call.memory for call in copies)
        num_taken += 1
    assert num_taken == len(loader) > 3
    entered = {call.what for call in fake.of("enter", "enter thread")}
    assert entered == {"enter thread" if depth else "enter"}  # the consumer's thread keeps its own device


def test_minibatches_ahead_are_on_their_way(fake: FakeGpu, g: dist.DistGraph) -> None:
    batches = iter(node_loader(g, DEVICE, num_prefetch=2))
    next(batches)
    assert soon(lambda: len(fake.of("record")) >= 3) and len(fake.of("wait")) == 1
    list(batches)


@DEPTHS
@pytest.mark.parametrize("leave_early", [False, True])
def test_pinned_memory_lives_as_long_as_copies(depth: int, leave_early: bool, fake: FakeGpu, g: dist.DistGraph) -> None:
    loader = node_loader(g, DEVICE, num_prefetch=depth)
    kept = [batch for batch, _ in zip(loader, range(2 if leave_early else 1000), strict=False)]
    loader.close()
    assert len(kept) == (2 if leave_early else len(loader))
    fake.synchronize(fake.of("copy")[0].stream)  # those of minibatches that nobody took
    gc.collect()
    assert fake.num_pinned == 0 and len(fake.of("pinned")) >= 6 * len(kept)
    assert len({call.memory for call in fake.of("pinned")}) < len(fake.of("pinned"))  # some was used again


def test_rows_are_gathered_where_they_are_pinned(fake: FakeGpu, g: dist.DistGraph) -> None:
    num_batches = len(list(node_loader(g, pin_memory=True)))
    # one piece for the structure, one for each feature and label, one for each of the two tensors of nodes
    assert len(fake.of("pinned")) == 6 * num_batches
    assert not fake.of("copy", "record", "wait", "used on")


def test_rows_read_by_hand_are_pinned(fake: FakeGpu, g: dist.DistGraph) -> None:
    rows = g.ndata["feat"].gather([3, 1, 3], pin_memory=True)
    assert fake.is_pinned(rows) and fake.is_pinned(rows[1:]) and torch.equal(rows, g.ndata["feat"][[3, 1, 3]])
    assert len(fake.of("pinned")) == 1


# Where there is nowhere to go


class Forbidden(accelerators.Accelerator):
    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"the CPU needs no {name} of an accelerator")


class Remembering(NeighborSampler):
    def sample_blocks(self, *args: Any, **options: Any) -> Any:
        self.drawn = getattr(self, "drawn", [])
        self.drawn.append(super().sample_blocks(*args, **options))
        return self.drawn[-1]


@pytest.mark.parametrize("device", [None, "cpu"])
@DEPTHS
def test_on_the_cpu_it_costs_nothing(
    device: str | None, depth: int, job: SharedJob, oracle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerators, "ACCELERATORS", dict.fromkeys(("cuda", "xpu"), Forbidden("cuda")))
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: pytest.fail("CUDA is not needed"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("CUDA is not needed"))
    before = torch.cuda.is_initialized()
    g = job.open(oracle(3))
    sampler, gathered = Remembering([3, 2]), []
    receive = WindowFeatures.receive

    def remember(*args: Any) -> torch.Tensor:
        gathered.append(receive(*args))
        return gathered[-1]

    monkeypatch.setattr(WindowFeatures, "receive", remember)
    options = {"batch_size": 12, "num_prefetch": depth, "cache": None} | ROWS
    found = list(dist.DistNodeDataLoader(g, np.arange(NUM_NODES), sampler, device, **options))
    assert len(found) == len(sampler.drawn) > 3
    places = [[one.data_ptr() for one in gathered[at : at + 3]] for at in range(0, len(gathered), 3)]
    for batch, drawn, rows in zip(found, sampler.drawn, places, strict=True):
        assert batch[0] is drawn[0] and batch[1] is drawn[1] and batch[2] is drawn[2]
        assert [batch[2][0].srcdata[name].data_ptr() for name in ("feat", "orig")] == rows[:2]
        assert batch[2][-1].dstdata["label"].data_ptr() == rows[2]
    assert torch.cuda.is_initialized() is before


def test_pinning_without_a_gpu_is_a_warning(g: dist.DistGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "ACCELERATORS", {})
    sampler = Remembering([2])
    with pytest.warns(UserWarning, match="pin_memory=True, but torch has no GPU") as caught:
        loader = dist.DistNodeDataLoader(g, np.arange(9), sampler, pin_memory=True)
    assert [warning.filename for warning in caught] == [__file__]
    found = list(loader)
    assert all(blocks[0] is drawn[0] for (_, _, blocks), (_, _, drawn) in zip(found, sampler.drawn, strict=True))
    rows = g.ndata["feat"].gather([1], pin_memory=True)
    assert torch.equal(rows, g.ndata["feat"][[1]])


@pytest.mark.slow
def test_a_device_without_streams_is_reached_at_once(job: SharedJob, oracle: Any, typed_oracle: str) -> None:
    """``meta`` is one that every torch has."""
    for make in PLAIN + TYPED:
        g = open_for(make, job, oracle, typed_oracle)
        for batch in make(g, "meta"):
            assert {one.device.type for one in tensors(batch)} == {"meta"}
            assert {graph.device.type for graph in graphs(batch)} <= {"meta"}


# Memory that is used again; on a GPU


@NEEDS_GPU
@DEPTHS
def test_copies_do_not_wait_for_the_model(depth: int, g: dist.DistGraph) -> None:
    """While the consumer's stream is busy, minibatches arrive, and the consumer's thread goes on."""
    loader = node_loader(g, "cuda:0", num_prefetch=depth)
    batches = iter(loader)
    next(batches)
    torch.cuda.synchronize()
    mine = torch.cuda.current_stream()
    keep_busy(mine, mine.device, 5 * CYCLES)
    _, _, blocks = next(batches)
    copying_stream(loader).synchronize()
    assert copying_stream(loader) != mine and not mine.query()
    assert blocks[0].srcdata["feat"].is_cuda
    list(batches)
    torch.cuda.synchronize()


def test_pinned_memory_is_not_used_again_too_early(device: torch.device, g: dist.DistGraph) -> None:
    """The copying stream is kept busy, so that the loader runs ahead of its copies."""
    g.ndata["wide"] = dist.DistTensor((NUM_NODES, 2000), torch.float32, part_policy=g.ndata["feat"].part_policy)
    own = dist.node_split(np.ones(NUM_NODES))
    g.ndata["wide"][own] = own[:, None].expand(-1, 2000)
    g.barrier()
    loader = node_loader(g, device, num_prefetch=4, features=["wide"], labels=())
    for _ in range(3):
        keep_busy(copying_stream(loader), device)
        for inputs, _, blocks in loader:
            assert (blocks[0].srcdata["wide"] == inputs[:, None]).all()


@pytest.mark.slow
def test_device_memory_is_not_used_again_too_early(device: torch.device, g: dist.DistGraph) -> None:
    """The consumer drops minibatches before its stream has read them."""
    loader = node_loader(g, device, num_prefetch=4, batch_size=4)
    for _ in range(3):
        sums = []
        for _, _, blocks in loader:
            keep_busy(None, device, CYCLES // 20)
            sums.append((blocks[0].srcdata["orig"].sum(), blocks[0].srcdata["feat"][:, 0].sum()))
            del blocks
        assert len(sums) == len(loader) and all(int(one) == int(other) > 0 for one, other in sums)


@NEEDS_GPU
def test_pinned_minibatches_are_moved_by_hand(g: dist.DistGraph) -> None:
    for batch, like in zip(node_loader(g, seed=5, pin_memory=True), node_loader(g, seed=5), strict=True):
        moved = [block.to("cuda:0", non_blocking=True) for block in batch[2]]
        del batch
        assert_same(moved, like[2])
    rows = g.ndata["feat"].gather([3, 1, 3], device="cuda:0", non_blocking=True)
    assert torch.equal(rows.cpu(), g.ndata["feat"][[3, 1, 3]])
