"""The hosts that other tests use: apart from each other, and gone with their maker."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import namespaces
import pytest
from jobs import clean_environment, needs, run_job

pytestmark = needs("hosts", namespaces.missing())

HELLO = """
from mpi4py import MPI
comm, node = MPI.COMM_WORLD, MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
names = comm.gather(f"{MPI.Get_processor_name()} {node.size}")
if comm.rank == 0:
    print(names)
"""
SLEEP = """
import os, time
from mpi4py import MPI
open(f"{os.path.dirname(__file__)}/{os.getpid()}.rank", "w").close()
time.sleep(300)
"""


def gone(pids: list[int], seconds: float = 60) -> bool:
    """Return whether all processes end in time; a zombie has ended."""
    end = time.monotonic() + seconds
    while any(alive(pid) for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_hosts_are_apart_and_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(HELLO)
    with namespaces.Hosts(2, shm="64m") as hosts:
        command = [*hosts.mpiexec(2), sys.executable, str(tmp_path / "hello.py")]
        done = run_job(command, clean_environment(), 60)
        assert done.stdout.strip() == "['mpig0 2', 'mpig0 2', 'mpig1 2', 'mpig1 2']", done.output
        sleeper = hosts.popen(1, ["sleep", "60"])
        while sleeper.pid not in hosts.processes():
            assert sleeper.poll() is None
    assert sleeper.wait(timeout=60) < 0


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_maker_that_is_killed_leaves_nothing(tmp_path: Path, how: signal.Signals) -> None:
    (tmp_path / "sleep.py").write_text(SLEEP)
    command = [sys.executable, namespaces.__file__, "2", "1", sys.executable, str(tmp_path / "sleep.py")]
    maker = subprocess.Popen(command, env=clean_environment() | {"TMPDIR": str(tmp_path)})
    while len(ranks := [int(path.stem) for path in tmp_path.glob("*.rank")]) < 2:
        assert maker.poll() is None
        time.sleep(0.05)
    networks = {os.readlink(f"/proc/{pid}/ns/net") for pid in ranks}
    on_hosts = namespaces._processes(networks)
    assert len(on_hosts) >= 6  # two that hold the namespaces, mpiexec, two of its helpers, the ranks
    maker.send_signal(how)
    maker.wait(timeout=60)
    assert gone(on_hosts) and namespaces._processes(networks) == []
    assert gone_directory(tmp_path)


def gone_directory(where: Path, seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while list(where.glob("mpig-*")):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
