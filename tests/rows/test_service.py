"""A third transport: a class and a line in the list make it a setting, measured, and what reads a job's remote rows."""

from collections.abc import Callable

import numpy as np
import pytest
from layouts import Job, api
from mpi4py import MPI
from worlds import rows_of

import mpigraph.distributed as dist
from mpigraph.arrays import Array
from mpigraph.config import CHOICES
from mpigraph.mpi.world import World
from mpigraph.rows import service
from mpigraph.rows.selection import choose_transport
from mpigraph.rows.service import TRANSPORTS
from mpigraph.rows.transport import RemoteRows, Transport, WindowHandle
from mpigraph.session.context import current


class RowByRow(Transport):
    """One ``Get`` for each row; remembers what it was told."""

    name = "rowbyrow"
    how = "one by one"
    instances: "list[RowByRow]" = []  # noqa: RUF012

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.open: set[int] = set()
        self.windows = self.reads = self.polls = 0
        self.closed = False
        self.instances.append(self)

    def register(self, window: WindowHandle) -> None:
        assert (window.words is not None) == self.world.is_host
        self.windows += 1
        self.open.add(window.number)

    def forget(self, window: WindowHandle) -> None:
        self.open.remove(window.number)

    def read(self, window: WindowHandle, remote: list[RemoteRows], out: Array, meanwhile: Callable[[], None]) -> None:
        self.reads += 1
        meanwhile()
        size = window.row_bytes
        for rows in remote:
            for row, position in zip(rows.rows.tolist(), rows.positions.tolist(), strict=True):
                place = [out[position].view(np.uint8), size, MPI.BYTE]
                window.win.Get(place, rows.rank, target=[window.begin + row * size, size, MPI.BYTE])
                self.traffic.sent(rows.rank, 0)
            window.win.Flush(rows.rank)
            self.traffic.received(rows.rank, len(rows.rows) * size)

    def progress(self) -> bool:
        self.polls += 1
        return False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def third(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TRANSPORTS", (*TRANSPORTS, RowByRow))
    monkeypatch.setattr(RowByRow, "instances", [])
    monkeypatch.setitem(CHOICES, "transport", ("auto", *(each.name for each in service.TRANSPORTS)))


@api
def test_a_job_reads_through_a_third_transport(
    layout: Job, oracle, third: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPIGRAPH_TRANSPORT", "rowbyrow")
    path = oracle(3)

    def body() -> None:
        g = dist.DistGraph("oracle", part_config=path)
        world, rows = current().world, current().store.rows
        before = [way.traffic.bytes_received for way in rows.transports]  # tried at start
        every = np.arange(g.num_nodes())
        assert np.array_equal(g.ndata["feat"][every][:, 0].numpy(), g.ndata["orig"][every].numpy())
        _, dst = g.find_edges(np.arange(g.num_edges()))
        assert np.array_equal(np.bincount(dst.numpy(), minlength=len(every)), g.in_degrees(every).numpy())
        t = dist.DistTensor((g.num_nodes(),), g.ndata["orig"].dtype)
        if g.rank() == 0:
            t[every] = g.ndata["orig"][every]
        g.barrier()
        assert np.array_equal(t[every].numpy(), g.ndata["orig"][every].numpy())
        if world.all_local:
            assert rows.transports == () and rows.transport is None and rows.traffic.messages == 0
        else:
            assert isinstance(rows.transport, RowByRow)
            assert rows.transport.reads > 0 and rows.traffic.bytes_received > 0
            read = [way.traffic.bytes_received - old for way, old in zip(rows.transports, before, strict=True)]
            assert [way.name for way, nbytes in zip(rows.transports, read, strict=True) if nbytes] == ["rowbyrow"]

    layout.run(body)
    for way in RowByRow.instances:
        assert way.windows > 0 and not way.open and way.closed
        assert way.polls > 0 or not way.world.is_host  # a server's loop and a trainer's thread poll alike
    several = 0 < layout.layout.ranks_per_node < layout.comm.size
    assert len(RowByRow.instances) == several


@api
def test_a_third_transport_is_measured(layout: Job, third: None) -> None:
    with rows_of(layout, transport="auto") as rows:
        measured = choose_transport(rows)
        assert set(measured) == ({"rma", "packed", "rowbyrow"} if rows.transports else set())


def test_every_transport_has_a_name_of_its_own() -> None:
    names = [transport.name for transport in TRANSPORTS]
    assert len(set(names)) == len(names) and "auto" not in names
