"""CPU time of counters, and of recording a report, in minibatches without a model on two simulated nodes.

    mpiexec -n 2 python tests/perf/counters.py DATA/S/parts-2/S.json

Three sides take turns in one job, A B C C B A, each for some epochs: spans and counters that do nothing, which the
script puts in place of the library's; the library's; and these while a report is recorded, without gathering and
writing it. CPU seconds are those of all threads of both ranks. A rank that waits looks again and again, so they vary
with the machine.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

os.environ.setdefault("MPIGRAPH_RANKS_PER_NODE", "1")

import common
import torch
from mpi4py import MPI

import mpigraph as mg
from mpigraph import trace

OFF, ON, RECORDING = "no counters", "counters", "recording"
comm = MPI.COMM_WORLD


class NoSpan:
    """A span that does nothing."""

    begin = took = 0
    seconds = 0.0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


NOTHING = NoSpan()


def no_span(*_, **__):
    return NOTHING


def no_count(*_):
    pass


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
        sides = {side: lambda side=side: run(loader, side, args.epochs, folder) for side in (OFF, ON, RECORDING)}
        for side in sides.values():
            side()  # warm
        found, _ = common.alternate(sides, args.rounds)
    batches = len(loader) * args.epochs * comm.size
    if comm.rank == 0:
        ms = {side: [1e3 * seconds / batches for seconds in values] for side, values in found.items()}
        for before, side in ((OFF, ON), (ON, RECORDING)):
            more = [b / a - 1 for a, b in zip(ms[before], ms[side], strict=True)]
            low, middle, high = statistics.quantiles(more)
            values = ", ".join(f"{name} {statistics.median(ms[name]):.2f}" for name in (before, side))
            print(f"CPU ms of a minibatch: {values}; {middle:+.1%} (quartiles {low:+.1%}, {high:+.1%})")
    mg.distributed.exit_client()


def switch(to):
    """Give all modules of the library other spans and counters: (those that they have, others) of each."""
    for name, module in list(sys.modules.items()):
        if name.startswith("mpigraph.") and module is not trace:
            for word, (old, new) in to.items():
                if vars(module).get(word) is old:
                    setattr(module, word, new)


def run(loader, side, epochs, folder):
    """CPU seconds of both ranks for some epochs."""
    if side == OFF:
        switch({"span": (trace.span, no_span), "count": (trace.count, no_count)})
    with mg.report(folder) if side == RECORDING else nullcontext():
        comm.Barrier()
        begin = time.process_time()
        for _ in range(epochs):
            for _ in loader:
                pass
        seconds = time.process_time() - begin
        comm.Barrier()
    switch({"span": (no_span, trace.span), "count": (no_count, trace.count)})
    return comm.allreduce(seconds)


if __name__ == "__main__":
    main()
