"""Learn representations of nodes without labels, then classify by them; the same script in all three starts.

    python examples/unsupervised.py
    mpiexec -n 4 python examples/unsupervised.py --num_servers 1
    srun -N 8 --ntasks-per-node=9 python examples/unsupervised.py --graph_name G --part_config DIR/G.json

GraphSAGE learns to tell edges from pairs drawn at random (Hamilton et al., "Inductive Representation Learning on Large
Graphs", NeurIPS 2017). The representations of all nodes are written to a DistTensor, and a linear model is trained on
those of the training nodes; beside it, one on the features as they are. Without --part_config a graph is generated.
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
    "num_epochs": 5,
    "fan_out": "10,10",  # neighbours per layer, input side first
    "eval_fan_out": -1,  # neighbours in each layer for the representations; -1: all
    "batch_size": 500,  # edges, of all trainers together
    "num_negatives": 5,  # for each edge: its source with other destinations
    "num_hidden": 64,  # also the width of the representations
    "lr": 0.01,
    "linear_epochs": 200,  # steps of a linear model, each on all training nodes
    "seed": 0,
}
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
for name, value in SETTINGS.items():
    parser.add_argument(f"--{name}", type=int if value is None else type(value), default=value, help="(%(default)s)")
args = parser.parse_args()


class SAGE(nn.Module):
    """A SAGEConv layer for each fanout, and the score of an edge: the dot product of what its ends become."""

    def __init__(self, width, hidden, num_layers):
        super().__init__()
        sizes = [width] + [hidden] * num_layers
        self.layers = nn.ModuleList(mg.nn.SAGEConv(a, b, "mean") for a, b in pairwise(sizes))
        self.score = mg.nn.EdgePredictor("dot")

    def layer(self, i, block, h):
        h = self.layers[i](block, h)
        return F.relu(h) if i < len(self.layers) - 1 else h

    def forward(self, blocks, h, *graphs):
        for i, block in enumerate(blocks):
            h = self.layer(i, block, h)
        return [self.score(h[src], h[dst]).flatten() for src, dst in (graph.edges() for graph in graphs)]


def train(g, device):
    """Train without labels; return the model."""
    num_trainers = torch.distributed.get_world_size()
    sampler = mg.dataloading.NeighborSampler([int(fanout) for fanout in args.fan_out.split(",")])
    eids = mg.distributed.edge_split(torch.ones(g.num_edges(), dtype=torch.bool), g.get_partition_book())
    options = {"batch_size": -(-args.batch_size // num_trainers), "shuffle": True, "exclude": "self"}
    options["negative_sampler"] = mg.dataloading.negative_sampler.Uniform(args.num_negatives)
    loader = mg.distributed.DistEdgeDataLoader(g, eids, sampler, device, **options)
    torch.manual_seed(args.seed)
    model = SAGE(g.ndata["feat"].shape[1], args.num_hidden, len(sampler.fanouts)).to(device)
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.num_epochs):
        losses = []
        for inputs, edges, pairs, blocks in loader:
            scores = model(blocks, g.ndata["feat"][inputs].to(device), edges, pairs)
            wanted = [torch.ones_like(scores[0]), torch.zeros_like(scores[1])]
            loss = F.binary_cross_entropy_with_logits(torch.cat(scores), torch.cat(wanted))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if g.rank() == 0:
            print(f"epoch {epoch:2d}  loss {sum(losses) / max(len(losses), 1):.4f}", flush=True)
    return model.module


@torch.no_grad()
def represent(g, model, device):
    """The representations of all nodes, layer by layer: no trainer begins one before all have ended the one before."""
    nodes = mg.distributed.node_split(torch.ones(g.num_nodes(), dtype=torch.bool), g.get_partition_book())
    sampler = mg.dataloading.NeighborSampler([args.eval_fan_out], return_eids=False)
    rows, policy = g.ndata["feat"], g.get_node_partition_policy()
    for i in range(len(model.layers)):
        out = mg.distributed.DistTensor((g.num_nodes(), args.num_hidden), torch.float32, part_policy=policy)
        loader = mg.distributed.DistNodeDataLoader(g, nodes, sampler, device, batch_size=1000)
        for inputs, seeds, (block,) in loader:
            out[seeds] = model.layer(i, block, rows[inputs].to(device))
        g.barrier()
        rows = out
    return rows


def classify(g, rows, split, num_classes, device):
    """Train a linear model on rows as they are; return the accuracy on the test nodes of all trainers together."""
    model = nn.parallel.DistributedDataParallel(nn.Linear(rows.shape[1], num_classes).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, labels = rows[split[0]].to(device), g.ndata["label"][split[0]].to(device)
    for _ in range(args.linear_epochs):
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
    with torch.no_grad():
        right = model(rows[split[1]].to(device)).argmax(1).cpu() == g.ndata["label"][split[1]]
    count = torch.tensor([right.sum(), len(right)], dtype=torch.float64, device=device)
    torch.distributed.all_reduce(count)
    return float(count[0] / count[1].clamp(min=1))


def generate(directory):
    """Write a partitioned graph of 5,000 nodes and 60,000 edges."""
    data = generate_graph(Recipe(5_000, 60_000, feat_dim=64, num_classes=8, homophily=0.8))
    g = mg.graph((data["edge_src"], data["edge_dst"]), num_nodes=5_000)
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
    rows = represent(g, train(g, device), device)
    split = [mg.distributed.node_split(g.ndata[f"{part}_mask"]) for part in ("train", "test")]
    num_classes = int(g.ndata["label"][:].max()) + 1
    learned, plain = (classify(g, x, split, num_classes, device) for x in (rows, g.ndata["feat"]))
    if g.rank() == 0:
        print(f"test accuracy by representations {learned:.4f}, by features {plain:.4f}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
