"""Trainers that come late, or never: a healthy job goes on however long, a stuck one ends and says who is where."""

import re
from pathlib import Path

import pytest
from jobs import SOON, run_script

DEADLINE = 3  # seconds, where a script sets it: steps of the protocol keep theirs, which is long on a busy machine
TWO_NODES = {"ranks": 4, "MPIGRAPH_RANKS_PER_NODE": "2"}  # a trainer and a server each
ONE_NODE = {"ranks": 3}
BOTH = pytest.mark.parametrize(
    "start", [pytest.param(ONE_NODE, marks=pytest.mark.slow), TWO_NODES], ids=["one node", "two nodes"]
)

SHORT = f"""
from mpigraph.mpi.deadlines import WAITS, Waits
from mpigraph.mpi.watchdog import Watchdog
_make = Watchdog.__init__
def _make_short(self, *args, **options):
    _make(self, *args, **options)
    self._timeout = {DEADLINE}
Watchdog.__init__ = _make_short
_waiting = Waits._waiting
Waits._waiting = lambda self, what, patience, *more: _waiting(self, what, 200 / {DEADLINE} * patience, *more)
"""
PLACES = """
from datetime import timedelta
import torch.distributed as td
from mpigraph import checkpoint
td.init_process_group("mpi4py", init_method="mpi4py://")
ALONE = 3 * DEADLINE
folder = os.environ["SKEW_FOLDER"]
emb = dist.DistEmbedding(g.num_nodes(), 4, "skewed")
optimizer = dist.optim.SparseSGD([emb], lr=1.0)
sampler = NeighborSampler([2, 2])
def loader(**options):
    return dist.DistNodeDataLoader(g, torch.arange(8), sampler, batch_size=2, **options)
def alone(work):
    if rank == 0:
        begin = time.monotonic()
        while time.monotonic() - begin < ALONE:
            work()
def place(name):
    print(f"trainer {rank} went on after {name}.", flush=True)
def slow(shape, dtype):
    alone(nap)
    return torch.zeros(shape, dtype=dtype)
def nap():
    time.sleep(1)
def evaluate():
    g.ndata["feat"][torch.arange(g.num_nodes())]
def sort():
    sorted(range(2_000_000), reverse=True)
def write():
    torch.save(torch.zeros(1 << 18), os.path.join(folder, "model.pt"))

alone(evaluate); g.barrier(); place("evaluating before a barrier")
alone(lambda: 3 ** 8_000_000); g.barrier(); place("computing with Python's lock before a barrier")
for step, batch in enumerate(loader()):
    alone(sort) if step == 1 else None
place("sorting before the next sampling round")
batches = loader(num_prefetch=0)
for batch in batches:
    pass
alone(nap); list(batches); place("sleeping between two epochs")
emb(torch.tensor([rank])).sum().backward(); alone(nap); optimizer.step(); place("sleeping before step()")
saved = {"emb": emb, "optimizer": optimizer}, os.path.join(folder, "saved")
alone(write); checkpoint.save(saved[0], checkpoint_id=saved[1]); place("writing before save()")
x = torch.ones(3); alone(nap); td.all_reduce(x); place("sleeping before all_reduce")
alone(nap); td.all_reduce(x, async_op=True).wait(timedelta(hours=1)); place("sleeping before wait(timedelta)")
alone(nap); td.barrier(); place("sleeping before torch's barrier")
dist.DistTensor((g.num_nodes(), 4), torch.float32, "made", init_func=slow); place("making rows in an init_func")
alone(nap); dist.exit_client(); place("sleeping before the end")
"""


@pytest.mark.study
@BOTH
def test_a_trainer_alone_holds_up_nobody_for_good(tmp_path: Path, oracle, start: dict) -> None:
    body = f"DEADLINE = {DEADLINE}\n{PLACES}"
    start = start | {"SKEW_FOLDER": str(tmp_path)}
    status, output, _ = run_script(tmp_path, oracle(2), body, before=SHORT, MPIGRAPH_TIMEOUT="200", **start)
    assert status == 0, output
    went_on = [re.findall(rf"trainer {k} went on after (.*)\.", output) for k in (0, 1)]
    places = re.findall(r'place\("(.*?)"\)', body)
    assert went_on == [places, places] and len(places) == 11
    assert re.search(r"trainer 0/2 \(rank 0\): running at script.py:", output)  # a warning says who is awaited


@pytest.mark.slow
def test_what_one_trainer_samples_alone_across_nodes_ends_the_job(tmp_path: Path, oracle) -> None:
    """Without threads remote neighbours need every trainer."""
    body = "if rank == 0: dist.sample_neighbors(g, torch.arange(g.num_nodes()), 2)\ng.barrier()"
    env = TWO_NODES | {"MPIGRAPH_TIMEOUT": "200"}
    alone = env | {"MPI4PY_RC_THREAD_LEVEL": "serialized"}
    status, output, seconds = run_script(tmp_path, oracle(2), body, before=SHORT, **alone)
    assert status != 0 and seconds < SOON
    assert "every trainer waits" in output
    assert re.search(r"trainer 0/2 .*: waiting in sampling round 1 of calls .* at script.py:\d+ for", output), output
    assert re.search(r"trainer 1/2 .*: waiting in barrier .* at script.py:\d+ for", output), output
    for way in ("sparse", "alltoallv"):  # the host threads of the others take part
        status, output, _ = run_script(tmp_path, oracle(2), body, MPIGRAPH_SAMPLING=way, **env)
        assert status == 0, output


@pytest.mark.slow
@BOTH
def test_a_stopped_trainer_ends_the_job(tmp_path: Path, oracle, start: dict) -> None:
    body = "if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\ng.barrier()"
    status, output, seconds = run_script(tmp_path, oracle(2), body, before=SHORT, MPIGRAPH_TIMEOUT="200", **start)
    assert status != 0 and seconds < SOON
    assert re.search(r"trainer 1/2 \(rank \d\): no sign of life for \d+ s since it was ", output), output
    assert re.search(r"trainer 0/2 .*: waiting in barrier .* at script.py:\d+ for", output), output


@pytest.mark.slow
def test_a_job_that_is_suspended_goes_on(tmp_path: Path, oracle) -> None:
    """Also what waits inside a step, whose deadline does not count the time."""
    body = f"""
from mpigraph.session.context import current
pids = " ".join(map(str, current().world.pids))
with _waiting(WAITS, "a step", 2):
    end = time.monotonic() + 3 * {DEADLINE}
    inside = {str(tmp_path / "inside")!r}
    if rank == 1:
        open(inside, "w").close()
    if rank == 0:  # inside of the step, since it may be stopped before this call returns
        import subprocess
        while not os.path.exists(inside):  # the other trainer is to be stopped inside of it, too
            time.sleep(0.001)
        subprocess.Popen(["sh", "-c", f"kill -STOP {{pids}}; sleep {3 * DEADLINE}; kill -CONT {{pids}}"])
    while time.monotonic() < end:
        time.sleep(0.1)
g.barrier()
"""
    status, output, seconds = run_script(tmp_path, oracle(2), body, before=SHORT, MPIGRAPH_TIMEOUT="200")
    assert status == 0 and seconds > 3 * DEADLINE, output
