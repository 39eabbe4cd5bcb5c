"""What a loader adds to sampling: gathered rows, prepared edge weights, threads. None of it changes a draw."""

import gc
import threading
import tracemalloc

import numpy as np
import pytest
import torch
from layouts import Job, api
from oracle import NUM_NODES, open_graph

import mpigraph.distributed as dist
from mpigraph.dataloading import NeighborSampler
from mpigraph.errors import GraphDataError
from mpigraph.graphs.fields import EID
from mpigraph.rows.segments import RowPool
from mpigraph.sampling.local import Workers
from mpigraph.session.context import current


def test_wrong_weights_are_told_by_the_next_barrier(g: dist.DistGraph) -> None:
    g.edata["w"] = dist.DistTensor((g.num_edges(),), torch.float32, "w", part_policy=g.edata["weight"].part_policy)
    dist.DistNodeDataLoader(g, np.arange(NUM_NODES), NeighborSampler([1], prob="w"), batch_size=NUM_NODES)
    if g.rank() == current().num_trainers - 1:
        g.edata["w"][[5]] = -1.0
    with pytest.raises(GraphDataError, match=r"'w' of edge \d+ must be finite and >= 0 \(got -1"):
        g.barrier()
    with pytest.raises(GraphDataError, match="'w' of edge"):
        dist.DistNodeDataLoader(g, np.arange(3), NeighborSampler([1], prob="w"))


@api
def test_the_threads_of_the_job_draw_single_hops_too(layout: Job, oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    path = oracle(2)
    monkeypatch.setattr("mpigraph.sampling.local._WORTH_IT", 3)

    def workers() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("mpigraph-worker")}

    def draw(expected: int) -> torch.Tensor:
        g = open_graph(path)
        before = workers()
        edges = g.sample_neighbors(torch.arange(NUM_NODES), 2, seed=3).edata[EID]
        remote = 0 < layout.layout.ranks_per_node < layout.layout.ranks
        assert len(workers() - before) in (expected, expected * (1 + remote))  # what answers others has its own
        return edges

    alone = layout.run(lambda: draw(0))
    together = layout.run(lambda: draw(2), num_worker_threads=3)
    assert alone is None or torch.equal(alone, together)


@pytest.mark.parametrize("depth", [0, 2])
def test_the_device_is_the_callers(g: dist.DistGraph, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread has a current GPU of its own, so "cuda" is made exact before the thread begins."""
    asked = []

    def exact(device: str) -> torch.device:
        asked.append((device, threading.current_thread()))
        return torch.device("cpu")

    monkeypatch.setattr("mpigraph.dataloading.to_device.exact_device", exact)
    loader = dist.DistNodeDataLoader(
        g, np.arange(9), NeighborSampler([2]), "cuda", batch_size=3, num_prefetch=1, queue_size=depth
    )
    assert asked == [("cuda", threading.current_thread())]
    assert [inputs.device.type for inputs, _, _ in loader] == ["cpu"] * 3


def test_workers_do_every_position_once_and_raise() -> None:
    positions, done = np.arange(20_000), np.zeros(20_000, np.int64)
    workers = Workers(3)
    shares = []

    def work(part: np.ndarray) -> None:
        shares.append(len(part))
        done[part] += 1

    workers.run(work, positions)
    assert (done == 1).all() and len(shares) == 3

    def fail(part: np.ndarray) -> None:
        if part[-1] == 19_999:
            raise ValueError("the last share")

    with pytest.raises(ValueError, match="the last share"):
        workers.run(fail, positions)


def test_a_pool_gives_memory_again_when_nobody_looks_at_it() -> None:
    pool = RowPool()
    rows = pool.empty((1000, 400), np.float32)
    where = rows.ctypes.data
    view = torch.from_numpy(rows)[5:].reshape(-1)
    del rows
    gc.collect()
    assert pool.empty((1000, 400), np.float32).ctypes.data != where  # the view is alive
    del view
    again = pool.empty((990, 200), np.float64)  # of about the same size
    assert again.ctypes.data == where and again.shape == (990, 200) and again.dtype == np.float64
    assert pool.empty((3,), np.int16).shape == (3,)


def test_a_pool_of_one_size_keeps_no_other() -> None:
    pool = RowPool(2, one_size=True)
    places = []
    held = []
    tracemalloc.start()
    try:
        for megabytes in (9, 12, 7, 11, 2, 3):
            rows = pool.empty((megabytes, 1 << 20), np.uint8)
            assert rows.shape == (megabytes, 1 << 20)
            places.append(rows.ctypes.data)
            del rows
            held.append(tracemalloc.get_traced_memory()[0] >> 20)
    finally:
        tracemalloc.stop()
    assert places[1] == places[2] == places[3]
    assert 9 <= held[0] < 12 <= held[1] == held[2] == held[3] < 15 and held[4] < 4 and held[5] < 5
