"""Classify the nodes of one type of a typed graph by RGCN; the same script in all three starts.

    python examples/rgcn.py
    mpiexec -n 4 python examples/rgcn.py --num_servers 1
    srun -N 8 --ntasks-per-node=9 python examples/rgcn.py --graph_name G --part_config DIR/G.json --target paper

Types with the feature "feat" enter by a linear map, all others by embeddings that learn. Without --part_config it
generates a graph of authors, papers and venues, in which an author's subject shows only in the papers, a paper's mostly
in the venue.
"""

import argparse
import os
import shutil
import tempfile
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import mpigraph as mg

SETTINGS = {
    "graph_name": "default",
    "part_config": os.environ.get("MPIGRAPH_PART_CONFIG", ""),  # <name>.json of a partitioned graph
    "target": "author",  # the node type to classify, with label, train_mask, val_mask and test_mask
    "num_servers": None,  # on each node (MPIGRAPH_NUM_SERVERS, else 1); 0: every trainer hosts a share of the graph
    "backend": "gloo",  # of gradients; nccl: train on GPUs; mpi4py: by MPI, with no port opened
    "num_epochs": 10,
    "eval_every": 2,  # epochs
    "fan_out": "10,10",  # neighbours by each relation in each layer, input side first
    "eval_fan_out": -1,  # neighbours by each relation in evaluation; -1: all
    "batch_size": 500,  # of all trainers together
    "num_hidden": 64,  # also the width of the embeddings
    "num_bases": 0,  # matrices that those of the relations are composed of; 0: each has one of its own
    "dropout": 0.5,
    "norm": 0,  # divide each feature row by this norm; 0: do not
    "lr": 0.01,  # of the layers, by Adam
    "weight_decay": 0.0,
    "sparse_lr": 0.01,  # of the embeddings, by Adam
    "seed": 0,
}
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
for name, value in SETTINGS.items():
    parser.add_argument(f"--{name}", type=int if value is None else type(value), default=value, help="(%(default)s)")
args = parser.parse_args()


class RGCN(nn.Module):
    """A linear map for each type with features, then a layer for each fanout."""

    def __init__(self, num_relations, widths, classes, num_layers):
        super().__init__()
        hidden = args.num_hidden
        self.inputs = nn.ModuleDict({ntype: nn.Linear(width, hidden) for ntype, width in widths.items()})
        sizes = [hidden] * num_layers + [classes]
        basis = ("basis", args.num_bases) if args.num_bases else ()
        self.layers = nn.ModuleList(mg.nn.RelGraphConv(a, b, num_relations, *basis) for a, b in pairwise(sizes))

    def forward(self, blocks, rows):
        h = dict(rows)
        for ntype, linear in self.inputs.items():
            x = blocks[0].srcnodes[ntype].data["feat"]
            h[ntype] = linear(F.normalize(x, p=args.norm) if args.norm else x)
        for i, (block, layer) in enumerate(zip(blocks, self.layers, strict=True)):
            h = {t: mg.nn.relu_dropout(x, args.dropout, self.training) for t, x in h.items()} if i else h
            h = layer(block, h, norm=mean(block))
        return h[args.target]


def mean(block):
    """What edges are multiplied with: one over the number of edges of the relation that their destination has."""
    return {r: 1 / block.in_degrees(etype=r)[block.edges(etype=r)[1]] for r in block.canonical_etypes}


def make_embedding(g, ntype):
    def uniform(shape, _):
        return torch.empty(shape).uniform_(-1, 1)

    policy = g.get_node_partition_policy(ntype)
    return mg.distributed.DistEmbedding(g.num_nodes(ntype), args.num_hidden, f"rows of {ntype}", uniform, policy)


def make_loader(g, widths, nodes, fanouts, device, **options):
    sampler = mg.dataloading.NeighborSampler(fanouts, return_eids=False)
    options |= {"features": {t: ["feat"] for t in widths}, "labels": {args.target: ["label"]}}
    return mg.distributed.DistNodeDataLoader(g, {args.target: nodes}, sampler, device, **options)


def scores_and_labels(model, embeddings, inputs, blocks, device):
    rows = {t: emb(inputs[t], device) for t, emb in embeddings.items()}
    return model(blocks, rows), blocks[-1].dstnodes[args.target].data["label"]


@torch.no_grad()
def evaluate(model, embeddings, loader, device):
    """Accuracy on all trainers' nodes together, which for one label a node is the micro-averaged F1."""
    model.eval()
    count = torch.zeros(2, dtype=torch.float64, device=device)
    for inputs, _, blocks in loader:
        scores, labels = scores_and_labels(model, embeddings, inputs, blocks, device)
        right = scores.argmax(1) == labels
        count += torch.tensor([right.sum(), len(right)], device=device)
    torch.distributed.all_reduce(count)
    model.train()
    return float(count[0] / count[1].clamp(min=1))


def train(g, device):
    num_trainers = torch.distributed.get_world_size()
    target = g.nodes[args.target].data
    widths = {t: g.nodes[t].data["feat"].shape[1] for t in g.ntypes if "feat" in g.nodes[t].data}
    embeddings = {t: make_embedding(g, t) for t in g.ntypes if t not in widths}
    split = [mg.distributed.node_split(target[f"{p}_mask"], ntype=args.target) for p in ("train", "val", "test")]
    fanouts, batch_size = [int(fanout) for fanout in args.fan_out.split(",")], -(-args.batch_size // num_trainers)
    loader = make_loader(g, widths, split[0], fanouts, device, batch_size=batch_size, shuffle=True)
    fanouts = [args.eval_fan_out] * len(fanouts)
    val, test = (make_loader(g, widths, nodes, fanouts, device, batch_size=1000) for nodes in split[1:])
    torch.manual_seed(args.seed)
    model = RGCN(len(g.canonical_etypes), widths, int(target["label"][:].max()) + 1, len(fanouts)).to(device)
    model = nn.parallel.DistributedDataParallel(model)
    optimizers = [torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)]
    if embeddings:
        optimizers.append(mg.distributed.optim.SparseAdam(list(embeddings.values()), lr=args.sparse_lr))
    torch.manual_seed(args.seed * num_trainers + g.rank())  # dropout differs between trainers
    for epoch in range(args.num_epochs):
        for inputs, _, blocks in loader:
            scores, labels = scores_and_labels(model, embeddings, inputs, blocks, device)
            for optimizer in optimizers:
                optimizer.zero_grad()
            F.cross_entropy(scores, labels).backward()
            for optimizer in optimizers:  # that of embeddings is collective: gradients of a row go to its owner
                optimizer.step()
        if (epoch + 1) % args.eval_every == 0:
            accuracy = evaluate(model, embeddings, val, device)
            if g.rank() == 0:
                print(f"epoch {epoch:2d}  validation accuracy {accuracy:.4f}", flush=True)
    return evaluate(model, embeddings, test, device)


def generate(directory, authors=4000, papers=8000, venues=64, subjects=8):
    """Write a partitioned graph; the subject of node i of any type is i modulo ``subjects``."""
    rng, paper = np.random.default_rng(0), np.arange(papers)

    def some(num, share):
        """For each paper a node of another type, for this share of the papers one of the same subject."""
        subject = np.where(rng.random(papers) < share, paper, rng.integers(0, subjects, papers)) % subjects
        return rng.integers(0, num // subjects, papers) * subjects + subject

    author, written, venue = (
        np.concatenate([some(authors, 0.7) for _ in range(3)]),
        np.tile(paper, 3),
        some(venues, 0.9),
    )
    edges = {("author", "writes", "paper"): (author, written), ("paper", "by", "author"): (written, author)}
    edges |= {("paper", "in", "venue"): (paper, venue), ("venue", "of", "paper"): (venue, paper)}
    edges |= {("paper", "cites", "paper"): tuple(rng.integers(0, papers, (2, 3 * papers)))}  # at random
    g = mg.heterograph(edges, {"author": authors, "paper": papers, "venue": venues})
    feat = np.eye(subjects)[paper % subjects] + 2 * rng.standard_normal((papers, subjects))
    g.nodes["paper"].data["feat"] = torch.from_numpy(feat).float()
    g.nodes["author"].data["label"] = torch.arange(authors) % subjects
    part = torch.from_numpy(rng.permutation(authors) * 4 // authors)
    g.nodes["author"].data.update({"train_mask": part < 2, "val_mask": part == 2, "test_mask": part == 3})
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
    accuracy = train(g, device)
    if g.rank() == 0:
        print(f"test accuracy {accuracy:.4f}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
