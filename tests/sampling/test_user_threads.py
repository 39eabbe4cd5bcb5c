"""Threads that a user starts: they sample and read, and every result is what one thread would have got."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from layouts import ALONE, REMOTE, Layout, SharedJob, on_layouts
from oracle import NUM_NODES

import mpigraph.distributed as dist
from mpigraph.errors import InvalidArgumentError
from mpigraph.mpi.world import World

THREADS = 3
ROUNDS = 12
some = on_layouts([ALONE, Layout(2, 0, 1)])


def in_threads(work: Callable[[int], None]) -> None:
    """Run ``work`` in some threads at once, and raise what the first of them raised that did."""
    with ThreadPoolExecutor(THREADS, "user") as pool:
        begin = threading.Barrier(THREADS)
        list(pool.map(lambda number: (begin.wait(), work(number)), range(THREADS)))


def sampled(g: dist.DistGraph, number: int) -> list[torch.Tensor]:
    """What a draw of its own gives: ids and edges of blocks and of a hop."""
    seeds = torch.from_numpy(np.random.default_rng(number).permutation(NUM_NODES))
    nodes, _, blocks = g.sample_blocks(seeds, [3, 4], seed=number)
    hop = g.sample_neighbors(seeds, 5, seed=number)
    exist = g.has_edges_between(*hop.edges())
    return [nodes, *blocks[0].edges(), *blocks[1].edges(), *hop.edges(), exist]


@pytest.mark.slow
@some
def test_threads_that_sample_take_turns(g: dist.DistGraph) -> None:
    numbers = [THREADS * turn + thread for turn in range(ROUNDS) for thread in range(THREADS)]
    want = {number: sampled(g, number) for number in numbers}
    wrong: list[int] = []

    def work(thread: int) -> None:
        for number in numbers[thread::THREADS]:
            same = [torch.equal(x, y) for x, y in zip(sampled(g, number), want[number], strict=True)]
            wrong.extend([number] * (not all(same)))

    in_threads(work)
    assert not wrong
    draws = set[int]()
    in_threads(lambda thread: draws.update(g.session.next_context().epoch for _ in range(1000)))
    assert len(draws) == 1000 * THREADS  # no two calls draw the same


@on_layouts([ALONE, *REMOTE])
def test_threads_read_and_write_at_once(job: SharedJob, g: dist.DistGraph) -> None:
    own = dist.DistTensor((NUM_NODES, 600), torch.float32)
    emb = dist.DistEmbedding(NUM_NODES, 2)

    def work(thread: int) -> None:
        rng = np.random.default_rng(thread)
        mine = np.arange(thread + THREADS * g.rank(), NUM_NODES, THREADS * job.trainers.size)
        for turn in range(ROUNDS):
            ids = rng.integers(0, NUM_NODES, 700)  # large enough for the pool
            assert torch.equal(g.ndata["orig"][ids], g.ndata["orig"][ids.tolist()])
            own[mine] = torch.full((len(mine), 600), float(turn))
            assert (own[np.tile(mine, 9)] == turn).all()
            emb(ids)

    in_threads(work)
    assert len(emb.trace) == THREADS * ROUNDS


@on_layouts([Layout(2, 0, 1)])
def test_without_thread_multiple_other_threads_may_not_communicate(
    g: dist.DistGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = dist.DistTensor((NUM_NODES, 1), torch.float32)
    monkeypatch.setattr(World, "threads_may_communicate", False)
    for call in (
        lambda: g.sample_blocks([1], [2]),
        lambda: g.sample_neighbors([1], 2),
        lambda: tensor[[1]],
        lambda: tensor.__setitem__([1], 0),
    ):
        with pytest.raises(InvalidArgumentError, match=r"without MPI_THREAD_MULTIPLE.*thread 'user_\d'"):
            in_threads(lambda _, call=call: call())
        call()
