"""The same graph with the same assignment, cut by DGL, by PyG and here: the same blocks for the same original seeds.

DGL's files come from ``support/dgl_files.py``, with and without original ids; PyG writes its own. Every node and edge
tells what it was: ``x`` of a node is its original id, ``edge_attr`` of an edge its original ends and id.
"""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from dgl_files import Layout, write_partition
from layouts import SharedJob
from typed_parts import typed_source

import mpigraph.distributed as dist
from mpigraph.cli.main import main
from mpigraph.dataloading import NeighborSampler
from mpigraph.graphs.fields import EID, NID
from mpigraph.metadata.schema import relation_key
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.source import GraphSource

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.data import HeteroData
    from torch_geometric.distributed import Partitioner
    from torch_geometric.loader import ClusterData

COUNTS = {"author": 40, "paper": 90}
EDGES = {("author", "writes", "paper"): 400, ("paper", "by", "author"): 200, ("paper", "cites", "paper"): 500}
PARTS = np.random.default_rng(5).permutation(np.arange(130) % 3)  # of authors, then of papers


def source() -> GraphSource:
    """The graph, with the features that PyG's partitioner keeps."""
    made = typed_source(COUNTS, EDGES)
    nodes = {ntype: {"x": feats["id"]} for ntype, feats in made.node_feats.items()}
    edges = {key: {"edge_attr": feats["told"]} for key, feats in made.edge_feats.items()}
    return replace(made, node_feats=nodes, edge_feats=edges)


def by_dgl(folder: Path, ids: str) -> None:
    write_partition(folder, source(), np.split(PARTS, [COUNTS["author"]]), Layout(ids=ids))


def by_pyg(folder: Path) -> None:
    made, data = source(), HeteroData()
    for ntype in COUNTS:
        data[ntype].x = torch.from_numpy(np.asarray(made.node_feats[ntype]["x"].values[:]))
    for relation, ends in zip(made.schema.relations, made.edges, strict=True):
        data[relation].edge_index = torch.from_numpy(np.stack([np.asarray(end[:]) for end in ends]))
        told = made.edge_feats[relation_key(relation)]["edge_attr"]
        data[relation].edge_attr = torch.from_numpy(np.asarray(told.values[:]))
    with pytest.MonkeyPatch.context() as patch:  # PyG's METIS needs pyg-lib
        patch.setattr(ClusterData, "_metis", lambda self, edges, count: torch.from_numpy(PARTS))
        Partitioner(data, 3, str(folder)).generate_partition()


def write(folder: Path, by: str) -> str:
    """Cut the graph in one of the ways, and bring it in; return the path of its configuration."""
    if by == "here":
        return str(partition_source(source(), "g", 3, folder, "given", assignment=PARTS).config_path)
    if by == "pyg":
        by_pyg(folder / "cut")
        given = folder / "cut"
    else:
        by_dgl(folder / "cut", "graph" if by == "dgl" else "")
        given = folder / "cut" / "g.json"
    assert main(["partition", str(given), "--name", "g", "-o", str(folder / "out")]) == 0
    return str(folder / "out" / "g.json")


def blocks(g: dist.DistGraph, seeds: torch.Tensor, fanouts: list[int]) -> list[dict[str, list[list[int]]]]:
    """What each block has, by original ids: destinations, sources, and edges as (src, dst, id), all in order."""
    papers = g.nodes["paper"].data["x"][torch.arange(g.num_nodes("paper"))]
    assert torch.equal(papers.sort().values, torch.arange(COUNTS["paper"]))
    found = []
    for block in NeighborSampler(fanouts, empty_relations=True).sample(g, {"paper": papers.argsort()[seeds]})[2]:
        ends = {t: g.nodes[t].data["x"][block.srcnodes[t].data[NID]] for t in block.srctypes}
        told = {f"src {t}": ids.tolist() for t, ids in ends.items()}
        for ntype in block.dsttypes:
            told[f"dst {ntype}"] = g.nodes[ntype].data["x"][block.dstnodes[ntype].data[NID]].tolist()
        for relation in block.canonical_etypes:
            src, dst = block.edges(etype=relation)
            rows = g.edges[relation].data["edge_attr"][block.edges[relation].data[EID]]
            assert torch.equal(rows[:, 0], ends[relation[0]][src])
            assert torch.equal(rows[:, 1], torch.tensor(told[f"dst {relation[2]}"])[dst])
            told[relation_key(relation)] = rows.tolist()
        found.append(told)
    return found


def as_sets(found: list[dict[str, list[list[int]]]]) -> list[dict[str, list[list[int]]]]:
    return [{key: sorted(rows) for key, rows in told.items()} for told in found]


@pytest.mark.slow
def test_the_same_assignment_gives_the_same_blocks(job: SharedJob) -> None:
    """All neighbours are the same sets. The same ids in the parts, which need original ones, give the same draws."""
    seeds = torch.arange(job.rank, 30, 3)
    found = {}
    for by in ("here", "dgl", "pyg", "dgl without original ids"):
        g = job.open(job.write(write, by))
        local = g.get_partition_book().nid2partid(torch.arange(g.num_nodes("paper")), "paper")
        original = g.nodes["paper"].data["x"][torch.arange(g.num_nodes("paper"))]
        assert np.array_equal(local[original.argsort()], PARTS[COUNTS["author"] :])
        found[by] = blocks(g, seeds, [-1, -1]), blocks(g, seeds, [3, 2])
    every, drawn = found.pop("here")
    assert sum(len(rows) for key, rows in every[0].items() if ":" in key) > 100
    for by, (theirs, draws) in found.items():
        assert as_sets(theirs) == as_sets(every)
        if by != "dgl without original ids":
            assert theirs == every and draws == drawn
