"""Jobs that tests start: programs of their own, mostly under ``mpiexec``, of which nothing stays behind.

A job is a session of its own and writes to files. So one that takes too long can be ended with what it has started,
and nobody waits for a pipe that some process of it still holds. Where a test meets its deadline, its job ends with it.
"""

import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, flock
from pathlib import Path
from tempfile import TemporaryFile
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from mpi4py import MPI

from mpigraph.cli.main import main

DEADLINE = float(os.environ.get("MPIGRAPH_TEST_DEADLINE", "300"))  # seconds of a test
SLOW = 3  # times the deadline, for tests that are marked slow
SOON = 0.7 * DEADLINE  # seconds in which a job ends that does not hang, on a busy machine, too
GRACE = 5  # seconds in which a job that is told to end can do so
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXAMPLES = ROOT / "examples"
NEEDS = {"slurm", "hosts"}
REQUIRED = set(filter(None, os.environ.get("MPIGRAPH_TEST_REQUIRE", "").split(",")))
ZYGOTE: Path | None = None  # its socket, which all ranks that test share

# Open MPI refuses to run as root, or more ranks than cores, unless it is told; ranks that share cores must not spin.
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
PRELUDE = """
import os, sys, time, signal
import torch
import mpigraph.distributed as dist
from mpigraph.dataloading import NeighborSampler
dist.initialize(num_servers={servers})
g = dist.DistGraph("oracle", part_config={path!r})
rank = g.rank()
"""

patience = DEADLINE  # seconds of all jobs of the test that runs, so that a job that hangs is the error that is reported
LASTING: set[int] = set()  # processes that live as long as the tests
_running: set[int] = set()  # process groups
_zygote: "subprocess.Popen[bytes] | None" = None  # if this process started it


class Done(NamedTuple):
    """A job that has ended."""

    status: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def load_example(name: str) -> ModuleType:
    """A module that the examples share."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def launcher() -> str:
    """The mpiexec beside this Python, else the system's."""
    found = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert found is not None
    return found


def mpiexec(ranks: int) -> list[str]:
    """The words to put before a command that is to run on some ranks; none for one rank."""
    return [launcher(), "-n", str(ranks)] if ranks > 1 else []


def warm_python() -> list[str]:
    """The words to put before a script that is to run in a fork of a Python with torch; it looks as if freshly started.

    Not for a job whose subject is how it is started, and not for one with other variables of OpenMP.
    """
    global _zygote
    assert ZYGOTE is not None
    with open(f"{ZYGOTE}.lock", "w") as lock:
        flock(lock, LOCK_EX)  # whoever is first starts it
        if not ZYGOTE.exists():
            command = [sys.executable, HERE / "zygote.py", ZYGOTE]
            _zygote = subprocess.Popen(command, env=clean_environment(), stdin=subprocess.PIPE, start_new_session=True)
            LASTING.add(_zygote.pid)
            while not ZYGOTE.exists():
                assert _zygote.poll() is None, "the zygote cannot start"
                time.sleep(0.05)
    return [sys.executable, "-I", "-S", str(HERE / "zygote_rank.py"), str(ZYGOTE)]


def end_zygote() -> None:
    """End the zygote, if this process has started it."""
    if _zygote is not None:
        _zygote.communicate()


def clean_environment() -> dict[str, str]:
    """The environment without what a launcher told this rank, so that another job can be started."""
    ours = re.compile(r"PMI|HYD|MPI_|MPIR|OMPI(?!_MCA_(osc|pml|btl)$)|OPAL|PRTE|RANK|WORLD|MASTER|LOCAL_RANK")
    kept = {key: value for key, value in os.environ.items() if not ours.match(key)}
    return kept | OPEN_MPI | {"OMP_NUM_THREADS": "1", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}


@contextmanager
def started(command: Sequence[object], env: Mapping[str, str], **options: Any) -> "Iterator[subprocess.Popen[Any]]":
    """A job that ends with the block, if it has not ended before."""
    job = subprocess.Popen(list(map(str, command)), env=env, start_new_session=True, **options)
    _running.add(job.pid)
    try:
        yield job
    finally:
        if job.poll() is None:
            send(job.pid, signal.SIGTERM)  # MPICH's ranks are in sessions of their own: their launcher ends them
            with suppress(subprocess.TimeoutExpired):
                job.wait(GRACE)
        send(job.pid, signal.SIGKILL)
        job.wait()
        _running.discard(job.pid)


def run_job(
    command: Sequence[object], env: Mapping[str, str], seconds: float | None = None, cwd: Path | None = None
) -> Done:
    """Run a job to its end, which must come within some seconds, by default shortly before the test's deadline."""
    seconds = patience if seconds is None else seconds
    with TemporaryFile("w+", errors="replace") as out, TemporaryFile("w+", errors="replace") as err:
        begin, status = time.monotonic(), None
        files = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
        with started(command, env, cwd=cwd, **files) as job, suppress(subprocess.TimeoutExpired):
            status = job.wait(seconds)
        took = time.monotonic() - begin
        for file in (out, err):
            file.seek(0)
        printed = out.read(), err.read()
    assert status is not None, f"{shlex.join(job.args)} took more than {seconds} s:\n{''.join(printed)}"
    return Done(status, *printed, took)


def run(*command: object, cwd: Path | None = None, seconds: float | None = None) -> str:
    """Run a job to its good end; return what it printed."""
    done = run_job(command, clean_environment(), seconds, cwd)
    assert done.status == 0, done.output
    return done.stdout


def run_script(
    tmp_path: Path,
    path: str,
    body: str,
    ranks: int = 3,
    servers: int = 1,
    before: str = "",
    seconds: float | None = None,
    **env: str,
) -> tuple[int, str, float]:
    """Run a script that opens the oracle graph; return its status, its output, and how many seconds it took.

    Its ranks ask owners for neighbours, though they could have copies of this small graph.
    """
    script = tmp_path / "script.py"
    script.write_text(before + PRELUDE.format(servers=servers, path=path) + body)
    env = clean_environment() | {"MPIGRAPH_TOPOLOGY": "owners"} | env
    done = run_job([*mpiexec(ranks), *warm_python(), script], env, seconds)
    return done.status, done.output, done.seconds


def generated(where: Path, sizes: str, parts: str) -> Path:
    """Write a random graph by the commands, in this process; return the path of its configuration."""
    for words in (f"generate {sizes} -o {where}/data", f"partition {where}/data {parts} --name S -o {where}"):
        assert main(words.split()) == 0
    return where / "S.json"


def soon(true: Callable[[], bool], seconds: float = DEADLINE / 2) -> bool:
    """Wait outside MPI until something is true; return whether it is."""
    end = time.monotonic() + seconds
    while not (now := true()) and time.monotonic() < end:
        time.sleep(0.01)
    return now


def wait_for(paths: Sequence[Path], seconds: float = DEADLINE / 2) -> bool:
    """Wait until other ranks have made some files; return whether they have."""
    return soon(lambda: all(path.exists() for path in paths), seconds)


def send(group: int, number: signal.Signals) -> None:
    """Send a signal to a job, if there is any of it left."""
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def end_all(number: signal.Signals) -> None:
    """Send a signal to all jobs of this process."""
    for group in list(_running):
        send(group, number)


def check_required() -> None:
    """Raise an error if something is required that no test needs."""
    if REQUIRED - NEEDS:
        raise pytest.UsageError(f"MPIGRAPH_TEST_REQUIRE: nothing is called {', '.join(REQUIRED - NEEDS)}")


def needs(what: str, missing: str) -> pytest.MarkDecorator:
    """The mark of tests that start jobs on ``what``, of which something is missing if ``missing`` is not empty."""
    if MPI.COMM_WORLD.size > 1:
        return pytest.mark.skip(reason="runs jobs of its own: start pytest without mpiexec")
    return pytest.mark.skipif(bool(missing) and what not in REQUIRED, reason=missing)


def with_file_system(where: str | Path, size: str) -> list[str]:
    """The words to put before a command that is to see a file system of its own, of some size, at a directory."""
    mount = f'mount --make-rprivate / && mount -t tmpfs -o size={size} tmpfs "{where}" && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", mount, "sh"]


def cannot_mount() -> str:
    """What keeps a command from having a file system of its own, in words; empty if nothing does."""
    if os.geteuid() != 0:
        return "mounting needs root"
    trial = subprocess.run([*with_file_system("/dev/shm", "1m"), "true"], capture_output=True, text=True)
    return f"a small /dev/shm cannot be mounted: {trial.stderr.strip()}" if trial.returncode else ""
