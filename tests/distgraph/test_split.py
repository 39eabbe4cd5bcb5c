"""Splits: every selected node and edge goes to one trainer, near where it lies; how much of the mask is read."""

import numpy as np
import pytest
import torch
from layouts import Job, Layout, SharedJob, needs_threads
from oracle import NAME, NUM_NODES, open_graph

import mpigraph.distributed as dist
from mpigraph.errors import InvalidArgumentError, MaskLengthError
from mpigraph.session.context import current

MASKS = {
    "all": np.ones(NUM_NODES, np.int64),
    "third": np.arange(NUM_NODES) % 3 == 0,
    "two": np.isin(np.arange(NUM_NODES), [0, 100]).astype(np.float32),
    "none": np.zeros(NUM_NODES, bool),
}


def shares_of(g: dist.DistGraph, mask: np.ndarray, even: bool) -> tuple[list[int], list[int]]:
    """This trainer's nodes and edges; the same by every kind of mask, and by every rank's reckoning."""
    book, t = g.get_partition_book(), dist.DistTensor((NUM_NODES,), torch.float32)
    if g.rank() == 0:
        t[:] = torch.from_numpy(mask)
    g.barrier()
    shares = [dist.node_split(m, book, force_even=even) for m in (mask, torch.from_numpy(mask), t)]
    assert all(torch.equal(shares[0], share) for share in shares)
    assert shares[0].dtype == torch.int64
    assert torch.equal(shares[0], shares[0].sort()[0])
    for rank in range(current().num_trainers):
        other = dist.node_split(t, rank=rank, force_even=even)
        assert rank != g.rank() or torch.equal(other, shares[0])
    edges = dist.edge_split(np.ones(g.num_edges(), bool), book, force_even=even)
    return shares[0].tolist(), edges.tolist()


def test_splits_cover_the_mask_once(job: SharedJob, oracle) -> None:
    path = oracle(3)

    def body() -> dict:
        g = job.open(path)
        with pytest.raises(MaskLengthError, match="one entry for each of 101 nodes"):
            dist.node_split(np.ones(7), g.get_partition_book())
        with pytest.raises(InvalidArgumentError, match="rank must be an integer"):
            dist.node_split(MASKS["all"], rank=99)
        return {(name, even): shares_of(g, mask, even) for name, mask in MASKS.items() for even in (True, False)}

    found = job.trainers.allgather(body())
    for name, mask in MASKS.items():
        for even in (True, False):
            nodes = [shares[name, even][0] for shares in found]
            assert sorted(sum(nodes, [])) == np.flatnonzero(mask).tolist()
            assert sorted(sum((shares[name, even][1] for shares in found), [])) == list(range(591))
            if even:
                assert max(map(len, nodes)) - min(map(len, nodes)) <= 1


class Watched:
    """A mask that notes what is read of it."""

    def __init__(self, mask: np.ndarray) -> None:
        self.mask, self.shape, self.read = mask, mask.shape, []

    def __len__(self) -> int:
        return len(self.mask)

    def __getitem__(self, part: slice) -> np.ndarray:
        self.read.append((part.start, part.stop))
        return self.mask[part]


def test_splits_read_again_only_what_they_need(job: SharedJob, oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    path = oracle(3)
    monkeypatch.setattr("mpigraph.distgraph.split._BLOCK", 10)
    once = [(first, min(first + 10, NUM_NODES)) for first in range(0, NUM_NODES, 10)]

    def body() -> list[int]:
        job.open(path)
        mask = Watched((np.arange(NUM_NODES) % 3 == 0).astype(np.uint8))
        mine = dist.node_split(mask).tolist()
        assert mask.read == once + [block for block in once if any(block[0] <= i < block[1] for i in mine)]
        return mine

    found = job.trainers.allgather(body())
    assert sum(found, []) == list(range(0, NUM_NODES, 3))


@needs_threads
@pytest.mark.parametrize("comm", [2, 3, 4], indirect=True)
def test_split_is_local_where_parts_are(comm, oracle) -> None:
    path = oracle(4)

    def body() -> None:
        open_graph(path)
        mine = dist.node_split(np.ones(NUM_NODES, bool), force_even=False)
        world = current().world
        offsets = current().state.graphs[NAME].topology.hosts.node_offsets[0]
        assert torch.equal(mine, torch.arange(offsets[world.host_index], offsets[world.host_index + 1]))

    Job(comm, Layout(comm.size, 0, 1)).run(body)
