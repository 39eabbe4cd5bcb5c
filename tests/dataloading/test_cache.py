"""Caches of far rows and minibatches sampled ahead: never another row than without them, and fewer that travel."""

from collections.abc import Callable, Iterable
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import pytest
import torch
from batches import digest
from layouts import FAR, Layout, SharedJob, on_all, on_layouts
from oracle import NUM_NODES

import mpigraph.distributed as dist
from mpigraph.dataloading import NeighborSampler
from mpigraph.dataloading.caches import Sizes
from mpigraph.errors import CollectiveError, FieldNameError, InvalidArgumentError, OutOfRangeError, SharedMemoryError
from mpigraph.kernels.upcoming import NEVER
from mpigraph.rows.row_cache import RowCache
from mpigraph.session.context import current
from mpigraph.session.control import Operation
from mpigraph.store import store as stores

far = on_layouts([Layout(2, 0, 1), Layout(3, 0, 2), Layout(4, 1, 2)])
two_trainers_a_node = on_layouts([Layout(4, 0, 2)])
ROW = 3 * 4  # bytes of a row of "feat"
HINTS = 4 * NUM_NODES  # bytes that a cache takes whatever it keeps
FEW = HINTS + 14 * (ROW + 12)  # bytes for fourteen rows, less than a minibatch reads
SOME = HINTS + 19 * (ROW + 12)  # and for so many that a minibatch or two find free ones
CACHES: list[dict[str, Any]] = [
    {"cache": None},
    {"cache": None, "lookahead": 3},
    {"cache": "auto"},
    {"cache": "auto", "lookahead": 0},
    {"cache": FEW, "lookahead": 0},
    {"cache": FEW, "lookahead": 1},
    {"cache": FEW, "lookahead": 100},
    {"cache": SOME, "lookahead": 3},
    {"cache": SOME, "lookahead": 0},
    {"cache": {"node": {"feat": "1MiB"}}},
    {"cache": 0, "lookahead": 2},
]


def loader_of(g: dist.DistGraph, **options: Any) -> dist.DistNodeDataLoader:
    seeds = dist.node_split(np.ones(NUM_NODES))
    common: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3, "features": ["feat"]}
    return dist.DistNodeDataLoader(g, seeds, NeighborSampler([3, 4]), **common | options)


@on_layouts(FAR)
def test_minibatches_are_the_same_with_every_cache(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    feat = g.ndata["feat"][torch.arange(NUM_NODES)]
    plain = loader_of(g, **CACHES[0])
    expected = [digest(batch) for _ in range(2) for batch in plain]
    without = plain.stats()
    assert without.fetched_rows == without.far_rows and without.cached_rows == 0
    asked = {without.far_rows}
    for number, options in enumerate(CACHES[1:]):
        loader = loader_of(g, num_prefetch=number % 3, **options)
        found = []
        for _ in range(2):
            for batch in loader:
                found.append(digest(batch))
                assert torch.equal(batch[2][0].srcdata["feat"], feat[batch[0]])
        assert found == expected
        stats = loader.stats()
        asked.add(stats.far_rows)
        assert stats.minibatches == len(found)
        assert stats.fetched_bytes == ROW * stats.fetched_rows <= ROW * stats.far_rows
        if options["cache"] == "auto":
            assert stats.fetched_rows <= NUM_NODES  # each once
        loader.close()
    assert len(asked) == 1


@far
def test_written_rows_are_never_stale(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    tensor = dist.DistTensor((NUM_NODES,), torch.int64, init_func=lambda shape, dtype: torch.zeros(shape, dtype=dtype))
    g.ndata["h"] = tensor
    for options in ({"cache": "auto"}, {"cache": "auto", "lookahead": 0}, {"cache": None, "lookahead": 4}):
        loader = loader_of(g, features=["h"], num_prefetch=0, **options)
        for epoch in range(2):
            for step, (inputs, _, blocks) in enumerate(loader):
                known = int(tensor[[0]][0])
                assert (blocks[0].srcdata["h"] == known).all(), (epoch, step)
                if step in (1, 3):
                    g.barrier()
                    if g.rank() == 0:
                        tensor[torch.arange(NUM_NODES)] = known + 1
                        assert (loader_rows(tensor, inputs) == known + 1).all()
                    g.barrier()
            g.barrier()
        loader.close()
    del g.ndata["h"]


def loader_rows(tensor: dist.DistTensor, ids: torch.Tensor) -> torch.Tensor:
    return tensor[ids]


@far
def test_what_a_trainer_wrote_it_reads_before_the_others_know(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    tensor = dist.DistTensor((NUM_NODES,), torch.float32)
    g.ndata["h"] = tensor
    loader = loader_of(g, features=["h"], num_prefetch=0, lookahead=3)
    for _ in loader:
        pass
    g.barrier()
    mine = torch.arange(g.rank(), NUM_NODES, job.trainers.size)
    steps = iter(loader)
    next(steps)
    tensor[mine] = torch.ones(len(mine))
    inputs, _, blocks = next(steps)
    of_mine = inputs % job.trainers.size == g.rank()
    assert (blocks[0].srcdata["h"][of_mine] == 1).all()
    for _ in steps:
        pass
    g.barrier()
    for _, _, blocks in loader:
        assert (blocks[0].srcdata["h"] == 1).all()
    loader.close()
    del g.ndata["h"]


@far
def test_trainers_in_step_with_different_numbers_of_minibatches(job: SharedJob, oracle) -> None:
    """Who has sampled its last minibatch answers the others while its consumer waits for them."""
    g = job.open(oracle(3))
    size, rank = job.trainers.size, g.rank()
    seeds = np.arange(7) if rank == 0 else np.arange(20 + rank * 4, NUM_NODES)
    sampler = NeighborSampler([2, 2])
    loader = dist.DistNodeDataLoader(g, seeds, sampler, batch_size=2, features=["feat"], lookahead=50)
    steps = job.trainers.allgather(len(loader))
    assert steps[0] == 7 < min(steps[1:], default=8) or size == 1
    for step, _ in enumerate(loader):
        if step < min(steps):
            job.trainers.Barrier()
    loader.close()


@far
def test_an_error_comes_after_the_minibatches_before_it(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))

    class Failing(NeighborSampler):
        calls = 0

        def sample_blocks(self, *args: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == 4:
                raise ValueError("the fourth")
            return super().sample_blocks(*args, **options)

    loader = dist.DistNodeDataLoader(g, np.arange(20), Failing([2]), batch_size=2, features=["feat"], lookahead=8)
    done = 0
    with pytest.raises(ValueError, match="the fourth"):
        for _ in loader:
            done += 1
    assert done == 3
    assert sum(1 for _ in loader) == len(loader)  # the next epoch
    loader.close()


@far
def test_an_iterator_that_dies_late_takes_nothing_from_the_next_one(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    loader = loader_of(g, num_prefetch=0, lookahead=4)
    left = iter(loader)
    next(left)
    for step, (inputs, _, blocks) in enumerate(loader):
        assert torch.equal(blocks[0].srcdata["feat"], g.ndata["feat"][inputs])
        if step == 1:
            left = None
    loader.close()


@far
def test_a_node_that_does_not_exist_is_the_error(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))

    class Beyond(NeighborSampler):
        def sample_blocks(self, *args: Any, **options: Any) -> Any:
            inputs, outputs, blocks = super().sample_blocks(*args, **options)
            return torch.full_like(inputs, NUM_NODES), outputs, blocks

    loader = dist.DistNodeDataLoader(g, np.arange(20), Beyond([2]), batch_size=2, features=["feat"])
    with pytest.raises(OutOfRangeError, match="'feat'"):
        next(iter(loader))
    loader.close()


@far
def test_rows_that_an_optimizer_writes(job: SharedJob, oracle) -> None:
    """No other call that all trainers make is needed; most of them own none of the rows."""
    g = job.open(oracle(3))
    emb = dist.DistEmbedding(NUM_NODES, 3)
    g.ndata["h"] = emb.weight
    optimizer = dist.SparseSGD([emb], 1.0)
    loader = loader_of(g, features=["h"], num_prefetch=0)
    right = []
    for owner in range(job.trainers.size):
        ids = torch.cat([torch.arange(owned.first, owned.last) for owned in emb.owners.ranges(owner)])
        for inputs, _, blocks in loader:
            right.append(torch.equal(blocks[0].srcdata["h"], emb.weight[inputs]))
            job.trainers.Barrier()
            emb(ids if g.rank() == 0 else ids[:0]).sum().backward()
            optimizer.step()
    on_all(job.trainers, all(right), str(right))
    loader.close()
    del g.ndata["h"]


@pytest.mark.slow
@far
def test_a_tensor_of_two_names_has_one_cache(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    g.ndata["same"] = g.ndata["feat"]
    sizes: list[Sizes] = [FEW, {"node": {"same": FEW}}, {"node": {"feat": FEW}}, {"node": {"feat": FEW, "same": 9}}]
    for size in sizes:
        loader = loader_of(g, features=["feat", "same"], cache=size)
        for inputs, _, blocks in loader:
            for name in ("feat", "same"):
                assert torch.equal(blocks[0].srcdata[name], g.ndata["feat"][inputs])
        assert loader.stats().hit_rate > 0
        loader.close()
    del g.ndata["same"]


@far
def test_caches_that_are_too_large_leave_none_behind(job: SharedJob, oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    g = job.open(oracle(3))
    state = current().store

    def made(*args: Any) -> RowCache:
        if state.caches:
            raise SharedMemoryError("too large")
        return RowCache(*args)

    monkeypatch.setattr(stores, "RowCache", made)
    numbers = [g.ndata[name].rows.number for name in ("feat", "orig")]
    if state.world.size == state.world.trainers.size:  # else a server would make it
        with pytest.raises(SharedMemoryError):
            current().control.call(Operation.OPEN_CACHES, groups=[[numbers, FEW]], ahead=1)
    assert not state.caches


@far
def test_options(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"cache": "much"}, "cache must be a size"),
        ({"cache": -1}, "cache"),
        ({"cache": True}, "cache"),
        ({"cache": {"feat": "1GiB"}}, "cache must be {'node'"),
        ({"cache": {"node": {"feat": "1 potato"}}}, "cache of node feature 'feat' must be a size"),
        ({"cache_policy": "vip"}, "no cache policies any more"),
        ({"lookahead": -1}, "lookahead"),
        ({"lookahead": 1.5}, "lookahead"),
    ]
    for options, message in wrong:
        with pytest.raises(InvalidArgumentError, match=message):
            loader_of(g, **options)
    for sizes in ({"node": {"label": 5}}, {"edge": {"feat": 5}}):
        with pytest.raises(FieldNameError, match="the loader gathers no"):
            loader_of(g, cache=sizes)
    with pytest.raises(CollectiveError, match="different arguments"):
        loader_of(g, lookahead=5 if g.rank() == 0 else 6)


@two_trainers_a_node
def test_trainers_of_a_node_find_each_others_rows(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    session = current()
    world = session.world
    rows = g.ndata["feat"].rows
    made = session.control.call(Operation.OPEN_CACHES, groups=[[[rows.number], FEW]], ahead=1)
    cache: RowCache = made[rows.number]
    held = world.near[rows.window.host_of(np.arange(NUM_NODES))]
    mine = np.flatnonzero(~held)[world.local_trainer :: world.num_local_trainers][: cache.per_trainer]
    assert cache.per_trainer == 14 // world.num_local_trainers
    assert cache.refresh()
    places, words = rows.window.fetch(mine, session.pool, lambda: None)
    slots = np.full(len(mine), -1, np.int32)
    upcoming = np.full(64, NEVER, np.int32)
    cache.keep(mine, slots, places, words, 1, 0, upcoming)
    g.barrier()
    far_rows = np.flatnonzero(~held)
    slots, seen = cache.find(far_rows)
    assert (slots >= 0).sum() == min(len(far_rows), cache.per_trainer * world.num_local_trainers)
    out = np.full((len(far_rows), *rows.shape[1:]), -1, np.float32)
    assert len(cache.load(far_rows, slots, seen, np.arange(len(far_rows)), out.view(words.dtype))) == 0
    found = slots >= 0
    expected = rows.gather(far_rows)
    assert (out[found] == expected[found]).all() and (out[~found] == -1).all()
    g.barrier()
    if world.local_trainer == 0:  # gives its first slot to another row while somebody copies from it
        cache._times[0] += 1
    g.barrier()
    lost = cache.load(far_rows, slots, seen, np.arange(len(far_rows)), out.view(words.dtype))
    if world.num_local_trainers > 1:
        assert slots[lost].tolist() == [0]
    g.barrier()
    session.control.call(Operation.FREE, numbers=[cache.number])


@on_layouts([Layout(2, 0, 1)])
def test_a_slot_that_changes_hands_meanwhile_is_noticed(job: SharedJob, oracle) -> None:
    """Wherever another trainer is with giving a slot away, and back, at each fence of a reader's."""
    g = job.open(oracle(3))
    session = current()
    rows = g.ndata["feat"].rows
    made = session.control.call(Operation.OPEN_CACHES, groups=[[[rows.number], FEW]], ahead=1)
    cache: RowCache = made[rows.number]
    assert cache.refresh()
    cache._alone = False
    values = {3: 33, 5: 55}

    def give(row: int) -> list[Callable[[], None]]:
        def take() -> None:
            cache._row_of[0] = -1
            cache._times[0] += 1

        def store() -> None:
            cache._table[0] = values[row]

        def tell() -> None:
            cache._row_of[0] = row
            cache._hint[row] = 1

        return [take, store, tell]

    class Window:
        def __init__(self, stops: Iterable[int]) -> None:
            self.steps, self.taken, self.stops = [*give(5), *give(3)], 0, iter(stops)

        def Sync(self) -> None:
            stop = next(self.stops)
            for step in self.steps[self.taken : stop]:
                step()
            self.taken = max(stop, self.taken)

    win, found = cache._win, 0
    for stops in combinations_with_replacement(range(7), 3):
        for step in give(3):
            step()
        cache._win = Window(stops)
        out = np.zeros((1, cache._table.shape[1]), cache._table.dtype)
        slots, seen = cache.find(np.array([3]))
        lost = cache.load(np.array([3]), slots, seen, np.array([0]), out)
        if slots[0] >= 0 and len(lost) == 0:
            found += 1
            assert (out == values[3]).all(), stops
    assert found > 0
    cache._win = win
    session.control.call(Operation.FREE, numbers=[cache.number])


POLICIES: list[dict[str, Any]] = [
    {"cache": "auto", "lookahead": 5},
    {"cache": "2KB"},
]


@far
def test_edges_and_minibatches_of_pyg(job: SharedJob, oracle) -> None:
    """With features of nodes and edges; the ids that a minibatch has say what they are."""
    g = job.open(oracle(3))
    eids = dist.edge_split(np.ones(g.num_edges()))[:160]
    sampler = NeighborSampler([3, 2], prefetch_edge_feats=["edge"])
    common: dict[str, Any] = {"batch_size": 40, "features": ["feat"], "seed": 1}
    found: list[list[tuple]] = []
    for options in [{"cache": None}, *POLICIES]:
        loader = dist.DistEdgeDataLoader(g, eids, sampler, output="pyg", **common, **options)
        batches = []
        for batch in loader:
            assert torch.equal(batch.feat, g.ndata["feat"][batch.n_id])
            assert torch.equal(batch.edge, g.edata["edge"][batch.e_id])
            batches.append((batch.n_id.tolist(), batch.e_id.tolist()))
        assert options["cache"] is None or loader.stats().far_rows > 0
        found.append(batches)
        loader.close()
    assert all(batches == found[0] for batches in found)


@pytest.mark.slow
@far
def test_typed_graphs(job: SharedJob, typed_oracle: str) -> None:
    g = job.open(typed_oracle)
    seeds = {ntype: dist.node_split(np.ones(g.num_nodes(ntype)), ntype=ntype) for ntype in g.ntypes}
    epochs = []
    for options in [{"cache": None}, *POLICIES]:
        loader = dist.DistNodeDataLoader(
            g, seeds, NeighborSampler([2, 3]), batch_size=9, shuffle=True, seed=2, features=["feat"], **options
        )
        batches = []
        for inputs, _, blocks in loader:
            for ntype, ids in inputs.items():
                if "feat" in g.nodes[ntype].data:
                    assert torch.equal(blocks[0].srcnodes[ntype].data["feat"], g.nodes[ntype].data["feat"][ids])
            batches.append({ntype: ids.tolist() for ntype, ids in inputs.items()})
        epochs.append(batches)
        loader.close()
    assert all(batches == epochs[0] for batches in epochs)
