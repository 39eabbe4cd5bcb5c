"""Sampling by edge weight or mask beside uniform sampling, one process, one thread, in turn.

python tests/perf/weighted.py DIR --graph S
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
    seeds = np.load(args.dir / args.graph / "flat-2" / "seeds.npy")
    rows = []
    for fanouts in common.FANOUTS:
        layers = [int(fanout) for fanout in fanouts.split(",")]
        samplers = {
            "uniform": mg.dataloading.NeighborSampler(layers),
            "weights": mg.dataloading.NeighborSampler(layers, prob="weight"),
            "weights, replace": mg.dataloading.NeighborSampler(layers, prob="weight", replace=True),
            "mask": mg.dataloading.NeighborSampler(layers, mask="mask"),
        }
        for sampler in samplers.values():
            mg.distributed.DistNodeDataLoader(g, np.arange(2), sampler)  # prepares the weights

        def side(sampler):
            def run():
                times, edges = [], 0
                for batch in seeds:
                    begin = common.time.perf_counter()
                    blocks = sampler.sample_blocks(g, torch.from_numpy(batch))[2]
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
