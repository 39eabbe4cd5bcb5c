"""Nothing hangs: damaged files on one rank, broken scripts, killed ranks, ranks that never come.

Broken scripts run as jobs of their own, under ``mpiexec`` with a clean environment, and must end within seconds, with
a status and one message that says what happened where.
"""

import re
import shutil
import sys
from pathlib import Path

import h5py
import pytest
from damaged import flip
from jobs import SOON, clean_environment, mpiexec, run_job, run_script, wait_for
from layouts import Job, Layout, api, needs_threads
from oracle import NAME, NUM_NODES

import mpigraph.distributed as dist
from mpigraph.errors import MPIGraphError
from mpigraph.storage.part_config import PartConfig


def damage(directory: Path, how: str) -> str:
    """Damage part 1 of a copy of the graph; return what the error must say."""
    shard = directory / "part1" / "graph.h5"
    if how == "missing":
        shard.unlink()
        return "graph.h5: shard file is missing"
    if how == "truncated":
        shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
        return "graph.h5"
    if how == "foreign":
        with h5py.File(shard, "w") as file:
            file["x"] = [1, 2, 3]
        return "graph.h5"
    flip(shard, "relations/_N:_E:_N/indices")
    return "relations/_N:_E:_N/indices"


@api
@pytest.mark.parametrize("how", ["missing", "truncated", "foreign", "flipped"])
def test_a_damaged_shard_on_one_rank_raises_on_all(
    layout: Job, oracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    path = oracle(2)
    bad = tmp_path / "bad"
    shutil.copytree(Path(path).parent, bad)
    words = damage(bad, how)
    original = PartConfig.part_path
    if layout.comm.rank == layout.comm.size - 1:  # the last rank hosts (a part of) part 1 in every layout
        monkeypatch.setattr(
            PartConfig, "part_path", lambda c, k, which: bad / original(c, k, which).relative_to(c.directory)
        )

    def body() -> None:
        with pytest.raises(MPIGraphError, match=f"rank {layout.comm.size - 1}|every rank") as caught:
            dist.DistGraph(NAME, part_config=path)
        assert words in str(caught.value)

    layout.run(body)


@needs_threads
@pytest.mark.parametrize("transport", ["rma", "packed"])
def test_reads_go_on_while_their_target_computes(comm, oracle, tmp_path: Path, transport: str) -> None:
    """Rows of a rank that is outside MPI can be read: no deadlock between a reader and a busy host."""
    path, folder = oracle(3), comm.bcast(tmp_path)

    def body() -> bool:
        g = dist.DistGraph(NAME, part_config=path)
        g.barrier()
        if g.rank() == 0:  # "computes" until the others have read
            return wait_for([folder / str(rank) for rank in range(1, comm.size)])
        g.ndata["feat"][list(range(NUM_NODES))]
        (folder / str(g.rank())).touch()
        return True

    assert Job(comm, Layout(comm.size, 0, 1), transport).run(body)


@pytest.mark.parametrize(
    "before",
    [pytest.param("", marks=pytest.mark.slow), 'torch.distributed.init_process_group("gloo")\n'],
    ids=["alone", "torch"],
)
def test_an_exception_on_one_trainer_ends_the_job(tmp_path: Path, oracle, before: str) -> None:
    """Also where torch has put a hook of its own before ours, which keeps what ours prints in memory."""
    body = before + 'if rank == 1: raise RuntimeError("I am the culprit")\ng.barrier(); g.barrier()'
    status, output, seconds = run_script(tmp_path, oracle(2), body)
    assert status != 0 and seconds < SOON
    assert "uncaught exception on trainer 1/2 (rank 1)" in output and "I am the culprit" in output


UNWRITABLE = {
    "full": 'os.dup2(os.open("/dev/full", os.O_WRONLY), 2)\n',
    "unread": "reader, writer = os.pipe(); os.dup2(writer, 2)\n"
    "os.set_blocking(2, False)\n"
    "try:\n    while True: os.write(2, bytes(4096))\n"
    "except BlockingIOError: os.set_blocking(2, True)\n",
    "closed": "os.close(2)\n",
}


@pytest.mark.parametrize(
    "stderr",
    [
        pytest.param(code, id=name, marks=[] if name == "full" else pytest.mark.slow)
        for name, code in UNWRITABLE.items()
    ],
)
def test_an_error_that_cannot_be_printed_ends_the_job(tmp_path: Path, oracle, stderr: str) -> None:
    body = "import mpigraph.mpi.abort as end; end._PRINTING_TIME = 1.0\n" + stderr
    body += "if rank == 1: raise RuntimeError()\ng.barrier(); g.barrier()"
    status, _, seconds = run_script(tmp_path, oracle(2), body)
    assert status != 0 and seconds < SOON


@pytest.mark.slow
def test_a_deadline_that_cannot_be_reported_ends_the_job(tmp_path: Path, oracle) -> None:
    body = UNWRITABLE["full"] + "if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\ng.barrier()"
    status, _, seconds = run_script(tmp_path, oracle(2), body, MPIGRAPH_TIMEOUT="8")
    assert status != 0 and seconds < SOON


HURRY = "import mpigraph.session.context as context; context._LEAVING_TIME = 2.0\n"
STATUS = (3, 9)  # MPICH's mpiexec says 9 where it has killed the other ranks
LEAVING = {
    "raise": "if rank == 1: raise RuntimeError('I am the culprit')",
    "exit": "if rank == 1: sys.exit(3)",
    "all": "sys.exit(3)",
}


@pytest.mark.parametrize(
    ("how", "elsewhere"),
    [
        ("raise", "g.barrier()"),
        pytest.param("all", "g.barrier()", marks=pytest.mark.slow),
        pytest.param("exit", "time.sleep(300)", marks=pytest.mark.slow),
    ],
)
def test_an_error_that_passes_exit_client_ends_the_job(tmp_path: Path, oracle, how: str, elsewhere: str) -> None:
    body = f"{HURRY}try:\n    {LEAVING[how]}\n    {elsewhere}\nfinally: dist.exit_client()"
    status, output, seconds = run_script(tmp_path, oracle(2), body)
    assert seconds < SOON
    if how == "raise":
        assert status != 0 and "uncaught exception on trainer 1/2" in output and "I am the culprit" in output
        assert "exit_client" not in output, output  # nothing else went wrong
    else:
        assert status in STATUS, output
        assert status == 3 or how != "all", output


@pytest.mark.slow
@pytest.mark.parametrize("how", ["sys.exit(3)", "sys.excepthook = lambda *args: None; raise RuntimeError()"])
def test_one_trainer_that_leaves_with_a_status_is_named(tmp_path: Path, oracle, how: str) -> None:
    """Also where a hook of the script's own swallows the error."""
    status, output, seconds = run_script(tmp_path, oracle(2), f"{HURRY}\nif rank == 1: {how}\ntime.sleep(300)")
    said = 3 if "exit" in how[:8] else 1
    assert status in (said, 9) and seconds < SOON
    assert f"trainer 1/2 (rank 1) leaves with status {said}" in output


@pytest.mark.slow
def test_one_trainer_that_leaves_and_cannot_say_so_ends_the_job(tmp_path: Path, oracle) -> None:
    body = "import mpigraph.mpi.abort as end; end._PRINTING_TIME = 1.0\n" + HURRY + UNWRITABLE["unread"]
    status, _, seconds = run_script(tmp_path, oracle(2), f"{body}if rank == 1: sys.exit(3)\ntime.sleep(300)")
    assert status != 0 and seconds < SOON


@pytest.mark.slow
def test_errors_of_the_start_and_of_the_end_that_are_caught_leave_the_job_guarded(tmp_path: Path, oracle) -> None:
    """The garbage collector frees what is left of the start that failed in the middle of the job."""
    before = """
import gc, os
import mpigraph.distributed as dist
gc.disable()
os.environ["WORLD_SIZE"] = "17"
try: dist.initialize()
except Exception as error: assert "WORLD_SIZE is 17" in str(error)
del os.environ["WORLD_SIZE"]
"""
    body = """
gc.enable(); gc.collect()
try: dist.exit_client() if rank == 0 else g.barrier()
except Exception as error: assert "trainer(s) 0 in shutdown; trainer(s) 1 in barrier" in str(error)
assert dist.is_initialized()
g.barrier()
if rank == 1: raise RuntimeError("I am the culprit")
g.barrier()
"""
    status, output, seconds = run_script(tmp_path, oracle(2), body, before=before)
    assert status != 0 and seconds < SOON
    assert "uncaught exception on trainer 1/2 (rank 1)" in output and "I am the culprit" in output


@pytest.mark.slow
def test_compiling_may_take_longer_than_a_step(tmp_path: Path, oracle) -> None:
    before = """
import time
import mpigraph.session.context as context
from mpigraph.mpi.watchdog import Watchdog
context.compile_missing = lambda: time.sleep(3)
watch = Watchdog.watch
Watchdog.watch = lambda self, what, patience=1.0, *more: watch(
    self, what, patience / (200 if "kernels" in what else 1), *more
)
"""
    status, output, _ = run_script(tmp_path, oracle(2), "", before=before, MPIGRAPH_TIMEOUT="200")
    assert status == 0, output


@pytest.mark.slow
def test_an_exception_that_is_caught_ends_nothing(tmp_path: Path, oracle) -> None:
    body = """
try: sys.exit(3)
except SystemExit as stop: assert stop.code == 3
try: raise ValueError()
except ValueError: dist.exit_client()
dist.initialize(num_servers=0)
dist.exit_client()
assert not dist.is_initialized()
"""
    status, output, _ = run_script(tmp_path, oracle(2), body, servers=0)
    assert status == 0, output


@pytest.mark.parametrize("per_node", [pytest.param("0", marks=pytest.mark.slow), "1"])
def test_a_collate_function_that_raises_on_one_rank_ends_the_job(tmp_path: Path, oracle, per_node: str) -> None:
    body = """
def collate(ids):
    if rank == 1 and 6 in ids:
        raise RuntimeError("cannot collate 6")
    return dist.sample_neighbors(g, ids, 2)
for batch in dist.DistDataLoader(range(20), 2, collate_fn=collate):
    pass
g.barrier()
"""
    env = {"MPIGRAPH_RANKS_PER_NODE": per_node}
    status, output, seconds = run_script(tmp_path, oracle(2), body, servers=0, **env)
    assert status != 0 and seconds < SOON
    assert "cannot collate 6" in output and "trainer 1/3" in output


def test_an_exception_in_a_thread_ends_the_job(tmp_path: Path, oracle) -> None:
    body = """
import threading
if rank == 0:
    threading.Thread(target=lambda: 1 / 0).start()
g.barrier()
time.sleep(300)
"""
    status, output, seconds = run_script(tmp_path, oracle(2), body)
    assert status != 0 and seconds < SOON and "ZeroDivisionError" in output


@pytest.mark.parametrize(
    "per_node, status",
    [("2", 0), pytest.param("1", 0, marks=pytest.mark.slow), pytest.param("2", 3, marks=pytest.mark.slow)],
)
def test_a_daemon_thread_that_reads_to_the_end_changes_no_status(
    tmp_path: Path, oracle, per_node: str, status: int
) -> None:
    body = f"""
import threading
def use():
    while True:
        g.ndata["feat"][torch.arange(g.num_nodes())]
        begun.set()
begun = threading.Event()
threading.Thread(target=use, daemon=True).start()
begun.wait()
sys.exit({status})
"""
    found, output, _ = run_script(tmp_path, oracle(2), body, 2, 0, MPIGRAPH_RANKS_PER_NODE=per_node)
    assert found == status and "Traceback" not in output, output


@pytest.mark.slow
def test_a_forked_process_has_no_part_in_the_job(tmp_path: Path, oracle) -> None:
    """Such as a worker of torch's DataLoader. Its messages would be taken for the rank's."""
    body = """
def of_the_child():
    for call in (lambda: g.ndata["feat"][[0]], lambda: g.sample_neighbors([0], 2), g.barrier):
        try:
            call()
        except RuntimeError as error:
            print(error, flush=True)
    sys.exit(3)
for run, status in ((of_the_child, 3), (lambda: 1 / 0, 1)):
    child = os.fork()
    if child == 0:
        run()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == status
g.barrier()
"""
    status, output, _ = run_script(tmp_path, oracle(2), body, 2, 0, MPIGRAPH_RANKS_PER_NODE="1")
    assert status == 0, output
    assert all(output.count(f"this process was forked from trainer {k}/2") == 3 for k in (0, 1)), output


NO_WAY_BACK = {
    "a round": ("mpigraph.sampling.in_step.alltoall", "dist.sample_neighbors(g, torch.arange(40), 2)"),
    "a control call": ("mpigraph.session.control.allgather_bytes", "g.barrier()"),
}


@pytest.mark.parametrize("where", ["a round", pytest.param("a control call", marks=pytest.mark.slow)])
def test_a_lack_of_memory_in_the_middle_of_a_protocol_step_ends_the_job(tmp_path: Path, oracle, where: str) -> None:
    """Even where the script catches it: others are in the middle of the step."""
    patched, call = NO_WAY_BACK[where]
    body = f"""
from importlib import import_module
def fail(*args):
    raise MemoryError("no memory for the requests")
if rank == 1:
    module, _, name = {patched!r}.rpartition(".")
    setattr(import_module(module), name, fail)
try:
    {call}
except MemoryError:
    print("survived", flush=True)
g.barrier()
"""
    env = {"MPIGRAPH_RANKS_PER_NODE": "2", "MPIGRAPH_SAMPLING": "alltoallv"}
    status, output, seconds = run_script(tmp_path, oracle(2), body, ranks=4, **env)
    assert status != 0 and seconds < SOON and "survived" not in output
    assert "uncaught exception on trainer 1/2 (rank 2)" in output and "no memory for the requests" in output


@pytest.mark.slow
def test_a_lack_of_memory_beside_a_read_is_raised_once_the_rows_are_there(tmp_path: Path, oracle) -> None:
    """MPI no longer writes to this rank's memory then, so a script may catch the error and go on."""
    body = """
import mpigraph.rows.window as window
load, every = window.load_rows, torch.arange(g.num_nodes())
def fail(*args):
    window.load_rows = load
    raise MemoryError("no memory for the rows of this node")
if rank == 1:
    window.load_rows = fail
    try:
        g.ndata["feat"][every]
    except MemoryError as error:
        print(error, flush=True)
g.barrier()
assert (g.ndata["feat"][every][:, 0] == g.ndata["orig"][every]).all()
"""
    status, output, _ = run_script(tmp_path, oracle(2), body, ranks=4, MPIGRAPH_RANKS_PER_NODE="2")
    assert status == 0 and output.count("no memory for the rows of this node") == 1, output


def test_a_failing_server_ends_the_job(tmp_path: Path, oracle) -> None:
    before = """
import mpigraph.session.context as context
def serve(state, control):
    raise MemoryError("the server is out of memory")
context.serve = serve
"""
    status, output, seconds = run_script(tmp_path, oracle(2), "g.barrier()", before=before)
    assert status != 0 and seconds < SOON
    assert "uncaught exception on server (rank 2)" in output and "out of memory" in output


@pytest.mark.parametrize(
    "ranks, servers", [(3, 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 1), (3, 0)))]
)
def test_a_script_that_ends_without_closing_is_fine(tmp_path: Path, oracle, ranks: int, servers: int) -> None:
    body = "t = dist.DistTensor((g.num_nodes(),), torch.float32)\nit = iter(dist.DistDataLoader(range(9), 2)); next(it)"
    status, output, _ = run_script(tmp_path, oracle(2), body, ranks, servers)
    assert status == 0, output


@pytest.mark.slow
def test_an_exception_while_the_job_ends_at_exit_ends_it(tmp_path: Path, oracle) -> None:
    body = "from mpigraph.session.context import current\ntype(current().control).call = lambda *args, **named: 1 / 0"
    status, output, seconds = run_script(tmp_path, oracle(2), body)
    assert status != 0 and seconds < SOON and "ZeroDivisionError" in output, output


def test_exit_codes_of_scripts_are_kept(tmp_path: Path, oracle) -> None:
    status, output, _ = run_script(tmp_path, oracle(2), "sys.exit(3)")
    assert status == 3, output


def test_a_trainer_that_leaves_early_is_named(tmp_path: Path, oracle) -> None:
    body = "if rank == 0: sys.exit(0)\ng.barrier()"
    status, output, seconds = run_script(tmp_path, oracle(2), body)
    assert status != 0 and seconds < SOON
    assert "trainer(s) 0 in shutdown; trainer(s) 1 in barrier" in output


@pytest.mark.slow
def test_a_wrong_graph_name_is_one_error_on_every_trainer(tmp_path: Path, oracle) -> None:
    path = oracle(2)
    body = f"""
try:
    dist.DistGraph("products", part_config={path!r})
except Exception as error:
    print(f"trainer {{rank}} caught {{type(error).__name__}}: {{error}}", flush=True)
"""
    status, output, _ = run_script(tmp_path, path, body)
    assert status == 0, output
    words = rf"{re.escape(path)} holds graph 'oracle', not 'products': check graph_name and part_config"
    assert sorted(re.findall(rf"trainer (\d) caught PartitionError: .*?{words}", output)) == ["0", "1"], output


@pytest.mark.slow
def test_a_rank_whose_child_lives_on_ends_the_job(tmp_path: Path) -> None:
    """The child has the rank's files, so that a launcher cannot see by those that the rank is gone: it must be told."""
    script = tmp_path / "script.py"
    script.write_text("""
import subprocess, sys, time
import mpigraph.distributed as dist
from mpigraph.session.context import current
dist.initialize(num_servers=0)
if current().rank == 0:
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], close_fds=False)
    raise RuntimeError("with a child")
time.sleep(600)
""")
    done = run_job([*mpiexec(3), sys.executable, script], clean_environment())
    assert done.status == 1 and done.seconds < SOON and done.output.count("RuntimeError: with a child") == 1, done


def test_a_node_without_a_trainer_is_one_error(tmp_path: Path, oracle) -> None:
    status, output, _ = run_script(tmp_path, oracle(2), "", servers=3)
    assert status != 0
    assert output.count("num_servers=3 leaves no trainer on node 0, which has 3 rank(s)") == 1, output


SLEEPS = """
import mpigraph.mpi.wait as wait
import mpigraph.mpi.progress_thread as thread
wait.PATIENCE = 100
thread.IDLE_SERVER_REMOTE = thread.IDLE_SERVER_REMOTE._replace(quiet=1e6)
"""


@needs_threads
@pytest.mark.parametrize("how", [pytest.param("exit", marks=pytest.mark.slow), "raise"])
def test_a_job_ends_while_its_progress_threads_sleep(tmp_path: Path, oracle, how: str) -> None:
    """They would for days: from the time on at which the job has started, which needs them."""
    body = (
        SLEEPS + "time.sleep(1)\n" + ("if rank: raise ValueError('over')\ntime.sleep(1e6)\n" if how == "raise" else "")
    )
    status, output, _ = run_script(tmp_path, oracle(2), body, ranks=2, servers=0, MPIGRAPH_RANKS_PER_NODE="1")
    assert (status == 0) if how == "exit" else (status != 0 and "ValueError: over" in output), output
