"""Remote rows that are read through caches, by minibatches sampled ahead: fetched once, and never stale."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from layouts import Job, Layout, SharedJob, on_layouts, own_on_layouts
from mpi4py import MPI
from oracle import NUM_NODES, open_graph

import mpigraph.distributed as dist
from mpigraph.arrays import I64
from mpigraph.dataloading import NeighborSampler
from mpigraph.kernels.row_slots import NEVER
from mpigraph.rows.lookahead import CachedRows, UpcomingReads
from mpigraph.rows.row_cache import remote_rows
from mpigraph.rows.window import RowWindow
from mpigraph.session.control import Operation


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[I64]:
    """The rows of each fetch of this process, once a graph is open."""
    rows_of: list[I64] = []
    fetch = RowWindow.fetch

    def noted(self: RowWindow, rows: I64, *arguments: Any) -> Any:
        rows_of.append(rows.copy())
        return fetch(self, rows, *arguments)

    monkeypatch.setattr(RowWindow, "fetch", noted)
    return rows_of


def loader_of(g: dist.DistGraph, **options: Any) -> dist.DistNodeDataLoader:
    seeds = dist.node_split(np.ones(NUM_NODES))
    common: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3, "features": ["feat"]}
    return dist.DistNodeDataLoader(g, seeds, NeighborSampler([3, 4]), **common | options)


def values_of(g: dist.DistGraph) -> torch.Tensor:
    """The rows of "feat", which tell the original ids."""
    return g.ndata["orig"][torch.arange(NUM_NODES)].float()[:, None].expand(-1, 3)


class Reader:
    """Reads of "feat" through a cache, minibatch by minibatch."""

    def __init__(self, g: dist.DistGraph, nbytes: int, ahead: int = 4) -> None:
        self.session = session = g.session
        self.rows = g.ndata["feat"].rows
        caches = session.control.call(Operation.OPEN_CACHES, groups=[[[self.rows.number], nbytes]], ahead=ahead)
        self.cache = caches[0]
        self.upcoming = UpcomingReads(self.rows.window)
        self.cached = CachedRows(self.rows, self.cache, self.upcoming)

    def announce(self, batch: int, ids: I64) -> None:
        self.cached.announce(*self.upcoming.announce(batch, ids))

    def read(self) -> Any:
        read = self.upcoming.reads[0]
        out = np.full((len(read.ids), 3), -1, np.float32)
        self.cached.read(read, out)
        self.upcoming.done()
        return out

    def close(self) -> None:
        self.session.control.call(Operation.FREE, numbers=[self.cache.number])


@own_on_layouts([Layout(4, 0, 2), Layout(4, 1, 2)])
def test_trainers_of_a_node_fetch_a_row_once(layout: Job, oracle, fetched: list[I64]) -> None:
    """Where the bytes allow, each trainer has a slot for every remote row: none is fetched by two, or twice."""
    path = oracle(3)

    def body() -> None:
        g = open_graph(path)
        world, values = g.session.world, values_of(g).numpy()
        reader = Reader(g, 1 << 20)
        assert reader.cache.per_trainer == remote_rows(reader.rows.window)
        fetched.clear()
        most = world.allreduce_minmax(world.num_local_trainers, True)
        for turn in range(most):
            for batch, ids in enumerate(np.random.default_rng(turn).integers(0, NUM_NODES, (16, 40))):
                if turn == world.local_trainer:
                    reader.announce(batch, ids)
                    assert (reader.read() == values[ids]).all()
            g.barrier()
        counts = np.zeros((world.num_nodes, NUM_NODES), np.int64)
        for rows in fetched:
            counts[world.node_index, rows] += 1
        world.trainers.Allreduce(MPI.IN_PLACE, counts)
        assert counts.max() == 1
        reader.close()

    layout.run(body)


remote = on_layouts([Layout(2, 0, 1), Layout(3, 0, 2), Layout(4, 1, 2)])


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
def test_written_rows_are_never_stale(g: dist.DistGraph) -> None:
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
                        assert (tensor[inputs] == known + 1).all()
                    g.barrier()
            g.barrier()
        loader.close()
    del g.ndata["h"]


@remote
def test_what_a_trainer_wrote_it_reads_before_the_others_know(job: SharedJob, g: dist.DistGraph) -> None:
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
