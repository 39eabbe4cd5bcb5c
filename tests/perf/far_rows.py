"""Fraction of a minibatch's input rows that lie in other parts, of parts by METIS and by the multilevel method.

    python tests/perf/far_rows.py DIR amazon_computers oewn --parts 4

Cuts ``DIR/<name>.npz`` both ways, as ``python -m mpigraph partition`` does, and samples minibatches of 100 training
nodes of one part with fanouts 10,10, for each part; one process.
"""

import argparse
import tempfile
from pathlib import Path

import torch

import mpigraph as mg
from mpigraph.formats.readers import read_source
from mpigraph.partition.pipeline import partition_source

METHODS = ("metis", "multilevel")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dir", type=Path, metavar="DIR")
    p.add_argument("graphs", nargs="+", metavar="NAME")
    p.add_argument("--parts", type=int, default=4)
    p.add_argument("--target", help="type of the training nodes, of a typed graph")
    args = p.parse_args()
    mg.distributed.initialize(seed=0)
    print(f"| graph, {args.parts} parts | {' | '.join(METHODS)} | ratio |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        for name in args.graphs:
            source = read_source(args.dir / f"{name}.npz")
            found = []
            for method in METHODS:
                config = partition_source(source, f"{name}-{method}", args.parts, directory, method).config_path
                found.append(far_fraction(config, args.target))
            print(f"| {name} | {found[0]:.3f} | {found[1]:.3f} | {found[1] / found[0]:.2f} |", flush=True)
    mg.distributed.exit_client()


def far_fraction(config, target):
    """Sample minibatches of each part's training nodes; return which fraction of their input nodes is not its own."""
    g = mg.distributed.DistGraph(config.stem, part_config=str(config))
    book = g.get_partition_book()
    ntype = target or g.ntypes[0]
    trains = g.nodes[ntype].data["train_mask"][torch.arange(g.num_nodes(ntype))].nonzero()[:, 0]
    owners = book.nid2partid(trains, ntype)
    far = total = 0
    for part in range(book.num_partitions()):
        seeds = trains[owners == part]
        if len(seeds) == 0:
            continue
        sampler = mg.dataloading.NeighborSampler([10, 10])
        nodes = seeds if target is None else {target: seeds}
        for inputs, _, _ in mg.distributed.DistNodeDataLoader(g, nodes, sampler, batch_size=100):
            for kind, ids in inputs.items() if isinstance(inputs, dict) else [(ntype, inputs)]:
                far += int((book.nid2partid(ids, kind) != part).sum())
                total += len(ids)
    return far / total


if __name__ == "__main__":
    main()
