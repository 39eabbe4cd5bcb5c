"""Remote rows by both transports: equal rows, repeats, threads, closed windows, damaged requests, the choice."""

import time
from threading import Thread

import numpy as np
import numpy.typing as npt
import pytest
from jobs import run_script
from layouts import REMOTE, WAIT, Job, api, own_on_layouts
from mpi4py import MPI
from worlds import HELD, filled_window, meet, row_values, rows_of

from mpigraph.errors import ClosedError, InvalidArgumentError
from mpigraph.rows.segments import RowPool
from mpigraph.rows.transport import Transport
from mpigraph.rows.trial import choose_transport
from mpigraph.rows.window import RowWindow
from mpigraph.trace import clock, sums

Counts = npt.NDArray[np.int64]


@own_on_layouts(REMOTE)
@pytest.mark.parametrize("stop", ["before", "within"])
def test_a_window_that_its_owner_forgot_raises(layout: Job, stop: str, small_chunks: None) -> None:
    with rows_of(layout, transport="packed") as service:
        world = service.world
        window, kept = filled_window(service, (100,), "f4"), filled_window(service, (), "i8")
        way = service.packed
        if world.is_host and stop == "before":
            way.forget(window)
        world.comm.Barrier()
        if world.is_trainer:
            reader = Thread(target=lambda: None)
            if stop == "before":
                everything = np.arange(len(window))
                for call in (
                    lambda: window.gather(everything, transport=way),
                    lambda: window.scatter(everything, row_values(everything, (100,), "f4")),
                ):
                    with pytest.raises(ClosedError, match=f"rank .* of window {window.number}"):
                        call()
            else:
                reader = Thread(target=read_until_closed, args=(window, way))
            reader.start()
            ids = np.arange(len(kept))
            assert np.array_equal(kept.gather(ids, transport=way), row_values(ids, (), "i8"))
        if world.is_host and stop == "within":
            time.sleep(0.02)
            way.forget(window)
        meet(world, service.hosts.progress)
        if world.is_trainer:
            still_answer(reader)
        meet(world, service.hosts.progress)
        window.close()
        kept.close()


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


def counted(name: str, size: int) -> Counts:
    """A counter of this process, by rank."""
    totals = np.zeros(MPI.COMM_WORLD.size, np.int64)  # earlier jobs of this process may have had more ranks
    for snapshot in sums()[1].values():
        for key, value in snapshot.counts.items():
            if key[0] == name:
                totals[int(key[1])] += value
    return totals[:size]


@own_on_layouts(REMOTE)
def test_what_a_rank_sends_another_receives(layout: Job) -> None:
    names = ("sent_bytes", "received_bytes", "sent_messages", "requests", "answered_ns")
    with rows_of(layout) as service:
        world = service.world
        window = filled_window(service, (100,), "f4")
        before = [counted(name, world.size) for name in names]
        begin = clock()
        world.comm.Barrier()
        remote = np.flatnonzero(~world.is_local)
        ids = (remote[:, None] * HELD + np.arange(50)).ravel()
        if world.is_trainer:
            for _ in range(2):
                window.gather(ids, transport=service.packed)
        meet(world, service.hosts.progress)
        done = [counted(name, world.size) - old for name, old in zip(names, before, strict=True)]
        sent, received, messages, requests, seconds = np.array(world.comm.allgather(done)).swapaxes(0, 1)
        assert np.array_equal(sent, received.T)
        took = 1e9 * max(world.comm.allgather(clock() - begin))
        assert (seconds <= took * requests).all()  # no request takes longer than all of them
        asks = np.zeros((world.size, world.size), np.bool_)
        for trainer in world.trainer_ranks:
            asks[trainer, world.hosts] = world.node_of[world.hosts] != world.node_of[trainer]
        assert np.array_equal(requests, 2 * asks) and np.array_equal(seconds > 0, asks)
        assert (received[asks] >= 2 * 50 * 400).all() and not received[~(asks | asks.T)].any()
        assert np.array_equal(messages, 2 * asks + 2 * asks.T)
        for way in service.transports if world.is_trainer else ():  # of one-sided reads the reader alone knows
            past = [counted(name, world.size).sum() for name in names[1:3]]
            window.gather(ids, transport=way)
            nbytes, asked = (counted(name, world.size).sum() - old for name, old in zip(names[1:3], past, strict=True))
            assert nbytes >= len(ids) * 400 and asked >= len(remote)
        meet(world, service.hosts.progress)
        window.close()


@own_on_layouts(REMOTE)
def test_the_wait_for_rows_begins_after_the_work_meanwhile(layout: Job) -> None:
    with rows_of(layout, transport="packed") as service:
        world = service.world
        choose_transport(service)
        window = filled_window(service, (100,), "f4")
        remote = np.flatnonzero(~world.is_local)
        if world.is_trainer:
            ids = (remote[:, None] * HELD + np.arange(50)).ravel()
            before, begin = counted("answered_ns", world.size), clock()
            window.fetch(ids, RowPool(), lambda: time.sleep(0.2))
            waited = counted("answered_ns", world.size) - before
            assert waited[world.hosts[remote]].all() and waited.max(initial=0) <= 1e9 * (clock() - begin - 0.2)
        meet(world, service.hosts.progress)
        window.close()


@pytest.mark.parametrize("setting", ["auto", "rma", "packed"])
def test_one_transport_is_chosen_for_all(layout: Job, setting: str) -> None:
    with rows_of(layout, transport=setting) as service:
        measured = choose_transport(service)
        name = service.transport.name if service.transport else ""
        assert set(service.world.comm.allgather(name)) == {name}
        if not service.transports:
            assert not name and not measured
        else:
            assert set(measured) == ({"rma", "packed"} if setting == "auto" else {setting})
            assert measured[name] == max(measured.values()) > 0
            assert service.one_sided == (name == "rma")


@api
def test_setting_is_checked(layout: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """By every rank before anything is allocated; the next job starts as usual."""
    monkeypatch.setenv("MPIGRAPH_TRANSPORT", "tcp")
    with pytest.raises(InvalidArgumentError, match=r"transport must be auto, rma or packed \(got 'tcp'\)") as caught:
        layout.run(lambda: None)
    assert caught.value.everywhere
    monkeypatch.delenv("MPIGRAPH_TRANSPORT")
    layout.run(lambda: None)


@pytest.mark.slow
def test_the_choice_is_told_at_info_level(tmp_path, oracle) -> None:
    """A level is named in capitals or not; another name is refused in one line, not by a traceback of each rank."""
    info = {"MPIGRAPH_LOG_LEVEL": "info", "MPIGRAPH_RANKS_PER_NODE": "2"}
    status, output, _ = run_script(tmp_path, oracle(2), "", ranks=4, **info)
    assert status == 0 and output.count("transport: ") == 1, output
    status, output, _ = run_script(tmp_path, oracle(2), "", MPIGRAPH_LOG_LEVEL="loud")
    assert status != 0 and output.count("InvalidArgumentError: log_level must be one of") == 1, output
