"""Layer by layer over rows that take time to read: the same as in memory, each read once, in order, where they fit."""

from typing import Any

import numpy as np
import pytest
import torch
from layouts import ALONE, Job, Layout, on_all, own_on_layouts
from mpi4py import MPI
from oracle import NUM_NODES, open_graph
from slow_rows import Disk, slow_sources

import mpigraph.function as fn
from mpigraph.inference import halo, layerwise
from mpigraph.rows.cache_sizes import cache_memory

LAYOUTS = [ALONE, Layout(2, 0, 0), Layout(3, 1, 0), Layout(2, 0, 1), Layout(4, 0, 2), Layout(4, 1, 2)]
ROW = 3 * 4  # bytes of a row of "feat"


def sums(block: Any, h: Any) -> torch.Tensor:
    """Sums of small integers: the same bits in any order."""
    with block.local_scope():
        block.srcdata["h"] = h[0]
        block.update_all(fn.copy_u("h", "m"), fn.sum("m", "out"))
        return torch.as_tensor(block.dstdata["out"]) + 2 * h[1]


@own_on_layouts(LAYOUTS)
def test_rows_are_read_once_and_in_order(layout: Job, oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node reads each of its rows once, and a row of another node once, if its caches have memory for all."""
    path = oracle(3)
    disks: list[Any] = []
    wanted: list[torch.Tensor] = []
    monkeypatch.setattr(halo, "_FETCHED_TOGETHER", 10 * ROW)

    def in_memory() -> None:
        g = open_graph(path)
        wanted.append(layerwise(g, [sums, sums], g.ndata["feat"], batch_size=9)[:].clone())

    def on_disk() -> None:
        g = open_graph(path)
        world, offsets = g.session.world, g.ndata["feat"].rows.window.offsets
        for cache in ("auto", cache_memory(NUM_NODES, NUM_NODES // 4, ROW), 0):
            for disk in disks:
                disk.begun.clear()
                disk.reads[:] = 0
            g.barrier()
            found = layerwise(g, [sums, sums], g.ndata["feat"], batch_size=9, cache=cache)
            on_all(world.trainers, torch.equal(found[:], wanted[0]), str(cache))
            reads = np.zeros(NUM_NODES, np.int64)
            for host, disk in zip(np.flatnonzero(world.is_local).tolist(), disks, strict=True):
                reads[offsets[host] : offsets[host + 1]] = disk.reads
            in_order = all((np.diff(np.concatenate(disk.begun)) == 1).all() for disk in disks if disk.begun)
            on_all(world.trainers, in_order or cache != "auto")
            world.trainers.Allreduce(MPI.IN_PLACE, reads)
            assert reads.min() >= 1
            if cache == "auto":  # trainers without servers also read for other nodes
                assert reads.max() <= (1 if layout.layout.servers else world.num_nodes)

    layout.run(in_memory)
    slow_sources(monkeypatch, disks, Disk)
    layout.run(on_disk)
