"""Matrix Market, KONECT and SNAP: files are what their lines say, or one error that names the line."""

import bz2
import gzip
import logging

import numpy as np
import pytest
from input_checks import check_all, check_parts, rows, values_of
from scipy import io, sparse

from mpigraph.errors import GraphDataError
from mpigraph.formats import edge_lists
from mpigraph.formats.readers import read_source

RNG = np.random.default_rng(0)

HEAD = "%%MatrixMarket matrix coordinate real general\n"
SYMMETRIC = HEAD.replace("general", "symmetric")
DIRECTED = "# Directed graph (each unordered pair of nodes is saved once): x.txt\n# Nodes: 4 Edges: 3\n"
UNDIRECTED = "# Undirected graph: ../../output/x.txt\n# A network\n# Nodes: 4 Edges: 3\n"
NAMES = "# FromNodeId\tToNodeId\n"


def entries_of(source):
    """The edges of the one relation, sorted, with their weights."""
    ends = [rows(end) for end in source.edges[0]]
    feats = next(iter(source.edge_feats.values()), {})
    weights = [rows(feats["weight"].values)] if feats else []
    return sorted(zip(*ends, *weights, strict=True))


@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric"])
@pytest.mark.parametrize("field", ["pattern", "integer", "real"])
@pytest.mark.parametrize("block", [40, 1 << 20])
def test_a_square_matrix_is_what_scipy_wrote(tmp_path, monkeypatch, symmetry, field, block):
    monkeypatch.setattr(edge_lists, "_BLOCK_BYTES", block)
    whole = np.triu(RNG.integers(0, 4, (9, 9)), symmetry == "skew-symmetric").astype(float if field == "real" else int)
    matrix = whole if symmetry == "general" else whole + np.triu(whole, 1).T * (-1 if symmetry[1] == "k" else 1)
    path = tmp_path / "m.mtx"
    io.mmwrite(path, sparse.coo_array(matrix), "one\ntwo", field, symmetry=symmetry)
    source = read_source(path)
    check_all(source)
    assert source.num_nodes == (9,) and source.schema.is_homogeneous
    ends = [end.tolist() for end in np.nonzero(matrix)]
    weights = [] if field == "pattern" else [matrix[tuple(ends)].tolist()]
    assert entries_of(source) == sorted(zip(*ends, *weights, strict=True))
    assert source.has_reverse == (symmetry != "general")
    if field != "pattern":
        assert source.edge_feats["_N:_E:_N"]["weight"].dtype == ("int64" if field == "integer" else "float64")


def test_other_matrices_have_two_types(tmp_path):
    (tmp_path / "m.mtx").write_bytes(
        b"%%matrixmarket MATRIX Coordinate Pattern General\r\n%\r\n3 5 2\r\n\r\n3 5\r\n% between\r\n 1\t4 \r\n"
    )
    source = read_source(tmp_path / "m.mtx")
    assert dict(zip(source.schema.ntypes, source.num_nodes, strict=True)) == {"row": 3, "column": 5}
    assert source.schema.relations == (("row", "to", "column"),)
    assert entries_of(source) == [(0, 3), (2, 4)]
    check_parts(source, tmp_path / "parts")


@pytest.mark.parametrize("pack", [gzip, bz2])
def test_packed_files(tmp_path, pack):
    text = b"%%MatrixMarket matrix coordinate pattern symmetric\n2 2 2\n1 1\n2 1\n"
    path = tmp_path / f"m.mtx.{'gz' if pack is gzip else 'bz2'}"
    path.write_bytes(pack.compress(text))
    assert entries_of(read_source(path)) == [(0, 0), (0, 1), (1, 0)]
    path.write_bytes(pack.compress(text)[:-9])
    with pytest.raises(GraphDataError, match=r"m\.mtx"):
        read_source(path)


@pytest.mark.parametrize(("sizes", "nodes"), [("0 0 0", 0), ("1 1 0", 1), ("1 1 1\n1 1 5", 1)])
def test_the_smallest_matrices(tmp_path, sizes, nodes):
    (tmp_path / "m.mtx").write_text(HEAD + sizes)
    source = read_source(tmp_path / "m.mtx")
    check_all(source)
    assert source.num_nodes == (nodes,) and len(entries_of(source)) == sizes.count("\n")


def columns_of(source):
    """The ends of the edges of the one relation, and their features."""
    feats = next(iter(source.edge_feats.values()))
    return [rows(end).tolist() for end in source.edges[0]], values_of(feats)


def test_directed_edges_with_weights_and_times(tmp_path):
    path = tmp_path / "out.net"
    path.write_bytes(
        b"% asym posweighted\r\n% 3 4 4\r\n1 2 0.5 1000000000\r\n2\t2\t1 1000000001\r\n 3  1 2  1000000001 \r\n"
    )
    source = read_source(path)
    check_all(source)
    ends, feats = columns_of(source)
    assert source.num_nodes == (4,) and ends == [[0, 1, 2], [1, 1, 0]]
    assert feats == {"weight": [0.5, 1, 2], "time": [1000000000, 1000000001, 1000000001]}
    assert [source.edge_feats["_N:_E:_N"][name].dtype for name in ("weight", "time")] == ["float64", "int64"]
    assert not source.has_reverse
    check_parts(source, tmp_path / "parts")


@pytest.mark.parametrize("block", [20, 1 << 20])
def test_undirected_edges_go_both_ways_and_loops_once(tmp_path, monkeypatch, block):
    monkeypatch.setattr(edge_lists, "_BLOCK_BYTES", block)
    (tmp_path / "out.net").write_text("% sym signed\n1 2 -1\n3 3 1\n1 3 1\n")
    source = read_source(tmp_path / "out.net")
    ends, feats = columns_of(source)
    assert source.num_nodes == (3,) and source.has_reverse
    assert ends == [[0, 2, 0, 1, 2], [1, 2, 2, 0, 0]] and feats == {"weight": [-1, 1, 1, -1, 1]}


def test_both_sides_of_a_bipartite_network_begin_at_one(tmp_path):
    folder = tmp_path / "net"
    folder.mkdir()
    (folder / "out.net").write_text("% bip unweighted\n% 3 2 5\n1 5\n2 1\n2 2\n")
    for name in ("meta.net", "README.net", "ent.net.left"):
        (folder / name).write_text("% x")
    source = read_source(folder)
    assert dict(zip(source.schema.ntypes, source.num_nodes, strict=True)) == {"left": 2, "right": 5}
    assert source.schema.relations == (("left", "to", "right"),)
    assert columns_of(source) == ([[0, 1, 1], [4, 0, 1]], {})
    assert source.left_out == ("README.net", "ent.net.left", "meta.net")
    (folder / "out.other").write_text("% bip unweighted\n1 1\n")
    with pytest.raises(GraphDataError, match=r"several networks, out\.net, out\.other"):
        read_source(folder)


def test_packed_files_and_numbers_of_edges_that_count_multiplicities(tmp_path):
    (tmp_path / "out.net.bz2").write_bytes(bz2.compress(b"% asym positive\n% 5 2 2\n1 2 3\n2 1 2\n"))
    assert columns_of(read_source(tmp_path / "out.net.bz2")) == ([[0, 1], [1, 0]], {"weight": [3, 2]})


def test_large_integers_do_not_become_others(tmp_path):
    (tmp_path / "out.net").write_text(f"% asym weighted\n1 2 {2**53}\n1 2 1\n")
    assert read_source(tmp_path / "out.net").edge_feats["_N:_E:_N"]["weight"].dtype == "float64"
    (tmp_path / "out.net").write_text(f"% asym weighted\n1 2 {2**53 - 1}\n1 2 -3\n")
    assert columns_of(read_source(tmp_path / "out.net"))[1] == {"weight": [2**53 - 1, -3]}


@pytest.mark.parametrize(("text", "counts"), [("% bip x", (0, 0)), ("% sym x\n", (0,)), ("% sym x\n1 1", (1,))])
def test_the_smallest_networks(tmp_path, text, counts):
    (tmp_path / "out.net").write_text(text)
    source = read_source(tmp_path / "out.net")
    check_all(source)
    assert source.num_nodes == counts and len(source.edges[0][0]) == text.count("1 1")
    assert source.edges[0][0].dtype == np.int64


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
    ("file", "text", "error"),
    [
        ("m.mtx", HEAD, "after the comments must come numbers of rows"),
        ("m.mtx", "%%MatrixMarket", "line 1: must be"),
        ("m.mtx", "", "line 1: must be"),
        ("m.mtx", "3", "line 1: must be"),
        ("m.mtx", "% x\n3 3 0\n", "line 1: must be"),
        ("m.mtx", HEAD + "3 3\n", "after the comments must come numbers of rows"),
        ("m.mtx", HEAD + "3 3 x\n", "after the comments must come numbers of rows"),
        ("m.mtx", HEAD + "-3 3 1\n1 1 1\n", "after the comments must come numbers of rows"),
        ("m.mtx", HEAD + "3 3 2\n1 1 1\n", "has 1 entries, but its line of sizes says 2"),
        ("m.mtx", HEAD + "3 3 0\n1 1 1\n", "has 1 entries, but its line of sizes says 0"),
        ("m.mtx", HEAD + "3 3 2\n1 1 1\n4 1 1\n", "line 4: row must be one of 1 to 3"),
        ("m.mtx", HEAD + "% x\n3 3 2\n\n1 1 1\n1 0 1\n", "line 6: column must be one of 1 to 3"),
        ("m.mtx", HEAD + "3 3 2\n1 1 1\n1 -1 1\n", "line 4: column must be one of 1 to 3"),
        (
            "m.mtx",
            HEAD + "3 3 2\n1 1 1\n1 1\n",
            "line 4: must have row .int64., .*weight .float64. .got '1 1'",
        ),
        ("m.mtx", HEAD + "3 3 2\n1 1 1\n1 1 1 1\n", "line 4: must have"),
        ("m.mtx", HEAD + "3 3 2\n1 x 1\n1 1 1\n", "line 3: must have"),
        ("m.mtx", HEAD + "3 3 1\n99999999999999999999 1 1\n", "line 3: must have"),
        (
            "m.mtx",
            SYMMETRIC + "3 3 2\n2 1 1\n1 3 1\n",
            "line 4: entries .* in both triangles",
        ),
        ("m.mtx", SYMMETRIC + "3 4 1\n2 1 1\n", "must be square"),
        ("m.mtx", HEAD.replace("general", "hermitian") + "3 3 0\n", "must be one of"),
        ("m.mtx", HEAD.replace("real", "complex") + "3 3 0\n", "must be one of"),
        ("m.mtx", HEAD.replace("coordinate", "array") + "3 3\n", "dense matrix"),
        ("m.mtx", HEAD + "3 3 1\n1 1 " + "1" * 2000 + "\n", "line 3: longer than"),
        ("out.net", "% asym unweighted\n% 2 3 3\n1 2\n", "has 1 edges, but its second line says 2"),
        ("out.net", "% asym unweighted\n% 1 3 3\n1 4\n", "line 3: destination must be one of 1 to 3"),
        ("out.net", "% asym unweighted\n1 1\n% x\n\n0 1\n", "line 5: source must be one of 1 to"),
        ("out.net", "% asym unweighted\n1 1\n1 -2\n", "line 3: destination must be one of 1 to"),
        ("out.net", "% asym unweighted\n1 1\n1\n", "line 3: must have source .int64., destination .int64. .got '1'"),
        ("out.net", "% asym unweighted\n1\n", "line 2: must have"),
        ("out.net", "% asym unweighted\n1 1\n1 1 1\n", "line 3: must have"),
        ("out.net", "% asym unweighted\n1 2 3 4 5\n", "line 2: must have"),
        ("out.net", "% asym unweighted\n1 a\n", "line 2: must have"),
        ("out.net", "% asym unweighted\n1 2\n1 +-2\n", "line 3: must have"),
        ("out.net", "% asym unweighted\r1 2\r1\r3\r", "line 3: must have"),
        ("out.net", "% asym weighted\n1 1 1 nan\n", "line 2: time must be a number"),
        ("out.net", "% asym weighted\n1 1 inf\n", "line 2: weight must be a number"),
        ("out.net", "% asym unweighted\n1 99999999999999999999\n", "line 2: must have"),
        ("x.txt", DIRECTED + "0\t1\n1\t2\n", "has 2 edges, but its comments say 3"),
        ("x.txt", DIRECTED + "0\t1\n1\t2\n2\t3\n3\t0\n", "has 4 edges, but its comments say 3"),
        ("x.txt", DIRECTED + "0\t1\n2\t3\n4\t0\n", "has 5 nodes, but its comments say 4"),
    ],
)
def test_wrong_text_is_one_error_with_its_line(tmp_path, monkeypatch, file, text, error):
    monkeypatch.setattr(edge_lists, "_BLOCK_BYTES", 1000)
    (tmp_path / file).write_text(text)
    with pytest.raises(GraphDataError, match=rf"{file}.*{error}"):
        read_source(tmp_path / file)


@pytest.mark.parametrize("block", [15, 16, 17, 1000])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_ends_of_lines_and_signs_are_those_of_any_program(tmp_path, monkeypatch, block, end):
    path = tmp_path / "out.net"
    text = "% sym signed\n1 2 +1\n\n \t\n% 1 3\n+2\t3 -1\n 3 1 +1e+0"
    path.write_text(text.replace("\n", end), newline="")
    monkeypatch.setattr(edge_lists, "_BLOCK_BYTES", block)
    source = read_source(path)
    (src, dst), feats = source.edges[0], source.edge_feats["_N:_E:_N"]
    assert rows(src).tolist() == [0, 1, 2, 1, 2, 0] and rows(dst).tolist() == [1, 2, 0, 0, 1, 2]
    assert rows(feats["weight"].values).tolist() == [1, -1, 1] * 2
