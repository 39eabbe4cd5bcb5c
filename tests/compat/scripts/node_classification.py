"""GraphSAGE as a user of DGL writes it, with layer-wise inference into tensors on the servers."""

import argparse

import dgl
import dgl.nn.pytorch as dglnn
import numpy as np
import torch as th
import torch.nn.functional as F
from torch import nn


class DistSAGE(nn.Module):
    def __init__(self, in_feats, n_hidden, n_classes):
        super().__init__()
        self.sizes = [n_hidden, n_classes]
        self.layers = nn.ModuleList(
            [dglnn.SAGEConv(in_feats, n_hidden, "mean"), dglnn.SAGEConv(n_hidden, n_classes, "mean")]
        )

    def forward(self, blocks, x):
        for i, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = layer(block, x)
            x = F.relu(x) if i + 1 < len(self.layers) else x
        return x

    def inference(self, g, x, batch_size, device):
        nodes = dgl.distributed.node_split(np.arange(g.num_nodes()), g.get_partition_book(), force_even=True)
        for i, (layer, size) in enumerate(zip(self.layers, self.sizes, strict=True)):
            y = dgl.distributed.DistTensor((g.num_nodes(), size), th.float32, f"h{i}", persistent=True)
            sampler = dgl.dataloading.NeighborSampler([-1])
            loader = dgl.dataloading.DistNodeDataLoader(
                g, nodes, sampler, batch_size=batch_size, shuffle=False, drop_last=False
            )
            for input_nodes, output_nodes, blocks in loader:
                block = blocks[0].to(device)
                h = x[input_nodes].to(device)
                h = layer(block, (h, h[: block.number_of_dst_nodes()]))
                y[output_nodes] = (F.relu(h) if i + 1 < len(self.layers) else h).cpu()
            x = y
            g.barrier()
        return y


def main(args):
    dgl.distributed.initialize(args.ip_config, use_graphbolt=args.use_graphbolt)
    th.distributed.init_process_group(backend="gloo")
    g = dgl.distributed.DistGraph(args.graph_name, part_config=args.part_config)
    pb = g.get_partition_book()
    assert isinstance(pb, dgl.distributed.GraphPartitionBook)
    assert "trainer_id" not in g.ndata
    train, val = (dgl.distributed.node_split(g.ndata[name], pb, force_even=True) for name in ("train_mask", "val_mask"))
    local = pb.partid2nids(pb.partid).detach().numpy()
    print(f"rank {g.rank()} train {len(train)} (local {len(np.intersect1d(train.numpy(), local))})")
    labels = g.ndata["labels"][np.arange(g.num_nodes())]
    device = th.device("cpu")
    sampler = dgl.dataloading.NeighborSampler([int(fanout) for fanout in args.fan_out.split(",")])
    loader = dgl.distributed.DistNodeDataLoader(g, train, sampler, batch_size=100, shuffle=True, drop_last=False)
    th.manual_seed(0)
    model = DistSAGE(g.ndata["features"].shape[1], args.num_hidden, len(th.unique(labels)))
    model = th.nn.parallel.DistributedDataParallel(model)
    optimizer = th.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(args.num_epochs):
        with model.join():
            for input_nodes, seeds, blocks in loader:
                assert th.equal(blocks[-1].dstdata[dgl.NID], seeds)
                blocks = [block.to(device) for block in blocks]
                loss = F.cross_entropy(model(blocks, g.ndata["features"][input_nodes]), g.ndata["labels"][seeds].long())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    model.eval()
    with th.no_grad():
        pred = model.module.inference(g, g.ndata["features"], 1000, device)
    right = (pred[val].argmax(dim=1) == labels[val]).float().sum()
    counts = th.stack([right, th.tensor(float(len(val)))])
    th.distributed.all_reduce(counts)
    if g.rank() == 0:
        assert bool((pred[np.arange(g.num_nodes())] != 0).any(dim=1).all()), "a node was left out"
        print(f"Val Acc {counts[0] / counts[1]:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--graph_name")
    parser.add_argument("--ip_config")
    parser.add_argument("--part_config")
    parser.add_argument("--num_epochs", type=int, default=6)
    parser.add_argument("--num_hidden", type=int, default=16)
    parser.add_argument("--fan_out", default="10,10")
    parser.add_argument("--use_graphbolt", action="store_true")
    main(parser.parse_args())
