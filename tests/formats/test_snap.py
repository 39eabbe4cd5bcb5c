"""Lists of edges from SNAP are checked against their comments."""

import gzip
import logging

import pytest
from input_checks import check_all, rows

from mpigraph.errors import GraphDataError
from mpigraph.formats.readers import read_source

DIRECTED = "# Directed graph (each unordered pair of nodes is saved once): x.txt\n# Nodes: 4 Edges: 3\n"
UNDIRECTED = "# Undirected graph: ../../output/x.txt\n# A network\n# Nodes: 4 Edges: 3\n"
NAMES = "# FromNodeId\tToNodeId\n"


@pytest.mark.parametrize("packed", [False, True])
def test_ids_with_gaps_are_numbered(tmp_path, packed):
    text = (DIRECTED + NAMES + "30\t1412\n7\t30\n7\t9\n").replace("\n", "\r\n").encode()
    path = tmp_path / ("x.txt.gz" if packed else "x.txt")
    path.write_bytes(gzip.compress(text) if packed else text)
    source = read_source(path)
    check_all(source)
    assert source.num_nodes == (4,) and rows(source.node_feats["_N"]["id"].values).tolist() == [7, 9, 30, 1412]
    assert [rows(end).tolist() for end in source.edges[0]] == [[2, 0, 0], [3, 2, 1]] and source.left_out == ()


@pytest.mark.parametrize(
    ("edges", "asks"), [("0\t1\n0\t2\n2\t3\n", True), ("0\t1\n1\t0\n2\t2\n", False), ("1\t0\n2\t0\n0\t3\n", True)]
)
def test_edges_that_go_one_way_in_an_undirected_graph_are_told(tmp_path, edges, asks):
    path = tmp_path / "x.txt"
    path.write_text(UNDIRECTED + NAMES + edges)
    assert any("--undirected" in line for line in read_source(path).left_out) is asks
    assert not read_source(path, undirected=True).left_out
    path.write_text(DIRECTED + NAMES + edges)
    assert not read_source(path).left_out


def test_nodes_without_edges_are_told(tmp_path, caplog):
    path = tmp_path / "x.txt"
    path.write_text(DIRECTED.replace("Nodes: 4", "Nodes: 9") + "0\t1\n1\t2\n2\t0\n")
    with caplog.at_level(logging.WARNING, "mpigraph"):
        assert read_source(path).num_nodes == (3,)
    assert "6 of 9 nodes have no edges" in caplog.text
    caplog.clear()
    assert read_source(path, num_nodes=9).num_nodes == (9,) and "have no edges" not in caplog.text


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (DIRECTED + "0\t1\n1\t2\n", "has 2 edges, but its comments say 3"),
        (DIRECTED + "0\t1\n1\t2\n2\t3\n3\t0\n", "has 4 edges, but its comments say 3"),
        (DIRECTED + "0\t1\n2\t3\n4\t0\n", "has 5 nodes, but its comments say 4"),
    ],
)
def test_files_that_are_not_whole(tmp_path, text, error):
    (tmp_path / "x.txt").write_text(text)
    with pytest.raises(GraphDataError, match=rf"x\.txt {error}"):
        read_source(tmp_path / "x.txt")
