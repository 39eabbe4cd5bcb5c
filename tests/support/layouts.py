"""How jobs lie on the ranks that the tests run on, and the jobs themselves: one of a test's own, or one that is shared.

A test with the fixture ``layout`` runs jobs of its own on each of :data:`LAYOUTS`, or on each of :data:`API` where it
is marked with :data:`api`. A test with ``job`` runs on the trainers of a job that the tests of its module share, on
each of :data:`API`, or on each of :data:`LAYOUTS` where it is marked with :data:`everywhere`. Remote rows are read by
Get in one half of the jobs and packed by their owners in the other: it depends on the name of the test, or of the
module.
"""

import gc
import os
import shutil
import signal
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
import pytest
from mpi4py import MPI

import mpigraph.distributed as dist
from mpigraph.errors import MPIGraphError
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.session import context
from mpigraph.session.context import Session
from mpigraph.session.control import Operation
from mpigraph.store import store

store.choose_transport = lambda service: {}  # windows are tried by tests/rows/test_trial.py, not by hundreds of jobs

WORLD = MPI.COMM_WORLD
OPEN_MPI = "Open MPI" in MPI.Get_library_version()
FOLDER: Path | None = None  # of what tests write and share, from the start of the session on
WAIT = float(os.environ.get("MPIGRAPH_TEST_WAIT", "120"))  # deadline of a single wait inside a job, in seconds
STDERR = 2  # where to print what must be read although pytest catches what tests print; set when it does not yet


_made: dict[Any, str] = {}
_alone: dict[Any, Any] = {}


class Layout(NamedTuple):
    """How a job is laid out on a communicator of exactly ``ranks`` ranks."""

    ranks: int
    servers: int
    ranks_per_node: int

    @property
    def trainers(self) -> int:
        nodes = -(-self.ranks // self.ranks_per_node) if self.ranks_per_node else 1
        return self.ranks - (self.servers * nodes if self.ranks > 1 else 0)

    @property
    def name(self) -> str:
        """What pytest calls it."""
        return f"np{self.ranks}-servers{self.servers}-rpn{self.ranks_per_node}"

    def transport(self, test: str) -> str:
        """How the jobs of a test read remote rows: each way on one half of the layouts, and of the tests."""
        return ("rma", "packed")[(zlib.crc32(test.encode()) + sum(self)) % 2]

    def sampling(self, test: str, ways: tuple[str, ...]) -> str:
        """How the jobs of a test sample, of some ways: each on a part of the layouts with remote rows."""
        number = REMOTE.index(self) if self in REMOTE else 0
        return ways[(zlib.crc32(test.encode()) + number) % len(ways)]


ALONE = Layout(1, 0, 0)
THREADS = MPI.Query_thread() == MPI.THREAD_MULTIPLE
needs_threads = pytest.mark.skipif(not THREADS, reason="needs MPI_THREAD_MULTIPLE")


def possible(layouts: list[Layout]) -> list[Layout]:
    """Those that this MPI can run: trainers that host rows for other nodes need MPI_THREAD_MULTIPLE."""
    if THREADS:
        return layouts
    return [layout for layout in layouts if layout.servers or layout.ranks_per_node in (0, layout.ranks)]


LAYOUTS = possible(
    [
        ALONE,
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
)
REMOTE = [layout for layout in LAYOUTS if 0 < layout.ranks_per_node < layout.ranks]  # some rows are on other nodes
# One rank; remote rows, and every trainer hosts; local rows of a server; local and remote rows of servers.
API = possible([ALONE, Layout(2, 0, 1), Layout(3, 1, 0), Layout(4, 1, 2)])


def on_layouts(layouts: list[Layout]) -> pytest.MarkDecorator:
    """Makes a test with ``job`` run on these layouts."""
    layouts = possible(layouts)
    names = [layout.name for layout in layouts]
    return pytest.mark.parametrize("shared_job", layouts, indirect=True, scope="module", ids=names)


def own_on_layouts(layouts: list[Layout]) -> pytest.MarkDecorator:
    """Makes a test with ``layout`` run on these layouts."""
    layouts = possible(layouts)
    return pytest.mark.parametrize("layout", layouts, indirect=True, ids=[layout.name for layout in layouts])


everywhere = on_layouts(LAYOUTS)
several = on_layouts([layout for layout in API if layout.trainers > 1])
api = own_on_layouts(API)


def rotated(cases: int) -> pytest.MarkDecorator:
    """Makes a layout run one of so many cases of a test, the next layout the next one; the others are a study.

    Open MPI runs others than MPICH.
    """
    return pytest.mark.rotated(cases)


def leave_to(layout: Layout | None, module: str, chosen: list[Layout]) -> str | None:
    """Name the marker of a layout that the suite leaves out for the tests of a module; None where it runs.

    tests/README.md says which ones ("How tests are built"). Of those between the first and the last that are not left
    to another MPI, Open MPI has half, the suite an eighth, the slow tests half, and the rest is a study.
    """
    others = LAYOUTS[1:-1]
    number = zlib.crc32(module.encode())
    if chosen == API and layout in (API[1], API[-1]):
        return None if layout == API[-1 if (number // 8 + OPEN_MPI) % 2 == 0 else 1] else "elsewhere"
    if layout not in others:
        return None
    rest, whose = divmod(number + others.index(layout), 2 if chosen == API else 3)
    if whose != OPEN_MPI:
        return "study" if whose == 2 else "elsewhere"
    if OPEN_MPI:
        return "slow" if rest % 2 else None
    return ("slow" if rest % 2 else "study") if rest % 8 else None


def is_left_out(params: Mapping[str, int], cases: int) -> bool:
    """Return whether the layout of a test leaves a case to other layouts; by the numbers of all its parameters."""
    number = sum(index for name, index in params.items() if name not in ("shared_job", "layout"))
    return (params.get("shared_job", params.get("layout", 0)) - number - OPEN_MPI) % cases != 0


def quiet_wait(request: MPI.Request) -> None:
    """Wait for other ranks without taking a core from them."""
    pause = 1e-4
    while not request.Test():
        time.sleep(pause)
        pause = min(2 * pause, 0.005)


def quiet_barrier(comm: MPI.Intracomm) -> None:
    quiet_wait(comm.Ibarrier())


@cache
def first_ranks(ranks: int) -> MPI.Intracomm:
    """The first so many ranks, who meet here before and after each test that needs them."""
    return WORLD.Create_group(WORLD.group.Range_incl([(0, ranks - 1, 1)]))


@contextmanager
def exactly(ranks: int) -> Iterator[MPI.Intracomm]:
    """A communicator of the first ``ranks`` ranks, which all meet at the end. One rank needs no others."""
    if ranks == 1:
        yield MPI.COMM_SELF
        return
    sub = first_ranks(ranks).Dup()
    try:
        yield sub
        gc.collect(0)
        sub.Free()
    finally:
        quiet_barrier(first_ranks(ranks))


def on_all(comm: MPI.Intracomm, ok: bool, message: str = "") -> None:
    """Assert on every rank what must hold on each."""
    results = comm.allgather((bool(ok), message))
    bad = [f"rank {rank}: {text}" for rank, (good, text) in enumerate(results) if not good]
    assert not bad, "; ".join(bad)


def refuses(error: type[MPIGraphError], text: str, make: Callable[[], object]) -> bool:
    """Return whether a call raises an error with a text in it."""
    try:
        make()
    except error as raised:
        return text in str(raised)
    return False


def start(comm: MPI.Intracomm, layout: Layout, transport: str, sampling: str, **options: Any) -> bool:
    """Start a job; return on its trainers with True, and on its servers with False when it is over."""
    settings = {"num_servers": layout.servers, "ranks_per_node": layout.ranks_per_node, "timeout": WAIT}
    ours = {"MPIGRAPH_TRANSPORT": transport, "MPIGRAPH_SAMPLING": sampling, "MPIGRAPH_TOPOLOGY": "owners"}
    if sampling == "everywhere":
        ours |= {"MPIGRAPH_SAMPLING": "auto", "MPIGRAPH_TOPOLOGY": sampling}
    ours = {name: value for name, value in ours.items() if name not in os.environ}
    os.environ.update(ours)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        dist.initialize(comm=comm, **(settings | options))
    except SystemExit as stop:
        signal.signal(signal.SIGTERM, handler)  # a server ignores it after requeue(); this process lives on
        assert stop.code == 0
        return False
    finally:
        for name in ours:
            del os.environ[name]
    return True


def end(session: Session) -> None:
    """End a job even when its trainers are in different calls, or handle an exception."""
    for _ in range(5):
        try:
            context._leave(session)
        except MPIGraphError:
            continue
        return


def speak(what: str = "") -> None:
    """Print an error at once: the others may wait for this rank until a deadline ends the run, and every report."""
    os.write(STDERR, f"\n[rank {WORLD.rank}] {what}{traceback.format_exc()}".encode())


class Job:
    """Runs functions as jobs on a communicator in one layout."""

    def __init__(self, comm: MPI.Intracomm, layout: Layout, transport: str = "rma", sampling: str = "auto") -> None:
        self.comm = comm
        self.layout = layout
        self.transport = transport
        self.sampling = sampling

    def run(self, body: Callable[[], Any], **options: Any) -> Any:
        """Run ``body`` on the trainers of a job and return its result; None on servers."""
        if not start(self.comm, self.layout, self.transport, self.sampling, **options):
            return None
        session = Session.running
        try:
            return body()
        except BaseException:
            speak()
            raise
        finally:
            end(session)

    def share(self, value: Any) -> Any:
        """What rank 0 has, on every rank."""
        return self.comm.bcast(value)


def alone(body: Callable[[], Any], **options: Any) -> Any:
    """What ``body`` returns as a job of one rank; a job that is running is not touched."""
    running, Session.running = Session.running, None
    try:
        return Job(MPI.COMM_SELF, ALONE).run(body, **options)
    finally:
        Session.running = running


def on_one_rank(graph: HeteroGraph, body: Callable[[dist.DistGraph], Any]) -> Any:
    """What ``body`` returns for a graph in memory, made a distributed one of one part in a job of one rank.

    Nodes keep their ids; edges are by destination and source.
    """
    with tempfile.TemporaryDirectory() as folder:
        dist.partition_graph(graph, "alone", 1, folder, part_method="random")
        return alone(lambda: body(dist.DistGraph("alone", part_config=f"{folder}/alone.json")))


class SharedJob:
    """A job that the tests of a module share, as its trainers see it; its servers serve while the tests run.

    The job is started by the first test that needs it. It is ended, and the next test starts another, when a test
    fails, leaves something behind, or opens another graph.
    """

    def __init__(self, comm: MPI.Intracomm, layout: Layout, transport: str, sampling: str) -> None:
        self._comm = comm
        self._transport = transport
        self._sampling = sampling
        self._session: Session | None = None
        self.path = ""
        self._test: Any = None
        self._trainers = MPI.COMM_NULL
        self.layout = layout

    def serve(self) -> bool:
        """Be a server of all the jobs that are needed; False on a trainer, at once."""
        if self._start():
            return False
        while self._another(None):
            start(self._comm, self.layout, self._transport, self._sampling)
        return True

    def _start(self) -> bool:
        is_trainer = start(self._comm, self.layout, self._transport, self._sampling)
        if is_trainer:
            self._session, self.path = Session.running, ""
            if self._trainers == MPI.COMM_NULL:
                self._trainers = self._session.world.trainers.Dup()
        return is_trainer

    def _another(self, needed: bool | None) -> bool:
        """Agree with the servers, who wait for it, whether there is to be another job."""
        word = bytearray([bool(needed)])
        quiet_wait(self._comm.Ibcast(word))
        return bool(word[0])

    @property
    def session(self) -> Session:
        """The running job's session; if there is none, the job is started. Collective on the trainers if so."""
        if self._session is None:
            self._another(True)
            self._start()
        assert self._session is not None
        return self._session

    @property
    def trainers(self) -> MPI.Intracomm:
        """A communicator of the trainers, who run the test."""
        return self._trainers

    @property
    def rank(self) -> int:
        """Rank among the trainers."""
        return self._trainers.rank

    def open(self, part_config: str) -> dist.DistGraph:
        """Open a graph, in a new job if another one is open. Collective on the trainers."""
        if self.path not in ("", part_config):
            self.end()
        _ = self.session
        self.path = part_config
        return dist.DistGraph(Path(part_config).stem, part_config=part_config)

    def write(self, make: Callable[..., str], *args: Any) -> str:
        """What ``make(directory, *args)`` returns on the first trainer, such as a graph's path; it is made once."""

        def made() -> str:
            key = (make, *args)
            if key not in _made:
                _made[key] = make(Path(tempfile.mkdtemp(dir=FOLDER)), *args)
            return _made[key]

        return self.one_has(made)

    def begin(self, test: Any) -> None:
        """Make the job what it was at its start, as far as draws depend on it; ``test`` is the same on all layouts."""
        self._test = test
        self.session.num_draws = self.session.unnamed = 0

    def finish(self, failed: bool) -> None:
        """After a test: keep the job if all trainers are well and nothing is left in it, else end it."""
        session = self._session
        if session is None:
            return
        gc.collect()
        gc.freeze()  # what outlives a test is not looked at after each of those that follow
        try:
            if failed or Session.running is not session:
                raise MPIGraphError("this trainer failed")
            session.control.call(Operation.BARRIER)  # which frees what all have dropped
            loaded = {number for graph in session.store.graphs.values() for number in graph.features.values()}
            held = [
                handle for handle in session.handles.values() if not isinstance(handle, ref) or handle() is not None
            ]
            clean = session.store.tensors.keys() <= loaded and len(session.store.graphs) <= 1
            word = np.array([clean and not held and not session.loops])
            quiet_wait(self._trainers.Iallreduce(MPI.IN_PLACE, word, MPI.LAND))
            clean = bool(word[0])
        except MPIGraphError:
            clean = False
        if not clean:
            self.end()

    def end(self) -> None:
        session, self._session, self.path = self._session, None, ""
        if session is not None:
            end(session)

    def close(self) -> None:
        """End the job for good and let the servers go. Collective on the trainers."""
        self.end()
        self._another(False)
        self._trainers.Free()

    def alone(self, body: Callable[[], Any]) -> Any:
        """What ``body`` returns as a job of one rank. A process runs it once for each test, not in each layout."""
        test, self._test = self._test, None
        assert test is not None, "a test has one such job"
        if test not in _alone:
            _alone[test] = alone(body)
        return _alone[test]

    def one_has(self, make: Callable[[], Any]) -> Any:
        """What the first trainer makes, on every trainer."""
        return self._trainers.bcast(make() if self.rank == 0 else None)


def path_of(directory: Path) -> str:
    """Path of the configuration of the graph that lies in a directory."""
    (config,) = directory.glob("*.json")
    return str(config)


@contextmanager
def shared_folder(comm: MPI.Intracomm) -> Iterator[Path]:
    """A folder that all ranks of a communicator see; removed at the end."""
    folder = comm.bcast(Path(tempfile.mkdtemp(dir=FOLDER)) if comm.rank == 0 else None)
    try:
        yield folder
    finally:
        comm.Barrier()
        if comm.rank == 0:
            shutil.rmtree(folder)
