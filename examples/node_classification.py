"""Train GraphSAGE for node classification; the same script in all three starts.

    python examples/node_classification.py
    mpiexec -n 4 python examples/node_classification.py --num_servers 1
    srun -N 8 --ntasks-per-node=9 python examples/node_classification.py --graph_name G --part_config DIR/G.json

Without --part_config it generates a graph whose labels need both features and neighbours, and also trains an MLP on
the features alone, to show what the neighbours are worth.
"""

import argparse
import shutil
import tempfile
import time
from itertools import pairwise

import torch
import torch.distributed
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mpigraph as mg
from mpigraph.partition.generate import Recipe, generate_graph

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--graph_name", default="default")
parser.add_argument("--part_config", help="<name>.json of a partitioned graph")
parser.add_argument("--num_servers", type=int, default=1, help="servers on each node; 0: every trainer hosts a share")
parser.add_argument("--num_parts", type=int, default=2, help="parts of the generated graph")
parser.add_argument("--num_epochs", type=int, default=30)
parser.add_argument("--eval_every", type=int, default=5)
parser.add_argument("--fan_out", default="10,10", help="neighbours per layer, input side first")
parser.add_argument("--eval_fan_out", type=int, default=-1, help="neighbours in each layer in evaluation; -1: all")
parser.add_argument("--num_eval", type=int, default=10**9, help="evaluate on about so many nodes of each trainer")
parser.add_argument("--batch_size", type=int, default=500, help="of all trainers together")
parser.add_argument("--num_hidden", type=int, default=64)
parser.add_argument("--dropout", type=float, default=0.5)
parser.add_argument("--feat_drop", type=float, default=0.0)
parser.add_argument("--norm", type=int, default=0, help="divide each feature row by this norm; 0: do not")
parser.add_argument("--lr", type=float, default=0.005)
parser.add_argument("--weight_decay", type=float, default=0.0)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()


class SAGE(nn.Module):
    """A SAGEConv layer for each fanout; with none, an MLP on a node's own features."""

    def __init__(self, width, hidden, classes, num_layers):
        super().__init__()
        sizes = [width] + [hidden] * (max(num_layers, 2) - 1) + [classes]
        make = (lambda a, b: mg.nn.SAGEConv(a, b, "mean")) if num_layers else nn.Linear
        self.layers = nn.ModuleList(make(a, b) for a, b in pairwise(sizes))

    def forward(self, blocks, h):
        h = F.normalize(h, p=args.norm, dim=1) if args.norm else h
        h = F.dropout(h, args.feat_drop, self.training)
        for i, layer in enumerate(self.layers):
            h = layer(blocks[i], h) if blocks else layer(h)
            if i < len(self.layers) - 1:
                h = F.dropout(F.relu(h), args.dropout, self.training)
        return h


@torch.no_grad()
def evaluate(g, model, nodes, num_layers):
    """Accuracy on all trainers' nodes together."""
    model.eval()
    sampler = mg.dataloading.NeighborSampler([args.eval_fan_out] * num_layers, return_eids=False)
    nodes, count = nodes[:: max(1, len(nodes) // args.num_eval)], torch.zeros(2)
    for inputs, seeds, blocks in mg.distributed.DistNodeDataLoader(g, nodes, sampler, batch_size=1000):
        predicted = model(blocks, g.ndata["feat"][inputs]).argmax(1)
        count += torch.tensor([(predicted == g.ndata["label"][seeds]).sum(), len(seeds)])
    torch.distributed.all_reduce(count)
    model.train()
    return float(count[0] / count[1].clamp(min=1))


def train_epoch(g, model, optimizer, loader):
    """Make one pass; return the seconds spent waiting for samples, gathering rows and computing."""
    sample = gather = compute = 0.0
    with model.join():  # trainers that run out of seeds take part
        start = time.perf_counter()
        for inputs, seeds, blocks in loader:
            sampled = time.perf_counter()
            feats, labels = g.ndata["feat"][inputs], g.ndata["label"][seeds]
            gathered = time.perf_counter()
            loss = F.cross_entropy(model(blocks, feats), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            end = time.perf_counter()
            sample, gather, compute = sample + sampled - start, gather + gathered - sampled, compute + end - gathered
            start = end
    return sample, gather, compute


def train(g, name, fanouts, classes):
    """Train one model; return its accuracy on the test nodes."""
    book, num_trainers = g.get_partition_book(), torch.distributed.get_world_size()
    masks = ("train_mask", "val_mask", "test_mask")
    train_nodes, val_nodes, test_nodes = (mg.distributed.node_split(g.ndata[mask], book) for mask in masks)
    sampler = mg.dataloading.NeighborSampler(fanouts, return_eids=False)
    batch_size = -(-args.batch_size // num_trainers)
    loader = mg.distributed.DistNodeDataLoader(g, train_nodes, sampler, batch_size=batch_size, shuffle=True)
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(SAGE(g.ndata["feat"].shape[1], args.num_hidden, classes, len(fanouts)))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    torch.manual_seed(args.seed * num_trainers + g.rank())  # dropout differs between trainers
    for epoch in range(args.num_epochs):
        spent = train_epoch(g, model, optimizer, loader)
        split = "sample {:.2f} gather {:.2f} compute {:.2f}".format(*spent)
        line = f"{name} epoch {epoch:2d} {sum(spent):7.2f} s ({split})"
        if (epoch + 1) % args.eval_every == 0:
            line += f"  validation accuracy {evaluate(g, model, val_nodes, len(fanouts)):.4f}"
        if g.rank() == 0:
            print(line, flush=True)
    return evaluate(g, model, test_nodes, len(fanouts))


def generate(directory):
    """Write a partitioned graph of 20,000 nodes and 200,000 edges; return its configuration."""
    data = generate_graph(Recipe(20_000, 200_000, feat_dim=64, num_classes=16))
    g = mg.graph((data["edge_src"], data["edge_dst"]), num_nodes=20_000)
    for name in ("feat", "label", "train_mask", "val_mask", "test_mask"):
        g.ndata[name] = torch.from_numpy(data[name])
    mg.distributed.partition_graph(g, args.graph_name, args.num_parts, directory)
    return f"{directory}/{args.graph_name}.json"


def main():
    mg.distributed.initialize(num_servers=args.num_servers, seed=args.seed)
    torch.distributed.init_process_group("gloo")
    part_config, directory = [args.part_config], None
    if not args.part_config:
        if torch.distributed.get_rank() == 0:
            directory = tempfile.mkdtemp(prefix="mpigraph-")
            part_config = [generate(directory)]
        torch.distributed.broadcast_object_list(part_config)
    g = mg.distributed.DistGraph(args.graph_name, part_config=part_config[0])
    if directory:
        shutil.rmtree(directory)  # the graph is in memory now
    classes = int(g.ndata["label"][:].max()) + 1
    accuracy = train(g, "GraphSAGE", [int(fanout) for fanout in args.fan_out.split(",")], classes)
    mlp = None if args.part_config else train(g, "MLP", [], classes)
    if g.rank() == 0:
        print(f"test accuracy {accuracy:.4f}" + (f", of an MLP on the features alone {mlp:.4f}" if mlp else ""))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
