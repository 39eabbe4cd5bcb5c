"""Sampling where edges have times, one process, one thread, in turn beside pyg-lib's sampler where it is installed.

    python tests/perf/times.py DIR --graph S

Times are random, and those of the seeds are above three quarters of them. Beside sampling by time stand the samplers
without: as they are, where a minibatch has a node once, and with a tree for each seed, as times need them. pyg-lib has
the same edges and times in int64, sorted by time within each destination, and draws for the same seeds; it expands a
node of a tree once, where ours, as DGL, expands it at each hop, so that times are compared for an edge.
"""

import common
import numpy as np
import torch

import mpigraph as mg

NEWEST, SEED_TIME = 1000, 750
MUST_ALONE, MUST_PYG = 0.6, 1.5
HOW = {
    "uniform": {},
    "trees": {"disjoint": True},
    "time, uniform": {"time_attr": "time"},
    "time, last": {"time_attr": "time", "temporal_strategy": "last"},
}


def main():
    args = common.parser(__doc__).parse_args()
    torch.set_num_threads(1)
    mg.distributed.initialize()
    g = mg.distributed.DistGraph(args.graph, part_config=str(args.dir / args.graph / "parts-2" / f"{args.graph}.json"))
    times = give_times(g)
    g.prepare_times("time")
    seeds = torch.from_numpy(np.load(args.dir / args.graph / "flat-2" / "seeds.npy"))
    peer = pyg_sampler(g, times)
    rows = []
    for fanouts in common.FANOUTS:
        layers = [int(fanout) for fanout in fanouts.split(",")]
        sides = {way: measured(ours(g, layers, how), seeds) for way, how in HOW.items()}
        if peer is not None:
            sides |= {f"pyg-lib, {way}": measured(peer(layers, how), seeds) for way, how in HOW.items()}
        for side in sides.values():
            side()  # warm
        found, _ = common.alternate(sides, args.rounds, args.quiet)
        edge = common.pick(found, "edge", 1e9)
        rows.append(common.alone(f"a minibatch, fanouts {fanouts}", "ms", common.pick(found, "step", 1e3)))
        rows.append(common.alone(f"an edge, fanouts {fanouts}", "ns", edge))
        for way in HOW:
            what = f"an edge, fanouts {fanouts}, {way}"
            if "time" in way:
                rows.append(common.compare(f"{what}: beside sampling without", "ns", edge, "uniform", way, MUST_ALONE))
            if peer is not None:
                must = MUST_PYG if "time" in way else None
                rows.append(common.compare(f"{what}: beside pyg-lib", "ns", edge, f"pyg-lib, {way}", way, must))
    common.report(args, rows)


def give_times(g):
    """Make the edge feature "time"; return it as an array."""
    policy = g.get_edge_partition_policy(("_N", "_E", "_N"))
    times = np.random.default_rng(1).integers(0, NEWEST, g.num_edges())
    g.edata["time"] = mg.distributed.DistTensor((g.num_edges(),), torch.int64, "time", part_policy=policy)
    for begin in range(0, g.num_edges(), 1 << 24):
        part = torch.arange(begin, min(begin + (1 << 24), g.num_edges()))
        g.edata["time"][part] = torch.from_numpy(times[part])
    return times


def ours(g, layers, how):
    """Sample a minibatch by this library: seeds and their times -> how many edges."""
    sampler = mg.dataloading.NeighborSampler(layers, **how)

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
    """A side: median seconds of a minibatch, and mean seconds of an edge."""
    seed_times = torch.full((seeds.shape[1],), SEED_TIME)

    def run():
        watch, edges = common.Stopwatch(), 0
        for batch in seeds:
            with watch:
                edges += sample(batch, seed_times)
        return {"step": watch.medians()["wall"], "edge": sum(watch.wall) / edges}

    return run


if __name__ == "__main__":
    main()
