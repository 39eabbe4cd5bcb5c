"""Minibatches without a model on two pretended nodes, with features as float32 and in 16 bits: bytes, CPU time, memory.

    python tests/perf/feat_dtype.py DIR --graph S

Each node is one rank, which hosts a part and trains, so that its CPU time is that of reading and of answering. A job
gathers the rows of an epoch of minibatches of 1000 seeds, packed by their host, once without a cache and once with the
default one, and before that 100 k rows of its own part. The graph is rounded while it is loaded. Ratios are beside
float32 in the same round; they say how much less the others take.
"""

import json
import time
from pathlib import Path

import common
import numpy as np
import torch

import mpigraph as mg
from mpigraph.session.context import current

DTYPES = ("float32", "float16", "bfloat16")
ROWS = 100_000
READS = 15
CACHES = {"none": None, "auto": "auto"}
FIGURES = {
    "memory": ("memory of features on a node", "MB"),
    "near": (f"CPU time of {ROWS // 1000} k rows of the own part", "ms"),
    "row_bytes_none": ("rows between nodes, of a minibatch, without a cache", "MB"),
    "cpu_none": ("CPU time of a minibatch, without a cache", "ms"),
    "row_bytes_auto": ("rows between nodes, of a minibatch, with the default cache", "MB"),
    "cpu_auto": ("CPU time of a minibatch, with the default cache", "ms"),
}


def main():
    p = common.parser(__doc__)
    p.add_argument("--fanouts", choices=common.FANOUTS, default=common.FANOUTS[0])
    p.add_argument("--feat-dtype", choices=DTYPES, help="used by the ranks")
    p.add_argument("--count", type=Path, help="used by the ranks")
    args = p.parse_args()
    if args.count is not None:
        count(args)
        return
    script = [__file__, args.dir, "--graph", args.graph, "--fanouts", args.fanouts]

    def side(dtype):
        return lambda: common.count_on_nodes([*script, "--feat-dtype", dtype], 2, MPIGRAPH_TRANSPORT="packed")

    found, loads = common.alternate({dtype: side(dtype) for dtype in DTYPES}, args.rounds, args.quiet)
    rows = [
        common.compare(f"{what}, {dtype}", unit, common.pick(found, figure), "float32", ours=dtype)
        for figure, (what, unit) in FIGURES.items()
        for dtype in DTYPES[1:]
    ]
    common.report(args, rows, others=loads, fanouts=args.fanouts)


def count(args):
    """On a rank: the figures, sums over the ranks divided by what they did, to the file."""
    mg.distributed.initialize(num_servers=0)
    torch.distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    wanted = None if args.feat_dtype == "float32" else args.feat_dtype
    config = args.dir / args.graph / "parts-2" / f"{args.graph}.json"
    g = mg.distributed.DistGraph(args.graph, part_config=str(config), feat_dtype=wanted)
    feat = g.ndata["feat"]
    window = feat.rows.window
    found = {"memory": window.memory(current().world.host_index).nbytes / 1e6, "near": near(feat)}
    torch.distributed.barrier()
    seeds = mg.distributed.node_split(g.ndata["train_mask"], force_even=True)
    sampler = mg.dataloading.NeighborSampler(list(map(int, args.fanouts.split(","))))
    for name, cache in CACHES.items():
        loader = mg.distributed.DistNodeDataLoader(
            g, seeds, sampler, batch_size=1000, drop_last=True, features=["feat"], cache=cache
        )
        torch.distributed.barrier()
        moved, spent = current().store.rows.transport.traffic.bytes_received, time.process_time()
        batches = sum(1 for _ in loader)
        torch.distributed.barrier()
        sums = [current().store.rows.transport.traffic.bytes_received - moved, time.process_time() - spent, batches]
        sums = torch.tensor(sums, dtype=torch.float64)
        torch.distributed.all_reduce(sums)
        found[f"row_bytes_{name}"] = float(sums[0] / sums[2]) / 1e6
        found[f"cpu_{name}"] = float(sums[1] / sums[2]) * 1e3
        loader.close()
    if g.rank() == 0:
        args.count.write_text(json.dumps(found), encoding="ascii")
    mg.distributed.exit_client()


def near(feat):
    """Median CPU time in ms of random rows of this host."""
    begin, end = feat.rows.window.offsets[current().world.host_index :][:2]
    rng = np.random.default_rng(1)
    watch = common.Stopwatch()
    for ids in [rng.integers(begin, end, ROWS) for _ in range(READS)]:
        with watch:
            feat[ids]
    return watch.medians()["cpu"] * 1e3


if __name__ == "__main__":
    main()
