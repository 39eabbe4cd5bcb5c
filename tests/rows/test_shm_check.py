"""Shared memory that is too small is an error on every rank, with the sizes, before anything is allocated."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from jobs import cannot_mount, clean_environment, mpiexec, run_job, warm_python, with_file_system
from layouts import Job
from oracle import NAME, NUM_NODES

import mpigraph.distributed as dist
from mpigraph.errors import SharedMemoryError
from mpigraph.memory import free_in_groups, unheld_on_node
from mpigraph.rows import segments
from mpigraph.session.context import current
from mpigraph.store import topology
from mpigraph.store.host_ranges import host_memory

BIG = 100_000_000  # bytes that do not fit in the 64 MiB of many containers; MPICH fails to start in 24
SCRIPT = """
import sys
import torch
import mpigraph.distributed as dist
dist.initialize(num_servers=1)
g = dist.DistGraph("oracle", part_config=sys.argv[1])
try:
    dist.DistTensor((g.num_nodes(), {columns}), torch.int8, name="big")
except MemoryError as error:
    print(f"trainer {{g.rank()}}: {{error}}", flush=True)
small = dist.DistTensor((g.num_nodes(), 3), torch.int8, name="small")
small[[5]] = torch.ones(1, 3, dtype=torch.int8)
g.barrier()
assert int(small[[5]].sum()) == 3
print("went on", flush=True)
"""


def test_the_forecast_is_what_the_windows_take(layout: Job, oracle) -> None:
    def body() -> None:
        g = dist.DistGraph(NAME, part_config=oracle(3))
        loaded, tensors = g._topology, current().store.tensors.values()
        windows = {window.number: window for window in (*loaded._windows, *(t.window for t in tensors))}.values()
        forecast = host_memory(loaded.config, loaded.hosts)
        for host in range(loaded.hosts.num_parts):
            taken = sum(-(-int(np.diff(w.offsets)[host]) * w.row_bytes // 4096) * 4096 for w in windows)
            assert taken == forecast[host]

    layout.run(body)


def test_too_little_is_one_error_on_every_trainer(layout: Job, oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a rank alone, whose windows are private memory."""
    monkeypatch.setattr(segments, "unheld_on_node", lambda: (1 << 20, 1 << 21))
    forecasts = [np.full(9, 1 << 50), np.zeros(9, np.int64)]
    monkeypatch.setattr(topology, "host_memory", lambda config, hosts: forecasts.pop(0)[: hosts.num_parts])
    needs = r"node 0 \(.*\) needs \d+.\d MiB for its \d host\(s\), and the node's memory has 1.0 MiB free of 2.0 MiB"

    def body() -> None:
        with pytest.raises(SharedMemoryError, match=f"not enough memory for graph 'oracle': {needs}"):
            dist.DistGraph(NAME, part_config=oracle(2))
        g = dist.DistGraph(NAME, part_config=oracle(2))
        what = r"tensor 'vast' \(101 rows of 262144 bytes\)"
        with pytest.raises(SharedMemoryError, match=f"not enough memory for {what}: {needs}") as caught:
            dist.DistTensor((g.num_nodes(), 1 << 16), torch.float32, "vast")
        assert caught.value.everywhere
        assert current().world.allreduce_sum(1) == layout.layout.trainers  # the job goes on

    layout.run(body)


def test_each_limit_is_asked_where_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank speaks for its node, of whose shared memory a rank alone has no need; each for what it may map."""

    class Rank:
        host_index, node_index = 0, 0

        class node:
            size = 2

        def first_hosts(self) -> list[int]:
            return [0]

    limits = {"_shared_memory": 10, "free_in_groups": 20, "unheld_on_node": 30, "free_address_space": 40}
    for name, free in limits.items():
        monkeypatch.setattr(segments, name, lambda free=free: (free, 100))
    rank = Rank()
    assert segments.free_and_size(rank) == (10, 100, 0)
    Rank.node.size = 1
    assert segments.free_and_size(rank) == (20, 100, 1)
    monkeypatch.setattr(segments, "free_in_groups", lambda: None)
    assert segments.free_and_size(rank) == (30, 100, 2)
    Rank.host_index = -1
    assert segments.free_and_size(rank) == (40, 100, 3)
    monkeypatch.setattr(segments, "free_address_space", lambda: None)
    assert segments.free_and_size(rank)[0] > 1 << 60


def test_the_memory_of_a_node_is_what_no_process_holds(tmp_path: Path) -> None:
    sizes = {"MemTotal": 100, "MemAvailable": 40, "AnonPages": 20, "Shmem": 10, "SwapFree": 5, "SwapTotal": 7}
    sizes |= {"CommitLimit": 60, "Committed_AS": 30}
    text = "".join(f"{name}:  {size} kB\n" for name, size in sizes.items()) + "HugePages_Total:   0\n"
    group(tmp_path / "sys" / "vm", overcommit_memory=0)
    (tmp_path / "meminfo").write_text(text)
    assert unheld_on_node(str(tmp_path)) == (75 << 10, 107 << 10)
    (tmp_path / "meminfo").write_text(text + "Hugetlb:  50 kB\n")  # more than is left, which is not so
    assert unheld_on_node(str(tmp_path)) == (45 << 10, 107 << 10)
    group(tmp_path / "sys" / "vm", overcommit_memory=2)
    assert unheld_on_node(str(tmp_path)) == (30 << 10, 60 << 10)
    assert unheld_on_node(str(tmp_path / "nowhere")) is None


def test_a_process_may_map_what_its_limit_leaves() -> None:
    code = "import resource as r; r.setrlimit(r.RLIMIT_AS, (1 << 34, r.getrlimit(r.RLIMIT_AS)[1]));"
    code += "from mpigraph.memory import free_address_space; print(*free_address_space())"
    done = run_job([sys.executable, "-c", code], clean_environment())
    free, limit = map(int, done.stdout.split())
    assert 0 < free < limit == 1 << 34


@pytest.mark.slow
@pytest.mark.skipif(bool(cannot_mount()), reason=cannot_mount())
def test_a_small_shared_memory_is_an_error_and_no_bus_error(tmp_path: Path, oracle) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(columns=BIG // NUM_NODES))
    command = [*with_file_system("/dev/shm", "64m"), *mpiexec(3), *warm_python(), script, oracle(2)]
    done = run_job(command, clean_environment())
    assert done.status == 0, done.output
    pattern = (
        r"trainer (\d): not enough memory for tensor 'big' .*: node 0 \(.*\) needs 95.4 MiB for its 1 host\(s\), and"
    )
    said = re.findall(pattern + r" /dev/shm has \d+.\d MiB free of 64.0 MiB", done.stdout)
    assert said and set(said) <= {"0", "1"}, done.output  # lines of two ranks may mix
    assert done.stdout.count("not enough memory") == done.stdout.count("went on") == 2


def group(path: Path, **files: object) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(f"{text}\n")


def test_the_memory_limit_of_a_job_is_that_of_its_tightest_group(tmp_path: Path) -> None:
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("SwapFree:        2 kB\n")
    (proc / "self" / "cgroup").write_text("0::/job/step\n")
    group(root)
    group(root / "job", memory__max=90_000, memory__current=50_000, memory__stat="file 30000\nshmem 20000")
    group(root / "job" / "step", memory__max="max", memory__current=9_000, memory__stat="file 0\nshmem 0")
    assert free_in_groups(str(proc), str(root)) == (90_000 - 50_000 + 10_000 + 2048, 90_000)
    group(root / "job", memory__max="max")
    assert free_in_groups(str(proc), str(root)) is None

    (proc / "self" / "cgroup").write_text("4:memory:/job\n3:cpu:/\n")
    first = root / "memory"
    stat = "total_cache 7000\ntotal_shmem 7000"
    group(first, memory__limit_in_bytes=2**63 - 4096, memory__usage_in_bytes=10, memory__stat=stat)
    group(first / "job", memory__limit_in_bytes=8_000, memory__usage_in_bytes=9_000, memory__stat=stat)
    assert free_in_groups(str(proc), str(root)) == (2048, 8_000)
    assert free_in_groups(str(tmp_path / "nowhere"), str(root)) is None
