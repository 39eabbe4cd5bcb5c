"""Predict the next contacts in a stream, with and without obeying time; the same script in all three starts.

    python examples/temporal.py
    mpiexec -n 4 python examples/temporal.py --num_servers 1
    python examples/temporal.py --stream collegemsg.npz

A node's circle of contacts changes. One GraphSAGE learns from what each pair had behind it when it met (the newest
neighbours, and theirs, of an earlier time), the other as if there were no time: what it sees of a pair may come later.
Both then rank the pairs of the last part of the stream, by what is known before each: nothing of it was trained on.
"""

import common
import graphs
import torch
import torch.nn.functional as F
from torch import nn

import mpigraph as mg


def train(g, eids, obeys, args, device):
    """Train on edges; return the model."""
    fanouts = common.numbers(args.fan_out)
    how = {"time_attr": "time", "temporal_strategy": "last", "temporal_comparison": "<"} if obeys else {}
    loader = mg.distributed.DistEdgeDataLoader(
        g,
        eids,
        mg.dataloading.NeighborSampler(fanouts, **how),
        device,
        batch_size=common.per_trainer(args.batch_size),
        shuffle=True,
        features=["feat"],
        exclude=None if obeys else "self",  # a pair's own time is not before it
        edge_label_time=g.edata["time"][eids] if obeys else None,
        negative_sampler=mg.dataloading.negative_sampler.Uniform(args.num_negatives),
    )
    torch.manual_seed(args.seed)
    model = nn.parallel.DistributedDataParallel(Scores(g, fanouts, args).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    progress = common.Progress(args.num_epochs, "obeying time" if obeys else "ignoring time")
    for _ in range(args.num_epochs):
        for _, edges, negatives, blocks in progress.batches(loader):
            right, wrong = model(blocks, edges, negatives)
            loss = F.cross_entropy(torch.cat([right[:, None], wrong], 1), torch.zeros_like(right).long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            progress.add(loss)
        progress.report()
    return model.module


class Scores(nn.Module):
    """GraphSAGE, and the dot product of what the ends of a pair become."""

    def __init__(self, g, fanouts, args):
        super().__init__()
        self.sage = common.SAGE([g.ndata["feat"].shape[1]] + [args.num_hidden] * len(fanouts))

    def forward(self, blocks, edges, negatives):
        h = self.sage(blocks, blocks[0].srcdata["feat"])
        (src, dst), (u, v) = edges.edges(), negatives.edges()
        right = (h[src] * h[dst]).sum(1)
        return right, (h[u] * h[v]).sum(1).reshape(len(right), -1)


@torch.no_grad()
def evaluate(g, model, eids, obeys, args, device):
    """Rank edges among negatives by what was known before each; return the measures in words."""
    sampler = mg.dataloading.NeighborSampler(
        common.numbers(args.fan_out),
        time_attr="time",
        temporal_strategy="last" if obeys else "uniform",
        temporal_comparison="<",
    )
    loader = mg.distributed.DistEdgeDataLoader(
        g,
        eids,
        sampler,
        device,
        batch_size=common.per_trainer(args.batch_size),
        features=["feat"],
        edge_label_time=g.edata["time"][eids],
        negative_sampler=mg.dataloading.negative_sampler.Uniform(args.num_eval_negatives),
    )
    ranking = common.Ranks(device, ks=[1, 10])
    for _, edges, negatives, blocks in loader:
        right, wrong = model(blocks, edges, negatives)
        ranking.add(1.0 + (wrong > right[:, None]).sum(1) + (wrong == right[:, None]).sum(1) / 2)
    return ranking.compute()


SETTINGS = {
    "stream": ("", "npz file with src, dst and time of each contact (default: drifting communities)"),
    "test_part": (0.2, "of the stream, at its end, to predict"),
    "num_epochs": (4, "passes over the contacts to learn from"),
    "fan_out": ("8,8", "neighbours per layer, outermost hop first"),
    "num_negatives": (3, "for each pair"),
    "num_eval_negatives": (20, "among which each pair is ranked"),
    "batch_size": (400, "pairs, of all trainers together"),
    "num_hidden": (64, "width of the layers"),
    "lr": (0.005, "learning rate"),
}


def main():
    args = common.parse_arguments(__doc__, SETTINGS)
    mg.distributed.initialize(num_servers=args.num_servers, seed=args.seed)
    device = common.start_torch(args.backend)
    with graphs.graph_files(lambda folder: graphs.write_stream(folder, args.stream), args.part_config) as part_config:
        g = mg.distributed.DistGraph(args.graph_name, part_config=part_config)
    time, book = g.edata["time"][:], g.get_partition_book()
    border = int(torch.quantile(time.double(), 1 - args.test_part))
    parts = [mg.distributed.edge_split(mask, book) for mask in (time < border, time >= border)]
    learn, test = (eids[g.edata["forward"][eids]] for eids in parts)  # each contact once
    for obeys in (True, False):
        model = train(g, learn, obeys, args, device)
        measures = evaluate(g, model, test, obeys, args, device)
        common.print_once(f"{'obeying' if obeys else 'ignoring'} time: {measures}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
