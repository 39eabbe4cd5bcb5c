"""Small training jobs of four trainers with one fault each, and what their reports say about them.

A step is a sleep, as the script of an accelerator waits for it, and a small model of real gradients. So faults are seen
on a machine with fewer processors than trainers, too. ``reports/test_faults.py`` runs them: a rank is this module.
"""

import json
import mmap
import os
import random
import signal
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

NODES, EDGES, WIDTH = 40_000, 800_000, 64
MEMORY = Path("/sys/fs/cgroup/memory")  # version 1, or of version 2
CPU = Path("/sys/fs/cgroup/cpu")
LIMIT = 32 << 20  # bytes of a rank under memory pressure, beside those it has
FILE = 256 << 20  # bytes that it reads at random
PATIENCE = 300  # seconds
STEPS = {"cold_cache": 20, "small_cache": 40, "stopped": 30, "limited": 30, "delay": 40, "bandwidth": 40}


@dataclass
class Fault:
    """A job and its fault.

    Attributes:
        name: of the case.
        kind: model, matmul, sudden, seeds, degrees, memory: on a trainer; delay, bandwidth: of the cable of a host;
            stopped, limited: a server; small_cache, cold_cache: of all, on slow cables; warm_cache: the same without a
            fault; "" for none.
        at: the trainer, the host or the server.
        nodes: of the job; 1 is this machine, without namespaces.
        apart: nodes are network namespaces, else they are simulated.
        servers: one on each node, else the trainers host the graph.
        expected: the verdict's kind and reason, and a stage or "".
        size: how many times as long a slow model takes, or as many seeds a minibatch has (0: 1.5 and 3).
    """

    name: str
    kind: str = ""
    at: int = 0
    nodes: int = 1
    apart: bool = False
    servers: bool = False
    expected: tuple[str, str, str] = ("trainer", "stage", "step")
    size: float = 0.0

    @property
    def ranks_per_node(self):
        return 4 // self.nodes + self.servers

    @property
    def rank(self):
        """The rank to blame; of a node's ranks the last one serves."""
        on_a_node = 4 // self.nodes
        if self.kind in ("delay", "bandwidth"):
            return self.at * self.ranks_per_node + (on_a_node if self.servers else 0)
        if self.kind in ("stopped", "limited"):
            return self.at * self.ranks_per_node + on_a_node
        return self.at // on_a_node * self.ranks_per_node + self.at % on_a_node


SEEDS, SUDDEN = ("trainer", "seeds", ""), ("trainer", "sudden", "step")
PRESSED = ("trainer", "memory", "")
NETWORK, REQUESTS = ("host", "network", "fetch"), ("host", "requests", "fetch")
CACHE = ("balanced", "", "fetch")
SIMULATED, REMOTE = {"nodes": 2, "servers": True}, {"nodes": 4, "apart": True}
REMOTE_SERVERS = {"nodes": 2, "servers": True, "apart": True}
LAYOUTS = {"local": {}, "simulated": SIMULATED, "remote": REMOTE, "remote-servers": REMOTE_SERVERS}
FAULTS = [
    Fault("model-local", "model", 2),
    Fault("matmul-local", "matmul", 1),
    Fault("sudden-local", "sudden", 3, expected=SUDDEN),
    Fault("seeds-local", "seeds", 2, expected=SEEDS),
    Fault("degrees-local", "degrees", 1, expected=SEEDS),
    Fault("memory-local", "memory", 3, expected=PRESSED),
    Fault("model-simulated", "model", 0, **SIMULATED),
    Fault("sudden-simulated", "sudden", 1, expected=SUDDEN, **SIMULATED),
    Fault("stopped-simulated", "stopped", 1, expected=REQUESTS, **SIMULATED),
    Fault("seeds-simulated", "seeds", 3, expected=SEEDS, **SIMULATED),
    Fault("model-remote", "model", 3, **REMOTE),
    Fault("model-remote-servers", "model", 1, **REMOTE_SERVERS),
    Fault("sudden-remote", "sudden", 2, expected=SUDDEN, **REMOTE),
    Fault("seeds-remote", "seeds", 1, expected=SEEDS, **REMOTE),
    Fault("small-cache-remote", "small_cache", expected=CACHE, **REMOTE),
    Fault("delay-remote", "delay", 2, expected=NETWORK, **REMOTE),
    Fault("bandwidth-remote", "bandwidth", 1, expected=NETWORK, **REMOTE),
    Fault("stopped-remote", "stopped", 0, expected=REQUESTS, **REMOTE_SERVERS),
    Fault("limited-remote", "limited", 1, expected=REQUESTS, **REMOTE_SERVERS),
    Fault("cold-cache-remote", "cold_cache", expected=CACHE, **REMOTE),
]
BALANCED = [
    Fault(f"balanced-{name}-{i}", expected=("balanced", "", ""), **layout)
    for i in range(5)
    for name, layout in LAYOUTS.items()
]
BALANCED += [Fault("balanced-remote-cached", "warm_cache", expected=("balanced", "", ""), **REMOTE)]


class Outcome(NamedTuple):
    """The verdict of a job, and whether it names what it must."""

    text: str
    named: bool
    verdict: object
    output: str


# ---- the job ---------------------------------------------------------------------------------------------------------


def train():
    """One rank."""
    folder, config, fault = Path(sys.argv[1]), sys.argv[2], Fault(**json.loads(sys.argv[3]))
    (folder / f"{os.environ.get('PMI_RANK', '0')}.pid").write_text(str(os.getpid()))
    import torch

    import mpigraph as mg

    torch.set_num_threads(1)
    mg.distributed.initialize(num_servers=int(fault.servers), seed=1)
    torch.distributed.init_process_group("gloo")
    g = mg.distributed.DistGraph("S", part_config=config)
    own = fault.kind if g.rank() == fault.at else ""
    size = 100 * (int(fault.size or 3) if own == "seeds" else 1)
    steps = STEPS.get(fault.kind, 60)
    every = torch.arange(g.num_nodes()).reshape(-1, 4)[:, g.rank()]
    if fault.kind == "degrees":
        every = every[torch.argsort(g.in_degrees(every), descending=bool(own))]
    else:  # of all parts alike: a host with all seeds has more to answer than the others
        every = every[:: len(every) // (size * 20)]
    cache = {"small_cache": "256KiB", "stopped": None, "limited": None}.get(fault.kind, "auto")
    loader = mg.distributed.DistNodeDataLoader(
        g,
        every[: size * 20],
        mg.dataloading.NeighborSampler([5, 10]),
        batch_size=size,
        shuffle=True,
        features=["feat"],
        **({"cache": cache} if fault.nodes > 1 else {}),
    )
    model = torch.nn.parallel.DistributedDataParallel(Model(torch, mg))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    (folder / f"{g.rank()}.trains").touch()
    pressure = Pressure(folder) if own == "memory" else None
    step = 0
    while step < steps:
        for inputs, seeds, blocks in loader:
            model.require_backward_grad_sync = step % 4 == 0 or not fault.kind.endswith("_cache")  # as by no_sync()
            loss = model(blocks, blocks[0].srcdata["feat"]).pow(2).mean()
            time.sleep(seconds_of_step(fault.kind, own, fault.size, step, len(seeds), len(inputs)))
            if own == "matmul":
                end = time.thread_time() + 0.05
                while time.thread_time() < end:
                    torch.ones(100, 100) @ torch.ones(100, 100)
            if pressure:
                pressure.read()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    del model  # before its group: torch may hang where the model is the last to hold a Gloo group
    torch.distributed.destroy_process_group()


def seconds_of_step(kind, own, size, step, num_seeds, num_inputs):
    """How long the accelerator takes."""
    if kind.endswith("_cache"):
        return 0.002
    if kind == "degrees":
        return num_inputs * 2e-5
    seconds = 0.03 + num_seeds * 1e-4
    return seconds * (size or 1.5) if own == "model" else seconds + 0.4 * (own == "sudden" and step % 10 == 9)


def Model(torch, mg):
    """GraphSAGE of two layers."""

    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = mg.nn.SAGEConv(WIDTH, 16, "mean"), mg.nn.SAGEConv(16, 8, "mean")

        def forward(self, blocks, rows):
            return self.second(blocks[1], self.first(blocks[0], rows))

    return Layers()


class Pressure:
    """Little memory for this process, which reads pages of a file at random."""

    def __init__(self, folder):
        while not (folder / "limited").exists():
            time.sleep(0.05)
        file = os.open(folder / "large", os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        self._pages = mmap.mmap(file, FILE, prot=mmap.PROT_READ)
        self._pages.madvise(mmap.MADV_RANDOM)

    def read(self):
        end = time.perf_counter() + 0.04
        while time.perf_counter() < end:
            self._pages[random.randrange(FILE)]


# ---- faults from outside ---------------------------------------------------------------------------------------------


@contextmanager
def limited_memory(pid, folder):
    """Give a process little memory, and a large file to read."""
    with open(folder / "large", "wb") as file:
        for _ in range(FILE >> 20):
            file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with group(MEMORY if MEMORY.is_dir() else MEMORY.parent, pid, folder) as limits:
        names = [name for name in ("memory.limit_in_bytes", "memory.max") if (limits / name).exists()]
        (limits / names[0]).write_text(str(LIMIT))
        (folder / "limited").touch()
        yield


@contextmanager
def group(top, pid, folder):
    """Put a process into a control group of its own until it ends."""
    limits = top / folder.name
    limits.mkdir()
    try:
        (limits / "cgroup.procs").write_text(str(pid))
        yield limits
    finally:
        with suppress(OSError):
            (top / "cgroup.procs").write_text(str(pid))
        for _ in range(100):
            with suppress(OSError):
                limits.rmdir()
                break
            time.sleep(0.1)


@contextmanager
def limited_processor(pid, folder):
    """Let a process run for 3 % of the time."""
    with group(CPU, pid, folder) as limits:
        (limits / "cpu.cfs_period_us").write_text("400000")
        (limits / "cpu.cfs_quota_us").write_text("12000")
        yield


@contextmanager
def stopped(pid, _):
    """Stop a process for nine tenths of the time."""
    over = threading.Event()

    def stop():
        with suppress(ProcessLookupError):
            while not over.is_set():
                os.kill(pid, signal.SIGSTOP)
                over.wait(0.36)
                os.kill(pid, signal.SIGCONT)
                over.wait(0.04)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


OUTSIDE = {"stopped": stopped, "limited": limited_processor, "memory": limited_memory}


def missing(fault):
    """What keeps a fault from being made here, in words; empty if nothing does."""
    import namespaces

    if fault.apart and (why := namespaces.missing()):
        return why
    if fault.kind in ("delay", "bandwidth") or fault.kind.endswith("_cache"):
        return namespaces.missing_delay()
    group = {"memory": MEMORY if MEMORY.is_dir() else MEMORY.parent, "limited": CPU}.get(fault.kind)
    return f"{group} is not writable" if group and not os.access(group, os.W_OK) else ""


# ---- running ---------------------------------------------------------------------------------------------------------


def write_graph(folder):
    """Write the graph, in four parts at random, and in two."""
    import jobs

    command = [sys.executable, "-m", "mpigraph"]
    sizes = f"--nodes {NODES} --edges {EDGES} --feat-dim {WIDTH} --classes 8".split()
    jobs.run(*command, "generate", *sizes, "-o", folder / "data")
    for parts in (2, 4):
        options = ["--parts", str(parts), "--method", "random", "--name", "S", "-o", folder / str(parts)]
        jobs.run(*command, "partition", folder / "data", *options)


def hosts_of(fault):
    """The hosts on which a job runs, None for this machine."""
    import namespaces

    if not fault.apart:
        return None
    slow = {
        "delay": {"delay": 0.02, "rate": 1e10, "slow": fault.at},
        "bandwidth": {"delay": 1e-4, "rate": 2e7, "slow": fault.at},
    }
    cables = {"delay": 2e-4, "rate": 1.5e7} if fault.kind.endswith("_cache") else slow.get(fault.kind, {})
    return namespaces.Hosts(fault.nodes, shm="512m", **cables)


def run(fault, graph, folder, python=None):
    """Run a job and judge its report.

    Args:
        fault: the job.
        graph: the folder of :func:`write_graph`.
        folder: an empty one.
        python: the words to put before a script.
    """
    import jobs

    from mpigraph.reports import summary, verdict

    report = folder / "report"
    env = {key: value for key, value in jobs.clean_environment().items() if not key.startswith("MPIGRAPH_")}
    env |= {"MPIGRAPH_REPORT": str(report), "MPIGRAPH_TIMEOUT": "60", "MPIGRAPH_TOPOLOGY": "owners"}
    config = graph / str(max(2, fault.nodes)) / "S.json"
    with ExitStack() as stack:
        hosts = hosts_of(fault)
        if hosts is not None:
            launcher = stack.enter_context(hosts).mpiexec(fault.ranks_per_node)
        else:
            launcher = jobs.mpiexec(fault.nodes * fault.ranks_per_node)
            env |= {"MPIGRAPH_RANKS_PER_NODE": str(fault.ranks_per_node)} if fault.nodes > 1 else {}
        command = [*launcher, *(python or [sys.executable]), __file__, folder, config, json.dumps(asdict(fault))]
        with open(folder / "output", "w+") as output, jobs.started(command, env, stdout=output, stderr=output) as job:
            with ExitStack() as outside:
                if fault.kind in OUTSIDE:
                    trains = [folder / f"{trainer}.trains" for trainer in range(4)]
                    assert jobs.wait_for(trains, PATIENCE), (folder / "output").read_text()
                    pid = int((folder / f"{fault.rank}.pid").read_text())
                    outside.enter_context(OUTSIDE[fault.kind](pid, folder))
                    while job.poll() is None and not (report / "summary.json").exists():
                        time.sleep(0.1)
                else:
                    job.wait(PATIENCE)
            job.wait(PATIENCE)
        printed = (folder / "output").read_text()
    assert job.returncode == 0, printed
    result = verdict.judge(summary.read(report))
    return Outcome(result.text, names(fault, result), result, printed)


def names(fault, result):
    """Return whether a verdict has the fault's rank, reason and stage."""
    kind, reason, stage = fault.expected
    ranks = () if kind == "balanced" else (fault.rank,)
    # a starved server lacks a processor, too, and a balanced job may on a busy machine: it names no rank
    reasons = (reason, "processor") if fault.kind == "limited" or kind == "balanced" else (reason,)
    right = (result.kind, result.ranks) == (kind, ranks) and result.reason in reasons
    right &= not stage or stage in result.stages
    if fault.kind in ("small_cache", "cold_cache"):
        right &= "cache hits" in result.text
    return right


if __name__ == "__main__":
    train()
