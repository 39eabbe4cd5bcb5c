"""Train GraphSAGE on a partitioned graph; the same script on one process, on several, and on several nodes.

    python examples/quickstart.py
    mpiexec -n 4 python examples/quickstart.py
    srun -N 2 --ntasks-per-node=4 --mpi=pmi2 python examples/quickstart.py

README.md in this folder explains the words; the other examples take options.
"""

import torch
import torch.nn.functional as F
from graphs import graph_files

import mpigraph as mg


class SAGE(torch.nn.Module):
    def __init__(self, in_feats: int, hidden: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = mg.nn.SAGEConv(in_feats, hidden, "mean")
        self.conv2 = mg.nn.SAGEConv(hidden, num_classes, "mean")

    def forward(self, blocks: list[mg.Block], x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv1(blocks[0], x))
        x = self.conv2(blocks[1], x)
        return x


def write_graph(folder: str) -> None:
    g = mg.data.generate(num_nodes=10_000, num_edges=100_000, feat_dim=64, num_classes=8)
    mg.distributed.partition_graph(g, "default", num_parts=2, out_path=folder)


mg.distributed.initialize()  # servers block here until the end; trainers go on
torch.distributed.init_process_group("gloo")
with graph_files(write_graph) as part_config:  # for a graph of your own: the path of its <name>.json
    g = mg.distributed.DistGraph("default", part_config=part_config)

sampler = mg.dataloading.NeighborSampler([10, 10])  # neighbours in each layer, outermost hop first
train_nodes = mg.distributed.node_split(g.ndata["train_mask"])  # those of this trainer
test_nodes = mg.distributed.node_split(g.ndata["test_mask"])
train_loader = mg.distributed.DistNodeDataLoader(g, train_nodes, sampler, batch_size=50, shuffle=True)
test_loader = mg.distributed.DistNodeDataLoader(g, test_nodes, sampler, batch_size=1000)

model = torch.nn.parallel.DistributedDataParallel(SAGE(64, 64, 8))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(5):
    for input_nodes, seeds, blocks in train_loader:
        loss = F.cross_entropy(model(blocks, g.ndata["feat"][input_nodes]), g.ndata["label"][seeds])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        optimizer.step()
    count = torch.zeros(2)  # right ones, all
    for input_nodes, seeds, blocks in test_loader:
        with torch.no_grad():
            predicted = model.module(blocks, g.ndata["feat"][input_nodes]).argmax(1)
        count += torch.tensor([(predicted == g.ndata["label"][seeds]).sum(), len(seeds)])
    torch.distributed.all_reduce(count)  # over all trainers
    if g.rank() == 0:
        print(f"epoch {epoch}  loss {loss:.4f}  test accuracy {count[0] / count[1]:.4f}", flush=True)
torch.distributed.destroy_process_group()
