"""Splits: every selected node and edge goes to one trainer, near where it lies; how much of the mask is read."""

from pathlib import Path

import numpy as np
import pytest
import torch
from layouts import Job, Layout, SharedJob, needs_threads
from oracle import NAME, NUM_NODES, open_graph, partitioned

import mpigraph.distributed as dist
from mpigraph.distgraph.split import _bounds, _counted_share
from mpigraph.errors import InvalidArgumentError
from mpigraph.metadata.schema import Schema
from mpigraph.partition.source import GraphSource
from mpigraph.rows.row_tensor import RowTensor
from mpigraph.session.context import current
from mpigraph.store.derived import MaskCounts, block_bounds

MASKS = {
    "all": np.ones(NUM_NODES, np.int64),
    "third": np.arange(NUM_NODES) % 3 == 0,
    "two": np.isin(np.arange(NUM_NODES), [0, 100]).astype(np.float32),
    "none": np.zeros(NUM_NODES, bool),
}


def shares_of(g: dist.DistGraph, mask: np.ndarray, even: bool) -> tuple[list[int], list[int]]:
    """This trainer's nodes and edges; the same by every kind of mask, and by every rank's reckoning."""
    book = g.get_partition_book()
    t, counted, small = (dist.DistTensor((NUM_NODES,), kind) for kind in (torch.float32, torch.bool, torch.int8))
    if g.rank() == 0:
        t[:] = counted[:] = small[:] = torch.from_numpy(mask)
        assert torch.equal(
            dist.node_split(counted, rank=0), dist.node_split(mask, book, rank=0)
        )  # who wrote it reads it
    g.barrier()
    assert [current().store.mask_counts(m.rows) is not None for m in (counted, small, t)] == [True, True, False]
    shares = [dist.node_split(m, book, force_even=even) for m in (mask, torch.from_numpy(mask), t, counted, small)]
    assert all(torch.equal(shares[0], share) for share in shares)
    assert shares[0].dtype == torch.int64
    assert torch.equal(shares[0], shares[0].sort()[0])
    for rank in range(current().num_trainers):
        other = dist.node_split(counted, rank=rank, force_even=even)
        assert torch.equal(other, dist.node_split(mask, book, rank=rank, force_even=even))
        assert rank != g.rank() or torch.equal(other, shares[0])
    edges = dist.edge_split(np.ones(g.num_edges(), bool), book, force_even=even)
    return shares[0].tolist(), edges.tolist()


def test_splits_cover_the_mask_once(job: SharedJob, oracle) -> None:
    path = oracle(3)

    def body() -> dict:
        g = job.open(path)
        return {(name, even): shares_of(g, mask, even) for name, mask in MASKS.items() for even in (True, False)}

    of_trainers = job.trainers.allgather(body())
    for name, mask in MASKS.items():
        for even in (True, False):
            nodes = [shares[name, even][0] for shares in of_trainers]
            assert sorted(sum(nodes, [])) == np.flatnonzero(mask).tolist()
            assert sorted(sum((shares[name, even][1] for shares in of_trainers), [])) == list(range(591))
            if even:
                assert max(map(len, nodes)) - min(map(len, nodes)) <= 1


def test_arange_means_every_id(job: SharedJob, g: dist.DistGraph) -> None:
    for ids in (np.arange(NUM_NODES), torch.arange(NUM_NODES, dtype=torch.int32)):
        for even in (True, False):
            share = dist.node_split(ids, g.get_partition_book(), force_even=even).tolist()
            assert sorted(sum(job.trainers.allgather(share), [])) == list(range(NUM_NODES))


def write_tiny(directory: Path) -> str:
    """Types of one, two and three nodes."""
    ids = np.arange(3)
    schema = Schema(("one", "three", "two"), (("three", "to", "three"),))
    source = GraphSource(schema, (1, 3, 2), ((ids, ids),), {})
    return partitioned(source, "tiny", 1, directory)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int16, np.uint32])
def test_ids_of_one_or_two_nodes_are_no_mask(job: SharedJob, dtype: type) -> None:
    """Selecting none of one node, or the second of two, in place of all."""
    book = job.open(job.write(write_tiny)).get_partition_book()
    for ntype, count in (("one", 1), ("two", 2)):
        ids = np.arange(count, dtype=dtype)
        for form in (ids, torch.from_numpy(ids), ids.tolist()):
            with pytest.raises(InvalidArgumentError, match=f"ids of all {count} nodes or edges: give a mask of bool"):
                dist.node_split(form, book, ntype)
        for mask in (ids > -1, ids.astype(np.uint8) + 1, np.ones(count, dtype)):
            gathered = job.trainers.allgather(dist.node_split(mask, book, ntype).tolist())
            assert sum(gathered, []) == list(range(count))
    assert not len(dist.node_split(np.zeros(2, dtype), book, "two"))
    assert sum(job.trainers.allgather(dist.node_split(np.arange(3, dtype=dtype), book, "three").tolist()), []) == [
        0,
        1,
        2,
    ]


class Arithmetic:
    """A mask of so many entries that selects every ``step``-th one; it notes how many are read."""

    def __init__(self, count: int, step: int) -> None:
        self.step, self.shape, self.read = step, (count,), 0

    def __getitem__(self, part: slice) -> np.ndarray:
        self.read += part.stop - part.start
        return np.arange(part.start, part.stop) % self.step == 0


@pytest.mark.parametrize("hosts", [8, 64, 1024])
@pytest.mark.parametrize("step", [1, 90])
def test_a_trainer_of_a_thousand_reads_its_own_piece(hosts: int, step: int) -> None:
    """Of 10^8 nodes. The counts, which each rank is sent, are O(hosts), as are the ends of the blocks it begins in."""
    count, trainers = 10**8, 1024
    bounds = block_bounds(np.arange(hosts + 1) * count // hosts)
    selected = (bounds + step - 1) // step
    counts = MaskCounts(1, bounds, np.diff(selected, axis=1))
    table = counts.counts.nbytes
    assert table <= max(1 << 15, 8 * hosts)
    whole = -(-count // step)
    for trainer in (0, 511, 1023):
        mask = Arithmetic(count, step)
        ids = _counted_share(mask, counts.blocks(), trainer, trainers)
        begin, end = _bounds(whole, trainer, trainers)
        assert ids is not None and np.array_equal(ids, np.arange(begin, end) * step)
        blocks = 2 * count // counts.counts.size  # in which it begins and ends
        assert mask.read <= (end - begin) * step + blocks + 2
        assert mask.read + table <= 2 * count / trainers  # and all of it 500 times less than the mask
    wrong = MaskCounts(1, bounds, np.maximum(counts.counts - 1, 0))
    assert _counted_share(Arithmetic(count, step), wrong.blocks(), 5, trainers) is None


def test_a_mask_is_counted_anew_when_it_was_written(
    job: SharedJob, g: dist.DistGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    book, read = g.get_partition_book(), []
    gather = RowTensor.gather

    def noted(self: RowTensor, ids: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        read.append(len(ids))
        return gather(self, ids, out)

    monkeypatch.setattr(RowTensor, "gather", noted)
    t = dist.DistTensor((NUM_NODES,), torch.uint8)
    for name in ("two", "third", "none", "third", "all"):
        mask = MASKS[name] != 0
        for owned in t.owned():
            t[owned.first : owned.last] = torch.from_numpy(mask[owned.first : owned.last])
        g.barrier()
        read.clear()
        share = dist.node_split(t)
        assert torch.equal(share, dist.node_split(mask, book))
        limit = int(share[-1] - share[0]) + 1 + 2 * 31 if len(share) else 0  # blocks have less than 32 rows
        assert sum(read) <= limit
        job.trainers.Barrier()  # no write while another trainer reads; not the graph's, which counts versions
    if g.rank() == 0:
        t[:] = 0
        assert len(dist.node_split(t)) == 0  # read whole: others do not know yet
    g.barrier()
    assert len(dist.node_split(t)) == 0


@needs_threads
@pytest.mark.parametrize("comm", [2, 3, 4], indirect=True)
def test_split_is_local_where_parts_are(comm, oracle) -> None:
    path = oracle(4)

    def body() -> None:
        open_graph(path)
        share = dist.node_split(np.ones(NUM_NODES, bool), force_even=False)
        world = current().world
        offsets = current().store.graphs[NAME].topology.hosts.node_offsets[0]
        assert torch.equal(share, torch.arange(offsets[world.host_index], offsets[world.host_index + 1]))

    Job(comm, Layout(comm.size, 0, 1)).run(body)
