"""Classify nodes of a graph without features: each has an embedding that learns. The same script in all three starts.

    python examples/node_embedding.py
    mpiexec -n 4 python examples/node_embedding.py --num_servers 1
    srun -N 8 -n 72 --mpi=pmi2 python examples/node_embedding.py --graph_name G --part_config DIR/G.json

GraphSAGE trains on the embeddings and trains them; then a linear model is trained on the same embeddings, to show what
the neighbours are worth. Without --part_config a graph is generated.
"""

import common
import graphs
import torch
import torch.nn.functional as F
from torch import nn

import mpigraph as mg


def train(g, emb, nodes, num_classes, args, device):
    """Train GraphSAGE and the embeddings; return the accuracy on the test nodes."""
    fanouts = common.numbers(args.fan_out)
    sampler = mg.dataloading.NeighborSampler(fanouts, return_eids=False)
    batch_size = common.per_trainer(args.batch_size)
    loader = mg.distributed.DistNodeDataLoader(g, nodes["train"], sampler, device, batch_size=batch_size, shuffle=True)
    torch.manual_seed(args.seed)
    sizes = [args.num_hidden] * len(fanouts) + [num_classes]
    model = nn.parallel.DistributedDataParallel(common.SAGE(sizes, args.dropout).to(device))
    dense = torch.optim.Adam(model.parameters(), lr=args.lr)
    sparse = mg.distributed.SparseAdagrad([emb], lr=args.sparse_lr, reduction="sum")
    torch.manual_seed(args.seed * torch.distributed.get_world_size() + g.rank())  # dropout differs between trainers
    state = {"model": model, "dense": dense, "sparse": sparse, "emb": emb, "loader": loader, "step": 0}
    common.resume(args, state, args.checkpoint_dir)
    progress = common.Progress(args.num_epochs, first=loader.epoch)
    for epoch in range(loader.epoch, args.num_epochs):
        for inputs, seeds, blocks in progress.batches(loader):
            dense.zero_grad()
            sparse.zero_grad()
            loss = F.cross_entropy(model(blocks, emb(inputs, device)), g.ndata["label"][seeds].to(device))
            loss.backward()
            dense.step()
            sparse.step()  # collective: the gradients of a row go to its owner, from all trainers
            progress.add(loss)
            state["step"] += 1
            common.save(args, state, args.checkpoint_dir, state["step"])  # between two steps: any moment will do
        if (epoch + 1) % args.eval_every == 0:
            progress.note(f"validation accuracy {evaluate(g, model, emb, nodes['val'], len(fanouts), device):.4f}")
        progress.report()
    return evaluate(g, model, emb, nodes["test"], len(fanouts), device)


@torch.no_grad()
def evaluate(g, model, emb, nodes, num_layers, device):
    """Accuracy on all trainers' nodes, with all neighbours."""
    model.eval()
    sampler = mg.dataloading.NeighborSampler([-1] * num_layers, return_eids=False)
    accuracy = common.Mean(device)
    loader = mg.distributed.DistNodeDataLoader(g, nodes, sampler, device, batch_size=1000)
    for inputs, seeds, blocks in common.shown(loader, "evaluation"):
        predicted = model(blocks, emb(inputs, device)).argmax(1)
        accuracy.add(predicted.cpu() == g.ndata["label"][seeds])
    model.train()
    return float(accuracy.compute())


def write_graph(folder):
    """Write a partitioned graph of 10,000 nodes and 200,000 edges, without features."""
    g = mg.data.generate(10_000, 200_000, feat_dim=1, num_classes=16, homophily=0.8)
    g.ndata.pop("feat")
    mg.distributed.partition_graph(g, "default", 2, folder)


SETTINGS = common.CHECKPOINTS | {
    "num_epochs": (15, "passes over the training nodes"),
    "eval_every": (5, "evaluate after every so many epochs"),
    "fan_out": ("10,10", "neighbours per layer, outermost hop first"),
    "batch_size": (500, "of all trainers together"),
    "num_hidden": (64, "width of the layers between and of the embeddings"),
    "dropout": (0.5, "between layers"),
    "lr": (0.01, "learning rate of the layers, by Adam"),
    "sparse_lr": (0.1, "of the embeddings, by Adagrad"),
    "linear_epochs": (200, "steps of the linear model, each on all training nodes"),
}


def main():
    args = common.parse_arguments(__doc__, SETTINGS)
    mg.distributed.initialize(num_servers=args.num_servers, seed=args.seed)
    device = common.start_torch(args.backend)
    with graphs.graph_files(write_graph, args.part_config) as part_config:
        g = mg.distributed.DistGraph(args.graph_name, part_config=part_config)
    nodes = {part: mg.distributed.node_split(g.ndata[f"{part}_mask"]) for part in ("train", "val", "test")}
    num_classes = int(g.ndata["label"][:].max()) + 1
    emb = mg.distributed.DistEmbedding(g.num_nodes(), args.num_hidden, "nodes", lambda shape, _: torch.randn(shape))
    sage = train(g, emb, nodes, num_classes, args, device)
    linear = common.linear_accuracy(g, emb.weight, nodes, args.linear_epochs, 0.05, device)
    common.print_once(f"test accuracy {sage:.4f}, of a linear model on the same embeddings {linear:.4f}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
