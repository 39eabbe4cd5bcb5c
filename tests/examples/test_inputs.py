"""The recipes of examples/inputs.md, run as they stand: the graph is the one that the files hold."""

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from input_checks import check_all, rows, texts_of, values_of
from typed_parts import typed_source

from mpigraph.cli.main import main
from mpigraph.formats.layout import TableOptions
from mpigraph.formats.readers import read_source
from mpigraph.partition.pipeline import partition_source

PAGE = (Path(__file__).resolve().parents[2] / "examples" / "inputs.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^## (.+?)$.+?^```python\n(.+?)^```", PAGE, re.DOTALL | re.MULTILINE))
NAN = float("nan")


def run(recipe, folder, files):
    """Write files into a folder and run a recipe there; skip where a package is missing."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    for package in re.findall(r"^(?:import|from) (\w+)", RECIPES[recipe], re.MULTILINE):
        pytest.importorskip(package)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.chdir(folder)
        warnings.simplefilter("ignore")  # other packages' warnings
        exec(compile(RECIPES[recipe], f"inputs.md: {recipe}", "exec"), {"__name__": "recipe"})


def graph_of(path, **options):
    """The graph at a path: counts of nodes, pairs of edges, features of nodes and of edges."""
    source = read_source(path, **options)
    check_all(source)
    pairs = [list(zip(rows(src).tolist(), rows(dst).tolist(), strict=True)) for src, dst in source.edges]
    keys = source.schema.relations
    return (
        dict(zip(source.schema.ntypes, source.num_nodes, strict=True)),
        dict(zip(keys, pairs, strict=True)),
        {ntype: values_of(feats) for ntype, feats in source.node_feats.items()},
        {key: values_of(source.edge_feats.get(":".join(key), {})) for key in keys},
    )


def same(found, wanted):
    return np.array_equal(np.array(found, float), np.array(wanted, float), equal_nan=True)


def ids_of(path, ntype):
    return texts_of(read_source(path).node_feats[ntype]["id"])


def test_the_recipes_are_short():
    assert len(RECIPES) >= 15
    for name, recipe in RECIPES.items():
        assert sum(bool(line.strip()) for line in recipe.splitlines()) <= 25, name


def test_types_in_a_column(tmp_path):
    files = {
        "nodes.csv": "id,type,year,age\n007,paper,1999,\nNA,author,,40\n7,paper,2001,\n",
        "edges.csv": "src,dst,rel,weight,since\nNA,7,writes,0.5,\nNA,007,writes,1.5,\n7,007,cites,,2001\n",
    }
    run("Types or relations in a column", tmp_path, files)
    counts, edges, nodes, values = graph_of(tmp_path / "tables")
    assert counts == {"author": 1, "paper": 2}
    assert ids_of(tmp_path / "tables", "paper") == ["007", "7"] and ids_of(tmp_path / "tables", "author") == ["NA"]
    assert edges == {("author", "writes", "paper"): [(0, 1), (0, 0)], ("paper", "cites", "paper"): [(1, 0)]}
    assert nodes["paper"]["year"] == [1999, 2001] and nodes["author"]["age"] == [40]
    assert values == {
        ("author", "writes", "paper"): {"weight": [0.5, 1.5]},
        ("paper", "cites", "paper"): {"since": [2001]},
    }
    files["edges.csv"] += "7,8,cites,,\n"
    (tmp_path / "again").mkdir()
    with pytest.raises(AssertionError, match="no node"):
        run("Types or relations in a column", tmp_path / "again", files)


def test_triples(tmp_path):
    lines = '/m/2\t/a/b\t/m/1\n/m/1\t"x\tNA\nNA\t/a/b\t/m/2\n'
    run("Triples", tmp_path, {"train.txt": lines})
    counts, edges, _, values = graph_of(
        tmp_path / "triples.csv", tables=TableOptions(categories=("rel",), types={"src": "string", "dst": "string"})
    )
    assert counts == {"_N": 3} and ids_of(tmp_path / "triples.csv", "_N") == ["/m/1", "/m/2", "NA"]
    assert edges == {("_N", "_E", "_N"): [(1, 0), (0, 2), (2, 1)]}
    assert values == {("_N", "_E", "_N"): {"rel": [1, 0, 1]}}


def test_foreign_keys(tmp_path):
    files = {
        "customer.csv": "id,age\nann,30\nbob,40\n",
        "product.csv": "id,price\n7,0.5\n9,1.5\n",
        "order.csv": "id,customer_id,product_id,amount\n1,bob,9,2\n2,ann,,1\n3,bob,7,5\n",
    }
    run("Foreign keys", tmp_path, files)
    counts, edges, nodes, _ = graph_of(tmp_path / "tables")
    assert counts == {"customer": 2, "order": 3, "product": 2}
    assert edges == {
        ("order", "contains", "product"): [(0, 1), (2, 0)],
        ("order", "placed_by", "customer"): [(0, 1), (1, 0), (2, 1)],
    }
    assert nodes["order"]["amount"] == [2, 1, 5] and nodes["product"]["price"] == [0.5, 1.5]


NEO4J = {
    "graph/movies.csv": "movieId:ID,title,year:int,:LABEL,score:double,seen:boolean,tags:string[],vector:float[],"
    'released:date\ntt0133093,"The ""first"", Matrix",1999,Movie,8.7,true,a;b,1;2,1999-03-31\n'
    'tt0234215,"The Matrix\nReloaded",2003,Movie;Sequel,7.2,false,a,3;4.5,2003-05-15\n'
    "007,Moonraker,,Movie;Sequel,,false,,5;6,1979-06-26\n7,Seven,1995,Movie,8.6,true,,7;8,1995-09-22\n",
    "graph/people.csv": ":ID,born:int,:LABEL\nkeanu,1964,Person\nlaurence,1961,Person\n",
    "graph/roles.csv": ":START_ID,role,:END_ID,:TYPE,minutes:int\nkeanu,Neo,tt0133093,ACTED_IN,100\n"
    "laurence,Morpheus,tt0133093,ACTED_IN,90\nkeanu,Neo,007,DIRECTED,\ntt0234215,,tt0133093,FOLLOWS,1\n"
    'keanu,"Neo, again",tt0234215,ACTED_IN,101\n',
    "graph/LIKES.csv": ":START_ID,:END_ID\nkeanu,laurence\n",
}
NEPTUNE = {
    "graph/v.csv": "~id,~label,age:Int,likes:Double[],on:Date\n1,person;user,3,1.5;2,2020-01-01T00:00:01Z\n"
    "2,person,4,3;4,2020-01-01T00:00:02Z\n",
    "graph/w.csv": "~id,~label,weight:Double(single)\nx,thing,1.5\n",
    "graph/e.csv": "~id,~from,~to,~label,a:Int\ne1,1,2,knows,7\ne2,2,1,knows,8\ne3,1,x,owns,9\n",
}


def test_neo4j(tmp_path):
    run("Neo4j and Neptune", tmp_path, NEO4J)
    counts, edges, nodes, values = graph_of(tmp_path / "tables")
    assert counts == {"Movie": 4, "Person": 2}
    assert edges == {
        ("Movie", "FOLLOWS", "Movie"): [(1, 0)],
        ("Person", "ACTED_IN", "Movie"): [(0, 0), (1, 0), (0, 1)],
        ("Person", "DIRECTED", "Movie"): [(0, 2)],
        ("Person", "LIKES", "Person"): [(0, 1)],
    }
    assert ids_of(tmp_path / "tables", "Movie") == ["tt0133093", "tt0234215", "007", "7"]
    movies = nodes["Movie"]
    assert same(movies["year"], [1999, 2003, NAN, 1995]) and np.allclose(
        movies["score"], [8.7, 7.2, NAN, 8.6], equal_nan=True
    )
    assert movies["label_Sequel"] == [0, 1, 1, 0] and movies["vector"] == [[1, 2], [3, 4.5], [5, 6], [7, 8]]
    assert (
        movies["released"]
        == np.array(["1999-03-31", "2003-05-15", "1979-06-26", "1995-09-22"], "M8[s]").astype(int).tolist()
    )
    assert nodes["Person"]["born"] == [1964, 1961] and set(nodes["Person"]) == {"id", "born"}
    assert values["Person", "ACTED_IN", "Movie"] == {"minutes": [100, 90, 101]}


def test_neptune(tmp_path):
    run("Neo4j and Neptune", tmp_path, NEPTUNE)
    counts, edges, nodes, values = graph_of(tmp_path / "tables")
    assert counts == {"person": 2, "thing": 1}
    assert edges == {("person", "knows", "person"): [(0, 1), (1, 0)], ("person", "owns", "thing"): [(0, 0)]}
    person = nodes["person"]
    assert person["age"] == [3, 4] and person["label_user"] == [1, 0] and person["likes"] == [[1.5, 2], [3, 4]]
    assert person["on"] == [1577836801, 1577836802] and nodes["thing"]["weight"] == [1.5]
    assert values["person", "knows", "person"] == {"a": [7, 8]}


PAPERS = {
    "node_type": "paper", "format": {"name": "json"}, "files": "papers_*.json", "node_id_col": "id",
    "features": [
        {"feature_col": "emb"},
        {"feature_col": ["year", "size"], "feature_name": "both"},
        {"feature_col": "year", "feature_name": "when"},
    ],
    "labels": [{"label_col": "label", "task_type": "classification", "split_pct": [0, 0, 0]}],
}  # fmt: skip
AUTHORS = {
    "node_type": "author", "format": {"name": "csv", "separator": "|"}, "files": ["authors.csv"],
    "features": [{"feature_col": "h"}],
}  # fmt: skip
WRITES = {
    "relation": ["author", "writes", "paper"], "format": {"name": "csv"}, "files": "writes.csv",
    "source_id_col": "a", "dest_id_col": "p", "features": [{"feature_col": "w", "feature_name": "weight"}],
}  # fmt: skip
GRAPHSTORM = {
    "conf.json": json.dumps({"nodes": [PAPERS, AUTHORS], "edges": [WRITES]}),
    "papers_0.json": '{"id": "p3", "emb": [0.5, 1.0], "year": 2000, "size": 1.5, "label": 0, "x": "a"}\n',
    "papers_1.json": '{"id": "p1", "emb": [1.5, 2.0], "year": 2010, "size": 2.5, "label": 1, "x": "b"}\n'
    '{"id": "p10", "emb": [4.5, 5.0], "year": 2020, "size": 3.5, "label": 2, "x": "c"}\n',
    "authors.csv": "h|name\n1|x\n2|y\n3|z\n",
    "writes.csv": "a,p,w\n0,p1,1.5\n2,p10,2.5\n1,p3,3.5\n",
}


def test_graphstorm(tmp_path):
    run("GraphStorm", tmp_path, GRAPHSTORM)
    counts, edges, nodes, values = graph_of(tmp_path / "tables")
    assert counts == {"author": 3, "paper": 3} and ids_of(tmp_path / "tables", "paper") == ["p3", "p1", "p10"]
    assert edges == {("author", "writes", "paper"): [(0, 1), (2, 2), (1, 0)]}
    paper = {name: value for name, value in nodes["paper"].items() if name != "id"}
    assert paper == {
        "emb": [[0.5, 1], [1.5, 2], [4.5, 5]],
        "both": [[2000, 1.5], [2010, 2.5], [2020, 3.5]],
        "when": [2000, 2010, 2020],
        "label": [0, 1, 2],
    }
    assert nodes["author"] == {"h": [1, 2, 3]}
    assert values["author", "writes", "paper"] == {"weight": [1.5, 2.5, 3.5]}


DGL_CSV = {
    "dataset/meta.yaml": "dataset_name: typed\nseparator: ;\nedge_data:\n- file_name: follows.csv\n"
    "  etype: [user, follows, user]\n- file_name: likes.csv\n  etype: [user, likes, item]\n  src_id_field: from\n"
    "  dst_id_field: to\nnode_data:\n- {file_name: users.csv, ntype: user}\n"
    "- {file_name: items.csv, ntype: item, node_id_field: key}\n",
    "dataset/users.csv": "node_id;age;feat;train_mask\nbob;3;1, 2.5;True\nalice;4;3, 4;False\ncarol;5;5, 6;True\n",
    "dataset/items.csv": "key;x\n7;0.5\n-3;1.5\n",
    "dataset/follows.csv": "src_id;dst_id\nalice;bob\ncarol;alice\n",
    "dataset/likes.csv": "from;to;when\nbob;7;2020-01-01\ncarol;-3;2020-01-02\n",
}


def test_dgl_csv(tmp_path):
    run("DGL's CSVDataset", tmp_path, DGL_CSV)
    counts, edges, nodes, values = graph_of(tmp_path / "tables")
    assert counts == {"item": 2, "user": 3} and ids_of(tmp_path / "tables", "user") == ["alice", "bob", "carol"]
    assert edges == {("user", "follows", "user"): [(0, 1), (2, 0)], ("user", "likes", "item"): [(1, 1), (2, 0)]}
    assert nodes["item"] == {"id": [-3, 7], "x": [1.5, 0.5]}
    user = nodes["user"]
    assert user["age"] == [4, 3, 5] and user["feat"] == [[3, 4], [1, 2.5], [5, 6]] and user["train_mask"] == [0, 1, 1]
    assert values["user", "likes", "item"] == {"when": [1577836800, 1577923200]}


def test_json_lines(tmp_path):
    files = {
        "nodes.jsonl": '{"id": "b", "x": [1, 2], "year": 1999}\n{"id": "a", "x": [3, 4.5], "year": null}\n',
        "edges.jsonl": '{"src": "a", "dst": "b", "w": 0.5}\n{"src": "b", "dst": "b", "w": 1}\n',
    }
    run("JSON lines", tmp_path, files)
    counts, edges, nodes, values = graph_of(tmp_path / "tables")
    assert counts == {"_N": 2} and edges == {("_N", "_E", "_N"): [(1, 0), (0, 0)]}
    assert nodes["_N"]["x"] == [[1, 2], [3, 4.5]] and same(nodes["_N"]["year"], [1999, NAN])
    assert values == {("_N", "_E", "_N"): {"w": [0.5, 1]}}


COORDINATES = "%%MatrixMarket matrix coordinate"
ONE, TWO = ("_N", "_E", "_N"), ("row", "to", "column")
LISTS = [
    ("Matrix Market", COORDINATES + " real general\n% a comment\n4 4 3\n1 2 0.5\n4 1 1.5\n2 2 2.5\n",
     {"_N": 4}, {ONE: [(0, 1), (3, 0), (1, 1)]}, {"weight": [0.5, 1.5, 2.5]}),
    ("Matrix Market", COORDINATES + " integer symmetric\n3 3 3\n2 1 5\n3 3 6\n3 1 7\n",
     {"_N": 3}, {ONE: [(1, 0), (2, 2), (2, 0), (0, 1), (0, 2)]}, {"weight": [5, 6, 7, 5, 7]}),
    ("Matrix Market", COORDINATES + " integer general\n2 5 2\n1 5 3\n2 4 4\n",
     {"column": 5, "row": 2}, {TWO: [(0, 4), (1, 3)]}, {"weight": [3, 4]}),
    ("KONECT", "% asym posweighted\n% 3 4 4\n1 2 0.5 1000000000\n2\t2\t1 1000000001\n 3  4 2  1000000001 \n",
     {"_N": 4}, {ONE: [(0, 1), (1, 1), (2, 3)]}, {"weight": [0.5, 1, 2], "time": [10**9, 10**9 + 1, 10**9 + 1]}),
    ("KONECT", "% sym signed\n1 2 -1\n3 3 1\n1 3 1\n",
     {"_N": 3}, {ONE: [(0, 1), (2, 2), (0, 2), (1, 0), (2, 0)]}, {"weight": [-1, 1, 1, -1, 1]}),
    ("KONECT", "% bip unweighted\n% 3 2 5\n1 5\n2 1\n2 2\n",
     {"left": 2, "right": 5}, {("left", "to", "right"): [(0, 4), (1, 0), (1, 1)]}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("recipe", "text", "counts", "edges", "feats"), LISTS)
def test_a_list_of_edges(tmp_path, recipe, text, counts, edges, feats):
    run(recipe, tmp_path, {"out.net" if recipe == "KONECT" else "graph.mtx": text})
    found, pairs, _, values = graph_of(tmp_path / "graph.npz")
    assert (found, pairs, values) == (counts, edges, dict.fromkeys(edges, feats))


def metis_text(fmt):
    """A graph of five nodes, with the weights that the digits of a format ask for."""
    sizes, of_nodes, of_edges = (digit == "1" for digit in (fmt or "000")[:3])
    number = int(fmt[4:] or 1) * of_nodes
    lines = [f"5 3 {fmt}"]
    for node, others in enumerate([[2, 5], [1], [], [5], [1, 4]]):
        values = [7 + node] * sizes + [100 * node + i for i in range(number)]
        for other in others:
            values += [other, 10 * min(node, other - 1) + max(node, other - 1)] if of_edges else [other]
        lines += ["% a comment", " ".join(map(str, values))]
    return "\n".join([*lines, "", ""])


@pytest.mark.parametrize("fmt", ["", "001", "110", "111 3"])
def test_metis(tmp_path, fmt):
    run("METIS", tmp_path, {"net.graph": metis_text(fmt)})
    counts, edges, nodes, values = graph_of(tmp_path / "graph.npz")
    wanted = [(0, 1), (0, 4), (1, 0), (3, 4), (4, 0), (4, 3)]
    assert counts == {"_N": 5} and edges == {("_N", "_E", "_N"): wanted}
    feats = {}
    if fmt[:1] == "1":
        feats["size"] = [7, 8, 9, 10, 11]
    if fmt[1:2] == "1":
        weights = 100 * np.arange(5)[:, None] + np.arange(int(fmt[4:] or 1))
        feats["weight"] = weights.squeeze().tolist()
    assert nodes == {"_N": feats}
    of_edges = {"weight": [10 * min(edge) + max(edge) for edge in wanted]} if fmt[2:3] == "1" else {}
    assert values == {("_N", "_E", "_N"): of_edges}


HGB_INFO = {
    "node.dat": {"node type": {"0": "paper", "1": "author"}},
    "link.dat": {
        "link type": {
            "0": {"start": 0, "end": 0, "meaning": "paper-cite-paper"},
            "1": {"start": 0, "end": 1, "meaning": "paper-author"},
            "2": {"start": 1, "end": 0, "meaning": "author->paper"},
        }
    },
    "label.dat": {"node type": {"0": {"0": "a", "1": "b", "2": "c"}}},
}
HGB = {
    "info.dat": json.dumps(HGB_INFO),
    "node.dat": "0\ta title, with commas\t0\t1,2.5\n1\tx\t0\t3,4\n2\tann\t1\n3\t\t1\n4\tz\t0\t5,6\n",
    "link.dat": "0\t1\t0\t1.0\n4\t0\t0\t0.5\n1\t3\t1\t1.0\n2\t4\t2\t2\n",
    "label.dat": "0\ta\t0\t2\n",
    "label.dat.test": "4\tz\t0\t0\n",
}


def originals(path):
    """A partitioned graph by original ids: pairs of edges, features of nodes."""
    source = read_source(path)
    edges = {}
    for r, relation in enumerate(source.schema.relations):
        ends = zip(source.edges[r], source.schema.ends(r), strict=True)
        src, dst = (rows(source.node_ids[t])[rows(end)] for end, t in ends)
        order = np.argsort(rows(source.edge_ids[r]))
        edges[relation] = list(zip(src[order].tolist(), dst[order].tolist(), strict=True))
    order = {t: np.argsort(rows(ids)) for t, ids in zip(source.schema.ntypes, source.node_ids, strict=True)}
    feats = {
        ntype: {name: rows(feature.values)[order[ntype]].tolist() for name, feature in features.items()}
        for ntype, features in source.node_feats.items()
    }
    return edges, feats


def test_hgb(tmp_path):
    run("HGB", tmp_path, {f"hgb/acm/raw/ACM/{name}": text for name, text in HGB.items()})
    edges, feats = originals(tmp_path / "parts" / "acm.json")
    assert edges == {
        ("author", "to", "paper"): [(0, 2)],
        ("paper", "cite", "paper"): [(0, 1), (2, 0)],
        ("paper", "to", "author"): [(1, 1)],
    }
    paper = feats["paper"]
    assert paper["x"] == [[1, 2.5], [3, 4], [5, 6]] and paper["y"] == [2, -1, 0]
    assert paper["train_mask"] == [1, 0, 0] and paper["test_mask"] == [0, 0, 1]


@pytest.mark.parametrize("of_dataset", [False, True])
def test_pt_file(tmp_path, of_dataset):
    torch = pytest.importorskip("torch")
    data_of = pytest.importorskip("torch_geometric.data")
    data = data_of.HeteroData()
    data["a"].x = torch.tensor([[1.0], [2.0]])
    data["b"].num_nodes = 3
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1, 1], [2, 0, 1]])
    torch.save((data.to_dict(), None, data_of.HeteroData) if of_dataset else data, tmp_path / "data.pt")
    run("A `.pt` file of PyG", tmp_path, {})
    edges, feats = originals(tmp_path / "parts" / "g.json")
    assert edges == {("a", "to", "b"): [(0, 2), (1, 0), (1, 1)]} and feats["a"] == {"x": [[1], [2]]}


def test_networkx(tmp_path):
    networkx = pytest.importorskip("networkx")
    graph = networkx.DiGraph()
    graph.add_nodes_from(["a", "b", "c"], height=1.5)
    graph.add_edges_from([("a", "c"), ("c", "b")])
    networkx.write_graphml(graph, tmp_path / "graph.graphml")
    run("networkx", tmp_path, {})
    edges, feats = originals(tmp_path / "parts" / "g.json")
    assert edges == {("_N", "_E", "_N"): [(0, 2), (2, 1)]} and feats["_N"] == {"height": [1.5, 1.5, 1.5]}


@pytest.fixture
def exported(tmp_path):
    """A folder with ``exported``, of a partitioned graph of two types, and the graph."""
    source = typed_source({"a": 5, "b": 4}, {("a", "to", "b"): 9, ("b", "on", "b"): 6})
    path = partition_source(source, "g", 2, tmp_path / "in", "random").path
    assert main(["export", str(path), "-o", str(tmp_path / "exported")]) == 0
    return tmp_path, graph_of(tmp_path / "exported")


def test_to_pyg(exported):
    torch = pytest.importorskip("torch")
    folder, (counts, edges, nodes, values) = exported
    run("To PyG", folder, {})
    data = torch.load(folder / "data.pt", weights_only=False)
    assert {ntype: data[ntype].num_nodes for ntype in data.node_types} == counts
    assert {key: list(map(tuple, data[key].edge_index.T.tolist())) for key in data.edge_types} == edges
    assert all(data[ntype][name].tolist() == rows for ntype, feats in nodes.items() for name, rows in feats.items())
    assert all(data[key][name].tolist() == rows for key, feats in values.items() for name, rows in feats.items())


def test_to_dgl(exported):
    dgl = pytest.importorskip("dgl")
    folder, (counts, edges, nodes, _) = exported
    run("To DGL", folder, {})
    graph = dgl.load_graphs(str(folder / "graph.bin"))[0][0]
    assert {ntype: graph.num_nodes(ntype) for ntype in graph.ntypes} == counts
    for key in graph.canonical_etypes:
        assert list(zip(*(ends.tolist() for ends in graph.edges(etype=key)), strict=True)) == edges[key]
    for ntype, feats in nodes.items():
        assert all(graph.nodes[ntype].data[name].tolist() == rows for name, rows in feats.items())
