"""What a DGL user's node-classification script does, with the import changed: training and layer-wise inference."""

import numpy as np
import torch
import torch.nn.functional as F
from layouts import SharedJob
from oracle import NUM_NODES
from torch import nn

import mpigraph as dgl
import mpigraph.nn.pytorch as dglnn


class DistSAGE(nn.Module):
    def __init__(self, in_feats: int, n_hidden: int, n_classes: int) -> None:
        super().__init__()
        self.n_hidden, self.n_classes = n_hidden, n_classes
        self.layers = nn.ModuleList(
            [dglnn.SAGEConv(in_feats, n_hidden, "mean"), dglnn.SAGEConv(n_hidden, n_classes, "mean")]
        )

    def forward(self, blocks, x):
        h = x
        for i, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            h_dst = h[: block.number_of_dst_nodes()]
            h = layer(block, (h, h_dst))
            if i != len(self.layers) - 1:
                h = F.relu(h)
        return h

    def inference(self, g, x, batch_size, device):
        """Every layer of all nodes before the next one, written to tensors that live on the hosts."""
        nodes = dgl.distributed.node_split(np.ones(g.num_nodes()), g.get_partition_book(), force_even=True)
        y = dgl.distributed.DistTensor((g.num_nodes(), self.n_hidden), torch.float32, "h", persistent=True)
        for i, layer in enumerate(self.layers):
            if i == len(self.layers) - 1:
                y = dgl.distributed.DistTensor(
                    (g.num_nodes(), self.n_classes), torch.float32, "h_last", persistent=True
                )
            sampler = dgl.dataloading.NeighborSampler([-1])
            dataloader = dgl.distributed.DistNodeDataLoader(
                g, nodes, sampler, batch_size=batch_size, shuffle=False, drop_last=False
            )
            for input_nodes, output_nodes, blocks in dataloader:
                block = blocks[0].to(device)
                h = x[input_nodes].to(device)
                h = layer(block, (h, h[: block.number_of_dst_nodes()]))
                if i != len(self.layers) - 1:
                    h = F.relu(h)
                y[output_nodes] = h.cpu()
            x = y
            g.barrier()
        return y


def test_the_script_trains_and_infers(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    pb = g.get_partition_book()
    train_nid = dgl.distributed.node_split(g.ndata["third"], pb, force_even=True)
    local_nid = pb.partid2nids(pb.partid).detach().numpy()
    assert 0 < len(local_nid) < NUM_NODES
    labels = g.ndata["label"][np.arange(g.num_nodes())]
    n_classes = len(torch.unique(labels))
    sampler = dgl.dataloading.NeighborSampler([int(fanout) for fanout in "3,5".split(",")])
    dataloader = dgl.distributed.DistNodeDataLoader(g, train_nid, sampler, batch_size=8, shuffle=True, drop_last=False)
    torch.manual_seed(1)
    model = DistSAGE(g.ndata["feat"].shape[1], 8, n_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    for _, seeds, blocks in dataloader:
        batch_inputs = g.ndata["feat"][blocks[0].srcdata[dgl.NID]] / NUM_NODES
        assert torch.equal(seeds, blocks[-1].dstdata[dgl.NID])
        loss = F.cross_entropy(model(blocks, batch_inputs), g.ndata["label"][seeds])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert any(not torch.equal(value, start[name]) for name, value in model.state_dict().items())
    model.load_state_dict(start)  # no data-parallel wrapper here: make the trainers equal again
    with torch.no_grad():
        for _ in range(2):  # the second evaluation attaches to the tensors of the first
            predicted = model.inference(g, g.ndata["feat"], 16, torch.device("cpu"))
        whole = dgl.graph(g.find_edges(torch.arange(g.num_edges())), num_nodes=g.num_nodes())
        h = g.ndata["feat"][:]
        want = model.layers[1](whole, F.relu(model.layers[0](whole, h)))
    torch.testing.assert_close(predicted[:], want, rtol=1e-4, atol=1e-4)
