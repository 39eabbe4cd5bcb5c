"""Caches of remote rows and minibatches sampled ahead: never another row than without them, and fewer that travel."""

from typing import Any

import numpy as np
import pytest
import torch
from batches import digest
from layouts import REMOTE, Layout, SharedJob, on_layouts
from oracle import NUM_NODES

import mpigraph.distributed as dist
from mpigraph.dataloading import LaborSampler, NeighborSampler
from mpigraph.errors import OutOfRangeError, SharedMemoryError
from mpigraph.rows import lookahead
from mpigraph.rows.row_cache import RowCache
from mpigraph.session.context import current
from mpigraph.session.control import Operation
from mpigraph.store import store as stores

remote = on_layouts([Layout(2, 0, 1), Layout(3, 0, 2), Layout(4, 1, 2)])
ROW = 3 * 4  # bytes of a row of "feat"
HINTS = 4 * NUM_NODES  # bytes that a cache takes whatever it keeps
FEW = HINTS + 14 * (ROW + 8)  # bytes for fourteen rows, less than a minibatch reads
SOME = HINTS + 19 * (ROW + 8)  # and for so many that a minibatch or two find free ones
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
    {"cache": "1MiB"},
    {"cache": 0, "lookahead": 2},
]
UNIFORM = NeighborSampler([3, 4])


def loader_of(g: dist.DistGraph, sampler: NeighborSampler = UNIFORM, **options: Any) -> dist.DistNodeDataLoader:
    seeds = dist.node_split(np.ones(NUM_NODES))
    common: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3, "features": ["feat"]}
    return dist.DistNodeDataLoader(g, seeds, sampler, **common | options)


@on_layouts(REMOTE)
@pytest.mark.parametrize("sampler", [UNIFORM, LaborSampler([3, 4], batch_dependency=4)])
def test_minibatches_are_the_same_with_every_cache(
    g: dist.DistGraph, sampler: NeighborSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    feat = g.ndata["feat"][torch.arange(NUM_NODES)]
    plain = loader_of(g, sampler, **CACHES[0])
    expected = [digest(batch) for _ in range(2) for batch in plain]
    without = plain.stats()
    assert without.fetched_rows == without.remote_rows and without.cached_rows == 0
    asked = {without.remote_rows}
    for number, options in enumerate(CACHES[1 if sampler is UNIFORM else 2 :: 2]):
        monkeypatch.setattr(lookahead, "_FETCHED_TOGETHER", (-1, 100, 4 << 20)[number // 2])  # -1: for each minibatch
        loader = loader_of(g, sampler, num_prefetch=number % 3, **options)
        found = []
        for _ in range(2):
            for batch in loader:
                found.append(digest(batch))
                assert torch.equal(batch[2][0].srcdata["feat"], feat[batch[0]])
        assert found == expected
        stats = loader.stats()
        asked.add(stats.remote_rows)
        assert stats.minibatches == len(found)
        assert stats.fetched_bytes == ROW * stats.fetched_rows <= ROW * stats.remote_rows
        if options["cache"] == "auto":
            assert stats.fetched_rows <= NUM_NODES  # each once
        loader.close()
    assert len(asked) == 1


@remote
def test_labels_of_remote_rows_need_no_message_of_each_minibatch(
    g: dist.DistGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    label, transport, asked = g.ndata["label"][:], current().store.rows.transport, []
    read = transport.read
    monkeypatch.setattr(transport, "read", lambda *arguments: (asked.append(1), read(*arguments)))
    for cache, most in ((None, NUM_NODES), ("1MiB", NUM_NODES // 5 // 2)):
        asked.clear()
        loader = dist.DistNodeDataLoader(
            g, np.arange(NUM_NODES), UNIFORM, batch_size=5, shuffle=True, labels=["label"], cache=cache
        )
        for _, seeds, blocks in loader:
            assert torch.equal(blocks[-1].dstdata["label"], label[seeds])
        assert (len(asked) <= most) and (cache is not None or len(asked) > NUM_NODES // 5 // 2)
        loader.close()


@remote
def test_trainers_in_step_with_different_numbers_of_minibatches(job: SharedJob, g: dist.DistGraph) -> None:
    """Who has sampled its last minibatch answers the others while its consumer waits for them."""
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


@remote
def test_an_error_comes_after_the_minibatches_before_it(g: dist.DistGraph) -> None:

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


@remote
def test_a_node_that_does_not_exist_is_the_error(g: dist.DistGraph) -> None:

    class Beyond(NeighborSampler):
        def sample_blocks(self, *args: Any, **options: Any) -> Any:
            inputs, outputs, blocks = super().sample_blocks(*args, **options)
            return torch.full_like(inputs, NUM_NODES), outputs, blocks

    loader = dist.DistNodeDataLoader(g, np.arange(20), Beyond([2]), batch_size=2, features=["feat"])
    with pytest.raises(OutOfRangeError, match="'feat'"):
        next(iter(loader))
    loader.close()


@remote
def test_caches_that_are_too_large_leave_none_behind(g: dist.DistGraph, monkeypatch: pytest.MonkeyPatch) -> None:
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


@remote
@pytest.mark.parametrize("what", ["edges and minibatches of pyg", pytest.param("types", marks=pytest.mark.slow)])
def test_rows_of_other_loaders(job: SharedJob, oracle, typed_oracle: str, what: str) -> None:
    """Of nodes and edges, of several types, and of one tensor with two names; ids say what rows are."""
    several = what == "types"
    g = job.open(typed_oracle if several else oracle(3))
    seeds: Any = {ntype: dist.node_split(np.ones(g.num_nodes(ntype)), ntype=ntype) for ntype in g.ntypes}
    make, how = dist.DistNodeDataLoader, {"batch_size": 9, "shuffle": True, "features": ["feat"]}
    sampler = NeighborSampler([2, 3])
    if not several:
        g.ndata["same"] = g.ndata["feat"]
        make, how = dist.DistEdgeDataLoader, {"batch_size": 40, "features": ["feat", "same"], "output": "pyg"}
        seeds = dist.edge_split(np.ones(g.num_edges()))[:160]
        sampler = NeighborSampler([3, 2], prefetch_edge_feats=["edge"])
    epochs = []
    for options in ({"cache": None}, {"cache": "auto", "lookahead": 5}, {"cache": "2KB"}):
        loader = make(g, seeds, sampler, seed=2, **how, **options)
        epochs.append([])
        for batch in loader:
            if several:
                of_types = ((batch[2][0].srcnodes[t].data, g.nodes[t].data, ids) for t, ids in batch[0].items())
                assert all(torch.equal(got["feat"], all_["feat"][ids]) for got, all_, ids in of_types if "feat" in all_)
            else:
                assert all(torch.equal(batch[name], g.ndata["feat"][batch.n_id]) for name in ("feat", "same"))
                assert torch.equal(batch.edge, g.edata["edge"][batch.e_id])
            epochs[-1].append(digest(batch[0] if several else [batch.n_id, batch.e_id]))
        assert several or options["cache"] is None or loader.stats().hit_rate > 0
        loader.close()
    assert all(batches == epochs[0] for batches in epochs)
    if not several:
        del g.ndata["same"]
