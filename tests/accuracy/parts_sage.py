"""GraphSAGE on a graph whose nodes tell all in ``x``: features, label, split (0: train, 1: validate, 2: test), id.

    mpiexec -n 2 python tests/accuracy/parts_sage.py PART_CONFIG SEED

Prints the test accuracy, and a digest of the blocks with all neighbours of the first hundred nodes, as sets of original
ids. ``accuracy_parts.py`` starts it.
"""

import hashlib
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

import mpigraph as dgl
import mpigraph.nn.pytorch as dglnn

COLUMNS = 3  # of x that are no features
EPOCHS, BATCH, HIDDEN, RATE = 15, 100, 32, 0.01


class Sage(torch.nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            [dglnn.SAGEConv(width, HIDDEN, "mean"), dglnn.SAGEConv(HIDDEN, classes, "mean")]
        )

    def forward(self, blocks, x):
        return self.layers[1](blocks[1], F.dropout(F.relu(self.layers[0](blocks[0], x)), 0.5, self.training))


def digest_of(g, ids):
    """A number that is the same for the same blocks: their edges, by original ids, in a sorted order."""
    sampler = dgl.dataloading.NeighborSampler([-1, -1])
    found = []
    for block in sampler.sample(g, ids.argsort()[:100])[2]:
        sources, destinations = (ids[data[dgl.NID]] for data in (block.srcdata, block.dstdata))
        src, dst = block.edges()
        pairs = sorted(zip(sources[src].tolist(), destinations[dst].tolist(), strict=True))
        found.append((pairs, sorted(sources.tolist()), sorted(destinations.tolist())))
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16]


def main(part_config, seed):
    dgl.distributed.initialize(seed=seed)
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(seed)
    g = dgl.distributed.DistGraph(Path(part_config).stem, part_config=part_config)
    told = g.ndata["x"][torch.arange(g.num_nodes())]
    label, split, ids = (told[:, column].long() for column in (-3, -2, -1))
    blocks = digest_of(g, ids)
    book = g.get_partition_book()
    train, test = (dgl.distributed.node_split(split == part, book, force_even=True) for part in (0, 2))
    model = torch.nn.parallel.DistributedDataParallel(Sage(told.shape[1] - COLUMNS, int(label.max()) + 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    loader = dgl.distributed.DistNodeDataLoader(
        g, train, dgl.dataloading.NeighborSampler([10, 10]), batch_size=BATCH, shuffle=True
    )
    for _ in range(EPOCHS):
        with model.join():
            for inputs, seeds, sampled in loader:
                loss = F.cross_entropy(model(sampled, g.ndata["x"][inputs][:, :-COLUMNS]), label[seeds])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    model.eval()
    counts = torch.zeros(2)
    evaluation = dgl.dataloading.NeighborSampler([-1, -1])
    with torch.no_grad():
        for inputs, seeds, sampled in dgl.distributed.DistNodeDataLoader(g, test, evaluation, batch_size=1000):
            right = model.module(sampled, g.ndata["x"][inputs][:, :-COLUMNS]).argmax(1) == label[seeds]
            counts += torch.tensor([right.sum().item(), len(seeds)])
    torch.distributed.all_reduce(counts)
    if g.rank() == 0:
        print(f"blocks {blocks}\ntest accuracy {counts[0] / counts[1]:.4f}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
