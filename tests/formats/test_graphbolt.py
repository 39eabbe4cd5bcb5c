"""Datasets of GraphBolt are what their metadata.yaml names, or one error that names the file."""

import sys

import numpy as np
import pytest
import yaml
from input_checks import check_all, check_parts, rows

from mpigraph.errors import GraphDataError
from mpigraph.formats.readers import read_source

FEAT = np.arange(12, dtype=np.float32).reshape(6, 2)


def numpy_file(folder, name, array):
    np.save(folder / f"{name}.npy", array)
    return {"format": "numpy", "path": f"{name}.npy"}


def csv_file(folder, name, text):
    (folder / f"{name}.csv").write_text(text)
    return {"format": "csv", "path": f"{name}.csv"}


def node_set(folder, name, seeds, labels=None, **more):
    data = [{"name": "seeds", **numpy_file(folder, f"{name}_seeds", np.array(seeds, np.int64))}]
    if labels is not None:
        data.append({"name": "labels", **numpy_file(folder, f"{name}_labels", np.array(labels))})
    return {"data": data, **more}


def write(folder, content):
    (folder / "metadata.yaml").write_text(yaml.safe_dump(content))
    return folder


def plain(folder):
    """A graph without types."""
    return {
        "dataset_name": "plain",
        "graph": {"nodes": [{"num": 6}], "edges": [csv_file(folder, "edges", "0,1\r\n5,2\r\n3,3\r\n")]},
        "feature_data": [
            {"domain": "node", "type": None, "name": "feat", "in_memory": False, **numpy_file(folder, "feat", FEAT)},
            {"domain": "edge", "name": "w", **numpy_file(folder, "w", np.array([1, 2, 3], np.int16))},
        ],
        "tasks": [
            {
                "name": "nodes",
                "num_classes": 3,
                "train_set": [node_set(folder, "train", [5, 0], [2, 1])],
                "validation_set": [node_set(folder, "val", [2], [0])],
                "test_set": [node_set(folder, "test", [], np.zeros(0, np.int64))],
            },
            {"name": "links"},
        ],
    }


def test_a_graph_without_types(tmp_path):
    (tmp_path / "preprocessed").mkdir()
    (tmp_path / "preprocessed" / "x.pt").write_bytes(b"")
    source = read_source(write(tmp_path, plain(tmp_path)))
    check_all(source)
    assert source.schema.is_homogeneous and source.num_nodes == (6,)
    assert [rows(end).tolist() for end in source.edges[0]] == [[0, 5, 3], [1, 2, 3]]
    feats = source.node_feats["_N"]
    assert np.array_equal(rows(feats["feat"].values), FEAT)
    assert rows(source.edge_feats["_N:_E:_N"]["w"].values).tolist() == [1, 2, 3]
    assert rows(feats["label"].values).tolist() == [1, -1, 0, -1, -1, 2] and feats["label"].dtype == "int64"
    masks = [np.flatnonzero(rows(feats[name].values)).tolist() for name in ("train_mask", "val_mask", "test_mask")]
    assert masks == [[0, 5], [2], []]
    assert [line.split()[0] for line in source.left_out] == ["task", "preprocessed/"]
    check_parts(source, tmp_path / "parts")


def typed(folder):
    pairs = numpy_file(folder, "pairs", np.zeros((2, 2), np.int64))
    extra = numpy_file(folder, "extra", np.zeros(1))
    return {
        "graph": {
            "nodes": [{"type": "user", "num": 3}, {"type": "item", "num": 2}],
            "edges": [
                {"type": "user:likes:item", **numpy_file(folder, "likes", np.array([[0, 2, 2], [1, 0, 1]]))},
                {"type": "item:liked_by:user", **csv_file(folder, "liked", "")},
            ],
            "feature_data": [{"domain": "node", "type": "item", "name": "x", **numpy_file(folder, "x", FEAT[:2])}],
        },
        "feature_data": [
            {"domain": "edge", "type": "user:likes:item", "name": "w", **numpy_file(folder, "w", FEAT[:3])}
        ],
        "tasks": [
            {
                "train_set": [
                    {**node_set(folder, "train", [2], [[0.5, 1]], type="user")},
                    {"type": "user:likes:item", "data": [{"name": "seeds", **pairs}]},
                ],
                "test_set": [node_set(folder, "test", [0], np.array([[2.5, 3]]), type="user")],
            }
        ],
    } | {"extra": extra}


def test_a_typed_graph(tmp_path):
    source = read_source(write(tmp_path, typed(tmp_path)))
    check_all(source)
    assert dict(zip(source.schema.ntypes, source.num_nodes, strict=True)) == {"item": 2, "user": 3}
    edges = dict(zip(source.schema.relations, source.edges, strict=True))
    assert [rows(end).tolist() for end in edges["user", "likes", "item"]] == [[0, 2, 2], [1, 0, 1]]
    assert [rows(end).tolist() for end in edges["item", "liked_by", "user"]] == [[], []]
    assert np.array_equal(rows(source.node_feats["item"]["x"].values), FEAT[:2])
    assert np.array_equal(rows(source.edge_feats["user:likes:item"]["w"].values), FEAT[:3])
    user = source.node_feats["user"]
    assert np.array_equal(rows(user["label"].values), [[2.5, 3], [np.nan, np.nan], [0.5, 1]], equal_nan=True)
    assert user["label"].dtype == "float32" and sorted(user) == ["label", "test_mask", "train_mask"]
    assert any("seeds are no nodes" in line for line in source.left_out) and "extra.npy" in source.left_out
    check_parts(source, tmp_path / "parts")


def change(path, value):
    """Return what sets an entry of metadata.yaml, such as ``graph/edges/0/path``."""

    def apply(content):
        *way, last = (int(step) if step.isdigit() else step for step in path.split("/"))
        for step in way:
            content = content[step]
        if value is None:
            del content[last]
        else:
            content[last] = value

    return apply


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        (change("graph", 3), r"metadata\.yaml: cannot be read: 'int' object"),
        (change("graph/nodes", None), r"metadata\.yaml: cannot be read: there is no 'nodes'"),
        (change("graph/nodes/0/num", "6"), r"metadata\.yaml: cannot be read: 'str' object"),
        (change("graph/edges", []), r"there is no '_N:_E:_N'"),
        (change("graph/edges/0/type", "a:b:c"), "<src>:<rel>:<dst>, with types of"),
        (change("graph/edges/0/path", None), r"metadata\.yaml: cannot be read: there is no 'path'"),
        (change("graph/edges/0/path", "no.csv"), r"no\.csv: cannot be read: No such file"),
        (change("graph/edges/0/format", "parquet"), "format must be numpy"),
        (change("graph/nodes/0/num", 5), r"train_seeds\.npy, row 0: there is no node 5 among 5"),
        (change("graph/edges/0", {"format": "numpy", "path": "feat.npy"}), r"feat\.npy must hold two rows of integers"),
        (lambda content: content["graph"]["edges"].append(content["graph"]["edges"][0]), "is there twice"),
        (lambda content: content["graph"]["nodes"].append(content["graph"]["nodes"][0]), "'_N' is there twice"),
        (lambda content: content["feature_data"].append(content["feature_data"][0]), "'feat'.* is there twice"),
        (lambda content: content["tasks"][0]["train_set"].append(content["tasks"][0]["train_set"][0]), "twice"),
        (change("feature_data/0/format", "torch"), r"feat\.npy: a tensor of torch: .*weights_only=True"),
        (change("feature_data/0/domain", "graph"), r"metadata\.yaml: cannot be read: there is no 'graph'"),
        (change("feature_data/0/path", "w.npy"), "node feature 'feat' of '_N' must have 6 rows"),
        (change("feature_data/0/path", "text.npy"), r"text\.npy: cannot be read: dtype"),
        (change("tasks/0/train_set/0/data/1/path", "w.npy"), r"w\.npy must have a label for each of 2 seeds"),
        (change("graph_topology", {}), "preprocessed"),
    ],
)
def test_what_is_no_dataset_is_one_error(tmp_path, changed, error):
    content = plain(tmp_path)
    np.save(tmp_path / "text.npy", np.array(["a"]))
    changed(content)
    with pytest.raises(GraphDataError, match=error):
        check_all(read_source(write(tmp_path, content)))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a: [", "line 1"),
        (b"a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        (b"\xff\xfe\xff", "cannot be read"),
        (b"3", "cannot be read"),
    ],
)
def test_what_is_no_yaml_is_an_error(tmp_path, monkeypatch, content, reason):
    (tmp_path / "metadata.yaml").write_bytes(content)
    with pytest.raises(GraphDataError, match=rf"(?s)metadata\.yaml.*{reason}"):
        read_source(tmp_path)
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(GraphDataError, match=r"metadata\.yaml.*pip install PyYAML"):
        read_source(tmp_path)
