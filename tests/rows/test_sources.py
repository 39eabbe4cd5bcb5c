"""Rows that cost something to read: cached and read ahead wherever they are, and the same as those in memory."""

import time
from typing import Any

import numpy as np
import pytest
import torch
from batches import digest
from layouts import ALONE, Job, Layout, own_on_layouts
from oracle import NUM_NODES, open_graph

import mpigraph.distributed as dist
from mpigraph.arrays import I64, Array
from mpigraph.dataloading import NeighborSampler
from mpigraph.errors import InvalidArgumentError
from mpigraph.kernels.row_ops import as_words
from mpigraph.rows.row_tensor import Policy
from mpigraph.rows.sources.row_source import Memory, RowSource
from mpigraph.rows.window import SourceOf
from mpigraph.storage.contents import PartFiles, read_rows
from mpigraph.storage.format import node_feature_name
from mpigraph.store.store import Store
from mpigraph.store.topology import Topology


class Slow(RowSource):
    """Rows that take a millisecond a read, and are counted."""

    def __init__(self, rows: Array) -> None:
        self.words = as_words(rows)
        self.reads = np.zeros(len(rows), np.int64)

    def read(self, rows: I64, out: Array, positions: I64) -> None:
        assert (np.diff(rows) > 0).all()
        time.sleep(0.001)
        self.reads[rows] += 1
        out.view(self.words.dtype)[positions] = self.words[rows]


@pytest.mark.parametrize("free", [True, False])
def test_rows_in_any_order(free: bool) -> None:
    table = np.arange(30, dtype=np.float32).reshape(10, 3)
    source = Memory(table) if free else Slow(table)
    rows, positions = np.array([7, 2, 7, 0, 2]), np.array([4, 0, 3, 1, 5])
    out = np.zeros((6, 3), np.float32)
    source.gather(rows, as_words(out), positions)
    assert np.array_equal(out[positions], table[rows]) and not out[2].any()
    source.read_ahead(np.arange(3)).wait()
    if isinstance(source, Slow):
        assert source.reads.max() == 1
        with pytest.raises(InvalidArgumentError, match="do not lie in memory"):
            source.memory()


@own_on_layouts([ALONE, Layout(2, 1, 0), Layout(2, 0, 1), Layout(3, 1, 0), Layout(4, 1, 2), Layout(4, 0, 1)])
def test_a_source_that_costs_time(layout: Job, oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Near and remote, with cache and look-ahead: bit-equal; a trainer reads a row once if its node's cache has it."""
    path = oracle(3)
    sources: list[Slow] = []
    digests: dict[bool, list[str]] = {}

    def slow(self: Store, topology: Topology, files: PartFiles, policy: Policy, name: str) -> SourceOf | None:
        if not policy.is_node or name != "feat":
            return None
        config, offsets = files.config, policy.offsets(topology.hosts)
        shape = config.node_features[config.schema.ntypes[policy.type_id]][name].shape
        dataset = node_feature_name(config.schema.ntypes[policy.type_id], name)

        def source(host: int) -> Slow:
            first, last = offsets[host : host + 2].tolist()
            rows = np.empty((last - first, *shape), np.float32)
            read_rows(files, "node_feats", dataset, policy.offsets(config.book), first, rows)
            sources.append(Slow(rows))
            return sources[-1]

        return source

    def body() -> None:
        g = open_graph(path)
        feat = g.ndata["feat"]
        free = not sources
        shared = g.session.world.num_local_trainers > 1
        options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3, "features": ["feat"]}
        seeds = dist.node_split(np.ones(NUM_NODES))
        loader = dist.DistNodeDataLoader(g, seeds, NeighborSampler([3, 4]), cache="1MiB", lookahead=3, **options)
        digests[free] = [digest(batch) for _ in range(2) for batch in loader]
        loader.close()
        if not free:
            stats, most = loader.stats(), max(int(source.reads.max()) for source in sources)
            if shared:  # slots for half of the rows each, some of them for the same: a row that has none is read again
                assert sum(int(source.reads.sum()) for source in sources) == stats.fetched_rows < stats.far_rows / 2
            else:
                assert most <= g.session.num_trainers and 0 < stats.fetched_rows <= NUM_NODES
        g.barrier()
        digests[free].append(str(feat[torch.arange(NUM_NODES).flip(0)].sum().item()))
        if not free:
            with pytest.raises(InvalidArgumentError, match="do not lie in memory"):
                feat[0] = 0

    layout.run(body)
    monkeypatch.setattr(Store, "_sources", slow)
    layout.run(body)
    if digests:  # a trainer
        assert digests[False] == digests[True]
    if layout.comm.size != 3:  # by the loader, once by each trainer; by the slice, once more
        assert all(source.reads.max() <= 2 * layout.comm.size for source in sources)
