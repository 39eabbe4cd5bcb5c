"""Classify nodes of a graph without features: each has an embedding that learns. The same script in all three starts.

    python examples/node_embedding.py
    mpiexec -n 4 python examples/node_embedding.py --num_servers 1
    srun -N 8 --ntasks-per-node=9 python examples/node_embedding.py --graph_name G --part_config DIR/G.json

GraphSAGE trains on the embeddings and trains them; then a linear model is trained on the same embeddings, to show what
the neighbours are worth. Without --part_config it generates a graph, whose features it does not use.
"""

import argparse
import os
import shutil
import tempfile
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
    "num_epochs": 15,
    "eval_every": 5,  # epochs
    "fan_out": "10,10",  # neighbours per layer, input side first
    "batch_size": 500,  # of all trainers together
    "num_hidden": 64,  # also the width of the embeddings
    "dropout": 0.5,
    "lr": 0.01,  # of the layers, by Adam
    "sparse_lr": 0.1,  # of the embeddings, by Adagrad
    "linear_epochs": 200,  # steps of the linear model, each on all training nodes
    "seed": 0,
}
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
for name, value in SETTINGS.items():
    parser.add_argument(f"--{name}", type=int if value is None else type(value), default=value, help="(%(default)s)")
args = parser.parse_args()


class SAGE(nn.Module):
    """A SAGEConv layer for each fanout."""

    def __init__(self, hidden, classes, num_layers):
        super().__init__()
        sizes = [hidden] * num_layers + [classes]
        self.layers = nn.ModuleList(mg.nn.SAGEConv(a, b, "mean") for a, b in pairwise(sizes))

    def forward(self, blocks, h):
        for block, layer in zip(blocks, self.layers, strict=True):
            h = layer(block, h)
            if layer is not self.layers[-1]:
                h = mg.nn.relu_dropout(h, args.dropout, self.training)
        return h


def mean_of_all(right, device):
    """The share that is right of all trainers' nodes together."""
    count = torch.tensor([right.sum(), len(right)], dtype=torch.float64, device=device)
    torch.distributed.all_reduce(count)
    return float(count[0] / count[1].clamp(min=1))


@torch.no_grad()
def evaluate(g, model, emb, nodes, device):
    """Accuracy on all trainers' nodes, with all neighbours."""
    model.eval()
    sampler = mg.dataloading.NeighborSampler([-1] * len(args.fan_out.split(",")), return_eids=False)
    right = [torch.empty(0, dtype=torch.bool)]
    for inputs, seeds, blocks in mg.distributed.DistNodeDataLoader(g, nodes, sampler, device, batch_size=1000):
        right.append(model(blocks, emb(inputs, device)).argmax(1).cpu() == g.ndata["label"][seeds])
    model.train()
    return mean_of_all(torch.cat(right), device)


def train(g, emb, split, num_classes, device):
    """Train GraphSAGE and the embeddings; return the accuracy on the test nodes."""
    num_trainers = torch.distributed.get_world_size()
    fanouts = [int(fanout) for fanout in args.fan_out.split(",")]
    sampler = mg.dataloading.NeighborSampler(fanouts, return_eids=False)
    batch_size = -(-args.batch_size // num_trainers)
    loader = mg.distributed.DistNodeDataLoader(g, split[0], sampler, device, batch_size=batch_size, shuffle=True)
    torch.manual_seed(args.seed)
    model = nn.parallel.DistributedDataParallel(SAGE(args.num_hidden, num_classes, len(fanouts)).to(device))
    dense = torch.optim.Adam(model.parameters(), lr=args.lr)
    sparse = mg.distributed.SparseAdagrad([emb], lr=args.sparse_lr, reduction="sum")
    torch.manual_seed(args.seed * num_trainers + g.rank())  # dropout differs between trainers
    for epoch in range(args.num_epochs):
        for inputs, seeds, blocks in loader:
            dense.zero_grad()
            sparse.zero_grad()
            logits = model(blocks, emb(inputs, device))
            F.cross_entropy(logits, g.ndata["label"][seeds].to(device)).backward()
            dense.step()
            sparse.step()  # collective: the gradients of a row go to its owner, from all trainers
        if (epoch + 1) % args.eval_every == 0:
            accuracy = evaluate(g, model, emb, split[1], device)
            if g.rank() == 0:
                print(f"epoch {epoch:2d}  validation accuracy {accuracy:.4f}", flush=True)
    return evaluate(g, model, emb, split[2], device)


def train_linear(g, rows, split, num_classes, device):
    """Train a linear model on rows as they are; return the accuracy on the test nodes."""
    x, labels = rows[split[0]].to(device), g.ndata["label"][split[0]].to(device)
    model = nn.parallel.DistributedDataParallel(nn.Linear(rows.shape[1], num_classes).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(args.linear_epochs):
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
    with torch.no_grad():
        predicted = model(rows[split[2]].to(device)).argmax(1).cpu()
    return mean_of_all(predicted == g.ndata["label"][split[2]], device)


def generate(directory):
    """Write a partitioned graph of 10,000 nodes and 200,000 edges."""
    data = generate_graph(Recipe(10_000, 200_000, feat_dim=1, num_classes=16, homophily=0.8))
    g = mg.graph((data["edge_src"], data["edge_dst"]), num_nodes=10_000)
    g.ndata.update({name: torch.from_numpy(data[name]) for name in data if name.endswith(("label", "mask"))})
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
    split = [mg.distributed.node_split(g.ndata[f"{part}_mask"]) for part in ("train", "val", "test")]
    num_classes = int(g.ndata["label"][:].max()) + 1
    emb = mg.distributed.DistEmbedding(g.num_nodes(), args.num_hidden, "nodes", lambda shape, _: torch.randn(shape))
    sage = train(g, emb, split, num_classes, device)
    linear = train_linear(g, emb.weight, split, num_classes, device)
    if g.rank() == 0:
        print(f"test accuracy {sage:.4f}, of a linear model on the same embeddings {linear:.4f}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
