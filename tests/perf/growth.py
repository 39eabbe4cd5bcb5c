"""Growth with parts, tensors and loaders: ``mpiexec -n N python tests/perf/growth.py [--tensors N] CONFIG``.

Prints, for rank 0, processor time of opening the graph, then processor time, private memory, mappings, file handles,
threads and MPI windows as tensors of one float32 for each node, and loaders of 50 seeds, are made and held.
"""

import argparse
import os
import threading
import time
from pathlib import Path

import torch

import mpigraph.distributed as dist
from mpigraph.dataloading import NeighborSampler

STEPS = (1, 10, 100, 1000, 2000, 5000, 10_000)


def private_memory() -> float:
    """Return this process's private memory in MiB."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private")) / 1024


def tell(g: dist.DistGraph, what: str, begin: float) -> None:
    """Print a line, on rank 0."""
    if g.rank() == 0:
        counts = {
            "CPU s": round(time.process_time() - begin, 2),
            "private MiB": round(private_memory()),
            "mappings": len(Path("/proc/self/maps").read_text(encoding="ascii").splitlines()),
            "file handles": len(os.listdir("/proc/self/fd")),
            "threads": threading.active_count(),
            "windows": len(g.session.store.rows.segments),
        }
        print(f"{what}: " + ", ".join(f"{count} {name}" for name, count in counts.items()), flush=True)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("config", type=Path)
    p.add_argument("--tensors", type=int, default=0)
    p.add_argument("--loaders", type=int, default=0)
    args = p.parse_args()
    dist.initialize()
    begin = time.process_time()
    g = dist.DistGraph(args.config.stem, part_config=str(args.config))
    tell(g, f"opened {g.get_partition_book().num_partitions()} parts", begin)
    seeds = dist.node_split(torch.ones(g.num_nodes(), dtype=torch.bool))[:50]
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
