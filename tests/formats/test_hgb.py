"""Graphs of HGB are what their lines say, or one error that names the line."""

import json

import numpy as np
import pytest
from input_checks import check_all, check_parts, rows

from mpigraph.errors import GraphDataError
from mpigraph.formats import edge_lists
from mpigraph.formats.readers import read_source

INFO = {
    "node.dat": {"node type": {"0": "paper", "1": "author"}},
    "link.dat": {
        "link type": {
            "0": {"start": 0, "end": 0, "meaning": "paper-cite-paper"},
            "1": {"start": 0, "end": 1, "meaning": "paper-author"},
            "2": {"start": 1, "end": 0, "meaning": "author->paper"},
        }
    },
}
FREEBASE = "a line\n\nTYPE\tMEANING\n0\t\tpaper\n1\t\tauthor\n\nLINK\tSTART\tEND\tMEANING\n0\t0\t0\tpaper-cite-paper\n"
FREEBASE += "1\t0\t1\t\tpaper-author\n2\t1\t0\tauthor->paper\n\nmore\n"
NODES = '0\ta title, with commas\t0\t1,2.5\n2\tann\t1\n1\té "x\t0\t3,4\n3\t\t1\n4\tz\t0\t5,6\n'
LINKS = "0\t1\t0\t1.0\n4\t0\t0\t0.5\n1\t3\t1\t1.0\n2\t4\t2\t2\n"
LABELS = {"label.dat": "0\ta\t0\t2\n", "label.dat.test": "4\tz\t0\t0\n"}


def write(folder, info=INFO, nodes=NODES, links=LINKS, labels=LABELS, **others):
    folder.mkdir(exist_ok=True)
    files = {"info.dat": info if isinstance(info, str) else json.dumps(info), "node.dat": nodes, "link.dat": links}
    for name, text in (files | labels | others).items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("info", [INFO, FREEBASE], ids=["json", "tables"])
@pytest.mark.parametrize("block", [30, 1 << 20])
def test_a_small_graph(tmp_path, monkeypatch, info, block):
    monkeypatch.setattr(edge_lists, "_BLOCK_BYTES", block)
    source = read_source(write(tmp_path / "g", info, **{"link.dat.test": ""}))
    check_all(source)
    assert dict(zip(source.schema.ntypes, source.num_nodes, strict=True)) == {"author": 2, "paper": 3}
    edges = {
        relation: [rows(end).tolist() for end in ends]
        for relation, ends in zip(source.schema.relations, source.edges, strict=True)
    }
    assert edges == {
        ("author", "to", "paper"): [[0], [2]],
        ("paper", "cite", "paper"): [[0, 2], [1, 0]],
        ("paper", "to", "author"): [[1], [1]],
    }
    weights = {key: rows(feats["weight"].values).tolist() for key, feats in source.edge_feats.items()}
    assert weights == {"author:to:paper": [2], "paper:cite:paper": [1, 0.5], "paper:to:author": [1]}
    paper = source.node_feats["paper"]
    assert rows(paper["feat"].values).tolist() == [[1, 2.5], [3, 4], [5, 6]] and paper["feat"].dtype == "float32"
    assert rows(paper["label"].values).tolist() == [2, -1, 0]
    assert rows(paper["train_mask"].values).tolist() == [1, 0, 0] and paper["train_mask"].dtype == "bool"
    assert rows(paper["test_mask"].values).tolist() == [0, 0, 1] and not source.node_feats["author"]
    assert source.left_out == ("names of nodes in node.dat", "link.dat.test")
    check_parts(source, tmp_path / "parts")


def test_lines_in_another_order_are_the_same_graph(tmp_path):
    shuffled = "".join(reversed(NODES.splitlines(keepends=True))).replace("\n", "\r\n")
    first, second = (read_source(write(tmp_path / name, nodes=text)) for name, text in (("a", NODES), ("b", shuffled)))
    for ntype, feats in first.node_feats.items():
        for name, feature in feats.items():
            assert np.array_equal(rows(feature.values), rows(second.node_feats[ntype][name].values))
    assert [rows(end).tolist() for ends in first.edges for end in ends] == [
        rows(end).tolist() for ends in second.edges for end in ends
    ]


def test_several_labels_of_a_node(tmp_path):
    labels = {"label.dat": "0\ta\t0\t2,0\n1\tb\t0\t1\n"}
    feats = read_source(write(tmp_path / "g", labels=labels)).node_feats["paper"]
    assert rows(feats["label"].values).tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 0]]
    assert rows(feats["train_mask"].values).tolist() == [1, 1, 0] and not rows(feats["test_mask"].values).any()


def test_relations_of_one_name_have_their_meaning_and_number(tmp_path):
    info = json.loads(json.dumps(INFO))
    info["link.dat"]["link type"]["0"] = {"start": "0", "end": "1", "meaning": "paper-author"}
    source = read_source(write(tmp_path / "g", info, links=""))
    names = [relation[1] for relation in source.schema.relations]
    assert names == ["to", "paper-author-0", "paper-author-1"] and source.edge_counts == [0, 0, 0]


@pytest.mark.parametrize(
    ("file", "text", "error"),
    [
        ("node.dat", NODES + "7\tx\t0\t1,2\n", "line 6: ids must be 0 to 5, each once .got 7"),
        ("node.dat", NODES + "4\tx\t0\t1,2\n", "line 6: ids must be 0 to 5, each once .got 4"),
        ("node.dat", NODES + "-1\tx\t0\t1,2\n", "line 6: must have id, name and a type"),
        ("node.dat", NODES + "5\tx\t2\t1,2\n", "line 6: must have id, name and a type of .0, 1."),
        ("node.dat", NODES + "5 x 0\n", "line 6: must have id, name"),
        ("node.dat", NODES + "5\tx\t0\t1\n", "line 6: must have numbers"),
        ("node.dat", NODES + "5\tx\t0\t1,x\n", "line 6: must have numbers"),
        ("node.dat", NODES + "5\tx\t0\n", "line 6: must have 2 numbers"),
        ("node.dat", NODES + "5\tx\t1\t1\n", "line 6: must have no numbers"),
        ("link.dat", LINKS + "0\t5\t0\t1\n", "line 5: destination is not in node.dat"),
        ("link.dat", LINKS + "-1\t0\t0\t1\n", "line 5: source is not in node.dat"),
        ("link.dat", LINKS + "0\t1\t3\t1\n", "line 5: the third field must be a type"),
        ("link.dat", LINKS + "0\t2\t0\t1\n", "line 5: destination is not of node type 0"),
        ("link.dat", LINKS + "0\t1\t0\n", "line 5: must have source"),
        ("label.dat", "0\ta\t0\tx\n", "line 1: labels must be integers"),
        ("label.dat", "0\ta\t0\n", "line 1: labels must be integers"),
        ("label.dat", "0\ta\t0\t1,1\n", "line 1: labels must be integers"),
        ("label.dat", "0\ta\t1\t1\n", "line 1: node 0 of type 1 is not there"),
        ("label.dat", "9\ta\t0\t1\n", "line 1: node 9 of type 0 is not there"),
        ("label.dat.test", "0\ta\t0\t1\n", "line 1: node 0 of type 0 is .* labelled twice"),
        ("label.dat", "0\ta\t0\t1,99999999\n", "several labels of 100000000 classes .allowed"),
        ("info.dat", "{", "cannot be read: no names of node types and links"),
        ("info.dat", "", "cannot be read: no names of node types and links"),
        ("info.dat", '{"node.dat": 3}', "cannot be read: no names of node types and links"),
    ],
)
def test_what_is_no_graph_is_one_error(tmp_path, file, text, error):
    folder = write(tmp_path / "g")
    (folder / file).write_text(text)
    with pytest.raises(GraphDataError, match=error) as raised:
        read_source(folder)
    assert "label.dat" in str(raised.value) if "label" in file else file in str(raised.value)


def test_the_smallest_graphs(tmp_path):
    source = read_source(write(tmp_path / "none", nodes="", links="", labels={}))
    check_all(source)
    assert source.num_nodes == (0, 0) and source.edge_counts == [0, 0, 0]
    source = read_source(write(tmp_path / "one", nodes="0\tx\t1", links="", labels={"label.dat": "0\tx\t1\t0"}))
    assert source.num_nodes == (1, 0) and rows(source.node_feats["author"]["label"].values).tolist() == [0]
