"""Edge lists in csv and parquet files: their numbering, their features, and what is wrong with them."""

import gzip
import json
import os

import numpy as np
import pyarrow as pa
import pytest
from input_checks import bytes_in_memory, check_all, check_parts, rows
from pyarrow import parquet

from mpigraph.errors import GraphDataError, StorageError
from mpigraph.formats import input_files, text_files
from mpigraph.formats.id_maps import Distinct
from mpigraph.formats.input_files import opened as open_file
from mpigraph.formats.layout import TableOptions
from mpigraph.formats.readers import read_source

RNG = np.random.default_rng(1)
NUM_NODES = 30
SRC, DST = np.concatenate([np.tile(np.arange(NUM_NODES), 2), RNG.integers(0, NUM_NODES, (140))]).reshape(2, 100)
WEIGHT = RNG.random(100).round(3)
COUNT = RNG.integers(-5, 5, 100)


def write_text(path, lines, header=None, comments=()):
    path.parent.mkdir(exist_ok=True)
    opener = gzip.open if path.name.endswith(".gz") else open
    with opener(path, "wt") as file:
        file.writelines(f"{line}\n" for line in [*comments, *([header] if header else []), *lines])
    return path


def write_csv(path, src=SRC, dst=DST, begin=0, end=100, delimiter=",", header=True, comments=()):
    names = delimiter.join(("src", "dst", "weight", "count")) if header else None
    fields = zip(src[begin:end], dst[begin:end], WEIGHT[begin:end], COUNT[begin:end], strict=True)
    return write_text(path, [delimiter.join(map(str, line)) for line in fields], names, comments)


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
    assert np.array_equal([rows(end) for end in source.edges[0]], [SRC, DST])
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


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("make", [lambda i: 3 * i, lambda i: i - 7, lambda i: (i * 1_000_003) << 33])
def test_numbers_with_gaps_are_numbered_in_their_order(tmp_path, kind, make):
    originals = np.unique(make(np.arange(NUM_NODES, dtype=np.int64)))
    write = write_csv if kind == "csv" else write_parquet
    path = write(tmp_path / f"g.{kind}", src=originals[SRC], dst=originals[DST])
    source = read_source(path)
    assert np.array_equal([rows(end) for end in source.edges[0]], [SRC, DST])
    feature = source.node_feats["_N"]["id"]
    assert feature.dtype == "int64" and np.array_equal(rows(feature.values), originals)
    assert bytes_in_memory(source) == 0


def test_ids_that_are_too_large(tmp_path):
    src = SRC.astype(np.uint64)
    src[23] += np.uint64(1 << 63)
    path = write_parquet(tmp_path / "g.parquet", src=src)
    with pytest.raises(GraphDataError, match=rf"g.parquet: src, row 23: {src[23]} is no integer that fits int64"):
        read_source(path)


def test_a_given_number_of_nodes_keeps_ids(tmp_path):
    path = write_csv(tmp_path / "g.csv", src=3 * SRC, dst=3 * DST)
    source = read_source(path, num_nodes=200)
    assert source.num_nodes == (200,) and source.node_feats["_N"] == {}
    assert np.array_equal([rows(end) for end in source.edges[0]], [3 * SRC, 3 * DST])
    row = int(np.flatnonzero(SRC == NUM_NODES - 1)[0])
    with pytest.raises(GraphDataError, match=rf"g.csv, row {row + 2}: edge {row} of .* has source 87, but"):
        check_all(read_source(path, num_nodes=87))
    path = write_parquet(tmp_path / "g.parquet")
    row = int(np.flatnonzero(SRC == NUM_NODES - 1)[0])
    with pytest.raises(GraphDataError, match=rf"g.parquet: src, row {row}: edge {row} of .* has source 29, but"):
        check_all(read_source(path, num_nodes=29))
    np.savez(tmp_path / "x.npz", edge_src=[0], edge_dst=[0])
    with pytest.raises(GraphDataError, match=r"the number of nodes cannot be given for npz"):
        read_source(tmp_path / "x.npz", num_nodes=3)


@pytest.mark.parametrize("kind", ["csv", "parquet", "dictionary"])
def test_strings_are_numbered_by_their_bytes(tmp_path, kind):
    names = np.array(sorted((f"né{i * 7 % 13}" * (1 + i % 3) for i in range(NUM_NODES)), key=str.encode))
    names = np.unique(names)
    src, dst = names[SRC % len(names)], names[DST % len(names)]
    if kind == "csv":
        path = write_csv(tmp_path / "g.csv", src=src, dst=dst)
    elif kind == "parquet":
        path = write_parquet(tmp_path / "g.parquet", src=src, dst=dst)
    else:
        coded = pa.array([*names, "nobody"]).dictionary_encode()
        columns = {
            name: pa.DictionaryArray.from_arrays(pa.array(ids % len(names)), coded.dictionary)
            for name, ids in (("src", SRC), ("dst", DST))
        }
        path = tmp_path / "g.parquet"
        parquet.write_table(pa.table(columns), path)
    source = read_source(path)
    assert source.num_nodes == (len(names),)
    found = source.node_feats["_N"]["id"]
    texts = [bytes(row).rstrip(b"\0").decode() for row in rows(found.values)]
    assert texts == sorted(names.tolist(), key=str.encode) and found.dtype == "uint8"
    for end, wanted in zip(source.edges[0], (src, dst), strict=True):
        assert [texts[i] for i in rows(end)] == wanted.tolist()
    assert bytes_in_memory(source) == 0
    if kind == "csv":
        check_parts(source, tmp_path / "out")
    with pytest.raises(
        GraphDataError, match="row [02]: ids of '_N' are strings, so nodes cannot be known by their number"
    ):
        read_source(path, num_nodes=99)


def test_lists_of_parquet_are_rows(tmp_path):
    vectors = RNG.random((100, 3)).astype(np.float32)
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 3)
    free = pa.array(vectors.astype(np.float16).tolist(), pa.list_(pa.float16()))
    path = write_parquet(tmp_path / "g.parquet", fixed=fixed, free=free, flag=SRC % 2 == 0, note=DST.astype(str))
    feats = read_source(path).edge_feats["_N:_E:_N"]
    assert set(feats) == {"weight", "count", "fixed", "free", "flag"}  # text is no feature
    assert np.array_equal(rows(feats["fixed"].values), vectors) and feats["fixed"].values.shape == (100, 3)
    assert np.array_equal(rows(feats["free"].values), vectors.astype(np.float16)) and feats["free"].dtype == "float16"
    assert np.array_equal(rows(feats["flag"].values), SRC % 2 == 0) and feats["flag"].dtype == "bool"
    ragged = pa.array([[1.0]] * 90 + [[1.0, 2.0]] * 10)
    ragged_feats = read_source(write_parquet(tmp_path / "r.parquet", ragged=ragged)).edge_feats["_N:_E:_N"]
    with pytest.raises(GraphDataError, match=r"r.parquet: ragged, row 90: a list has 2 numbers, 1 before"):
        rows(ragged_feats["ragged"].values)


def feature(source, name):
    return source.edge_feats["_N:_E:_N"][name]


def texts(source):
    return [bytes(row).rstrip(b"\0").decode() for row in rows(source.node_feats["_N"]["id"].values)]


def write_files(folder, files):
    folder.mkdir()
    for name, lines in files.items():
        write_text(folder / name, lines, "src,dst,w")
    return folder


def test_the_type_of_a_column_is_that_of_all_its_rows(tmp_path, caplog):
    blank, whole, broken = [f"0,1,{value}" for value in [""] * 60], ["0,1,3"] * 60, ["0,1,0.5", "1,0,"]
    path = write_files(tmp_path / "a", {"1.csv": blank, "2.csv": whole, "3.csv": broken})
    values = feature(read_source(path), "w")
    assert values.dtype == "float32"
    assert np.array_equal(rows(values.values), [np.nan] * 60 + [3] * 60 + [0.5, np.nan], equal_nan=True)
    assert (
        f"{path}/1.csv: w has no value in 61 of 122 rows (the first: row 2): NaN (--fill COLUMN=0 or mean)"
        in caplog.messages
    )
    beside = write_text(tmp_path / "f.csv", ["0,1,2,3", "0,1,2,", "1,0,,1"], "src,dst,w_0,w_1")
    assert np.isnan(rows(feature(read_source(beside), "w").values)).tolist() == [[0, 0], [0, 1], [1, 0]]
    for name, row in (("w_0", 4), ("w_1", 3)):
        assert f"{name} has no value in 1 of 3 rows (the first: row {row}): NaN" in caplog.text
    source = read_source(write_text(tmp_path / "b.csv", whole, "src,dst,w"))
    assert feature(source, "w").dtype == "int64"
    source = read_source(write_files(tmp_path / "c", {"1.csv": whole, "2.csv": ["0,1,x"]}))
    (left_out,) = source.left_out  # it names the row, since numbers were lost
    assert left_out.startswith(f"{tmp_path}/c/1.csv: column w is text") and left_out.endswith("/c/2.csv, row 2")
    path = write_text(tmp_path / "d.csv", [*["0,1,9007199254740993"] * 60, "0,1,0.5"], "src,dst,w")
    with pytest.raises(GraphDataError, match=r"d.csv, row .*: 9007199254740993 does not fit float64, which other rows"):
        rows(feature(read_source(path), "w").values)
    as_asked = read_source(path, tables=TableOptions(types={"w": "float64"}))
    assert rows(feature(as_asked, "w").values).tolist() == [2.0**53] * 60 + [0.5]
    path = write_text(tmp_path / "d.csv", ["0,1,9007199254740994", "1,0,0.5", "1,0,1e300"], "src,dst,w")
    as_asked = read_source(path, tables=TableOptions(types={"w": "float64"}))
    assert rows(feature(as_asked, "w").values).tolist() == [2.0**53 + 2, 0.5, 1e300]
    for number in ("1e300", "1700000001.5", "16777217.0"):
        path = write_text(tmp_path / "d.csv", ["0,1,0.1", f"0,1,{number}"], "src,dst,w")
        with pytest.raises(GraphDataError, match=r"d.csv, row 3: .* does not fit float32"):
            rows(feature(read_source(path), "w").values)
    path = write_text(tmp_path / "e.csv", ["0,1,True", *["0,1,False"] * 60, "0,1,"], "src,dst,w")
    with pytest.raises(GraphDataError, match=r"e.csv, row 63: w has no value"):
        read_source(path)


@pytest.mark.parametrize("lines", [["0,1,9223372036854775808"], ["0,1,9007199254740993", "1,0,"]])
def test_integers_are_rounded_only_where_the_user_says_so(tmp_path, lines):
    path = write_text(tmp_path / "g.csv", lines, "src,dst,w")
    with pytest.raises(GraphDataError, match=r"g.csv, row 2.* does not fit .*; --types COLUMN=float64 rounds it"):
        read_source(path)
    values = feature(read_source(path, tables=TableOptions(types={"w": "float64"})), "w").values
    assert rows(values)[0] == float(lines[0].rpartition(",")[2]) and len(rows(values)) == len(lines)


def test_ids_become_text_where_a_later_one_is(tmp_path):
    path = write_text(tmp_path / "g.csv", [*["10,9"] * 60, "9,x"], "src,dst")
    source = read_source(path)
    assert texts(source) == ["10", "9", "x"] and rows(source.edges[0][0])[[0, -1]].tolist() == [0, 1]


def test_ids_that_look_alike_are_not_merged(tmp_path):
    path = write_text(tmp_path / "g.csv", ["alice, bob", "bob , carol"])
    assert read_source(path, tables=TableOptions(columns={"src": ("alice",), "dst": ("bob",)})).num_nodes == (2,)
    path = write_text(tmp_path / "g.csv", ["alice, bob", "bob , carol"], " src ,dst")
    assert texts(read_source(path)) == ["alice", "bob", "carol"]
    path = write_text(tmp_path / "g.csv", ["007,07", "7,0x1F", "31,-0", "0,+7"], "src,dst")
    assert texts(read_source(path)) == sorted(["007", "07", "7", "0x1F", "31", "-0", "0", "+7"])
    path = write_text(tmp_path / "g.csv", ["9223372036854775808,1"], "src,dst")
    assert texts(read_source(path)) == ["1", "9223372036854775808"]
    path = write_text(tmp_path / "g.csv", ["-9223372036854775807, 5"], "src,dst")
    assert rows(read_source(path).node_feats["_N"]["id"].values).tolist() == [-(2**63) + 1, 5]


def test_integers_as_text_in_parquet_are_integers(tmp_path):
    """As in csv, where all rows of the column decide."""
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        src = pa.array(map(str, SRC), pa.string()).cast(kind)
        source = read_source(write_parquet(tmp_path / "g.parquet", src=src))
        assert [rows(end).tolist() for end in source.edges[0]] == [SRC.tolist(), DST.tolist()]
        assert source.node_feats["_N"] == {} and read_source(tmp_path / "g.parquet", num_nodes=40).num_nodes == (40,)
        as_text = read_source(tmp_path / "g.parquet", tables=TableOptions(types={"src": "string"}))
        assert texts(as_text) == sorted(map(str, range(NUM_NODES)))
    last = pa.array([*map(str, SRC[:-1]), "07"])
    assert "07" in texts(read_source(write_parquet(tmp_path / "g.parquet", src=last)))
    as_asked = read_source(tmp_path / "g.parquet", tables=TableOptions(types={"src": "int64"}))
    assert rows(as_asked.edges[0][0])[-1] == 7


def test_types_that_the_user_names(tmp_path):
    path = write_text(tmp_path / "g.csv", ["007,1,3", "7,1,4", "1,1,"], "src,dst,w")
    source = read_source(path, tables=TableOptions(types={"src": "int64", "w": "float32"}))
    assert rows(source.edges[0][0]).tolist() == [1, 1, 0] and feature(source, "w").dtype == "float32"
    assert texts(read_source(path, tables=TableOptions(types={"dst": "string"}))) == ["007", "1", "7"]
    source = read_source(path, tables=TableOptions(types={"w": "string"}))
    assert source.left_out[0].endswith("w is text (--categories COLUMN numbers it)")  # no row is to blame
    lines = ["0,1,300", *["1,0,1"] * 60]
    for dtype, bad, message in (
        ("uint8", "1,0,1", "g.csv, row 2, column w: 300 does not fit uint8"),
        ("int16", "1,0,0.5", r"g.csv, row 63, column w: 0.5 does not fit int16"),
        ("int64", "1,0,x", r"g.csv, row 63, column w: 'x' is no int64"),
        ("int64", "1,0,", r"g.csv, row 63, column w: a value is missing, which int64 cannot say"),
    ):
        path = write_text(tmp_path / "g.csv", [*lines, bad], "src,dst,w")
        with pytest.raises(GraphDataError, match=message):
            read_source(path, tables=TableOptions(types={"w": dtype}))
    with pytest.raises(GraphDataError, match=r"g.parquet: weight, row 0: 0.* does not fit int64"):
        read_source(write_parquet(tmp_path / "g.parquet"), tables=TableOptions(types={"weight": "int64"}))


def test_files_come_in_natural_order_which_is_said(tmp_path, caplog):
    path = write_files(tmp_path / "in", {"part-10.csv": ["0,1,10"], "part-2.csv": ["1,0,2"]})
    assert rows(feature(read_source(path), "w").values).tolist() == [2, 10]
    assert "edges of part-2.csv, part-10.csv, in this order" in " ".join(caplog.messages)


def test_a_packed_file_that_ends_too_soon_is_named(tmp_path):
    path = write_csv(tmp_path / "g.csv.gz")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(GraphDataError, match=r"g.csv.gz: cannot be read: "):
        read_source(path)


@pytest.mark.parametrize("lists", ['"0.5,1"', "[0.5; 1]", "0.5|1", "[0.5 1]"])
def test_lists_in_text(tmp_path, lists):
    path = write_text(tmp_path / "g.csv", [*[f"0,1,{lists}"] * 60], "src,dst,w")
    values = feature(read_source(path), "w")
    assert rows(values.values).tolist() == [[0.5, 1]] * 60


@pytest.mark.parametrize(
    "numbers", ["0,5 -1,25", "1.234,56 7,5", "1,234 5,678", "1,234,567 2,345,678", "1,234.5 2,345.25", "+0,5 1,5"]
)
def test_marks_in_numbers_are_no_lists(tmp_path, numbers):
    for line in ("0;1;{}", '0,1,"{}"', "0\t1\t{}"):
        mark = line[1]
        path = write_text(tmp_path / "g.csv", map(line.format, numbers.split()), mark.join(("src", "dst", "w")))
        with pytest.raises(GraphDataError, match=r"g.csv, row 2, column w: .*point for decimals"):
            read_source(path)
        assert "w" not in read_source(path, tables=TableOptions(types={"w": "string"})).edge_feats["_N:_E:_N"]
    for lists, row in (
        ("[1,2] [3,4]", [1, 2]),
        ("0.5,1 1.5,2", [0.5, 1]),
        ("1|2 3|4", [1, 2]),
        ("1,2,3 4,5,6", [1, 2, 3]),
    ):
        path = write_text(tmp_path / "g.csv", [f"0;1;{text}" for text in lists.split()], "src;dst;w")
        assert rows(feature(read_source(path), "w").values)[0].tolist() == row


@pytest.mark.parametrize("beside", [1700000002, 0.5])
def test_integers_side_by_side_keep_their_digits(tmp_path, beside):
    text = write_text(tmp_path / "g.csv", [f"0,1,{1700000001},{beside}", "1,0,3,4"], "src,dst,ts_1,ts_2")
    table = {"src": [0, 1], "dst": [1, 0], "ts_1": [1700000001, 3], "ts_2": [beside, 4]}
    parquet.write_table(pa.table(table), tmp_path / "g.parquet")
    for path in (text, tmp_path / "g.parquet"):
        with pytest.raises(GraphDataError, match=r"g\.\w+.*ts_1.*1700000001 does not fit float32"):
            rows(feature(read_source(path), "ts").values)
        as_asked = read_source(path, tables=TableOptions(types={"ts": "float64"}))
        assert rows(feature(as_asked, "ts").values).tolist() == [[1700000001, beside], [3, 4]]
    path = write_text(tmp_path / "h.csv", ["0,1,1,16777216,1e9", "1,0,-3,4,123456789.5"], "src,dst,w_1,w_2,w_3")
    weights = feature(read_source(path), "w")
    assert weights.dtype == "float32" and rows(weights.values)[:, :2].tolist() == [[1, 2**24], [-3, 4]]


def test_times_with_fractions_of_a_second(tmp_path):
    times = ["2024-01-31 12:00:00", "2024-01-31 12:00:00.900001"]
    text = write_text(tmp_path / "g.csv", [f"0,1,{time}" for time in times], "src,dst,time")
    stamps = pa.array(np.array(times, "datetime64[ns]"))
    parquet.write_table(pa.table({"src": [0, 1], "dst": [1, 0], "time": stamps}), tmp_path / "g.parquet")
    for path in (text, tmp_path / "g.parquet"):
        assert rows(feature(read_source(path), "time").values).tolist() == [1706702400, 1706702400.900001]
    times[1] += "9"
    text = write_text(tmp_path / "g.csv", [f"0,1,{time}" for time in times], "src,dst,time")
    stamps = pa.array(np.array(times, "datetime64[ns]"))
    parquet.write_table(pa.table({"src": [0, 1], "dst": [1, 0], "time": stamps}), tmp_path / "g.parquet")
    for path in (text, tmp_path / "g.parquet"):
        with pytest.raises(GraphDataError, match=r"(row 3, column time|time, row 1): .* parts of a microsecond"):
            check_all(read_source(path))
    path = write_text(tmp_path / "g.csv", [f"0,1,{times[0]}"] * 2, "src,dst,time")
    assert rows(feature(read_source(path), "time").values).tolist() == [1706702400] * 2


def test_lists_of_several_lengths(tmp_path):
    for count in (1, 60):
        path = write_text(tmp_path / "g.csv", [*['0,1,"1,2,3"'] * count, '0,1,"1,2"'], "src,dst,w")
        with pytest.raises(GraphDataError, match=rf"g.csv, row {count + 2}, column w: a list has 2 numbers, 3 before"):
            read_source(path)
        assert "w" not in read_source(path, tables=TableOptions(types={"w": "string"})).edge_feats["_N:_E:_N"]


LINES = ["0,1,0.5", "1,2,1.5", "2,0,2.5", *["0,1,0.25"] * 60]


def changed(row, line):
    return [*LINES[:row], line, *LINES[row + 1 :]]


@pytest.mark.parametrize(
    "lines, header, message",
    [
        (changed(50, "0,1"), "src,dst,time", "g.csv: .*row 52: Expected 3 columns, got 2"),
        (changed(50, "0,,3"), "src,dst,time", "g.csv, row 52: a value is missing"),
        (changed(1, "0,1,nan"), "src,dst,time", "g.csv, row 3: edge 1 of .* has time nan"),
        (changed(50, "0,1,"), "src,dst,time", "g.csv, row 52: edge 50 of .* has time nan"),
        (LINES, "one,two,time", r"needs columns src and dst .*; got one, two, time"),
        (["0.5,1", "1.5,2"], "src,dst", r"g.csv, row 2, column src: ids must be integers or text \(got 0.5\)"),
        (["a,b", "b,", "c,d"], "src,dst", r"g.csv, row 3: a value is missing"),
        (["a,b", "b,c", f"c,{'d' * 257}"], "src,dst", r"g.csv, row 4: an id must have 1 to 256 bytes"),
    ],
)
def test_wrong_text_is_named_with_its_row(tmp_path, lines, header, message):
    path = write_text(tmp_path / "g.csv", lines, header)
    with pytest.raises(GraphDataError, match=message) as error:
        check_all(read_source(path))
    assert str(error.value).startswith(str(path))


def test_wrong_parquet_is_named_with_its_row(tmp_path):
    holes = pa.array([None if i == 23 else i % 30 for i in range(100)])
    source = write_parquet(tmp_path / "h.parquet", src=holes)
    with pytest.raises(GraphDataError, match=r"h.parquet: src, row 23: a value is missing"):
        read_source(source)
    content = write_parquet(tmp_path / "g.parquet").read_bytes()
    for size in (len(content) - 5, 20, 0):
        (tmp_path / "g.parquet").write_bytes(content[:size])
        with pytest.raises(GraphDataError, match=r"g.parquet: cannot be read: "):
            read_source(tmp_path / "g.parquet")


def test_files_that_do_not_fit_together(tmp_path):
    write_csv(tmp_path / "in" / "a.csv")
    write_text(tmp_path / "in" / "b.csv", ["0,1,2,3"], "src,dst,count,weight")
    with pytest.raises(GraphDataError, match=r"b.csv: columns \['src', 'dst', 'count', 'weight'\] are not those of a"):
        read_source(tmp_path / "in")
    (tmp_path / "in" / "b.csv").unlink()
    write_parquet(tmp_path / "in" / "b.parquet")
    with pytest.raises(GraphDataError, match="csv and parquet files cannot be one table"):
        read_source(tmp_path / "in")
    (tmp_path / "in" / "a.csv").unlink()
    parquet.write_table(pa.table({"src": [0], "dst": [1.0]}), tmp_path / "in" / "c.parquet")
    with pytest.raises(GraphDataError, match=r"c.parquet: columns are not those of b.parquet"):
        read_source(tmp_path / "in")


def test_no_edges(tmp_path):
    empty = write_text(tmp_path / "g.csv", [], "src,dst,weight"), write_parquet(tmp_path / "g.parquet", end=0)
    for path in empty:
        assert read_source(path).num_nodes == (0,)
        source = read_source(path, num_nodes=4)
        assert source.num_edges() == 0 and source.num_nodes == (4,)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_chunked_graph_of_dgl(tmp_path, kind):
    def save(name, columns, cuts):
        files = []
        for number in range(2):
            path = tmp_path / f"{name}{number}.{kind}"
            part = {key: values[cuts[number] : cuts[number + 1]] for key, values in columns.items()}
            if kind == "csv":
                write_text(path, [" ".join(map(str, line)) for line in zip(*part.values(), strict=True)])
            else:
                parquet.write_table(pa.table({key: pa.array(values) for key, values in part.items()}), path)
            files.append(path.name)
        form = {"name": kind, "delimiter": " "} if kind == "csv" else {"name": kind}
        return {"format": form, "data": files}

    feat = RNG.random((NUM_NODES, 2)).round(4)
    node_feats = {
        "feat": save("feat", {"0": feat[:, 0], "1": feat[:, 1]}, (0, 12, 30)),
        "label": save("label", {"0": np.arange(NUM_NODES)}, (0, 12, 30)),
    }
    metadata = {
        "node_type": ["n"],
        "num_nodes_per_chunk": [[12, 18]],
        "edge_type": ["n:e:n"],
        "num_edges_per_chunk": [[41, 59]],
        "edges": {"n:e:n": save("e", {"0": SRC, "1": DST}, (0, 41, 100))},
        "node_data": {"n": node_feats},
        "edge_data": {},
    }
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    source = read_source(tmp_path)
    assert np.array_equal([rows(end) for end in source.edges[0]], [SRC, DST]) and source.num_nodes == (NUM_NODES,)
    assert np.array_equal(rows(source.node_feats["n"]["feat"].values), feat)
    assert np.array_equal(rows(source.node_feats["n"]["label"].values), np.arange(NUM_NODES))
    assert bytes_in_memory(source) == 0


def test_distinct_values_are_merged():
    found = Distinct()
    added = [RNG.integers(0, 1000, RNG.integers(0, 50)) for _ in range(40)]
    for values in added:
        found.add(values)
    assert np.array_equal(found.sorted(), np.unique(np.concatenate(added)))


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


def test_integers_of_parquet_may_be_missing(tmp_path, caplog):
    def write(name, **columns):
        ends = {"src": pa.array([0, 1, 2, 0]), "dst": pa.array([1, 2, 0, 2])}
        parquet.write_table(pa.table(ends | columns), tmp_path / name, row_group_size=2)
        return tmp_path / name

    path = write("g.parquet", k=pa.array([5, None, 7, 8]), w=pa.array([1, 2, 3, 4]))
    source = read_source(path)
    assert np.array_equal(rows(feature(source, "k").values), [5, np.nan, 7, 8], equal_nan=True)
    assert feature(source, "w").dtype == "int64"
    assert f"{path}: k has no value in 1 of 4 rows (the first: row 1): NaN (--fill COLUMN=0 or mean)" in caplog.messages
    with pytest.raises(GraphDataError, match=r"g.parquet: k, row 1: a value is missing, which int64 cannot say"):
        read_source(path, tables=TableOptions(types={"k": "int64"}))
    path = write("large.parquet", k=pa.array([5, None, 8, 2**53 + 1]))
    with pytest.raises(GraphDataError, match=r"large.parquet: k, row 3: 9007199254740993 does not fit float64"):
        rows(feature(read_source(path), "k").values)
    path = write("ends.parquet", src=pa.array([0, None, 2, 0]))
    with pytest.raises(GraphDataError, match=r"ends.parquet: src, row 1: a value is missing"):
        read_source(path)
    path = write("both.parquet", k=pa.array([5, None, None, 8]))
    with pytest.raises(GraphDataError, match=rf"^{path}: k, row 1: a value is missing, which int64 cannot say$"):
        read_source(path, tables=TableOptions(types={"k": "int64"}))  # once, not for each group of rows
