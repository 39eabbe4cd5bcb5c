"""Orders of nodes inside parts: pages and runs that the rows of sampled minibatches touch on a disk.

    python tests/perf/node_order.py PARTS/g.json CLUSTERS/g.json --fanouts 10,25 --batch 1000

``PARTS`` is as the command ``partition`` writes it, ``CLUSTERS`` by the same command with ``--node-order clusters``.
Minibatches of training nodes of part 0 (of all its nodes, if there is no ``train_mask``) are sampled once, so that all
orders read the same rows. The rows of each part lie in a file of their own. Beside these orders: by degree, a
breadth-first search from the node of the highest degree, reverse Cuthill-McKee (scipy), and clusters of ``--metis``
nodes by METIS.

"Missed" rows are those not in a cache of a share of all rows, after a third of the minibatches: it keeps the rows that
the next 16 minibatches read, the soonest first, then those that were read last. Rows in adjacent pages of 4 KiB are one
run, also over a gap of 0, 4 or 16 KiB; read / needed counts whole pages and gaps.
"""

import argparse
import itertools
import time

import numpy as np
import pymetis
import torch
from scipy import sparse
from scipy.sparse.csgraph import breadth_first_order, reverse_cuthill_mckee

import mpigraph as mg
from mpigraph.storage.format import node_orig_ids_name
from mpigraph.storage.part_config import PartConfig
from mpigraph.storage.shard import ShardReader

PAGE = 4096
GAPS = (0, 1, 4)  # pages
KNOWN = 16  # minibatches that a cache knows
NEVER = 1 << 30


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("config", metavar="CONFIG", help="the parts to sample from")
    p.add_argument("others", nargs="*", metavar="OTHER", help="the same parts in another order")
    p.add_argument("--fanouts", default="10,25")
    p.add_argument("--batch", type=int, default=1000)
    p.add_argument("--batches", type=int, default=96, help="minibatches (%(default)s)")
    p.add_argument("--row", type=int, nargs="*", default=[400, 128], help="bytes of a row (%(default)s)")
    p.add_argument("--cache", type=float, nargs="*", default=[0.25, 0.1], help="share of all rows (%(default)s)")
    p.add_argument("--metis", type=int, help="nodes of a cluster; takes much memory")
    args = p.parse_args()
    offsets, ids = numbering(args.config)
    rows = minibatches(args, offsets)
    reads = {"all": rows[len(rows) // 3 :]}
    reads |= {f"missed by {share:.0%}": missed(rows, int(offsets[-1]), share) for share in args.cache}
    print("| order | CPU s | rows | of | bytes of a row | pages | read / needed, gap 0, 4, 16 KiB | runs |")
    print("|---|---|---|---|---|---|---|---|")
    for name, make in orders(args, offsets, ids).items():
        begin = time.process_time()
        place = make()
        seconds = time.process_time() - begin
        assert np.array_equal(np.sort(place), np.arange(len(place)))
        for what, batches in reads.items():
            for row in args.row:
                count, pages, read, runs = np.mean([touched(place[batch], offsets, row) for batch in batches], axis=0)
                ratios = ", ".join(f"{value * PAGE / (count[0] * row):.2f}" for value in read)
                numbers = ", ".join(f"{value:.0f}" for value in runs)
                words = (name, f"{seconds:.1f}", what, f"{count[0]:.0f}", row, f"{pages[0]:.0f}", ratios, numbers)
                print("|", " | ".join(map(str, words)), "|", flush=True)


def numbering(path):
    """The offsets of the parts, and the original ids of all nodes in the order of their new ids."""
    config = PartConfig.read(path)
    ids = []
    for part in range(config.num_parts):
        with ShardReader(config.part_path(part, "part_graph")) as shard:
            ids.append(shard.read(node_orig_ids_name("_N")))
    return config.book.node_offsets[0], np.concatenate(ids)


def minibatches(args, offsets):
    """The sorted ids of the nodes that each minibatch reads."""
    mg.distributed.initialize()
    g = mg.distributed.DistGraph(PartConfig.read(args.config).graph_name, part_config=args.config)
    seeds = torch.arange(int(offsets[1]))
    if "train_mask" in g.ndata:
        seeds = seeds[g.ndata["train_mask"][seeds].bool()]
    sampler = mg.dataloading.NeighborSampler(list(map(int, args.fanouts.split(","))))
    shuffle = torch.Generator().manual_seed(0)
    rows = []
    size = min(args.batch, len(seeds))
    while len(rows) < args.batches:
        whole = seeds[torch.randperm(len(seeds), generator=shuffle)[: len(seeds) // size * size]]
        for batch in whole.split(size)[: args.batches - len(rows)]:
            rows.append(np.sort(sampler.sample_blocks(g, batch)[0].numpy()))
    return rows


def missed(rows, num_nodes, share):
    """The rows that each minibatch does not find in a cache."""
    slots = int(share * num_nodes)
    next_use = np.full(num_nodes, NEVER)
    after = []
    for number in reversed(range(len(rows))):
        after.append(next_use[rows[number]])
        next_use[rows[number]] = number
    last_use = np.full(num_nodes, -1)
    cached = np.zeros(num_nodes, bool)
    result = []
    for number, batch in enumerate(rows):
        result.append(batch[~cached[batch]])
        next_use[batch], last_use[batch], cached[batch] = after.pop(), number, True
        kept = np.flatnonzero(cached)
        if len(kept) > slots:
            soon = np.where(next_use[kept] <= number + KNOWN, next_use[kept], NEVER - last_use[kept])
            cached[kept[np.argpartition(soon, slots)[slots:]]] = False
    return result[len(rows) // 3 :]


def touched(places, offsets, row):
    """The rows of a minibatch, the pages they touch, and by gap the pages read and the runs: [4, gaps]."""
    places = np.sort(places)
    result = np.zeros((4, len(GAPS)))
    for begin, end in itertools.pairwise(offsets.tolist()):
        first = (places[slice(*np.searchsorted(places, [begin, end]))] - begin) * row
        pages = np.unique(np.concatenate([first // PAGE, (first + row - 1) // PAGE]))
        between = np.diff(pages) - 1
        for number, gap in enumerate(GAPS):
            read = len(pages) + between[between <= gap].sum()
            result[:, number] += len(first), len(pages), read, np.count_nonzero(between > gap) + (len(pages) > 0)
    return result


def orders(args, offsets, ids):
    """By name, a function that returns the place of each node, parts apart."""
    place_of_id = np.empty(len(ids), np.int64)

    def as_in(path):
        other_offsets, other = numbering(path)
        assert np.array_equal(offsets, other_offsets), f"{path} has other parts"
        place_of_id[other] = np.arange(len(other))
        return place_of_id[ids]

    def by(order):
        """``order`` gives the nodes of a part from its edges inside."""
        place = np.empty(len(ids), np.int64)
        for part, begin in enumerate(offsets[:-1].tolist()):
            nodes = order(inside(args.config, part, offsets))
            place[begin + nodes] = begin + np.arange(len(nodes))
        return place

    found = {"as in CONFIG": lambda: as_in(args.config)}
    found |= {f"as in {path}": lambda path=path: as_in(path) for path in args.others}
    found["degree"] = lambda: by(lambda graph: np.argsort(-np.diff(graph.indptr), kind="stable"))
    found["breadth first"] = lambda: by(breadth_first)
    found["reverse Cuthill-McKee"] = lambda: by(lambda graph: reverse_cuthill_mckee(graph, symmetric_mode=True))
    if args.metis:
        found[f"METIS, {args.metis} nodes"] = lambda: by(lambda graph: metis(graph, args.metis))
    return found


def inside(path, part, offsets):
    """The edges inside a part, both ways."""
    with ShardReader(PartConfig.read(path).part_path(part, "part_graph")) as shard:
        indptr, indices = (shard.read(f"relations/_N:_E:_N/{name}") for name in ("indptr", "indices"))
    begin, end = offsets[part : part + 2]
    rows = np.repeat(np.arange(end - begin, dtype=np.int32), np.diff(indptr))
    own = (indices >= begin) & (indices < end) & (indices - begin != rows)
    graph = sparse.csr_matrix(
        (np.ones(own.sum(), np.int8), (rows[own], indices[own] - begin)), shape=(end - begin,) * 2
    )
    return (graph + graph.T).tocsr()


def breadth_first(graph):
    """Nodes in the order in which searches meet them, each from the node of the highest degree that is left."""
    degrees = np.diff(graph.indptr)
    met = degrees == 0
    order = [np.flatnonzero(met)]
    for node in np.argsort(-degrees, kind="stable"):
        if not met[node]:
            order.append(breadth_first_order(graph, node, return_predecessors=False))
            met[order[-1]] = True
    return np.concatenate(order)


def metis(graph, size):
    """Nodes by cluster."""
    adjacency = pymetis.CSRAdjacency(graph.indptr.astype(np.int64), graph.indices.astype(np.int64))
    clusters = pymetis.part_graph(max(2, graph.shape[0] // size), adjacency, recursive=False)[1]
    return np.argsort(clusters, kind="stable")


if __name__ == "__main__":
    main()
