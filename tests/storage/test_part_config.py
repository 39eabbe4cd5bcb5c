"""The partition configuration: round trip, wrong paths, and every kind of damage."""

import json
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from mpigraph.errors import InvalidArgumentError, PartitionError
from mpigraph.metadata.book import RangeBook
from mpigraph.metadata.schema import Schema
from mpigraph.storage import part_config
from mpigraph.storage.part_config import FeatureInfo, PartConfig


def config():
    book = RangeBook(
        Schema(("a", "b"), (("a", "x", "b"), ("b", "y", "b"))),
        ([0, 2, 2, 5], [0, 0, 1, 1]),
        ([0, 1, 2, 3], [0, 0, 4, 4]),
    )
    feats = {"a": {"feat": FeatureInfo("bfloat16", (3, 2))}, "b": {}}
    return PartConfig(
        "g",
        "metis",
        book,
        feats,
        {"a:x:b": {}, "b:y:b": {}},
        PartConfig.default_files(3),
        {"edges_cut": 1},
        seals=PartConfig.default_files(3),
    )


@pytest.mark.parametrize("name", ["mine.npz", "mine.h5", "folder", "edges.csv"])
def test_a_graph_that_is_not_cut_is_told_to_be(tmp_path, name: str):
    path = tmp_path / name
    path.mkdir() if name == "folder" else path.write_bytes(b"PK\x03\x04\xff")
    with pytest.raises(
        PartitionError, match=f"partition the graph first, by python -m mpigraph partition {path} --parts"
    ):
        PartConfig.read(path)


def test_the_folder_of_a_partitioned_graph_says_which_file_it_is(tmp_path):
    path = config().write(tmp_path)
    with pytest.raises(PartitionError, match=f"give the configuration of a partitioned graph, as {path}"):
        PartConfig.read(tmp_path)


def test_configuration_round_trip(tmp_path):
    written = config()
    read = PartConfig.read(written.write(tmp_path))
    assert (read.graph_name, read.part_method, read.num_parts, read.schema) == ("g", "metis", 3, written.schema)
    for tables, expected in (
        (read.book.node_offsets, written.book.node_offsets),
        (read.book.edge_offsets, written.book.edge_offsets),
    ):
        assert [o.tolist() for o in tables] == [t.tolist() for t in expected]
    assert read.node_features == written.node_features and read.edge_features == written.edge_features
    assert read.checksum == written.checksum
    assert read.report == {"edges_cut": 1} and read.path == tmp_path / "g.json"
    assert read.part_path(2, "node_feats") == tmp_path / "part2" / "node_feat.h5"
    content = json.loads((tmp_path / "g.json").read_text())
    assert content["node_map"] == {"a": [[0, 2], [2, 2], [3, 6]], "b": [[2, 2], [2, 3], [6, 6]]}
    assert content["part-0"]["part_graph"] == "part0/graph.h5" and content["halo_hops"] == 0
    assert content["num_nodes"] == 6 and content["num_edges"] == 7


EDGE_MAP = {"a:x:b": [[0, 1], [1, 2], [6, 7]], "b:y:b": [[1, 1], [2, 6], [7, 7]]}
SHARED = {"ids": [0], "names": ["a:x:b"], "edges": [[1], [1], [1]]}


def written_with_columns(folder, change=lambda content: None):
    """Write a graph whose first relation shares tables, with a change and the checksum that fits it."""
    path = replace(config(), shared=(0,)).write(folder)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content | {"checksum": part_config._checksum(content)}))
    return path


def as_version_3(content):
    content.update(format_version=3, edge_map=EDGE_MAP, etypes={"a:x:b": 0, "b:y:b": 1}, shared_relations=[0])
    content["edge_features"]["a:x:b"] = {}


@pytest.mark.parametrize("change", [lambda content: None, as_version_3])
def test_relations_that_share_tables_are_columns(tmp_path, change):
    written = replace(config(), shared=(0,))
    content = json.loads(written.write(tmp_path).read_text())
    assert (content["etypes"], content["shared_relations"]) == ({"b:y:b": 1}, SHARED)
    assert content["edge_map"] == {"b:y:b": EDGE_MAP["b:y:b"]}
    read = PartConfig.read(written_with_columns(tmp_path, change))
    assert (read.schema, read.shared, read.edge_features) == (written.schema, (0,), written.edge_features)
    assert np.array_equal(read.book.edge_table, written.book.edge_table)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda c: c.update(ids=[1]), "type ids must be 0 to 1"),
        (lambda c: c.update(ids=[0, 0]), "damaged"),
        (lambda c: c.update(ids=[[0]]), "damaged"),
        (lambda c: c.update(names=["a:x"]), "edge type 'a:x' is not of the form"),
        (lambda c: c.update(names=["b:y:b"]), "is given twice"),
        (lambda c: c.update(names=["a:x:c"]), "node type 'c' of relation"),
        (lambda c: c.update(names=[7]), "damaged"),
        (lambda c: c.update(names=[]), "damaged"),
        (lambda c: c.update(edges=[[1], [1], [2]]), "of 'b:y:b' is inconsistent"),
        (lambda c: c.update(edges=[[1], [1], [-1]]), "numbers of 0 to"),
        (lambda c: c.update(edges=[[2**62], [2**62], [2**62]]), "numbers of edges for each of 3 parts"),
        (lambda c: c.update(edges=[[1], [1]]), "numbers of edges for each of 3 parts"),
        (lambda c: c.update(edges=[[1], [1], [1.5]]), "numbers of 0 to"),
        (lambda c: c.pop("edges"), "damaged partition configuration.*edges"),
    ],
)
def test_damaged_columns(tmp_path, change, message):
    path = written_with_columns(tmp_path, lambda content: change(content["shared_relations"]))
    with pytest.raises(PartitionError, match=message):
        PartConfig.read(path)


def test_damaged_shared_features(tmp_path):
    """Each feature of a relation is given once, and of relations that share tables."""
    one = {"name": "w", "dtype": "float32", "shape": [], "relations": [0]}

    def read(*features):
        return PartConfig.read(written_with_columns(tmp_path, lambda c: c.update(shared_features=list(features))))

    assert read(one).edge_features["a:x:b"]["w"].dtype == "float32"
    for features, message in [
        ([one, one], "feature 'w' of 'a:x:b' is given twice"),
        ([one | {"relations": []}], "of relations that share no tables"),
        ([one | {"relations": [0, 1]}], "of relations that share no tables"),
        ([one | {"relations": [0, 0]}], "damaged"),
        ([one | {"relations": [2**70]}], "damaged"),
        ([one | {"name": [7]}], "damaged"),
    ]:
        with pytest.raises(PartitionError, match=message):
            read(*features)


def test_wrong_part_paths(tmp_path):
    read = PartConfig.read(config().write(tmp_path))
    with pytest.raises(PartitionError, match="part 3 does not exist"):
        read.part_path(3, "part_graph")
    with pytest.raises(InvalidArgumentError, match="which must be one of"):
        read.part_path(0, "graph")


@pytest.mark.parametrize(
    ("link", "target", "inside"),
    [
        ("part1", "part0", True),
        ("part1/graph.h5", "../part0/graph.h5", True),
        ("part1", "..", False),
        ("part1/graph.h5", "../../outside.h5", False),
        ("part1/graph.h5", "graph.h5", False),
    ],
)
def test_links_may_lead_to_files_of_the_folder_alone(tmp_path, link: str, target: str, inside: bool) -> None:
    folder = tmp_path / "folder"
    config().write(folder)
    (tmp_path / "another_name").symlink_to(folder)
    (folder / link).parent.mkdir(exist_ok=True)
    (folder / link).symlink_to(target)
    read = PartConfig.read(tmp_path / "another_name" / "g.json")
    assert read.part_path(0, "part_graph") == read.directory / "part0" / "graph.h5"
    with nullcontext() if inside else pytest.raises(PartitionError, match="part1/graph.h5: a link leads out"):
        assert read.part_path(1, "part_graph") == read.directory / "part1" / "graph.h5"


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda c: c.pop("node_map"), "key 'node_map' is missing"),
        (lambda c: c.pop("part-1"), "damaged partition configuration.*part-1"),
        (lambda c: c.pop("node_features"), "damaged partition configuration.*node_features"),
        (lambda c: c.update(format_version=7), "format version 7"),
        (lambda c: c.update(num_nodes=7), "node_map covers 6 ids, expected 7"),
        (lambda c: c.update(num_parts=2), r"must have 2 ranges"),
        (lambda c: c["node_map"].pop("a"), "node_map has the types"),
        (lambda c: c.update(edge_map=[[0, 2]]), "edge_map must be a JSON object, with types as keys"),
        (lambda c: c["node_map"].update(a=[[0, 2], [2, 2], [4, 7]]), "inconsistent"),
        (lambda c: c["node_map"].update(a=[[2, 0], [2, 2], [3, 6]]), "ends before it begins"),
        (lambda c: c["edge_map"].update({"a:x:b": "no"}), "damaged|must have"),
        (lambda c: c.update(ntypes={"a": 0, "b": 2}), "type ids must be 0 to 1"),
        (lambda c: c["node_features"].update(z={}), "unknown type 'z'"),
        (
            lambda c: c["node_features"].update(a={"\ud800": {"dtype": "int8", "shape": []}}),
            "feature of 'a' must be with",
        ),
        (lambda c: c.update(ntypes={"\ud800": 0, "b": 1}), "node type's name must be without surrogates"),
        (lambda c: c.update(etypes={"a:~78:b": 0}), r"edge types must be escaped as \['a:x:b'\] .got \['a:~78:b'\]"),
        (lambda c: c.pop("format"), "not a partition configuration of this library"),
        (
            lambda c: (c.pop("format"), c["part-0"].update(part_graph="part0/graph.dgl")),
            r"written by DGL .*graph\.dgl",
        ),
    ],
)
def test_damaged_configurations(tmp_path, change, message):
    path = config().write(tmp_path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(PartitionError, match=message) as caught:
        PartConfig.read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "text, message", [("{", "not a valid JSON"), ("[]", "no object"), ("\x00", "not a valid JSON")]
)
def test_files_that_are_no_configuration(tmp_path, text, message):
    (tmp_path / "g.json").write_text(text)
    with pytest.raises(PartitionError, match=message):
        PartConfig.read(tmp_path / "g.json")
    with pytest.raises(PartitionError, match="cannot read the partition configuration"):
        PartConfig.read(tmp_path / "none.json")
