"""How the tests run: ``mpiexec -n 4 python -m pytest`` (or on fewer ranks, or plain ``pytest``).

A test with the fixture ``comm`` runs on exactly 1, 2, 3 and 4 ranks, on a communicator of that many; the other ranks
wait, asleep. A test with ``layout`` runs on every layout of :data:`LAYOUTS` that fits. Every other test needs no MPI
and runs on one rank, in turn, so that the ranks share the work; ``--together`` leaves these out. Each test has a
deadline, at which every rank prints its stacks and the run is aborted. Rank 0 reports for all.

Tests on Slurm and on hosts of their own skip where something is missing that they need, unless it is required:
``MPIGRAPH_TEST_REQUIRE=slurm,hosts`` makes them fail instead.
"""

import faulthandler
import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import jobs
import pytest
import torch
from jobs import DEADLINE, GRACE
from mpi4py import MPI
from oracle import write_oracle
from typed_oracle import write_typed_oracle

import mpigraph.distributed as dist
from mpigraph.errors import CollectiveError
from mpigraph.mpi.wait import PEERS_COMPUTE, wait
from mpigraph.mpi.watchdog import Watchdog
from mpigraph.session.context import Session

torch.set_num_threads(1)

WORLD = MPI.COMM_WORLD
WAIT = 40.0  # deadline of a single wait inside a test job
ORACLES: Path | None = None  # where the oracle graphs are, from the start of the session on
NEEDS = {"slurm", "hosts"}
REQUIRED = set(filter(None, os.environ.get("MPIGRAPH_TEST_REQUIRE", "").split(",")))
COUNTS = {"passed": 0, "failed": 0, "skipped": 0}
STDERR = 2


class Layout(NamedTuple):
    """How a job is laid out on a communicator of exactly ``ranks`` ranks."""

    ranks: int
    servers: int
    ranks_per_node: int

    @property
    def trainers(self) -> int:
        nodes = -(-self.ranks // self.ranks_per_node) if self.ranks_per_node else 1
        return self.ranks - (self.servers * nodes if self.ranks > 1 else 0)


LAYOUTS = [
    Layout(1, 0, 0),
    Layout(2, 0, 0),
    Layout(2, 1, 0),
    Layout(2, 0, 1),
    Layout(3, 1, 0),
    Layout(3, 0, 2),
    Layout(4, 0, 0),
    Layout(4, 2, 0),
    Layout(4, 0, 1),
    Layout(4, 0, 2),
    Layout(4, 1, 2),
]


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "leave out the tests that need no MPI, which one rank runs: they are the same on any number of ranks"
    parser.addoption("--together", action="store_true", help=text)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if REQUIRED - NEEDS:
        raise pytest.UsageError(f"MPIGRAPH_TEST_REQUIRE: nothing is called {', '.join(REQUIRED - NEEDS)}")
    global STDERR
    STDERR = os.dup(2)  # pytest does not catch here yet: what a deadline or the watchdog prints gets out
    abort = Watchdog._abort

    def abort_aloud(watchdog: Watchdog, what: str, seconds: float) -> None:
        os.dup2(STDERR, 2)
        sys.stderr = os.fdopen(STDERR, "w")
        abort(watchdog, what, seconds)

    Watchdog._abort = abort_aloud
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if WORLD.rank != 0 and reporter is not None:
        config.pluginmanager.unregister(reporter)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give tests without MPI to one rank each, in turn; leave out those that need more ranks than there are."""
    alone = [item for item in items if ranks_of(item) == 0 and not config.getoption("together")]
    together = [item for item in items if 0 < ranks_of(item) <= WORLD.size]
    kept = alone[WORLD.rank :: WORLD.size] + together
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def ranks_of(item: pytest.Item) -> int:
    """How many ranks a test needs; 0 if it needs no MPI."""
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    if "layout" in params:
        return params["layout"].ranks
    return params.get("comm", 0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.when == "call" or report.failed or report.skipped:
        COUNTS[report.outcome] += report.outcome != "skipped" or ranks_of(item) == 0
    if report.failed and WORLD.rank != 0:
        sys.stderr.write(f"\n[rank {WORLD.rank}] {item.nodeid} failed in {report.when}\n{report.longreprtext}\n")
        sys.stderr.flush()
    return report


@pytest.fixture(autouse=True)
def deadline(request: pytest.FixtureRequest) -> Iterator[None]:
    """Print every rank's stacks and abort when a test takes too long.

    The time begins when all ranks are there: some still run their share of the tests without MPI, and have the cores.
    """
    if ranks_of(request.node):
        quiet_barrier(WORLD)

    def expire() -> None:
        os.write(STDERR, f"\n[rank {WORLD.rank}] {request.node.nodeid} ran for {DEADLINE} s: aborting\n".encode())
        faulthandler.dump_traceback(STDERR, all_threads=True)
        leave_nothing()  # which takes some seconds: the other ranks print their stacks, too
        WORLD.Abort(3)

    timer = threading.Timer(DEADLINE, expire)
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()


def leave_nothing() -> None:
    """End this rank's jobs and remove the oracle graphs, where the session does not come to its end."""
    jobs.end_all(signal.SIGTERM)
    time.sleep(GRACE)
    jobs.end_all(signal.SIGKILL)
    shutil.rmtree(ORACLES, ignore_errors=True)


def leave(*_: object) -> None:
    """What a signal does that ends the session."""
    leave_nothing()
    os._exit(1)


def quiet_barrier(comm: MPI.Intracomm) -> None:
    """Wait for the others without taking a core from them."""
    wait(comm.Ibarrier(), PEERS_COMPUTE)


@contextmanager
def exactly(ranks: int) -> Iterator[MPI.Intracomm]:
    """A communicator of ``ranks`` ranks; the others skip, and all meet at the end."""
    if ranks > WORLD.size:
        pytest.skip(f"needs {ranks} ranks")
    sub = WORLD.Split(0 if WORLD.rank < ranks else MPI.UNDEFINED, WORLD.rank)
    try:
        if sub == MPI.COMM_NULL:
            pytest.skip("not in this communicator")
        yield sub
        gc.collect(0)
        sub.Free()
    finally:
        quiet_barrier(WORLD)


@pytest.fixture(params=[1, 2, 3, 4], ids="np{}".format)
def comm(request: pytest.FixtureRequest) -> Iterator[MPI.Intracomm]:
    with exactly(request.param) as sub:
        yield sub


class Job:
    """Runs functions as jobs on a communicator in one layout."""

    def __init__(self, comm: MPI.Intracomm, layout: Layout) -> None:
        self.comm = comm
        self.layout = layout

    def run(self, body: Callable[[], Any], **options: Any) -> Any:
        """Run ``body`` on the trainers of a job and return its result; None on servers."""
        settings = {"num_servers": self.layout.servers, "ranks_per_node": self.layout.ranks_per_node, "timeout": WAIT}
        try:
            dist.initialize(comm=self.comm, **(settings | options))
        except SystemExit as stop:
            assert stop.code == 0
            return None
        session = Session._current
        try:
            return body()
        except BaseException:
            # At once: the others may wait for this rank until their deadline ends the run, and with it every report.
            os.write(STDERR, f"\n[rank {WORLD.rank}] {traceback.format_exc()}".encode())
            raise
        finally:
            end(session)

    def share(self, value: Any) -> Any:
        """What rank 0 has, on every rank."""
        return self.comm.bcast(value)


def end(session: Session) -> None:
    """End a job even when its trainers are in different calls."""
    for _ in range(5):
        try:
            if Session._current is session:
                dist.exit_client()
            else:
                session.close()
        except CollectiveError:
            continue
        return


@pytest.fixture(params=LAYOUTS, ids=lambda x: f"np{x.ranks}-servers{x.servers}-rpn{x.ranks_per_node}")
def layout(request: pytest.FixtureRequest) -> Iterator[Job]:
    with exactly(request.param.ranks) as sub:
        yield Job(sub, request.param)


def on_all(comm: MPI.Intracomm, ok: bool, message: str = "") -> None:
    """Assert on every rank what must hold on each."""
    results = comm.allgather((bool(ok), message))
    bad = [f"rank {rank}: {text}" for rank, (good, text) in enumerate(results) if not good]
    assert not bad, "; ".join(bad)


def oracle_path(num_parts: int = 2, part_method: str = "random") -> str:
    """Path of the oracle graph's configuration in some number of parts; all of them are written at the start."""
    (config,) = (ORACLES / f"{part_method}{num_parts}").glob("*.json")
    return str(config)


def pytest_sessionstart() -> None:
    """Rank 0 writes the oracle graphs, the others wait for it."""
    global ORACLES
    ORACLES = Path(WORLD.bcast(tempfile.mkdtemp(prefix="mpigraph-oracle-") if WORLD.rank == 0 else None))
    signal.signal(signal.SIGTERM, leave)
    if WORLD.rank == 0:
        for num_parts in (1, 2, 3, 4, 7):
            write_oracle(ORACLES / f"random{num_parts}", num_parts, "random")
        for num_parts in (1, 3, 4):
            write_oracle(ORACLES / f"given{num_parts}", num_parts, "given")
        write_oracle(ORACLES / "metis2", 2, "metis")
        write_oracle(ORACLES / "other2", 2, name="other")
    quiet_barrier(WORLD)


def pytest_sessionfinish() -> None:
    quiet_barrier(WORLD)
    for outcome in COUNTS:
        COUNTS[outcome] = WORLD.allreduce(COUNTS[outcome])
    if WORLD.rank == 0:
        shutil.rmtree(ORACLES)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts = ", ".join(f"{count} {outcome}" for outcome, count in COUNTS.items())
    terminalreporter.write_line(f"on {WORLD.size} rank(s), each rank's share of a test counted: {counts}")


def needs(what: str, missing: str) -> pytest.MarkDecorator:
    """The mark of tests that start jobs on ``what``, of which something is missing if ``missing`` says so."""
    if WORLD.size > 1:
        return pytest.mark.skip(reason="runs jobs of its own: start pytest without mpiexec")
    return pytest.mark.skipif(bool(missing) and what not in REQUIRED, reason=missing)


@pytest.fixture(scope="session")
def oracle() -> Callable[..., str]:
    return oracle_path


@pytest.fixture
def typed_oracle(layout: Job, tmp_path: Path) -> str:
    """Path of the typed oracle's configuration in three parts, ids dealt out at random."""
    return layout.share(write_typed_oracle(tmp_path, 3, "random") if layout.comm.rank == 0 else None)
