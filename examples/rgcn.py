"""Classify the nodes of one type of a typed graph by RGCN; the same script in all three starts.

    python examples/rgcn.py
    mpiexec -n 4 python examples/rgcn.py --num_servers 1
    srun -N 8 -n 72 --mpi=pmi2 python examples/rgcn.py --graph_name G --part_config DIR/G.json --target paper

Types with the feature "feat" enter by a linear map, all others by embeddings that learn. Without --part_config it
generates a graph of authors, papers and venues, in which an author's subject shows only in the papers; with --facts
5000 one of entities with 5000 relations between them, or reads a knowledge graph (--facts FILE.npz).
"""

from functools import partial
from itertools import pairwise

import common
import graphs
import torch
import torch.nn.functional as F
from torch import nn

import mpigraph as mg


def train(g, args, device):
    """Train; return the accuracy on the test nodes."""
    embeddings = {t: make_embedding(g, t, args.num_hidden) for t in g.ntypes if "feat" not in g.nodes[t].data}
    fanouts = common.numbers(args.fan_out)
    loader = make_loader(g, "train", fanouts, common.per_trainer(args.batch_size), args, device)
    torch.manual_seed(args.seed)
    model = nn.parallel.DistributedDataParallel(RGCN(g, len(fanouts), args).to(device))
    optimizers = [torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)]
    if embeddings:
        optimizers.append(mg.distributed.SparseAdam(list(embeddings.values()), lr=args.sparse_lr))
    torch.manual_seed(args.seed * torch.distributed.get_world_size() + g.rank())  # dropout differs between trainers
    progress = common.Progress(args.num_epochs)
    for epoch in range(args.num_epochs):
        for _, _, blocks in progress.batches(loader):
            rows = {ntype: emb(blocks[0].srcnodes[ntype].data[mg.NID], device) for ntype, emb in embeddings.items()}
            loss = F.cross_entropy(model(blocks, rows), blocks[-1].dstnodes[args.target].data["label"])
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:  # that of embeddings is collective: gradients of a row go to its owner
                optimizer.step()
            progress.add(loss)
        if (epoch + 1) % args.eval_every == 0:
            progress.note(f"validation accuracy {evaluate(g, model, embeddings, 'val', args, device):.4f}")
        progress.report()
    return evaluate(g, model, embeddings, "test", args, device)


def make_loader(g, part, fanouts, batch_size, args, device):
    """Minibatches of this trainer's training, validation or test nodes, with the features of all nodes in them."""
    nodes = {args.target: mg.distributed.node_split(g.nodes[args.target].data[f"{part}_mask"])}
    sampler = mg.dataloading.NeighborSampler(fanouts, return_eids=False)
    features = {ntype: ["feat"] for ntype in g.ntypes if "feat" in g.nodes[ntype].data}
    options = {"shuffle": part == "train", "features": features, "labels": {args.target: ["label"]}}
    return mg.distributed.DistNodeDataLoader(g, nodes, sampler, device, batch_size=batch_size, **options)


def make_embedding(g, ntype, width):
    policy = g.get_node_partition_policy(ntype)
    return mg.distributed.DistEmbedding(g.num_nodes(ntype), width, f"rows of {ntype}", common.uniform, policy)


class RGCN(nn.Module):
    """A linear map for each type with features, then a layer for each fanout."""

    def __init__(self, g, num_layers, args):
        super().__init__()
        self.args = args
        feats = {ntype: g.nodes[ntype].data["feat"] for ntype in g.ntypes if "feat" in g.nodes[ntype].data}
        self.inputs = nn.ModuleDict({ntype: nn.Linear(x.shape[1], args.num_hidden) for ntype, x in feats.items()})
        num_classes = int(g.nodes[args.target].data["label"][:].max()) + 1
        sizes = [args.num_hidden] * num_layers + [num_classes]
        num_relations = len(g.canonical_etypes)
        basis = ("basis", args.num_bases) if args.num_bases else ()
        self.layers = nn.ModuleList(mg.nn.RelGraphConv(a, b, num_relations, *basis) for a, b in pairwise(sizes))

    def forward(self, blocks, h):
        for ntype, linear in self.inputs.items():
            x = blocks[0].srcnodes[ntype].data["feat"].float()  # it may be float16
            h[ntype] = linear(F.normalize(x, p=self.args.norm) if self.args.norm else x)
        for i, (block, layer) in enumerate(zip(blocks, self.layers, strict=True)):
            if i > 0:
                h = {t: mg.nn.relu_dropout(x, self.args.dropout, self.training) for t, x in h.items()}
            relations = block.canonical_etypes  # there may be thousands
            degrees = torch.cat([block.in_degrees(etype=r) for r in relations])
            weights = torch.repeat_interleave(1 / degrees, degrees)  # a block's edges are ordered by destination
            norm = dict(zip(relations, weights.split([block.num_edges(r) for r in relations]), strict=True))
            h = layer(block, h, norm=norm)  # the mean over the edges of each relation
        return h[self.args.target]


@torch.no_grad()
def evaluate(g, model, embeddings, part, args, device):
    """Accuracy on all trainers' nodes together, which for one label a node is the micro-averaged F1."""
    model.eval()
    accuracy = common.Mean(device)
    loader = make_loader(g, part, [args.eval_fan_out] * len(model.module.layers), 1000, args, device)
    for _, _, blocks in common.shown(loader, "evaluation"):
        rows = {ntype: emb(blocks[0].srcnodes[ntype].data[mg.NID], device) for ntype, emb in embeddings.items()}
        accuracy.add(model(blocks, rows).argmax(1) == blocks[-1].dstnodes[args.target].data["label"])
    model.train()
    return float(accuracy.compute())


SETTINGS = {
    "facts": ("", "classify entities, of so many relations or of an npz file of triples (graphs.write_facts)"),
    "target": ("", "the node type with label, train_mask, val_mask and test_mask (default: author, or entity)"),
    "num_epochs": (10, "passes over the training nodes"),
    "eval_every": (2, "evaluate after every so many epochs"),
    "fan_out": ("10,10", "neighbours by each relation in each layer, outermost hop first"),
    "eval_fan_out": (-1, "neighbours by each relation in evaluation; -1: all"),
    "batch_size": (500, "of all trainers together"),
    "num_hidden": (64, "width of the layers between and of the embeddings"),
    "num_bases": (0, "matrices that those of the relations are composed of; 0: each has one of its own"),
    "dropout": (0.5, "between layers"),
    "norm": (0, "divide each feature row by this norm; 0: do not"),
    "lr": (0.01, "learning rate of the layers, by Adam"),
    "weight_decay": (0.0, "of all parameters of the layers"),
    "sparse_lr": (0.01, "of the embeddings, by Adam"),
}


def main():
    args = common.parse_arguments(__doc__, SETTINGS)
    mg.distributed.initialize(num_servers=args.num_servers, seed=args.seed)
    device = common.start_torch(args.backend)
    args.target = args.target or ("entity" if args.facts else "author")
    write = partial(graphs.write_facts, facts=args.facts) if args.facts else graphs.write_authors
    with graphs.graph_files(write, args.part_config) as part_config:
        g = mg.distributed.DistGraph(args.graph_name, part_config=part_config)
    common.print_once(f"test accuracy {train(g, args, device):.4f}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
