"""Ctrl-C that a script catches, at random moments: rows and minibatches stay right, and the job ends."""

import signal
import sys
import time
from pathlib import Path

import pytest
from jobs import PRELUDE, SOON, clean_environment, mpiexec, run_job, run_script, started, wait_for
from mpi4py import MPI

INTERRUPTED = """
import random, signal, threading, time
import numpy as np
import torch
import mpigraph as mg
from mpigraph.session.context import current

armed, over, sending, count = threading.Event(), threading.Event(), threading.Lock(), 0

def interrupt():
    global count
    pauses = random.Random(7 + g.rank())
    while not over.is_set():
        time.sleep(pauses.random() * 0.01)
        with sending:
            if armed.is_set():  # once: what catches it must not be interrupted, too
                armed.clear()
                count += 1
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

def rest():
    with sending:
        armed.clear()
    time.sleep(0.03)

nodes = torch.arange(g.num_nodes())
rows = dist.DistTensor((len(nodes), 1000), torch.float32, "rows")
def values(ids): return ids.float()[:, None].expand(-1, 1000).contiguous()
if g.rank() == 0:
    rows[nodes] = values(nodes)
g.barrier()
sampler = mg.dataloading.NeighborSampler([3, 3])
orig = g.ndata["orig"][nodes]
loaders = [
    dist.DistNodeDataLoader(g, nodes, sampler, batch_size=7, features=["feat"], num_prefetch=depth, shuffle=True)
    for depth in (0, 2)
]
def false_rows(loader):
    return sum(int((blocks[0].srcdata["feat"][:, 0].long() != orig[inputs]).sum()) for inputs, _, blocks in loader)
draws = np.random.default_rng(g.rank())
threading.Thread(target=interrupt, daemon=True).start()
caught = wrong = 0
while caught < {many}:
    ids = torch.from_numpy(draws.integers(0, len(nodes), 2000))
    what = caught % 4
    try:
        for _ in range(100):
            armed.set()  # again, as Python drops what is raised in the callback of a weak reference
            if what < 2:
                wrong += false_rows(loaders[what])
                continue
            rows[ids]
            rows[ids[:100]] = values(ids[:100])
            if what == 2:
                for _ in range(3):
                    dist.sample_neighbors(g, nodes[:20], 3)
    except KeyboardInterrupt:
        caught += 1
    try:
        rest()
    except KeyboardInterrupt:
        pass
    some = rows[ids[:500]]
    everything = rows[ids]
    wrong += int((some != values(ids[:500])).sum() + (everything != values(ids)).sum())
over.set()
assert wrong == 0, wrong
g.barrier()
assert [false_rows(loader) for loader in loaders] == [0, 0]
print("right on", g.rank(), flush=True)
"""


@pytest.mark.parametrize(
    "ranks, servers, transport, many",
    [
        (1, 0, "local", 8),
        (2, 0, "packed", 8),
        pytest.param(4, 1, "rma", 8, marks=pytest.mark.slow),
        *(
            pytest.param(ranks, servers, transport, 500 // (ranks - 2 * servers), marks=pytest.mark.study)
            for ranks, servers in [(1, 0), (2, 0), (4, 0), (4, 1)]
            for transport in (("local", "packed", "rma") if ranks > 1 else ["local"])
        ),
    ],
)
def test_rows_stay_right_after_interrupts(
    tmp_path: Path, oracle, ranks: int, servers: int, transport: str, many: int
) -> None:
    body = INTERRUPTED.replace("{many}", str(many))
    env = {"MPIGRAPH_TRANSPORT": transport, "MPIGRAPH_SAMPLING": "sparse"}  # trainers need not be in step
    env["MPIGRAPH_RANKS_PER_NODE"] = "2" if servers else "1"
    if transport == "local":
        env |= {"MPIGRAPH_TRANSPORT": "auto", "MPIGRAPH_RANKS_PER_NODE": "0"}
    status, output, _ = run_script(tmp_path, oracle(2), body, ranks=ranks, servers=servers, **env)
    trainers = ranks - (1 if transport == "local" else 2) * servers
    assert status == 0 and output.count("right on") == trainers, output


WAITING = """
import os, signal, threading, time
def stop(*_): raise {error}
signal.signal(signal.SIGUSR1, stop)
if g.rank() == 0:
    threading.Timer(1.0, os.kill, (os.getpid(), signal.{number})).start()
    try:
        while True:
            {call}
    except {error}:
        print("went on")
        time.sleep(60)
time.sleep(60)
"""


@pytest.mark.parametrize(
    "number, call, error, words",
    [
        ("SIGINT", "g.barrier()", "KeyboardInterrupt", "trainer 0/2 (rank 0) was interrupted while it waits"),
        *(
            pytest.param("SIGUSR1", "g.barrier()", error, "uncaught exception on trainer 0/2", marks=pytest.mark.slow)
            for error in ("SystemExit", "TimeoutError")
        ),
    ],
)
def test_what_cannot_go_on_ends_the_job_with_a_line(
    tmp_path: Path, oracle, number: str, call: str, error: str, words: str
) -> None:
    body = WAITING.replace("{number}", number).replace("{call}", call).replace("{error}", error)
    status, output, seconds = run_script(tmp_path, oracle(2), body, ranks=2, servers=0)
    assert status != 0 and "went on" not in output and words in output, output
    assert seconds < SOON


HERE = "from pathlib import Path\nimport os, time\nPath(f'here-{os.environ[\"PMI_RANK\"]}').touch()\n"
PHASES = {
    "importing": HERE + "import mpigraph.distributed, torch\ntime.sleep(600)",
    "starting MPI": "import mpigraph.distributed as dist\n"
    + HERE
    + "if os.environ['PMI_RANK'] == '1': time.sleep(600)\ndist.initialize()",
    "in gloo": PRELUDE
    + "torch.distributed.init_process_group('gloo')\n"
    + HERE
    + "if rank == 1: time.sleep(600)\ntorch.distributed.barrier()",
    "in a barrier": PRELUDE + HERE + "if rank == 1: time.sleep(600)\ng.barrier()",
}


@pytest.mark.skipif(MPI.get_vendor()[0] != "MPICH", reason="names ranks by a variable of MPICH's")
@pytest.mark.parametrize("phase", ["importing", *(pytest.param(p, marks=pytest.mark.slow) for p in list(PHASES)[1:])])
def test_ctrl_c_ends_the_job_with_a_line(tmp_path: Path, oracle, phase: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(PHASES[phase].replace("{servers}", "0").replace("{path!r}", repr(str(oracle(2)))))
    output = tmp_path / "output"
    with (
        open(output, "w") as file,
        started(
            [*mpiexec(2), sys.executable, script], clean_environment(), cwd=tmp_path, stdout=file, stderr=file
        ) as job,
    ):
        assert wait_for([tmp_path / f"here-{rank}" for rank in range(2)])
        time.sleep(0.5)
        job.send_signal(signal.SIGINT)
        assert job.wait(SOON) != 0
    text = output.read_text()
    if phase not in ("importing", "starting MPI"):  # the end may be Python's own, or the signal's
        assert text.count("[mpigraph] ") == 1 and "Traceback" not in text, text


LEAVES = """
import os, signal, time
from mpigraph.session.context import _outlive_sigterm
_outlive_sigterm()
os.kill(os.getpid(), signal.SIGTERM)
print("alive", 0 < signal.alarm(1) <= 15, flush=True)
while True:
    time.sleep(60)
"""


@pytest.mark.slow
def test_a_rank_that_leaves_outlives_sigterm_for_some_seconds() -> None:
    done = run_job([sys.executable, "-c", LEAVES], clean_environment())
    assert (done.status, done.stdout) == (-signal.SIGALRM, "alive True\n"), done.output
