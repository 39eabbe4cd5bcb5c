"""Train GraphSAGE for node classification; the same script in all three starts.

    python examples/node_classification.py
    mpiexec -n 4 python examples/node_classification.py --num_servers 1
    srun -N 8 --ntasks-per-node=9 python examples/node_classification.py --graph_name G --part_config DIR/G.json

Without --part_config it generates a graph whose labels need both features and neighbours, and also trains an MLP on
the features alone, to show what the neighbours are worth.
"""

import argparse
import os
import shutil
import tempfile
import time
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

import mpigraph as mg
from mpigraph.partition.generate import Recipe, generate_graph

SETTINGS = {
    "graph_name": "default",
    "part_config": os.environ.get("MPIGRAPH_PART_CONFIG", ""),  # <name>.json of a partitioned graph
    "num_servers": None,  # on each node (MPIGRAPH_NUM_SERVERS, else 1); 0: every trainer hosts a share of the graph
    "backend": "gloo",  # of gradients; nccl: train on GPUs; mpi4py: by MPI, with no port opened
    "num_epochs": 30,
    "eval_every": 1,  # epochs
    "fan_out": "10,10",  # neighbours per layer, input side first
    "eval_fan_out": -1,  # neighbours in each layer in evaluation; -1: all
    "num_eval": 10**9,  # evaluate on about so many nodes of each trainer
    "batch_size": 500,  # of all trainers together
    "num_hidden": 64,
    "dropout": 0.5,
    "feat_drop": 0.0,
    "norm": 0,  # divide each feature row by this norm; 0: do not
    "lr": 0.005,
    "weight_decay": 0.0,
    "seed": 0,
}
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
for name, value in SETTINGS.items():
    parser.add_argument(f"--{name}", type=int if value is None else type(value), default=value, help="(%(default)s)")
args = parser.parse_args()


class SAGE(nn.Module):
    """A SAGEConv layer for each fanout; with none, an MLP on a node's own features."""

    def __init__(self, width, hidden, classes, num_layers):
        super().__init__()
        sizes = [width] + [hidden] * (max(num_layers, 2) - 1) + [classes]
        make = (lambda a, b: mg.nn.SAGEConv(a, b, "mean")) if num_layers else nn.Linear
        self.layers = nn.ModuleList(make(a, b) for a, b in pairwise(sizes))

    def forward(self, blocks, h):
        h = mg.nn.dropout(F.normalize(h, p=args.norm) if args.norm else h, args.feat_drop, self.training)
        for i, layer in enumerate(self.layers):
            h = layer(blocks[i], h) if blocks else layer(h)
            if i < len(self.layers) - 1:
                h = mg.nn.relu_dropout(h, args.dropout, self.training)
        return h


@torch.no_grad()
def evaluate(g, model, nodes, num_layers, device):
    """Accuracy on all trainers' nodes together."""
    model.eval()
    sampler = mg.dataloading.NeighborSampler([args.eval_fan_out] * num_layers, return_eids=False)
    nodes, count = nodes[:: max(1, len(nodes) // args.num_eval)], torch.zeros(2, dtype=torch.float64, device=device)
    for inputs, seeds, blocks in mg.distributed.DistNodeDataLoader(g, nodes, sampler, device, batch_size=1000):
        right = model(blocks, g.ndata["feat"][inputs].to(device)).argmax(1).cpu() == g.ndata["label"][seeds]
        count += torch.tensor([right.sum(), len(seeds)], device=device)
    torch.distributed.all_reduce(count)
    model.train()
    return float(count[0] / count[1].clamp(min=1))


def train_epoch(g, model, optimizer, loader, device):
    """Make one pass; return the seconds spent waiting for minibatches and computing."""
    spent, start = [0.0, 0.0], time.perf_counter()
    with model.join():  # trainers that run out of seeds take part
        for inputs, seeds, blocks in loader:
            arrived = time.perf_counter()
            feats = blocks[0].srcdata["feat"] if blocks else g.ndata["feat"][inputs].to(device)
            loss = F.cross_entropy(model(blocks, feats), g.ndata["label"][seeds].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            end = time.perf_counter()
            spent, start = [spent[0] + arrived - start, spent[1] + end - arrived], end
    return spent


def train(g, name, fanouts, device):
    """Train one model; return its accuracy on the test nodes."""
    num_trainers = torch.distributed.get_world_size()
    split = [mg.distributed.node_split(g.ndata[f"{part}_mask"]) for part in ("train", "val", "test")]
    sampler = mg.dataloading.NeighborSampler(fanouts, return_eids=False)
    options = {"batch_size": -(-args.batch_size // num_trainers), "features": ["feat"] if fanouts else []}
    loader = mg.distributed.DistNodeDataLoader(g, split[0], sampler, device, shuffle=True, **options)
    torch.manual_seed(args.seed)
    model = SAGE(g.ndata["feat"].shape[1], args.num_hidden, int(g.ndata["label"][:].max()) + 1, len(fanouts))
    model = nn.parallel.DistributedDataParallel(model.to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    torch.manual_seed(args.seed * num_trainers + g.rank())  # dropout differs between trainers
    for epoch in range(args.num_epochs):
        wait, compute = train_epoch(g, model, optimizer, loader, device)
        line = f"{epoch:2d} (wait {wait:.2f} s, compute {compute:.2f} s)"
        if (epoch + 1) % args.eval_every == 0:
            line += f"  validation accuracy {evaluate(g, model, split[1], len(fanouts), device):.4f}"
        if g.rank() == 0:
            print(name, "epoch", line, flush=True)
    return evaluate(g, model, split[2], len(fanouts), device)


def generate(directory):
    """Write a partitioned graph of 20,000 nodes and 200,000 edges."""
    data = generate_graph(Recipe(20_000, 200_000, feat_dim=64, num_classes=16))
    g = mg.graph((data["edge_src"], data["edge_dst"]), num_nodes=20_000)
    g.ndata.update({name: torch.from_numpy(data[name]) for name in data if not name.startswith("edge")})
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
    accuracy = train(g, "GraphSAGE", [int(fanout) for fanout in args.fan_out.split(",")], device)
    mlp = "" if args.part_config else f", of an MLP on the features alone {train(g, 'MLP', [], device):.4f}"
    if g.rank() == 0:
        print(f"test accuracy {accuracy:.4f}{mlp}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
