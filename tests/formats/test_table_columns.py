"""Edge lists in csv and parquet files: their numbering, their features, and what is wrong with them."""

import gzip
import os

import numpy as np
import pyarrow as pa
import pytest
from input_checks import bytes_in_memory, check_all, check_parts, rows, texts_of
from pyarrow import parquet
from table_files import ends, features, lines, read

from mpigraph.errors import GraphDataError, StorageError
from mpigraph.formats import input_files, text_files
from mpigraph.formats.input_files import opened as open_file
from mpigraph.formats.readers import read_source

RNG = np.random.default_rng(1)
NUM_NODES = 30
SRC, DST = np.concatenate([np.tile(np.arange(NUM_NODES), 2), RNG.integers(0, NUM_NODES, (140))]).reshape(2, 100)
WEIGHT = RNG.random(100).round(3)
COUNT = RNG.integers(-5, 5, 100)


def write_csv(path, src=SRC, dst=DST, begin=0, end=100, delimiter=",", header=True, comments=()):
    path.parent.mkdir(exist_ok=True)
    fields = zip(src[begin:end], dst[begin:end], WEIGHT[begin:end], COUNT[begin:end], strict=True)
    names = [("src", "dst", "weight", "count")] if header else []
    with (gzip.open if path.name.endswith(".gz") else open)(path, "wt") as file:
        file.writelines(f"{line}\n" for line in comments)
        file.writelines(f"{delimiter.join(map(str, line))}\n" for line in [*names, *fields])
    return path


def write_parquet(path, src=SRC, dst=DST, begin=0, end=100, **more):
    path.parent.mkdir(exist_ok=True)
    columns = {"src": src, "dst": dst, "weight": WEIGHT, "count": COUNT, **more}
    table = pa.table({name: pa.array(values[begin:end]) for name, values in columns.items()})
    parquet.write_table(table, path, row_group_size=17)
    return path


def write_both(folder, write, name):
    write(folder / f"a{name}", end=41)
    write(folder / f"b{name}", begin=41, end=41)
    write(folder / f"c{name}", begin=41)
    return folder


WRITERS = {
    "csv": lambda t: write_csv(t / "g.csv"),
    "tsv": lambda t: write_csv(t / "g.tsv", delimiter="\t"),
    "packed csv": lambda t: write_csv(t / "g.csv.gz"),
    "csv without names": lambda t: write_csv(t / "g.txt", header=False, delimiter=" ", comments=("# a", "# b c")),
    "csv files": lambda t: write_both(t / "in", write_csv, ".csv"),
    "parquet": lambda t: write_parquet(t / "g.parquet"),
    "parquet files": lambda t: write_both(t / "in", write_parquet, ".parquet"),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks of every file."""
    monkeypatch.setattr(text_files, "_BLOCK_BYTES", 200)


@pytest.mark.parametrize("kind", WRITERS)
def test_edge_lists(tmp_path, kind):
    source = read_source(WRITERS[kind](tmp_path))
    assert source.num_nodes == (NUM_NODES,) and source.schema.is_homogeneous
    assert ends(source) == [SRC.tolist(), DST.tolist()]
    feats = source.edge_feats["_N:_E:_N"]
    names = ("column2", "column3") if "without names" in kind else ("weight", "count")
    assert tuple(feats) == names
    for name, values in zip(names, (WEIGHT, COUNT), strict=True):
        values = values.astype(np.float32) if values.dtype.kind == "f" else values
        assert np.array_equal(rows(feats[name].values), values) and feats[name].dtype == values.dtype.name
        chosen = RNG.permutation(100)
        assert np.array_equal(feats[name].values[chosen], values[chosen])
    assert source.node_feats["_N"] == {}  # ids are dense
    assert bytes_in_memory(source) == 0
    if kind in ("csv", "parquet files"):
        check_parts(source, tmp_path / "out")


@pytest.mark.parametrize(("write", "first"), [(write_csv, 2), (write_parquet, 0)])
def test_a_given_number_of_nodes_keeps_ids(tmp_path, write, first):
    path = write(tmp_path / f"g.{'csv' if first else 'parquet'}", src=3 * SRC, dst=3 * DST)
    source = read_source(path, num_nodes=200)
    assert source.num_nodes == (200,) and source.node_feats["_N"] == {}
    assert ends(source) == [(3 * SRC).tolist(), (3 * DST).tolist()]
    row = int(np.flatnonzero(SRC == NUM_NODES - 1)[0])
    with pytest.raises(GraphDataError, match=rf"row {row + first}, column src: edge {row} of .* has source 87, but"):
        check_all(read_source(path, num_nodes=87))
    np.savez(tmp_path / "x.npz", edge_src=[0], edge_dst=[0])
    with pytest.raises(GraphDataError, match=r"the number of nodes cannot be given for npz"):
        read_source(tmp_path / "x.npz", num_nodes=3)


@pytest.mark.parametrize("kind", ["csv", "parquet", "dictionary"])
def test_strings_are_numbered_by_their_bytes(tmp_path, kind):
    names = np.unique([f"né{i * 7 % 13}" * (1 + i % 3) for i in range(NUM_NODES)])
    src, dst = names[SRC % len(names)], names[DST % len(names)]
    if kind == "csv":
        path = write_csv(tmp_path / "g.csv", src=src, dst=dst)
    elif kind == "parquet":
        path = write_parquet(tmp_path / "g.parquet", src=src, dst=dst)
    else:
        coded = {name: pa.array(its).dictionary_encode() for name, its in (("src", src), ("dst", dst))}
        path = tmp_path / "g.parquet"
        parquet.write_table(pa.table(coded), path)
    source = read_source(path)
    assert source.num_nodes == (len(names),) and source.node_feats["_N"]["id"].dtype == "uint8"
    texts = texts_of(source.node_feats["_N"]["id"])
    assert texts == sorted(names.tolist(), key=str.encode)
    assert [[texts[i] for i in its] for its in ends(source)] == [src.tolist(), dst.tolist()]
    assert bytes_in_memory(source) == 0
    if kind == "csv":
        check_parts(source, tmp_path / "out")
    with pytest.raises(GraphDataError, match="row [02], column src: ids of '_N' are text, so nodes cannot be known by"):
        read_source(path, num_nodes=99)


AS_TEXT = {"types": {"src": "string"}}


@pytest.mark.parametrize(
    ("edges", "options", "names"),
    [
        (lines("src,dst", *["10,9"] * 60, "9,x"), {}, ["10", "9", "x"]),  # text where a later one is
        ("alice, bob\nbob , carol\n", {"columns": {"src": ("alice",), "dst": ("bob",)}}, ["bob", "carol"]),
        (lines(" src ,dst", "alice, bob", "bob , carol"), {}, ["alice", "bob", "carol"]),
        (lines("src,dst", "007,07", "7,0x1F", "31,-0", "0,+7"), {}, sorted("007 07 7 0x1F 31 -0 0 +7".split())),
        (lines("src,dst", "9223372036854775808,1"), {}, ["1", "9223372036854775808"]),
        (lines("src,dst", "-9223372036854775807, 5"), {}, [-(2**63) + 1, 5]),
        (lines("src,dst", "007,8", "7,8"), {"types": {"src": "int64"}}, [7, 8]),
        (lines("src,dst", "1,8", "10,8"), AS_TEXT, ["1", "10", "8"]),
        (lines("src,dst", "1.0,2.0"), {"types": {"src": "string", "dst": "string"}}, ["1.0", "2.0"]),
        (lines("src,dst", "NA, a", "null,NA"), {}, ["NA", "a", "null"]),
        ({"src": ["7", "10"], "dst": ["10", "8"]}, {}, ["10", "7", "8"]),  # in parquet a column has a type
        ({"src": ["07", "9"], "dst": [9, 8]}, {"types": {"src": "int64"}}, [7, 8, 9]),
        ({"src": [7, 10], "dst": [10, 8]}, AS_TEXT, ["10", "7", "8"]),
    ],
)
def test_ids_are_kept_as_they_are_written(tmp_path, edges, options, names):
    original = read(tmp_path, edges, **options).node_feats["_N"]["id"]
    assert (rows(original.values).tolist() if original.dtype == "int64" else texts_of(original)) == names


TIMES = ["2024-01-31 12:00:00", "2024-01-31 12:00:00.900001"]
NAMED = {"types": {"w": "float64"}}


def w(*values, before="0,1,"):
    """Return csv of edges with a column w."""
    return lines("src,dst,w", *(f"{before}{value}" for value in values))


def column_w(*values, type=None):
    """Return columns of parquet."""
    return {"src": [0] * len(values), "dst": [1] * len(values), "w": pa.array(values, type)}


@pytest.mark.parametrize(
    ("edges", "options", "dtype", "values"),
    [
        ({"1.csv": w(*[""] * 60), "2.csv": w(*[3] * 60), "3.csv": w(0.5, "")}, {}, "float32",
         [None] * 60 + [3] * 60 + [0.5, None]),
        ({"part-10.csv": w(10), "part-2.csv": w(2)}, {}, "int64", [2, 10]),  # files in natural order
        (w(*[3] * 60), {}, "int64", [3] * 60),
        (w(*[2**53 + 1] * 60, 0.5), NAMED, "float64", [2.0**53] * 60 + [0.5]),
        (w(2**53 + 2, 0.5, 1e300), NAMED, "float64", [2.0**53 + 2, 0.5, 1e300]),
        (w(2**63, 1), NAMED, "float64", [2.0**63, 1]),
        (w("inf", "-inf", 0.5), {}, "float32", [np.inf, -np.inf, 0.5]),
        # a quote inside a field does not count, and those around one may have ends of lines between them
        (lines("src,dst,w,note", '0,1,2,5" pipe', *[f'0,1,3,"{"a" + chr(10) * 20}"'] * 9, "0,1,4,end"), {}, "int64",
         [2, *[3] * 9, 4]),
        (w(3, 4, ""), {"types": {"w": "float32"}}, "float32", [3, 4, None]),
        (w("3.0", "4"), {"types": {"w": "int16"}}, "int16", [3, 4]),
        (w(*['"0.5,1"'] * 60), {}, "float32", [[0.5, 1]] * 60),
        (w(*["[0.5; 1]"] * 60), {}, "float32", [[0.5, 1]] * 60),
        (w(*["[0.5 1]"] * 60, "[0 1]"), {}, "float32", [[0.5, 1]] * 60 + [[0, 1]]),
        (w("[1 2]", "[3 4]"), {}, "float32", [[1, 2], [3, 4]]),
        (w('"1,2,3"', '"4,5,6"'), {}, "float32", [[1, 2, 3], [4, 5, 6]]),
        (w("1|2", "3|4"), {}, "float32", [[1, 2], [3, 4]]),
        ({"1.csv": w("[1 2]"), "2.csv": w("[0.5 1]")}, {}, "float32", [[1, 2], [0.5, 1]]),  # one type in all files
        (w(*TIMES), {}, "float64", [1706702400, 1706702400.900001]),
        (w(*["2024-01-31"] * 60, TIMES[0]), {}, "int64", [1706659200] * 60 + [1706702400]),
        (w("2024-01-31T12:00:00Z", "2024-01-31T14:00:00+02:00"), {}, "int64", [1706702400] * 2),
        (column_w(*TIMES, type=pa.string()) | {"w": np.array(TIMES, "datetime64[ns]")}, {}, "float64",
         [1706702400, 1706702400.900001]),
        (column_w(5, None, 7), {}, "float32", [5, None, 7]),
        (column_w(1, 2, type=pa.uint8()), {}, "uint8", [1, 2]),
        (column_w([1, 2], [3, 4], type=pa.list_(pa.float16(), 2)), {}, "float16", [[1, 2], [3, 4]]),
        (column_w([1, 2], [3, 4], type=pa.list_(pa.float32())), {}, "float32", [[1, 2], [3, 4]]),
        (column_w(True, False), {}, "bool", [True, False]),
        ({"1.parquet": column_w(1, 2), "2.parquet": column_w(0.5)}, {}, "float32", [1, 2, 0.5]),
        (lines("src,dst,w_0,w_1", "0,1,2,3", "0,1,2,", "1,0,,1"), {}, "float32", [[2, 3], [2, None], [None, 1]]),
        (lines("src,dst,w_1,w_2,w_3", "0,1,1,16777216,0.1", "1,0,-3,4,1e-300"), {}, "float32",
         [[1, 2**24, 0.1], [-3, 4, 0]]),
        (lines("src,dst,w_1,w_2", "0,1,1700000001,0.5"), NAMED, "float64", [[1700000001, 0.5]]),
    ],
)  # fmt: skip
def test_values_have_the_type_of_all_their_rows(tmp_path, edges, options, dtype, values):
    found, of = read(tmp_path, edges, **options).edge_feats["_N:_E:_N"]["w"][:2]
    wanted = np.array(values, dtype if None not in np.array(values, object) else "float64").astype(dtype)
    assert of == dtype and np.array_equal(rows(found), wanted, equal_nan=of.startswith("float"))


LINES = ["0,1,0.5", "1,2,1.5", "2,0,2.5", *["0,1,0.25"] * 60]
MARKS = r"row 2, column w: '.*' may be a list or one number"


def changed(row, line):
    return lines("src,dst,time", *LINES[:row], line, *LINES[row + 1 :])


@pytest.mark.parametrize(
    ("edges", "options", "message"),
    [
        (changed(50, "0,1"), {}, "csv: .*row 52: Expected 3 columns, got 2"),
        (changed(50, "0,,3"), {}, "csv, row 52, column dst: a value is missing"),
        (changed(1, "0,1,nan"), {}, "csv, row 3, column time: edge 1 of .* has time nan"),
        (changed(50, "0,1,"), {}, "csv, row 52, column time: edge 50 of .* has time nan"),
        (lines("one,two", "0,1"), {}, r"needs columns src and dst .*; got one, two"),
        (lines("src,dst", "0.5,1", "1.5,2"), {}, r"row 2, column src: ids must be integers or text \(got 0.5\)"),
        (lines("src,dst", "a,b", "b,", "c,d"), {}, r"csv, row 3, column dst: a value is missing"),
        (lines("src,dst", "a,b", f"c,{'d' * 257}"), {}, r"csv, row 3, column dst: an id must have 1 to 256 bytes"),
        (lines("src,dst,w", "0,1,a", '1,0,"b', *["0,1,c"] * 5), {}, "csv: .* a field in quotes does not end"),
        (w(*[2**53 + 1] * 60, 0.5), {}, r"csv, row \d+, column w: about 9007199254740992 does not fit int64"),
        ({"1.csv": w(2**53 + 1), "2.csv": w(0.5)}, {}, "1.csv, row 2, column w: 9007199254740993 does not fit float32"),
        (w(2**63), {}, "row 2, column w: about 9223372036854775808 does not .*; --types COLUMN=float64 takes"),
        (w(2**53 + 1, ""), {}, "row 2, column w: 9007199254740993 does not fit float32; --types COLUMN=float64 takes"),
        (w(0.1, 1e300), {}, "row 3, column w: .* does not fit"),
        (w(0.1, 1700000001.5), {}, "row 3, column w: 1700000001.5 does not fit float32"),
        (w("True", *["False"] * 60, ""), {}, "row 63, column w: a value is missing"),
        (w(300, *[1] * 60), {"types": {"w": "uint8"}}, "row 2, column w: 300 does not fit uint8"),
        (w(300, *[1] * 60, 0.5), {"types": {"w": "int16"}}, "row 63, column w: 0.5 does not fit int16"),
        (w(300, *[1] * 60, "x"), {"types": {"w": "int64"}}, "row 63, column w: 'x' is no int64"),
        (w(300, *[1] * 60, ""), {"types": {"w": "int64"}}, "row 63, column w: a value is missing, which int64 cannot"),
        (w('"1,2,3"', '"1,2"'), {}, "row 3, column w: a list has 2 numbers, 3 before"),
        (w(*['"1,2,3"'] * 60, '"1,2"'), {}, "row 62, column w: a list has 2 numbers, 3 before"),
        (lines("src,dst,ts_1,ts_2", "0,1,1700000001,0.5"), {}, "column ts_1: 1700000001 does not fit float32"),
        *((w(*map('"{}"'.format, numbers.split())), {}, MARKS)
          for numbers in ("0,5 -1,25", "1.234,56 7,5", "1,234 5,678", "1,234,567 2,345,678", "1,234.5 2,345.25",
                          "+0,5 1,5")),
        (column_w(1) | {"src": pa.array([2**64 - 1], pa.uint64())}, {}, f"row 0, column src: {2**64 - 1} does not fit"),
        (column_w(1, 2, 3) | {"src": [0, None, 1]}, {}, "row 1, column src: a value is missing"),
        (column_w(1) | {"src": [0.5]}, {}, r"ids must be integers or text \(column 'src' is float\)"),
        (column_w(*[[1.0]] * 9, [1.0, 2.0]), {}, "row 9, column w: a list has 2 numbers, 1 before|row 8.*lists have 2"),
        (column_w([1.0], None), {}, "row 1, column w: a value is missing"),
        (column_w(5, 7, None, 8, None), {"types": {"w": "int64"}}, r"^\S*, row 2, column w: a value is [^\n]*$"),
        (column_w(5, None, 8, 2**53 + 1), {}, "row 3, column w: 9007199254740993 does not fit float32"),
        (column_w(0.5), {"types": {"w": "int64"}}, "row 0, column w: 0.5 does not fit int64"),
        (column_w(1) | {"w": np.array([TIMES[1] + "9"], "datetime64[ns]")}, {}, "column w or .* would lose data"),
        ({"a.csv": w(1), "b.csv": lines("src,dst,x", "0,1,2")}, {}, r"b.csv: columns \['src', 'dst', 'x'\] are not"),
        ({"a.csv": w(1), "b.parquet": column_w(1)}, {}, "csv and parquet files cannot be one table"),
        ({"a.parquet": column_w(1), "b.parquet": {"src": [0], "dst": [1]}}, {}, "b.parquet: columns .* are not those"),
        ({"a.csv.gz": gzip.compress(w(*range(99)).encode())[:-20]}, {}, "a.csv.gz: cannot be read: "),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_row(tmp_path, edges, options, message):
    def read_all():
        source = read(tmp_path, edges, **options)
        check_all(source)
        return features(source)

    with pytest.raises(GraphDataError, match=message) as error:
        read_all()
    assert str(error.value).startswith(str(tmp_path))
    by_word = {"types": {"w": "string"}}
    if message is MARKS or "a list has 2 numbers, 3" in message:
        assert "w" not in features(read(tmp_path, edges, **by_word))


def test_missing_values_are_said(tmp_path, caplog):
    read(tmp_path, {"part-10.csv": w(*[3] * 60), "part-2.csv": w(0.5, "")})
    told = "\n".join(caplog.messages)
    assert "part-2.csv, row 3, column w: 1 of 62 rows have no value, this one first: NaN (--fill COLUMN=0 or me" in told


def test_text_is_left_out_with_its_first_value(tmp_path):
    for options, end in (({}, "2.csv, row 2, column w: 'x'"), ({"types": {"w": "string"}}, "COLUMN numbers it)")):
        (left_out,) = read(tmp_path, {"1.csv": w(*[3] * 60), "2.csv": w("x")}, **options).left_out
        assert left_out.startswith(f"{tmp_path}/in/1.csv: column w is text") and left_out.endswith(end)


def test_damaged_parquet(tmp_path):
    content = write_parquet(tmp_path / "g.parquet").read_bytes()
    for size in (len(content) - 5, 20, 0):
        (tmp_path / "g.parquet").write_bytes(content[:size])
        with pytest.raises(GraphDataError, match=r"g.parquet: cannot be read: "):
            read_source(tmp_path / "g.parquet")


def test_no_edges(tmp_path):
    for edges in (lines("src,dst,weight"), {"src": pa.array([], pa.int64()), "dst": pa.array([], pa.int64())}):
        assert read(tmp_path, edges).num_nodes == (0,)
        source = read(tmp_path, edges, num_nodes=4)
        assert source.edge_counts[0] == 0 and source.num_nodes == (4,)
        for file in (tmp_path / "in").iterdir():
            file.unlink()


def test_a_scratch_folder_that_cannot_be_written_is_one_error(tmp_path):
    path = write_csv(tmp_path / "g.csv")
    with pytest.raises(StorageError, match=rf"{tmp_path}/no: cannot make a temporary folder"):
        read_source(path, scratch=tmp_path / "no")
    (tmp_path / "scratch").mkdir()
    source = read_source(path, scratch=tmp_path / "scratch")
    assert len(list((tmp_path / "scratch").iterdir())) == 1
    del source
    assert list((tmp_path / "scratch").iterdir()) == []


def test_many_files_take_few_open_ones(tmp_path, monkeypatch):
    """Spark writes hundreds: each is opened for its first line and to be parsed, and then closed."""
    opened = []
    for module in (text_files, input_files):
        monkeypatch.setattr(module, "opened", lambda path: opened.append(path) or open_file(path))
    for number in range(60):
        (tmp_path / f"part-{number}.csv").write_text(f"src,dst,weight,name\na{number},b{number},{number}.5,{number}\n")
    before = len(os.listdir("/proc/self/fd"))
    source = read_source(tmp_path)
    assert len(os.listdir("/proc/self/fd")) - before < 20 and len(opened) == 2 * 60
    assert rows(source.edge_feats["_N:_E:_N"]["weight"].values).tolist() == [number + 0.5 for number in range(60)]
    assert rows(source.edge_feats["_N:_E:_N"]["name"].values).tolist() == list(range(60))
