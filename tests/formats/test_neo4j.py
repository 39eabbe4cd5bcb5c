"""Property graphs as Neo4j imports and Neptune exports them: what the files say is what is partitioned."""

import gzip
import os

import numpy as np
import pytest
from input_checks import check_all, check_parts, rows, texts_of, values_of

from mpigraph.errors import GraphDataError
from mpigraph.formats import table_files
from mpigraph.formats.readers import read_source
from mpigraph.formats.typed_tables import TableOptions

MOVIES = """\
movieId:ID,title,year:int,:LABEL,score:double,seen:boolean,tags:string[],vector:float[],released:date
tt0133093,"The ""first"", Matrix",1999,Movie,8.7,true,a;b,1;2,1999-03-31
tt0234215,"The Matrix
Reloaded",2003,Movie;Sequel,7.2,,a,3;4.5,2003-05-15
007,Moonraker,,Movie;Sequel,,false,,,1979-06-26
7,Seven,1995,Movie,8.6,true,,5;6,1995-09-22
"""
PEOPLE = """\
:ID,born:int,:LABEL
keanu,1964,Person
laurence,1961,Person
"""
ROLES = """\
:START_ID,role,:END_ID,:TYPE,minutes:int
keanu,Neo,tt0133093,ACTED_IN,100
laurence,Morpheus,tt0133093,ACTED_IN,90
keanu,Neo,007,DIRECTED,
tt0234215,,tt0133093,FOLLOWS,1
keanu,"Neo, again",tt0234215,ACTED_IN,101
"""
PEOPLE_AND_MOVIES = {
    ("Movie", "FOLLOWS", "Movie"): [(1, 0)],
    ("Person", "ACTED_IN", "Movie"): [(0, 0), (1, 0), (0, 1)],
    ("Person", "DIRECTED", "Movie"): [(0, 2)],
}


def write(folder, **files):
    folder.mkdir(exist_ok=True, parents=True)
    for name, text in files.items():
        (folder / f"{name}.csv").write_bytes(text.encode())
    return folder


def edges_of(source):
    pairs = [list(zip(rows(src).tolist(), rows(dst).tolist(), strict=True)) for src, dst in source.edges]
    return dict(zip(source.schema.relations, pairs, strict=True))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks of every file."""
    monkeypatch.setattr(table_files, "_BLOCK_BYTES", 400)


def test_nodes_edges_labels_and_properties(tmp_path):
    source = read_source(write(tmp_path / "in", movies=MOVIES, people=PEOPLE, roles=ROLES))
    assert source.schema.ntypes == ("Movie", "Person") and source.num_nodes == (4, 2)
    assert edges_of(source) == PEOPLE_AND_MOVIES
    movies = source.node_feats["Movie"]
    assert texts_of(movies["id"]) == ["tt0133093", "tt0234215", "007", "7"]
    assert rows(movies["label_Sequel"].values).tolist() == [0, 1, 1, 0] and movies["label_Sequel"].dtype == "bool"
    assert np.array_equal(rows(movies["year"].values), [1999, 2003, np.nan, 1995], equal_nan=True)
    assert np.array_equal(rows(movies["score"].values), [8.7, 7.2, np.nan, 8.6], equal_nan=True)
    assert movies["score"].dtype == "float64" and movies["vector"].dtype == "float32"
    vectors = [[1, 2], [3, 4.5], [np.nan, np.nan], [5, 6]]
    assert np.array_equal(rows(movies["vector"].values), vectors, equal_nan=True)
    assert rows(movies["seen"].values).tolist() == [1, 0, 0, 1]
    days = np.array(["1999-03-31", "2003-05-15", "1979-06-26", "1995-09-22"], "M8[s]").astype(np.int64)
    assert rows(movies["released"].values).tolist() == days.tolist() and movies["released"].dtype == "int64"
    assert set(movies) == {"id", "label_Sequel", "year", "score", "vector", "seen", "released"}
    people = source.node_feats["Person"]
    assert values_of({"born": people["born"]}) == {"born": [1964, 1961]} and people["born"].dtype == "int64"
    assert texts_of(people["id"]) == ["keanu", "laurence"] and set(people) == {"id", "born"}
    minutes = {key: values_of(features) for key, features in source.edge_feats.items()}
    assert minutes["Person:ACTED_IN:Movie"] == {"minutes": [100, 90, 101]}
    assert minutes["Movie:FOLLOWS:Movie"] == {"minutes": [1]} and minutes["Person:DIRECTED:Movie"] == {}
    assert [line.split(":")[0] for line in source.left_out] == [
        "column 'title' of movies.csv",
        "column 'tags' of movies.csv",
        "column 'role' of roles.csv",
    ]
    check_parts(source, tmp_path / "out")


def test_headers_in_files_of_their_own_and_id_spaces(tmp_path):
    """Ids are those of their space, also integers; edges without types have the name of their file."""
    write(
        tmp_path / "in" / "nodes",
        **{
            "movies-header": "id:ID(Film)|:IGNORE|rank:long\n",
            "movies-10": "3|x|30\n1|x|10\n",
            "movies-2": "2|x|20\n",
            "people": "name|:ID(People)\na|1\nb|2\nc|3\n",
        },
    )
    write(tmp_path / "in" / "relationships", LIKES=":START_ID(People)|:END_ID(Film)\n1|3\n3|2\n1|1\n", README="text\n")
    source = read_source(tmp_path / "in")
    assert source.schema.ntypes == ("Film", "People") and source.num_nodes == (3, 3)
    assert edges_of(source) == {("People", "LIKES", "Film"): [(0, 1), (2, 0), (0, 2)]}
    assert values_of(source.node_feats["Film"]) == {"rank": [20, 30, 10], "id": [2, 3, 1]}
    assert source.left_out == ("column 'name' of people.csv: text", "README.csv: a file without a header")
    check_parts(source, tmp_path / "out")


def test_rows_of_a_type_in_several_files(tmp_path):
    """Values that one file lacks are missing; what files store as different things is left out."""
    write(
        tmp_path / "in",
        a=":ID,:LABEL,x:int,y:float,both:int,n:int[],ragged:int[]\na,A,1,1.5,1,1;2,1\nb,B,2,2.5,,,\n",
        b=":ID,:LABEL,x:int,both:boolean,n:int[],ragged:int[]\nc,A,3,true,3;4,1;2\nd,A,,,5;6,1;2\n",
        e=":START_ID,:END_ID,:TYPE\na,d,R\nd,a,R\n",
    )
    source = read_source(tmp_path / "in")
    a = values_of(source.node_feats["A"])
    assert a.pop("n") == [[1, 2], [3, 4], [5, 6]] and a.pop("id") == [list(b"a"), list(b"c"), list(b"d")]
    assert np.array_equal(a.pop("x"), [1, 3, np.nan], equal_nan=True)
    assert np.array_equal(a.pop("y"), [1.5, np.nan, np.nan], equal_nan=True) and not a
    assert set(source.node_feats["B"]) == {"id", "x", "y"}  # what no row has is no feature
    assert source.node_feats["A"]["n"].dtype == "int64" and len(source.left_out) == 2
    assert edges_of(source) == {("A", "R", "A"): [(0, 2), (2, 0)]}


@pytest.mark.parametrize("packed", [False, True])
def test_neptune(tmp_path, packed):
    files = {
        "v": "~id,~label,age:Int,name:String,likes:Double[],on:Date\n"
        '1,person;user,3,"a\nb",1.5;2,2020-01-01T00:00:01Z\n'
        "2,person,4,,3;4,2020-01-01T00:00:02Z\n",
        "w": "~id,weight:Double(single)\nx,1.5\n",
        "e": "~id,~from,~to,~label,a\\:b:Int\ne1,1,2,knows,7\ne2,2,1,knows,8\ne3,1,x,owns,9\n",
        "f": "~id,~from,~to\nf1,x,x\n",
    }
    write(tmp_path / "in" / "all", **files)
    if packed:
        for path in (tmp_path / "in" / "all").iterdir():
            (tmp_path / "in" / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    source = read_source(tmp_path / "in")
    assert source.schema.ntypes == ("person", "vertex") and source.num_nodes == (2, 1)
    assert edges_of(source) == {
        ("person", "knows", "person"): [(0, 1), (1, 0)],
        ("person", "owns", "vertex"): [(0, 0)],
        ("vertex", "edge", "vertex"): [(0, 0)],
    }
    person = values_of(source.node_feats["person"])
    assert person["age"] == [3, 4] and person["label_user"] == [1, 0] and person["likes"] == [[1.5, 2], [3, 4]]
    assert person["on"] == [1577836801, 1577836802]
    assert values_of(source.node_feats["vertex"])["weight"] == [1.5]
    assert sum("ids of edges" in line for line in source.left_out) == 2


def test_a_hundred_thousand_rows_of_several_types_are_streamed(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "_BLOCK_BYTES", 1 << 18)
    rng = np.random.default_rng(0)
    count = 30_000
    types = rng.integers(0, 3, count)
    order = rng.permutation(count)
    lines = [f"n{i},T{types[i]},{i}" for i in order]
    src, dst = rng.integers(0, count, (2, 2 * count))
    kinds = rng.integers(0, 2, 2 * count)
    edges = [f"n{s},n{d},R{k},{i}" for i, (s, d, k) in enumerate(zip(src, dst, kinds, strict=True))]
    write(
        tmp_path / "in",
        nodes="\n".join([":ID,:LABEL,x:int", *lines]),
        edges="\n".join([":START_ID,:END_ID,:TYPE,e:long", *edges]),
    )
    source = read_source(tmp_path / "in")
    originals = {ntype: rows(source.node_feats[ntype]["x"].values) for ntype in source.schema.ntypes}
    assert {n: v.tolist() for n, v in originals.items()} == {
        f"T{t}": order[types[order] == t].tolist() for t in range(3)
    }
    for (src_type, rel, dst_type), (s, d) in zip(source.schema.relations, source.edges, strict=True):
        numbers = rows(source.edge_feats[f"{src_type}:{rel}:{dst_type}"]["e"].values)
        wanted = (types[src] == int(src_type[1])) & (types[dst] == int(dst_type[1])) & (kinds == int(rel[1]))
        assert np.array_equal(numbers, np.flatnonzero(wanted))
        assert np.array_equal(originals[src_type][rows(s)], src[numbers])
        assert np.array_equal(originals[dst_type][rows(d)], dst[numbers])
    assert len(source.edges) == 18


@pytest.mark.parametrize(
    "files, message",
    [
        (
            {"roles": ROLES.replace("keanu,Neo,007", "keanu,Neo,07")},
            r"roles.csv, row 4: an edge has the id 07, which no",
        ),
        ({"people": PEOPLE + "keanu,1,Person\n"}, r"people.csv, row 4: the id keanu is there already"),
        ({"people": PEOPLE + "007,1,Person\n"}, r"people.csv, row 4: the id 007 is there already"),
        ({"people": PEOPLE + ",1,Person\n"}, r"people.csv, row 4: a value is missing"),
        ({"people": PEOPLE + f"{'x' * 257},1,Person\n"}, r"people.csv, row 4: an id must have 1 to 256 bytes"),
        ({"people": PEOPLE + "x,1.5,Person\n"}, r"people.csv, row 4, column born: 1.5 does not fit int64"),
        (
            {"people": PEOPLE + "x,9223372036854775808,P\n"},
            r"people.csv, row 4, column born: 9223372036854775808 does not fit int64",
        ),
        ({"people": PEOPLE + "x,1\n"}, r"people.csv: cannot be read: .*row 4: Expected 3 columns, got 2"),
        ({"people": PEOPLE.replace(":LABEL", "a:ID")}, r"people.csv: the header needs one column of ids \(got 2\)"),
        ({"roles": ROLES.replace(":END_ID", ":IGNORE")}, r"roles.csv: the header needs one column of tos \(got 0\)"),
        ({"people": PEOPLE.replace(":ID", ":ID(P)")}, r"roles.csv, row 2: an edge has the id keanu, which no"),
        ({"roles": ROLES.replace(":END_ID", ":END_ID(M)")}, r"row 2: an edge has the id tt0133093, .* of id space 'M'"),
        ({"people": ":ID,:LABEL\n", "movies": ":ID,:LABEL\n"}, r"there are no nodes"),
    ],
)
def test_wrong_files_are_named_with_their_rows(tmp_path, files, message):
    write(tmp_path / "in", **{"movies": MOVIES, "people": PEOPLE, "roles": ROLES} | files)
    with pytest.raises(GraphDataError, match=message) as error:
        check_all(read_source(tmp_path / "in"))
    assert str(tmp_path) in str(error.value)


def test_labels_are_stripped_and_edges_may_be_missing(tmp_path):
    nodes = ":ID,:LABEL\na, A ; B\nb,;A\nc,B\nd,\n"
    edges = ":START_ID,:END_ID,:TYPE\n"
    source = read_source(write(tmp_path / "in", nodes=nodes, edges=edges))
    assert source.schema.ntypes == ("A", "B", "_N") and source.num_nodes == (2, 1, 1) and source.schema.relations == ()
    assert rows(source.node_feats["A"]["label_B"].values).tolist() == [1, 0]


def test_first_rows_that_look_like_comments_are_rows(tmp_path):
    files = {"n_header": ":ID,x:int\n", "n": "#a,1\n#b,2\n", "e": ':START_ID,":END_ID",:TYPE\n#a,"#b",R\n'}
    source = read_source(write(tmp_path / "in", **files))
    assert source.num_nodes == (2,) and edges_of(source) == {("_N", "R", "_N"): [(0, 1)]}


def test_large_ids(tmp_path):
    """Integers keep their value as far as int64 has it; else ids are bytes."""
    ids = [2**31, 2**63 - 1, -(2**63)]
    nodes = ":ID\n" + "".join(f"{number}\n" for number in ids)
    edges = f":START_ID,:END_ID,:TYPE\n{ids[0]},{ids[1]},R\n{ids[2]},{ids[0]},R\n"
    source = read_source(write(tmp_path / "in", nodes=nodes, edges=edges))
    assert rows(source.node_feats["_N"]["id"].values).tolist() == ids
    assert edges_of(source) == {("_N", "R", "_N"): [(0, 1), (2, 0)]}
    source = read_source(write(tmp_path / "in", nodes=f"{nodes}{2**63}\n"))
    assert texts_of(source.node_feats["_N"]["id"]) == [str(number) for number in [*ids, 2**63]]


def test_many_files_take_few_open_ones(tmp_path):
    files = {f"n{number}": f":ID,x:int,y:float\n{number},{number},1\n" for number in range(60)}
    before = len(os.listdir("/proc/self/fd"))
    source = read_source(write(tmp_path / "in", e=":START_ID,:END_ID,:TYPE\n1,2,R\n", **files))
    assert len(os.listdir("/proc/self/fd")) - before < 20
    assert rows(source.node_feats["_N"]["x"].values).tolist() == list(range(60))


def test_categories_and_types_that_the_user_names(tmp_path):
    """Names have one numbering in all files and types, in their order; without a name there is -1."""
    files = {
        "a": ":ID,:LABEL,topic,year,label\n1,A,physics,1,no\n2,B,,,yes\n3,A, art ,3,\n",
        "b": ":ID,:LABEL,topic\n4,A,été\n5,C,art\n",
        "e": ":START_ID,:END_ID,:TYPE\n1,2,R\n",
    }
    path = write(tmp_path / "in", **files)
    assert len(read_source(path).left_out) == 4
    options = TableOptions(types={"year": "int64"}, categories=("topic", "label"))
    source = read_source(path, tables=options)
    found = {ntype: values_of(source.node_feats[ntype]) for ntype in "ABC"}
    assert found["A"]["topic"] == [1, 0, 2] and found["C"] == {"topic": [0], "id": [5]}  # art, physics, été
    assert found["A"]["label"] == [0, -1, -1] and found["B"] == {"label": [1], "id": [2]}
    assert np.array_equal(found["A"]["year"], [1, 3, np.nan], equal_nan=True) and source.left_out == ()
    check_parts(source, tmp_path / "out")
    with pytest.raises(GraphDataError, match="no file has a property 'no' "):
        read_source(path, tables=TableOptions(categories=("no",)))
    with pytest.raises(GraphDataError, match="features are the properties of the files"):
        read_source(path, tables=TableOptions(columns={"x": ("year",)}))
