"""Far rows by both transports: equal rows, repeats, threads, closed windows, damaged requests, the choice."""

import time
from threading import Thread

import numpy as np
import pytest
from jobs import mpiexec, run, run_script, warm_python
from layouts import FAR, WAIT, Job, api, own_on_layouts, rotated
from mpi4py import MPI
from worlds import KINDS, meet, row_values, rows_of

import mpigraph.distributed as dist
from mpigraph.errors import ClosedError, InvalidArgumentError
from mpigraph.mpi.messages import REQUEST
from mpigraph.rows import packed
from mpigraph.rows.packed import PackedTransport
from mpigraph.rows.selection import choose_transport
from mpigraph.rows.service import RowService
from mpigraph.rows.transport import RemoteRows, Transport, split_requests
from mpigraph.rows.window import RowWindow
from mpigraph.session.context import current

HELD = 300
WRITES = ["write to no row", "write of other rows", "write of too little", "write of a negative size"]
ROWS = [((3,), "u1"), ((), "i8"), ((2, 3), "f2"), ((5,), "u2"), ((100,), "f4"), ((2000,), "u1")]


def filled_window(service: RowService, shape: tuple[int, ...], dtype: str) -> RowWindow:
    world = service.world
    window = RowWindow(service, np.arange(len(world.hosts) + 1) * HELD, shape, dtype)
    if world.is_host:
        mine = np.arange(HELD) + world.host_index * HELD
        window.memory(world.host_index)[:] = row_values(mine, shape, dtype)
    window.sync()
    world.comm.Barrier()
    window.sync()
    return window


def by_packing(service: RowService) -> PackedTransport | None:
    """None on one node."""
    return next((way for way in service.transports if isinstance(way, PackedTransport)), None)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks for each reply, and several requests for each host."""
    monkeypatch.setattr(packed, "CHUNK", 4096)
    monkeypatch.setattr("mpigraph.rows.transport.MAX_ROWS", 70)


@rotated(2)
@pytest.mark.parametrize("kind", KINDS)
def test_both_transports_read_the_same_rows(layout: Job, kind: str, small_chunks: None) -> None:
    with rows_of(layout, window=kind) as service:
        world = service.world
        total = len(world.hosts) * HELD
        random = np.random.default_rng(world.rank)
        wanted = [
            np.arange(total),
            np.arange(total)[::-1].copy(),
            random.integers(0, total, 2 * total),  # repeats
            random.integers(0, total, 20),
            np.full(150, total - 1),
            np.array([total - 1]),
            np.empty(0, np.int64),
        ]
        for shape, dtype in ROWS:
            window = filled_window(service, shape, dtype)
            for way in (service.transports or [None]) if world.is_trainer else []:
                for ids in wanted:
                    assert np.array_equal(window.gather(ids, transport=way), row_values(ids, shape, dtype))
                out = np.zeros((len(wanted[2]), *shape), dtype)
                assert window.gather(wanted[2], out, way) is out
                assert np.array_equal(out, row_values(wanted[2], shape, dtype))
            meet(world, service.progress)
            window.close()


def test_threads_of_a_trainer_read_at_once(layout: Job, small_chunks: None) -> None:
    with rows_of(layout) as service:
        world = service.world
        window, narrow = filled_window(service, (100,), "f4"), filled_window(service, (), "i8")
        wrong: list[str] = []

        def read(which: RowWindow, shape: tuple[int, ...], dtype: str, seed: int) -> None:
            random = np.random.default_rng([world.rank, seed])
            for _ in range(5):
                ids = random.integers(0, len(which), 300)
                for way in service.transports or [None]:
                    if not np.array_equal(which.gather(ids, transport=way), row_values(ids, shape, dtype)):
                        wrong.append(f"{way} {shape}")

        if world.is_trainer:
            threads = [
                Thread(target=read, args=(which, shape, dtype, seed))
                for seed, (which, shape, dtype) in enumerate([(window, (100,), "f4"), (narrow, (), "i8")] * 2)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        meet(world, service.progress)
        assert not wrong
        window.close()
        narrow.close()


@own_on_layouts(FAR)
@pytest.mark.parametrize("stop", ["before", "within"])
def test_a_window_that_its_owner_forgot_raises(layout: Job, stop: str, small_chunks: None) -> None:
    with rows_of(layout) as service:
        world = service.world
        window, kept = filled_window(service, (100,), "f4"), filled_window(service, (), "i8")
        way = by_packing(service)
        if world.is_host and stop == "before":
            way.forget(window.handle)
        world.comm.Barrier()
        if world.is_trainer:
            reader = Thread(target=lambda: None)
            if stop == "before":
                with pytest.raises(ClosedError, match=f"rank .* of window {window.handle.number}"):
                    window.gather(np.arange(len(window)), transport=way)
            else:
                reader = Thread(target=read_until_closed, args=(window, way))
            reader.start()
            ids = np.arange(len(kept))
            assert np.array_equal(kept.gather(ids, transport=way), row_values(ids, (), "i8"))
        if world.is_host and stop == "within":
            time.sleep(0.02)
            way.forget(window.handle)
        meet(world, service.progress)
        if world.is_trainer:
            still_answer(reader)
        meet(world, service.progress)
        window.close()
        kept.close()


class NoFarWindows:
    """MPI in which no window reaches another node."""

    class Win(MPI.Win):
        @classmethod
        def Allocate(cls, *_: object, **__: object) -> MPI.Win:
            raise AssertionError("a window was allocated for all ranks")

        Create = Allocate

    def __getattr__(self, name: str) -> object:
        return getattr(MPI, name)


@own_on_layouts(FAR)
def test_packing_needs_no_windows(layout: Job, small_chunks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are read, written by far and near ranks at once, each whole, and embeddings trained."""
    for module in ("window", "mutex", "service"):
        monkeypatch.setattr(f"mpigraph.rows.{module}.MPI", NoFarWindows())
    with rows_of(layout, transport="packed") as service:
        world = service.world
        choose_transport(service)
        assert service.kind == "node" and [way.name for way in service.transports] == ["packed"]
        for shape, dtype in ROWS[::2]:
            window = filled_window(service, shape, dtype)
            ids = np.arange(len(window))
            if world.is_trainer:
                assert np.array_equal(window.gather(ids), row_values(ids, shape, dtype))
            meet(world, service.progress)
            random = np.random.default_rng(world.rank)
            for _ in range(2 if world.is_trainer else 0):
                mine = random.permutation(ids)
                twice = np.concatenate([mine[: HELD // 2], mine])  # the last one wins
                values = np.full((len(twice), *shape), 99, dtype)
                values[HELD // 2 :] = world.rank + 1
                window.scatter(twice, values)
            meet(world, service.progress)
            window.sync()
            found = window.gather(ids).reshape(len(ids), -1) if world.is_trainer else np.zeros((1, 1), dtype)
            assert (found == found[:, :1]).all()
            assert set(found[:, 0].tolist()) <= {0, *(world.trainer_ranks + 1).tolist()}
            meet(world, service.progress)
            window.close()


@own_on_layouts(FAR)
def test_a_write_to_a_window_that_its_owner_forgot_raises(layout: Job) -> None:
    with rows_of(layout, transport="packed") as service:
        world = service.world
        window = filled_window(service, (), "i8")
        if world.is_host:
            by_packing(service).forget(window.handle)
        world.comm.Barrier()
        if world.is_trainer:
            with pytest.raises(ClosedError, match=f"rank .* of window {window.handle.number}"):
                window.scatter(np.arange(len(window)), np.zeros(len(window), np.int64))
        meet(world, service.progress)
        window.close()


def read_until_closed(window: RowWindow, way: Transport) -> None:
    ids = np.arange(len(window))
    while True:
        try:
            window.gather(ids, transport=way)
        except ClosedError:
            return


def still_answer(reader: Thread) -> None:
    reader.join(WAIT)
    assert not reader.is_alive()


@own_on_layouts(FAR)
@rotated(2)
@pytest.mark.parametrize("damage", ["short", "window", "row", "negative", "width", "count", "negative count", *WRITES])
def test_damaged_requests_get_an_empty_reply(layout: Job, damage: str) -> None:
    with rows_of(layout) as service:
        world = service.world
        window = filled_window(service, (), "i8")
        way = by_packing(service)
        if world.is_trainer:
            number = window.handle.number
            words = {
                "short": [number],
                "window": [999, 1, 8, 0, 0],
                "row": [number, 1, 8, 0, HELD],
                "negative": [number, 1, 8, 0, -1],
                "width": [number, 1, 3, 0, 0],
                "count": [number, 2, 8, 0, 0],
                "negative count": [number, -2, 8, 0, 0],
                "write to no row": [number, 1, 8, 8, HELD, 1],
                "write of other rows": [number, 1, 8, 16, 0, 1, 1],
                "write of too little": [number, 2, 8, 8, 0, 1, 1],
                "write of a negative size": [number, 1, 8, -8, 0, 1],
            }[damage]
            comm, answer, status = way.server.comm, np.ones(1, np.int64), MPI.Status()
            owner = int(world.hosts[np.flatnonzero(~world.near)[0]])
            comm.Send(np.array([77, *words], np.int64), owner, REQUEST)
            comm.Recv(answer, owner, 77, status)
            assert status.Get_count(MPI.BYTE) == 0
            ids = np.arange(len(window))
            assert np.array_equal(window.gather(ids, transport=way), row_values(ids, (), "i8"))
        meet(world, service.progress)
        window.close()


@own_on_layouts(FAR)
def test_traffic_is_counted(layout: Job) -> None:
    with rows_of(layout) as service:
        world = service.world
        window = filled_window(service, (100,), "f4")
        far = np.flatnonzero(~world.near)
        if world.is_trainer:
            ids = (far[:, None] * HELD + np.arange(50)).ravel()
            for way in service.transports:
                before = way.traffic.messages, way.traffic.bytes_received
                window.gather(ids, transport=way)
                assert way.traffic.messages - before[0] >= len(far)
                assert way.traffic.bytes_received - before[1] >= len(ids) * 400
        meet(world, service.progress)
        window.close()


@pytest.mark.parametrize("setting", ["auto", "rma", "packed"])
def test_one_transport_is_chosen_for_all(layout: Job, setting: str) -> None:
    with rows_of(layout, transport=setting) as service:
        measured = choose_transport(service)
        name = service.transport.name if service.transport else ""
        assert set(service.world.comm.allgather(name)) == {name}
        if not service.transports:
            assert not name and not measured
        elif setting == "auto":
            assert set(measured) == {"rma", "packed"}
            assert measured[name] == max(measured.values()) > 0
        else:
            assert name == setting and not measured


@own_on_layouts(FAR)
@pytest.mark.parametrize("transport", ["rma", "packed"])
def test_a_job_trains_with_each_transport(layout: Job, oracle, monkeypatch, transport: str) -> None:
    monkeypatch.setenv("MPIGRAPH_TRANSPORT", transport)
    path = oracle(3)

    def body() -> None:
        g = dist.DistGraph("oracle", part_config=path)
        world = current().world
        chosen = current().store.rows.transport
        assert chosen.name == transport and world.num_nodes > 1
        every = np.arange(g.num_nodes())
        assert np.array_equal(g.ndata["feat"][every][:, 0].numpy(), g.ndata["orig"][every].numpy())
        _, dst = g.find_edges(np.arange(g.num_edges()))
        assert np.array_equal(np.bincount(dst.numpy(), minlength=len(every)), g.in_degrees(every).numpy())

    layout.run(body)


@api
def test_setting_is_checked(layout: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """By every rank before anything is allocated; the next job starts as usual."""
    monkeypatch.setenv("MPIGRAPH_TRANSPORT", "tcp")
    with pytest.raises(InvalidArgumentError, match=r"transport must be auto, rma or packed \(got 'tcp'\)") as caught:
        layout.run(lambda: None)
    assert caught.value.everywhere
    monkeypatch.delenv("MPIGRAPH_TRANSPORT")
    layout.run(lambda: None)


@own_on_layouts(FAR)
@pytest.mark.parametrize("bound", ["requests", "bytes"])
def test_requests_taken_in_at_once_are_bounded(
    layout: Job, bound: str, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five threads of each trainer ask each host before it looks; all are answered."""
    largest = 8 * 4 + 70 * 4
    monkeypatch.setattr(
        packed, "_MOST_REQUESTS" if bound == "requests" else "_MOST_BYTES", 2 if bound == "requests" else largest
    )
    with rows_of(layout, transport="packed") as service:
        world = service.world
        window = filled_window(service, (100,), "f4")
        server = by_packing(service).server
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
        meet(world, service.progress)
        assert not wrong and all(held <= 2 * largest for _, held in seen)
        assert bound == "bytes" or all(tasks <= 2 for tasks, _ in seen)
        window.close()


def test_requests_are_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpigraph.rows.transport.MAX_ROWS", 3)
    wanted = [RemoteRows(5, 9, np.arange(7), np.arange(7)), RemoteRows(6, 9, np.arange(2), np.arange(2))]
    sizes = [[(rows.rank, len(rows.rows)) for rows in requests] for requests in split_requests(wanted)]
    assert sizes == [[(5, 3), (6, 2)], [(5, 3)], [(5, 1)]]


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


@pytest.mark.slow
def test_the_choice_is_told_at_info_level(tmp_path, oracle) -> None:
    """A level is named in capitals or not; another name is refused in one line, not by a traceback of each rank."""
    info = {"MPIGRAPH_LOG_LEVEL": "info", "MPIGRAPH_RANKS_PER_NODE": "2"}
    status, output, _ = run_script(tmp_path, oracle(2), "", ranks=4, **info)
    assert status == 0 and output.count("transport: ") == 1, output
    status, output, _ = run_script(tmp_path, oracle(2), "", MPIGRAPH_LOG_LEVEL="loud")
    assert status != 0 and output.count("InvalidArgumentError: log_level must be one of") == 1, output
