"""Processor time of trainers that host the graph, beside trainers with servers: counts of threads, no wall time.

    MPIGRAPH_RANKS_PER_NODE=1 mpiexec -n 8 python tests/perf/hosting.py CONFIG
    MPIGRAPH_RANKS_PER_NODE=2 mpiexec -n 16 python tests/perf/hosting.py CONFIG --servers 1

First every trainer sleeps for some seconds: wake-ups of the progress thread and processor time. Then they make
minibatches without a model: for each, the mean over trainers of processor time by thread, of wake-ups, of requests
answered and the passes that answered them, and of the time until a request is answered.
"""

import argparse
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI

import mpigraph.distributed as dist
from mpigraph import trace
from mpigraph.dataloading import NeighborSampler
from mpigraph.mpi.messages import Request, RequestServer

PROGRESS = "mpigraph-progress"
SHOWN = {"requests": "asked", "answered_ns": "round trips ns"}
answered = np.zeros(2, np.int64)  # passes, requests


def count_answers() -> None:
    """Count what this rank answers."""
    handle = RequestServer.handle

    def counted(self: RequestServer, requests: list[Request]) -> None:
        answered[:] += 1, len(requests)
        handle(self, requests)

    RequestServer.handle = counted  # type: ignore[method-assign]


def wakeups(thread: int) -> int:
    """How often a thread has gone to sleep; it also waits for the interpreter lock so."""
    lines = Path(f"/proc/self/task/{thread}/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("voluntary")).split()[1])


def seconds(thread: int) -> float:
    """The processor time of a thread of this process."""
    return time.clock_gettime(~thread << 3 | 6)


def of_process(pid: int) -> float:
    """The processor time of a process of this machine."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Figures:
    """What has happened since the last look."""

    def __init__(self, servers: list[int]) -> None:
        self._servers = servers
        self._before = self._now()

    def look(self) -> dict[str, float]:
        """Return the differences, by name."""
        before, self._before = self._before, self._now()
        return {name: value - before.get(name, 0.0) for name, value in self._before.items()}

    def _now(self) -> dict[str, float]:
        figures = {"CPU s": time.process_time(), "servers' CPU s": sum(of_process(pid) for pid in self._servers)}
        figures |= {"passes": float(answered[0]), "requests": float(answered[1])}
        for thread in threading.enumerate():
            name = thread.name.removeprefix("mpigraph-")
            figures[f"{name} CPU s"] = figures.get(f"{name} CPU s", 0.0) + seconds(thread.native_id or 0)
            if thread.name == PROGRESS:
                figures["wake-ups"] = float(wakeups(thread.native_id or 0))
        for snapshot in trace.sums().values():
            for key, value in snapshot.counts.items():
                if isinstance(key, tuple) and key[0] in SHOWN:
                    figures[SHOWN[key[0]]] = figures.get(SHOWN[key[0]], 0.0) + value
        return figures


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("config", type=Path)
    p.add_argument("--servers", type=int, default=0, help="on each node")
    p.add_argument("--idle", type=float, default=5.0, help="seconds")
    p.add_argument("--minibatches", type=int, default=200, help="of each trainer")
    p.add_argument("--batch_size", type=int, default=100)
    p.add_argument("--fanouts", default="10,25")
    p.add_argument("--cache", default="64MiB")
    p.add_argument("--step-ms", type=float, default=0.0, help="a model on a device: the script sleeps in each step")
    args = p.parse_args()
    torch.set_num_threads(1)
    count_answers()
    dist.initialize(num_servers=args.servers)
    g = dist.DistGraph(args.config.stem, part_config=str(args.config))
    world = g.session.world
    servers = world.pids[world.hosts].tolist() if args.servers and world.trainers.rank == 0 else []
    figures = Figures(servers)
    seeds = dist.node_split(torch.ones(g.num_nodes(), dtype=torch.bool), force_even=True)
    loader = dist.DistNodeDataLoader(
        g,
        seeds[: args.minibatches * args.batch_size],
        NeighborSampler([int(fanout) for fanout in args.fanouts.split(",")]),
        batch_size=args.batch_size,
        features=["feat"],
        cache=args.cache,
    )
    for _ in loader:  # fills the caches
        pass
    world.trainers.Barrier()
    time.sleep(3)
    figures.look()
    time.sleep(args.idle)
    tell(world, "idle, a second", figures.look(), args.idle)
    world.trainers.Barrier()
    figures.look()
    for _ in loader:
        time.sleep(args.step_ms / 1e3)
    own = figures.look()
    world.trainers.Barrier()
    own["servers' CPU s"] = figures.look()["servers' CPU s"] + own["servers' CPU s"]
    tell(world, "a minibatch", own, len(loader))
    dist.exit_client()


def tell(world, what: str, own: dict[str, float], number: float) -> None:
    """Print the means over trainers, on the first."""
    names = sorted(set(sum(world.trainers.allgather(list(own)), [])))
    total = np.array([own.get(name, 0.0) for name in names])
    world.trainers.Allreduce(MPI.IN_PLACE, total)
    if world.trainers.rank:
        return
    mean = dict(zip(names, (total / world.trainers.size / number).tolist(), strict=True))
    text = [f"{1e3 * value:.2f} {name.replace('CPU s', 'CPU ms')}" for name, value in mean.items() if "CPU s" in name]
    text += [f"{mean[name]:.1f} {name}" for name in ("wake-ups", "requests", "passes") if mean.get(name)]
    if mean.get("asked"):
        text.append(f"{mean['round trips ns'] / mean['asked'] / 1e6:.2f} ms a round trip")
    print(f"{world.num_nodes} nodes, {what}: {', '.join(text)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
