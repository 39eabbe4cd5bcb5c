"""``as_graph`` of a path: the graph that the files hold, whoever wrote them, in memory."""

import numpy as np
import pytest
import torch
from typed_parts import typed_source

from mpigraph.convert import as_graph, from_files
from mpigraph.errors import GraphDataError, InvalidArgumentError
from mpigraph.graphs.fields import EID, NID
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.source import Feature, GraphSource

COUNTS = {"author": 40, "paper": 90}
EDGES = {("author", "writes", "paper"): 200, ("paper", "cites", "paper"): 150}


def source() -> GraphSource:
    found = typed_source(COUNTS, EDGES)
    half = Feature(np.arange(0x3F80, 0x3F80 + 90, dtype=np.uint16), "bfloat16")
    found.node_feats["paper"]["half"] = half  # type: ignore[index]
    return found


def check(graph: HeteroGraph) -> None:
    """Check the graph by what its nodes and edges tell of themselves."""
    assert graph.ntypes == list(COUNTS) and graph.canonical_etypes == list(EDGES)
    ids = {ntype: graph.nodes[ntype].data["id"] for ntype in COUNTS}
    assert graph.nodes["paper"].data["third"].dtype == torch.bool
    assert torch.equal(graph.nodes["paper"].data["third"], ids["paper"] % 3 == 0)
    wanted = (ids["paper"] + 0x3F80).to(torch.int16).view(torch.bfloat16)
    if "half" in graph.nodes["paper"].data:
        assert torch.equal(graph.nodes["paper"].data["half"], wanted)
    for relation, m in EDGES.items():
        src, dst = graph.edges(form="uv", order="eid", etype=relation)
        told = graph.edges[relation].data["told"]
        assert len(told) == m
        assert torch.equal(torch.stack([ids[relation[0]][src], ids[relation[2]][dst]], 1), told[:, :2])
        if EID in graph.edges[relation].data:
            assert torch.equal(graph.edges[relation].data[EID], told[:, 2])
    for ntype in COUNTS:
        if NID in graph.nodes[ntype].data:
            assert torch.equal(graph.nodes[ntype].data[NID], ids[ntype])


def test_of_parts_of_this_library(tmp_path):
    path = partition_source(source(), "g", 2, tmp_path / "g", "random").path
    check(as_graph(path))
    assert NID in as_graph(path).nodes["paper"].data


def test_of_nothing(tmp_path):
    with pytest.raises(GraphDataError, match="none.npz: no such file"):
        as_graph(tmp_path / "none.npz")
    with pytest.raises(InvalidArgumentError, match="got str 'none.npz', which is not a file"):
        as_graph("none.npz")


def test_reverse_edges_by_option_or_name(tmp_path):
    np.savez(tmp_path / "g.npz", edge_src=[0, 1], edge_dst=[1, 2], w=[5, 6])
    graph = from_files(tmp_path / "g.npz", undirected=True)
    assert torch.stack(graph.edges(order="eid")).tolist() == [[0, 1, 1, 2], [1, 2, 0, 1]]
    assert graph.edata["w"].tolist() == [5, 6, 5, 6]
    raw = tmp_path / "ogb" / "raw"
    raw.mkdir(parents=True)
    np.savez(raw / "data.npz", edge_index=np.array([[0, 1], [1, 2]]), num_nodes_list=[3])
    np.savez(raw / "node-label.npz", node_label=np.zeros((3, 1)))
    assert from_files(raw.parent).num_edges() == 2
    raw.parent.rename(tmp_path / "ogbn_proteins")
    assert from_files(tmp_path / "ogbn_proteins").num_edges() == 4
