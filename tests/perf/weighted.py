"""Sampling by edge weight, and by time, beside uniform sampling, one process, one thread, in turn.

python tests/perf/weighted.py DIR --graph S

Times are random, and those of the seeds are above three quarters of them. Beside them stands the sampler without time:
as it is, where a minibatch has a node once, and with a tree for each seed, as times need them.
"""

import common
import numpy as np
import torch

import mpigraph as mg


def main():
    args = common.parser(__doc__).parse_args()
    torch.set_num_threads(1)
    mg.distributed.initialize()
    g = mg.distributed.DistGraph(args.graph, part_config=str(args.dir / args.graph / "parts-2" / f"{args.graph}.json"))
    policy = g.get_edge_partition_policy(("_N", "_E", "_N"))
    weights = np.random.default_rng(0).random(g.num_edges())
    for name, values in (("weight", weights), ("mask", weights < 0.5)):
        tensor = torch.from_numpy(values if values.dtype == bool else values.astype(np.float32))
        g.edata[name] = mg.distributed.DistTensor((g.num_edges(),), tensor.dtype, name, part_policy=policy)
        for begin in range(0, g.num_edges(), 1 << 24):
            part = torch.arange(begin, min(begin + (1 << 24), g.num_edges()))
            g.edata[name][part] = tensor[part]
    g.edata["time"] = mg.distributed.DistTensor((g.num_edges(),), torch.int64, "time", part_policy=policy)
    times = torch.from_numpy(np.random.default_rng(1).integers(0, 1000, g.num_edges()))
    for begin in range(0, g.num_edges(), 1 << 24):
        part = torch.arange(begin, min(begin + (1 << 24), g.num_edges()))
        g.edata["time"][part] = times[part]
    g.prepare_times("time")
    seeds = np.load(args.dir / args.graph / "flat-2" / "seeds.npy")
    rows = []
    for fanouts in common.FANOUTS:
        layers = [int(fanout) for fanout in fanouts.split(",")]
        samplers = {
            "uniform": mg.dataloading.NeighborSampler(layers),
            "weights": mg.dataloading.NeighborSampler(layers, prob="weight"),
            "weights, replace": mg.dataloading.NeighborSampler(layers, prob="weight", replace=True),
            "mask": mg.dataloading.NeighborSampler(layers, mask="mask"),
            "trees": mg.dataloading.NeighborSampler(layers, disjoint=True),
            "trees, time": mg.dataloading.NeighborSampler(layers, time_attr="time"),
            "trees, last": mg.dataloading.NeighborSampler(layers, time_attr="time", temporal_strategy="last"),
        }
        for sampler in [some for some in samplers.values() if some.time_filter is None]:
            mg.distributed.DistNodeDataLoader(g, np.arange(2), sampler)  # prepares the weights

        def side(sampler):
            how = {} if sampler.time_filter is None else {"input_time": torch.full((seeds.shape[1],), 750)}

            def run():
                times, edges = [], 0
                for batch in seeds:
                    begin = common.time.perf_counter()
                    blocks = sampler.sample_blocks(g, torch.from_numpy(batch), **how)[2]
                    times.append(common.time.perf_counter() - begin)
                    edges += sum(block.num_edges() for block in blocks)
                return {"step": float(np.median(times)), "edge": sum(times) / edges}

            return run

        found, _ = common.alternate({name: side(s) for name, s in samplers.items()}, args.rounds, args.quiet)
        rows.append(common.alone(f"sample, fanouts {fanouts}", "ms", common.pick(found, "step", 1e3)))
        rows.append(common.alone(f"an edge, fanouts {fanouts}", "ns", common.pick(found, "edge", 1e9)))
    common.report(args, rows)


if __name__ == "__main__":
    main()
