"""Train a model of PyG, HGTConv, on minibatches of a partitioned typed graph. The same script in all three starts.

    python examples/hgt_pyg.py
    mpiexec -n 4 python examples/hgt_pyg.py --num_servers 1
    srun -N 8 -n 72 --mpi=pmi2 python examples/hgt_pyg.py --graph_name G --part_config DIR/G.json --target paper

The loader makes what PyG's NeighborLoader would (output="pyg"); the model knows nothing of the library. Without
--part_config it generates a graph of papers, authors and fields, and also trains an MLP on the papers' own features, to
show what the neighbours are worth.
"""

import common
import graphs
import torch
import torch.nn.functional as F
from torch import nn

import mpigraph as mg

try:
    from torch_geometric.nn import HGTConv
    from torch_geometric.utils import trim_to_layer
except ImportError:
    raise SystemExit("hgt_pyg.py needs PyG: pip install torch_geometric") from None


def train(g, name, fanouts, args, device):
    """Train one model; return its accuracy on the test nodes."""
    loader = make_loader(g, "train", fanouts, common.per_trainer(args.batch_size), args, device)
    torch.manual_seed(args.seed)
    model = HGT(g, len(fanouts), args).to(device)
    model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)  # of types that a minibatch lacks
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    torch.manual_seed(args.seed * torch.distributed.get_world_size() + g.rank())  # dropout differs between trainers
    progress = common.Progress(args.num_epochs, name)
    for epoch in range(args.num_epochs):
        with model.join():  # trainers that run out of seeds take part
            for batch in progress.batches(loader):
                nodes = batch[args.target]
                optimizer.zero_grad()
                loss = F.cross_entropy(model(batch), nodes.label[: nodes.batch_size])
                loss.backward()
                optimizer.step()
                progress.add(loss)
        if (epoch + 1) % args.eval_every == 0:
            progress.note(f"validation accuracy {evaluate(g, model, 'val', fanouts, args, device):.4f}")
        progress.report()
    return evaluate(g, model, "test", fanouts, args, device)


def make_loader(g, part, fanouts, batch_size, args, device):
    """Minibatches of this trainer's training, validation or test nodes, with the features of all nodes in them."""
    nodes = {args.target: mg.distributed.node_split(g.nodes[args.target].data[f"{part}_mask"])}
    sampler = mg.dataloading.NeighborSampler(fanouts, return_eids=False)  # the reverse of PyG's num_neighbors
    options = {"features": ["feat"], "labels": {args.target: ["label"]}, "output": "pyg"}
    options |= {"shuffle": True} if part == "train" else {"seed": 1}  # the same neighbours in each evaluation
    return mg.distributed.DistNodeDataLoader(g, nodes, sampler, device, batch_size=batch_size, **options)


class HGT(nn.Module):
    """A HGTConv layer for each fanout; with none, an MLP on a node's own features."""

    def __init__(self, g, num_layers, args):
        super().__init__()
        self.args = args
        hidden = args.num_hidden
        metadata = (g.ntypes, g.canonical_etypes)
        num_classes = int(g.nodes[args.target].data["label"][:].max()) + 1
        widths = {t: g.nodes[t].data["feat"].shape[1] if "feat" in g.nodes[t].data else 1 for t in g.ntypes}
        self.embed = nn.ModuleDict({ntype: nn.Linear(width, hidden) for ntype, width in widths.items()})
        self.layers = nn.ModuleList(HGTConv(hidden, hidden, metadata, args.num_heads) for _ in range(num_layers))
        self.out = nn.Linear(hidden, num_classes)

    def forward(self, batch):
        """The logits of the seeds; a layer leaves out what no later one needs."""
        x = {ntype: F.relu(embed(features(batch[ntype]))) for ntype, embed in self.embed.items()}
        edges = batch.edge_index_dict
        sampled = (batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict)
        for i, layer in enumerate(self.layers):
            x, edges, _ = trim_to_layer(i, *sampled, x, edges)
            out = layer(x, edges)  # a type that no relation leads into keeps its rows
            x |= {ntype: F.dropout(h, self.args.dropout, self.training) for ntype, h in out.items()}
        return self.out(x[self.args.target][: batch[self.args.target].batch_size])


def features(nodes):
    """The features of a node type's nodes; of a type without any, all are the same."""
    return nodes.feat.float() if "feat" in nodes else nodes.n_id.new_ones((nodes.num_nodes, 1), dtype=torch.float32)


@torch.no_grad()
def evaluate(g, model, part, fanouts, args, device):
    """Accuracy on all trainers' nodes together."""
    model.eval()
    accuracy = common.Mean(device)
    loader = make_loader(g, part, fanouts, 500, args, device)
    for batch in common.shown(loader, "evaluation"):
        nodes = batch[args.target]
        accuracy.add(model.module(batch).argmax(1) == nodes.label[: nodes.batch_size])
    model.train()
    return float(accuracy.compute())


SETTINGS = {
    "target": ("paper", "the node type to classify, with label, train_mask, val_mask and test_mask"),
    "num_epochs": (4, "passes over the training nodes"),
    "eval_every": (1, "evaluate after every so many epochs"),
    "fan_out": ("10,10", "neighbours per layer and relation, outermost hop first"),
    "batch_size": (200, "of all trainers together"),
    "num_hidden": (64, "width of the layers"),
    "num_heads": (4, "heads of attention"),
    "dropout": (0.3, "after each layer"),
    "lr": (0.01, "learning rate"),
    "weight_decay": (1e-4, "of all parameters"),
}


def main():
    args = common.parse_arguments(__doc__, SETTINGS)
    mg.distributed.initialize(num_servers=args.num_servers, seed=args.seed)
    device = common.start_torch(args.backend)
    with graphs.graph_files(graphs.write_papers, args.part_config) as part_config:
        g = mg.distributed.DistGraph(args.graph_name, part_config=part_config)
    line = f"test accuracy {train(g, 'HGT', common.numbers(args.fan_out), args, device):.4f}"
    if not args.part_config:
        line += f" (MLP baseline: {train(g, 'MLP', [], args, device):.4f})"
    common.print_once(line)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
