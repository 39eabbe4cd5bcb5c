"""RGCN as a user of DGL writes it: stacked weights of the relations, embeddings for nodes without features."""

import argparse
import os

os.environ["DGLBACKEND"] = "pytorch"

import dgl
import dgl.distributed
import numpy as np
import torch as th
import torch.nn.functional as F
from dgl import nn as dglnn
from torch import nn


class Layer(nn.Module):
    def __init__(self, size, out, rel_names, activation):
        super().__init__()
        self.rel_names = rel_names
        self.activation = activation
        convs = {rel: dglnn.GraphConv(size, out, norm="right", weight=False, bias=False) for rel in rel_names}
        self.conv = dglnn.HeteroGraphConv(convs)
        self.basis = dglnn.WeightBasis((size, out), 2, len(rel_names))
        self.loop_weight = nn.Parameter(th.empty(size, out))
        nn.init.xavier_uniform_(self.loop_weight)

    def forward(self, g, inputs):
        g = g.local_var()
        weights = th.split(self.basis(), 1, dim=0)
        kwargs = {rel: {"weight": w.squeeze(0)} for rel, w in zip(self.rel_names, weights, strict=True)}
        assert g.is_block
        own = {ntype: x[: g.number_of_dst_nodes(ntype)] for ntype, x in inputs.items()}
        hs = self.conv(g, inputs, mod_kwargs=kwargs)
        return {ntype: self.activation(h + own[ntype] @ self.loop_weight) for ntype, h in hs.items()}


class Model(nn.Module):
    def __init__(self, size, classes, rel_names):
        super().__init__()
        self.layers = nn.ModuleList(
            [Layer(size, size, rel_names, F.relu), Layer(size, classes, rel_names, nn.Identity())]
        )

    def forward(self, blocks, h):
        for layer, block in zip(self.layers, blocks, strict=True):
            h = layer(block.to("cpu"), h)
        return h


def init_emb(shape, dtype):
    rows = th.zeros(shape, dtype=dtype)
    nn.init.uniform_(rows, -1.0, 1.0)
    return rows


class Embed(nn.Module):
    def __init__(self, g, size):
        super().__init__()
        self.g = g
        self.project = nn.Linear(g.nodes["paper"].data["feat"].shape[1], size)
        self.node_embeds = {}
        for ntype in g.ntypes:
            if "feat" not in g.nodes[ntype].data:
                policy = g.get_node_partition_policy(ntype)
                self.node_embeds[ntype] = dgl.distributed.DistEmbedding(
                    g.num_nodes(ntype), size, "emb_" + ntype, init_emb, policy
                )

    def forward(self, node_ids):
        result = {}
        for ntype in node_ids:
            if ntype in self.node_embeds:
                result[ntype] = self.node_embeds[ntype](node_ids[ntype])
            else:
                result[ntype] = self.project(self.g.nodes[ntype].data["feat"][node_ids[ntype]])
        return result


def main(args):
    dgl.distributed.initialize(args.ip_config)
    th.distributed.init_process_group(backend="gloo")
    g = dgl.distributed.DistGraph(args.graph_name, part_config=args.conf_path)
    pb = g.get_partition_book()
    masks = g.nodes["paper"].data
    train, val = (
        dgl.distributed.node_split(masks[name], pb, ntype="paper", force_even=True)
        for name in ("train_mask", "val_mask")
    )
    labels = masks["labels"][np.arange(g.num_nodes("paper"))]
    loaders = [
        dgl.distributed.DistNodeDataLoader(
            g, {"paper": nids}, dgl.dataloading.MultiLayerNeighborSampler([4, 4]), batch_size=50, shuffle=shuffle
        )
        for nids, shuffle in ((train, True), (val, False))
    ]
    th.manual_seed(0)
    embed = Embed(g, 16)
    model = Model(16, 4, g.etypes)
    model, embed = (th.nn.parallel.DistributedDataParallel(part) for part in (model, embed))
    sparse = dgl.distributed.optim.SparseAdam(list(embed.module.node_embeds.values()), lr=0.05)
    dense = th.optim.Adam([*model.parameters(), *embed.parameters()], lr=0.02)
    for _ in range(4):
        for input_nodes, seeds, blocks in loaders[0]:
            logits = model(blocks, embed(input_nodes))
            assert len(logits) == 1
            loss = F.cross_entropy(logits["paper"], labels[seeds["paper"]])
            sparse.zero_grad()
            dense.zero_grad()
            loss.backward()
            sparse.step()
            dense.step()
    results = dgl.distributed.DistTensor(labels.shape, th.long, "results", persistent=True)
    with th.no_grad():
        for input_nodes, seeds, blocks in loaders[1]:
            logits = model.module(blocks, embed.module(input_nodes))
            assert len(logits) == 1
            results[seeds["paper"]] = logits["paper"].argmax(dim=1)
    g.barrier()
    if g.rank() == 0:
        every = th.LongTensor(np.nonzero(masks["val_mask"][np.arange(g.num_nodes("paper"))].numpy())[0])
        print(f"Val Acc {(results[every] == labels[every]).float().mean():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("--graph-name", "--ip-config", "--conf-path"):
        parser.add_argument(name)
    main(parser.parse_args())
