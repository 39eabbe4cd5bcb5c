"""Predict edges with GraphSAGE; the same script in all three starts.

    python examples/link_prediction.py
    mpiexec -n 4 python examples/link_prediction.py --num_servers 1
    srun -N 8 --ntasks-per-node=9 python examples/link_prediction.py --graph_name G --part_config DIR/G.json \
        --held_out DIR/held_out.npz

The model learns to tell the edges (those that edata["train_mask"] selects, if it is there) from negatives. The edges of
a minibatch and their reverses are not among the neighbours that it samples. Without ndata["feat"], nodes get embeddings
that learn; "--fan_out none" scores these as they are (matrix factorisation). The npz file has the edges to predict, src
and dst in ids of the partitioned graph (partition_graph(return_mapping=True) tells them). Each is ranked among the same
nodes drawn at random. The representations are in a DistTensor: no trainer reads all of them, each ranks its share.
Without --part_config a graph is generated, and some edges held out.
"""

import argparse
import os
import shutil
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import mpigraph as mg
from mpigraph.partition.generate import Recipe, generate_graph

SETTINGS = {
    "graph_name": "default",
    "part_config": os.environ.get("MPIGRAPH_PART_CONFIG", ""),  # <name>.json of a partitioned graph
    "held_out": "",  # npz file of edges to predict
    "num_servers": None,  # on each node (MPIGRAPH_NUM_SERVERS, else 1); 0: every trainer hosts a share of the graph
    "backend": "gloo",  # of gradients; nccl: train on GPUs; mpi4py: by MPI, with no port opened
    "num_epochs": 3,
    "fan_out": "10,10",  # neighbours per layer, input side first; or none
    "exclude": "reverse_id",  # from the neighbours: the edges of the minibatch and their reverses; self: only them
    "negatives": "Uniform",  # or another sampler of mpigraph.dataloading.negative_sampler
    "num_negatives": 5,  # for each edge, or for all of a minibatch that shares them (JointUniform)
    "num_eval_negatives": 1000,  # for all edges to predict
    "loss": "softmax",  # an edge among its negatives; bce: each pair by itself (as with GlobalUniform)
    "batch_size": 1000,  # edges, of all trainers together
    "num_hidden": 64,  # also the width of embeddings
    "lr": 0.01,
    "sparse_lr": 0.1,  # of embeddings, by Adagrad
    "seed": 0,
}
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
for name, value in SETTINGS.items():
    parser.add_argument(f"--{name}", type=int if value is None else type(value), default=value, help="(%(default)s)")
args = parser.parse_args()
if args.part_config and not args.held_out:
    parser.error("a partitioned graph needs --held_out")
FANOUTS = [] if args.fan_out == "none" else [int(fanout) for fanout in args.fan_out.split(",")]


class Model(nn.Module):
    """A SAGEConv layer for each fanout, and the dot product of what the ends of a pair become."""

    def __init__(self, width):
        super().__init__()
        widths = [width, *[args.num_hidden] * len(FANOUTS)]
        self.layers = nn.ModuleList(mg.nn.SAGEConv(*widths[i : i + 2], "mean") for i in range(len(FANOUTS)))
        self.score = mg.nn.EdgePredictor("dot")

    def layer(self, i, block, h):
        h = self.layers[i](block, h)
        return F.relu(h) if i < len(self.layers) - 1 else h

    def forward(self, blocks, h, edges, pairs):
        for i, block in enumerate(blocks):
            h = self.layer(i, block, h)
        (src, dst), (u, v) = edges.edges(), pairs.edges()
        right = self.score(h[src], h[dst]).flatten()
        if args.negatives == "JointUniform":  # the same for every edge: one product of matrices
            return right, h[src] @ h[v[: args.num_negatives]].T
        return right, self.score(h[u], h[v]).flatten()


def loss_of(right, wrong):
    """The loss of edges' scores float[n] and those of negatives, the same number for each edge one after the other."""
    if args.loss == "softmax":
        scores = torch.cat([right[:, None], wrong.reshape(len(right), -1)], 1)
        return F.cross_entropy(scores, torch.zeros(len(right), dtype=torch.int64, device=scores.device))
    wanted = torch.cat([torch.ones_like(right), torch.zeros_like(wrong.flatten())])
    return F.binary_cross_entropy_with_logits(torch.cat([right, wrong.flatten()]), wanted)


@torch.no_grad()
def represent(g, model, rows, device):
    """What all nodes become, layer by layer: no trainer begins one before all have ended the one before."""
    nodes = mg.distributed.node_split(torch.ones(g.num_nodes(), dtype=torch.bool), g.get_partition_book())
    sampler, policy = mg.dataloading.NeighborSampler([-1], return_eids=False), g.get_node_partition_policy()
    for i in range(len(FANOUTS)):
        out = mg.distributed.DistTensor((g.num_nodes(), args.num_hidden), torch.float32, part_policy=policy)
        for inputs, seeds, (block,) in mg.distributed.DistNodeDataLoader(g, nodes, sampler, device, batch_size=1000):
            out[seeds] = model.layer(i, block, rows[inputs].to(device))
        g.barrier()
        rows = out
    return rows


def evaluate(g, rows, src, dst, device):
    """Mean reciprocal rank and hits@k of edges among the same nodes drawn at random; each trainer ranks its share."""
    random = torch.Generator().manual_seed(args.seed)
    others = rows[torch.randint(g.num_nodes(), (args.num_eval_negatives,), generator=random)]
    mine, sums = slice(g.rank(), None, torch.distributed.get_world_size()), torch.zeros(5, dtype=torch.float64)
    for u, v in zip(src[mine].split(10_000), dst[mine].split(10_000), strict=True):
        right, wrong = (rows[u] * rows[v]).sum(1, keepdim=True), rows[u] @ others.T
        ranks = 1.0 + (wrong > right).sum(1) + (wrong == right).sum(1) / 2  # equal scores come in any order
        sums += torch.stack([1 / ranks, ranks <= 1, ranks <= 10, ranks <= 50, torch.ones_like(ranks)]).sum(1)
    sums = sums.to(device)
    torch.distributed.all_reduce(sums)
    if g.rank() == 0:
        print("MRR {:.4f}  hits@1 {:.4f}  hits@10 {:.4f}  hits@50 {:.4f}".format(*(sums[:4] / sums[4]).tolist()))


def reverse_ids(g):
    """The reverse of each edge, as a DistTensor; in order of (src, dst) and of (dst, src) the two have one place."""
    reverse = mg.distributed.DistTensor((g.num_edges(),), torch.int64, part_policy=g.get_edge_partition_policy())
    if g.rank() == 0:
        src, dst = g.find_edges(torch.arange(g.num_edges()))
        one, other = (torch.argsort(a * g.num_nodes() + b, stable=True) for a, b in ((src, dst), (dst, src)))
        if not (torch.equal(src[one], dst[other]) and torch.equal(dst[one], src[other])):
            raise ValueError("not every edge has a reverse: give --exclude self")
        reverse[one] = other
    g.barrier()
    return reverse


def train(g, device):
    """Train; return the representations of all nodes."""
    num_trainers = torch.distributed.get_world_size()
    mask = g.edata["train_mask"] if "train_mask" in g.edata else torch.ones(g.num_edges(), dtype=torch.bool)
    options = {"batch_size": -(-args.batch_size // num_trainers), "shuffle": True}
    options["negative_sampler"] = getattr(mg.dataloading.negative_sampler, args.negatives)(args.num_negatives)
    if FANOUTS:
        options |= {"exclude": args.exclude, "reverse_eids": reverse_ids(g) if "reverse" in args.exclude else None}
    eids, sampler = mg.distributed.edge_split(mask, g.get_partition_book()), mg.dataloading.NeighborSampler(FANOUTS)
    loader = mg.distributed.DistEdgeDataLoader(g, eids, sampler, device, **options)
    torch.manual_seed(args.seed)
    optimizers, rows = [], g.ndata.get("feat")
    if rows is None:
        rows = mg.distributed.DistEmbedding(
            g.num_nodes(), args.num_hidden, "emb", lambda shape, _: torch.randn(shape) / 100
        )
        optimizers.append(mg.distributed.SparseAdagrad([rows], lr=args.sparse_lr, reduction="sum"))
    read = rows if optimizers else (lambda ids, device: rows[ids].to(device))
    model = plain = Model(args.num_hidden if optimizers else rows.shape[1]).to(device)
    if FANOUTS:
        model = nn.parallel.DistributedDataParallel(plain)
        optimizers.append(torch.optim.Adam(model.parameters(), lr=args.lr))
    for epoch in range(args.num_epochs):
        for inputs, edges, pairs, blocks in loader:
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = loss_of(*model(blocks, read(inputs, device), edges, pairs))
            loss.backward()
            for optimizer in optimizers:  # that of embeddings is collective: gradients go to the owners of the rows
                optimizer.step()
        if g.rank() == 0:
            print(f"epoch {epoch:2d}  last loss {loss:.4f}", flush=True)
    return represent(g, plain, getattr(rows, "weight", rows), device)


def generate(directory):
    """Write a partitioned graph of 95,000 edges, each in both directions, and 5,000 edges to predict."""
    data = generate_graph(Recipe(10_000, 200_000, feat_dim=64, num_classes=40, homophily=0.9))
    ends = torch.stack([torch.from_numpy(data[f"edge_{end}"]).long() for end in ("src", "dst")])
    order = torch.randperm(100_000, generator=torch.Generator().manual_seed(0))  # the other half are the reverses
    to_predict, edges = ends[:, order].split([5_000, 95_000], 1)
    g = mg.graph(torch.cat([edges, edges.flip(0)], 1), num_nodes=10_000)
    g.ndata["feat"] = torch.from_numpy(data["feat"])
    orig_nids, _ = mg.distributed.partition_graph(g, "default", 2, directory, return_mapping=True)
    src, dst = torch.argsort(orig_nids)[to_predict]
    np.savez(f"{directory}/held_out.npz", src=src, dst=dst)


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
    with np.load(args.held_out or f"{directory}/held_out.npz") as file:
        src, dst = torch.from_numpy(file["src"]), torch.from_numpy(file["dst"])
    g = mg.distributed.DistGraph(args.graph_name, part_config=args.part_config or f"{directory}/default.json")
    if not args.part_config and g.rank() == 0:
        shutil.rmtree(directory)  # all of it is in memory now
    evaluate(g, train(g, device), src, dst, device)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
