"""Sample and relabel a minibatch of 1000 seeds in one process, beside DGL's samplers.

    DGL_PYTHON=... python tests/perf/sampling.py DIR --graph S

The same ids, edges and seeds for all, in CSC, whose indices are int64 for DGL (its default) and int32 for this library;
fanouts 10,25 and 15,10,5, outermost hop first. The sides: this library with 1 and 2 threads; DGL unfused with 1 thread
(what DGL uses with 1 thread, and always for a DistGraph), DGL fused with 2, GraphBolt with 1. Values are medians over
the minibatches of a round.
"""

import inspect
import statistics

import common
import numpy as np
import torch

import mpigraph as mg

PEERS = {
    "dgl unfused, 1 thread": ("unfused", 1),
    "graphbolt, 1 thread": ("graphbolt", 1),
    "dgl fused, 2 threads": ("fused", 2),
}
ONE, TWO = "mpigraph, 1 thread", "mpigraph, 2 threads"
MUST_ONE, MUST_TWO = 1.8, 1.5


def main():
    p = common.parser(__doc__)
    p.add_argument("--batches", type=int, default=8, help="minibatches of each side in a round (%(default)s)")
    args = p.parse_args()
    torch.set_num_threads(1)
    flat = args.dir / args.graph / "flat-2"
    seeds = torch.from_numpy(np.load(flat / "seeds.npy"))[: args.batches]
    g = open_graph(args)
    dgl = common.dgl_python()
    rows, loads = [], []
    with Workers(dgl, flat) as workers:
        for fanouts in common.FANOUTS:
            sides = {name: ours(g, seeds, fanouts, threads) for name, threads in ((ONE, 1), (TWO, 2))}
            sides |= {name: workers.side(name, fanouts, args.batches) for name in workers.names}
            sides = {name: side for name, side in sides.items() if side is not None}
            for side in sides.values():
                side()  # warm
            found, load = common.alternate(sides, args.rounds, args.quiet)
            rows += compare(fanouts, found, workers.names)
            loads += load
    common.report(args, rows, others=loads)


def open_graph(args):
    """The graph in this process, every part of it."""
    mg.distributed.initialize()
    return mg.distributed.DistGraph(
        args.graph, part_config=str(args.dir / args.graph / "parts-2" / f"{args.graph}.json")
    )


def ours(g, seeds, fanouts, threads):
    """A side that samples; None if this library has no threads inside a rank."""
    known = "num_threads" in inspect.signature(mg.dataloading.NeighborSampler.__init__).parameters
    if threads > 1 and not known:
        common.say("no num_threads: the sampler of this library runs with 1 thread only")
        return None
    sampler = mg.dataloading.NeighborSampler(
        list(map(int, fanouts.split(","))), **({"num_threads": threads} if known else {})
    )

    def run():
        watch, edges = common.Stopwatch(), 0
        for batch in seeds:
            with watch:
                _, _, blocks = sampler.sample_blocks(g, batch)
            edges += sum(block.num_edges() for block in blocks)
        return watch.medians() | {"edges": edges / len(seeds)}

    return run


class Workers:
    """DGL's processes, one for each number of threads; none without DGL."""

    def __init__(self, dgl, flat):
        self.names = list(PEERS) if dgl else []
        script = [dgl, common.HERE / "dgl_worker.py", flat]
        counts = {threads for _, threads in PEERS.values()} if dgl else set()
        self._workers = {n: common.Worker(script, common.dgl_environment(n)) for n in sorted(counts)}

    def side(self, name, fanouts, batches):
        kind, threads = PEERS[name]
        return lambda: self._workers[threads].ask("sample", kind=kind, fanouts=fanouts, batches=batches)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for worker in self._workers.values():
            worker.close()


def compare(fanouts, found, peers):
    """The table's rows of one fanout: all times and edges, then the two ratios."""
    times, what = common.pick(found, "wall", 1e3), f"sample and relabel, fanouts {fanouts}"
    cpu = common.pick(found, "cpu", 1e3)
    rows = [common.alone(f"{what}: times", "ms", times), common.alone(f"{what}: CPU times", "ms", cpu)]
    rows.append(common.alone(f"{what}: edges", "", common.pick(found, "edges")))
    if peers:
        singles = [name for name in peers if PEERS[name][1] == 1]
        best = min(singles, key=lambda name: statistics.median(times[name]))
        rows.append(common.compare(f"{what}: 1 thread", "ms", times, best, ONE, MUST_ONE))
        rows.append(common.compare(f"{what}: 1 thread, CPU time", "ms", cpu, best, ONE))
        if TWO in times:
            fused = next(name for name in peers if PEERS[name][1] == 2)
            rows.append(common.compare(f"{what}: 2 threads", "ms", times, fused, TWO, MUST_TWO))
    return rows


if __name__ == "__main__":
    main()
