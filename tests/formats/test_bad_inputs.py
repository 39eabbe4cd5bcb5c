"""Inputs that lie, are damaged, or say what cannot be: each is one error of ours, and none is read wrong."""

import gzip
import json
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
    with pytest.raises(GraphDataError, match="a.npy: cannot be read: mmap length"):
        mapped_npy(tmp_path / "a.npy")
    with pytest.raises(GraphDataError, match=r"a\.npz: a: cannot be read"):
        mapped_npz(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"edge_src": 0}, "cannot be read: "),
        ({"edge_dst": [0.0, 1.0]}, r"edges of \('_N', '_E', '_N'\) must be two integer arrays of one length"),
        ({"feat": 1.0}, "node feature 'feat' of '_N' must have 2 rows"),
        ({"label": np.zeros(2), "feat": 1.0}, "node feature 'feat' of '_N' must have 2 rows"),
        ({"meta": "3"}, r"meta: cannot be read: 'int' object"),
        ({"meta": '{"num_nodes": 3, "num_nodes": 4}'}, "meta: 'num_nodes' is there twice"),
        ({"meta": '{"num_nodes": 3.7}'}, r"num_nodes must be one integer \(got float64\[\]\)"),
        ({"meta": '{"num_nodes": -3}'}, "node type '_N' has -3 nodes"),
    ],
)
def test_arrays_of_another_form(tmp_path, changes, words):
    np.savez(tmp_path / "g.npz", **{"edge_src": [0, 1], "edge_dst": [1, 0]} | changes)
    with pytest.raises(GraphDataError, match=rf"g\.npz: {words}"):
        read_source(tmp_path / "g.npz")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("label", np.array([2**64 - 1, 1, 2], np.uint64)),
        ("label", ["1", "2", "x"]),
        ("feat", [["a"], ["b"], ["c"]]),
        ("val_mask", np.array([1, 255, 0], np.uint8)),
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


def test_hdf5_that_was_not_written_to_the_end(tmp_path):
    for count in (100, 2**60):
        with h5py.File(tmp_path / f"{count}.h5", "w") as file:
            for name, values in ENDS.items():
                file[name] = values
            file.create_dataset("feat", (count, 4), "f4", chunks=(16, 4))[:50] = 1
        with pytest.raises(GraphDataError, match=r"\.h5: feat was not written to the end: it has 4 of"):
            read_source(tmp_path / f"{count}.h5")


def test_columns(tmp_path):
    path = tmp_path / "e.csv"
    for text in ("\ufeffsrc,dst\n0,1\n1,0\n", "\ufeff0,1\n1,0\n"):
        path.write_text(text, encoding="utf-8")
        assert [rows(end).tolist() for end in read_source(path).edges[0]] == [[0, 1], [1, 0]]
    path.write_text("src,dst,w,w\n0,1,5,6\n1,0,7,8\n")
    with pytest.raises(GraphDataError, match=r"'column w' is there twice"):
        read_source(path)
    columns = [pyarrow.array([0, 1]), pyarrow.array([1, 0]), pyarrow.array([5, 6]), pyarrow.array([7, 8])]
    parquet.write_table(pyarrow.table(columns, names=["src", "dst", "w", "w"]), tmp_path / "e.parquet")
    with pytest.raises(GraphDataError, match=r"'column w' is there twice"):
        read_source(tmp_path / "e.parquet")


def write_chunked(folder, ends_of_chunks, **changes):
    """DGL's chunked format; five nodes, seven edges in two chunks."""
    for number, ends in enumerate(ends_of_chunks):
        np.save(folder / f"e{number}.npy", ends)
    content = {"node_type": ["a"], "num_nodes_per_chunk": [[3, 2]], "edge_type": ["a:r:a"]}
    content |= {"num_edges_per_chunk": [[5, 2]]}
    content |= {"edges": {"a:r:a": {"format": {"name": "numpy"}, "data": ["e0.npy", "e1.npy"]}}}
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
        "edges of a:r:a: columns after the second",
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
    write_text(raw / "edge.csv.gz", "0,1\n1,2\n2,3\n")
    write_text(raw / "node-feat.csv.gz", "0,1\n2,3\n4,1e300\n5,6\n")
    with pytest.raises(GraphDataError, match=r"node-feat.csv.gz, row 3, column column1: 1e\+300 does not fit float32"):
        read_source(tmp_path)
    (raw / "node-feat.csv.gz").unlink()
    damaged = bytearray(gzip.compress(b"0,1\n" * 9000))
    damaged[20:40] = b"\xff" * 20
    (raw / "edge.csv.gz").write_bytes(damaged)
    with pytest.raises(GraphDataError, match="cannot be read"):
        read_source(tmp_path)
