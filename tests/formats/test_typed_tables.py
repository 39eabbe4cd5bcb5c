"""Graphs from tables of nodes and edges: which node an id is, and what columns become."""

import bz2
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from input_checks import check_all, check_parts, rows
from pyarrow import csv, parquet
from table_files import ends, features, folder_of, read

from mpigraph.cli.main import main
from mpigraph.errors import GraphDataError, InvalidArgumentError
from mpigraph.formats import text_files
from mpigraph.formats.input_files import in_natural_order
from mpigraph.formats.layout import TableOptions
from mpigraph.formats.readers import read_source
from mpigraph.storage.part_config import PartConfig

NODES = """id,title,subject,split,f0,f1,seen
p30,"On, and
on",bio,train,0.5,1,2024-01-02
p10,Two,math,valid,1.5,2,2024-01-03 12:00:00
p20,,bio,,2.5,3,1970-01-01
"""
EDGES = """src, dst ,weight
p10, p20 ,1
p20,p30,0.5
p10,p10,2
"""


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks of every file."""
    monkeypatch.setattr(text_files, "_BLOCK_BYTES", 100)


def test_nodes_and_edges_of_two_csv_files(tmp_path, caplog):
    options = {"columns": {"feat": ("f*",), "label": ("subject",)}, "categories": ("subject",)}
    source = read(tmp_path, {"nodes.csv": NODES, "edges.csv": EDGES}, **options)
    assert source.num_nodes == (3,) and source.schema.is_homogeneous
    assert ends(source) == [[1, 2, 1], [2, 0, 1]]  # rows of the table of nodes
    feats = {name: feature for name, feature in source.node_feats["_N"].items()}
    assert set(feats) == {"id", "label", "feat", "seen", "train_mask", "val_mask", "test_mask"}
    assert [bytes(row).decode() for row in rows(feats["id"].values)] == ["p30", "p10", "p20"]
    assert feats["feat"].dtype == "float32" and rows(feats["feat"].values).tolist() == [[0.5, 1], [1.5, 2], [2.5, 3]]
    assert feats["label"].dtype == "int64" and rows(feats["label"].values).tolist() == [0, 1, 0]
    assert rows(feats["seen"].values).tolist() == [1704153600, 1704283200, 0] and feats["seen"].dtype == "int64"
    masks = [rows(feats[f"{name}_mask"].values).tolist() for name in ("train", "val", "test")]
    assert masks == [[1, 0, 0], [0, 1, 0], [0, 0, 0]] and feats["val_mask"].dtype == "bool"
    assert rows(source.edge_feats["_N:_E:_N"]["weight"].values).tolist() == [1, 0.5, 2]
    told = " ".join(caplog.messages)
    words = ("nodes.csv: column title is text", "2 categories", "'bio', 'math'", "seconds since 1970")
    assert all(its in told for its in words)
    check_parts(source, tmp_path / "out")


def test_types_by_names_of_files(tmp_path):
    files = {
        "nodes_paper/part-2.csv": "paper_id,x_1,x_0,train_mask\n7,1,2,1\n",
        "nodes_paper/part-10.CSV": "paper_id,x_1,x_0,train_mask\n5,3,4,0\n",  # natural order: after 2
        "edges_author__writes__paper.csv.bz2": bz2.compress(b"source,target\nann,5\nbob,7\nann,7\n"),
        "edges_paper__cites__paper": None,
        "edges_paper__cites__paper/part-0.parquet": {"from": [5], "to": [7], "year": [1999]},
        "nodes_venue.parquet": {"feat": [[1.0, 2.0], [3.0, 4.0]]},
        "edges_paper__in__venue.parquet": {"src": [7, 5], "dst": [0, 1]},
    }
    source = read(tmp_path, {name: content for name, content in files.items() if content is not None})
    assert source.schema.ntypes == ("author", "paper", "venue") and source.num_nodes == (2, 2, 2)
    relations = [relation[1] for relation in source.schema.relations]
    assert relations == ["writes", "cites", "in"]
    assert [ends(source, number) for number in range(3)] == [[[0, 1, 0], [1, 0, 0]], [[1], [0]], [[0, 1], [0, 1]]]
    assert rows(source.node_feats["paper"]["x"].values).tolist() == [[2, 1], [4, 3]]
    assert rows(source.node_feats["paper"]["id"].values).tolist() == [7, 5]
    assert rows(source.node_feats["paper"]["train_mask"].values).tolist() == [True, False]
    assert rows(source.node_feats["venue"]["feat"].values).tolist() == [[1, 2], [3, 4]]
    assert rows(source.edge_feats["paper:cites:paper"]["year"].values).tolist() == [1999]


def test_numbers_in_names_count_by_their_value():
    ordered = "01 1 9 10 part-2 part-10 part-10-1 part-10-2 part-10-11 part-x x".split()
    assert [path.name for path in in_natural_order(map(Path, sorted(ordered)))] == ordered


NODES_OF = {"2": "id,x\n0,1\n1,2\n", "3": "id,x\n0,1\n1,2\n2,3\n"}


@pytest.mark.parametrize(
    ("files", "counts"),
    [
        ({"nodes_sars-1": 2, "nodes_sars-2": 3, "edges_sars-1__to__sars-2": 0}, {"sars-1": 2, "sars-2": 3}),
        ({"nodes_covid-19": 3, "edges_covid-19__to__covid-19": 0}, {"covid-19": 3}),
        ({"nodes_a%2D1": 2, "nodes_a%2D7": 3, "edges_a%2D1__to__a%2D7": 0}, {"a-1": 2, "a-7": 3}),
        ({"nodes-1": "id\n0\n", "nodes-2": "id\n1\n", "edges-1": 0, "edges-2": 0}, {"_N": 2}),
        ({"nodes_a%2D1": 2, "edges_a%2D1__to__b%2D7": 0}, {"a-1": 2, "b-7": 1}),
        ({"nodes_a": 2, "edges_likes-1": 0, "edges_likes-5": 0}, {"a": 2}),
        ({"nodes_a-0": "id\n0\n", "nodes_a-1": "id\n1\n", "edges_a__to__a": 0}, None),
        ({"nodes_a": 2, "nodes_b": 2, "edges_a__to__b-0": 0, "edges_a__to__b-1": 0}, None),
    ],
)  # fmt: skip
def test_numbers_at_the_end_of_names(tmp_path, files, counts):
    """They belong to the names; what looks like a piece of a table of a type is an error."""
    contents = {0: "src,dst\n0,1\n", 2: NODES_OF["2"], 3: NODES_OF["3"]}
    files = {f"{name}.csv": contents.get(content, content) for name, content in files.items()}
    if counts is None:
        with pytest.raises(GraphDataError, match="the name of a type, or a piece.*%2D"):
            read(tmp_path, files)
        return
    source = read(tmp_path, files)
    assert dict(zip(source.schema.ntypes, source.num_nodes, strict=True)) == counts
    assert sum(source.edge_counts) == sum(name.startswith("edges") for name in files)


@pytest.mark.parametrize(
    "text", ["0 1\n1 2\n", "0 1 0.5\n1 2 0.25\n", "0 1 5 6\n1 2 5 6\n", "src\trel\tdst\n0\t7\t1\n1\t7\t2\n"]
)
def test_edges_between_integers_need_no_header(tmp_path, text):
    assert ends(read(tmp_path, {"train.txt": text})) == [[0, 1], [1, 2]]


def test_the_index_of_pandas_is_no_feature(tmp_path, caplog):
    edges = {"edges.csv": ",src,dst\n0,0,1\n1,1,0\n"}
    source = read(tmp_path, edges)
    assert ends(source) == [[0, 1], [1, 0]] and source.edge_feats["_N:_E:_N"] == {}
    assert "index of pandas, is left out" in " ".join(caplog.messages)
    for nodes in (
        ",x,0\n1,0.5,3\n0,0.25,4\n",
        ",id,x,0\n8,1,0.5,3\n9,0,0.25,4\n",
        "id,Unnamed: 0,x\n1,8,0.5\n0,9,0.25\n",
    ):
        source = read(tmp_path, edges | {"nodes.csv": nodes})  # without another one it has the ids
        assert ends(source) == [[1, 0], [0, 1]] and rows(source.node_feats["_N"]["x"].values).tolist() == [0.5, 0.25]
        assert set(source.node_feats["_N"]) <= {"id", "x", "0"}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_names_of_categories_are_kept(tmp_path, capsys, caplog, kind):
    """In parts, in parts that are made of these, and by a run that goes on; a row without a name has none."""
    names = ["bio", None, "art", "bio", "né, l", None]
    words = pa.table({"id": range(6), "label": names}), pa.table({"src": [0, 5], "dst": [1, 2], "how": ["x", "w"]})
    folder = folder_of(tmp_path / "in", {})
    for name, table in zip(("nodes", "edges"), words, strict=True):
        if kind == "csv":
            csv.write_csv(table, folder / f"{name}.csv")
        else:
            parquet.write_table(table, folder / f"{name}.parquet")
    options = ["--method", "random", "--name", "g", "-o"]
    asked = ["--parts", "2", "--categories", "label", "--categories", "how"]
    assert not main(["partition", str(folder), *asked, *options, str(tmp_path / "a")])
    assert not main(["partition", str(folder), *asked, *options, str(tmp_path / "a"), "--resume"])
    assert not main(["partition", str(tmp_path / "a" / "g.json"), "--parts", "3", *options, str(tmp_path / "b")])
    assert "3 categories are numbered in their order: 'art', 'bio', 'né, l'; 2 of 6 rows have none: -1" in caplog.text
    for parts in ("a", "b"):
        config = PartConfig.read(tmp_path / parts / "g.json")
        assert config.node_features["_N"]["label"].categories == ("art", "bio", "né, l")
        assert config.edge_features["_N:_E:_N"]["how"].categories == ("w", "x")
        source = read_source(config.path)
        ids, label = np.argsort(source.node_ids[0][:]), rows(source.node_feats["_N"]["label"].values)
        assert label[ids].tolist() == [1, -1, 0, 1, 2, -1]
        capsys.readouterr()
        assert not main(["info", str(config.path)])
        assert "label int64 (3 names: art, bio, né, l)" in capsys.readouterr().out


EDGE = {"edges.csv": "src,dst\n0,1\n"}
GAPS = {"nodes.csv": "id,x,f_0,f_1\n0,1,1,\n1,,3,5\n2,3,,7\n", **EDGE}


@pytest.mark.parametrize(
    ("files", "options", "name", "dtype", "values"),
    [
        ({"nodes.csv": "4,0.5\n5,0.25\n", "edges.csv": "4,5\n"}, {"no_header": True}, "column1", "float32",
         [0.5, 0.25]),
        ({"nodes.csv": "a,7\nb,8\n", "edges.csv": "a,b,3\n"}, {"no_header": True}, "column1", "int64", [7, 8]),
        ({"nodes.csv": "id;x\n0;0,5\n1;-1,25\n", **EDGE}, {"decimal": ","}, "x", "float32", [0.5, -1.25]),
        ({"nodes.csv": "id;x\n0;3\n1;4\n", **EDGE}, {"decimal": ","}, "x", "int64", [3, 4]),
        ({"nodes.csv": "id;f_0;f_1\n0;0,5;1\n1;1;2\n", **EDGE}, {"decimal": ","}, "f", "float32", [[0.5, 1], [1, 2]]),
        (GAPS, {"fill": {"x": "0"}}, "x", "float32", [1, 0, 3]),
        (GAPS, {"fill": {"x": "mean"}}, "x", "float32", [1, 2, 3]),
        (GAPS, {"fill": {"x": "-1"}, "types": {"x": "int64"}}, "x", "int64", [1, -1, 3]),
        (GAPS, {"fill": {"f": "mean"}}, "f", "float32", [[1, 6], [3, 5], [2, 7]]),
        (GAPS, {"fill": {"f_0": "9", "f_1": "mean"}}, "f", "float32", [[1, 6], [3, 5], [9, 7]]),
        ({"nodes.parquet": {"id": [0, 1, 2], "x": [None, 4, 5]}, **EDGE}, {"fill": {"x": "0.5"}}, "x", "float32",
         [0.5, 4, 5]),
        # what is not missing stays, to the digit
        ({"nodes.csv": f"id,x\n0,{2**53 + 1}\n1,\n", **EDGE}, {"fill": {"x": "2"}, "types": {"x": "int64"}}, "x",
         "int64", [2**53 + 1, 2]),
        ({"nodes.csv": f"id,x\n0,{2**62 + 1}\n1,3\n", **EDGE}, {"fill": {"x": "2"}, "types": {"x": "int64"}}, "x",
         "int64", [2**62 + 1, 3]),
        ({"nodes.parquet": {"id": [0, 1], "x": [2**53 + 1, None]}, **EDGE},
         {"fill": {"x": "2"}, "types": {"x": "int64"}}, "x", "int64", [2**53 + 1, 2]),
        ({"nodes.parquet": {"id": [0, 1], "x": [1e16, 2]}, **EDGE}, {"types": {"x": "int64"}}, "x", "int64",
         [10**16, 2]),
        # what is no number may be one in the dtype that the user names
        ({"nodes.csv": "id,x\n0,true\n1,\n2,false\n", **EDGE}, {"fill": {"x": "1"}, "types": {"x": "bool"}}, "x",
         "bool", [True, True, False]),
        ({"nodes.csv": "id,x\n0,true\n1,\n2,false\n", **EDGE}, {"fill": {"x": "7"}, "types": {"x": "float32"}}, "x",
         "float32", [1, 7, 0]),
        ({"nodes.csv": "id,x\n0,1970-01-02\n1,\n", **EDGE}, {"fill": {"x": "7"}, "types": {"x": "float64"}}, "x",
         "float64", [86400, 7]),
        ({"nodes.parquet": {"id": [0, 1, 2], "x": [True, None, False]}, **EDGE},
         {"fill": {"x": "1"}, "types": {"x": "bool"}}, "x", "bool", [True, True, False]),
        ({"nodes.parquet": {"id": [0, 1, 2], "x": [1.0, np.nan, 3.0]}, **EDGE}, {"fill": {"x": "7"}}, "x", "float32",
         [1, 7, 3]),
        ({"nodes.parquet": {"id": [0, 1, 2], "x": [1.0, np.nan, None]}, **EDGE}, {"fill": {"x": "mean"}}, "x",
         "float32", [1, 1, 1]),
        ({"nodes.csv": "0;0,5\n1;0,25\n", "edges.csv": "0;1;0,5\n"}, {"decimal": ",", "no_header": True}, "column1",
         "float32", [0.5, 0.25]),
        ({"nodes.csv": "0 0,5\n1 0,25\n", "edges.csv": "0 1 0,5\n"}, {"decimal": ",", "no_header": True}, "column1",
         "float32", [0.5, 0.25]),
        ({"nodes.csv": 'id,a name,x\n0,p,"0,5"\n1,q,"0,25"\n', **EDGE}, {"decimal": ","}, "x", "float32", [0.5, 0.25]),
        ({"nodes.csv": "id,label\n0,0.5\n1,1.5\n", **EDGE}, {}, "label", "float32", [0.5, 1.5]),  # of regression
        ({"nodes.csv": "id,label\n0,0.0\n1,nan\n2,2\n", **EDGE}, {}, "label", "int64", [0, -1, 2]),
        ({"nodes.csv": "id,label\n0,1\n1,2\n", **EDGE}, {"types": {"label": "float32"}}, "label", "float32", [1, 2]),
    ],
)  # fmt: skip
def test_columns_as_the_user_says(tmp_path, files, options, name, dtype, values):
    assert features(read(tmp_path, files, **options))[name] == (dtype, values)


@pytest.mark.parametrize(
    ("nodes", "options", "message"),
    [
        ("id;x\n0;1.234\n1;0,5\n", {"decimal": ","}, r"nodes.csv, row 2, column x: '1.234' may be .*: --decimal says"),
        ("id;x\n0;1,5\n1;1.234\n", {"decimal": ",", "types": {"x": "float64"}}, r"nodes.csv, row 3.* may be .* one"),
        ("id,x\n0,1\n1,\n", {"fill": {"x": "0"}, "types": {"x": "string"}}, r"nodes.csv: x is string, which cannot be"),
        ("id,x\n0,1\n1,2\n", {"fill": {"x": "mean"}, "types": {"x": "int8"}}, r"nodes.csv: x is int8, which cannot be"),
        ("id,x\n0,1\n1,\n", {"fill": {"x": "300"}, "types": {"x": "int8"}}, r"nodes.csv, row 3.*300 does not fit int8"),
        ("id,x\n0,a\n1,\n", {"fill": {"x": "0"}}, r"nodes.csv: x is string, which cannot be filled"),
        ("id,x\n0,true\n1,false\n", {"fill": {"x": "0"}}, r"nodes.csv: x is bool, which cannot be filled"),
        ("id,x\n0,[1 2]\n1,[3 4]\n", {"fill": {"x": "0"}}, r"nodes.csv: x is list, which cannot be filled"),
        ("id,x\n0,2024-01-02\n1,2024-01-03\n", {"fill": {"x": "0"}}, r"nodes.csv: x is time, which cannot be filled"),
        ("id,x\n0,a\n1,\n", {"fill": {"x": "0"}, "categories": ("x",)}, r"fill: no table has a column of numbers 'x'"),
        ("id,x\n0,1\n1,\n", {"fill": {"id": "0"}}, r"fill: no table has a column of numbers 'id'"),
        ("id,x\n0,1\n1,\n", {"fill": {"z": "0"}}, r"fill: no table has a column of numbers 'z'"),
        ({"id": [0, 1], "x": ["a", None]}, {"fill": {"x": "0"}}, r"nodes.parquet: x is string, which cannot be filled"),
        ({"id": [0, 1], "x": [2**53 + 1, None]}, {"fill": {"x": "0"}}, r"row 0, column x: .* fit float32"),
        ({"id": [0, 1], "x": [np.nan, 1]}, {"types": {"x": "bool"}}, r"row 0, column x: nan does not fit bool"),
    ],
)  # fmt: skip
def test_what_columns_cannot_be(tmp_path, nodes, options, message):
    files = {"nodes.csv" if isinstance(nodes, str) else "nodes.parquet": nodes, "edges.csv": "src;dst\n0;1\n"}
    with pytest.raises(GraphDataError, match=message):
        rows(read(tmp_path, files, **options).node_feats["_N"]["x"].values)


@pytest.mark.parametrize("ids", ["pqrs", "0123"])
def test_types_and_relations_in_a_column(tmp_path, ids):
    kinds = ("user", "item", "user", "item")
    nodes = "id,kind,x\n" + "".join(f"{i},{kind},{n}\n" for n, (i, kind) in enumerate(zip(ids, kinds, strict=True)))
    ends_and_relations = [(0, 1, "buys"), (2, 3, "buys"), (0, 2, "knows"), (2, 1, "sees"), (0, 3, "buys")]
    edges = "".join(f"{ids[a]},{ids[b]},{rel},{w}\n" for w, (a, b, rel) in enumerate(ends_and_relations))
    files = {"nodes.csv": nodes, "edges.csv": f"src,dst,rel,w\n{edges}"}
    source = read(tmp_path, files, node_type="kind", edge_type="rel")
    assert source.schema.ntypes == ("item", "user") and source.num_nodes == (2, 2)
    assert source.schema.relations == (("user", "buys", "item"), ("user", "knows", "user"), ("user", "sees", "item"))
    assert [ends(source, number) for number in range(3)] == [[[0, 1, 0], [0, 1, 1]], [[0], [1]], [[1], [0]]]
    assert rows(source.edge_feats["user:buys:item"]["w"].values).tolist() == [0, 1, 4]
    assert rows(source.node_feats["item"]["x"].values).tolist() == [1, 3]
    originals = rows(source.node_feats["user"]["id"].values).reshape(-1).tolist()
    assert originals == ([0, 2] if ids == "0123" else [ord("p"), ord("r")])
    check_parts(source, tmp_path / "out")
    one = read(tmp_path, files, edge_type="rel", categories=("kind",))
    assert one.schema.relations == (("_N", "buys", "_N"), ("_N", "knows", "_N"), ("_N", "sees", "_N"))
    files["nodes.csv"] = files["nodes.csv"].replace("item", "")
    with pytest.raises(GraphDataError, match="column kind: 2 rows have no type"):
        read(tmp_path, files, node_type="kind")


def test_all_columns_that_cannot_be_read_are_named_at_once(tmp_path):
    nodes = 'id,a,b,c\n0,True,"0,5",1\n1,,"1,5",99999999999999999999\n'
    with pytest.raises(GraphDataError) as error:
        read(tmp_path, {"nodes.csv": nodes, **EDGE})
    lines = str(error.value).splitlines()
    assert len(lines) == 2 and "column b: '0,5' may be a list" in lines[0] and "column c: about 1000" in lines[1]
    nodes = 'id,a,b\n0,"0,5",1\n' + "1,0,1\n" * 60 + "1,0,99999999999999999999\n"
    with pytest.raises(GraphDataError, match=r"row 2, column a.*\n.*row 63, column b"):
        read(tmp_path, {"nodes.csv": nodes, **EDGE})
    with pytest.raises(GraphDataError, match="column a: a value is missing.*\n.*column b: a value is"):
        read(tmp_path, {"nodes.csv": "id,a,b\n0,True,2024-01-02\n1,,\n", **EDGE})
    for wrong, message in (
        ({"fill": {"a": "x"}}, "a number or mean"),
        ({"decimal": ";"}, "a point or a comma"),
        ({"types": {"id": "int"}}, r"must be one of bool, int8, .* \(got 'int'\)"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            TableOptions(**wrong)


def test_names_that_no_file_can_have(tmp_path):
    """Knowledge graphs call relations /people/born_in."""
    files = {
        "nodes_%2Fm%2Fcaf%C3%A9.csv": "id,x\n1,5\n2,6\n",
        "nodes_a__b.csv": "id\n7\n",
        "edges_%2Fm%2Fcaf%C3%A9__%2Fpeople%2Fborn_in__a__b.csv": "src,dst\n2,7\n",
        "edges_a__b__to__the__a__b.csv": "src,dst\n7,7\n",
    }
    source = read(tmp_path, files)
    assert source.schema.ntypes == ("/m/caf\u00e9", "a__b")
    assert source.schema.relations == (("/m/caf\u00e9", "/people/born_in", "a__b"), ("a__b", "to__the", "a__b"))
    assert [ends(source, number) for number in range(2)] == [[[1], [0]], [[0], [0]]] and not source.left_out
    files["nodes_a.csv"] = files["nodes_b__to.csv"] = "id\n7\n"
    files["edges_a__b__to__a.csv"] = "src,dst\n7,7\n"
    with pytest.raises(GraphDataError, match=r"edges: .*a__b__to__a. can be read as .*: write %5F for _"):
        read(tmp_path, files)


UNKNOWN = "column dst: an edge has the id [x7], which no row of the table"
SPLIT = {"nodes.csv": "id,split\n1,train\n2,third\n", "edges.csv": "src,dst\n1,1\n"}


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        *(({"nodes.csv": nodes, **EDGE}, {}, r"nodes.csv.*header")
          for nodes in ("0,0.5\n1,0.25\n", "0,1,0.5\n1,0,0.25\n", "p,0.5\nq,0.25\n", "0.5,1e3\n0.25,2\n", "0\n1\n",
                        "0,1,2\n.5,.5,.5\n")),
        ({"nodes.csv.bz2": bz2.compress(b"p,0.5\nq,0.25\n"), **EDGE}, {}, r"nodes.csv.bz2.*header"),
        *(({"train.txt": text}, {}, r"train.txt: .*header such as src,dst,time or src,rel,dst")
          for text in ("0\t7\t1\n1\t7\t2\n", "# triples\n0 7 1\n", "0,7,1\n")),
        ({"nodes.csv": "id\na\nb\nc\n", "edges.csv": "src,dst\na,b\nb,x\n"}, {}, f"csv, row 3, {UNKNOWN}"),
        ({"nodes.csv": "id\n5\n6\n9\n", "edges.csv": "src,dst\n5,6\n6,7\n"}, {}, f"csv, row 3, {UNKNOWN}"),
        ({"nodes.csv": "id\na\nb\nc\n", "edges.parquet": {"src": ["a"], "dst": ["x"]}}, {}, f"row 0, {UNKNOWN}"),
        ({"nodes.csv": "id\n5\n6\n9\n", "edges.parquet": {"src": [5], "dst": [7]}}, {}, f"row 0, {UNKNOWN}"),
        ({"nodes.csv": "id\na\nb\na\n", **EDGE}, {}, r"row 4, column id: the id a is there already: .*csv, row 2"),
        ({"nodes.csv": "id\n5\n6\n5\n", **EDGE}, {}, r"row 4, column id: the id 5 is there already: .*csv, row 2"),
        ({"nodes.csv": "x\n3\n4\n", "edges.csv": "src,dst\n0,1\n1,2\n"}, {},
         "row 3, column dst: edge 1 of .* has destination 2, but .* 2 nodes"),
        ({"nodes.csv": "x\n3\n4\n", "edges.csv": "src,dst\na,b\n"}, {}, "row 2, column src: ids of '_N' are text"),
        ({"nodes_a.csv": "id\n1\n", "nodes_b.csv": "id\n1\n", "edges_to.csv": "src,dst\n1,1\n"}, {},
         r"are in files edges_<src>__<rel>__<dst> \(got edges_to\)"),
        ({"nodes_a.csv": "id\n1\n"}, {}, "has files of nodes, but none of edges"),
        (SPLIT, {}, "nodes.csv, row 3, column split: split must be train, val or test, .*'third'"),
        (SPLIT, {"types": {"x": "int64"}}, "types: no table has a column 'x'"),
        (SPLIT, {"categories": ("split,x",)}, r"categories: no table has .*; give the option once for each column\)"),
        (SPLIT, {"columns": {"feat": ("f*",)}}, r"columns of 'feat': no table has a column 'f\*'"),
        (SPLIT, {"node_type": "type"}, "nodes.csv: has no column 'type'"),
    ],
)  # fmt: skip
def test_what_files_cannot_be(tmp_path, files, options, message):
    with pytest.raises(GraphDataError, match=message):
        check_all(read(tmp_path, files, **options))


def test_rows_are_ids_where_there_is_no_column_of_ids(tmp_path, caplog):
    assert read(tmp_path, {"nodes.csv": "label\n3\n4\n", **EDGE}).num_nodes == (2,)
    assert "a node is known by the number of its row" in " ".join(caplog.messages)


def test_what_is_no_table_of_this_graph_is_named(tmp_path):
    files = {"nodes.csv": "id,a,b\n1,,x\n", "edges.csv": "src,dst\n1,1\n", "notes.txt": "a b\n", "README": "Read"}
    left_out = read(tmp_path, files).left_out
    assert [thing.rpartition("/")[2] for thing in left_out] == [
        "nodes.csv: column a is empty",
        "nodes.csv, row 2, column b: 'x'",
        "README, by whose name it has neither nodes nor edges",
        "notes.txt, by whose name it has neither nodes nor edges",
    ]


def test_the_options_of_the_command(tmp_path, capsys):
    folder = folder_of(tmp_path / "in", {"n.csv": NODES, "e.csv": EDGES})
    start = ["partition", str(folder / "e.csv"), "--parts", "2", "-o", str(tmp_path / "out"), "--name", "g"]
    options = "--columns feat=f0,f1 --columns label=subject --categories label --types seen=string".split()
    assert main([*start, "--nodes", str(folder / "n.csv"), *options]) == 0
    assert "column seen is text" in capsys.readouterr().out
    features = PartConfig.read(tmp_path / "out" / "g.json").node_features["_N"]
    masks = {f"{name}_mask": "bool" for name in ("train", "val", "test")}
    dtypes = {name: info.dtype for name, info in features.items()}
    assert dtypes == {"id": "uint8", "label": "int64", "feat": "float32", **masks}
    for wrong, message in (
        (["--nodes", "3", "--nodes", str(folder / "n.csv")], "--nodes is one number, or files"),
        (["--types", "float32"], "--types must be COLUMN=DTYPE, once for each name (got float32)"),
        (["--types", "weight=float33"], "the type of column 'weight' must be one of bool,"),
    ):
        assert main([*start, *wrong]) == 2 and message in capsys.readouterr().err


def test_pyarrow_is_asked_for_before_anything_is_read(tmp_path, monkeypatch, capsys):
    folder = folder_of(tmp_path / "in", {"nodes.csv": "id\n1\n1\n", "edges.csv": "no edges"})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["partition", str(folder), "--parts", "2", "-o", str(tmp_path / "out")]) == 2
    assert "csv, parquet and edge lists need pyarrow: pip install pyarrow" in capsys.readouterr().err
