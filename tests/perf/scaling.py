"""Rounds, messages and bytes of a minibatch on 2, 4 and 8 pretended nodes, of S in 8 parts; counts only, no times.

    python tests/perf/scaling.py DIR

Every node is one rank, which hosts a share of the graph and trains, so nothing but a rank's own rows is near. Each job
samples and gathers two whole epochs of minibatches of 1000 seeds; figures are sums over all ranks divided by the
minibatches of all ranks. A round is collective and counts once for the step in which every rank makes one minibatch.
"""

import json
from pathlib import Path

import common
import numpy as np
import torch

import mpigraph as mg
from mpigraph.session.context import current

NODES = (2, 4, 8)
FIGURES = {
    "rounds": "sampling rounds of a step",
    "sampling_messages": "sampling messages",
    "sampling_bytes": "sampling MB",
    "row_messages": "row messages",
    "row_bytes": "row MB",
    "far_inputs": "share of input nodes that are far",
}


def main():
    p = common.parser(__doc__)
    p.add_argument("--fanouts", choices=common.FANOUTS, default=common.FANOUTS[0])
    p.add_argument("--transports", nargs="+", choices=("rma", "packed"), default=["rma", "packed"])
    p.add_argument("--count", type=Path, help="used by the ranks")
    args = p.parse_args()
    if args.graph != "S":
        p.error("prepare.py writes eight parts of S alone")
    if args.count is not None:
        count(args)
        return
    rows = []
    for transport in args.transports:
        found = {f"{nodes} nodes": [job(args, nodes, transport)] for nodes in NODES}
        rows += [
            common.alone(f"{text}, {transport}, fanouts {args.fanouts}", "", common.pick(found, figure))
            for figure, text in FIGURES.items()
        ]
    common.report(args, rows, fanouts=args.fanouts)


def job(args, nodes, transport):
    """Start a job of that many nodes and return what it counted."""
    return common.count_on_nodes([__file__, args.dir, "--fanouts", args.fanouts], nodes, MPIGRAPH_TRANSPORT=transport)


def count(args):
    """On a rank: two epochs, then the sums over all ranks to the file."""
    mg.distributed.initialize(num_servers=0)
    torch.distributed.init_process_group("gloo")
    g = mg.distributed.DistGraph("S", part_config=str(args.dir / "S" / "parts-8" / "S.json"))
    sampler = mg.dataloading.NeighborSampler(list(map(int, args.fanouts.split(","))))
    seeds = mg.distributed.node_split(g.ndata["train_mask"], force_even=True)
    loader = mg.distributed.DistNodeDataLoader(g, seeds, sampler, batch_size=1000, drop_last=True)
    torch.distributed.barrier()
    before, batches, inputs, far = counters(), 0, 0, 0
    first, last = current().store.graphs["S"].topology.hosts.node_range(g.rank(), 0)
    for _ in range(2):
        for input_nodes, _, _ in loader:
            g.ndata["feat"][input_nodes]
            batches, inputs = batches + 1, inputs + len(input_nodes)
            far += int(((input_nodes < first) | (input_nodes >= last)).sum())
    torch.distributed.barrier()
    loader.close()
    total = torch.tensor([*(counters() - before), batches, far, inputs], dtype=torch.float64)
    torch.distributed.all_reduce(total)
    rounds, *moved, batches, far, inputs = total.tolist()
    values = [rounds / batches, *(value / batches for value in moved), far / inputs]
    values[2], values[4] = values[2] / 1e6, values[4] / 1e6
    if g.rank() == 0:
        args.count.write_text(json.dumps(dict(zip(FIGURES, values, strict=True))))
    torch.distributed.destroy_process_group()


def counters():
    """Of this rank so far: rounds, messages and bytes of sampling, messages and bytes of rows."""
    state = current().store
    channels, rows = state.channels.values(), state.rows.traffic
    sampling = [sum(getattr(channel, name) for channel in channels) for name in ("rounds", "messages", "bytes")]
    return np.array([*sampling, rows.messages, rows.bytes_received])


if __name__ == "__main__":
    main()
