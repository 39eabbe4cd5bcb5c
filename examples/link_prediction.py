"""Predict edges with GraphSAGE; the same script in all three starts.

    python examples/link_prediction.py
    mpiexec -n 4 python examples/link_prediction.py --num_servers 1
    srun -N 8 -n 72 --mpi=pmi2 python examples/link_prediction.py --graph_name G --part_config DIR/G.json

The model learns to tell the edges (those that edata["train_mask"] selects, if it is there) from negatives. Nodes
without ndata["feat"] get embeddings that learn; "--fan_out none" scores these as they are (matrix factorisation). The
edges to predict are ranked among the same nodes drawn at random.
"""

import common
import graphs
import torch
import torch.nn.functional as F
from torch import nn

import mpigraph as mg


def train(g, args, device):
    """Train; return what all nodes become, a DistTensor."""
    fanouts = [] if args.fan_out == "none" else common.numbers(args.fan_out)
    mask = g.edata["train_mask"] if "train_mask" in g.edata else torch.ones(g.num_edges(), dtype=torch.bool)
    loader = mg.distributed.DistEdgeDataLoader(
        g,
        mg.distributed.edge_split(mask, g.get_partition_book()),
        mg.dataloading.NeighborSampler(fanouts),
        device,
        batch_size=common.per_trainer(args.batch_size),
        shuffle=True,
        exclude=args.exclude if fanouts else None,
        reverse_eids=common.reverse_ids(g) if fanouts and "reverse" in args.exclude else None,
        negative_sampler=getattr(mg.dataloading.negative_sampler, args.negatives)(args.num_negatives),
    )
    torch.manual_seed(args.seed)
    emb = None
    optimizers = []
    if "feat" not in g.ndata:
        emb = mg.distributed.DistEmbedding(
            g.num_nodes(), args.num_hidden, "emb", lambda size, _: torch.randn(size) / 100
        )
        optimizers.append(mg.distributed.SparseAdagrad([emb], lr=args.sparse_lr, reduction="sum"))
    rows = emb.weight if emb else g.ndata["feat"]
    model = EdgeLoss([rows.shape[1]] + [args.num_hidden] * len(fanouts), args).to(device)
    sage = model.sage
    if fanouts:  # else only the embeddings learn
        model = nn.parallel.DistributedDataParallel(model)
        optimizers.append(torch.optim.Adam(model.parameters(), lr=args.lr))
    progress = common.Progress(args.num_epochs)
    for _ in range(args.num_epochs):
        for inputs, edges, negatives, blocks in progress.batches(loader):
            for optimizer in optimizers:
                optimizer.zero_grad()
            h = emb(inputs, device) if emb else rows[inputs].to(device)
            loss = model(blocks, h, edges, negatives)
            loss.backward()
            for optimizer in optimizers:  # that of embeddings is collective: gradients go to the owners of the rows
                optimizer.step()
            progress.add(loss)
        progress.report()
    return common.represent(g, sage, rows, device)


class EdgeLoss(nn.Module):
    """GraphSAGE, scores of pairs (the dot product of the rows of their ends), and the loss of edges and negatives."""

    def __init__(self, sizes, args):
        super().__init__()
        self.sage = common.SAGE(sizes)
        self.score = mg.nn.EdgePredictor("dot")
        self.args = args

    def forward(self, blocks, h, edges, negatives):
        h = self.sage(blocks, h)
        src, dst = edges.edges()
        u, v = negatives.edges()
        right = self.score(h[src], h[dst])
        if self.args.negatives == "JointUniform":  # shared by all edges: one product of matrices
            wrong = h[src] @ h[v[: self.args.num_negatives]].T
        else:
            wrong = self.score(h[u], h[v]).reshape(len(right), -1)
        if self.args.loss == "softmax":
            return F.cross_entropy(torch.cat([right, wrong], 1), torch.zeros_like(src))
        targets = torch.cat([torch.ones_like(right), torch.zeros_like(wrong)], 1)
        return F.binary_cross_entropy_with_logits(torch.cat([right, wrong], 1), targets)


def evaluate(g, rows, src, dst, args, device):
    """Print the ranks of edges among the same nodes drawn at random; each trainer ranks some of the edges."""
    random = torch.Generator().manual_seed(args.seed)
    corrupted = rows[torch.randint(g.num_nodes(), (args.num_eval_negatives,), generator=random)]
    share = slice(g.rank(), None, torch.distributed.get_world_size())
    ranking = common.Ranks(device, ks=[1, 10, 50])
    for u, v in zip(src[share].split(10_000), dst[share].split(10_000), strict=True):
        right = (rows[u] * rows[v]).sum(1, keepdim=True)
        wrong = rows[u] @ corrupted.T
        ranking.add(1.0 + (wrong > right).sum(1) + (wrong == right).sum(1) / 2)  # ties count half
    common.print_once(ranking.compute())


SETTINGS = {
    "held_out": ("", "npz file of the edges to predict, with src and dst; default: held_out.npz beside the graph"),
    "num_epochs": (3, "passes over the edges"),
    "fan_out": ("10,10", "neighbours per layer, outermost hop first; or none"),
    "exclude": ("reverse_id", "not sampled: reverse_id: edges of the minibatch and their reverses; self: the edges"),
    "negatives": ("Uniform", "the name of a sampler of mpigraph.dataloading.negative_sampler"),
    "num_negatives": (5, "for each edge; with JointUniform for a whole minibatch"),
    "num_eval_negatives": (1000, "among which each edge to predict is ranked"),
    "loss": ("softmax", "softmax: an edge among its negatives; bce: each pair by itself (as with GlobalUniform)"),
    "batch_size": (1000, "edges, of all trainers together"),
    "num_hidden": (64, "width of the layers and of embeddings"),
    "lr": (0.01, "learning rate"),
    "sparse_lr": (0.1, "of embeddings, by Adagrad"),
}


def main():
    args = common.parse_arguments(__doc__, SETTINGS)
    mg.distributed.initialize(num_servers=args.num_servers, seed=args.seed)
    device = common.start_torch(args.backend)
    with graphs.graph_files(graphs.write_links, args.part_config) as part_config:
        g = mg.distributed.DistGraph(args.graph_name, part_config=part_config)
        src, dst = graphs.read_links(part_config, args.held_out)
    evaluate(g, train(g, args, device), src, dst, args, device)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
