"""npz and HDF5 files and directories of arrays: every array becomes part of the graph, or is named."""

import json

import h5py
import numpy as np
import pytest
from input_checks import check_all, typed_values_of

from mpigraph.errors import GraphDataError
from mpigraph.formats.readers import read_source

ENDS = {"edge_src": np.array([0, 1, 2, 0]), "edge_dst": np.array([1, 2, 0, 2])}
KEY = "_N:_E:_N"


def as_npz(folder, arrays):
    np.savez(folder / "g.npz", **arrays)
    return folder / "g.npz"


def as_hdf5(folder, arrays):
    with h5py.File(folder / "g.h5", "w") as file:
        for name, values in arrays.items():
            file[name] = values
    return folder / "g.h5"


def as_directory(folder, arrays):
    (folder / "g").mkdir()
    for name, values in arrays.items():
        np.save(folder / "g" / f"{name}.npy", values)
    return folder / "g"


WAYS = pytest.mark.parametrize("write", [as_npz, as_hdf5, as_directory])


@WAYS
def test_arrays_become_features_by_name_or_length(tmp_path, write):
    arrays = {
        "weight": np.array([0.5, 1, 2, 4]),
        "edge_time": np.array([5, 6, 7, 8]),
        "edge_train_mask": np.array([True, False, True, False]),
        "degree": np.array([1, 2, 3], np.int16),
        "node_pos": np.array([[0, 1], [2, 3], [4, 5]], np.float32),
        "node_label": np.array([0.0, np.nan, 1]),
        "classes": np.int64(7),
        "edge_train_end": np.array([6]),
        "names": np.array([b"a", b"b", b"c"]),
    }
    source = read_source(write(tmp_path, ENDS | arrays))
    assert source.num_nodes == (3,)
    assert typed_values_of(source.edge_feats[KEY]) == {
        "weight": ("float64", [0.5, 1, 2, 4]),
        "time": ("int64", [5, 6, 7, 8]),
        "train_mask": ("bool", [1, 0, 1, 0]),
    }
    assert typed_values_of(source.node_feats["_N"]) == {
        "degree": ("int16", [1, 2, 3]),
        "pos": ("float32", [[0, 1], [2, 3], [4, 5]]),
        "label": ("int64", [0, -1, 1]),
    }
    left_out = sorted(source.left_out)
    assert [thing.split(":")[0] for thing in left_out] == ["classes", "edge_train_end", "names"]
    assert left_out[0].endswith("int64[] has no row for each of 3 nodes or 4 edges")
    assert left_out[1].endswith("int64[1] has no row for each of 4 edges") and "no number" in left_out[2]


@WAYS
def test_names_with_the_separator_in_them(tmp_path, write):
    """They are taken apart at the types that there are."""
    arrays = {
        "u__num_nodes": 2,
        "big__v__num_nodes": 3,
        "u__has__rated__big__v__src": np.array([0, 1]),
        "u__has__rated__big__v__dst": np.array([2, 1]),
        "u__has__rated__big__v__stars": np.array([3, 4]),
        "big__v__feat": np.eye(3),
    }
    source = read_source(write(tmp_path, arrays))
    assert source.schema.relations == (("u", "has__rated", "big__v"),) and source.left_out == ()
    assert source.edges[0][1][:].tolist() == [2, 1] and source.node_feats["big__v"]["feat"].values.shape == (3, 3)
    assert typed_values_of(source.edge_feats["u:has__rated:big__v"]) == {"stars": ("int64", [3, 4])}


@pytest.mark.parametrize("write", [as_npz, as_hdf5])
def test_names_with_slashes(tmp_path, write):
    """HDF5 makes groups of them."""
    relation = "/award/nominee./award/nomination"
    arrays = {"e__num_nodes": 2, f"e__{relation}__e__src": np.array([0]), f"e__{relation}__e__dst": np.array([1])}
    source = read_source(write(tmp_path, arrays))
    assert source.schema.relations == (("e", relation, "e"),) and source.edge_counts == [1] and not source.left_out


@WAYS
def test_typed_arrays_become_features(tmp_path, write):
    arrays = {
        "u__num_nodes": 2,
        "v__num_nodes": 3,
        "u__likes__v__src": np.array([0, 1, 1]),
        "u__likes__v__dst": np.array([0, 1, 2]),
        "u__likes__v__stars": np.array([3, 4, 5]),
        "u__likes__v__two__words": np.array([[0.5], [1], [2]]),
        "u__age": np.array([30, 40]),
        "u__label": np.array([1, 0], np.int8),
        "v__feat": np.eye(3),
        "v__price": np.array([1.5, 2.5]),
        "test__u__likes__v__src": np.array([0]),
        "when": np.array([1, 2, 3]),
    }
    source = read_source(write(tmp_path, arrays))
    assert typed_values_of(source.edge_feats["u:likes:v"]) == {
        "stars": ("int64", [3, 4, 5]),
        "two__words": ("float64", [[0.5], [1], [2]]),
    }
    assert typed_values_of(source.node_feats["u"]) == {"age": ("int64", [30, 40]), "label": ("int64", [1, 0])}
    assert typed_values_of(source.node_feats["v"]) == {"feat": ("float32", np.eye(3).tolist())}
    assert sorted(source.left_out) == [
        "test__u__likes__v__src: int64[1] is of no type here",
        "v__price: float64[2] has no row for each of 3 nodes of 'v'",
        "when: int64[3] is of no type here",
    ]


@WAYS
def test_a_name_decides_where_lengths_are_equal(tmp_path, write):
    ring = {"edge_src": np.array([0, 1, 2]), "edge_dst": np.array([1, 2, 0])}
    named = {"edge_w": np.array([1, 2, 3]), "node_w": np.array([4, 5, 6]), "label": np.array([0, 0, 1])}
    source = read_source(write(tmp_path, ring | named))
    assert typed_values_of(source.edge_feats[KEY]) == {"w": ("int64", [1, 2, 3])}
    assert typed_values_of(source.node_feats["_N"])["w"] == ("int64", [4, 5, 6])


@pytest.mark.parametrize(
    ("arrays", "error"),
    [
        ({"num_nodes": 4, "w": np.zeros(4)}, "w may be of the 4 nodes or of as many edges: call it node_w or edge_w"),
        ({"w": np.zeros(4), "edge_w": np.zeros(4)}, "edge_w: feature 'w' of '_N:_E:_N' is there twice"),
        ({"label": np.zeros(3), "node_label": np.zeros(3)}, "node_label: feature 'label' of '_N' is there twice"),
        ({"num_nodes": 2}, "has source 2|has destination 2"),
        ({"node_x": np.zeros(3), "node_y": np.zeros(5), "num_nodes": np.zeros(2)}, "num_nodes must be one integer"),
    ],
)
def test_arrays_that_contradict_each_other(tmp_path, arrays, error):
    path = as_npz(tmp_path, ENDS | arrays)
    with pytest.raises(GraphDataError, match=error):
        check_all(read_source(path))


def test_what_else_a_file_holds_is_named(tmp_path):
    path = as_hdf5(tmp_path, ENDS)
    with h5py.File(path, "a") as file:
        file.attrs["num_nodes"] = 9
        file["more/feat"] = np.zeros(7)
        file["more/x"] = np.zeros(3)
        file["text"] = "words"
    source = read_source(path)
    assert source.left_out[:2] == ("attribute num_nodes", "text: no numbers")
    assert source.left_out[2].startswith("more/feat: float64[7] has no row") and len(source.left_out) == 3
    assert list(source.node_feats["_N"]) == ["more/x"]
    folder = as_directory(tmp_path, ENDS)
    (folder / "readme.txt").write_text("")
    (folder / "old").mkdir()
    np.save(folder / "old" / "feat.npy", np.zeros(3))
    assert read_source(folder).left_out == ("old/ (1 file)", "readme.txt")


def test_reverse_edges_that_are_there_are_not_added_again(tmp_path):
    for both, wanted in ((None, 8), (True, 4), (False, 8)):
        meta = {} if both is None else {"meta": json.dumps({"both_directions": both})}
        source = read_source(as_npz(tmp_path, ENDS | meta), undirected=True)
        assert source.edge_counts[0] == wanted
    with pytest.raises(GraphDataError, match="every edge has its reverse already"):
        read_source(as_npz(tmp_path, ENDS | {"meta": '{"both_directions": true}'}), add_reverse=True)
