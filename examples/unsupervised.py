"""Learn representations of nodes without labels, then classify by them; the same script in all three starts.

    python examples/unsupervised.py
    mpiexec -n 4 python examples/unsupervised.py --num_servers 1
    srun -N 8 -n 72 --mpi=pmi2 python examples/unsupervised.py --graph_name G --part_config DIR/G.json

GraphSAGE learns to tell edges from pairs drawn at random (Hamilton et al., "Inductive Representation Learning on Large
Graphs", NeurIPS 2017). The representations of all nodes are written to a DistTensor, layer by layer, and a linear model
is trained on those of the training nodes; beside it, one on the features as they are. --embeddings FILE.npy also writes
them to a file, in the original order of the nodes. Without --part_config a graph is generated.
"""

import common
import graphs
import torch
import torch.nn.functional as F
from torch import nn

import mpigraph as mg


def train(g, args, device):
    """Train without labels; return the part of the model that represents nodes."""
    eids = mg.distributed.edge_split(torch.ones(g.num_edges(), dtype=torch.bool), g.get_partition_book())
    sampler = mg.dataloading.NeighborSampler(common.numbers(args.fan_out))
    loader = mg.distributed.DistEdgeDataLoader(
        g,
        eids,
        sampler,
        device,
        batch_size=common.per_trainer(args.batch_size),
        shuffle=True,
        exclude="self",  # what is to be predicted is not among the neighbours
        negative_sampler=mg.dataloading.negative_sampler.Uniform(args.num_negatives),
    )
    torch.manual_seed(args.seed)
    sizes = [g.ndata["feat"].shape[1]] + [args.num_hidden] * len(sampler.fanouts)
    model = nn.parallel.DistributedDataParallel(EdgeScores(sizes).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    progress = common.Progress(args.num_epochs)
    for _ in range(args.num_epochs):
        for inputs, edges, pairs, blocks in progress.batches(loader):
            right, wrong = model(blocks, g.ndata["feat"][inputs].to(device), edges, pairs)
            targets = torch.cat([torch.ones_like(right), torch.zeros_like(wrong)])
            loss = F.binary_cross_entropy_with_logits(torch.cat([right, wrong]), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            progress.add(loss)
        progress.report()
    return model.module.sage


class EdgeScores(nn.Module):
    """GraphSAGE, then the scores of the edges of some graphs: the dot products of the rows of their ends."""

    def __init__(self, sizes):
        super().__init__()
        self.sage = common.SAGE(sizes)
        self.score = mg.nn.EdgePredictor("dot")

    def forward(self, blocks, h, *graphs):
        h = self.sage(blocks, h)
        ends = [graph.edges() for graph in graphs]
        return [self.score(h[src], h[dst]).flatten() for src, dst in ends]


def write_graph(folder):
    """Write a partitioned graph of 5,000 nodes and 60,000 edges."""
    g = mg.data.generate(5_000, 60_000, feat_dim=64, num_classes=8, homophily=0.8)
    mg.distributed.partition_graph(g, "default", 2, folder)


SETTINGS = {
    "num_epochs": (5, "passes over the edges"),
    "fan_out": ("10,10", "neighbours per layer, outermost hop first"),
    "embeddings": ("", "a .npy file for the representations of all nodes, in their original order"),
    "batch_size": (500, "edges, of all trainers together"),
    "num_negatives": (5, "for each edge: its source with other destinations"),
    "num_hidden": (64, "width of the layers and of the representations"),
    "lr": (0.01, "learning rate"),
    "linear_epochs": (200, "steps of a linear model, each on all training nodes"),
}


def main():
    args = common.parse_arguments(__doc__, SETTINGS)
    mg.distributed.initialize(num_servers=args.num_servers, seed=args.seed)
    device = common.start_torch(args.backend)
    with graphs.graph_files(write_graph, args.part_config) as part_config:
        g = mg.distributed.DistGraph(args.graph_name, part_config=part_config)
        rows = common.represent(g, train(g, args, device), g.ndata["feat"], device)
        if args.embeddings:  # original ids are in the files of the graph
            rows.save(args.embeddings)
    nodes = {part: mg.distributed.node_split(g.ndata[f"{part}_mask"]) for part in ("train", "test")}
    learned = common.linear_accuracy(g, rows, nodes, args.linear_epochs, 0.01, device)
    plain = common.linear_accuracy(g, g.ndata["feat"], nodes, args.linear_epochs, 0.01, device)
    common.print_once(f"test accuracy by representations {learned:.4f}, by features {plain:.4f}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
