"""The partition configuration: round trip, wrong paths, and every kind of damage."""

import json
from dataclasses import replace

import pytest

from mpigraph.errors import PartitionError
from mpigraph.metadata.book import RangeBook
from mpigraph.metadata.schema import Schema
from mpigraph.storage.part_config import FeatureInfo, PartConfig, SharedFeature


def config():
    book = RangeBook(
        Schema(("a", "b"), (("a", "x", "b"), ("b", "y", "b"))),
        ([0, 2, 2, 5], [0, 0, 1, 1]),
        ([0, 1, 2, 3], [0, 0, 4, 4]),
    )
    feats = {"a": {"feat": FeatureInfo("bfloat16", (3, 2))}, "b": {}}
    return PartConfig("g", "metis", book, feats, {"a:x:b": {}, "b:y:b": {}}, {"edges_cut": 1})


@pytest.mark.parametrize("name", ["mine.npz", "mine.h5", "folder", "edges.csv"])
def test_a_graph_that_is_not_cut_is_told_to_be(tmp_path, name: str):
    path = tmp_path / name
    path.mkdir() if name == "folder" else path.write_bytes(b"PK\x03\x04\xff")
    if path.is_dir():
        (path / "meta.json").write_text('{"num_nodes": 3}')  # as generate and export write it
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
    assert (content["ntypes"], content["relations"]) == (["a", "b"], ["a:x:b", "b:y:b"])
    assert content["nodes_of_parts"] == [[2, 0], [0, 1], [3, 0]]
    assert content["edges_of_parts"] == [[1, 0], [1, 4], [1, 0]]
    assert content["part-0"]["part_graph"] == "part0/graph.h5"
    assert content["num_nodes"] == 6 and content["num_edges"] == 7


def test_what_relations_share(tmp_path):
    one = {"a:x:b": {"w": FeatureInfo("float32", ())}, "b:y:b": {}}
    for features in ({}, {"edge_features": one, "shared_features": (SharedFeature("w", (0,)),)}):
        written = replace(config(), shared=(0,), **features)
        read = PartConfig.read(written.write(tmp_path))
        assert (read.shared, read.shared_features) == (written.shared, written.shared_features)
        assert read.edge_features == written.edge_features


CHANGED = "damaged partition configuration: it was changed after it was written"


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda c: c.pop("ntypes"), CHANGED),
        (lambda c: c.pop("checksum"), CHANGED),
        (lambda c: c.update(format_version=2), r"format version 2 \(this library reads 6\): partition the graph again"),
        (lambda c: c.update(num_nodes=7), CHANGED),
        (lambda c: c["nodes_of_parts"][0].reverse(), CHANGED),
        (lambda c: c.update(report=7), "damaged partition configuration: 'int' object"),
        (lambda c: c.pop("format"), "not a partition configuration of this library"),
        (
            lambda c: (c.pop("format"), c["part-0"].update(part_graph="part0/graph.dgl")),
            "written by DGL: .* keeps its parts",
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
    "text, message", [("{", "not a valid JSON"), ("[]", "not a partition configuration"), ("\x00", "not a valid JSON")]
)
def test_files_that_are_no_configuration(tmp_path, text, message):
    (tmp_path / "g.json").write_text(text)
    with pytest.raises(PartitionError, match=message):
        PartConfig.read(tmp_path / "g.json")
    with pytest.raises(PartitionError, match=rf"cannot read the .*: No such .* \(the folder {tmp_path} exists\)$"):
        PartConfig.read(tmp_path / "nowhere" / "none.json")
