"""Train GraphSAGE for node classification; the same script in all three starts.

    python examples/node_classification.py
    mpiexec -n 4 python examples/node_classification.py --num_servers 1
    srun -N 8 -n 72 --mpi=pmi2 python examples/node_classification.py --graph_name G --part_config DIR/G.json

Without --part_config it generates a graph whose labels need both features and neighbours, and also trains an MLP on
the features alone, to show what the neighbours are worth. The last evaluation is by minibatches of the test nodes and
all their neighbours, or with --eval layerwise of all nodes of the graph, one layer at a time. With --sampler labor a
minibatch reads fewer rows of a dense graph. --predictions FOLDER has the classes of all nodes, by their original ids.
"""

from itertools import pairwise

import common
import graphs
import torch
import torch.nn.functional as F
from torch import nn

import mpigraph as mg


def train(g, name, fanouts, args, device):
    """Train one model; return its accuracy on the test nodes."""
    nodes = {part: mg.distributed.node_split(g.ndata[f"{part}_mask"]) for part in ("train", "val", "test")}
    loader = mg.distributed.DistNodeDataLoader(
        g,
        nodes["train"],
        make_sampler(fanouts, args),
        device,
        batch_size=common.per_trainer(args.batch_size),
        shuffle=True,
        features=["feat"] if fanouts else [],  # the MLP has no blocks to put them into
    )
    torch.manual_seed(args.seed)
    model = nn.parallel.DistributedDataParallel(Model(g, len(fanouts), args).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    torch.manual_seed(args.seed * torch.distributed.get_world_size() + g.rank())  # dropout differs between trainers
    state = {"model": model, "optimizer": optimizer, "loader": loader}
    folder = f"{args.checkpoint_dir}/{name}"
    common.resume(args, state, folder)
    progress = common.Progress(args.num_epochs, name, loader.epoch)
    for epoch in range(loader.epoch, args.num_epochs):
        with model.join():  # trainers that run out of seeds take part
            for inputs, seeds, blocks in progress.batches(loader):
                feats = blocks[0].srcdata["feat"] if blocks else g.ndata["feat"][inputs].to(device)
                loss = F.cross_entropy(model(blocks, feats), g.ndata["label"][seeds].to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                progress.add(loss)
        if (epoch + 1) % args.eval_every == 0:
            progress.note(f"validation accuracy {evaluate(g, model, nodes['val'], len(fanouts), args, device):.4f}")
        progress.report()
        common.save(args, state, folder, epoch + 1)
    if fanouts and (args.predictions or args.eval == "layerwise"):
        scores = mg.inference.layerwise(g, model, g.ndata["feat"], batch_size=1000, device=device)
        if args.predictions:
            mg.inference.write_predictions(args.predictions, g, scores)
        if args.eval == "layerwise":
            accuracy = common.Mean(device)
            accuracy.add(scores[nodes["test"]].argmax(1) == g.ndata["label"][nodes["test"]])
            return float(accuracy.compute())
    return evaluate(g, model, nodes["test"], len(fanouts), args, device)


def make_sampler(fanouts, args):
    """The sampler of training."""
    if args.sampler == "labor":
        names = ("layer_dependency", "batch_dependency")
        options = {name: getattr(args, name) for name in names}
        return mg.dataloading.LaborSampler(fanouts, return_eids=False, **options)
    return mg.dataloading.NeighborSampler(fanouts, return_eids=False)


class Model(nn.Module):
    """GraphSAGE: a SAGEConv layer for each fanout. With none, an MLP on a node's own features."""

    def __init__(self, g, num_layers, args):
        super().__init__()
        self.args = args
        num_classes = int(g.ndata["label"][:].max()) + 1
        sizes = [g.ndata["feat"].shape[1]] + [args.num_hidden] * (max(num_layers, 2) - 1) + [num_classes]
        if num_layers:
            self.layers = nn.ModuleList(mg.nn.SAGEConv(a, b, "mean") for a, b in pairwise(sizes))
        else:
            self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))

    def forward_layer(self, i, block, h):
        """Apply one layer with its normalization and dropout; ``block`` is None for an MLP."""
        if i == 0:
            h = h.float()  # features may be float16
            h = F.normalize(h, p=self.args.norm) if self.args.norm else h
            h = mg.nn.dropout(h, self.args.feat_drop, self.training)
        h = self.layers[i](h) if block is None else self.layers[i](block, h)
        return mg.nn.relu_dropout(h, self.args.dropout, self.training) if i < len(self.layers) - 1 else h

    def forward(self, blocks, h):
        for i, block in enumerate(blocks or [None] * len(self.layers)):
            h = self.forward_layer(i, block, h)
        return h


@torch.no_grad()
def evaluate(g, model, nodes, num_layers, args, device):
    """Accuracy on all trainers' nodes together."""
    model.eval()
    sampler = mg.dataloading.NeighborSampler([args.eval_fan_out] * num_layers, return_eids=False)
    nodes = nodes[:: max(1, len(nodes) // args.num_eval)]
    accuracy = common.Mean(device)
    loader = mg.distributed.DistNodeDataLoader(g, nodes, sampler, device, batch_size=1000)
    for inputs, seeds, blocks in common.shown(loader, "evaluation"):
        predicted = model(blocks, g.ndata["feat"][inputs].to(device)).argmax(1)
        accuracy.add(predicted.cpu() == g.ndata["label"][seeds])
    model.train()
    return float(accuracy.compute())


def write_graph(folder):
    """Write a partitioned graph of 20,000 nodes and 200,000 edges."""
    g = mg.data.generate(20_000, 200_000, feat_dim=64, num_classes=16)
    mg.distributed.partition_graph(g, "default", 2, folder)


SETTINGS = common.CHECKPOINTS | {
    "num_epochs": (30, "passes over the training nodes"),
    "eval_every": (1, "evaluate after every so many epochs"),
    "fan_out": ("10,10", "neighbours per layer, outermost hop first"),
    "sampler": ("neighbor", "of training: neighbor, or labor"),
    "layer_dependency": (False, "with labor: all hops of a minibatch draw alike"),
    "batch_dependency": (1, "with labor: steps that draw alike"),
    "eval_fan_out": (-1, "neighbours in each layer in evaluation; -1: all"),
    "eval": ("minibatch", "how the last evaluation is done: minibatch, or layerwise"),
    "predictions": ("", "folder for the classes of all nodes: predictions.csv, and .npy files; by original id"),
    "num_eval": (10**9, "evaluate on about so many nodes of each trainer"),
    "batch_size": (500, "of all trainers together"),
    "num_hidden": (64, "width of the layers between"),
    "dropout": (0.5, "between layers"),
    "feat_drop": (0.0, "dropout of features"),
    "norm": (0, "divide each feature row by this norm; 0: do not"),
    "lr": (0.005, "learning rate"),
    "weight_decay": (0.0, "of all parameters"),
    "report": ("", "folder for a report of what makes the job slow: report.html (default: MPIGRAPH_REPORT, else none)"),
}


def main():
    args = common.parse_arguments(__doc__, SETTINGS)
    mg.distributed.initialize(num_servers=args.num_servers, seed=args.seed, report=args.report or None)
    device = common.start_torch(args.backend)
    with graphs.graph_files(write_graph, args.part_config) as part_config:
        g = mg.distributed.DistGraph(args.graph_name, part_config=part_config)
    line = f"test accuracy {train(g, 'GraphSAGE', common.numbers(args.fan_out), args, device):.4f}"
    if not args.part_config:
        line += f" (MLP baseline: {train(g, 'MLP', [], args, device):.4f})"
    common.print_once(line)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
