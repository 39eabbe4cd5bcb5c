"""Minibatches that are sampled ahead and read through caches: rows that are written meanwhile are never stale."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from layouts import Layout, SharedJob, on_all, on_layouts
from oracle import NUM_NODES

import mpigraph.distributed as dist
from mpigraph.dataloading import NeighborSampler
from mpigraph.kernels.row_slots import NEVER
from mpigraph.rows.lookahead import UpcomingReads

remote = on_layouts([Layout(2, 0, 1), Layout(3, 0, 2), Layout(4, 1, 2)])


def loader_of(g: dist.DistGraph, **options: Any) -> dist.DistNodeDataLoader:
    seeds = dist.node_split(np.ones(NUM_NODES))
    common: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3, "features": ["feat"]}
    return dist.DistNodeDataLoader(g, seeds, NeighborSampler([3, 4]), **common | options)


class Window:
    """What reads are announced with: rows of one host of another node."""

    offsets = np.array([0, 5000])
    world = SimpleNamespace(is_local=np.zeros(1, np.bool_))

    def __len__(self) -> int:
        return 5000


def test_the_next_read_of_each_row_is_known_however_many_are_ahead() -> None:
    window: Any = Window()
    upcoming, draws = UpcomingReads(window), np.random.default_rng(0)
    upcoming.link()
    for batch in range(1, 40):
        upcoming.announce(batch, draws.choice(5000, draws.integers(0, 900 if batch < 20 else 4000), replace=False))
        while len(upcoming.reads) > 6 or (upcoming.reads and draws.random() < 0.3):
            upcoming.done()
        following = np.full(5000, NEVER)
        for read in reversed(upcoming.reads):
            at = np.arange(read.first, read.first + len(read.rows)) & (len(upcoming.ring_next) - 1)
            assert np.array_equal(upcoming.ring_next[at], following[read.rows])
            following[read.rows] = read.batch
    assert len(upcoming.ring_next) > 1 << 10


@remote
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


@remote
def test_what_a_trainer_wrote_it_reads_before_the_others_know(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    tensor = dist.DistTensor((NUM_NODES,), torch.float32)
    g.ndata["h"] = tensor
    loader = loader_of(g, features=["h"], num_prefetch=0, lookahead=3)
    for _ in loader:
        pass
    g.barrier()
    own = torch.arange(g.rank(), NUM_NODES, job.trainers.size)
    steps = iter(loader)
    next(steps)
    tensor[own] = torch.ones(len(own))
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


@remote
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
