"""Generate a graph, partition it, look at the result.

    python examples/partition.py

One process partitions the graph. Under mpiexec or srun the first rank works. Then train on it:

    mpiexec -n 4 python examples/node_classification.py --graph_name example --part_config data/example/example.json

Larger inputs: ``python -m mpigraph partition --help``.
"""

import json
from pathlib import Path

import torch
from mpi4py import MPI

import mpigraph as mg

NUM_PARTS = 4
METHOD = "metis"  # or "random"
OUT = "data/example"
NAME = "example"


def main():
    rank = MPI.COMM_WORLD.rank
    if rank > 0:
        return  # ranks that write the same files would disturb each other
    if MPI.COMM_WORLD.size > 1:
        print(f"rank 0 of {MPI.COMM_WORLD.size} partitions the graph; the others have nothing to do")

    # Your own edges and features go the same way: mg.graph((src, dst)), then g.ndata[name] = values.
    g = mg.data.generate(num_nodes=10_000, num_edges=200_000, num_classes=8)
    orig_nids, _ = mg.distributed.partition_graph(
        g,
        NAME,
        NUM_PARTS,
        OUT,
        part_method=METHOD,
        balance_ntypes=g.ndata["train_mask"],
        balance_edges=True,
        return_mapping=True,
    )

    path = Path(OUT) / f"{NAME}.json"
    report = json.loads(path.read_text())["report"]
    print(f"{path}: {report['edge_cut_fraction']:.1%} of the edges are cut")
    for name, reached in report["balance"].items():
        print(f"  largest part / mean, {name}: {reached:.3f}")

    for part in range(NUM_PARTS):
        part_graph, node_feats, _, book, *_ = mg.distributed.load_partition(path, part)
        own = book.partid2nids(part)
        assert torch.equal(node_feats["_N/label"], g.ndata["label"][orig_nids[own]])
        sources = part_graph.num_nodes() - len(own)
        print(f"  part {part}: {len(own)} nodes, {part_graph.num_edges()} in-edges, {sources} sources in other parts")


if __name__ == "__main__":
    main()
