"""Shared memory that is too small is an error on every rank, with the sizes, before anything is allocated."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from jobs import cannot_mount, clean_environment, mpiexec, run_job, with_file_system
from layouts import Job, alone
from oracle import NAME, NUM_NODES

import mpigraph.distributed as dist
from mpigraph.errors import SharedMemoryError
from mpigraph.memory import free_in_groups
from mpigraph.rows import shm_check
from mpigraph.session.context import current
from mpigraph.store import topology
from mpigraph.store.memory_estimate import host_memory

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
print("went on", int(small[[5]].sum()), flush=True)
"""


def test_the_forecast_is_what_the_windows_take(layout: Job, oracle) -> None:
    def body() -> None:
        g = dist.DistGraph(NAME, part_config=oracle(3))
        loaded, tensors = g._topology, current().state.tensors.values()
        windows = [*(tables._window for tables in loaded._all()), *(t.window for t in tensors)]
        forecast = host_memory(loaded.config, loaded.hosts)
        for host in range(loaded.hosts.num_parts):
            taken = sum(-(-int(np.diff(w.offsets)[host]) * w.row_bytes // 4096) * 4096 for w in windows)
            assert taken == forecast[host]

    layout.run(body)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory is a file system on Linux")
def test_too_little_is_one_error_on_every_trainer(layout: Job, oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "host_memory", lambda config, hosts: np.full(hosts.num_parts, 1 << 50))
    step = layout.layout.ranks_per_node or layout.comm.size
    several = layout.comm.size > 1 and step > 1  # of a rank alone, windows are private memory

    def body() -> None:
        if not several:
            dist.DistGraph(NAME, part_config=oracle(2))
            return
        words = r"not enough shared memory for graph 'oracle': node 0 \(.*\) needs \d+.0 MiB for its \d host\(s\), and"
        with pytest.raises(SharedMemoryError, match=words) as caught:
            dist.DistGraph(NAME, part_config=oracle(2))
        assert caught.value.everywhere
        assert current().world.allreduce_sum(1) == layout.layout.trainers  # the job goes on

    layout.run(body)


def test_nothing_is_asked_of_a_rank_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its windows are private memory."""
    monkeypatch.setattr(shm_check, "free_in_groups", lambda: None)

    class Alone:
        class node:
            size = 1

    assert shm_check._free_and_size(Alone()) == (-1, -1, 0)
    Alone.node.size = 2
    free, size, _ = shm_check._free_and_size(Alone())
    assert (0 <= free <= size) if sys.platform == "linux" else free == -1


@pytest.mark.slow
@pytest.mark.skipif(bool(cannot_mount()), reason=cannot_mount())
def test_a_small_shared_memory_is_an_error_and_no_bus_error(tmp_path: Path, oracle) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(columns=BIG // NUM_NODES))
    command = [*with_file_system("/dev/shm", "64m"), *mpiexec(3), sys.executable, script, oracle(2)]
    done = run_job(command, clean_environment())
    assert done.status == 0, done.output
    pattern = (
        r"trainer (\d): not enough shared memory for 101 rows: node 0 \(.*\) needs 95.4 MiB for its 1 host\(s\), and"
    )
    said = re.findall(pattern + r" /dev/shm has \d+.\d MiB free of 64.0 MiB", done.stdout)
    assert said and set(said) <= {"0", "1"}, done.output  # lines of two ranks may mix
    assert done.stdout.count("not enough shared memory") == done.stdout.count("went on 3") == 2


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


def test_a_memory_limit_that_is_too_low_is_one_error(oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_check, "free_in_groups", lambda: (1 << 20, 1 << 21))

    def body() -> None:
        g = dist.DistGraph(NAME, part_config=oracle(2))
        words = r"the job's memory limit has 1.0 MiB free of 2.0 MiB. Use more nodes, or ask for more memory \(--mem"
        with pytest.raises(SharedMemoryError, match=words):
            dist.DistTensor((g.num_nodes(), 1 << 20), torch.int8)

    alone(body)
