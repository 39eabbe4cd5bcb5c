"""CPU time of counters, and of recording a report, in minibatches without a model on two simulated nodes.

    mpiexec -n 2 python tests/perf/counters.py DATA/S/parts-2/S.json

What counters cost is less than one epoch differs from the next. So the script counts the spans and counters of a
minibatch, and measures each of them alone. Minibatches without and with a recording take turns in one job, A B B A,
each for some epochs; a recording is not gathered and written here. CPU seconds are those of all threads of both ranks.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

os.environ.setdefault("MPIGRAPH_RANKS_PER_NODE", "1")

import common
import torch
from mpi4py import MPI

import mpigraph as mg
from mpigraph import trace

OFF, ON = "no recording", "recording"
TIMES = 100_000
comm = MPI.COMM_WORLD


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("config", type=Path, help="of the graph, in two parts")
    p.add_argument("--rounds", type=int, default=20)
    p.add_argument("--epochs", type=int, default=4, help="of a side in a round")
    p.add_argument("--fanouts", default="10,25")
    p.add_argument("--batch_size", type=int, default=1000)
    args = p.parse_args()
    torch.set_num_threads(1)
    mg.distributed.initialize(num_servers=0)
    g = mg.distributed.DistGraph(args.config.stem, part_config=str(args.config))
    seeds = mg.distributed.node_split(g.ndata["train_mask"], g.get_partition_book(), force_even=True)
    sampler = mg.dataloading.NeighborSampler([int(fanout) for fanout in args.fanouts.split(",")])
    options = {"batch_size": args.batch_size, "shuffle": True, "features": ["feat"], "labels": "label"}
    loader = mg.distributed.DistNodeDataLoader(g, seeds, sampler, **options)
    with tempfile.TemporaryDirectory() as own:
        folder = comm.bcast(own)
        sides = {side: lambda side=side: run(loader, side, args.epochs, folder) for side in (OFF, ON)}
        for side in sides.values():
            side()  # warm
        found, _ = common.alternate(sides, args.rounds)
    calls = counted(loader, args.epochs)
    ms = {side: [1e3 * seconds / (len(loader) * args.epochs * comm.size) for seconds in found[side]] for side in sides}
    if comm.rank == 0:
        more = [b / a - 1 for a, b in zip(ms[OFF], ms[ON], strict=True)]
        low, middle, high = statistics.quantiles(more)
        values = ", ".join(f"{name} {statistics.median(ms[name]):.2f}" for name in sides)
        print(f"CPU ms of a minibatch: {values}; {middle:+.1%} (quartiles {low:+.1%}, {high:+.1%})")
        each = {"span": cost(lambda: trace.span("meet")), "count": cost(nullcontext, lambda: trace.count("a", 1, 0))}
        words = ", ".join(f"{calls[name]:.1f} of {each[name]:.2f} us ({name})" for name in each)
        share = sum(calls[name] * each[name] for name in each) / (1e3 * statistics.median(ms[OFF]))
        print(f"counters of a minibatch: {words}; {share:.2%}")
    mg.distributed.exit_client()


def switch(to):
    """Give all modules of the library other spans and counters: (those that they have, others) of each."""
    for name, module in list(sys.modules.items()):
        if name.startswith("mpigraph.") and module is not trace:
            for word, (old, new) in to.items():
                if vars(module).get(word) is old:
                    setattr(module, word, new)


def counted(loader, epochs):
    """Return how many spans and counters a minibatch of this rank has, by kind."""
    calls = Counter()

    def span(*args, **options):
        calls["span"] += 1
        return trace.span(*args, **options)

    def count(*args):
        calls["count"] += 1
        trace.count(*args)

    switch({"span": (trace.span, span), "count": (trace.count, count)})
    run(loader, OFF, epochs, None)
    switch({"span": (span, trace.span), "count": (count, trace.count)})
    return {kind: number / (len(loader) * epochs) for kind, number in calls.items()}


def cost(make, inside=lambda: None):
    """Return the us of a ``with`` block and what is inside."""
    begin = time.perf_counter()
    for _ in range(TIMES):
        with make():
            inside()
    return 1e6 * (time.perf_counter() - begin) / TIMES


def run(loader, side, epochs, folder):
    """CPU seconds of both ranks for some epochs."""
    with mg.report(folder) if side == ON else nullcontext():
        comm.Barrier()
        begin = time.process_time()
        for _ in range(epochs):
            for _ in loader:
                pass
        seconds = time.process_time() - begin
        comm.Barrier()
    return comm.allreduce(seconds)


if __name__ == "__main__":
    main()
