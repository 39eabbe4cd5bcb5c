"""How the tests run: ``mpiexec -n 4 python -m pytest`` (or on fewer ranks, or plain ``pytest``).

Tests that need one rank are dealt out: each rank takes the next one when it is done with the last. Then come those that
ranks run together, on all ranks first. A rank that the rest do not need goes on to the tests without MPI, which are
dealt out, too: they fill the time in which the others wait for each other. A test with the fixture ``comm`` runs on
exactly 1, 2, 3 and 4 ranks, on a communicator of that many; ``layout`` and ``job`` are described in
``support/layouts.py``. Each test has a deadline, at which every rank prints its stacks and the run is aborted. Rank 0
reports for all.
"""

import faulthandler
import gc
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Four ranks on two cores: a rank of MPICH that waits sleeps, in place of offering its core again and again.
os.environ.setdefault("MPIR_CVAR_ENABLE_HEAVY_YIELD", "1")

import started_mpi  # noqa: F401  (before mpi4py.MPI: see mpigraph.config.disable_fast_boxes)

# isort: split

import jobs
import layouts
import pytest
import torch
from jobs import DEADLINE, GRACE, SLOW
from layouts import API, LAYOUTS, THREADS, WORLD, Job, Layout, SharedJob, exactly, first_ranks, path_of, quiet_barrier
from mpi4py import MPI
from oracle import write_oracle
from typed_oracle import write_typed_oracle

from mpigraph.cli import ranks
from mpigraph.distgraph.graph import DistGraph
from mpigraph.kernels import warm_up
from mpigraph.mpi import watchdog
from mpigraph.session.context import Session

torch.set_num_threads(1)
gc.disable()  # until the tests run: what is imported and collected stays
# Hundreds of processes import the same modules: their bytecode is kept, as the compiled kernels are, beside the source.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

COUNTS = {"passed": 0, "failed": 0, "skipped": 0}
FILES = 60  # so many more than at the start may be open at the end: of pools of threads, of groups of ranks
CASES = 3  # of so many cases of a test .ci/run has one on each layout of several ranks, the suite of twice as many
ASKS_FOR_RANKS = re.compile(r"""def \w+\([^)]*\b(comm|layout|job|shared_job)\b|["'](comm|layout|shared_job)["']""")
PARSES = {"test_docstrings", "test_layers"}  # each parses the whole library once
# The first test that needs them leaves these: torch's TCP store and the zygote have pipes, jobs threads that sample,
# MPI libraries sockets and shared memory from when a rank first talks to another.
LASTING = re.compile(
    r"pipe:|socket:|anon_inode:|/dev/shm/(?!mpich)|thread (tqdm_monitor|mpigraph-worker_)|"
    r"temporary (mpigraph-kernels-|torchinductor_)"
)
FAILED = pytest.StashKey[bool]()
# Rooms whose tests start processes
JOBS = set("checkpoint cli compat examples optim perf process_group reports rows session".split())


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "leave out the tests that need fewer ranks than there are: a run on more ranks has them, too"
    parser.addoption("--together", action="store_true", help=text)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Give each rank a folder of its own for ``tmp_path``: in pytest's own, ranks and runs side by side clean at once.

    It stays, to be looked at, where a test failed.
    """
    if config.option.basetemp is None:
        folder = config.option.basetemp = tempfile.mkdtemp(prefix="mpigraph-tests-")
        config.add_cleanup(lambda: COUNTS["failed"] or shutil.rmtree(folder, ignore_errors=True))


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    jobs.check_required()
    layouts.STDERR = os.dup(2)  # pytest does not catch here yet
    abort = watchdog.abort

    def abort_aloud(status: int, text: str = "", stacks: bool = False) -> None:
        os.dup2(layouts.STDERR, 2)  # pytest catches what is written there
        sys.stderr = os.fdopen(layouts.STDERR, "w")
        abort(status, text, stacks)

    watchdog.abort = abort_aloud
    ranks.launch = lambda: None  # a test that calls a command runs it in its own process alone
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if WORLD.rank != 0 and reporter is not None:
        config.pluginmanager.unregister(reporter)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no module of which ``--together`` leaves nothing: none of its tests asks for ranks."""
    if config.option.together and collection_path.name.startswith("test_"):
        return None if ASKS_FOR_RANKS.search(collection_path.read_text()) else True
    return None


def params_of(item: pytest.Item) -> dict[str, Any]:
    """What a test is called with, by parameter."""
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


def layout_of(item: pytest.Item) -> Layout | None:
    """The layout of a test of a shared job."""
    found = params_of(item).get("shared_job")
    return found if isinstance(found, Layout) else None


def ranks_of(item: pytest.Item) -> int:
    """How many ranks a test needs; 0 if it needs no MPI."""
    params = params_of(item)
    for name in ("shared_job", "layout"):
        if name in params:  # or it is on none that this MPI can run
            return params[name].ranks if isinstance(params[name], Layout) else sys.maxsize
    return params.get("comm", 0)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what the suite leaves out: layouts, cases of rotated tests, and most cases of others on several ranks."""
    rotated, marks, params = item.get_closest_marker("rotated"), item.iter_markers("parametrize"), params_of(item)
    lists = {mark.args[0]: mark.args[1] for mark in marks}
    layout = params.get("shared_job", params.get("layout"))
    chosen = lists.pop("shared_job", lists.pop("layout", API))
    left_to = layouts.leave_to(layout, item.path.name, chosen)
    if left_to is not None and len(chosen) >= len(API):
        item.add_marker(left_to)
    elif isinstance(layout, Layout) and layout.ranks == 3 and chosen[-1].ranks == 4 and not layouts.OPEN_MPI:
        item.add_marker("slow")
    if rotated is not None:
        if layouts.is_left_out(item.callspec.indices, *rotated.args):
            item.add_marker("study")
    elif isinstance(layout, Layout) and layout.ranks > 1:
        most = 1 + sum(len(cases) - 1 for cases in lists.values())  # different sums of the cases' numbers
        if layouts.is_left_out(item.callspec.indices, min(most, CASES)):
            item.add_marker("slow" if len(chosen) > len(API) else "study")
        elif most >= 2 * CASES and not layouts.OPEN_MPI and layouts.is_left_out(item.callspec.indices, 2 * CASES):
            item.add_marker("slow")
    elif "comm" in params and not layouts.OPEN_MPI:
        if params["comm"] in [ranks for ranks in lists.get("comm", [1, 2, 3, 4]) if isinstance(ranks, int)][1:-1]:
            item.add_marker("slow")


def room_of(item: pytest.Item) -> str:
    """The folder that a test lies in."""
    return item.path.parent.name


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In the order of the phases; in each, the tests of one shared job after each other."""
    fewest = WORLD.size if config.getoption("together") else 0
    kept = [item for item in items if fewest <= ranks_of(item) <= WORLD.size]
    kept.sort(key=lambda item: room_of(item) not in JOBS)  # what takes longest comes first
    ordered: list[pytest.Item] = []
    for needed in (1, *range(WORLD.size, 1, -1), 0):
        some = [item for item in kept if ranks_of(item) == needed]
        for _, module in groupby(some, key=lambda item: item.path):
            ordered += sorted(module, key=lambda item: layout_of(item) or Layout(0, 0, 0))
    chosen = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = ordered


def units(items: list[pytest.Item]) -> Iterator[list[pytest.Item]]:
    """What one rank takes: a test, or the tests of a shared job on one rank, or of a module that parses the library."""
    keyed = groupby(
        enumerate(items), key=lambda pair: (pair[1].path, layout_of(pair[1]) or pair[1].path.stem in PARSES or pair[0])
    )
    for _, some in keyed:
        yield [item for _, item in some]


def taken(name: str) -> bool:
    """Whether this rank is the first to take a unit."""
    try:
        os.close(os.open(layouts.FOLDER / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def dealt(items: list[pytest.Item], needed: int) -> Iterator[pytest.Item]:
    """Of the tests that need 0 or 1 ranks, those that this rank takes."""
    busy = WORLD.size - WORLD.rank > max(2, os.cpu_count() or 1)  # more ranks than cores: not all start processes
    for number, unit in enumerate(units([item for item in items if ranks_of(item) == needed])):
        if not (busy and room_of(unit[0]) in JOBS and needed == 0) and taken(f"{needed}-{number}"):
            yield from unit


def todo(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """The tests of this rank, in three phases: alone, then with others, then those that need no MPI."""
    yield from dealt(items, 1)
    yield from (item for item in items if ranks_of(item) > max(1, WORLD.rank))
    yield from dealt(items, 0)


def pytest_runtestloop(session: pytest.Session) -> bool:
    """Pytest's loop, over this rank's tests."""
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        raise session.Interrupted(f"{session.testsfailed} error(s) during collection")
    if session.config.option.collectonly:
        return True
    quiet_barrier(WORLD)  # rank 0 has made what all need
    files = open_files()
    gc.collect()
    gc.freeze()  # what was imported is not looked at again whenever a test wants its rubbish collected
    gc.enable()
    mine = todo(session.items)
    item = next(mine, None)
    while item is not None:
        following = next(mine, None)
        alike = following is not None and ranks_of(following) == ranks_of(item)
        # Between the phases all fixtures end: the job that tests share must not go on.
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following if alike else None)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    gc.unfreeze()
    gc.collect()
    more = open_files() - files
    if more.total() > FILES:
        text = f"rank {WORLD.rank} leaves {more.total()} files open: {more.most_common(5)}"
        os.write(layouts.STDERR, f"{text}\n".encode())
        raise session.Failed(text)
    return True


def open_files() -> Counter[str]:
    """How many files of each name, its numbers left out, this process has open."""
    names = []
    for link in os.scandir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that lists them
            names.append(re.sub(r"\d+", "", os.readlink(link)))
    return Counter(names)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.when == "call" or report.failed or report.skipped:
        COUNTS[report.outcome] += report.outcome != "skipped" or ranks_of(item) == 0
    item.stash[FAILED] = report.failed or item.stash.get(FAILED, False)
    if report.failed and (WORLD.rank != 0 or ranks_of(item) > 1):  # at once: the others may wait for this rank
        text = f"\n[rank {WORLD.rank}] {item.nodeid} failed in {report.when}\n{report.longreprtext}\n"
        os.write(layouts.STDERR, text.encode(errors="replace"))
    return report


@pytest.fixture(autouse=True)
def deadline(request: pytest.FixtureRequest) -> Iterator[None]:
    """Print every rank's stacks and abort when a test takes too long.

    The time begins when all its ranks are there: some still run tests of their own, and have the cores.
    """
    if ranks_of(request.node) > 1 and layout_of(request.node) is None:
        quiet_barrier(first_ranks(ranks_of(request.node)))

    limit = DEADLINE * (SLOW if request.node.get_closest_marker("slow") else 1)
    jobs.patience = limit - 10

    def expire() -> None:
        text = f"\n[rank {WORLD.rank}] {request.node.nodeid} ran for {limit} s: aborting\n"
        os.write(layouts.STDERR, text.encode())
        faulthandler.dump_traceback(layouts.STDERR, all_threads=True)
        leave_nothing()  # which takes some seconds: the other ranks print their stacks, too
        WORLD.Abort(3)

    timer = threading.Timer(limit, expire)
    timer.daemon = True
    timer.start()
    if limit > DEADLINE or ranks_of(request.node) == 1:
        yield
    else:  # before a job ends itself, and by a thread that needs no lock of Python's, which another may hold
        faulthandler.dump_traceback_later(0.9 * layouts.WAIT, file=layouts.STDERR)
        yield
        faulthandler.cancel_dump_traceback_later()
    timer.cancel()


def held() -> Counter[str]:
    """What this process has: open files, mapped shared memory, threads, processes and temporary files, by name."""
    found = open_files()
    found.update(f"thread {re.sub(r'[0-9]+', '', thread.name)}" for thread in threading.enumerate())
    for task in os.listdir("/proc/self/task"):
        with suppress(FileNotFoundError):  # it has ended
            for child in map(int, Path(f"/proc/self/task/{task}/children").read_text().split()):
                found[f"process {child}"] += child not in jobs.LASTING
    if Session.running is None:  # a job that tests share opens graphs
        found["mapped shared memory"] = Path("/proc/self/maps").read_text().count(" /dev/shm/mpich")
    found.update(f"temporary {name}" for name in os.listdir(tempfile.gettempdir()))
    return Counter({name: count for name, count in found.items() if not LASTING.match(name)})


@pytest.fixture(autouse=True)
def leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves something of what it has made; a job that tests share may begin or end with it."""
    before, session = held(), Session.running
    yield
    for pause in (0.0, 0.1, 0.5, 2.0):  # threads and processes that are told to end take a moment
        if not (more := held() - before) or Session.running is not session:
            return
        gc.collect()
        time.sleep(pause)
    pytest.fail(f"the test leaves {dict(more)}")


def leave_nothing() -> None:
    """End this rank's jobs and remove what tests share, where the session does not come to its end."""
    jobs.end_all(signal.SIGTERM)
    time.sleep(GRACE)
    jobs.end_all(signal.SIGKILL)
    shutil.rmtree(layouts.FOLDER, ignore_errors=True)


def leave(*_: object) -> None:
    """What a signal does that ends the session."""
    leave_nothing()
    os._exit(1)


@pytest.fixture(params=[1, 2, 3, 4], ids="np{}".format)
def comm(request: pytest.FixtureRequest) -> Iterator[MPI.Intracomm]:
    with exactly(request.param) as sub:
        yield sub


def sampling_of(request: pytest.FixtureRequest) -> str:
    """How the jobs of a test sample: in the ways that its module names in ``SAMPLING_WAYS``, each on some layouts."""
    ways: tuple[str, ...] = getattr(request.module, "SAMPLING_WAYS", ("alltoallv", "everywhere"))
    return request.param.sampling(request.path.stem, ways) if THREADS else "auto"


@pytest.fixture(params=LAYOUTS, ids=lambda layout: layout.name)
def layout(request: pytest.FixtureRequest) -> Iterator[Job]:
    with exactly(request.param.ranks) as sub:
        yield Job(sub, request.param, request.param.transport(request.node.originalname), sampling_of(request))


@pytest.fixture(scope="module", params=API, ids=lambda layout: layout.name)
def shared_job(request: pytest.FixtureRequest) -> Iterator[SharedJob]:
    """A job that runs while the tests of a module need it; its servers skip the tests."""
    chosen = request.param
    if chosen.ranks > 1:
        quiet_barrier(first_ranks(chosen.ranks))
    with exactly(chosen.ranks) as sub:
        shared = SharedJob(sub, chosen, chosen.transport(request.path.stem), sampling_of(request))
        if shared.serve():
            pytest.skip("a server")
        yield shared
        shared.close()


@pytest.fixture
def job(shared_job: SharedJob, request: pytest.FixtureRequest) -> Iterator[SharedJob]:
    params = {name: value for name, value in request.node.callspec.params.items() if name != "shared_job"}
    shared_job.begin((request.path, request.node.originalname, str(params)))
    yield shared_job
    shared_job.finish(request.node.stash.get(FAILED, False))


def oracle_path(num_parts: int = 2, part_method: str = "random") -> str:
    """Path of the oracle graph's configuration in some number of parts; all of them are written at the start."""
    return path_of(layouts.FOLDER / f"{part_method}{num_parts}")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Rank 0 compiles the kernels and writes the oracle graphs; the others collect the tests, then wait for it."""
    if session.config.option.collectonly:
        return
    folder = WORLD.bcast(tempfile.mkdtemp(prefix="mpigraph-tests-") if WORLD.rank == 0 else None)
    layouts.FOLDER = Path(folder)
    tempfile.tempdir = tempfile.mkdtemp(prefix="mpigraph-files-")
    os.chmod(tempfile.tempdir, 0o755)  # tests have processes of other users
    jobs.ZYGOTE = layouts.FOLDER / "zygote"
    signal.signal(signal.SIGTERM, leave)
    if WORLD.rank == 0:
        warm_up()
        for num_parts in (1, 2, 3, 4, 7):
            write_oracle(layouts.FOLDER / f"random{num_parts}", num_parts, "random")
        for num_parts in (1, 3, 4):
            write_oracle(layouts.FOLDER / f"given{num_parts}", num_parts, "given")
        write_oracle(layouts.FOLDER / "metis2", 2, "metis")
        write_oracle(layouts.FOLDER / "other2", 2, name="other")
        write_typed_oracle(layouts.FOLDER / "typed3", 3, "random")


def pytest_sessionfinish() -> None:
    if layouts.FOLDER is None:
        return
    quiet_barrier(WORLD)
    for outcome in COUNTS:
        COUNTS[outcome] = WORLD.allreduce(COUNTS[outcome])
    jobs.end_zygote()
    shutil.rmtree(tempfile.gettempdir(), ignore_errors=True)
    tempfile.tempdir = None
    if WORLD.rank == 0:
        shutil.rmtree(layouts.FOLDER)
        remove_dead_segments()


def remove_dead_segments() -> None:
    """Remove the shared memory of MPICH of jobs that were ended inside ``MPI_Init``."""
    old = time.time() - 10
    mapped = ""
    for path in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            mapped += path.read_text()
    for path in Path("/dev/shm").glob("mpich_*"):
        with suppress(OSError):
            found = path.stat()
            if found.st_uid == os.getuid() and found.st_mtime < old and str(path) not in mapped:
                path.unlink()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts = ", ".join(f"{count} {outcome}" for outcome, count in COUNTS.items())
    terminalreporter.write_line(f"on {WORLD.size} rank(s), each rank's share of a test counted: {counts}")


@pytest.fixture(scope="session")
def oracle() -> Callable[..., str]:
    return oracle_path


@pytest.fixture
def shared_path(job: SharedJob, tmp_path: Path) -> Path:
    return job.one_has(lambda: tmp_path)


@pytest.fixture
def g(job: SharedJob, oracle: Callable[..., str]) -> DistGraph:
    """The oracle graph in three parts, open in the module's job."""
    return job.open(oracle(3))


@pytest.fixture(scope="session")
def typed_oracle() -> str:
    """Path of the typed oracle's configuration in three parts, ids dealt out at random."""
    return oracle_path(3, "typed")
