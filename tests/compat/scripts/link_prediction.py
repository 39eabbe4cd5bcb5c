"""Minibatches of typed edges as a user of DGL draws them, without the edges and their reverse ones."""

import argparse

import dgl
import torch as th

WRITES, BACK = ("author", "writes", "paper"), ("paper", "rev-writes", "author")


def main(args):
    dgl.distributed.initialize(args.ip_config, use_graphbolt=False)
    th.distributed.init_process_group(backend="gloo")
    g = dgl.distributed.DistGraph(args.graph_name)  # the launcher has told the file
    mask = th.ones((g.num_edges(etype=WRITES),), dtype=th.bool)
    eids = dgl.distributed.edge_split(mask, g.get_partition_book(), etype=WRITES, force_even=True)
    loader = dgl.dataloading.DistEdgeDataLoader(
        g,
        {WRITES: eids},
        dgl.dataloading.MultiLayerNeighborSampler([4, 4]),
        negative_sampler=dgl.dataloading.negative_sampler.Uniform(3),
        exclude="reverse_types",
        reverse_etypes={WRITES: BACK, BACK: WRITES},
        batch_size=100,
        shuffle=True,
        drop_last=False,
    )
    count, seen = 0, 0
    for _, pos_graph, neg_graph, blocks in loader:
        seeds = pos_graph.edges[WRITES].data[dgl.EID]
        assert neg_graph.num_edges(WRITES) == 3 * pos_graph.num_edges(WRITES) == 3 * len(seeds)
        src, dst = g.find_edges(seeds, WRITES)
        pairs = set(zip(src.tolist(), dst.tolist(), strict=True))
        for block in blocks:
            for relation in block.canonical_etypes:
                assert block.num_edges(relation) > 0
                result = block.edges[relation].data[dgl.EID]
                if relation == WRITES:
                    assert not th.any(th.isin(result, seeds))
                if relation == BACK:
                    u, v = g.find_edges(result, BACK)
                    assert not pairs & set(zip(v.tolist(), u.tolist(), strict=True))
                    seen += len(result)
        count += len(seeds)
    totals = th.tensor([count, seen])
    th.distributed.all_reduce(totals)
    assert totals[0] == g.num_edges(WRITES)
    if g.rank() == 0:
        print(f"edges {totals[0]} reverse {totals[1]}")
    g.barrier()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("--graph-name", "--ip-config"):
        parser.add_argument(name)
    main(parser.parse_args())
