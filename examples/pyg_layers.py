"""Train layers of PyG on blocks: any that takes edge_index, since the destinations of a block are its first sources."""

import torch
from graphs import graph_files

import mpigraph as mg

try:
    from torch_geometric.nn import GENConv, JumpingKnowledge
except ImportError:
    raise SystemExit("pyg_layers.py needs PyG: pip install torch_geometric") from None


class Model(torch.nn.Module):
    def __init__(self, width, num_classes):
        super().__init__()
        self.first, self.second = GENConv(width, width), GENConv(width, width)
        self.jump, self.last = JumpingKnowledge("cat"), torch.nn.Linear(2 * width, num_classes)

    def forward(self, blocks, x):
        h = self.first(x, blocks[0].edge_index())[: blocks[0].num_dst_nodes()].relu()
        y = self.second(h, blocks[1].edge_index())[: blocks[1].num_dst_nodes()].relu()
        return self.last(self.jump([h[: len(y)], y]))


mg.distributed.initialize()
torch.distributed.init_process_group("gloo")
plain = mg.data.generate(num_nodes=2000, num_edges=20_000, feat_dim=32, num_classes=4)
with graph_files(lambda folder: mg.distributed.partition_graph(plain, "default", 2, folder)) as part_config:
    g = mg.distributed.DistGraph("default", part_config=part_config)
nodes = mg.distributed.node_split(g.ndata["train_mask"])
loader = mg.distributed.DistNodeDataLoader(g, nodes, mg.dataloading.NeighborSampler([5, 5]), batch_size=100)
model = torch.nn.parallel.DistributedDataParallel(Model(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(5):
    for inputs, seeds, blocks in loader:
        loss = torch.nn.functional.cross_entropy(model(blocks, g.ndata["feat"][inputs]), g.ndata["label"][seeds])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"trainer {g.rank()}  epoch {epoch}  loss {loss:.4f}", flush=True)
torch.distributed.destroy_process_group()
