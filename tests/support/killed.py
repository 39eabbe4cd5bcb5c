"""Kill matrix: one rank of a job is killed at each point of its life, and what is left is looked for.

Each case is a job of two nodes' worth of ranks in which trainer 0, another trainer or a server gets SIGKILL or SIGTERM.
It must end within seconds, with a status other than 0; the output must name the rank and its role, once it has one; and
nothing may be left in ``/dev/shm``, in temporary folders or in the process table. ``session/test_killed.py`` and
``hosts/test_hosts.py`` run the cases.
"""

import os
import tempfile
import time
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jobs

PHASES = [
    "before", "initialize", "initialized", "loading", "first", "epoch", "evaluation", "write", "step", "saving",
    "shutdown",
]  # fmt: skip
WITHOUT_ROLES = ("before", "initialize")  # nobody knows yet who is what
WHO = ("trainer 0", "trainer 1", "server")
SIGNALS = ("KILL", "TERM")
KEPT = ("torch", "pymp", "mpigraph-kernels-")  # locks of kernels that a job has compiled
SCRIPT = """
import os, random, signal, sys, threading, time
from pathlib import Path
wanted, victim, number, flag, path, folder = sys.argv[1:]
rank = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
flag = Path(flag)

def be_killed():
    while not flag.exists():
        time.sleep(0.002)
    time.sleep(random.Random(str(sys.argv)).random() * 0.05)
    os.kill(os.getpid(), int(number))

if rank == int(victim):
    threading.Thread(target=be_killed, daemon=True).start()

def at(phase, call, last=False):
    if phase == wanted:
        now = flag.with_suffix(f".{rank}")
        now.write_text(str(time.time()))
        now.replace(flag)  # at once: who writes may be killed when it is there
    call()
    while phase == wanted:
        if last:
            time.sleep(60)
        call()

import torch
import mpigraph.distributed as dist
from mpigraph import checkpoint
from mpigraph.dataloading import NeighborSampler
at("before", lambda: time.sleep(0.01))
try:
    at("initialize", lambda: dist.is_initialized() or dist.initialize(num_servers=1))
except SystemExit:
    time.sleep(60)  # a server after the end, which comes when the others are killed
at("initialized", lambda: time.sleep(0.01))
graphs = []
at("loading", lambda: graphs.append(dist.DistGraph("oracle", part_config=path)))
g = graphs[0]
seeds = torch.arange(g.num_nodes())[g.rank():: 2]
loader = dist.DistNodeDataLoader(g, seeds, NeighborSampler([3, 3]), batch_size=2, features=["feat"], shuffle=True)
emb = dist.DistEmbedding(g.num_nodes(), 4, "emb")
optimizer = dist.optim.SparseAdagrad([emb], lr=0.1)
rows = dist.DistTensor((g.num_nodes(), 2), torch.float32)

def step():
    emb(seeds).sum().backward()
    optimizer.step()

at("first", lambda: next(iter(loader)))
at("epoch", lambda: [step() for _ in loader])
at("evaluation", lambda: [dist.sample_neighbors(g, seeds, 2) for _ in range(9)])
at("write", lambda: rows.__setitem__(seeds, torch.ones(len(seeds), 2)))
at("step", step)
state = {"emb": emb, "optimizer": optimizer, "loader": loader}
at("saving", lambda: checkpoint.save(state, checkpoint_id=folder + "/state"))
g.barrier()
if wanted == "shutdown":  # what is killed after it is no job any more
    from mpigraph.mpi.world import World
    close = World.close
    World.close = lambda world: (time.sleep(1), close(world))
at("shutdown", dist.exit_client, last=True)
"""


class Case(NamedTuple):
    """Who gets what, and when; ``nodes`` is "node" (one), "simulated" or "hosts"."""

    nodes: str
    phase: str
    who: str
    signal: str

    @property
    def ranks_per_node(self) -> int:
        return 3 if self.nodes == "node" else 2

    @property
    def num_nodes(self) -> int:
        return 1 if self.nodes == "node" else 2

    @property
    def victim(self) -> int:
        """The last rank of a node serves, the others train."""
        return {"trainer 0": 0, "trainer 1": self.num_nodes, "server": self.ranks_per_node - 1}[self.who]

    @property
    def name(self) -> str:
        """What the output must call the victim."""
        role = "server" if self.who == "server" else f"{self.who}/2"
        return f"{role} (rank {self.victim})"


CASES = [Case(*words) for words in product(("node", "simulated", "hosts"), PHASES, WHO, SIGNALS)]


class Result(NamedTuple):
    """What became of a case; ``wrong`` is what is not as it must be."""

    seconds: float
    status: int
    named: bool
    left: list[str]
    output: str

    def wrong(self, case: Case) -> list[str]:
        words = [f"status {self.status}"] if self.status == 0 else []
        words += ["not named"] if not self.named and case.phase not in WITHOUT_ROLES else []
        return words + [f"left: {what}" for what in self.left]


def segments() -> set[str]:
    """What MPI has left in shared memory that no process has mapped."""
    found = {f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if name.startswith("mp")}
    for path in Path("/proc").glob("[0-9]*/maps") if found else []:
        with suppress(OSError):  # it has ended
            text = path.read_text(errors="replace")
            found = {name for name in found if name not in text}
    return {name for name in found if os.path.exists(name)}


def of_case(token: str) -> list[str]:
    """The processes that have a case's mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and token.encode() in (entry / "environ").read_bytes():
                found.append(f"process {entry.name} ({(entry / 'comm').read_text().strip()})")
        except OSError:
            continue  # it has ended
    return found


def left_of(token: str, before: set[str], hosts: Any) -> list[str]:
    """What a case has left: processes, and segments of this host since then; hosts of their own have their own."""
    if hosts is None:
        return of_case(token) + sorted(segments() - before)
    return of_case(token) + [f"process {pid}" for pid in hosts.processes()]


def run(case: Case, path: str, python: list[str], hosts: Any = None) -> Result:
    """Run one case on a graph of two parts; ``hosts`` are those of ``namespaces.py``, for a case on hosts."""
    with tempfile.TemporaryDirectory(prefix="killed-") as name:
        folder = Path(name)
        script, flag, temporary = folder / "script.py", folder / "flag", folder / "tmp"
        temporary.mkdir()
        script.write_text(SCRIPT)
        number = {"KILL": 9, "TERM": 15}[case.signal]
        token = f"MPIGRAPH_TEST_CASE={name}"
        env = jobs.clean_environment() | dict([token.split("=")], TMPDIR=str(temporary))
        ranks = case.ranks_per_node * case.num_nodes
        command = jobs.mpiexec(ranks)
        if case.nodes == "hosts":
            command = hosts.mpiexec(case.ranks_per_node, 2)
        elif case.nodes == "simulated":
            env["MPIGRAPH_RANKS_PER_NODE"] = "2"
        before = segments()
        done = jobs.run_job([*command, *python, script, case.phase, case.victim, number, flag, path, folder], env)
        seconds = time.time() - float(flag.read_text())
        end = time.monotonic() + 30  # ends take a moment, on a busy machine some seconds; jobs beside this one start
        while (left := left_of(token, before, hosts)) and time.monotonic() < end:
            time.sleep(0.05)
        left += [str(path) for path in temporary.iterdir() if not path.name.startswith(KEPT)]
    lines = [line for line in done.output.splitlines() if " died at " in line]
    lines.sort(key=lambda line: line.rpartition(" died at ")[2])  # the earliest names the cause
    return Result(seconds, done.status, bool(lines) and case.name in lines[0], left, done.output)
