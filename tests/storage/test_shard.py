"""Shard files: round trips, ranges and checksums, and every kind of damage."""

import h5py
import numpy as np
import pytest

from mpigraph.errors import InvalidArgumentError, ShardFormatError
from mpigraph.storage import format as shard_format, shard
from mpigraph.storage.format import segment_rows, storage_dtype
from mpigraph.storage.shard import ShardReader, ShardWriter

DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64".split()


@pytest.fixture
def small_segments(monkeypatch):
    """Checksums over a few rows, so that small data have many segments."""
    monkeypatch.setattr(shard_format, "_SEGMENT_BYTES", 64)


@pytest.fixture
def path(tmp_path, small_segments):
    """A file with ``rows`` int64[100, 2] (four rows a segment) and an empty dataset."""
    with ShardWriter(tmp_path / "graph.h5", "g", 3, "id") as writer:
        writer.add("some/rows", rows())
        writer.add("empty", np.zeros((0, 5), np.float32))
    return tmp_path / "graph.h5"


def rows():
    return np.arange(200).reshape(100, 2)


def test_round_trip_of_every_dtype(tmp_path):
    values = {name: np.arange(12).reshape(4, 3).astype(storage_dtype(name)) for name in DTYPES}
    values["bool"] %= 2
    with ShardWriter(tmp_path / "x.h5", "g", 0, "id") as writer:
        for name, array in values.items():
            writer.add(f"t/{name}", array, name)
    reader = ShardReader(tmp_path / "x.h5", "g", 0)
    assert sorted(reader.names()) == sorted(f"t/{name}" for name in DTYPES)
    for name, array in values.items():
        assert reader.info(f"t/{name}") == ((4, 3), name)
        assert np.array_equal(reader.read(f"t/{name}"), array)


@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 100])
def test_rows_written_in_chunks_are_the_rows(tmp_path, small_segments, chunk):
    with ShardWriter(tmp_path / "x.h5", "g", 0, "id") as writer:
        one, two = (writer.create(name, (100, 2), "int64") for name in "rs")
        for first in range(0, 100, chunk):
            one.write(rows()[first : first + chunk])
            two.write(rows()[first : first + chunk] + 1)
    reader = ShardReader(tmp_path / "x.h5")
    assert np.array_equal(reader.read("r"), rows()) and np.array_equal(reader.read("s"), rows() + 1)


def test_every_range_reads_and_verifies_with_one_open_file(path, monkeypatch):
    opened = []
    monkeypatch.setattr(
        shard, "open", lambda *args, **named: opened.append(args) or open(*args, **named), raising=False
    )
    reader = ShardReader(path)
    del opened[:]
    for begin in range(0, 14):
        for end in range(begin, 14):
            out = np.full((end - begin, 2), -1)
            reader.read_into("some/rows", out, begin)
            assert np.array_equal(out, rows()[begin:end])
    assert reader.read("empty").shape == (0, 5) and len(opened) == 13 * 14 / 2  # none for no rows


def test_datasets_are_contiguous_and_files_whole(path):
    with h5py.File(path) as file:
        assert file["some/rows"].chunks is None and dict(file.attrs)["version"] == 3
        assert len(file["some/rows"].attrs["crc32"]) == 25
    assert [entry.name for entry in path.parent.iterdir()] == ["graph.h5"]


def test_checksums_fit_their_attribute():
    assert segment_rows(10**12, 4) * 8192 >= 10**12 and segment_rows(10, 1 << 30) == 1
    assert segment_rows(0, 0) >= 1


def test_a_flipped_bit_is_found_where_it_is(path):
    content = bytearray(path.read_bytes())
    content[content.index(rows()[41].tobytes())] ^= 4  # row 41, segment of rows 40 to 44
    path.write_bytes(content)
    reader = ShardReader(path)
    reader.read("some/rows", 0, 40)
    reader.read("some/rows", 44)
    for begin, end in ((41, 42), (43, 44), (0, 100), (39, 41)):
        with pytest.raises(ShardFormatError, match=r"graph\.h5: dataset 'some/rows' is damaged: .* rows 40 to 44"):
            reader.read("some/rows", begin, end)


def test_foreign_files(path, tmp_path):
    (tmp_path / "text.h5").write_text("not HDF5 at all")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = 1
    for name, message in (
        ("none.h5", r"none\.h5: shard file is missing"),
        ("text.h5", r"text\.h5: cannot read the file header"),
        ("other.h5", "not a shard of this library"),
    ):
        with pytest.raises(ShardFormatError, match=message):
            ShardReader(tmp_path / name)
    for attribute, value, message in (("version", 99, "format version 99"), ("magic", np.bytes_("x"), "not a shard")):
        with ShardWriter(tmp_path / "new.h5", "g", 0, "id"):
            pass
        with h5py.File(tmp_path / "new.h5", "r+") as file:
            file.attrs[attribute] = value
        with pytest.raises(ShardFormatError, match=message):
            ShardReader(tmp_path / "new.h5")
    with pytest.raises(ShardFormatError, match="belongs to graph 'g', not to 'h'"):
        ShardReader(path, "h")
    with pytest.raises(ShardFormatError, match="belongs to part 3, not to part 1"):
        ShardReader(path, "g", 1)


def test_wrong_requests(path):
    reader = ShardReader(path)
    for call, message in (
        (lambda: reader.read("nothing"), "dataset 'nothing' is missing"),
        (lambda: reader.info("some"), "dataset 'some' is missing"),
        (
            lambda: reader.read_into("some/rows", np.empty((2, 2), np.int32)),
            r"holds int64\[100, 2\].*int32\[2, 2\]",
        ),
        (lambda: reader.read_into("some/rows", np.empty((2, 3), np.int64)), "holds int64"),
        (lambda: reader.read_into("some/rows", np.empty((2, 2), np.int64), 99), "rows 99 to 101"),
        (lambda: reader.read_into("some/rows", np.empty((2, 4), np.int64)[:, ::2]), "C-contiguous"),
    ):
        with pytest.raises(ShardFormatError, match=message):
            call()


def test_a_failed_write_leaves_nothing(tmp_path):
    for action, message in (
        (lambda w: w.create("x", (2,), "int64"), "/x has 2 rows .got 0"),
        (lambda w: w.create("x", (2,), "string"), "dtype 'string' cannot be stored"),
    ):
        with pytest.raises(InvalidArgumentError, match=message), ShardWriter(tmp_path / "x.h5", "g", 0, "id") as writer:
            action(writer)
        assert list(tmp_path.iterdir()) == []
