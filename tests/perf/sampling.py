"""Sample and relabel minibatches of 1000 seeds in one process, beside the samplers of DGL and pyg-lib.

    DGL_PYTHON=... python tests/perf/sampling.py DIR --graph S
    python tests/perf/sampling.py DIR --graph S --ways trees "time, last" weights mask

The same ids, edges and seeds for all; indices are int64 for DGL (its default) and pyg-lib, int32 for this library;
fanouts 10,25 and 15,10,5, outermost hop first. Beside uniform sampling stand DGL unfused with 1 thread (what DGL uses
with 1 thread, and always for a DistGraph), DGL fused with 2, and GraphBolt with 1.

``--ways`` are other ways of this library, each beside its uniform sampling, and beside pyg-lib where it is installed
and has them: by weight, by mask, with a tree for each seed, by time. Times are random, and those of the seeds are above
three quarters of them. pyg-lib expands a node of a tree once, where ours, as DGL, expands it at each hop, so that times
are compared for an edge. Values are medians over the minibatches of a round.
"""

import common
import numpy as np
import torch

import mpigraph as mg

NEWEST, SEED_TIME = 1000, 750
PEERS = {
    "dgl unfused, 1 thread": ("unfused", 1),
    "graphbolt, 1 thread": ("graphbolt", 1),
    "dgl fused, 2 threads": ("fused", 2),
}
WAYS = {
    "2 threads": {"num_threads": 2},
    "trees": {"disjoint": True},
    "time, uniform": {"time_attr": "time"},
    "time, last": {"time_attr": "time", "temporal_strategy": "last"},
    "weights": {"prob": "weight"},
    "weights, replace": {"prob": "weight", "replace": True},
    "mask": {"mask": "mask"},
}
OF_PYG = (common.OURS, "trees", "time, uniform", "time, last")


def main():
    p = common.parser(__doc__)
    p.add_argument("--batches", type=int, default=8, help="minibatches of each side in a round (%(default)s)")
    p.add_argument("--ways", nargs="+", choices=tuple(WAYS), default=[], help="other ways, in place of DGL's")
    args = p.parse_args()
    torch.set_num_threads(1)
    flat = args.dir / args.graph / "flat-2"
    seeds = torch.from_numpy(np.load(flat / "seeds.npy"))[: args.batches]
    g = common.open_graph(args)
    ways = {common.OURS: {}} | {way: WAYS[way] for way in args.ways or ("2 threads",)}
    values = give_values(g) if args.ways else {}
    pyg = pyg_sampler(g, values["time"]) if args.ways else None
    rows, loads = [], []
    with Workers(None if args.ways else common.dgl_python(), flat) as workers:
        for fanouts in common.FANOUTS:
            layers = [int(fanout) for fanout in fanouts.split(",")]
            sides = {way: measured(ours(g, layers, how), seeds) for way, how in ways.items()}
            if pyg is not None:
                sides |= {f"pyg-lib, {way}": measured(pyg(layers, ways[way]), seeds) for way in OF_PYG if way in ways}
            sides |= {name: workers.side(name, fanouts, args.batches) for name in workers.names}
            for side in sides.values():
                side()  # warm
            found, load = common.alternate(sides, args.rounds, args.quiet)
            rows += rows_of(fanouts, found)
            loads += load
    common.report(args, rows, others=loads)


def rows_of(fanouts, found):
    """Times and edges of all sides; uniform sampling beside the peers, other ways beside it and beside pyg-lib."""
    edge, what = common.pick(found, "edge", 1e9), f"fanouts {fanouts}"
    rows = common.beside(f"a minibatch, {what}", "ms", common.pick(found, "wall", 1e3))
    rows.append(common.alone(f"CPU time of a minibatch, {what}", "ms", common.pick(found, "cpu", 1e3)))
    rows.append(common.alone(f"an edge, {what}", "ns", edge))
    for way in OF_PYG:
        if f"pyg-lib, {way}" in found:
            rows.append(common.compare(f"an edge, {what}, {way}: beside pyg-lib", "ns", edge, f"pyg-lib, {way}", way))
    return [*rows, common.alone(f"edges, {what}", "", common.pick(found, "edges"))]


def give_values(g):
    """Make the edge features "time", "weight" and "mask", and prepare them; return them as arrays."""
    policy = g.get_edge_partition_policy(("_N", "_E", "_N"))
    random = np.random.default_rng(0).random(g.num_edges(), np.float32)
    values = {"time": (random * NEWEST).astype(np.int64), "weight": random, "mask": random < 0.5}
    for name, array in values.items():
        tensor = torch.from_numpy(array)
        g.edata[name] = mg.distributed.DistTensor((g.num_edges(),), tensor.dtype, name, part_policy=policy)
        for begin in range(0, g.num_edges(), 1 << 24):
            some = torch.arange(begin, min(begin + (1 << 24), g.num_edges()))
            g.edata[name][some] = tensor[some]
    g.prepare_times("time")
    return values


def ours(g, layers, how):
    """Sample a minibatch by this library: seeds and their times -> how many edges."""
    sampler = mg.dataloading.NeighborSampler(layers, **how)
    if "time_attr" not in how:
        mg.distributed.DistNodeDataLoader(g, np.arange(2), sampler)  # prepares the weights

    def sample(seeds, seed_times):
        given = {"input_time": seed_times} if "time_attr" in how else {}
        return sum(block.num_edges() for block in sampler.sample_blocks(g, seeds, **given)[2])

    return sample


def pyg_sampler(g, times):
    """The same by pyg-lib, as a function of fanouts and what :data:`HOW` has; None after saying that it is left out."""
    try:
        from pyg_lib.sampler import neighbor_sample
    except ImportError as error:
        common.say(f"pyg-lib is left out: {error}")
        return None
    src, dst = (ids.numpy() for ids in g.find_edges(torch.arange(g.num_edges())))
    order = np.lexsort((times, dst))
    counts = np.bincount(dst, minlength=g.num_nodes())
    colptr = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
    row, edge_time = torch.from_numpy(src[order].astype(np.int64)), torch.from_numpy(times[order])

    def of_fanouts(layers, how):
        fixed = {"csc": True, "disjoint": bool(how), "temporal_strategy": how.get("temporal_strategy", "uniform")}

        def sample(seeds, seed_times):
            given = {"edge_time": edge_time, "seed_time": seed_times} if "time_attr" in how else {}
            return len(neighbor_sample(colptr, row, seeds, layers[::-1], **fixed, **given)[0])

        return sample

    return of_fanouts


def measured(sample, seeds):
    """A side: median seconds of a minibatch, mean seconds of an edge, and edges of a minibatch."""
    seed_times = torch.full((seeds.shape[1],), SEED_TIME)

    def run():
        watch, edges = common.Stopwatch(), 0
        for batch in seeds:
            with watch:
                edges += sample(batch, seed_times)
        return watch.medians() | {"edge": sum(watch.wall) / edges, "edges": edges / len(seeds)}

    return run


class Workers:
    """DGL's processes, one for each number of threads; none without DGL."""

    def __init__(self, dgl, flat):
        self.names = list(PEERS) if dgl else []
        script = [dgl, common.HERE / "dgl_side.py", "samplers", flat]
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


if __name__ == "__main__":
    main()
