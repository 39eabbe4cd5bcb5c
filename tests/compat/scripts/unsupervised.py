"""GraphSAGE on edges and negatives as a user of DGL writes it; trainer 0 saves the tensor on the servers."""

import argparse

import dgl
import dgl.function as fn
import numpy as np
import torch as th
import torch.nn.functional as F
from dgl.nn.pytorch import SAGEConv
from torch import nn


class SAGE(nn.Module):
    def __init__(self, in_feats, n_hidden):
        super().__init__()
        self.layers = nn.ModuleList([SAGEConv(in_feats, n_hidden, "mean"), SAGEConv(n_hidden, n_hidden, "mean")])

    def forward(self, blocks, x):
        x = F.relu(self.layers[0](blocks[0], x))
        return self.layers[1](blocks[1], x)


def score(graph, h):
    with graph.local_scope():
        graph.ndata["h"] = h
        graph.apply_edges(fn.u_dot_v("h", "h", "score"))
        return graph.edata["score"]


def main(args):
    dgl.distributed.initialize(args.ip_config)
    th.distributed.init_process_group(backend="gloo")
    g = dgl.distributed.DistGraph(args.graph_name, part_config=args.part_config)
    everything = th.ones((g.num_edges(),), dtype=th.bool)
    eids = dgl.distributed.edge_split(everything, g.get_partition_book(), force_even=True)
    loader = dgl.distributed.DistEdgeDataLoader(
        g,
        eids,
        dgl.dataloading.NeighborSampler([5, 5]),
        negative_sampler=dgl.dataloading.negative_sampler.Uniform(1),
        exclude="reverse_id",
        reverse_eids=th.arange(g.num_edges()),
        batch_size=2000,
        shuffle=True,
        drop_last=False,
    )
    th.manual_seed(0)
    model = th.nn.parallel.DistributedDataParallel(SAGE(g.ndata["features"].shape[1], 16))
    optimizer = th.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(2):
        with model.join():
            for input_nodes, pos_graph, neg_graph, blocks in loader:
                for block in blocks:
                    assert not th.any(th.isin(block.edata[dgl.EID], pos_graph.edata[dgl.EID]))
                h = model([block.to("cpu") for block in blocks], g.ndata["features"][input_nodes])
                scores = th.cat([score(pos_graph, h), score(neg_graph, h)])
                label = th.cat([th.ones(pos_graph.num_edges()), th.zeros(neg_graph.num_edges())])
                loss = F.binary_cross_entropy_with_logits(scores.flatten(), label)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    pred = dgl.distributed.DistTensor((g.num_nodes(), 16), th.float32, "emb", persistent=True)
    nodes = dgl.distributed.node_split(np.arange(g.num_nodes()), g.get_partition_book())
    pred[nodes] = nodes[:, None].float().expand(-1, 16)
    th.distributed.barrier()
    g._client.barrier()
    if g.rank() == 0:
        th.save(pred, args.out)
        assert pred.count_nonzero() == 16 * (g.num_nodes() - 1)  # which trainer 0 asks alone
        print(f"loss {np.mean(losses[:3]):.4f} {np.mean(losses[-3:]):.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("--graph_name", "--ip_config", "--part_config", "--out"):
        parser.add_argument(name)
    main(parser.parse_args())
