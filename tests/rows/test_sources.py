"""Rows that cost something to read: cached and read ahead wherever they are, and the same as those in memory."""

from typing import Any

import numpy as np
import pytest
import torch
from batches import digest
from layouts import ALONE, Job, Layout, own_on_layouts
from mpi4py import MPI
from oracle import NUM_NODES, open_graph
from slow_rows import Slow, slow_sources

import mpigraph.distributed as dist
from mpigraph.dataloading import NeighborSampler
from mpigraph.errors import InvalidArgumentError
from mpigraph.kernels.row_ops import as_words
from mpigraph.rows.lookahead import CachedRows, UpcomingReads
from mpigraph.rows.row_cache import RowCache
from mpigraph.rows.sources.row_source import Memory
from mpigraph.session.control import Operation


@pytest.mark.parametrize("free", [True, False])
def test_rows_in_any_order(free: bool) -> None:
    table = np.arange(30, dtype=np.float32).reshape(10, 3)
    source = Memory(table) if free else Slow(table)
    rows, positions = np.array([7, 2, 7, 0, 2]), np.array([4, 0, 3, 1, 5])
    out = np.zeros((6, 3), np.float32)
    source.gather(rows, as_words(out), positions)
    assert np.array_equal(out[positions], table[rows]) and not out[2].any()
    ticket = source.read_ahead(np.arange(3), as_words(out), np.array([5, 0, 2]))
    assert ticket.done
    ticket.finish()
    assert np.array_equal(out[[5, 0, 2]], table[:3])
    if isinstance(source, Slow):
        assert source.reads.max() == 2
        with pytest.raises(InvalidArgumentError, match="do not lie in memory"):
            source.memory()


@own_on_layouts([ALONE, Layout(2, 1, 0), Layout(2, 0, 1), Layout(3, 1, 0), Layout(4, 1, 2), Layout(4, 0, 1)])
def test_a_source_that_costs_time(layout: Job, oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Local and remote, with cache and look-ahead: bit-equal, and a trainer reads a row once while it is cached.

    Trainers that share a node may do so twice: one reads a row itself while that of another is on its way.
    """
    path = oracle(3)
    sources: list[Slow] = []
    digests: dict[bool, list[str]] = {}

    def body() -> None:
        g = open_graph(path)
        feat = g.ndata["feat"]
        free = not sources
        options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3, "features": ["feat"]}
        seeds = dist.node_split(np.ones(NUM_NODES))
        loader = dist.DistNodeDataLoader(g, seeds, NeighborSampler([3, 4]), cache="1MiB", lookahead=3, **options)
        digests[free] = [digest(batch) for _ in range(2) for batch in loader]
        loader.close()
        if not free:
            stats = loader.stats()
            if g.session.world.num_local_trainers > 1:
                assert stats.fetched_rows < stats.remote_rows / 2
            else:
                assert all(source.reads.max() <= g.session.num_trainers for source in sources)
                assert 0 < stats.fetched_rows <= NUM_NODES
        g.barrier()
        digests[free].append(str(feat[torch.arange(NUM_NODES).flip(0)].sum().item()))
        if not free:
            with pytest.raises(InvalidArgumentError, match="do not lie in memory"):
                feat[0] = 0

    layout.run(body)
    slow_sources(monkeypatch, sources)
    layout.run(body)
    if digests:  # a trainer
        assert digests[False] == digests[True]
    if layout.comm.size != 3:  # by the loader, once by each trainer; by the slice, once more
        assert all(source.reads.max() <= 2 * layout.comm.size for source in sources)


@own_on_layouts([Layout(3, 1, 0), Layout(4, 1, 0)])
def test_trainers_of_a_node_read_a_row_once(layout: Job, oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the bytes allow, each of two or three trainers has a slot for every row: none is read by two, or twice."""
    path = oracle(3)
    sources: list[Slow] = []
    slow_sources(monkeypatch, sources)

    def body() -> None:
        g = open_graph(path)
        session, rows = g.session, g.ndata["feat"].rows
        world = session.world
        trainers, slot, hints = world.num_local_trainers, rows.window.row_bytes + 12, 4 * NUM_NODES
        values = g.ndata["orig"][torch.arange(NUM_NODES)].numpy()
        for nbytes, slots in [
            (hints, 0),
            (hints + (trainers * NUM_NODES - 1) * slot, NUM_NODES - 1),
            (hints + trainers * NUM_NODES * slot, NUM_NODES),
            (1 << 20, NUM_NODES),
        ]:
            caches = session.control.call(Operation.OPEN_CACHES, groups=[[[rows.number], nbytes]], ahead=1)
            cache: RowCache = caches[rows.number]
            assert cache.per_trainer == slots and cache.nbytes <= nbytes + 1024  # tables begin at multiples of 64
            if nbytes < 1 << 20:
                session.control.call(Operation.FREE, numbers=[cache.number])
        upcoming = UpcomingReads(rows.window)
        cached = CachedRows(rows, cache, upcoming, session.pool)
        for reader in range(trainers):
            for batch, ids in enumerate(np.random.default_rng(reader).integers(0, NUM_NODES, (16, 40))):
                if reader == world.local_trainer:
                    out = np.empty((len(ids), *rows.shape[1:]), np.float32)
                    cached.announce(*upcoming.announce(batch, ids))
                    cached.read(upcoming.reads[0], out)
                    upcoming.done()
                    assert (out == values[ids, None]).all()
            g.barrier()
        reads = np.concatenate([source.reads for source in sources])
        world.trainers.Allreduce(MPI.IN_PLACE, reads)
        assert reads.max() == 1
        session.control.call(Operation.FREE, numbers=[cache.number])

    layout.run(body)
