"""Configurations of GraphStorm's gconstruct: what they describe is what is partitioned."""

import json

import h5py
import numpy as np
import pyarrow as pa
import pytest
from input_checks import check_all, check_parts, rows, values_of
from pyarrow import parquet

from mpigraph.errors import GraphDataError
from mpigraph.formats.readers import read_source

PAPERS = {
    "id": ["p3", "p1", "p2", "p10"],
    "emb": [[0.5, 1.0], [1.5, 2.0], [2.5, 3.0], [4.5, 5.0]],
    "year": [2000, 2010, 2005, 2020],
    "venue": ["B", "A", "B", "C"],
    "label": [0.0, 1.0, float("nan"), 2.0],
}


def conf(**changes):
    """A configuration of papers in two parquet files and authors in csv, with one relation each way."""
    entry = {
        "version": "gconstruct-v0.1",
        "nodes": [
            {
                "node_type": "paper",
                "format": {"name": "parquet"},
                "files": "papers_*.parquet",
                "node_id_col": "id",
                "features": [
                    {"feature_col": "emb"},
                    {"feature_col": ["year", "emb"], "feature_name": "both", "out_dtype": "float16"},
                    {"feature_col": "year", "feature_name": "scaled", "transform": {"name": "max_min_norm"}},
                    {"feature_col": "venue", "transform": {"name": "to_categorical"}},
                ],
                "labels": [
                    {
                        "label_col": "label",
                        "task_type": "classification",
                        "custom_split_filenames": {"train": "train.json", "valid": "valid.json"},
                    }
                ],
            },
            {"node_type": "author", "format": {"name": "csv", "separator": "|"}, "files": ["authors.csv"]},
        ],
        "edges": [
            {
                "relation": ["author", "writes", "paper"],
                "format": {"name": "json"},
                "files": "writes.json",
                "source_id_col": "a",
                "dest_id_col": "p",
                "features": [{"feature_col": "w", "feature_name": "weight"}],
                "labels": [{"task_type": "link_prediction", "split_pct": [0.5, 0.5, 0]}],
            },
            {
                "relation": ["author", "knows", "author"],
                "format": {"name": "HDF5"},
                "files": ["knows.h5"],
                "source_id_col": "s",
                "dest_id_col": "d",
            },
        ],
    }
    entry["nodes"][1]["features"] = [{"feature_col": "h"}]
    return entry | changes


def write(folder, content):
    folder.mkdir(exist_ok=True)
    (folder / "conf.json").write_text(json.dumps(content))
    for number, (begin, end) in enumerate([(0, 1), (1, 4)]):
        table = pa.table({name: values[begin:end] for name, values in PAPERS.items()})
        parquet.write_table(table, folder / f"papers_{number}.parquet")
    (folder / "authors.csv").write_text("h|name\n1|x\n2|y\n3|z\n")
    records = [{"a": 0, "p": "p1", "w": [1, 2.5]}, {"a": 2, "p": "p10", "w": [3, 4]}, {"a": 1, "p": "p3", "w": [5, 6]}]
    (folder / "writes.json").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    with h5py.File(folder / "knows.h5", "w") as file:
        file["s"] = np.array([0, 2])
        file["d"] = np.array([1, 1])
    (folder / "train.json").write_text('"p1"\n"p10"\n')
    (folder / "valid.json").write_text('"p2"\n')
    return folder / "conf.json"


def test_a_configuration(tmp_path, monkeypatch):
    path = write(tmp_path / "in", conf())
    source = read_source(path)
    assert source.schema.ntypes == ("author", "paper") and source.num_nodes == (3, 4)
    assert source.schema.relations == (("author", "knows", "author"), ("author", "writes", "paper"))
    assert [[rows(end).tolist() for end in pair] for pair in source.edges] == [[[0, 2], [1, 1]], [[0, 2, 1], [1, 3, 0]]]
    paper = source.node_feats["paper"]
    ids = [bytes(row).rstrip(b"\0").decode() for row in rows(paper["id"].values)]
    assert ids == PAPERS["id"]
    found = values_of(paper)
    assert found["emb"] == PAPERS["emb"] and paper["emb"].dtype == "float32"
    assert found["both"] == [[year, *emb] for year, emb in zip(PAPERS["year"], PAPERS["emb"], strict=True)]
    assert paper["both"].dtype == "float16" and np.allclose(found["scaled"], [[0], [0.5], [0.25], [1]])
    assert found["venue"] == [[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]] and paper["venue"].dtype == "int8"
    assert found["label"] == [0, 1, -1, 2] and paper["label"].dtype == "int64"
    assert found["train_mask"] == [0, 1, 0, 1] and found["val_mask"] == [0, 0, 1, 0] and not any(found["test_mask"])
    assert values_of(source.node_feats["author"]) == {"h": [[1], [2], [3]]}
    writes = values_of(source.edge_feats["author:writes:paper"])
    assert writes.pop("weight") == [[1, 2.5], [3, 4], [5, 6]]
    assert [sum(writes[name]) for name in ("train_mask", "val_mask", "test_mask")] == [1, 1, 0]
    assert not np.any(np.logical_and(writes["train_mask"], writes["val_mask"])) and source.left_out == ()
    check_parts(source, tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    paths = {"files": "in/papers_1.parquet", "node_type": "p", "format": {"name": "parquet"}}
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "c.json").write_text(json.dumps({"nodes": [paths], "edges": []}))
    assert read_source(tmp_path / "else" / "c.json").num_nodes == (3,)  # rows of a file of the working directory


def test_a_type_without_files_has_the_nodes_of_its_edges(tmp_path, caplog):
    source = read_source(write(tmp_path / "in", changed("edges", 0, relation=["reader", "w", "paper"])))
    assert source.schema.ntypes == ("author", "paper", "reader") and source.num_nodes == (3, 4, 3)
    assert [rows(end).tolist() for end in source.edges[1]] == [[0, 2, 1], [1, 3, 0]] and source.node_feats[
        "reader"
    ] == {}
    assert "no node type 'reader' under nodes: its nodes are the ends of edges" in caplog.text
    check_parts(source, tmp_path / "out")


def test_a_split_by_shares_is_exact_and_of_labelled_rows(tmp_path):
    (tmp_path / "n.csv").write_text("x,y\n" + "".join(f"{i},{'' if i % 5 == 0 else i % 7}\n" for i in range(1000)))
    label = {"label_col": "y", "task_type": "classification", "split_pct": [0.6, 0.25, 0.1]}
    node = {"node_type": "n", "format": {"name": "csv"}, "files": "n.csv", "labels": [label]}
    (tmp_path / "c.json").write_text(json.dumps({"nodes": [node], "edges": []}))
    feats = values_of(read_source(tmp_path / "c.json").node_feats["n"])
    masks = np.array([feats[name] for name in ("train_mask", "val_mask", "test_mask")], bool)
    assert masks.sum(axis=1).tolist() == [480, 200, 80] and masks.sum(axis=0).max() == 1
    assert not masks[:, ::5].any() and feats["y"][0] == -1
    assert 0.4 < masks[0, :500].sum() / 480 < 0.6  # by chance, not by position
    again = values_of(read_source(tmp_path / "c.json").node_feats["n"])
    assert again == feats


def test_given_ranges_and_mappings(tmp_path):
    (tmp_path / "n.csv").write_text("a,b\n0,x\n5,y\n20,z\n")
    features = [
        {"feature_col": "a", "transform": {"name": "max_min_norm", "max_val": 10, "min_val": 0}},
        {
            "feature_col": "a",
            "feature_name": "c",
            "transform": {"name": "max_min_norm", "max_bound": 10, "min_bound": 5},
        },
        {"feature_col": "b", "transform": {"name": "to_categorical", "mapping": {"y": 0, "x": 1}}},
    ]
    node = {"node_type": "n", "format": {"name": "csv"}, "files": "n.csv", "features": features}
    (tmp_path / "c.json").write_text(json.dumps({"nodes": [node], "edges": []}))
    feats = values_of(read_source(tmp_path / "c.json").node_feats["n"])
    assert feats == {"a": [[0], [0.5], [1]], "c": [[0], [0], [1]], "b": [[0, 1], [1, 0], [0, 0]]}


def changed(kind, number, **changes):
    content = conf()
    content[kind][number] |= changes
    return content


def paper_feature(**feature):
    return changed("nodes", 0, features=[feature])


@pytest.mark.parametrize(
    "content, message",
    [
        (
            paper_feature(feature_col="emb", transform={"name": "bert_hf"}),
            r"the transform 'bert_hf' is not read \(known:",
        ),
        (paper_feature(feature_col="emb", transform="x"), "the transform None is not read"),
        (paper_feature(feature_col="no"), r"papers_0.parquet: there is no column 'no'"),
        (paper_feature(feature_name="x"), "feature_col must be a column or a list"),
        (paper_feature(feature_col=["emb", "year"]), "feature_name must be a name"),
        (paper_feature(feature_col="emb", out_dtype="int64"), "out_dtype must be one of"),
        (paper_feature(feature_col="venue"), r"feature 'venue': the column 'venue' has no numbers \(string\)"),
        (
            paper_feature(feature_col="venue", transform={"name": "to_categorical", "separator": ","}),
            "to_categorical with a separator is not read",
        ),
        (changed("nodes", 0, labels=[{"task_type": "x"}]), "the task 'x' is not read"),
        (changed("nodes", 0, labels=[{"task_type": "regression"}]), "regression needs a label_col"),
        (
            changed("nodes", 0, labels=[{"task_type": "classification", "label_col": "label", "split_pct": [1, 1, 0]}]),
            "split_pct must be shares of 1 at most",
        ),
        (changed("nodes", 0, format={"name": "orc"}), "the format 'orc' is not read"),
        (changed("nodes", 0, files="no_*.parquet"), "there is no file .*no_"),
        (changed("nodes", 0, node_type=3), "needs a node_type, a name"),
        (changed("edges", 0, relation=["author", "paper"]), "or a relation, three names"),
        (changed("edges", 0, source_id_col=None), "source_id_col must be a name"),
        (changed("edges", 1, source_id_col="x"), "knows.h5: there is no dataset of numbers 'x'"),
        (conf(nodes=[conf()["nodes"][0]] * 2), "nodes 'paper' is there twice"),
        (conf(edges=3), "edges must be a list"),
    ],
)
def test_wrong_configurations_are_named(tmp_path, content, message):
    path = write(tmp_path / "in", content)
    with pytest.raises(GraphDataError, match=message) as error:
        check_all(read_source(path))
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("writes.json", '{"a": 0, "p": "p4", "w": [1]}\n', r"writes.json, row 1: .*p4"),
        ("writes.json", '{"a": 0, "p": "p1", "w": [1]}\n{"a": 0', r"writes.json, row 2: cannot be read as JSON"),
        ("writes.json", '{"a": 0, "p": "p1", "w": [1]}\n[]', r"writes.json, row 2: must be a JSON object"),
        ("writes.json", '{"a": 0, "p": "p1"}\n', r"writes.json: there is no column 'w'|row 1: there is no 'w'"),
        ("writes.json", '{"a": 3, "p": "p1", "w": [1]}\n', r"source 3, but that node type has 3 nodes"),
        ("train.json", '"p1"\n"p4"\n', r"2 ids of 'train' are 1 nodes"),
        ("authors.csv", "h|name\n1|x\n2\n", r"authors.csv: .*row 3"),
        ("papers_0.parquet", "PAR1", r"papers_0.parquet: cannot be read"),
        ("knows.h5", "\x89HDF\r\n\x1a\n", r"knows.h5: cannot be read"),
    ],
)
def test_wrong_files_are_named_with_their_rows(tmp_path, name, text, message):
    path = write(tmp_path / "in", conf())
    (tmp_path / "in" / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(GraphDataError, match=message) as error:
        check_all(read_source(path))
    assert str(tmp_path) in str(error.value)


def test_ids_of_one_kind_in_files_of_several_formats(tmp_path):
    """What one file has as a number another has as text; a folder's name is no pattern."""
    folder = tmp_path / "a[b]*"
    folder.mkdir()
    (folder / "n.csv").write_text("id,kind\n1,x\n2,\nb,x\n")
    (folder / "e.json").write_text('{"s": 1, "d": "b"}\n\n{"s": "2", "d": 1}\n')
    kind = {"feature_col": "kind", "transform": {"name": "to_categorical"}}
    node = {"node_type": "n", "format": {"name": "csv"}, "files": "n*.csv", "node_id_col": "id", "features": [kind]}
    edge = {"relation": ["n", "e", "n"], "format": {"name": "JSON"}, "files": "e.json"}
    edge |= {"source_id_col": "s", "dest_id_col": "d"}
    (folder / "c.json").write_text(json.dumps({"nodes": [node], "edges": [edge]}))
    source = read_source(folder / "c.json")
    assert [rows(end).tolist() for end in source.edges[0]] == [[0, 1], [2, 0]]
    assert rows(source.node_feats["n"]["kind"].values).tolist() == [[1], [0], [1]]
    (folder / "n.csv").write_text("id,kind\n1,x\n2,y\n3,z\n")
    with pytest.raises(GraphDataError, match=r"e.json, row 1.*b"):
        check_all(read_source(folder / "c.json"))
    del node["node_id_col"]
    (folder / "c.json").write_text(json.dumps({"nodes": [node], "edges": [edge]}))
    with pytest.raises(GraphDataError, match=r"e.json, row 1: ids of 'n' are strings"):
        read_source(folder / "c.json")
