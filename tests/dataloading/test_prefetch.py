"""How epochs end: early, late, never begun, several at once, with errors; whoever is left is answered."""

import signal
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from batches import digest
from layouts import ALONE, Job, Layout, SharedJob, own_on_layouts, rotated
from oracle import NUM_NODES, open_graph

import mpigraph.distributed as dist
from mpigraph.dataloading import NeighborSampler
from mpigraph.dataloading.loader import _Epochs
from mpigraph.dataloading.work_ahead import Prefetch
from mpigraph.errors import ClosedError
from mpigraph.mpi.wait import Backoff, Policy
from mpigraph.mpi.world import World
from mpigraph.rows.window import RowWindow
from mpigraph.sampling.exchanges import InRounds

WORLD: Any = SimpleNamespace(
    threads_may_communicate=True, watchdog=SimpleNamespace(own=lambda what: nullcontext(), working=nullcontext)
)


@rotated(2)
@pytest.mark.parametrize("depth", [0, 2])
def test_a_job_may_end_in_the_middle_of_several_epochs(layout: Job, oracle, depth: int) -> None:
    path, kept = oracle(3), []

    def body() -> None:
        g = open_graph(path)
        mine = dist.node_split(np.ones(NUM_NODES))
        sampler = NeighborSampler([2, 2])
        loaders = [dist.DistNodeDataLoader(g, mine, sampler, batch_size=2, num_prefetch=depth) for _ in range(4)]
        for loader in loaders if g.rank() % 2 else reversed(loaders):
            kept.append(iter(loader))
        for batches in kept[:: 1 if g.rank() % 2 else -1]:
            next(batches)

    layout.run(body)
    assert not [thread for thread in threading.enumerate() if thread.name == "mpigraph-prefetch"]


@pytest.mark.parametrize("depth", [0, 2])
def test_an_iterator_that_was_ended_from_elsewhere_raises(g: dist.DistGraph, depth: int) -> None:
    loader = dist.DistNodeDataLoader(g, range(20), NeighborSampler([2]), batch_size=4, num_prefetch=depth)
    with pytest.raises(ClosedError, match="another pass over this loader was begun"):
        list(zip(loader, loader, strict=True))
    outer = []
    with pytest.raises(ClosedError, match="it makes one at a time"):
        for batch in loader:
            outer.append(batch)
            assert len(list(loader)) == 5
    assert len(outer) == 1
    batches = iter(loader)
    next(batches)
    loader.close()
    for again in (lambda: next(batches), lambda: iter(loader)):
        with pytest.raises(ClosedError, match="the loader was closed"):
            again()


@own_on_layouts([ALONE, Layout(2, 0, 1)])
@pytest.mark.parametrize("depth", [0, 2])
def test_after_the_job_a_loader_says_so(layout: Job, oracle, depth: int) -> None:
    path = oracle(3)

    def body() -> None:
        g = open_graph(path)
        loader = dist.DistNodeDataLoader(g, range(20), NeighborSampler([2]), batch_size=4, num_prefetch=depth)
        batches = iter(loader)
        next(batches)
        dist.exit_client()
        for late in (lambda: next(batches), lambda: iter(loader), lambda: g.sample_neighbors([1], 2), g.barrier):
            with pytest.raises(ClosedError, match="the job was ended"):
                late()

    layout.run(body)


@own_on_layouts([ALONE, Layout(2, 0, 0), Layout(3, 1, 0), Layout(4, 1, 2)])
def test_without_threads_whoever_leaves_a_loop_answers(layout: Job, oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several nodes without servers need threads, so there are none here."""
    path, answering = oracle(3), []
    monkeypatch.setattr(World, "threads_may_communicate", property(lambda world: False))
    leave = InRounds.leave

    def note(exchange: InRounds) -> None:
        answering.append(threading.current_thread())
        leave(exchange)

    monkeypatch.setattr(InRounds, "leave", note)
    kept = []

    def body() -> None:
        g = open_graph(path)
        mine = dist.node_split(np.ones(NUM_NODES))
        loader = dist.DistNodeDataLoader(g, mine, NeighborSampler([2, 2]), batch_size=4)
        for steps in (g.rank(), len(loader), 0):  # left at different steps, ended, never begun by one trainer
            batches = zip(range(0 if g.rank() == 0 else steps + 1), loader, strict=False)
            assert sum(1 for _ in batches) <= len(loader)
            del batches
        assert answering == [threading.current_thread()] * 3
        g.barrier()
        for _ in range(3):
            other = dist.DistNodeDataLoader(g, mine, NeighborSampler([2]), batch_size=4)
            kept.append(iter(other))
            next(kept[-1])

    layout.run(body)
    assert set(answering) <= {threading.current_thread()}


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("steps", [None, 0, 1, 4])
def test_what_comes_after_the_items_comes_once(depth: int, steps: int | None) -> None:
    """However far the iterator went, or if it was never made (None): in a thread, or without one in the caller's."""
    after: list[threading.Thread] = []
    prefetch = Prefetch(lambda: iter(range(3)), lambda: after.append(threading.current_thread()), depth, WORLD)
    if steps is not None:
        items = iter(prefetch)
        assert [item for _, item in zip(range(steps), items, strict=False)] == list(range(min(steps, 3)))
        del items
        while prefetch.running:
            time.sleep(0.001)
        assert len(after) == 1
    prefetch.stop("enough")
    assert len(after) == 1 and (after[0] is threading.current_thread()) == (depth == 0)


def test_an_error_after_the_items_is_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer may be gone: the hook for threads, which ends a job, gets it."""
    caught: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: caught.append(str(args.exc_value)))

    def fail() -> None:
        raise RuntimeError("nobody answers")

    prefetch = Prefetch(lambda: iter(()), fail, 2, WORLD)
    while prefetch.running:
        time.sleep(0.001)
    assert list(prefetch) == []
    prefetch.stop("enough")
    assert caught == ["nobody answers"]


def test_an_error_after_the_consumer_has_left_is_nobodys() -> None:
    left, ended = threading.Event(), []

    def produce():
        yield 1
        assert left.wait(60)
        raise ValueError("what it reads was closed")

    prefetch = Prefetch(produce, lambda: ended.append(True), 2, WORLD)
    items = iter(prefetch)
    assert next(items) == 1
    items.close()
    left.set()
    prefetch.stop("it is over")  # an exception in a thread would be a warning, and so an error
    assert ended


def test_a_tensor_may_be_closed_that_an_epoch_reads_which_was_left(g: dist.DistGraph) -> None:
    for _ in range(5):
        tensor = dist.DistTensor((NUM_NODES, 64), torch.float32)
        loader = dist.DistDataLoader(np.arange(NUM_NODES), 1, collate_fn=tensor.__getitem__, num_prefetch=3)
        for rows in loader:
            assert not rows.any()
            break
        tensor.close()
    g.barrier()


@rotated(2)
@pytest.mark.parametrize("depth", [1, 2])
def test_an_epoch_waits_for_the_one_before_also_after_a_caught_ctrl_c(
    job: SharedJob, oracle, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old epoch is held in its end, in the thread that works for it, and the wait for that is interrupted."""
    held, go = threading.Event(), threading.Event()
    stop, after, waits, ended = Prefetch.stop, _Epochs._end, [0], list[bool]()

    def interrupted(self: Prefetch, because: str) -> None:
        waits[0] += 1
        if waits[0] == 1:
            self.abandon(because)
            assert held.wait(60)
            raise KeyboardInterrupt
        go.set()
        stop(self, because)

    def hold(self: _Epochs) -> None:
        if not held.is_set():
            held.set()
            go.wait(10)
            ended.append(True)
        after(self)

    g = job.open(oracle(3))
    mine = dist.node_split(np.ones(NUM_NODES))
    sampler = NeighborSampler([2, 2])
    loader, like_it = (
        dist.DistNodeDataLoader(g, mine, sampler, batch_size=4, shuffle=True, num_prefetch=depth, seed=5)
        for _ in range(2)
    )
    like_it.set_epoch(1)
    expected = [digest(batch) for batch in like_it]
    monkeypatch.setattr(_Epochs, "_end", hold)
    monkeypatch.setattr(Prefetch, "stop", interrupted)
    next(iter(loader))
    with pytest.raises(KeyboardInterrupt):
        iter(loader)
    batches = iter(loader)
    begun_after_the_end = list(ended)
    found = [digest(batch) for batch in batches]
    monkeypatch.undo()
    go.set()
    g.barrier()
    assert begun_after_the_end == [True] and found == expected


def test_a_wait_for_a_pass_that_ctrl_c_leaves_does_not_end_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's ``Thread.join`` takes the thread for ended where Ctrl-C leaves it: then two epochs ran at once."""
    go, joining = threading.Event(), threading.Event()
    one_pass = Prefetch(lambda: iter([1]), lambda: (go.wait(60), None)[1], 2, WORLD)

    def pause(self: Backoff, policy: Policy) -> None:
        joining.set()
        time.sleep(0.01)

    def interrupt() -> None:
        joining.wait(1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    monkeypatch.setattr(Backoff, "pause", pause)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            threading.Thread(target=interrupt, daemon=True).start()
            one_pass.stop("")
    finally:
        signal.signal(signal.SIGINT, before)
    assert one_pass.running
    go.set()
    one_pass.stop("")
    assert not one_pass.running


def use_for_a_while(window: RowWindow, done: list[bool]) -> None:
    """Use a window in another thread, which does when this returns."""
    using = threading.Event()

    def use() -> None:
        with window._gate:
            using.set()
            time.sleep(0.3)
            done.append(True)

    threading.Thread(target=use).start()
    assert using.wait(60)


def test_rows_are_freed_when_nobody_uses_them(g: dist.DistGraph) -> None:
    tensor = dist.DistTensor((NUM_NODES, 2), torch.float32)
    window, done = tensor.handle.rows.window, list[bool]()
    use_for_a_while(window, done)
    tensor.close()
    assert done
    for call in (window.gather, lambda ids: window.scatter(ids, np.zeros((1, 2), np.float32))):
        with pytest.raises(ClosedError):
            call(np.arange(1))


@own_on_layouts([Layout(1, 0, 0), Layout(2, 1, 0)])
def test_a_job_ends_when_nobody_uses_rows(layout: Job, oracle) -> None:
    path, done = oracle(3), list[bool]()

    def body() -> None:
        g = open_graph(path)
        use_for_a_while(g.ndata["feat"].handle.rows.window, done)

    layout.run(body)
    assert done or layout.comm.rank == 1


def test_the_garbage_collector_does_not_answer_others() -> None:
    """Without threads an iterator that another thread drops leaves its answers to the main thread."""
    after: list[threading.Thread] = []
    owed: list[Callable[[], None]] = []
    world = SimpleNamespace(in_main_thread=owed.append, threads_may_communicate=False)
    items = iter(Prefetch(lambda: iter(range(3)), lambda: after.append(threading.current_thread()), 0, world))
    assert next(items) == 0
    held = [items]
    del items
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert len(owed) == 1 and not after
    owed[0]()
    assert after == [threading.current_thread()]
