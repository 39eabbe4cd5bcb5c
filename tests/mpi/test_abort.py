"""The end of a job by one of its processes."""

import json
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from jobs import PRELUDE, SOON, clean_environment, mpiexec, run_job, run_script

from mpigraph import trace
from mpigraph.mpi import witness
from mpigraph.trace_memory import Trace

PATIENT = """
from mpigraph.mpi import abort
abort._READING_TIME = 600.0
abort.abort(3, "the text of an error\\n")
"""


def wait_for_input(file: Any) -> None:
    """Wait until something can be read, also where so many files are open that select() cannot."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    poll.poll()


def test_what_was_printed_is_read_before_the_launcher_hears_of_the_end() -> None:
    """MPICH's mpiexec drops what it has not read by then."""
    with subprocess.Popen([sys.executable, "-c", PATIENT], stderr=subprocess.PIPE, env=clean_environment()) as process:
        assert process.stderr is not None
        wait_for_input(process.stderr)
        time.sleep(0.5)
        assert process.poll() is None
        assert b"the text of an error\n" in process.stderr.read()
    assert process.returncode == 3


INTERRUPTED = """
import signal, traceback
from mpigraph.mpi import abort
def interrupted(error):
    signal.raise_signal(signal.SIGINT)
    return shown(error)
shown, traceback.format_exception = traceback.format_exception, interrupted
abort.guard("trainer 0/2", 0)
raise LookupError("the text of an error")
"""


def test_ctrl_c_does_not_come_between_an_error_and_its_report() -> None:
    done = run_job([sys.executable, "-c", INTERRUPTED], clean_environment())
    assert done.status == 1 and "uncaught exception on trainer 0/2" in done.output
    assert "LookupError: the text of an error" in done.output and "UnboundLocalError" not in done.output


ENDS = """
import atexit, os, sys
from mpigraph.mpi import abort
abort.guard("trainer 0/2", 0)
atexit.register(lambda: os.write(1, b"%d" % abort.exit_status()))
def leave(): raise SystemExit(3)
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("leave()", 3),
        ("try: leave()\nfinally: print(end='')", 3),
        ("with open(os.devnull): leave()", 3),
        ("try: sys.exit(3)\nexcept SystemExit as error: raise SystemExit(4) from error", 4),
        ("try: leave()\nexcept SystemExit: sys.exit(0)", 0),
        ("kept = SystemExit(3)", 0),
        ("try: leave()\nexcept SystemExit as error: kept = error", 0),
    ],
)
def test_the_status_of_a_script_is_known_at_exit(tmp_path: Path, end: str, status: int) -> None:
    (tmp_path / "script.py").write_text(ENDS + end)
    done = run_job([sys.executable, tmp_path / "script.py"], clean_environment())
    assert (done.status, done.output) == (status, str(status))


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_witness_names_who_dies(when: str) -> None:
    """Also if it starts too late to see the rank."""
    code = "import sys; from mpigraph import trace; print(*trace.address(), flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as rank:
        assert rank.stdout is not None
        address = list(map(int, rank.stdout.readline().split()))
        assert Trace((address[0], address[1], address[2])).readable
        assert not Trace((address[0], address[1], address[2] + 1)).readable  # another process, as in another container
        if when == "before":
            rank.kill()
            rank.wait()
        words = json.dumps([[trace.address(), address], ["trainer 0", "trainer 1"]])
        command = [sys.executable, "-I", "-S", witness.__file__, words]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watches:
            time.sleep(0.5)
            rank.kill()
            assert watches.stderr is not None
            said = watches.stderr.readline()
            watches.kill()  # before it ends the other rank, this process
    assert said.startswith("[mpigraph] trainer 1 on host")


DIES = """
torch.distributed.init_process_group({group})
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 100))
for step in range(20):
    if step == 9 and rank == {who}:
        {how}
    model(torch.ones(2, 100)).sum().backward()
time.sleep(60)
"""


@pytest.mark.slow
def test_the_others_end_where_the_launcher_has_not_seen_who_died(tmp_path: Path, oracle) -> None:
    """A shell hides the end of each rank from the launcher."""
    script = tmp_path / "script.py"
    body = "if rank == 1: os._exit(5)\ntime.sleep(1000)"
    script.write_text(PRELUDE.format(servers=0, path=oracle(2)) + body)
    shell = '"$@"; echo "a rank ended with $?"; sleep 40; exit 1'
    done = run_job([*mpiexec(2), "sh", "-c", shell, "sh", sys.executable, script], clean_environment())
    assert done.status != 0 and done.seconds < SOON
    assert sorted(re.findall("a rank ended with (.*)", done.stdout)) == ["137", "5"], done.output
    assert "trainer 1/2 (rank 1) on host" in done.stderr


@pytest.mark.parametrize(
    ("group", "who", "how"),
    [
        ("'gloo'", 1, "os._exit(5)"),
        pytest.param("'gloo'", 0, "os.kill(os.getpid(), 9)", marks=pytest.mark.slow),
        pytest.param("'mpi4py', init_method='mpi4py://'", 1, "os._exit(5)", marks=pytest.mark.slow),
    ],
)
def test_who_dies_in_ddp_is_named_alone(tmp_path: Path, oracle, group: str, who: int, how: str) -> None:
    body = DIES.format(group=group, who=who, how=how)
    for _ in range(3):  # on a busy machine the launcher may have ended before it reads what the witness prints
        status, output, seconds = run_script(tmp_path, oracle(2), body, ranks=2, servers=0)
        assert status != 0 and seconds < SOON
        if lines := [line for line in output.splitlines() if line.startswith("[mpigraph] ")]:
            break
    died, *spans = lines
    assert died.startswith(f"[mpigraph] trainer {who}/2 (rank {who}) on host"), output
    assert all(line.startswith(f"[mpigraph] last spans of trainer {who}/2 (rank {who}): ") for line in spans), output
    assert "Traceback" not in output
