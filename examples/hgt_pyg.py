"""Train a model of PyG, HGTConv, on minibatches of a partitioned typed graph. The same script in all three starts.

    python examples/hgt_pyg.py
    mpiexec -n 4 python examples/hgt_pyg.py --num_servers 1
    srun -N 8 --ntasks-per-node=9 python examples/hgt_pyg.py --graph_name G --part_config DIR/G.json --target paper

The loader makes what PyG's NeighborLoader would (output="pyg"); the model knows nothing of the library. Without
--part_config it generates a graph of papers, authors and fields, and also trains an MLP on the papers' own features, to
show what the neighbours are worth.
"""

import argparse
import os
import shutil
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import HGTConv
from torch_geometric.utils import trim_to_layer

import mpigraph as mg

SETTINGS = {
    "graph_name": "default",
    "part_config": os.environ.get("MPIGRAPH_PART_CONFIG", ""),  # <name>.json of a partitioned graph
    "target": "paper",  # the node type with label, train_mask, val_mask and test_mask
    "num_servers": None,  # on each node (MPIGRAPH_NUM_SERVERS, else 1); 0: every trainer hosts a share of the graph
    "backend": "gloo",  # of gradients; nccl: train on GPUs; mpi4py: by MPI, with no port opened
    "num_epochs": 4,
    "eval_every": 1,  # epochs
    "fan_out": "10,10",  # neighbours per layer and relation, input side first
    "batch_size": 200,  # of all trainers together
    "num_hidden": 64,
    "num_heads": 4,
    "dropout": 0.3,
    "lr": 0.01,
    "weight_decay": 1e-4,
    "seed": 0,
}
COUNTS = {"author": 4000, "field": 200, "paper": 6000}  # of the generated graph
WIDTHS = {"author": 16, "field": 8, "paper": 32}
RELATIONS = {("author", "writes"): 18_000, ("field", "covers"): 12_000, ("paper", "cites"): 24_000}  # of papers
NUM_CLASSES = 8

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
for name, value in SETTINGS.items():
    parser.add_argument(f"--{name}", type=int if value is None else type(value), default=value, help="(%(default)s)")
args = parser.parse_args()


class HGT(nn.Module):
    """A HGTConv layer for each fanout; with none, an MLP on a node's own features."""

    def __init__(self, widths, metadata, num_classes, num_layers):
        super().__init__()
        hidden = args.num_hidden
        self.embed = nn.ModuleDict({ntype: nn.Linear(width, hidden) for ntype, width in widths.items()})
        self.layers = nn.ModuleList(HGTConv(hidden, hidden, metadata, args.num_heads) for _ in range(num_layers))
        self.out = nn.Linear(hidden, num_classes)

    def forward(self, batch):
        """The logits of the seeds; a layer leaves out what no later one needs."""
        x = {ntype: F.relu(embed(features(batch[ntype]))) for ntype, embed in self.embed.items()}
        edges, sampled = batch.edge_index_dict, (batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict)
        for i, layer in enumerate(self.layers):
            x, edges, _ = trim_to_layer(i, *sampled, x, edges)
            out = layer(x, edges)  # a type that no relation leads into keeps its rows
            x |= {ntype: F.dropout(h, args.dropout, self.training) for ntype, h in out.items()}
        return self.out(x[args.target][: batch[args.target].batch_size])


def features(store):
    """The features of a node type; nodes of a type without any are all the same."""
    return store.feat if "feat" in store else store.n_id.new_ones((store.num_nodes, 1), dtype=torch.float32)


def make_loader(g, nodes, fanouts, device, **options):
    """Minibatches of nodes of the target type, with the features of all nodes in them."""
    sampler = mg.dataloading.NeighborSampler(fanouts, return_eids=False)
    names = {ntype: ["feat"] for ntype in g.ntypes if "feat" in g.nodes[ntype].data}
    options |= {"features": names, "labels": {args.target: ["label"]}, "output": "pyg"}
    return mg.distributed.DistNodeDataLoader(g, {args.target: nodes}, sampler, device, **options)


def label_of_seeds(batch):
    return batch[args.target].label[: batch[args.target].batch_size]


@torch.no_grad()
def evaluate(g, model, nodes, fanouts, device):
    """Accuracy on all trainers' nodes together."""
    model.eval()
    count = torch.zeros(2, dtype=torch.float64, device=device)
    for batch in make_loader(g, nodes, fanouts, device, batch_size=500, seed=1):
        right = model.module(batch).argmax(1) == label_of_seeds(batch)
        count += torch.tensor([right.sum(), len(right)], device=device)
    torch.distributed.all_reduce(count)
    model.train()
    return float(count[0] / count[1].clamp(min=1))


def train(g, name, fanouts, device):
    """Train one model; return its accuracy on the test nodes."""
    num_trainers = torch.distributed.get_world_size()
    data = g.nodes[args.target].data
    split = [mg.distributed.node_split(data[f"{part}_mask"], ntype=args.target) for part in ("train", "val", "test")]
    batch_size = -(-args.batch_size // num_trainers)
    loader = make_loader(g, split[0], fanouts, device, batch_size=batch_size, shuffle=True)
    widths = {t: g.nodes[t].data["feat"].shape[1] if "feat" in g.nodes[t].data else 1 for t in g.ntypes}
    torch.manual_seed(args.seed)
    model = HGT(widths, (g.ntypes, g.canonical_etypes), int(data["label"][:].max()) + 1, len(fanouts)).to(device)
    model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)  # of types that a minibatch lacks
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    torch.manual_seed(args.seed * num_trainers + g.rank())  # dropout differs between trainers
    for epoch in range(args.num_epochs):
        with model.join():  # trainers that run out of seeds take part
            for batch in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(batch), label_of_seeds(batch)).backward()
                optimizer.step()
        if (epoch + 1) % args.eval_every == 0:
            accuracy = evaluate(g, model, split[1], fanouts, device)
            if g.rank() == 0:
                print(f"{name} epoch {epoch:2d}  validation accuracy {accuracy:.4f}", flush=True)
    return evaluate(g, model, split[2], fanouts, device)


def generate(directory):
    """Write a partitioned graph in which 70% of the edges join nodes of one class, and features tell it weakly."""
    rng = np.random.default_rng(0)
    kinds = {ntype: rng.integers(0, NUM_CLASSES, count) for ntype, count in COUNTS.items()}
    edges = {}
    for (src, relation), count in RELATIONS.items():
        papers = rng.integers(0, COUNTS["paper"], count)
        wanted = np.where(rng.random(count) < 0.7, kinds["paper"][papers], rng.integers(0, NUM_CLASSES, count))
        by_class = np.argsort(kinds[src], kind="stable")
        bounds = np.searchsorted(kinds[src][by_class], np.arange(NUM_CLASSES + 1))
        others = by_class[rng.integers(bounds[wanted], bounds[wanted + 1])]
        edges[src, relation, "paper"] = (others, papers)
        edges["paper", f"rev_{relation}", src] = (papers, others)
    g = mg.heterograph(edges, COUNTS)
    for ntype, width in WIDTHS.items():
        centroids = rng.normal(0, 0.3, (NUM_CLASSES, width))
        rows = centroids[kinds[ntype]] + rng.normal(0, 1, (COUNTS[ntype], width))
        g.nodes[ntype].data["feat"] = rows.astype(np.float32)
    part = rng.random(COUNTS["paper"])
    masks = {"train_mask": part < 0.3, "val_mask": (part >= 0.3) & (part < 0.5), "test_mask": part >= 0.5}
    g.nodes["paper"].data.update({"label": kinds["paper"]} | masks)
    mg.distributed.partition_graph(g, "default", 2, directory)


def main():
    mg.distributed.initialize(num_servers=args.num_servers, seed=args.seed)
    device = f"cuda:{os.environ['LOCAL_RANK']}" if args.backend == "nccl" else "cpu"
    if device != "cpu":
        torch.cuda.set_device(device)
    torch.distributed.init_process_group(args.backend, init_method="mpi4py://" if args.backend == "mpi4py" else None)
    directory = f"{tempfile.gettempdir()}/mpigraph-{os.environ['MASTER_PORT']}"  # the same on every trainer
    if not args.part_config and torch.distributed.get_rank() == 0:
        generate(directory)
    torch.distributed.barrier()
    g = mg.distributed.DistGraph(args.graph_name, part_config=args.part_config or f"{directory}/default.json")
    if not args.part_config and g.rank() == 0:
        shutil.rmtree(directory)  # the graph is in memory now
    accuracy = train(g, "HGT", [int(fanout) for fanout in args.fan_out.split(",")], device)
    mlp = "" if args.part_config else f", of an MLP on the papers' own features {train(g, 'MLP', [], device):.4f}"
    if g.rank() == 0:
        print(f"test accuracy {accuracy:.4f}{mlp}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
