"""Rows of sources that take time are read ahead: early, once, and into memory that nothing else uses."""

import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from batches import digest
from layouts import ALONE, REMOTE, WAIT, Job, Layout, on_all, own_on_layouts
from oracle import NUM_NODES, open_graph
from slow_rows import Disk, Slow, slow_sources

import mpigraph.distributed as dist
from mpigraph.arrays import I64
from mpigraph.dataloading import NeighborSampler
from mpigraph.errors import StorageError
from mpigraph.rows import lookahead, window
from mpigraph.rows.lookahead import CachedRows, UpcomingReads
from mpigraph.session.context import Session
from mpigraph.session.control import Operation

ROW = 3 * 4  # bytes of a row of "feat"
HINTS = 4 * NUM_NODES  # bytes that a cache takes whatever it keeps
FEW = HINTS + 14 * (ROW + 12)
NODES = [ALONE, Layout(2, 0, 0), Layout(2, 1, 0), Layout(2, 0, 1), Layout(3, 0, 2), Layout(4, 0, 2), Layout(4, 1, 2)]
OPTIONS: list[dict[str, Any]] = [
    {"cache": "auto"},
    {"cache": "auto", "lookahead": 1},
    {"cache": 0, "lookahead": 3},
    {"cache": FEW},
    {"cache": FEW, "lookahead": 1},
    {"cache": FEW, "lookahead": 0},
    {"cache": FEW, "lookahead": 100},
    {"cache": None},
    {"cache": "1MiB", "lookahead": 2},
]


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The sources of "feat" in this process, from the next open graph on; neighbours are not read with a row."""
    monkeypatch.setenv("MPIGRAPH_DISK_GAP", "0")
    sources: list[Slow] = []
    slow_sources(monkeypatch, sources, Disk)
    return sources


@pytest.fixture
def small_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage for each minibatch."""
    monkeypatch.setattr(lookahead, "_FETCHED_TOGETHER", -1)


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
        self.cache = caches[self.rows.number]
        self.upcoming = UpcomingReads(self.rows.window)
        self.cached = CachedRows(self.rows, self.cache, self.upcoming, session.pool)

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


@own_on_layouts([ALONE])
def test_the_next_minibatch_is_read_while_one_is_used(layout: Job, oracle, disks: list[Disk], small_stages) -> None:
    """And not what the cache has, or this minibatch, even if the cache keeps nothing."""

    def body() -> None:
        g = open_graph(oracle(3))
        values, disk = values_of(g).numpy(), disks[0]
        batches = np.random.default_rng(5).integers(0, NUM_NODES, (6, 30))
        for nbytes in (HINTS, 1 << 20):
            reader = Reader(g, nbytes)
            disk.begun.clear()
            for batch, ids in enumerate(batches):
                reader.announce(batch, ids)
            for batch, ids in enumerate(batches):
                assert (reader.read() == values[ids]).all()
                have = batches[batch] if nbytes == HINTS else batches[: batch + 1]
                wanted = [np.setdiff1d(ids, have) for ids in batches[batch + 1 : batch + 2]]
                assert [rows.tolist() for rows in disk.begun[batch + 1 :]] == [rows.tolist() for rows in wanted]
            reader.close()

    layout.run(body)


@own_on_layouts([ALONE])
def test_rows_beside_missing_ones_are_read_with_them(layout: Job, oracle, disks: list[Disk], small_stages, monkeypatch):
    """If a minibatch ahead reads them, none later than what fills the cache."""
    monkeypatch.setenv("MPIGRAPH_DISK_GAP", str(3 * ROW + 1))

    def body() -> None:
        g = open_graph(oracle(3))
        values, disk = values_of(g).numpy(), disks[0]
        reader = Reader(g, 1 << 20, ahead=40)
        for batch, ids in enumerate([[5, 20, 60], [30], [6, 8, 9, 23, 60], [4, 17, 16], [5, 6, 50]]):
            reader.announce(batch, np.array(ids))
        for _ in range(5):
            ids = reader.upcoming.reads[0].ids
            assert (reader.read() == values[ids]).all()
        begun = [rows.tolist() for rows in disk.begun]
        assert begun[:5] == [[4, 5, 6, 8, 17, 20, 23, 60], [30], [9], [16], [50]]
        reader.close()
        for nbytes in (HINTS + 24, FEW, 2 * FEW, 1 << 20):  # and whatever is kept, rows are right
            reader = Reader(g, nbytes, ahead=8)
            ids_of = list(np.random.default_rng(nbytes).integers(0, NUM_NODES, (40, 9)))
            for batch, ids in enumerate(ids_of):
                reader.announce(batch, ids)
                if batch >= 8:
                    assert (reader.read() == values[ids_of[batch - 8]]).all()
                if batch == 20:  # the epoch is left
                    reader.cached.clear()
                    reader.upcoming.clear()
                    break
            for batch, ids in enumerate(ids_of[:10], 21):
                reader.announce(batch, ids)
            for ids in ids_of[:10]:
                assert (reader.read() == values[ids]).all()
            kept = reader.cache.slots.row_of[: reader.cache.used]
            kept = kept[kept >= 0]
            assert len(np.unique(kept)) == len(kept)
            reader.close()

    layout.run(body)


@own_on_layouts([ALONE])
def test_rows_that_come_late_overwrite_nothing(
    layout: Job, oracle, disks: list[Disk], small_stages, monkeypatch
) -> None:
    monkeypatch.setattr("mpigraph.rows.pool._SMALL", 1)

    def body() -> None:
        g = open_graph(oracle(3))
        values, disk, pool = values_of(g).numpy(), disks[0], g.session.pool
        reader = Reader(g, HINTS)
        batches = np.random.default_rng(6).permutation(NUM_NODES)[:60].reshape(3, 20)
        for batch, ids in enumerate(batches):
            reader.announce(batch, ids)
        disk.held = 1
        assert (reader.read() == values[batches[0]]).all()
        assert len(disk.begun) == 2 and disk.threads[1].is_alive()
        reader.cached.clear()
        reader.upcoming.clear()
        arrays = [pool.empty((20, 3), np.float32) for _ in range(8)]
        for array in arrays:
            array[:] = 7
        disk.held = 1 << 30
        reader.announce(3, batches[2])
        assert (reader.read() == values[batches[2]]).all()
        disk.may_read.set()
        for thread in disk.threads:
            thread.join()
        assert all((array == 7).all() for array in arrays)
        reader.close()

    layout.run(body)


@own_on_layouts(NODES)
def test_minibatches_are_the_same(layout: Job, oracle, disks: list[Disk], monkeypatch: pytest.MonkeyPatch) -> None:
    path = oracle(3)

    def body() -> None:
        g = open_graph(path)
        size, values = g.session.num_trainers, values_of(g)
        plain = loader_of(g, features=[], num_prefetch=0)
        expected = [[digest(batch) for batch in plain] for _ in range(2)]
        plain.close()
        for number, options in enumerate(OPTIONS):
            monkeypatch.setattr(lookahead, "_FETCHED_TOGETHER", (-1, 100, 4 << 20)[number % 3])
            g.barrier()
            for disk in disks:
                disk.reads[:] = 0
            g.barrier()
            loader = loader_of(g, num_prefetch=(0, 2, 1)[number // 3], **options)
            for epoch in range(2):
                found = []
                for batch in loader:
                    assert torch.equal(batch[2][0].srcdata["feat"], values[batch[0]])
                    found.append(digest(batch))
                assert found == expected[epoch]
            g.barrier()
            if number < 2:  # the cache has slots for all rows: each trainer reads one once, here or there
                most = max((int(disk.reads.max(initial=0)) for disk in disks), default=0)
                on_all(g.session.world.trainers, most <= size, f"{options}: {most} reads")
            loader.close()
        assert threading.active_count() < 50

    layout.run(body)


@own_on_layouts([Layout(2, 0, 0), Layout(3, 1, 0)])
def test_a_row_that_another_trainer_kept_meanwhile_is_not_kept_twice(
    layout: Job, oracle, disks: list[Disk], small_stages
) -> None:
    def body() -> None:
        g = open_graph(oracle(3))
        values, rank, trainers = values_of(g).numpy(), g.rank(), g.session.world.trainers
        rows = np.arange(20)
        for slots in (NUM_NODES, 40):  # all that was read is kept; or what is read soonest
            reader = Reader(g, HINTS + 2 * slots * (ROW + 12))
            assert reader.cache.per_trainer == slots
            if rank == 1:
                reader.announce(0, np.arange(30, 70))
                reader.announce(1, rows)
                reader.read()  # and begins to read the rows
            g.barrier()
            if rank == 0:
                reader.announce(0, rows)
                assert (reader.read() == values[rows]).all()
            g.barrier()
            if rank == 1:
                assert (reader.read() == values[rows]).all()
            on_all(trainers, reader.cache.used == (20, 40)[rank], str(reader.cache.used))
            reader.close()

    layout.run(body)


@own_on_layouts([layout for layout in REMOTE if layout.ranks == 2])
def test_hosts_of_other_nodes_read_ahead(layout: Job, oracle, disks: list[Disk], small_stages) -> None:
    """And nobody waits for what they send to a read that was dropped."""

    def body() -> None:
        g = open_graph(oracle(3))
        values, rank = values_of(g).numpy(), g.rank()
        comm, offsets = g.session.world.trainers, g.ndata["feat"].rows.window.offsets
        other = np.arange(*offsets[1 - rank : 3 - rank])
        reader = Reader(g, HINTS)
        for dropped in (False, True):
            g.barrier()
            for disk in disks:
                disk.reads[:] = 0
            g.barrier()
            for batch in range(2):
                reader.announce(2 * dropped + batch, other[batch::2])
            assert (reader.read() == values[other[::2]]).all()
            comm.Barrier()
            end = time.monotonic() + WAIT
            while not (disks[0].reads == 1).all() and time.monotonic() < end:  # this rank's, by the other one
                time.sleep(0.01)
            on_all(comm, bool((disks[0].reads == 1).all()))
            if dropped:
                reader.cached.clear()
                reader.upcoming.clear()
            else:
                assert (reader.read() == values[other[1::2]]).all()
        reader.close()

    layout.run(body)


@own_on_layouts([Layout(2, 0, 1), Layout(4, 0, 2)])  # tests run on no server, so trainers host
def test_the_error_of_another_hosts_disk_is_the_askers(layout: Job, oracle, disks: list[Disk], small_stages) -> None:
    """It names the rank, and this one's later reads are right; the host goes on, and so do its answers to others."""

    def body() -> None:
        g = open_graph(oracle(3))
        values, window = values_of(g), g.ndata["feat"].rows.window
        for disk in disks:
            disk.bad = set(range(0, len(disk.reads), 3))
        g.barrier()
        begins = window.offsets[:-1][~window.world.is_local]
        everything = torch.arange(NUM_NODES)
        for first in begins.tolist():
            for ids in ([first], [first, 1 + first], everything):
                with pytest.raises(StorageError, match=r"feat.h5: row \d+: Input/output error"):
                    g.ndata["feat"][torch.as_tensor(ids)]
            assert torch.equal(g.ndata["feat"][torch.tensor([first + 1])], values[[first + 1]])
        g.barrier()
        for disk in disks:
            disk.bad = set()
        g.barrier()
        assert torch.equal(g.ndata["feat"][everything], values)

    layout.run(body)


@own_on_layouts([ALONE, Layout(2, 1, 0), Layout(2, 0, 1), Layout(4, 1, 2)])
def test_rows_that_cannot_be_read_are_one_error(layout: Job, oracle, disks: list[Disk], small_stages) -> None:
    def body() -> None:
        g = open_graph(oracle(3))
        values = values_of(g)
        for number, (num_prefetch, cache) in enumerate([(0, "auto"), (2, FEW), (1, 0)]):
            loader = loader_of(g, num_prefetch=num_prefetch, cache=cache, lookahead=3)
            for disk in disks:
                disk.bad = set(range(number, len(disk.reads), 5))
            done = 0
            with pytest.raises(StorageError, match=r"feat.h5: row \d+: Input/output error"):
                for _ in loader:
                    done += 1
            for disk in disks:
                disk.bad = set()
            steps = 0
            for batch in loader:
                assert torch.equal(batch[2][0].srcdata["feat"], values[batch[0]])
                steps += 1
            assert done < steps == len(loader)
            loader.close()

    layout.run(body)


@own_on_layouts([ALONE, Layout(2, 0, 1), Layout(4, 1, 2)])
def test_loaders_that_are_left_leave_nothing_behind(layout: Job, oracle, disks: list[Disk], small_stages) -> None:
    """Several at once, left by break, dropped, closed, begun anew; and their tickets end."""

    def body() -> None:
        g = open_graph(oracle(3))
        values = values_of(g)
        before = {thread.name for thread in threading.enumerate()}
        for num_prefetch in (0, 2):
            loaders = [loader_of(g, num_prefetch=num_prefetch, seed=seed) for seed in range(3)]
            for step, batches in enumerate(zip(*loaders, strict=True)):
                for batch in batches:
                    assert torch.equal(batch[2][0].srcdata["feat"], values[batch[0]])
                if step == 2:
                    break
            loaders.pop()
            left = iter(loaders[0])
            next(left)
            for batch in loaders[0]:
                assert torch.equal(batch[2][0].srcdata["feat"], values[batch[0]])
            next(iter(loaders[1]))
            for loader in loaders:
                loader.close()
            del loaders, loader, left
        g.barrier()
        for thread in threading.enumerate():
            if thread.name not in before:
                thread.join(WAIT)
                assert not thread.is_alive(), thread.name

    layout.run(body)


@own_on_layouts([ALONE, Layout(2, 0, 1), Layout(3, 1, 0)])
def test_a_loader_goes_on_from_its_state(layout: Job, oracle, disks: list[Disk], small_stages) -> None:
    def body() -> None:
        g = open_graph(oracle(3))
        values = values_of(g)
        for num_prefetch in (0, 2):
            loader = loader_of(g, num_prefetch=num_prefetch)
            whole = [digest(batch) for _ in range(2) for batch in loader]
            loader.close()
            loader, found = loader_of(g, num_prefetch=num_prefetch), []
            steps = min(g.session.world.trainers.allgather(len(loader))) // 2
            for step, batch in enumerate(loader, 1):
                found.append(digest(batch))
                if step == steps:
                    state = loader.state_dict()
                    break
            loader.close()
            loader = loader_of(g, num_prefetch=num_prefetch)
            loader.load_state_dict(state)
            for _ in range(2):
                for batch in loader:
                    assert torch.equal(batch[2][0].srcdata["feat"], values[batch[0]])
                    found.append(digest(batch))
            assert found == whole
            loader.close()

    layout.run(body)


FILES = {str(Path(str(module.__file__))) for module in (lookahead, window)}


class _Interrupts:
    """Raises KeyboardInterrupt at the n-th line of some files that this thread executes."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


@pytest.mark.slow
@own_on_layouts([ALONE])
def test_interrupts_between_any_two_lines(
    layout: Job, oracle, disks: list[Disk], small_stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next pass gives the right rows, and each ticket ends."""
    monkeypatch.setattr("mpigraph.rows.pool._SMALL", 1)

    def body() -> int:
        g = open_graph(oracle(3))
        values = values_of(g)
        interrupts = 0
        for cache in (FEW, "auto"):
            loader = loader_of(g, num_prefetch=0, cache=cache, lookahead=2, batch_size=30)
            for at in range(1, 2000, 7):
                tracer = _Interrupts(at)
                sys.settrace(tracer)
                try:
                    for batch in loader:
                        assert torch.equal(batch[2][0].srcdata["feat"], values[batch[0]])
                except KeyboardInterrupt:
                    interrupts += 1
                finally:
                    sys.settrace(None)
                if tracer.left > 0:
                    break
                for batch in loader:
                    assert torch.equal(batch[2][0].srcdata["feat"], values[batch[0]])
            loader.close()
        for thread in disks[0].threads:
            thread.join()
        return interrupts

    interrupts = layout.run(body)
    assert Session.running is None and interrupts > 50
