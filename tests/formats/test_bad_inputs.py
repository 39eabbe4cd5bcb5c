"""Inputs that lie, are damaged, or say what cannot be: each is one error of ours, and none is read wrong."""

import gzip
import json
import os
import struct
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pyarrow
import pytest
from input_checks import check_all, rows
from pyarrow import parquet

from mpigraph.errors import GraphDataError
from mpigraph.formats.input_files import mapped_npy, mapped_npz
from mpigraph.formats.readers import read_source
from mpigraph.partition.row_arrays import concatenated

ENDS = {"edge_src": np.array([0, 1, 2]), "edge_dst": np.array([1, 2, 0])}


def header(shape, descr="<i8"):
    """A ``.npy`` header alone."""
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def save(folder, **arrays):
    """A graph of three edges in ``.npz``, with more arrays."""
    np.savez(folder / "g.npz", **(ENDS | arrays))
    return folder / "g.npz"


def deflated(path, **contents):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(f"{name}.npy", content)


def read_everything(path):
    source = read_source(path)
    check_all(source)
    for features in source.node_feats.values():
        for feature in features.values():
            rows(feature.values)


def test_arrays_that_were_not_written_to_the_end(tmp_path):
    (tmp_path / "a.npy").write_bytes(header((100,)) + bytes(64))
    deflated(tmp_path / "a.npz", a=header((100,)) + bytes(64))
    with pytest.raises(GraphDataError, match="a.npy: too short"):
        mapped_npy(tmp_path / "a.npy")
    with pytest.raises(GraphDataError, match=r"a\.npz: a: cannot be read"):
        mapped_npz(tmp_path / "a.npz")


@pytest.mark.parametrize(
    "meta", ['{"num_nodes": 1e999}', '{"num_nodes": 3.7}', '{"num_nodes": -3}', '{"num_nodes": true}', "[" * 100000]
)
def test_meta_that_cannot_be(tmp_path, meta):
    for name, values in ENDS.items():
        np.save(tmp_path / f"{name}.npy", values)
    (tmp_path / "meta.json").write_text(meta)
    with pytest.raises(GraphDataError):
        read_source(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"edge_src": 0}, r"edge_src must be integers in one dimension \(got int64\[\]\)"),
        ({"edge_dst": ["a", "b"]}, r"edge_dst must be integers in one dimension \(got <U1\[2\]\)"),
        ({"edge_dst": [0.0, np.nan]}, r"edge_dst must be integers in one dimension \(got float64"),
        ({"feat": 1.0}, "node feature 'feat' of '_N' must have 2 rows"),
        ({"label": np.zeros(2), "feat": 1.0}, "node feature 'feat' of '_N' must have 2 rows"),
        ({"meta": "[]"}, r"meta must be a JSON object \(got \[\]\)"),
    ],
)
def test_arrays_of_another_form(tmp_path, changes, words):
    np.savez(tmp_path / "g.npz", **{"edge_src": [0, 1], "edge_dst": [1, 0]} | changes)
    with pytest.raises(GraphDataError, match=rf"g\.npz: {words}"):
        read_source(tmp_path / "g.npz")


def test_counts_that_int64_does_not_have(tmp_path):
    with pytest.raises(GraphDataError, match=r"node type 'u' has -3 nodes"):
        read_source(_typed(tmp_path, -3))
    with pytest.raises(GraphDataError, match="more than int64 can count"):
        read_source(_typed(tmp_path, 2**62))
    with h5py.File(tmp_path / "g.h5", "w") as file:
        file["edge_src"] = np.array([2**64 - 1, 0], np.uint64)
        file["edge_dst"] = np.zeros(2, np.int64)
    with pytest.raises(GraphDataError, match="more than int64 can count"):
        read_source(tmp_path / "g.h5")


def _typed(folder, count):
    np.savez(folder / "t.npz", u__num_nodes=count, v__num_nodes=2**62)
    return folder / "t.npz"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("label", [np.inf, 1, 2]),
        ("label", np.array([2**64 - 1, 1, 2], np.uint64)),
        ("label", [1 + 2j, 1, 2]),
        ("label", ["1", "2", "x"]),
        ("feat", np.full((3, 2), 1j)),
        ("feat", [["a"], ["b"], ["c"]]),
        ("feat", np.zeros(3, [("a", "i4")])),
        ("train_mask", ["a", "", "b"]),
        ("train_mask", [np.nan, 0, 1]),
        ("train_mask", [1, -1, 1]),
        ("val_mask", np.array([1, 255, 0], np.uint8)),
        ("test_mask", [0, 0.5, 1]),
        ("feat", [[1], [2**24 + 1], [3]]),
        ("feat", np.array([1700000001, 2, 3], np.uint32)),
    ],
)
def test_values_that_would_be_others(tmp_path, name, values):
    with pytest.raises(GraphDataError):
        read_everything(save(tmp_path, **{name: np.array(values)}))


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_refused_values_are_told_by_file_and_row(tmp_path, write):
    refused = {
        "label": (np.array([0, 1, np.inf]), "row 2: inf is no integer"),
        "train_mask": (np.array([0, np.nan, 1]), "row 1: a mask has nan"),
        "feat": (np.array([[0, 1], [2, 3], [4, 1e300]]), r"row 2: 1e\+300, column 1 does not fit float32"),
    }
    for name, (values, error) in refused.items():
        write(tmp_path / "g.npz", **(ENDS | {name: values}))
        with pytest.raises(GraphDataError, match=rf"g\.npz: {name}, {error}"):
            read_everything(tmp_path / "g.npz")
    values = np.array([[0, np.inf], [1, 1e-300], [2, np.nan]])  # float32 has these, or zero
    write(tmp_path / "g.npz", **(ENDS | {"feat": values}))
    found = rows(read_source(tmp_path / "g.npz").node_feats["_N"]["feat"].values)
    assert np.array_equal(found, values.astype(np.float32), equal_nan=True)


def test_ids_of_several_dtypes_that_do_not_fit_int64():
    mixed = concatenated([np.arange(2, dtype=np.int32), np.array([2**63], np.uint64)])
    with pytest.raises(GraphDataError, match="9223372036854775808 is no integer that fits int64"):
        mixed[:]


@pytest.mark.parametrize("name", ["feat.npy", "train_mask.npy", "meta.json"])
def test_what_is_no_file_is_not_left_out(tmp_path, name):
    for end, values in ENDS.items():
        np.save(tmp_path / f"{end}.npy", values)
    path = tmp_path / name
    for make in (os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to("x")):
        make(path)
        with pytest.raises(GraphDataError, match=f"{name}.*cannot be read|cannot be read.*{name}"):
            read_source(tmp_path)
        path.rmdir() if path.is_dir() else path.unlink()
    os.mkfifo(path)
    with pytest.raises(GraphDataError, match="neither a file nor a directory"):
        read_source(path)


def test_hdf5_that_was_not_written_to_the_end(tmp_path):
    for count in (100, 2**60):
        with h5py.File(tmp_path / f"{count}.h5", "w") as file:
            for name, values in ENDS.items():
                file[name] = values
            file.create_dataset("feat", (count, 4), "f4", chunks=(16, 4))[:50] = 1
        with pytest.raises(GraphDataError, match=r"\.h5: feat was not written to the end: it has 4 of"):
            read_source(tmp_path / f"{count}.h5")


def test_columns_of_integers_that_int64_does_not_have(tmp_path):
    path = tmp_path / "e.csv"
    for text, error in (
        (f"src,dst,w\n0,1,5\n1,0,{2**63}\n", f"e.csv, row 3, column w: about {2**63}"),
        (f"0,1,5,0\n1,0,{-(2**63) - 1},0\n", f"e.csv, row 2, column column2: about {-(2**63)}"),
        (f"src,dst,w\n0,1,0.5\n1,0,{2**63}\n", f"e.csv, row 3, column w: about {2**63}"),
    ):
        path.write_text(text)
        with pytest.raises(GraphDataError, match=f"{error} does not fit int64"):
            read_source(path)


def test_columns(tmp_path):
    path = tmp_path / "e.csv"
    for text in ("\ufeffsrc,dst\n0,1\n1,0\n", "\ufeff0,1\n1,0\n"):
        path.write_text(text, encoding="utf-8")
        assert [rows(end).tolist() for end in read_source(path).edges[0]] == [[0, 1], [1, 0]]
    path.write_text("src,dst,w,w\n0,1,5,6\n1,0,7,8\n")
    with pytest.raises(GraphDataError, match=r"several columns of the name 'w'"):
        read_source(path)
    columns = [pyarrow.array([0, 1]), pyarrow.array([1, 0]), pyarrow.array([5, 6]), pyarrow.array([7, 8])]
    parquet.write_table(pyarrow.table(columns, names=["src", "dst", "w", "w"]), tmp_path / "e.parquet")
    with pytest.raises(GraphDataError, match=r"several columns of the name 'w'"):
        read_source(tmp_path / "e.parquet")


def write_chunked(folder, ends_of_chunks, **changes):
    """DGL's chunked format; five nodes, seven edges in two chunks."""
    for number, ends in enumerate(ends_of_chunks):
        np.save(folder / f"e{number}.npy", ends)
    content = {
        "node_type": ["a"],
        "num_nodes_per_chunk": [[3, 2]],
        "edge_type": ["a:r:a"],
        "num_edges_per_chunk": [[5, 2]],
        "edges": {"a:r:a": {"format": {"name": "numpy"}, "data": ["e0.npy", "e1.npy"]}},
    }
    (folder / "metadata.json").write_text(json.dumps(content | changes))


def test_chunks_of_two_edges_stand_as_the_others_do(tmp_path):
    edges = np.array([[0, 1], [1, 2], [2, 3], [3, 4], [4, 0], [0, 2], [1, 3]])
    for chunks in ([edges[:5], edges[5:]], [edges[:5].T, edges[5:].T]):
        write_chunked(tmp_path, chunks)
        assert np.array_equal(np.stack([rows(end) for end in read_source(tmp_path).edges[0]], 1), edges)
    pairs = {"num_edges_per_chunk": [[2, 2]]}
    write_chunked(tmp_path, [edges[:2], edges[2:4]], **pairs)
    with pytest.raises(GraphDataError, match=r"e0\.npy has two edges, in rows or in columns, which no other chunk"):
        read_source(tmp_path)


def test_chunked_folders_name_what_is_left_out(tmp_path):
    (tmp_path / "edges.txt").write_text("0 1 5\n1 2 6\n")
    text = {"a:r:a": {"format": {"name": "csv", "delimiter": " "}, "data": ["edges.txt"]}}
    write_chunked(tmp_path, [np.zeros((9, 2))], edges=text, num_edges_per_chunk=[[2]], splits={"train": []})
    (tmp_path / "2parts").mkdir()
    (tmp_path / "2parts" / "a.txt").write_text("0\n")
    assert read_source(tmp_path).left_out == (
        "metadata.json: 'splits'",
        f"{tmp_path}/metadata.json: edges: a:r:a: columns after the second of edges.txt",
        "2parts/ (1 file)",
        "e0.npy",
    )


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))


def test_ogb_text(tmp_path):
    raw = tmp_path / "raw"
    write_text(raw / "num-node-list.csv.gz", "4\n")
    write_text(raw / "node-label.csv.gz", "0\n1\n2\n3\n")
    write_text(raw / "edge.csv.gz", f"0,1\n{2**32 + 1},2\n2,3\n")  # whose low half is a node
    with pytest.raises(GraphDataError, match=f"edge 1 of .* has source {2**32 + 1}"):
        check_all(read_source(tmp_path))
    write_text(raw / "edge.csv.gz", "0,1\n1,2\n")
    write_text(raw / "node-feat.csv.gz", "0,1\n2,3\n4,1e300\n5,6\n")
    with pytest.raises(GraphDataError, match=r"node-feat.csv.gz, row 3, column column1: 1e\+300 does not fit float32"):
        read_source(tmp_path)
    write_text(raw / "node-feat.csv.gz", "0,1\n2,3\n4,5\n6")  # not written to the end
    with pytest.raises(GraphDataError, match="node-feat.csv.gz: .*row 4: Expected 2 columns, got 1"):
        read_source(tmp_path)
    (raw / "node-feat.csv.gz").unlink()
    write_text(raw / "edge.csv.gz", "0,1\n#1,2\n2,3\n")
    with pytest.raises(GraphDataError, match="#1"):
        read_source(tmp_path)
    damaged = bytearray(gzip.compress(b"0,1\n" * 9000))
    damaged[20:40] = b"\xff" * 20
    (raw / "edge.csv.gz").write_bytes(damaged)
    with pytest.raises(GraphDataError, match="cannot be read"):
        read_source(tmp_path)


def test_lsc_splits_and_years(tmp_path):
    folder = tmp_path / "processed"
    (folder / "a___r___a").mkdir(parents=True)
    (folder / "a").mkdir()
    np.save(folder / "a___r___a" / "edge_index.npy", np.array([[0, 1, 2], [1, 2, 3]]))
    np.save(folder / "a" / "node_label.npy", np.arange(4.0))
    np.savez(tmp_path / "split_dict.npz", train=[0], valid=[], test=[])  # an empty list is saved as float64
    masks = read_source(tmp_path).node_feats["a"]
    assert rows(masks["train_mask"].values).tolist() == [1, 0, 0, 0] and not rows(masks["val_mask"].values).any()
    for train in ([0.0], np.array([True, False, True, False]), 3):
        np.savez(tmp_path / "split_dict.npz", train=train, valid=[], test=[])
        with pytest.raises(GraphDataError, match="train must be ids of nodes"):
            read_source(tmp_path)
