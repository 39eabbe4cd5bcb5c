"""Rows that their host packs: without windows, damaged requests, bounds, an idle host."""

import time
from threading import Thread

import numpy as np
import pytest
from jobs import mpiexec, run, warm_python
from layouts import REMOTE, WAIT, Job, needs_threads, own_on_layouts
from mpi4py import MPI
from worlds import HELD, filled_window, meet, row_values, rows_of

from mpigraph.mpi import hosts as requests
from mpigraph.mpi.hosts import REQUEST, Kind
from mpigraph.rows.trial import choose_transport

ROWS = [((3,), "u1"), ((), "i8"), ((2, 3), "f2"), ((5,), "u2"), ((100,), "f4"), ((2000,), "u1")]


class NoRemoteWindows:
    """MPI in which no window reaches another node."""

    class Win(MPI.Win):
        @classmethod
        def Allocate(cls, *_: object, **__: object) -> MPI.Win:
            raise AssertionError("a window was allocated for all ranks")

        Create = Allocate

    def __getattr__(self, name: str) -> object:
        return getattr(MPI, name)


@own_on_layouts(REMOTE)
def test_packing_needs_no_windows(layout: Job, small_chunks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are read, written by remote and local ranks at once, each whole, and embeddings trained."""
    for module in ("window", "transport", "segments"):
        monkeypatch.setattr(f"mpigraph.rows.{module}.MPI", NoRemoteWindows())
    with rows_of(layout, transport="packed") as service:
        world = service.world
        choose_transport(service)
        assert not service.one_sided and [way.name for way in service.transports] == ["packed"]
        for shape, dtype in ROWS[::2]:
            window = filled_window(service, shape, dtype)
            ids = np.arange(len(window))
            if world.is_trainer:
                assert np.array_equal(window.gather(ids), row_values(ids, shape, dtype))
            meet(world, service.hosts.progress)
            random = np.random.default_rng(world.rank)
            for _ in range(2 if world.is_trainer else 0):
                own = random.permutation(ids)
                twice = np.concatenate([own[: HELD // 2], own])  # the last one wins
                values = np.full((len(twice), *shape), 99, dtype)
                values[HELD // 2 :] = world.rank + 1
                window.scatter(twice, values)
            meet(world, service.hosts.progress)
            window.sync()
            stored = window.gather(ids).reshape(len(ids), -1) if world.is_trainer else np.zeros((1, 1), dtype)
            assert (stored == stored[:, :1]).all()
            assert set(stored[:, 0].tolist()) <= {0, *(world.trainer_ranks + 1).tolist()}
            meet(world, service.hosts.progress)
            window.close()


@own_on_layouts(REMOTE)
def test_damaged_requests_get_an_empty_reply(layout: Job) -> None:
    with rows_of(layout) as service:
        world = service.world
        window = filled_window(service, (), "i8")
        way = service.packed
        if world.is_trainer:
            number = window.number
            damaged = {
                "short": [Kind.READ, number],
                "window": [Kind.READ, 999, 1, 8, 0],
                "row": [Kind.READ, number, 1, 8, HELD],
                "negative": [Kind.READ, number, 1, 8, -1],
                "width": [Kind.READ, number, 1, 3, 0],
                "count": [Kind.READ, number, 2, 8, 0],
                "negative count": [Kind.READ, number, -2, 8, 0],
                "write to no row": [Kind.WRITE, number, 1, 8, HELD, 1],
                "write of other rows": [Kind.WRITE, number, 1, 8, 0, 1, 1],
                "write of too little": [Kind.WRITE, number, 2, 8, 0, 1, 1],
            }
            comm, answer, status = way.hosts.comm, np.ones(1, np.int64), MPI.Status()
            owner = int(world.hosts[np.flatnonzero(~world.is_local)[0]])
            ids = np.arange(len(window))
            for damage, (kind, *words) in damaged.items():
                comm.Send(np.array([kind * requests._TAGS + 77, *words], np.int64), owner, REQUEST)
                comm.Recv(answer, owner, 77, status)
                assert status.Get_count(MPI.BYTE) == 0, damage
                assert np.array_equal(window.gather(ids, transport=way), row_values(ids, (), "i8")), damage
        meet(world, service.hosts.progress)
        window.close()


@needs_threads
@own_on_layouts(REMOTE)
@pytest.mark.parametrize("bound", ["requests", "bytes"])
def test_requests_taken_in_at_once_are_bounded(
    layout: Job, bound: str, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five threads of each trainer ask each host before it looks; all are answered."""
    largest = 8 * 4 + 70 * 4  # the request: tag, header, rows
    monkeypatch.setattr(
        requests, "_MOST_REQUESTS" if bound == "requests" else "_MOST_BYTES", 2 if bound == "requests" else largest
    )
    with rows_of(layout, transport="packed") as service:
        world = service.world
        window = filled_window(service, (100,), "f4")
        server = service.hosts
        advance, seen, wrong = server.progress, [], []

        def progress() -> bool:
            moved = advance()
            seen.append((len(server.tasks), server.held))
            return moved

        def read() -> None:
            ids = np.random.default_rng(world.rank).permutation(len(window))
            wrong.extend([] if np.array_equal(window.gather(ids), row_values(ids, (100,), "f4")) else [world.rank])

        monkeypatch.setattr(server, "progress", progress)
        threads = [Thread(target=read) for _ in range(5 if world.is_trainer else 0)]
        for thread in threads:
            thread.start()
        if not world.is_trainer:
            time.sleep(0.1)
        for thread in threads:
            thread.join(WAIT)
            assert not thread.is_alive()
        meet(world, service.hosts.progress)
        assert not wrong and all(held <= 2 * largest for _, held in seen)
        assert bound == "bytes" or all(tasks <= 2 for tasks, _ in seen)
        window.close()


@pytest.mark.slow
def test_an_idle_server_leaves_its_core_to_others(tmp_path) -> None:
    """One server, one trainer that does nothing for some seconds: the server's process time in them."""
    script = tmp_path / "idle.py"
    script.write_text(
        "import os, time\n"
        "from mpi4py import MPI\n"  # starts MPI, which the library's import does not
        "import mpigraph.distributed as dist\n"
        "pids = MPI.COMM_WORLD.allgather(os.getpid())\n"
        "dist.initialize(num_servers=1)\n"
        "def used():\n"
        "    fields = open(f'/proc/{pids[1]}/stat').read().rsplit(')', 1)[1].split()\n"
        "    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')\n"
        "time.sleep(1)\n"
        "before = used()\n"
        "time.sleep(5)\n"
        "print('server seconds', used() - before)\n"
    )
    output = run(*mpiexec(2), *warm_python(), script)
    assert float(output.split()[-1]) < 0.03 * 5, output
