"""Preprocessing as chapter 7 of DGL's user guide has it, of graphs with and without types: plain Python."""

import json
import sys
from pathlib import Path

import dgl
import numpy as np
import torch as th

CLASSES = 4


def plain():
    """Nodes know their id, and their class by weak features; edges know their id and both ends."""
    g = dgl.graph((th.randint(300, (2400,)), th.randint(300, (2400,))), num_nodes=300)
    label = th.arange(300) % CLASSES
    g.ndata["id"], g.ndata["label"] = th.arange(300), label
    g.ndata["feat"] = th.nn.functional.one_hot(label, CLASSES) + 0.1 * th.randn(300, CLASSES)
    g.ndata["train_mask"] = th.arange(300) % 3 == 0
    g.edata["told"] = th.stack([*g.edges(), th.arange(2400)], 1)
    g.edata["train_mask"] = th.arange(2400) % 2 == 0
    return g


def typed():
    """Two node types with as many nodes as each other, so that a tensor's length does not tell its type."""
    ends = [th.randint(200, (2, 900)) for _ in range(3)]
    relations = [("T0", "R0", "T0"), ("T0", "R1", "T1"), ("T1", "R2", "T0")]
    g = dgl.heterograph(
        {relation: tuple(pair) for relation, pair in zip(relations, ends, strict=True)}, {"T0": 200, "T1": 200}
    )
    for ntype in g.ntypes:
        g.nodes[ntype].data["feat"] = th.arange(200.0)[:, None]
        g.nodes[ntype].data["train_mask"] = th.arange(200) % 4 == 0
    return g


def partitioning(root):
    """Two parts; a balance of classes; the ids of before; a part to look at."""
    g = plain()
    dgl.distributed.partition_graph(g, "plain", 2, root)
    dgl.distributed.partition_graph(g, "balanced", 4, root / "balanced", balance_ntypes=g.ndata["train_mask"])
    shares = [dgl.distributed.load_partition_feats(root / "balanced/balanced.json", i)[0] for i in range(4)]
    counts = [int(feats["_N/train_mask"].sum()) for feats in shares]
    assert sum(counts) == 100 and min(counts) >= 15, counts

    node_map, edge_map = dgl.distributed.partition_graph(
        g, "mapped", 2, root / "mapped", balance_ntypes=g.ndata["train_mask"], balance_edges=True, return_mapping=True
    )
    trained = g.ndata["id"][node_map] * 10  # what training would have saved, in the new order
    original = th.zeros(trained.shape, dtype=trained.dtype)
    original[node_map] = trained
    assert th.equal(original, g.ndata["id"] * 10) and th.equal(g.edata["told"][edge_map][:, 2], edge_map)

    part, nfeat, efeat, book, name, ntypes, etypes = dgl.distributed.load_partition(root / "plain.json", 0)
    print(part)
    assert (name, ntypes, etypes) == ("plain", ["_N"], [("_N", "_E", "_N")])
    inner = part.ndata["inner_node"].bool()
    assert th.equal(part.ndata[dgl.NID][inner], book.partid2nids(0)) and set(part.ndata) >= {"part_id", dgl.NID}
    assert part.edata["inner_edge"].dtype == th.uint8
    src, dst = part.edges()
    told = efeat["_N:_E:_N/told"]
    assert len(src) == len(told) and th.equal(nfeat["_N/id"][dst], told[:, 1])
    book, *_ = dgl.distributed.load_partition_book(root / "plain.json", 1)
    assert book.partid == 1


def with_types(root):
    """The part of a graph with types has none: its ids are homogeneous."""
    g = typed()
    node_map, edge_map = dgl.distributed.partition_graph(g, "typed", 2, root, return_mapping=True)
    assert set(node_map) == {"T0", "T1"} and set(edge_map) == set(g.canonical_etypes)
    part, nfeat, _, book, *_ = dgl.distributed.load_partition(root / "typed.json", 0)
    kinds, ids = book.map_to_per_ntype(part.ndata[dgl.NID])
    assert th.equal(kinds, part.ndata[dgl.NTYPE].long()) and part.edata[dgl.ETYPE].dtype == th.int32
    for number, ntype in enumerate(g.ntypes):
        own = (part.ndata["inner_node"] == 1) & (part.ndata[dgl.NTYPE] == number)
        assert th.equal(nfeat[f"{ntype}/feat"][:, 0], node_map[ntype][ids[own]].float())


def files(name, ending):
    return [f"{name}-{number}.{ending}" for number in range(2)]


def chunked(root, counts):
    """The files of the pipeline for large graphs: metadata.json, edges, features, and the part of each node."""
    root.mkdir()
    (root / "edges").mkdir()
    (root / "node_data").mkdir()
    (root / "parts").mkdir()
    edges = np.random.default_rng(0).integers(0, 100, (400, 2))
    for number in range(2):
        np.savetxt(root / f"edges/writes-{number}.csv", edges[200 * number :][:200], fmt="%d", delimiter=" ")
        np.save(root / f"node_data/feat-{number}.npy", np.arange(100.0)[50 * number :][:50])
    text = {"name": "csv", "delimiter": " "}
    meta = {
        "graph_name": "chunked",
        "node_type": ["author", "paper"],
        "edge_type": ["author:writes:paper"],
        "edges": {"author:writes:paper": {"format": text, "data": files("edges/writes", "csv")}},
        "node_data": {"paper": {"feat": {"format": {"name": "numpy"}, "data": files("node_data/feat", "npy")}}},
        "edge_data": {},
    }
    (root / "metadata.json").write_text(json.dumps(meta | counts))
    for ntype in meta["node_type"]:
        np.savetxt(root / f"parts/{ntype}.txt", np.arange(100) % 2, fmt="%d")


if __name__ == "__main__":
    th.manual_seed(0)
    where = Path(sys.argv[1])
    partitioning(where / "plain")
    with_types(where / "typed")
    chunked(where / "by_type", {"num_nodes_per_type": [100, 100], "num_edges_per_type": [400]})
    chunked(where / "by_chunk", {"num_nodes_per_chunk": [[50, 50]] * 2, "num_edges_per_chunk": [[200, 200]]})
