"""Conversions. scipy, networkx and PyG are used for real; DGL by a stand-in with the attributes of the real class."""

from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data, HeteroData

from mpigraph.convert import as_graph, from_dgl, from_networkx, from_pyg, from_scipy
from mpigraph.errors import GraphDataError, InvalidArgumentError
from mpigraph.graphs.fields import EID, NID
from mpigraph.graphs.hetero import graph, heterograph

WRITES = ("author", "writes", "paper")


def edge_set(g, etype=None):
    src, dst = g.edges(etype=etype)
    return sorted(zip(src.tolist(), dst.tolist(), strict=True))


@pytest.mark.parametrize("kind", ["csr_matrix", "csc_array", "coo_array", "lil_matrix"])
def test_scipy(kind):
    matrix = getattr(scipy.sparse, kind)(np.array([[0, 2, 0], [0, 0, 0], [5, 0, 7]]))
    g = from_scipy(matrix, eweight_name="w")
    assert g.num_nodes() == 3 and edge_set(g) == [(0, 1), (2, 0), (2, 2)]
    src, dst = g.edges()
    assert g.edata["w"].tolist() == [int(matrix.tocsr()[i, j]) for i, j in zip(src, dst, strict=True)]
    assert edge_set(as_graph(matrix)) == edge_set(g) and len(as_graph(matrix).edata) == 0
    with pytest.raises(GraphDataError, match="2 x 3"):
        from_scipy(scipy.sparse.csr_matrix((2, 3)))


@pytest.mark.parametrize("kind", [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph])
def test_networkx_classes(kind):
    source = kind([(2, 0), (0, 1), (1, 1)])
    source.add_node(3)
    if source.is_multigraph():
        source.add_edge(0, 1)
    want = [(2, 0), (0, 1), (1, 1)] + [(0, 1)] * source.is_multigraph()
    if not source.is_directed():
        want += [(v, u) for u, v in want if u != v]
    g = as_graph(source)
    assert g.num_nodes() == 4 and edge_set(g) == sorted(want)


def test_networkx_attributes_and_labels(caplog):
    source = nx.DiGraph()
    source.add_node("b", x=[1.0, 2.0], name="bee", half=1)
    source.add_node("a", x=[3.0, 4.0], name="ant")
    source.add_edge("b", "a", w=0.5)
    g = from_networkx(source)
    assert g.ndata["x"].tolist() == [[3.0, 4.0], [1.0, 2.0]] and list(g.ndata) == ["x"]
    assert edge_set(g) == [(1, 0)] and g.edata["w"].tolist() == [0.5]
    assert "attributes of nodes of type '_N': 'name' (no numbers), 'half' (missing on 1)" in caplog.text
    assert len(from_networkx(source, node_attrs=[], edge_attrs=[]).ndata) == 0
    with pytest.raises(GraphDataError, match="'half' is missing on 1 nodes"):
        from_networkx(source, node_attrs=["half"])
    with pytest.raises(GraphDataError, match=r"'name' of nodes.*not numeric"):
        from_networkx(source, node_attrs=["name"])
    mixed = from_networkx(nx.Graph([("a", 1), (1, (2,))]))  # labels without an order
    assert edge_set(mixed) == [(0, 1), (1, 0), (1, 2), (2, 1)] and from_networkx(nx.Graph()).num_nodes() == 0


def pyg_fields():
    return {
        "x": torch.randn(3, 4),
        "edge_index": torch.tensor([[0, 1, 2], [1, 2, 0]]),
        "edge_attr": torch.randn(3, 2),
        "y": torch.tensor([0, 1, 0]),
        "train_mask": torch.tensor([True, False, True]),
        "num_nodes": 3,
        "name": "three",
        "graph_label": torch.tensor([1.0]),
    }


@pytest.mark.parametrize(
    "index", [torch.tensor([[0, 5], [1, 6], [2, 7]]), torch.tensor([[0, 5], [1, 6], [2, 7]]).T.repeat(2, 1)[:3],
              torch.arange(6), torch.zeros(2, 3, 1), np.array([[0, 5], [1, 6], [2, 7]])],
    ids=lambda index: f"{type(index).__name__}{list(index.shape)}",
)  # fmt: skip
def test_an_edge_index_has_two_rows(index):
    hetero = HeteroData()
    hetero["a"].num_nodes, hetero["a", "to", "a"].edge_index = 8, index
    for data in (Data(edge_index=index, num_nodes=8), hetero):
        with pytest.raises(GraphDataError, match=r"edge_index of .* must have the shape \[2, num_edges\]"):
            from_pyg(data)


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
def test_sparse_features_are_refused_by_their_name(layout):
    for sparse in (getattr(torch.eye(3), layout)(), scipy.sparse.csr_matrix(np.eye(3))):
        g = graph(([0, 1], [1, 2]))
        with pytest.raises(InvalidArgumentError, match="feature 'x' on nodes.*sparse"):
            g.ndata["x"] = sparse
    fields = pyg_fields() | {"x": getattr(torch.eye(3), layout)()}
    with pytest.raises(InvalidArgumentError, match="feature 'x' on nodes.*sparse"):
        as_graph(Data(**fields))


def test_pyg_itself(caplog):
    fields = pyg_fields()
    g = as_graph(Data(**fields, face_index=torch.zeros(2, 3), level=torch.tensor(3)))
    assert "'graph_label' [1], 'face_index' [2, 3], 'level' []" in caplog.text and "'x'" not in caplog.text
    assert edge_set(g) == [(0, 1), (1, 2), (2, 0)] and g.num_nodes() == 3
    assert sorted(g.ndata) == ["train_mask", "x", "y"] and list(g.edata) == ["edge_attr"]
    assert torch.equal(g.ndata["x"], fields["x"]) and torch.equal(g.edata["edge_attr"], fields["edge_attr"])
    with pytest.raises(GraphDataError, match="data has no edge_index"):
        from_pyg(Data(num_nodes=3, x=torch.ones(3)))


# PyG says so once in a process, of the "__" in names, by which it joins names elsewhere.
pytestmark = pytest.mark.filterwarnings("ignore:There exist type names")
TYPED = {
    ("user", "rated-by__x", "item 2"): ([3, 0, 3, 3], [1, 1, 0, 1]),  # parallel edges
    ("user", "likes.most", "user"): ([1, 0], [1, 3]),
    ("item 2", "likes.most", "user"): ([], []),
    ("user", "rated-by__y", "item 2"): ([2], [2]),
}


WROTE = ("user", "likes.most", "user")


def typed_graph():
    """Names that are no words, a relation without edges, two with one name, a type without features or edges."""
    g = heterograph(TYPED, {"user": 6, "item 2": 3, "zone": 2})
    g.nodes["user"].data.update({"x": torch.randn(6, 3), "train_mask": torch.arange(6) % 2 == 0, "y": torch.arange(6)})
    g.nodes["item 2"].data.update({"x": torch.randn(3, 5), "train_mask": torch.tensor([True, False, False])})
    for number, relation in enumerate(TYPED):
        count = len(TYPED[relation][0])
        g.edges[relation].data.update({"edge_attr": torch.randn(count, number + 1), "time": torch.arange(count) + 5})
    return g


def same_graphs(one, other):
    """Whether two graphs have the same types, edges in the same order, and features."""
    if (one.ntypes, one.canonical_etypes) != (other.ntypes, other.canonical_etypes):
        return False
    frames = [(one.nodes[t].data, other.nodes[t].data) for t in one.ntypes]
    frames += [(one.edges[r].data, other.edges[r].data) for r in one.canonical_etypes]
    for mine, theirs in frames:
        if mine.num_rows != theirs.num_rows or set(mine) != set(theirs):
            return False
        if not all(mine[name].dtype == theirs[name].dtype and torch.equal(mine[name], theirs[name]) for name in mine):
            return False
    ends = [(one.edges(etype=r), other.edges(etype=r)) for r in one.canonical_etypes]
    return all(torch.equal(mine[side], theirs[side]) for mine, theirs in ends for side in (0, 1))


def test_typed_graphs_of_pyg():
    g, data = typed_graph(), HeteroData()
    for ntype in g.ntypes:
        data[ntype].num_nodes = g.num_nodes(ntype)
        data[ntype].update(dict(g.nodes[ntype].data))
    for relation in g.canonical_etypes:
        data[relation].edge_index = g.edge_index(relation)
        data[relation].update(dict(g.edges[relation].data))
    data["user"].index, data[WROTE].index = torch.ones(6, 2), torch.arange(2)  # none of nodes turns with "index"
    g.nodes["user"].data["index"], g.edges[WROTE].data["index"] = torch.ones(6, 2), torch.arange(2)
    assert same_graphs(from_pyg(data), g) and same_graphs(as_graph(data), g)
    assert from_pyg(data).nodes["user"].data["x"] is data["user"].x


def test_original_ids_and_names_with_index():
    """In PyG "index" turns an attribute of several dimensions, but no vector."""
    data = Data(edge_index=torch.tensor([[4, 1, 1, 4], [0, 2, 2, 0]]), num_nodes=7, n_id=torch.arange(7) * 3)
    data.update({"e_id": torch.tensor([8, 1, 9, 0]), "node_index": torch.arange(7), "index": torch.arange(4)})
    data.edge_label_index, data.face, data.adj_t = torch.zeros(2, 2), torch.ones(3, 3), torch.eye(3).to_sparse_csr()
    g = from_pyg(data)
    assert sorted(g.ndata) == [NID, "node_index"] and g.ndata[NID].tolist() == [0, 3, 6, 9, 12, 15, 18]
    assert sorted(g.edata) == [EID, "index"] and g.edata[EID].tolist() == [8, 1, 9, 0]
    data.node_index = torch.ones(7, 2)
    assert "node_index" not in from_pyg(data).ndata


def test_what_pyg_does_not_say():
    data = HeteroData()
    data["user", "buys", "item"].edge_index = torch.tensor([[0, 4], [1, 1]])
    g = from_pyg(data)  # PyG knows no node types yet
    assert (g.num_nodes("user"), g.num_nodes("item")) == (5, 2)
    data["user"].x, data["zone"].name = torch.ones(6, 1), "somewhere"
    with (
        pytest.warns(UserWarning, match="num_nodes"),
        pytest.raises(GraphDataError, match="nodes of type 'zone'.*num_n"),
    ):
        from_pyg(data)
    data["zone"].num_nodes, data["item"].num_nodes = 0, 1
    with pytest.raises(GraphDataError, match=r"edge 0: destination 1 is not in \[0, 1\)"):
        from_pyg(data)
    data["item"].num_nodes = 2
    assert from_pyg(data).num_nodes("user") == 6 and from_pyg(data).num_nodes("zone") == 0
    with pytest.raises(GraphDataError, match=r"relation \('a', 'b', 'a'\) has no edge_index"):
        empty = HeteroData()
        empty["a", "b", "a"].edge_attr = torch.ones(2)
        from_pyg(empty)
    named = HeteroData()
    named["a", "b:c", "a"].edge_index = torch.zeros(2, 1, dtype=torch.int64)
    assert from_pyg(named).canonical_etypes == [("a", "b:c", "a")]


class DGLStandIn:
    """The part of a DGLGraph that is read, over a graph of this library."""

    def __init__(self, inner, is_block=False):
        self.is_block = is_block
        self.ntypes, self.canonical_etypes = inner.ntypes, inner.canonical_etypes
        self.num_nodes, self.nodes, self.edges, self.edata = inner.num_nodes, inner.nodes, inner.edges, inner.edata


def test_dgl_stand_in():
    inner = heterograph({WRITES: ([1, 0], [2, 2]), ("paper", "cites", "paper"): ([0], [1])}, {"paper": 4, "tag": 1})
    inner.nodes["paper"].data["x"] = torch.arange(4)
    inner.edges[WRITES].data["w"] = torch.tensor([0.5, 1.5])
    g = as_graph(DGLStandIn(inner))
    assert g.ntypes == ["author", "paper", "tag"] and g.canonical_etypes == inner.canonical_etypes
    assert g.edges(etype=WRITES)[0].tolist() == [1, 0] and g.edges[WRITES].data["w"].tolist() == [0.5, 1.5]
    assert g.nodes["paper"].data["x"].tolist() == [0, 1, 2, 3] and g.num_nodes("paper") == 4
    with pytest.raises(InvalidArgumentError, match="block"):
        from_dgl(DGLStandIn(inner, is_block=True))


def test_as_graph_of_graphs_and_dicts():
    g = graph(([0], [1]))
    assert as_graph(g) is g
    assert as_graph({WRITES: ([0], [1])}).canonical_etypes == [WRITES]


@pytest.mark.parametrize("obj", [None, 7, "cora", (1, 2, 3), SimpleNamespace()])
def test_what_is_no_graph_is_refused(obj):
    with pytest.raises(InvalidArgumentError, match=f"got {type(obj).__name__}"):
        as_graph(obj)
