"""Nothing hangs: damaged files on one rank, broken scripts, killed ranks, ranks that never come.

Broken scripts run as jobs of their own, under ``mpiexec`` with a clean environment, and must end within seconds, with
a status and one message that says what happened where.
"""

import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

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


class Script(NamedTuple):
    """A broken script, or one that is not, and the end of its job.

    Attributes:
        body: what runs once the graph is open.
        says: texts in the output.
        status: those that the job may end with, within some seconds; None for any but 0.
        more: arguments of ``run_script``.
        suite: whether it runs in the suite; else it is a slow test.
    """

    body: str
    says: tuple[str, ...] = ()
    status: tuple[int, ...] | None = None
    more: dict[str, Any] | None = None
    suite: bool = False


FINE = (0,)
CULPRIT = "I am the culprit"
SAID = f"RuntimeError: {CULPRIT}", "uncaught exception on trainer 1/2 (rank 1)"
IMPATIENT = "import mpigraph.mpi.abort as end; end._PRINTING_TIME = 1.0\n"
UNWRITABLE = {
    "full": 'os.dup2(os.open("/dev/full", os.O_WRONLY), 2)\n',
    "unread": "reader, writer = os.pipe(); os.dup2(writer, 2)\n"
    "os.set_blocking(2, False)\n"
    "try:\n    while True: os.write(2, bytes(4096))\n"
    "except BlockingIOError: os.set_blocking(2, True)\n",
    "closed": "os.close(2)\n",
}
SERIALIZED = "import mpi4py\nmpi4py.rc.thread_level = 'serialized'\n"
HURRY = "import mpigraph.session.context as context; context._LEAVING_TIME = 2.0\n"
STATUS = (3, 9)  # MPICH's mpiexec says 9 where it has killed the other ranks
LEAVE = HURRY + "try:\n    {0}\n    {1}\nfinally: dist.exit_client()"
COLLATE = """
def collate(ids):
    if rank == 1 and 6 in ids:
        raise RuntimeError("cannot collate 6")
    return dist.sample_neighbors(g, ids, 2)
for batch in dist.DistDataLoader(range(20), 2, collate_fn=collate):
    pass
g.barrier()
"""
CALLS = {"save": "saving a checkpoint", "step": "step of SparseAdam", "mean": "full graph 1: mean"}
ASTRAY = """
import mpigraph as mg
step = dist.optim.SparseAdam([dist.DistEmbedding(g.num_nodes(), 2)], lr=0.1).step
fg = mg.FullGraph(g)
mean = lambda: fg.mean(fg.ndata("feat"))
save = lambda: mg.checkpoint.save({{}}, checkpoint_id="saved")
{0}() if rank == 0 else {1}()
"""
READS = """
import threading
def use():
    while True:
        g.ndata["feat"][torch.arange(g.num_nodes())]
        begun.set()
begun = threading.Event()
threading.Thread(target=use, daemon=True).start()
begun.wait()
sys.exit({})
"""
NO_WAY_BACK = """
import {0} as module
def fail(*args):
    raise MemoryError("no memory for the requests")
if rank == 1:
    module.{1} = fail
try:
    {2}
except MemoryError:
    os._exit(0)  # others are in the middle of the step
g.barrier()
"""
NO_MEMORY = "uncaught exception on trainer 1/2 (rank 2)", "MemoryError: no memory for the requests"
FOUR: dict[str, Any] = {"ranks": 4, "MPIGRAPH_RANKS_PER_NODE": "2", "MPIGRAPH_SAMPLING": "alltoallv"}
OPEN_ENDED = (
    "t = dist.DistTensor((g.num_nodes(),), torch.float32)\nit = iter(dist.DistDataLoader(range(9), 2)); next(it)"
)
SCRIPTS = {
    "raises": Script(f'if rank == 1: raise RuntimeError("{CULPRIT}")\ng.barrier(); g.barrier()', SAID),
    # torch's own hook, set before ours, keeps what ours prints in memory
    "raises, torch": Script(
        'torch.distributed.init_process_group("gloo")\n'
        f'if rank == 1: raise RuntimeError("{CULPRIT}")\ng.barrier(); g.barrier()',
        SAID,
        suite=True,
    ),
    **{
        f"stderr {name}": Script(
            f"{IMPATIENT}{code}if rank == 1: raise RuntimeError()\ng.barrier(); g.barrier()", suite=name == "full"
        )
        for name, code in UNWRITABLE.items()
    },
    "a deadline, stderr full": Script(
        UNWRITABLE["full"] + "if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\ng.barrier()",
        more={"MPIGRAPH_TIMEOUT": "8"},
    ),
    "raises past exit_client": Script(
        LEAVE.format(f"if rank == 1: raise RuntimeError('{CULPRIT}')", "g.barrier()"), SAID, suite=True
    ),
    "all leave past exit_client": Script(LEAVE.format("sys.exit(3)", "g.barrier()"), status=(3,)),
    "leaves past exit_client": Script(LEAVE.format("if rank == 1: sys.exit(3)", "time.sleep(300)"), status=STATUS),
    "leaves": Script(
        f"{HURRY}if rank == 1: sys.exit(3)\ntime.sleep(300)", ("trainer 1/2 (rank 1) leaves with status 3",), STATUS
    ),
    "leaves, a hook swallows the error": Script(
        f"{HURRY}if rank == 1: sys.excepthook = lambda *args: None; raise RuntimeError()\ntime.sleep(300)",
        ("trainer 1/2 (rank 1) leaves with status 1",),
        (1, 9),
    ),
    "leaves, stderr unread": Script(
        f"{IMPATIENT}{HURRY}{UNWRITABLE['unread']}if rank == 1: sys.exit(3)\ntime.sleep(300)"
    ),
    "errors of start and end are caught": Script(
        f"""
gc.enable(); gc.collect()  # it frees what is left of the start that failed
try: dist.exit_client() if rank == 0 else g.barrier()
except Exception as error: assert "trainer(s) 0 leave with status 0" in str(error)
assert dist.is_initialized()
g.barrier()
if rank == 1: raise RuntimeError("{CULPRIT}")
g.barrier()
""",
        SAID,
        more={
            "before": """
import gc, os
import mpigraph.distributed as dist
gc.disable()
os.environ["WORLD_SIZE"] = "17"
try: dist.initialize()
except Exception as error: assert "WORLD_SIZE is 17" in str(error)
del os.environ["WORLD_SIZE"]
"""
        },
    ),
    "compiling takes longer than a step": Script(
        "",
        status=FINE,
        more={
            "MPIGRAPH_TIMEOUT": "200",
            "before": """
import time
import mpigraph.session.context as context
from mpigraph.mpi.deadlines import Waits
context.compile_missing = lambda: time.sleep(3)
waiting = Waits._waiting
Waits._waiting = lambda self, what, patience, *more: waiting(
    self, what, patience / (200 if "kernels" in what else 1), *more
)
""",
        },
    ),
    "exceptions are caught": Script(
        """
try: sys.exit(3)
except SystemExit as stop: assert stop.code == 3
try: raise ValueError()
except ValueError: dist.exit_client()
dist.initialize(num_servers=0)
dist.exit_client()
assert not dist.is_initialized()
""",
        status=FINE,
        more={"servers": 0},
    ),
    **{
        f"collate raises, {per_node} a node": Script(
            COLLATE,
            ("RuntimeError: cannot collate 6", "trainer 1/3"),
            more={"servers": 0, "MPIGRAPH_RANKS_PER_NODE": per_node},
            suite=per_node == "1",
        )
        for per_node in "01"
    },
    "a thread raises": Script(
        "import threading\nif rank == 0: threading.Thread(target=lambda: 1 / 0).start()\ng.barrier()\ntime.sleep(300)",
        ("ZeroDivisionError: division",),
        suite=True,
    ),
    **{
        f"a daemon thread reads, {per_node} a node, {status}": Script(
            READS.format(status),
            status=(status,),
            more={"ranks": 2, "servers": 0, "MPIGRAPH_RANKS_PER_NODE": per_node},
            suite=(per_node, status) == ("2", 0),
        )
        for per_node, status in (("2", 0), ("1", 0), ("2", 3))
    },
    "no memory in a round": Script(
        NO_WAY_BACK.format("mpigraph.sampling.exchanges", "alltoall", "dist.sample_neighbors(g, torch.arange(40), 2)"),
        NO_MEMORY,
        more=FOUR,
        suite=True,
    ),
    "no memory in a control call": Script(
        NO_WAY_BACK.format("mpigraph.session.control", "gathering", "g.barrier()"), NO_MEMORY, more=FOUR
    ),
    # MPI no longer writes to this rank's memory when the error comes, so a script may catch it and go on
    "no memory beside a read": Script(
        """
import mpigraph.rows.window as window
load, every = window.move_rows, torch.arange(g.num_nodes())
def fail(*args):
    window.move_rows = load
    raise MemoryError("no memory for the rows of this node")
if rank == 1:
    window.move_rows = fail
    try:
        g.ndata["feat"][every]
    except MemoryError as error:
        print(error, flush=True)
g.barrier()
assert (g.ndata["feat"][every][:, 0] == g.ndata["orig"][every]).all()
""",
        ("no memory for the rows of this node",),
        FINE,
        {"ranks": 4, "MPIGRAPH_RANKS_PER_NODE": "2"},
    ),
    "a server fails": Script(
        "g.barrier()",
        ("uncaught exception on server (rank 2)", "MemoryError: the server is out of memory"),
        more={
            "before": """
import mpigraph.session.context as context
def serve(state, control):
    raise MemoryError("the server is out of memory")
context.serve = serve
"""
        },
        suite=True,
    ),
    **{
        f"nothing is closed, {ranks} ranks, {servers} servers": Script(
            OPEN_ENDED, status=FINE, more={"ranks": ranks, "servers": servers}, suite=ranks > servers > 0
        )
        for ranks, servers in ((3, 1), (1, 1), (3, 0))
    },
    "raises as the job ends at exit": Script(
        "from mpigraph.session.context import current\ntype(current().control).call = lambda *args, **named: 1 / 0",
        ("ZeroDivisionError",),
    ),
    "exits": Script("sys.exit(3)", status=(3,), suite=True),
    "leaves early": Script(
        "if rank == 0: raise SystemExit(3)\ng.barrier()",
        ("trainer(s) 0 leave with status 3; trainer(s) 1 in barrier at script.py:", "belongs on all of them"),
        (3,),
        suite=True,
    ),
    "starts again without its servers": Script(
        "dist.exit_client()\ndist.initialize()", ("InvalidArgumentError: this job's servers have ended",), (1,)
    ),
    "hosts that train without threads in MPI": Script(  # they answer other nodes while they compute
        "",
        ("num_servers=0 on several nodes needs MPI_THREAD_MULTIPLE",),
        more={"servers": 0, "before": SERIALIZED, "MPIGRAPH_RANKS_PER_NODE": "1"},
        suite=True,
    ),
    **{
        f"{one} on one, {other} on others": Script(
            ASTRAY.format(one, other),
            (f"waiting in {CALLS[one]}", f"waiting in {CALLS[other]}"),
            more={"MPIGRAPH_TIMEOUT": "8"},
        )
        for one, other in (("save", "step"), ("mean", "step"), ("step", "mean"))
    },
    "too many servers": Script(
        "", ("num_servers=3 leaves no trainer on node 0, which has 3 rank(s)",), more={"servers": 3}, suite=True
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if case.suite else pytest.mark.slow) for name, case in SCRIPTS.items()]
)
def test_a_job_ends_as_its_script_does(tmp_path: Path, oracle, name: str) -> None:
    case = SCRIPTS[name]
    status, output, seconds = run_script(tmp_path, oracle(2), case.body, **(case.more or {}))
    assert status != 0 if case.status is None else status in case.status, output
    assert status == 0 or seconds < SOON
    assert [text for text in case.says if text not in output] == [], output
    if "past exit_client" in name:  # nothing else went wrong
        assert "exit_client" not in output.replace("dist.exit_client()", ""), output
    if status == 0 or case.status == (3,):
        assert "Traceback" not in output, output


@pytest.mark.slow
def test_a_forked_process_has_no_part_in_the_job(tmp_path: Path, oracle) -> None:
    """Such as a worker of torch's DataLoader. Its messages would be taken for the rank's."""
    body = """
def of_the_child():
    reads = [lambda: g.ndata["feat"][[0]], lambda: g.in_degrees([0]), lambda: g.out_degrees([0])]
    reads.append(lambda: g.find_edges([0]))
    for call in (*reads, lambda: g.sample_neighbors([0], 2), g.barrier):
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
    assert all(output.count(f"this process was forked from trainer {k}/2") == 6 for k in (0, 1)), output


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


SLEEPS = """
import mpigraph.mpi.wait as wait
import mpigraph.mpi.coroutine as thread
wait.PATIENCE = 100
thread.IDLE = thread.IDLE._replace(quiet=1e6)
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
