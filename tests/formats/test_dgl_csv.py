"""Datasets of DGL's CSVDataset: what its csv files say is what is partitioned, in DGL's order."""

import numpy as np
import pytest
from input_checks import check_all, check_parts, rows, values_of

from mpigraph.errors import GraphDataError
from mpigraph.formats.readers import read_source
from mpigraph.formats.typed_tables import TableOptions

NODES = """\
node_id,label,train_mask,feat,note
2,1,False,"0.5, 0.25",x
0,0,True,"1.5, 2",y
1,2,False,"3, 4",z
"""
EDGES = 'src_id,dst_id,weight,feat\n2,0,1.5,"1,2"\n0,1,2.5,"3,4"\n1,1,3.5,"5,6.5"\n'
ONE = "dataset_name: one\nedge_data:\n- file_name: edges.csv\nnode_data:\n- file_name: nodes.csv\n"

TYPED = {
    "meta.yaml": """\
dataset_name: typed
separator: ;
edge_data:
- file_name: follows.csv
  etype: [user, follows, user]
- file_name: likes.csv
  etype: [user, likes, item]
  src_id_field: from
  dst_id_field: to
node_data:
- {file_name: users.csv, ntype: user}
- {file_name: items.csv, ntype: item, node_id_field: id}
""",
    "users.csv": "node_id;age;id\nbob;3;30\nalice;4;40\ncarol;5;50\n",
    "items.csv": "id;x\n7;0.5\n-3;1.5\n",
    "follows.csv": "src_id;dst_id\nalice;bob\ncarol;alice\n",
    "likes.csv": "from;to;when\nbob;7;2020-01-01\ncarol;-3;2020-01-02\n",
}


def write(folder, files):
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_bytes(text.encode())
    return folder


def ends(source):
    return [[rows(end).tolist() for end in pair] for pair in source.edges]


def test_one_type(tmp_path):
    """Ids 0 to n - 1 are the nodes, in whatever order their rows are."""
    source = read_source(write(tmp_path / "in", {"meta.yaml": ONE, "nodes.csv": NODES, "edges.csv": EDGES}))
    assert source.schema.is_homogeneous and source.num_nodes == (3,)
    assert ends(source) == [[[2, 0, 1], [0, 1, 1]]]
    feats = source.node_feats["_N"]
    assert values_of(feats) == {"label": [0, 2, 1], "train_mask": [1, 0, 0], "feat": [[1.5, 2], [3, 4], [0.5, 0.25]]}
    assert feats["train_mask"].dtype == "bool" and feats["feat"].dtype == "float32"
    assert values_of(source.edge_feats["_N:_E:_N"]) == {"weight": [1.5, 2.5, 3.5], "feat": [[1, 2], [3, 4], [5, 6.5]]}
    assert any("note" in line for line in source.left_out)
    check_parts(source, tmp_path / "out")


def test_types_and_ids_that_are_numbered(tmp_path):
    source = read_source(write(tmp_path / "in", TYPED))
    assert source.schema.ntypes == ("item", "user") and source.num_nodes == (2, 3)
    assert source.schema.relations == (("user", "follows", "user"), ("user", "likes", "item"))
    assert ends(source) == [[[0, 2], [1, 0]], [[1, 2], [1, 0]]]
    assert values_of(source.node_feats["item"]) == {"id": [-3, 7], "x": [1.5, 0.5]}
    assert values_of(source.node_feats["user"]) == {"age": [4, 3, 5], "id": [40, 30, 50]}  # a column of this name wins
    days = np.array(["2020-01-01", "2020-01-02"], "M8[s]").astype(np.int64)
    assert values_of(source.edge_feats["user:likes:item"]) == {"when": days.tolist()}
    check_parts(source, tmp_path / "out")


def test_one_graph_of_several(tmp_path):
    files = {
        "meta.yaml": ONE,
        "nodes.csv": "graph_id,node_id\n3,0\n3,1\n",
        "edges.csv": "graph_id,src_id,dst_id\n3,0,1\n",
    }
    source = read_source(write(tmp_path / "in", files))
    assert source.node_feats["_N"] == {} and ends(source) == [[[0], [1]]]
    write(tmp_path / "in", {"edges.csv": "graph_id,src_id,dst_id\n3,0,1\n4,0,1\n"})
    with pytest.raises(GraphDataError, match=r"graph_id has \[3, 4\]: a partitioned graph is one"):
        read_source(tmp_path / "in")


@pytest.mark.parametrize(
    "files, message",
    [
        ({"meta.yaml": ONE.replace("nodes.csv", "no.csv")}, r"meta.yaml: node_data: there is no file .*no.csv"),
        ({"meta.yaml": "dataset_name: x\nnode_data: []\n"}, "node_data must be a list of mappings"),
        ({"meta.yaml": ONE + "graph_data:\n  file_name: graphs.csv\n"}, "graph_data tells of several graphs"),
        ({"meta.yaml": ONE + "version: 2.0.0\n"}, "version '2.0.0' is not known"),
        ({"meta.yaml": ONE + "separator: ab\n"}, "separator must be one character"),
        ({"meta.yaml": ONE + "- file_name: nodes.csv\n"}, "'_N' has two files"),
        ({"meta.yaml": ONE + "  ntype: [a, b]\n"}, r"a type must be 1 name\(s\)"),
        ({"meta.yaml": ONE + "  ntype: paper\n"}, "node_data has no file for node type '_N'"),
        ({"meta.yaml": ONE + "  node_id_field: 3\n"}, "node_id_field must be a name"),
        ({"nodes.csv": NODES.replace("node_id", "id")}, "nodes.csv: .*column 'node_id'"),
        ({"nodes.csv": NODES.replace("\n1,2", "\n0,2")}, r"nodes.csv, row 4: the id 0 is there already: .*row 3"),
        ({"edges.csv": EDGES.replace("1,1,3.5", "1,9,3.5")}, r"edges.csv, row 4: .* the id 9"),
        ({"nodes.csv": NODES.replace('"3, 4"', '"3, 4, 5"')}, r"nodes.csv, row 4.*3 numbers, 2 before"),
        ({"nodes.csv": NODES.replace('"3, 4",z', '"3, 4"')}, r"nodes.csv: .*row 4"),
    ],
)
def test_wrong_files_are_named(tmp_path, files, message):
    write(tmp_path / "in", {"meta.yaml": ONE, "nodes.csv": NODES, "edges.csv": EDGES} | files)
    with pytest.raises(GraphDataError, match=message) as error:
        check_all(read_source(tmp_path / "in"))
    assert str(tmp_path) in str(error.value)


def test_categories_that_the_user_names(tmp_path):
    path = write(tmp_path / "in", {"meta.yaml": ONE, "nodes.csv": NODES, "edges.csv": EDGES})
    source = read_source(path, tables=TableOptions(categories=("note",)))
    assert values_of(source.node_feats["_N"])["note"] == [1, 2, 0] and source.left_out == ()
    with pytest.raises(GraphDataError, match="features are the columns of the files"):
        read_source(path, tables=TableOptions(columns={"x": ("feat",)}))
    with pytest.raises(GraphDataError, match="files of nodes cannot be given for DGL's CSVDataset"):
        read_source(path, nodes=[path / "nodes.csv"])
