"""CPU time of counters, and of recording a report, in minibatches without a model on two simulated nodes.

    mpiexec -n 2 python tests/perf/counters.py DATA/S/parts-2/S.json

Three sides take turns in one job, A B C C B A, each for some epochs: spans and counters that do nothing, which the
script puts in place of the library's; the library's; and these while a report is recorded, without gathering and
writing it. CPU seconds are those of all threads of both ranks. A rank that waits looks again and again, so they vary
with the machine: the second table has the time of one span and of one counter, and how many a minibatch has.
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
MOST = {ON: 0.01, RECORDING: 0.03}  # of the CPU time of the side before
SPAN, COUNT = trace.span, trace.count
comm = MPI.COMM_WORLD


class NoSpan:
    """A span that does nothing."""

    begin = took = 0
    seconds = 0.0

    def __enter__(self):
        return self

    def __exit__(self, *_):
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
    names = used(loader)
    batches = len(loader) * args.epochs * comm.size
    if comm.rank == 0:
        ms = {side: [1e3 * seconds / batches for seconds in values] for side, values in found.items()}
        for before, side in ((OFF, ON), (ON, RECORDING)):
            more = [b / a - 1 for a, b in zip(ms[before], ms[side], strict=True)]
            low, middle, high = statistics.quantiles(more)
            values = ", ".join(f"{name} {statistics.median(ms[name]):.2f}" for name in (before, side))
            print(f"CPU ms of a minibatch: {values}; {middle:+.1%} (quartiles {low:+.1%}, {high:+.1%})", end="; ")
            print(f"asked at most {MOST[side]:.0%}")
        cost = {"span": cost_of_span(), "counter": cost_of_counter()}
        number = {name: names.count(name) / len(loader) for name in cost}
        typical = statistics.median(ms[OFF]) * 1e6
        for name in cost:
            share = cost[name] * number[name] / typical
            print(f"{number[name]:.0f} of {name} a minibatch, {cost[name]:.0f} ns each: {share:.2%} of its CPU time")
    mg.distributed.exit_client()


def switch(span, count):
    """Give all modules of the library a span and a counter."""
    for name, module in list(sys.modules.items()):
        if name.startswith("mpigraph.") and module is not trace:
            for word, new in (("span", span), ("count", count)):
                if word in vars(module) and vars(module)[word] in (vars(trace)[word], *switched):
                    setattr(module, word, new)
    switched[:] = [span, count]


switched = [SPAN, COUNT]


def run(loader, side, epochs, folder):
    """CPU seconds of both ranks for some epochs."""
    nothing = NoSpan()
    if side == OFF:
        switch(lambda *_, **__: nothing, lambda *_: None)
    with mg.report(folder) if side == RECORDING else nullcontext():
        comm.Barrier()
        begin = time.process_time()
        for _ in range(epochs):
            for _ in loader:
                pass
        seconds = time.process_time() - begin
        comm.Barrier()
    switch(SPAN, COUNT)
    return comm.allreduce(seconds)


def used(loader):
    """The words "span" and "counter", once for each that an epoch uses."""
    names = []

    def span(*args, **kwargs):
        names.append("span")
        return SPAN(*args, **kwargs)

    def count(*args):
        names.append("counter")
        COUNT(*args)

    switch(span, count)
    for _ in loader:
        pass
    switch(SPAN, COUNT)
    return names


def cost_of_span(number=100_000):
    """Nanoseconds."""
    begin = time.thread_time_ns()
    for _ in range(number):
        with SPAN("measured", 1):
            pass
    return (time.thread_time_ns() - begin) / number


def cost_of_counter(number=100_000):
    """Nanoseconds."""
    begin = time.thread_time_ns()
    for _ in range(number):
        COUNT("measured", 1, 0)
    return (time.thread_time_ns() - begin) / number


if __name__ == "__main__":
    main()
