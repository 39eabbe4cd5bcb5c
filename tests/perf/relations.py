"""Rounds, messages and bytes of a minibatch of graphs with 1, 4 and 200 relations; counts only, no times.

    python tests/perf/relations.py DIR

One generated graph, whose edges are dealt out to more and more relations: all have the same nodes and edges, in the
same parts. Fanouts are above all but the largest degrees, so that the same edges are drawn. Four pretended nodes of one
rank, which hosts a share of the graph and trains; figures are sums over all ranks divided by the minibatches of all
ranks. Seeds are near, so the first of the two rounds asks for nothing.
"""

import json
from pathlib import Path

import common
import numpy as np
import prepare
import torch
from scaling import counters

import mpigraph as mg
from mpigraph.metadata.schema import Schema
from mpigraph.partition.generate import Recipe, generate_graph
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.source import Feature, GraphSource

RELATIONS = (1, 4, 200)
RANKS = 4
NODE = "node"
FIGURES = {
    "rounds": "sampling rounds of a step",
    "messages": "sampling messages",
    "bytes": "sampling MB",
    "edges": "edges",
    "inputs": "input nodes",
}


def main():
    p = common.parser(__doc__, graphs=("relations",))
    p.add_argument("--nodes", type=int, default=100_000, help="of the graph (%(default)s)")
    p.add_argument("--edges", type=int, default=1_000_000, help="of the graph (%(default)s)")
    p.add_argument("--fanouts", default="255,255", help="of each relation, input side first (%(default)s)")
    p.add_argument("--batch_size", type=int, default=1000, help="seeds of a minibatch (%(default)s)")
    p.add_argument("--count", type=Path, help="used by the ranks")
    p.add_argument("--relations", type=int, help="used by the ranks")
    args = p.parse_args()
    if args.count is not None:
        count(args)
        return
    base = args.dir / "relations"
    base.mkdir(parents=True, exist_ok=True)
    found = {}
    for number in RELATIONS:
        prepare.once(directory(args, number), lambda out, number=number: write(args, number, out))
        flags = [f"--{name}={getattr(args, name)}" for name in ("nodes", "edges", "fanouts", "batch_size")]
        script = [__file__, args.dir, *flags, "--relations", number]
        found[f"{number} relations"] = [common.count_on_nodes(script, RANKS)]
    rows = [
        common.alone(f"{text}, fanouts {args.fanouts}", "", common.pick(found, name)) for name, text in FIGURES.items()
    ]
    common.report(args, rows, fanouts=args.fanouts)


def directory(args, number):
    return args.dir / "relations" / f"{args.nodes}-{args.edges}-{number}"


def write(args, number, out):
    """Deal the edges of the generated graph out to the relations, by a hash, and cut the nodes at random."""
    arrays = generate_graph(Recipe(args.nodes, args.edges, feat_dim=1))
    src, dst = (arrays[f"edge_{end}"].astype(np.int64) for end in ("src", "dst"))
    relation = (src * 7919 + dst * 104_729) % 1_000_003 % number
    schema = Schema((NODE,), tuple((NODE, f"r{r}", NODE) for r in range(number)))
    edges = tuple((src[relation == r], dst[relation == r]) for r in range(number))
    feats = {NODE: {"train_mask": Feature.of(arrays["train_mask"])}}
    partition_source(GraphSource(schema, (args.nodes,), edges, feats), "relations", RANKS, out, "random")


def count(args):
    """On a rank: some minibatches, then the sums over all ranks to the file."""
    mg.distributed.initialize(num_servers=0)
    torch.distributed.init_process_group("gloo")
    config = directory(args, args.relations) / "relations.json"
    g = mg.distributed.DistGraph("relations", part_config=str(config))
    seeds = mg.distributed.node_split(g.nodes[NODE].data["train_mask"], force_even=True)
    sampler = mg.dataloading.NeighborSampler(list(map(int, args.fanouts.split(","))))
    how = {"batch_size": args.batch_size, "drop_last": True, "num_prefetch": 0}
    loader = mg.distributed.DistNodeDataLoader(g, {NODE: seeds}, sampler, **how)
    torch.distributed.barrier()
    before, batches, edges, inputs = counters(), 0, 0, 0
    for input_nodes, _, blocks in loader:
        batches += 1
        edges += sum(block.num_edges() for block in blocks)
        inputs += len(input_nodes[NODE] if isinstance(input_nodes, dict) else input_nodes)
    torch.distributed.barrier()
    loader.close()
    total = torch.tensor([*(counters() - before)[:3], edges, inputs, batches], dtype=torch.float64)
    torch.distributed.all_reduce(total)
    *sums, batches = total.tolist()
    values = dict(zip(FIGURES, (value / batches for value in sums), strict=True))
    values["bytes"] /= 1e6
    if g.rank() == 0:
        args.count.write_text(json.dumps(values))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
