"""Windows of rows and the locks of their hosts, local and remote, opened to other nodes and not."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
from layouts import ALONE, REMOTE, Job, Layout, own_on_layouts
from mpi4py import MPI
from worlds import WAYS, meet, row_values, rows_of

from mpigraph.errors import ClosedError, CollectiveError, MPIGraphError
from mpigraph.mpi.compat import as_array, check_memory_model
from mpigraph.rows.transport import HostMutex
from mpigraph.rows.window import RowWindow

ROWS = [((0,), "f4"), ((1,), "u1"), ((3,), "u1"), ((), "i8"), ((2, 3), "f2"), ((5,), "u2"), ((2000,), "u1"), ((), "?")]


def segment_sizes(hosts: int) -> list[int]:
    """Host 1 holds nothing."""
    return [0 if h == 1 else 5 + 3 * h for h in range(hosts)]


def test_each_rank_asks_the_hosts_behind_it_first(layout: Job) -> None:
    asked = []

    class Noted:
        def read(self, window, remote, out, meanwhile):
            asked.extend(rows.rank for rows in remote)
            service.transport.read(window, remote, out, meanwhile)

    with rows_of(layout) as service:
        world = service.world
        window = RowWindow(service, np.arange(len(world.hosts) + 1), (), "i8")
        world.comm.Barrier()
        window.gather(np.arange(len(world.hosts)), transport=Noted() if service.transport else None)
        elsewhere = world.hosts[~world.is_local].tolist()
        assert asked == [r for r in elsewhere if r > world.rank] + [r for r in elsewhere if r < world.rank]
        window.close()


@pytest.mark.parametrize("way", WAYS)
def test_rows_are_written_and_read_local_and_remote(layout: Job, way: str, small_chunks: None) -> None:
    with rows_of(layout, transport=way) as service:
        world = service.world
        offsets = np.concatenate([[0], np.cumsum(segment_sizes(len(world.hosts)))]).astype(np.int64)
        total = int(offsets[-1])
        for shape, dtype in ROWS:
            window = RowWindow(service, offsets, shape, dtype)
            assert len(window) == total
            everything = np.arange(total)
            if world.is_trainer:
                assert not window.gather(everything).any()
            meet(world, service.hosts.progress)  # zeros were read before anyone writes
            own = everything[int(np.searchsorted(world.trainer_ranks, world.rank)) :: len(world.trainer_ranks)]
            own = np.random.default_rng(world.rank).permutation(own)
            twice = np.concatenate([own, own])  # the second value wins
            values = np.concatenate([row_values(own + 1, shape, dtype), row_values(own, shape, dtype)])
            if world.is_trainer:
                window.scatter(twice, values)
                window.scatter(own[:0], values[:0])
            meet(world, service.hosts.progress)
            window.sync()
            random = np.random.default_rng(world.rank + 9).integers(0, total, 2 * total)
            requests = (everything, everything[::-1].copy(), own[:0], random, np.full(150, total - 1), random[:1])
            for ids in requests if world.is_trainer else ():
                got = window.gather(ids)
                assert got.dtype == dtype and got.shape == (len(ids), *shape)
                assert np.array_equal(got, row_values(ids, shape, dtype)), (shape, dtype, way)
            if world.is_trainer:
                out = np.empty((3, *shape), dtype)
                assert window.gather(np.array([2, 0, 2]), out) is out
                assert np.array_equal(out, row_values(np.array([2, 0, 2]), shape, dtype))
            for host in np.flatnonzero(world.is_local).tolist():
                held = np.arange(offsets[host], offsets[host + 1])
                assert np.array_equal(window.memory(host), row_values(held, shape, dtype))
                assert (window.host_of(held) == host).all()
            meet(world, service.hosts.progress)
            window.close()
            window.close()
            with pytest.raises(ClosedError):
                window.gather(everything)
            with pytest.raises(ClosedError):
                window.scatter(twice, values)
            with pytest.raises(ClosedError):
                window.memory(0)


def test_a_mutex_excludes(layout: Job) -> None:
    """Read, add, write back: without the lock some additions would be lost."""
    rounds = 40
    with rows_of(layout) as service:
        world, mutex = service.world, service.mutex
        window = RowWindow(service, np.arange(len(world.hosts) + 1), (), "i8")
        local = np.flatnonzero(world.is_local)
        for i in range(rounds * len(local)):
            host = int(local[(i + world.rank) % len(local)])
            with mutex.hold(host):
                window.sync()
                window.memory(host)[:] += 1
                window.sync()
        with pytest.raises(ZeroDivisionError), mutex.hold(int(local[0])):
            raise ZeroDivisionError
        with mutex.hold(int(local[0])):  # the lock was given back
            pass
        window.sync()
        world.comm.Barrier()
        assert [int(window.memory(host)[0]) for host in local] == [rounds * world.node.size] * len(local)
        world.comm.Barrier()
        window.close()
        mutex.close()
        mutex.close()


@own_on_layouts([ALONE, REMOTE[0], Layout(3, 1, 0)])
def test_writers_come_in_the_order_of_their_tickets(layout: Job) -> None:
    """A rank that comes back gets its turn after all that wait."""
    with rows_of(layout) as service:
        world = service.world
        mutex = HostMutex(world)
        ranks = world.node.size
        for host in np.flatnonzero(world.is_local).tolist():
            tickets = [mutex.draw(host), mutex.draw(host)]
            assert sorted(sum(world.node.allgather(tickets), [])) == list(range(2 * ranks))
            first, second = tickets
            while mutex.ahead(host, first):
                time.sleep(1e-4)
            third = mutex.draw(host)
            mutex.release(host, first)
            assert third >= 2 * ranks
            for ticket in (second, third):
                while mutex.ahead(host, ticket):
                    time.sleep(1e-4)
                mutex.release(host, ticket)
            world.node.Barrier()
        mutex.close()


@own_on_layouts([ALONE, REMOTE[0]])
def test_a_lock_that_was_lost_is_an_error(layout: Job) -> None:
    """Its holder notices when it gives the lock back."""
    with rows_of(layout) as service:
        mutex = HostMutex(service.world)
        if service.world.rank == 0:
            with pytest.raises(
                CollectiveError, match="write lock of rank 0 was lost: it is the turn of 9 instead of 0"
            ):
                with mutex.hold(0):
                    as_array(mutex._win.tomemory(), np.int64)[8] = 9
            with pytest.raises(CollectiveError, match="it is the turn of 10 instead of 1"), mutex.hold(0):
                raise AssertionError("held a lock that was lost")
        service.world.comm.Barrier()
        mutex.close()


def test_windows_must_be_memory() -> None:
    apart = SimpleNamespace(Get_attr={MPI.WIN_MODEL: MPI.WIN_SEPARATE}.get)
    with pytest.raises(MPIGraphError, match="keeps windows apart from memory here"):
        check_memory_model(apart)
