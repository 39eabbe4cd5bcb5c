"""Networks of KONECT are what their lines say, or one error that names the line."""

import bz2

import numpy as np
import pytest
from input_checks import check_all, check_parts, rows

from mpigraph.errors import GraphDataError
from mpigraph.formats import edge_lists
from mpigraph.formats.readers import read_source


def columns_of(source):
    """The ends of the edges of the one relation, and their features."""
    feats = next(iter(source.edge_feats.values()))
    return [rows(end).tolist() for end in source.edges[0]], {n: rows(f.values).tolist() for n, f in feats.items()}


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


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("% asym unweighted\n% 2 3 3\n1 2\n", "has 1 edges, but its second line says 2"),
        ("% asym unweighted\n% 1 3 3\n1 4\n", "line 3: destination must be one of 1 to 3"),
        ("% asym unweighted\n1 1\n% x\n\n0 1\n", "line 5: source must be one of 1 to"),
        ("% asym unweighted\n1 1\n1 -2\n", "line 3: destination must be one of 1 to"),
        ("% asym unweighted\n1 1\n1\n", "line 3: must have source .int64., destination .int64. .got '1'"),
        ("% asym unweighted\n1\n", "line 2: must have"),
        ("% asym unweighted\n1 1\n1 1 1\n", "line 3: must have"),
        ("% asym unweighted\n1 2 3 4 5\n", "line 2: must have"),
        ("% asym unweighted\n1 a\n", "line 2: must have"),
        ("% asym weighted\n1 1 1 nan\n", "line 2: time must be a number"),
        ("% asym weighted\n1 1 inf\n", "line 2: weight must be a number"),
        ("% asym unweighted\n1 99999999999999999999\n", "line 2: must have"),
    ],
)
def test_what_is_no_network_is_one_error(tmp_path, text, error):
    (tmp_path / "out.net").write_text(text)
    with pytest.raises(GraphDataError, match=rf"out\.net.*{error}"):
        read_source(tmp_path / "out.net")


@pytest.mark.parametrize(("text", "counts"), [("% bip x", (0, 0)), ("% sym x\n", (0,)), ("% sym x\n1 1", (1,))])
def test_the_smallest_networks(tmp_path, text, counts):
    (tmp_path / "out.net").write_text(text)
    source = read_source(tmp_path / "out.net")
    check_all(source)
    assert source.num_nodes == counts and len(source.edges[0][0]) == text.count("1 1")
    assert source.edges[0][0].dtype == np.int64
