"""Generate a graph, cut it into parts, look at the result.

    python examples/partition.py

Then train on it: see node_classification.py. Larger inputs: ``python -m mpigraph partition --help``.
"""

import logging

import torch

from mpigraph.distgraph.partitioning import load_partition, partition_graph
from mpigraph.graphs.hetero import HeteroGraph, graph
from mpigraph.partition.generate import Recipe, generate_graph
from mpigraph.storage.part_config import PartConfig

NUM_NODES = 10_000
NUM_EDGES = 200_000
NUM_CLASSES = 8
NUM_PARTS = 4
METHOD = "metis"  # or "random"
OUT = "data/example"
NAME = "example"


def make_graph() -> HeteroGraph:
    """Put generated arrays into a graph; your own edges and features go the same way."""
    arrays = generate_graph(Recipe(NUM_NODES, NUM_EDGES, num_classes=NUM_CLASSES))
    g = graph((arrays.pop("edge_src"), arrays.pop("edge_dst")), num_nodes=NUM_NODES)
    for name, values in arrays.items():
        g.ndata[name] = torch.from_numpy(values)
    return g


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    g = make_graph()
    orig_nids, _ = partition_graph(
        g,
        NAME,
        NUM_PARTS,
        OUT,
        part_method=METHOD,
        balance_ntypes=g.ndata["train_mask"],
        balance_edges=True,
        return_mapping=True,
    )

    config = PartConfig.read(f"{OUT}/{NAME}.json")
    print(f"{config.path}: {config.report['edge_cut_fraction']:.1%} of the edges are cut")
    for name, reached in config.report["balance"].items():
        print(f"  largest part / mean, {name}: {reached:.3f}")

    for part in range(NUM_PARTS):
        part_graph, node_feats, _, book, *_ = load_partition(config.path, part)
        own = book.partid2nids(part)
        assert torch.equal(node_feats["_N/label"], g.ndata["label"][orig_nids[own]])
        foreign = part_graph.num_nodes() - len(own)
        print(f"  part {part}: {len(own)} nodes, {part_graph.num_edges()} in-edges, {foreign} sources in other parts")


if __name__ == "__main__":
    main()
