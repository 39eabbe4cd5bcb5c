"""Inputs that are mapped: what their files say is what is partitioned, and nothing is held in memory."""

import json
import shutil
from itertools import pairwise

import h5py
import numpy as np
import pyarrow as pa
import pytest
from input_checks import bytes_in_memory, check_all, check_parts, rows
from pyarrow import parquet

from mpigraph.errors import GraphDataError
from mpigraph.formats.input_files import mapped_npy, mapped_npz
from mpigraph.formats.layout import add_reverse_edges
from mpigraph.formats.readers import read_source
from mpigraph.metadata.schema import Schema
from mpigraph.partition.row_arrays import concatenated, place_of

RNG = np.random.default_rng(0)
SMALL = 1000  # bytes that an index of a file may take


def test_chunks_are_one_array(tmp_path):
    whole = RNG.integers(0, 99, (12, 3))
    for number, (begin, end) in enumerate([(0, 5), (5, 5), (5, 6), (6, 12)]):
        np.save(tmp_path / f"{number}.npy", whole[begin:end])
    chunks = [mapped_npy(tmp_path / f"{number}.npy") for number in range(4)]
    joined = concatenated(chunks)
    assert joined.shape == (12, 3) and joined.dtype == whole.dtype and len(joined) == 12
    for chosen in (*(slice(begin, begin + 6) for begin in range(13)), slice(0, 12, 5), np.array([11, 0, 5, 5, 4])):
        assert np.array_equal(joined[chosen], whole[chosen])
    assert place_of(joined, 7) == f"{tmp_path}/3.npy, row 1" and place_of(joined, 4) == f"{tmp_path}/0.npy, row 4"
    with pytest.raises(GraphDataError, match=r"0.npy, row 0: rows are int64\[3\], in the chunks before int64\[\]"):
        concatenated([np.arange(3), chunks[0]])
    mixed = concatenated([np.arange(3, dtype=np.int32), np.arange(2)])
    assert mixed.dtype == np.int64 and mixed[:].tolist() == [0, 1, 2, 0, 1]


def test_arrays_of_an_npz_file_are_mapped_where_they_are_stored(tmp_path):
    arrays = {"a": RNG.random((7, 2)), "rather_long_name": np.arange(5, dtype=np.int16), "none": np.zeros((0, 2))}
    np.savez(tmp_path / "stored.npz", **arrays, text="{}")
    np.savez_compressed(tmp_path / "small.npz", **arrays, text="{}")
    for name, is_mapped in (("stored", True), ("small", False)):
        found = mapped_npz(tmp_path / f"{name}.npz")
        assert str(found.pop("text")) == "{}"
        assert all(np.array_equal(found[key], arrays[key]) for key in arrays) and set(found) == set(arrays)
        assert isinstance(found["a"], np.memmap) is is_mapped
    with pytest.raises(GraphDataError, match=r"objects.npz: o: it holds Python objects"):
        np.savez(tmp_path / "objects.npz", o=np.array([{}], object))
        mapped_npz(tmp_path / "objects.npz")


def write_lsc(path):
    """Papers that are cited by papers, of authors at institutions: MAG240M's files, small."""
    counts = {"paper": 50, "author": 30, "institution": 4}
    edges = {}
    for src, name, dst in (
        ("author", "affiliated_with", "institution"), ("author", "writes", "paper"), ("paper", "cites", "paper")
    ):  # fmt: skip
        ends = np.stack([RNG.integers(0, counts[src], 90), RNG.integers(0, counts[dst], 90)])
        ends[:, -1] = counts[src] - 1, counts[dst] - 1
        edges[src, name, dst] = ends
        folder = path / "processed" / f"{src}___{name}___{dst}"
        folder.mkdir(parents=True)
        np.save(folder / "edge_index.npy", ends)
    arrays = {
        "feat": RNG.random((50, 6)).astype(np.float16),
        "label": np.where(np.arange(50) % 5, np.nan, np.arange(50)).astype(np.float32),
        "year": (2000 + np.arange(50) % 21).astype(np.int64),
    }
    (path / "processed" / "paper").mkdir()
    for name, values in arrays.items():
        np.save(path / "processed" / "paper" / f"node_{name}.npy", values)
    return counts, edges, arrays


def test_mag240m(tmp_path):
    counts, edges, arrays = write_lsc(tmp_path)
    source = read_source(tmp_path)
    assert source.schema.ntypes == ("author", "institution", "paper")
    assert dict(zip(source.schema.ntypes, source.num_nodes, strict=True)) == counts
    assert source.schema.relations == tuple(sorted(edges))
    for relation, ends in zip(source.schema.relations, source.edges, strict=True):
        assert np.array_equal([rows(end) for end in ends], edges[relation])
    papers = source.node_feats["paper"]
    assert papers["feat"].dtype == "float16" and np.array_equal(papers["feat"].values, arrays["feat"])
    labelled = np.arange(50) % 5 == 0
    assert np.array_equal(rows(papers["label"].values), np.where(labelled, np.arange(50), -1))
    assert np.array_equal(rows(papers["train_mask"].values), labelled & (arrays["year"] <= 2018))
    assert np.array_equal(rows(papers["val_mask"].values), labelled & (arrays["year"] == 2019))
    assert "test_mask" not in papers and papers["train_mask"].dtype == "bool"
    assert bytes_in_memory(source) == 0
    both = add_reverse_edges(source)
    assert bytes_in_memory(both) == 0 and len(both.schema.relations) == 5
    check_parts(both, tmp_path / "out")


def test_mag240m_with_more_files(tmp_path):
    counts, *_ = write_lsc(tmp_path)
    processed = tmp_path / "processed"
    np.save(processed / "paper" / "node_venue.npy", np.arange(50, dtype=np.int32))
    np.save(processed / "paper___cites___paper" / "edge_weight.npy", np.arange(90.0))
    (processed / "venue").mkdir()
    np.save(processed / "venue" / "node_feat.npy", np.eye(7, dtype=np.float32))
    (tmp_path / "meta.pt").write_bytes(b"?")
    split = {"train": [1, 2], "valid": [], "test-dev": [3], "test-challenge": [4, 5]}  # [] is saved as float64
    np.savez(tmp_path / "split_dict.npz", **split)
    source = read_source(tmp_path)
    assert dict(zip(source.schema.ntypes, source.num_nodes, strict=True)) == counts | {"venue": 7}
    papers = source.node_feats["paper"]
    assert papers["venue"].dtype == "int32" and rows(papers["venue"].values).tolist() == list(range(50))
    assert rows(source.edge_feats["paper:cites:paper"]["weight"].values).tolist() == list(range(90))
    ids = [np.flatnonzero(papers[f"{name}_mask"].values).tolist() for name in ("train", "val", "test_challenge")]
    assert ids == [[1, 2], [], [4, 5]] and "test_dev_mask" in papers
    assert source.left_out == ("meta.pt (a pickle, which can run code)",)
    for wrong, message in (([3, 50], "row 1: there is no node 50 among 50"), ([0.0], "must be ids of nodes")):
        np.savez(tmp_path / "split_dict.npz", **split | {"valid": wrong})
        with pytest.raises(GraphDataError, match=rf"split_dict.npz: valid.*{message}"):
            read_source(tmp_path)


def test_ogb_in_npz_files_is_mapped(tmp_path):
    raw = tmp_path / "ogbn_products" / "raw"
    raw.mkdir(parents=True)
    edges = np.stack([RNG.integers(0, 40, 300), RNG.integers(0, 40, 300)])
    arrays = {"edge_index": edges, "node_feat": RNG.random((40, 30)).astype(np.float16), "num_nodes_list": [40]}
    label = np.where(np.arange(40) % 2, np.arange(40), np.nan)[:, None]
    weights = RNG.random((300, 2), dtype=np.float32)
    for save, is_mapped in ((np.savez_compressed, False), (np.savez, True)):
        save(raw / "data.npz", **arrays, edge_feat=weights, edge_kind=np.arange(300))
        save(raw / "node-label.npz", node_label=label)
        source = read_source(raw.parent)
        assert np.array_equal(rows(source.edges[0][0]), [*edges[0], *edges[1]])  # OGB stores each edge once
        assert np.array_equal(rows(source.edges[0][1]), [*edges[1], *edges[0]])
        feats = source.node_feats["_N"]
        assert feats["feat"].dtype == "float16" and np.array_equal(feats["feat"].values, arrays["node_feat"])
        assert np.array_equal(rows(feats["label"].values), np.where(np.arange(40) % 2, np.arange(40), -1))
        of_edges = source.edge_feats["_N:_E:_N"]  # they go both ways, too
        assert np.array_equal(rows(of_edges["feat"].values), np.concatenate([weights, weights]))
        assert np.array_equal(rows(of_edges["kind"].values), [*range(300), *range(300)])
        held = edges.nbytes + arrays["node_feat"].nbytes + label.nbytes + weights.nbytes + 300 * 8
        assert bytes_in_memory(source) == (0 if is_mapped else held)
    edges[1, 41] = 40
    np.savez(raw / "data.npz", **arrays)
    with pytest.raises(GraphDataError, match=r"data.npz, row 41: edge 341 of .* has source 40, but"):
        check_all(read_source(raw.parent))
    np.savez(raw / "data.npz", **arrays | {"edge_index": edges.T})
    with pytest.raises(GraphDataError, match=r"data.npz: edge_index must hold two rows .* \(got int64\[300, 2\]\)"):
        read_source(raw.parent)


def test_hdf5(tmp_path):
    path = tmp_path / "g.h5"
    feat = RNG.random((40, 5)).astype(np.float16)
    edges = np.stack([RNG.integers(0, 40, 300), RNG.integers(0, 9, 300)]).astype(np.int32)
    with h5py.File(path, "w") as file:
        file.attrs["meta"] = json.dumps({"both_directions": False})
        file["a__num_nodes"] = 40
        file["b__num_nodes"] = [9]
        file.create_dataset("a__feat", data=feat, chunks=(7, 5), compression="lzf")
        file["a__label"] = np.where(np.arange(40) % 2, np.arange(40), np.nan)
        file["a__train_mask"] = (np.arange(40) % 3 == 0).astype(np.int8)
        file["a__to__b__src"] = edges[0]
        file.create_dataset("a__to__b__dst", data=edges[1], chunks=(11,))
        file["a__note"] = "text"
    source = read_source(path)
    assert source.schema.relations == (("a", "to", "b"), ("b", "rev_to", "a")) and source.num_nodes == (40, 9)
    assert np.array_equal([rows(end) for end in source.edges[0]], edges)
    assert np.array_equal([rows(end) for end in source.edges[1]], edges[::-1])
    feats = source.node_feats["a"]
    assert np.array_equal(rows(feats["feat"].values), feat) and feats["feat"].dtype == "float16"
    assert np.array_equal(rows(feats["label"].values), np.where(np.arange(40) % 2, np.arange(40), -1))
    assert bytes_in_memory(source) == 0
    for chosen in (np.array([39, 0, 7, 7, 13, 14]), np.arange(40), np.arange(0)):
        assert np.array_equal(feats["feat"].values[chosen], feat[chosen])
        assert np.array_equal(source.edges[0][1][chosen * 7], edges[1][chosen * 7])
    bad = shutil.copy(path, tmp_path / "bad.h5")
    with h5py.File(bad, "a") as file:
        file["a__to__b__dst"][47] = 9
    with pytest.raises(
        GraphDataError, match=r"bad.h5: a__to__b__dst, row 47: edge 47 of .* has (destination|source) 9, but"
    ):
        check_all(read_source(bad))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda f: f.__setitem__("x", h5py.ExternalLink("none.h5", "x")), "x links to nothing"),
        (lambda f: f.create_dataset("x", (2,), "i4"), "x was not written to the end"),
        (lambda f: f.attrs.__setitem__("meta", "{"), "meta: cannot be read: Expecting"),
        (lambda f: f.__delitem__("edge_src"), "holds neither edge_src"),
    ],
)
def test_hdf5_files_that_lack_data(tmp_path, change, message):
    with h5py.File(tmp_path / "g.h5", "w") as file:
        for name in ("edge_src", "edge_dst"):
            file[name] = np.arange(5)
        change(file)
    with pytest.raises(GraphDataError, match=rf"g.h5: .*{message}"):
        read_source(tmp_path / "g.h5")


def write_chunked(path, kind="numpy", cuts=(0, 20, 20, 70), absolute=False):
    """A graph of two types in DGL's chunked format; node data of one type, edge data of one relation."""
    counts = {"user": 25, "item": 11}
    keys = ("user:likes:item", "user:knows:user")
    edges = {key: np.stack([RNG.integers(0, counts[key.split(":")[i]], 70) for i in (0, 2)], 1) for key in keys}
    told = {"feat": RNG.random((25, 3)).round(4), "label": np.arange(25, dtype=np.int32)}
    weights = RNG.random(70).round(4)

    def save(name, values, bounds):
        files = []
        for number, (begin, end) in enumerate(pairwise(bounds)):
            file = path / f"{name}-{number}.{'npy' if kind == 'numpy' else kind}".replace(":", "_")
            rows = values[begin:end].reshape(end - begin, values[0].size)
            if kind == "numpy":
                np.save(file, values[begin:end])
            elif kind == "csv":
                np.savetxt(file, rows, "%d" if values.dtype.kind == "i" else "%.4f")
            else:
                parquet.write_table(pa.table({str(n): column for n, column in enumerate(rows.T)}), file)
            files.append(str(file) if absolute else file.name)
        return {"format": {"name": kind}, "data": files}

    path.mkdir()
    node_bounds = (0, 10, 25, 25)
    metadata = {
        "graph_name": "likes",
        "node_type": ["user", "item"],
        "num_nodes_per_chunk": [np.diff(node_bounds).tolist(), [4, 4, 3]],
        "edge_type": list(keys),
        "num_edges_per_chunk": [np.diff(cuts).tolist()] * 2,
        "edges": {key: save(key, edges[key], cuts) for key in keys},
        "node_data": {"user": {name: save(name, values, node_bounds) for name, values in told.items()}},
        "edge_data": {keys[0]: {"weight": save("weight", weights, cuts)}},
    }
    (path / "metadata.json").write_text(json.dumps(metadata))
    return counts, edges, told, weights, metadata


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("kind", ["numpy", "csv", "parquet"])
def test_chunked_graph_of_dgl(tmp_path, kind, absolute):
    counts, edges, told, weights, _ = write_chunked(tmp_path / "in", kind, absolute=absolute)
    source = read_source(tmp_path / "in")
    assert source.schema == Schema(("item", "user"), (("user", "knows", "user"), ("user", "likes", "item")))
    assert source.num_nodes == (counts["item"], counts["user"])
    for relation, ends in zip(source.schema.relations, source.edges, strict=True):
        assert np.array_equal(np.stack([rows(end) for end in ends], 1), edges[":".join(relation)])
    for name, values in told.items():
        feature = source.node_feats["user"][name]
        assert np.array_equal(rows(feature.values), values)
        assert feature.dtype == ("int64" if name == "label" else values.dtype.name)
    assert np.array_equal(rows(source.edge_feats["user:likes:item"]["weight"].values), weights)
    assert bytes_in_memory(source) <= SMALL
    check_parts(source, tmp_path / "out", "metis")


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda m: m.pop("node_type"), "node_type and num_nodes_per_chunk: cannot be read: there is no 'node_type'"),
        (
            lambda m: m["num_edges_per_chunk"].append([1]),
            "json: edge_type and num_edges_per_chunk: . values for . names: user:",
        ),
        (lambda m: m.update(node_type=["user"] * 2), "node_type and num_nodes_per_chunk: 'user' is there twice"),
        (lambda m: m["edge_type"].__setitem__(0, "likes"), r"<src>:<rel>:<dst>, with types of .* \(got 'likes'\)"),
        (lambda m: m["edges"].pop("user:likes:item"), "metadata.json: cannot be read: there is no 'user:likes"),
        (lambda m: m["edges"]["user:likes:item"]["format"].update(name="zarr"), "format 'zarr' is not known"),
        (lambda m: m["edges"]["user:likes:item"]["data"].__setitem__(1, "no.npy"), "no.npy: cannot be read: No such"),
        (
            lambda m: m["num_edges_per_chunk"][0].__setitem__(0, 21),
            r"edges of user:likes:item must have 71 rows \(got 70",
        ),
        (lambda m: m["node_data"]["user"]["feat"]["data"].pop(0), "'feat' of 'user' must have 25 rows"),
        (
            lambda m: m["node_data"].update(b=m["node_data"]["user"]),
            "metadata.json: node features for unknown type 'b'",
        ),
    ],
)
def test_wrong_metadata_name_the_file(tmp_path, change, message):
    *_, metadata = write_chunked(tmp_path / "in", cuts=(0, 20, 30, 70))
    change(metadata)
    (tmp_path / "in" / "metadata.json").write_text(json.dumps(metadata))
    with pytest.raises(GraphDataError, match=message) as error:
        read_source(tmp_path / "in")
    assert str(tmp_path / "in") in str(error.value)
