"""Training as chapter 7 of DGL's user guide has it, in its versions of 0.5 to 2.x: one Python, or several ranks."""

import os
import sys

import dgl
import numpy as np
import torch as th
import torch.nn.functional as F
from dgl.distributed import DistDataLoader, DistGraph, node_split


class NeighborSampler:
    """The sampler that the chapter's introduction takes as given: one block for each layer."""

    def __init__(self, g, fanouts, sample_neighbors, device):
        self.g, self.fanouts, self.sample_neighbors, self.device = g, fanouts, sample_neighbors, device

    def sample_blocks(self, seeds):
        seeds = th.LongTensor(np.asarray(seeds))
        blocks = []
        for fanout in self.fanouts:
            frontier = self.sample_neighbors(self.g, seeds, fanout, replace=True)
            block = dgl.to_block(frontier, seeds)
            seeds = block.srcdata[dgl.NID]
            blocks.insert(0, block)
        return blocks


class SAGE(th.nn.Module):
    def __init__(self, in_feats, hidden, classes):
        super().__init__()
        self.layers = th.nn.ModuleList(
            [dgl.nn.SAGEConv(in_feats, hidden, "mean"), dgl.nn.SAGEConv(hidden, classes, "mean")]
        )

    def forward(self, blocks, x):
        return self.layers[1](blocks[1], F.relu(self.layers[0](blocks[0], x)))


def initializer(shape, dtype):
    return th.zeros(shape, dtype=dtype).uniform_(-1, 1)


def introduction(part_config):
    """The whole loop, and as it was before trainers with fewer minibatches could leave it."""
    g = DistGraph("plain", part_config)
    train_nid = node_split(g.ndata["train_mask"], g.get_partition_book(), force_even=True)
    sampler = NeighborSampler(g, [10, 25], dgl.distributed.sample_neighbors, th.device("cpu"))
    loader = DistDataLoader(
        dataset=train_nid.numpy(), batch_size=10, collate_fn=sampler.sample_blocks, shuffle=True, drop_last=False
    )
    model = th.nn.parallel.DistributedDataParallel(SAGE(4, 16, 4))
    loss_fcn = th.nn.CrossEntropyLoss()
    optimizer = th.optim.Adam(model.parameters(), lr=0.03)
    losses = []
    for _ in range(5):
        with model.join():
            for _, blocks in enumerate(loader):
                inputs = g.ndata["feat"][blocks[0].srcdata[dgl.NID]]
                labels = g.ndata["label"][blocks[-1].dstdata[dgl.NID]]
                loss = loss_fcn(model(blocks, inputs), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(float(loss.detach()))
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5]), losses
    try:
        dgl.dataloading.NeighborSampler(g, [10, 25], dgl.distributed.sample_neighbors, "cpu")
    except dgl.DGLError as error:  # an error of DGL's, too, where its guide writes this
        assert "fanouts come first" in str(error)
    else:
        raise AssertionError("a graph is no list of fanouts")


def graph_and_tensors():
    """Structure, node and edge data, tensors by index; the configuration is the launcher's."""
    g = dgl.distributed.DistGraph("plain")
    assert g.number_of_nodes() == g.num_nodes() == 300 and g.num_edges() == 2400
    assert g.ndata["train_mask"][0].shape == (1,)

    tensor = dgl.distributed.DistTensor((g.num_nodes(), 10), th.float32, name="test")
    g.ndata["new"] = tensor
    if g.rank() == 0:
        tensor[[1, 2, 3]] = th.arange(30.0).reshape(3, 10)
        data = g.ndata["new"][[1, 2, 3]]
        g.ndata["new"][[3, 4, 5]] = data
        assert th.equal(g.ndata["new"][4], th.arange(10.0, 20.0)[None]) and tensor.shape == (300, 10)
    g._client.barrier()
    assert tensor.dtype == th.float32 and float(g.ndata["new"][[5]].sum()) == sum(range(20, 30))
    return g


def embeddings(g):
    """A sparse optimizer beside a dense one."""
    emb = dgl.distributed.DistEmbedding(g.num_nodes(), 10, init_func=initializer)
    model = th.nn.parallel.DistributedDataParallel(th.nn.Linear(10, 1))
    sparse_optimizer = dgl.distributed.SparseAdagrad([emb], lr=0.1)
    optimizer = th.optim.Adam(model.parameters(), lr=0.01)
    nids = th.arange(g.rank(), 300, 7)
    before = emb(nids).detach()
    assert before.abs().max() <= 1 and before.std() > 0.3
    g.barrier()
    feats = emb(nids)
    loss = model(feats).sum()
    loss.backward()
    optimizer.step()
    sparse_optimizer.step()
    assert not th.equal(emb(nids).detach(), before)


def sampling(g):
    """Both levels: a function for a batch of seeds, and the samplers' loaders, at homes old and new."""
    train_nid = dgl.distributed.node_split(g.ndata["train_mask"])
    by_hand = NeighborSampler(g, [10, 25], dgl.distributed.sample_neighbors, "cpu").sample_blocks
    loader = dgl.distributed.DistDataLoader(dataset=train_nid, batch_size=20, collate_fn=by_hand, shuffle=True)
    seen = th.cat([blocks[-1].dstdata[dgl.NID] for blocks in loader])
    assert th.equal(seen.sort()[0], train_nid)

    sampler = dgl.sampling.MultiLayerNeighborSampler([10, 25])
    for home in (dgl.sampling, dgl.dataloading, dgl.distributed):
        loader = home.DistNodeDataLoader(g, train_nid, sampler, batch_size=20, shuffle=True)
        seen = [seeds for _, seeds, blocks in loader if len(blocks) == 2]
        assert th.equal(th.cat(seen).sort()[0], train_nid)

    train_eids = dgl.distributed.edge_split(g.edata["train_mask"])
    loader = dgl.distributed.DistEdgeDataLoader(g, train_eids, sampler, batch_size=200, exclude="self")
    seen = th.cat([pairs.edata[dgl.EID] for _, pairs, _ in loader])
    assert th.equal(seen, train_eids)
    src, dst = g.find_edges(seen[:50])
    assert th.equal(th.stack([g.ndata["id"][src], g.ndata["id"][dst]], 1), g.edata["told"][seen[:50]][:, :2])


def types(part_config):
    """Rows by type, a policy where the length does not tell it, and sampling by homogeneous ids."""
    g = dgl.distributed.DistGraph("typed", part_config=part_config)
    assert g.nodes["T0"].data["feat"][[0, 10, 20]].shape == (3, 1)
    g.nodes["T0"].data["feat1"] = dgl.distributed.DistTensor(
        (g.number_of_nodes("T0"), 1), th.float32, "feat1", part_policy=g.get_node_partition_policy("T0")
    )
    assert len(g.nodes["T0"].data["feat1"]) == 200

    gpb = g.get_partition_book()
    seeds = dgl.distributed.node_split(g.nodes["T0"].data["train_mask"], gpb, ntype="T0")
    cur = gpb.map_to_homo_nid(seeds, "T0")
    frontier = dgl.distributed.sample_neighbors(g, cur, 5, replace=False)
    block = dgl.to_block(frontier, cur)
    block.edata[dgl.EID] = frontier.edata[dgl.EID]
    block.edata[dgl.ETYPE], block.edata[dgl.EID] = gpb.map_to_per_etype(block.edata[dgl.EID])
    block.srcdata[dgl.NTYPE], block.srcdata[dgl.NID] = gpb.map_to_per_ntype(block.srcdata[dgl.NID])
    block.dstdata[dgl.NTYPE], block.dstdata[dgl.NID] = gpb.map_to_per_ntype(block.dstdata[dgl.NID])
    src, dst = block.edges()
    assert th.equal(block.dstdata[dgl.NID], seeds) and block.num_edges() > len(seeds)
    for number, relation in enumerate(g.canonical_etypes):
        own = block.edata[dgl.ETYPE] == number
        u, v = g.find_edges(block.edata[dgl.EID][own], relation)
        assert th.equal(block.srcdata[dgl.NID][src[own]], u) and th.equal(block.dstdata[dgl.NID][dst[own]], v)
        kinds = block.srcdata[dgl.NTYPE][src[own]]
        assert all(g.ntypes[kind] == relation[0] for kind in kinds)


if __name__ == "__main__":
    folder = sys.argv[1]
    dgl.distributed.initialize("ip_config.txt")
    th.distributed.init_process_group(backend="gloo")
    th.manual_seed(0)
    introduction(os.path.join(folder, "plain", "plain.json"))
    graph = graph_and_tensors()
    embeddings(graph)
    sampling(graph)
    types(os.path.join(folder, "typed", "typed.json"))
    print(f"trainer {th.distributed.get_rank()} of {th.distributed.get_world_size()} is done", flush=True)
