"""Edge cut, balance, time and memory of the multilevel assignment beside METIS, on graphs in ``.npz`` files.

    python tests/perf/cuts.py DIR amazon_computers coauthor_cs oewn gowalla --parts 2 4 8 64

Reads ``DIR/<name>.npz``, or the directory ``DIR/<name>``, as ``python -m mpigraph partition`` does; relations count
alike. METIS is the median by cut of seeds 0, 1, 2, ours seed 0. Each runs in a forked child after the kernels are
compiled; seconds are processor time, memory is what the child's peak is above what the graph takes before.
``--train`` balances the training nodes too, ``--edges`` the edges.
"""

import argparse
import json
import math
import os
import resource
import time
from pathlib import Path

import numpy as np

from mpigraph.formats.readers import read_source
from mpigraph.metadata.schema import Schema
from mpigraph.partition.balance import balance_criteria, loads_of, measured_balance
from mpigraph.partition.metis import metis_assign
from mpigraph.partition.multilevel.assign import multilevel_assign
from mpigraph.partition.source import GraphSource, edge_chunks

METHODS = {"metis": metis_assign, "multilevel": multilevel_assign}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dir", type=Path, metavar="DIR")
    p.add_argument("graphs", nargs="+", metavar="NAME")
    p.add_argument("--parts", type=int, nargs="+", default=[2, 4, 8, 64])
    p.add_argument("--train", action="store_true", help="balance training and other nodes")
    p.add_argument("--edges", action="store_true", help="balance the edges")
    args = p.parse_args()
    warm_up()
    print("| graph, parts | METIS: cut, balance, s, MiB | multilevel: cut, balance, s, MiB | ratio of the cuts |")
    print("|---|---|---|---|")
    ratios = []
    for name in args.graphs:
        path = args.dir / f"{name}.npz"
        source = read_source(path if path.is_file() else args.dir / name)
        untyped = one_type(source)
        trained = {kind: feats for kind, feats in source.node_feats.items() if args.train and "train_mask" in feats}
        masks = {kind: feats["train_mask"].values[:] for kind, feats in trained.items()}
        criteria = balance_criteria(source, masks, args.edges) if masks else balance_criteria(untyped, None, args.edges)
        for num_parts in args.parts:
            theirs = sorted(measured(untyped, criteria, "metis", num_parts, seed) for seed in range(3))[1]
            ours = measured(untyped, criteria, "multilevel", num_parts, 0)
            ratios.append(ours[0] / theirs[0])
            print(f"| {name}, {num_parts} | {told(theirs)} | {told(ours)} | {ratios[-1]:.3f} |", flush=True)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"| geometric mean, largest | | | {mean:.3f}, {max(ratios):.3f} |")


def one_type(source):
    """The same nodes and edges, of one type: the balance is that of all nodes, as METIS would see them."""
    ends = [[], []]
    for relation_id in range(len(source.edges)):
        bases = [source.node_bases[i] for i in source.schema.ends(relation_id)]
        for _, *chunk in edge_chunks(source, relation_id):
            for side in (0, 1):
                ends[side].append(chunk[side] + bases[side])
    edges = tuple(np.concatenate(side) for side in ends)
    return GraphSource(Schema.homogeneous(), (int(source.node_bases[-1]),), (edges,))


def measured(source, criteria, method, num_parts, seed):
    """(cut, worst balance, processor seconds, MiB) of one assignment, made in a child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        begin = time.process_time()
        parts = METHODS[method](source, num_parts, criteria, seed=seed)
        seconds = time.process_time() - begin
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        src, dst = source.edges[0]
        balance = max(measured_balance(criteria, loads_of(criteria, parts, num_parts)).values())
        os.write(
            writing, json.dumps([float((parts[src] != parts[dst]).mean()), balance, seconds, peak / 2**20]).encode()
        )
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    return json.loads(found)


def told(found):
    cut, balance, seconds, mib = found
    return f"{100 * cut:.2f} %, {balance:.3f}, {seconds:.1f}, {mib:.0f}"


def warm_up():
    """Compile, or load, all kernels: on a ring that is large enough to be clustered, once crowded."""
    nodes = np.arange(31_000)
    ring = GraphSource(Schema.homogeneous(), (len(nodes),), ((nodes, np.roll(nodes, 1)),))
    criteria = balance_criteria(ring) | {"some": (nodes < 9).astype(np.int64)}
    for method in METHODS.values():
        method(ring, 3, criteria, seed=0)


if __name__ == "__main__":
    main()
