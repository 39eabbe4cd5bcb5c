"""OGB's directories: what their files hold is read, what they do not say is asked, and the rest is named."""

import gzip

import numpy as np
import pytest
from input_checks import rows, typed_values_of

from mpigraph.errors import GraphDataError
from mpigraph.formats.readers import read_source

EDGES = np.array([[0, 1], [1, 2], [3, 0]])


def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))


def write_text(folder, split="mine"):
    """Four nodes and three edges, with features of both."""
    raw = folder / "raw"
    write(raw / "num-node-list.csv.gz", 4)
    write(raw / "num-edge-list.csv.gz", 3)
    write(raw / "edge.csv.gz", "0,1", "1,2", "3,0")
    write(raw / "edge-feat.csv.gz", "0.5,1", "2,3", "4,5")
    write(raw / "edge_reltype.csv.gz", 7, 8, 9)
    write(raw / "node_year.csv.gz", 2001, 2002, 2003, 2004)
    write(raw / "node_pos.csv.gz", "0,1", "2,3.5", "4,5", "6,7")
    write(raw / "species.csv.gz", 3702, 4932, 3702, 9606)
    write(raw / "node-label.csv.gz", 0, 1, 0, 1)
    for name, ids in (("train", (0, 3)), ("valid", ()), ("test", (2,))):
        write(folder / "split" / split / f"{name}.csv.gz", *ids)
    return folder


def ends(source, relation_id=0):
    return np.stack([rows(end) for end in source.edges[relation_id]], 1)


def test_every_file_of_values_is_a_feature(tmp_path):
    source = read_source(write_text(tmp_path / "data"))
    assert np.array_equal(ends(source), EDGES)
    assert typed_values_of(source.edge_feats["_N:_E:_N"]) == {
        "feat": ("float32", [[0.5, 1], [2, 3], [4, 5]]),
        "reltype": ("int64", [7, 8, 9]),
    }
    found = typed_values_of(source.node_feats["_N"])
    assert found["year"] == ("int64", [2001, 2002, 2003, 2004])
    assert found["species"] == ("int64", [3702, 4932, 3702, 9606])
    assert found["pos"] == ("float32", [[0, 1], [2, 3.5], [4, 5], [6, 7]])
    assert set(found) == {"year", "species", "pos", "label", "train_mask", "val_mask", "test_mask"}


def write_typed(folder):
    raw = folder / "raw"
    write(raw / "num-node-dict.csv.gz", "author,paper", "2,3")
    write(raw / "triplet-type-list.csv.gz", "author,writes,paper", "paper,cites,paper")
    for relation, lines in (
        ("author___writes___paper", ("0,1", "1,2")),
        ("paper___cites___paper", ("0,1", "1,2", "2,0")),
    ):
        write(raw / "relations" / relation / "edge.csv.gz", *lines)
        write(raw / "relations" / relation / "num-edge-list.csv.gz", len(lines))
        write(raw / "relations" / relation / "edge_reltype.csv.gz", *range(10, 10 + len(lines)))
    write(raw / "relations" / "paper___cites___paper" / "edge-feat.csv.gz", "1,2", "3,4", "5,6")
    write(raw / "nodetype-has-feat.csv.gz", "author,paper", "False,True")
    write(raw / "node-feat" / "paper" / "node_year.csv.gz", 2010, 2011, 2012)
    write(raw / "node-feat" / "paper" / "node-feat.csv.gz", "1,2", "3,4", "5,6")
    write(raw / "nodetype-has-label.csv.gz", "author,paper", "False,True")
    write(raw / "node-label" / "paper" / "node-label.csv.gz", 0, "nan", 2)
    for name in ("train", "valid", "test"):
        write(folder / "split" / "time" / "paper" / f"{name}.csv.gz", 0)
    write(folder / "split" / "time" / "nodetype-has-split.csv.gz", "author,paper", "False,True")
    return folder


def test_typed_files_of_values_are_features(tmp_path):
    source = read_source(write_typed(tmp_path / "mag"))
    assert source.left_out == ()  # also no question about reverse edges
    assert typed_values_of(source.edge_feats["author:writes:paper"]) == {"reltype": ("int64", [10, 11])}
    assert typed_values_of(source.edge_feats["paper:cites:paper"]) == {
        "feat": ("float32", [[1, 2], [3, 4], [5, 6]]),
        "reltype": ("int64", [10, 11, 12]),
    }
    found = typed_values_of(source.node_feats["paper"])
    assert found["year"] == ("int64", [2010, 2011, 2012]) and found["feat"][1] == [[1, 2], [3, 4], [5, 6]]
    assert found["label"][1] == [0, -1, 2] and found["train_mask"][1] == [True, False, False]
    assert source.node_feats["author"] == {}


def test_wrong_files_of_a_typed_dataset(tmp_path):
    path = write_typed(tmp_path / "mag")
    for name, lines, message in (
        ("raw/triplet-type-list.csv.gz", ["paper,cites"], r"an edge type is .* \(got .paper,cites.\)"),
        (
            "raw/num-node-dict.csv.gz",
            ["author,paper", "3"],
            "num-node-dict.csv.gz: 1 values for 2 names: author, paper",
        ),
        ("raw/num-node-dict.csv.gz", ["author,paper"], "num-node-dict.csv.gz: cannot be read: not enough values"),
        ("raw/num-node-dict.csv.gz", ["paper,paper", "2,3"], "num-node-dict.csv.gz: .*'paper'.* is there twice"),
        ("raw/triplet-type-list.csv.gz", ["paper,cites,paper"] * 2, "list.csv.gz: .*'paper'.* is there twice"),
        ("split/time/paper/valid.csv.gz", ["3"], "paper/valid.csv.gz, row 0: there is no node 3 among 3"),
        ("raw/relations/paper___cites___paper/edge.csv.gz", ["1,2,3"], "edge.csv.gz: has 3 columns"),
        ("raw/num-node-dict.csv.gz", None, "num-node-dict.csv.gz: cannot be read: No such file"),
        (
            "raw/relations/paper___cites___paper/edge.csv.gz",
            None,
            "paper/edge.csv.gz: cannot be read: No such file",
        ),
        ("raw/relations/paper___cites___paper/num-edge-list.csv.gz", [4], "is said to be 4, but there are 3"),
    ):
        kept = (path / name).read_bytes()
        (path / name).unlink() if lines is None else write(path / name, *lines)
        with pytest.raises(GraphDataError, match=message):
            read_source(path)
        (path / name).write_bytes(kept)


def test_typed_arrays_are_features(tmp_path):
    raw = tmp_path / "mag" / "raw"
    raw.mkdir(parents=True)
    cites = "paper___cites___paper"
    np.savez(raw / "num_nodes_dict.npz", paper=[3])
    np.savez(raw / "num_edges_dict.npz", **{cites: [2]})
    np.savez(raw / "edge_index_dict.npz", **{cites: np.array([[0, 1], [1, 2]])})
    np.savez(raw / "node_year.npz", paper=np.array([2010, 2011, 2012]))
    np.savez(raw / "edge_weight_dict.npz", **{cites: np.array([0.5, 2.0])})
    np.savez(raw / "graph_name.npz", paper=[0])
    source = read_source(raw.parent)
    assert typed_values_of(source.node_feats["paper"]) == {"year": ("int64", [2010, 2011, 2012])}
    assert typed_values_of(source.edge_feats["paper:cites:paper"]) == {"weight": ("float64", [0.5, 2.0])}
    assert source.left_out == ("raw/graph_name.npz",)
    np.savez(raw / "node_year.npz", venue=np.array([2010]))
    with pytest.raises(GraphDataError, match="'venue'"):
        read_source(raw.parent)


def test_files_that_are_not_read_are_named(tmp_path):
    folder = write_text(tmp_path / "ogbn_arxiv")
    write(folder / "mapping" / "labelidx2name.csv.gz", "0,cs.AI")
    write(folder / "mapping" / "nodeidx2id.csv.gz", "0,12")
    write(folder / "split" / "other" / "train.csv.gz", 0)
    (folder / "split" / "mine" / "split_dict.pt").write_bytes(b"?")
    (folder / "RELEASE_v1.txt").write_text("")
    (folder / ".hidden").write_text("")
    assert read_source(folder).left_out == (
        "RELEASE_v1.txt",
        "mapping/ (2 files)",
        "split/mine/split_dict.pt (a pickle, which can run code)",
        "split/other/ (1 file)",
    )


@pytest.mark.parametrize(
    ("name", "options", "is_doubled"),
    [
        ("ogbn-proteins", {}, True),
        ("ogbn_arxiv", {}, False),
        ("mine", {"undirected": True}, True),
        ("ogbn_products", {"undirected": True}, True),
    ],
)
def test_reverse_edges_are_added_once_where_name_or_user_say_so(tmp_path, name, options, is_doubled):
    source = read_source(write_text(tmp_path / name), **options)
    assert np.array_equal(ends(source), [*EDGES, *EDGES[:, ::-1]] if is_doubled else EDGES)
    assert source.left_out == ()  # nothing to ask
    assert rows(source.edge_feats["_N:_E:_N"]["reltype"].values).tolist() == [7, 8, 9] * (1 + is_doubled)


def test_a_missing_file_of_labels_is_told(tmp_path):
    folder = write_text(tmp_path / "ogbn_arxiv")
    (folder / "raw" / "node-label.csv.gz").unlink()
    assert read_source(folder).left_out == ("labels: there is a split of nodes, but no file node-label",)


def test_what_no_file_says_is_asked(tmp_path, caplog):
    source = read_source(write_text(tmp_path / "mine"))
    assert np.array_equal(ends(source), EDGES)
    assert "no file says whether each of the 3 edges is stored once" in caplog.text and "--undirected" in caplog.text


@pytest.mark.parametrize(
    ("name", "lines", "error"),
    [
        ("num-edge-list.csv.gz", [4], r"of \('_N', '_E', '_N'\) is said to be 4, but there are 3"),
        ("num-node-list.csv.gz", [2, 2], "num-node-list.csv.gz: cannot be read: too many values"),
        ("node_year.csv.gz", [1, 2, 3], "'year' of '_N' must have 4 rows"),
        ("edge_reltype.csv.gz", [1], "'reltype' of '_N:_E:_N' must have 3 rows"),
        ("node_year.csv.gz", [1, "x", 3, 4], "node_year.csv.gz, row 2, column column0: 'x'"),
    ],
)
def test_files_that_contradict_each_other(tmp_path, name, lines, error):
    folder = write_text(tmp_path / "ogbn_arxiv")
    write(folder / "raw" / name, *lines)
    with pytest.raises(GraphDataError, match=error):
        read_source(folder)
