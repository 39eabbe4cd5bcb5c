"""Growth with ranks, parts, tensors and loaders: ``mpiexec -n N python tests/perf/growth.py [--tensors N] CONFIG``.

Prints, for rank 0, processor time of opening the graph, then processor time, private memory, mappings, file handles,
threads and MPI windows as tensors of one float32 for each node, and loaders of 50 seeds, are made and held.

With ``--minibatches``, and ``MPIGRAPH_RANKS_PER_NODE=2`` for simulated nodes of a trainer and a server, it prints the
row of the README's table of ranks instead, which the first trainer reads from the kernel: nodes and ranks; CPU seconds
up to the minibatches that are measured, and CPU ms of each of these (trainer / server); messages of sampling and of
rows, and MB received, of a trainer's minibatch; private and shared MiB, file handles and threads (trainer / server);
windows.
"""

import argparse
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI

import mpigraph.distributed as dist
from mpigraph.dataloading import NeighborSampler

STEPS = (1, 10, 100, 1000, 2000, 5000, 10_000)
WARM = 12  # minibatches before those that are measured: as many are sampled ahead, and a few
TICK = os.sysconf("SC_CLK_TCK")


def memory_of(pid: int | str, kind: str) -> float:
    """Return a process's private or shared memory in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(kind)) / 1024


def processor_time(pid: int) -> float:
    """Return the processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def tell(g: dist.DistGraph, what: str, begin: float) -> None:
    """Print a line, on rank 0."""
    if g.rank() == 0:
        counts = {
            "CPU s": round(time.process_time() - begin, 2),
            "private MiB": round(memory_of("self", "Private")),
            "mappings": len(Path("/proc/self/maps").read_text(encoding="ascii").splitlines()),
            "file handles": len(os.listdir("/proc/self/fd")),
            "threads": threading.active_count(),
            "windows": len(g.session.store.rows.segments),
        }
        print(f"{what}: " + ", ".join(f"{count} {name}" for name, count in counts.items()), flush=True)


def ranks_row(g: dist.DistGraph, seeds: torch.Tensor, minibatches: int, spare: bool) -> None:
    """Print the row of this number of ranks, on the first trainer."""
    world, store = g.session.world, g.session.store
    feature = next(iter(g.ndata))
    sampler = NeighborSampler([10, 25])
    loader = dist.DistNodeDataLoader(
        g, seeds, sampler, batch_size=100, features=[feature], cache="64MiB", shuffle=True, num_prefetch=0
    )
    roles = [world.trainer_ranks, np.setdiff1d(world.hosts, world.trainer_ranks)]
    pids = [[int(world.pids[rank]) for rank in role] for role in roles]

    def counts() -> np.ndarray:
        channels, rows = store.channels.values(), store.rows.traffic
        sampled = (sum(channel.messages for channel in channels), sum(channel.bytes for channel in channels))
        return np.array([sampled[0], rows.messages, sampled[1] + rows.bytes_received])

    def of_all(count: Callable[[int], float], form: str) -> str:
        return " / ".join(f"{np.mean([count(pid) for pid in role]):{form}}" for role in pids if role)

    batches = iter(loader)
    for _ in range(WARM):
        next(batches)
    g.barrier()
    begun = {pid: processor_time(pid) for role in pids for pid in role}
    before = counts()
    g.barrier()
    for _ in range(minibatches):
        next(batches)
    each = (counts() - before) / minibatches
    g.barrier()
    total = np.empty_like(each)
    world.trainers.Allreduce(each, total)
    each = total / len(world.trainer_ranks)
    if world.trainers.rank == 0:
        cells = [
            f"{world.num_nodes} x {world.size // world.num_nodes}",
            of_all(lambda pid: begun[pid], ".1f"),
            of_all(lambda pid: 1e3 * (processor_time(pid) - begun[pid]) / minibatches, ".0f"),
            f"{each[0]:.1f}, {each[1]:.1f}",
            f"{each[2] / 1e6:.2f}",
            of_all(lambda pid: memory_of(pid, "Private"), ".0f"),
            of_all(lambda pid: memory_of(pid, "Shared"), ".0f"),
            of_all(lambda pid: len(os.listdir(f"/proc/{pid}/fd")), ".0f"),
            of_all(lambda pid: len(os.listdir(f"/proc/{pid}/task")), ".0f"),
            str(len(store.rows.segments)),
        ]
        print("| " + " | ".join(cells) + " |", flush=True)
    g.barrier()
    if spare:
        left = []
        with suppress(MPI.Exception):
            while True:
                left.append(world.trainers.Dup())
        for comm in left:
            comm.Free()
        if world.trainers.rank == 0:
            print(f"{len(left)} communicators left", flush=True)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("config", type=Path)
    p.add_argument("--tensors", type=int, default=0)
    p.add_argument("--loaders", type=int, default=0)
    p.add_argument("--minibatches", type=int, default=0, help="that are measured, of 100 seeds, for the row of ranks")
    p.add_argument("--communicators", action="store_true", help="say how many MPI has left then")
    args = p.parse_args()
    dist.initialize()
    begin = time.process_time()
    g = dist.DistGraph(args.config.stem, part_config=str(args.config))
    all_seeds = dist.node_split(torch.ones(g.num_nodes(), dtype=torch.bool))
    if args.minibatches:
        ranks_row(g, all_seeds, args.minibatches, args.communicators)
        dist.exit_client()
        return
    tell(g, f"opened {g.get_partition_book().num_partitions()} parts", begin)
    seeds = all_seeds[:50]
    feature = next(iter(g.ndata))
    for what, count in (("tensors", args.tensors), ("loaders", args.loaders)):
        begin = time.process_time()
        held = []
        for number in range(1, count + 1):
            if what == "tensors":
                held.append(dist.DistTensor((g.num_nodes(),), torch.float32))
            else:
                held.append(dist.DistNodeDataLoader(g, seeds, NeighborSampler([2]), batch_size=50, features=[feature]))
            if number in STEPS:
                tell(g, f"{number} {what}", begin)
    dist.exit_client()


if __name__ == "__main__":
    main()
