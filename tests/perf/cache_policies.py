"""Far rows that a trainer fetches in an epoch, by the size of its cache: SALIENT++'s experiment.

    python -m mpigraph partition DATA/products/data --parts 4 --method multilevel --balance-train --name products -o OUT
    mpiexec -n 4 python tests/perf/cache_policies.py OUT/products.json

Each rank is a pretended node of one trainer, which trains on its part's nodes; the rows that its minibatches read are
those of the real sampler, and what a cache saves is computed from them. A cache of size alpha has alpha * nodes / ranks
rows. Columns, in millions of rows, mean of the trainers, and beside the oracle:

none        every far row of every minibatch
oracle      a fixed cache of the rows that this epoch reads most often
look-ahead  a cache that knows the whole epoch (Belady with bypass), and begins with the rows of the oracle
cold        the same, beginning with nothing, beside the oracle with what it takes to fill it
floor       rows that are read at all: what the best cache fetches in an epoch that begins with nothing
"""

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np

os.environ.setdefault("MPIGRAPH_RANKS_PER_NODE", "1")
os.environ.setdefault("MPIGRAPH_TRANSPORT", "packed")

import torch

import mpigraph as mg
import mpigraph.distributed as dist
from mpigraph.cli.bench.caching import fetched
from mpigraph.session.context import current


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("config", type=Path, metavar="GRAPH.json", help="as many parts as ranks")
    p.add_argument("--fanouts", default="15,10,5", help="input side first")
    p.add_argument("--batch", type=int, default=1024)
    p.add_argument("--alpha", type=float, nargs="+", default=[0.05, 0.1, 0.2, 0.5])
    args = p.parse_args()
    fanouts = [int(f) for f in args.fanouts.split(",")]
    dist.initialize(num_servers=0, seed=0)
    world = current().world
    g = dist.DistGraph(args.config.stem, part_config=str(args.config))
    sizes = [int(alpha * g.num_nodes() / world.size) for alpha in args.alpha]
    begin, end = g.loaded.topology.hosts.node_range(world.host_index)
    seeds = np.arange(begin, end)[np.asarray(g.ndata["train_mask"][torch.arange(begin, end)]).astype(bool)]
    start = time.perf_counter()
    trace = far_reads(g, seeds, fanouts, args.batch, begin, end)
    say(world, f"{len(trace[0]):,} far rows of {len(trace)} minibatches: {time.perf_counter() - start:.1f} s")
    found = simulate([batch.numpy() for batch in trace], g.num_nodes(), sizes)
    found = [[world.allreduce_sum(int(value)) / world.size for value in line] for line in found]
    if world.rank == 0:
        show(args.alpha, sizes, found)
    dist.exit_client()


def far_reads(g, seeds, fanouts, batch, begin, end):
    """The far nodes that each minibatch of an epoch reads."""
    sampler = mg.dataloading.NeighborSampler(fanouts)
    options = {"batch_size": batch, "shuffle": True, "features": [], "cache": None, "num_prefetch": 0}
    loader = dist.DistNodeDataLoader(g, torch.from_numpy(seeds), sampler, **options)
    return [ids[(ids < begin) | (ids >= end)] for ids, _, _ in loader]


def simulate(trace, num_nodes, sizes):
    """For each size the rows fetched: none, oracle, look-ahead, cold, oracle with filling, floor."""
    counts = np.zeros(num_nodes, np.int64)
    for ids in trace:
        counts[ids] += 1
    most = np.argsort(-counts, kind="stable")
    total, floor = int(counts.sum()), int((counts > 0).sum())
    found = []
    for size in sizes:
        oracle = most[: min(size, floor)]
        fixed = total - int(counts[oracle].sum())
        warm = fetched([oracle, *trace], num_nodes, size) - len(oracle)  # as if a minibatch before had read these
        cold = fetched(trace, num_nodes, size)
        found.append([total, fixed, warm, cold, fixed + len(oracle), floor])
    return found


def show(alphas, sizes, found):
    """Print the table, and what must hold."""
    print("| alpha (rows) | none | oracle | look-ahead | cold | floor |")
    print("|---|---|---|---|---|---|")
    for alpha, size, values in zip(alphas, sizes, found, strict=True):
        none, oracle, warm, cold, filled, floor = values
        beside = [(oracle, oracle), (warm, oracle), (cold, filled)]
        cells = [f"{value / 1e6:.3f} ({value / max(base, 1):.2f})" for value, base in beside]
        cells = [f"{alpha} ({size})", f"{none / 1e6:.3f}", *cells, f"{floor / 1e6:.3f}"]
        print(f"| {' | '.join(cells)} |")


def say(world, text):
    if world.rank == 0:
        print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
