"""A script for DGL 0.5 to 0.9: its own sampler, homogeneous ids, loaders by their old names."""

import argparse

import dgl
import numpy as np
import torch as th
from dgl.data import load_data, register_data_args
from dgl.data.utils import load_graphs
from dgl.distributed import DistDataLoader

assert load_data is not None and load_graphs is not None


class HomogeneousSampler:
    """Blocks without types of a graph with types."""

    def __init__(self, g, fanouts, sample_neighbors):
        self.g, self.fanouts, self.sample_neighbors = g, fanouts, sample_neighbors

    def sample_blocks(self, seeds):
        seeds = th.LongTensor(np.asarray(seeds))
        gpb = self.g.get_partition_book()
        current = gpb.map_to_homo_nid(seeds, "paper")
        blocks = []
        for fanout in self.fanouts:
            frontier = self.sample_neighbors(self.g, current, fanout, replace=False)
            block = dgl.to_block(frontier, current)
            current = block.srcdata[dgl.NID]
            block.edata[dgl.EID] = frontier.edata[dgl.EID]
            block.edata[dgl.ETYPE], block.edata[dgl.EID] = gpb.map_to_per_etype(block.edata[dgl.EID])
            block.srcdata[dgl.NTYPE], block.srcdata[dgl.NID] = gpb.map_to_per_ntype(block.srcdata[dgl.NID])
            block.dstdata[dgl.NTYPE], block.dstdata[dgl.NID] = gpb.map_to_per_ntype(block.dstdata[dgl.NID])
            blocks.insert(0, block)
        return seeds, blocks


def check(g, block):
    """Every edge of a block is one of the graph, of its type."""
    src, dst = block.edges()
    for number, (src_type, _, dst_type) in enumerate(g.canonical_etypes):
        own = block.edata[dgl.ETYPE] == number
        u, v = g.find_edges(block.edata[dgl.EID][own], g.canonical_etypes[number])
        assert th.equal(block.srcdata[dgl.NID][src[own]], u) and th.equal(block.dstdata[dgl.NID][dst[own]], v)
        assert bool((block.srcdata[dgl.NTYPE][src[own]] == g.get_ntype_id(src_type)).all())
        assert bool((block.dstdata[dgl.NTYPE][dst[own]] == g.get_ntype_id(dst_type)).all())


def main(args):
    dgl.distributed.initialize(args.ip_config, 1, num_workers=2)
    th.distributed.init_process_group(backend="gloo")
    g = dgl.distributed.DistGraph(args.graph_name, part_config=args.conf_path)
    train = dgl.distributed.node_split(g.nodes["paper"].data["train_mask"], g.get_partition_book(), ntype="paper")
    sampler = HomogeneousSampler(g, [3, 3], dgl.distributed.sample_neighbors)
    edges = 0
    for seeds, blocks in DistDataLoader(dataset=train, batch_size=50, collate_fn=sampler.sample_blocks, shuffle=True):
        assert th.equal(blocks[-1].dstdata[dgl.NID], seeds)
        for block in blocks:
            check(g, block)
            edges += block.number_of_edges()
    src, dst = dgl.distributed.graph_services.find_edges(g, th.arange(0, g.num_edges(), 7))
    assert len(src) == len(dst) == -(-g.num_edges() // 7)
    sampler = dgl.dataloading.MultiLayerNeighborSampler([None, 5])
    loader = dgl.dataloading.NodeDataLoader(g, {"paper": train}, sampler, batch_size=50, shuffle=True, num_workers=2)
    count = sum(len(seeds["paper"]) for _, seeds, _ in loader)
    assert count == len(train)
    totals = th.tensor([edges, count])
    th.distributed.all_reduce(totals)
    assert totals[1] == g.nodes["paper"].data["train_mask"].count_nonzero()
    if g.rank() == dgl.distributed.role.get_trainer_rank() == 0:
        assert dgl.distributed.get_num_client() == th.distributed.get_world_size()
        print(f"edges {totals[0]} seeds {totals[1]}")
    g._client.barrier()
    dgl.distributed.shutdown_servers()
    dgl.distributed.finalize_client()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    register_data_args(parser)
    for name in ("--graph-name", "--ip-config", "--conf-path"):
        parser.add_argument(name)
    main(parser.parse_args())
