"""The trial at start: windows that do not work are not used (each fault alone, MPICH 4.0's own), and what is left."""

import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import clean_environment, mpiexec, run_job, warm_python
from layouts import REMOTE, Job, Layout, own_on_layouts
from mpi4py import MPI
from worlds import meet, row_values, rows_of, simulated_world

from mpigraph.arrays import I64, Array
from mpigraph.config import Config
from mpigraph.errors import CollectiveError, InvalidArgumentError
from mpigraph.mpi.compat import library_version
from mpigraph.rows import segments
from mpigraph.rows.packed import PackedTransport
from mpigraph.rows.rma import RmaTransport
from mpigraph.rows.service import RowService
from mpigraph.rows.transport import RemoteRows
from mpigraph.rows.trial import choose_transport, patience
from mpigraph.rows.window import RowWindow

Fault = Callable[[pytest.MonkeyPatch], None]
Meanwhile = Callable[[], None]


def reads(service: RowService) -> bool:
    """Return whether rows of all hosts are written and read right."""
    world = service.world
    hosts = len(world.hosts)
    window = RowWindow(service, np.arange(hosts + 1) * 50, (3,), "i4")
    ids = np.arange(hosts * 50)
    if world.is_trainer:
        window.scatter(ids, row_values(ids, (3,), "i4"))  # the same from every trainer
    meet(world, service.hosts.progress)
    window.sync()
    right = not world.is_trainer or np.array_equal(window.gather(ids), row_values(ids, (3,), "i4"))
    meet(world, service.hosts.progress)
    window.close()
    return bool(right)


@own_on_layouts(REMOTE)
@pytest.mark.parametrize("faster", ["rma", "packed"])
def test_the_faster_of_two_ways_that_work_reads_rows(layout: Job, faster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slower = PackedTransport if faster == "rma" else RmaTransport
    read = slower.read

    def late(self: Any, window: RowWindow, remote: list[RemoteRows], out: Array, call: Meanwhile) -> None:
        time.sleep(0.1 * (len(remote[0].rows) > 1000))
        read(self, window, remote, out, call)

    monkeypatch.setattr(slower, "read", late)
    with rows_of(layout) as service:
        assert [way.name for way in service.transports] == ["rma", "packed"] and service.one_sided
        rates = choose_transport(service)
        assert set(rates) == {"rma", "packed"} and service.transport.name == faster == max(rates, key=rates.get)
        assert len(set(service.world.comm.allgather(str(rates)))) == 1
        assert service.one_sided == (faster == "rma") and len(service.segments) == 0
        assert reads(service)


def read_a_row_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail as MPICH 4.0 does with memory that does not begin at a multiple of 16."""
    read = RmaTransport.read

    def wrong(self: RmaTransport, window: RowWindow, remote: list[RemoteRows], out: Array, call: Meanwhile) -> None:
        read(self, window, remote, out, call)
        if len(remote[0].rows) < 100:  # single rows alone
            out[remote[0].positions[0]] += 1

    monkeypatch.setattr(RmaTransport, "read", wrong)


def read_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(self: RmaTransport, *_: object) -> None:
        raise MPI.Exception(MPI.ERR_RMA_SYNC)

    monkeypatch.setattr(RmaTransport, "read", raises)


def windows_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail as Open MPI 4.1 does over TCP where ranks have threads."""
    take = segments.Segments.take

    def refused(self: segments.Segments, sizes: I64, remote: bool, what: str) -> segments.Block:
        if remote:
            raise MPI.Exception(MPI.ERR_WIN)
        return take(self, sizes, remote, what)

    monkeypatch.setattr(segments.Segments, "take", refused)


FAULTS = [
    (read_a_row_beyond, r"reading single rows by one-sided Get: row \d+ of rank \d is wrong \(1 of \d+ rows are\)"),
    (read_that_raises, r"(?i)rma"),
    (windows_that_are_refused, r"(?i)win"),
]


@own_on_layouts([Layout(2, 0, 1), Layout(4, 1, 2)])
@pytest.mark.parametrize(("fault", "says"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_fault_is_told_once_and_avoided(
    layout: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: Fault, says: str
) -> None:
    fault(monkeypatch)
    monkeypatch.setattr("mpigraph.rows.trial.get_logger", logging.getLogger)  # one that pytest listens to
    with rows_of(layout) as service:
        assert service.one_sided
        assert list(choose_transport(service)) == ["packed"]
        assert not service.one_sided and isinstance(service.transport, PackedTransport)
        monkeypatch.undo()
        assert reads(service)
        rank = service.world.rank
    assert len(caplog.messages) == (rank == 0)
    for text in caplog.messages:
        assert library_version() in text and re.search(says, text)
    assert not caplog.messages or "remote rows go by messages" in caplog.messages[-1]


@own_on_layouts([Layout(2, 0, 1)])
@pytest.mark.parametrize(("transport", "lines"), [("auto", 1), ("packed", 0)])
def test_windows_that_are_not_even_tried_are_told_once(
    layout: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, transport: str, lines: int
) -> None:
    monkeypatch.setattr("mpigraph.rows.service.distrusts_windows", lambda: True)
    monkeypatch.setattr("mpigraph.rows.service.get_logger", logging.getLogger)
    with rows_of(layout, transport=transport) as service:
        assert not service.one_sided
        rank = service.world.rank
    assert len(caplog.messages) == (lines if rank == 0 else 0)
    assert all("may crash; remote rows go by messages. With OMPI_MCA_osc=ucx" in text for text in caplog.messages)


def read_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(self: PackedTransport, window: RowWindow, remote: object, out: Array, call: Meanwhile) -> None:
        out[:] = 0
        call()

    monkeypatch.setattr(PackedTransport, "read", nothing)


@own_on_layouts([Layout(2, 0, 1)])
@pytest.mark.parametrize(
    ("fault", "transport", "kind", "says"),
    [
        (read_a_row_beyond, "rma", InvalidArgumentError, "'rma' does not work .* is wrong .*: use auto or packed"),
        (read_nothing, "auto", CollectiveError, "does not work on these"),
    ],
)
def test_no_way_left_is_an_error(
    layout: Job, monkeypatch: pytest.MonkeyPatch, fault: Fault, transport: str, kind: type[Exception], says: str
) -> None:
    fault(monkeypatch)
    with rows_of(layout, transport=transport) as service, pytest.raises(kind, match=says) as error:
        choose_transport(service)
    assert error.value.everywhere


@own_on_layouts([Layout(3, 0, 2), Layout(4, 0, 2)])
def test_memory_may_begin_anywhere_where_that_works(layout: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """MPICH 4.0 with UCX reads other rows than those asked for, and says nothing."""
    monkeypatch.setattr(segments, "_ALIGNMENT", 1)
    monkeypatch.setattr(segments, "_SMALL", 0)  # each window has memory of its own
    with rows_of(layout) as service:
        choose_transport(service)
        assert reads(service)
        if library_version().startswith("MPICH Version: 4.0"):
            assert not service.one_sided


@pytest.mark.slow
def test_a_read_that_hangs_ends_the_job_and_says_what_to_set(tmp_path: Path) -> None:
    script = tmp_path / "hang.py"
    script.write_text(
        "import time\n"
        "import mpigraph.distributed as dist\n"
        "from mpigraph.rows.rma import RmaTransport\n"
        "RmaTransport.read = lambda *_: time.sleep(1000)\n"
        "dist.initialize(num_servers=0, ranks_per_node=1, timeout=2)\n"
    )
    done = run_job([*mpiexec(2), *warm_python(), script], clean_environment())
    assert done.status != 0
    assert "in the trial of reading remote rows" in done.stderr and "MPIGRAPH_TRANSPORT=packed" in done.stderr, (
        done.stderr
    )


@pytest.mark.parametrize("timeout", [10.0, 300.0])
def test_the_trial_of_many_ranks_has_more_time(timeout: float) -> None:
    seconds = []
    for nodes, busy in ((2, 0.1), (16, 0.5), (31, 3.0)):  # two trainers on each, which try up to 16 hosts
        world = simulated_world(nodes, 3, 1)
        world.config = Config(timeout=timeout)
        seconds.append(patience(world, busy) * timeout)
    shortest = min(60, timeout)
    assert seconds == pytest.approx([shortest, shortest * 32 * 16 / 240, 3 * shortest * 62 * 16 / 240])
