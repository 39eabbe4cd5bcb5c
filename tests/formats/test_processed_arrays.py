"""Datasets of IGB are what their arrays say, with and without the header of .npy."""

import numpy as np
import pytest
from input_checks import bytes_in_memory, check_all, check_parts, rows

from mpigraph.errors import GraphDataError
from mpigraph.formats import processed_arrays
from mpigraph.formats.readers import read_source

RNG = np.random.default_rng(0)
PAPERS = RNG.random((10, 1024)).astype(np.float32)
LABELS = np.arange(10) % 4
EDGES = {
    "paper__cites__paper": np.array([[0, 9], [2, 2], [3, 1]]),
    "paper__written_by__author": np.array([[9, 4], [0, 0]]),
}


def save(path, array, raw=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    if raw:
        array.astype("<f4").tofile(path)
    else:
        np.save(path, array)


def write(folder, edges=EDGES, raw=False, papers=PAPERS, label=LABELS, label_2k=LABELS * 100):
    processed = folder / "processed"
    for name, ends in edges.items():
        save(processed / name / "edge_index.npy", ends)
    save(processed / "paper" / "node_feat.npy", papers, raw)
    save(processed / "paper" / "node_label_19.npy", label, raw)
    save(processed / "paper" / "node_label_2K.npy", label_2k, raw)
    return folder


@pytest.mark.parametrize("raw", [False, True], ids=["npy", "raw"])
def test_a_typed_dataset(tmp_path, raw):
    folder = write(tmp_path / "tiny", raw=raw)
    (folder / "processed" / "paper" / "train_idx.pt").write_bytes(b"")
    source = read_source(folder)
    check_all(source)
    assert dict(zip(source.schema.ntypes, source.num_nodes, strict=True)) == {"author": 5, "paper": 10}
    assert source.schema.relations == (("paper", "cites", "paper"), ("paper", "written_by", "author"))
    for (_, ends), found in zip(sorted(EDGES.items()), source.edges, strict=True):
        assert np.array_equal(np.stack([rows(end) for end in found], 1), ends)
    paper = source.node_feats["paper"]
    assert np.array_equal(rows(paper["feat"].values), PAPERS) and paper["feat"].dtype == "float32"
    assert rows(paper["label"].values).tolist() == LABELS.tolist() and paper["label"].dtype == "int64"
    assert rows(paper["label_2K"].values).tolist() == (LABELS * 100).tolist()
    masks = [np.flatnonzero(rows(paper[name].values)).tolist() for name in ("train_mask", "val_mask", "test_mask")]
    assert masks == [[0, 1, 2, 3, 4, 5], [6, 7], [8, 9]]
    assert len(source.left_out) == 1 and source.left_out[0].startswith("processed/paper/train_idx.pt")
    assert bytes_in_memory(source) < 1000
    check_parts(source, tmp_path / "parts")


def test_the_papers_of_size_full_that_are_not_labelled(tmp_path, monkeypatch):
    monkeypatch.setattr(processed_arrays, "_FULL", 10)
    monkeypatch.setattr(processed_arrays, "_LABELLED_OF_FULL", {"label": 5, "label_2K": 3})
    paper = read_source(write(tmp_path / "full", raw=True)).node_feats["paper"]
    assert rows(paper["label"].values).tolist() == [0, 1, 2, 3, 0, -1, -1, -1, -1, -1]
    assert rows(paper["label_2K"].values).tolist() == [0, 100, 200, -1, -1, -1, -1, -1, -1, -1]
    assert np.flatnonzero(rows(paper["test_mask"].values)).tolist() == [4]


@pytest.mark.parametrize(
    ("file", "content", "error"),
    [
        ("paper__cites__paper/edge_index.npy", np.zeros((2, 3), int), "two columns of integers"),
        ("paper__cites__paper/edge_index.npy", b"", "cannot be read"),
        ("a__b__c__d/edge_index.npy", np.zeros((3, 2), int), "an edge type is <src>__<rel>__<dst>"),
        ("paper/node_label_19.npy", np.zeros(11), "'label' of 'paper' must have 10 rows"),
        ("paper/node_label_19.npy", b"1", "cannot be read"),
        ("paper/node_feat.npy", b"1" * 4100, "cannot be read: cannot reshape"),
        ("paper/node_feat.npy", b"\x93NUMPY", "cannot be read"),
    ],
)
def test_what_is_no_dataset_is_one_error(tmp_path, file, content, error):
    folder = write(tmp_path / "g")
    path = folder / "processed" / file
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        save(path, content)
    with pytest.raises(GraphDataError, match=rf"{file}.*{error}|g: .*{error}"):
        read_source(folder)
