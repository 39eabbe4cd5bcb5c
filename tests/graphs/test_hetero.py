"""In-memory graphs: construction, features, views, degrees, scopes."""

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import torch

from mpigraph.convert import as_graph
from mpigraph.errors import EdgeTypeError, FieldNameError, GraphDataError, InvalidArgumentError
from mpigraph.graphs.hetero import graph, heterograph
from mpigraph.graphs.transforms import to_bidirected

RATES, FOLLOWS = ("user", "rates", "item"), ("user", "follows", "user")


def typed():
    return heterograph({RATES: ([0, 1, 1], [2, 0, 2]), FOLLOWS: ([0, 2], [1, 0])}, {"item": 5, "user": 3})


def frozen(ids):
    array = np.array(ids)[::-1].copy()
    array.flags.writeable = False
    return array[::-1]


PAIRS = [(0, 5), (1, 6), (2, 7)]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(
    "form", [list, iter, lambda pairs: [list(pair) for pair in pairs], lambda pairs: list(torch.tensor(pairs)),
             lambda pairs: [np.array(pair) for pair in pairs],
             lambda pairs: torch.tensor(pairs).T, lambda pairs: np.array(pairs, np.int32).T,
             lambda pairs: tuple(map(frozen, zip(*pairs, strict=True))),
             lambda pairs: tuple(zip(*pairs, strict=True)), lambda pairs: ("coo", tuple(zip(*pairs, strict=True)))],
)  # fmt: skip
def test_pairs_are_edges_and_rows_are_ends(form, count):
    """A list has an edge in each entry, as in DGL, however many there are; a tuple, tensor or array has two rows."""
    for make in (graph, lambda edges: heterograph({RATES: edges}), as_graph):
        edges = form(PAIRS[:count])
        if make is as_graph and not isinstance(edges, list | tuple | np.ndarray | torch.Tensor):
            continue
        g = make(edges)
        assert [tuple(edge) for edge in torch.stack(g.edges(), 1).tolist()] == PAIRS[:count]
        assert {ends.dtype for ends in g.edges()} == {torch.int64}


@pytest.mark.parametrize(
    "edges",
    [np.array(PAIRS), torch.tensor(PAIRS), torch.tensor([[0, 5, 1], [1, 6, 2], [2, 7, 3]]), torch.arange(6),
     torch.tensor([0, 5]), torch.zeros(2, 2, 1), np.zeros((0, 2), np.int64), [(0, 5, 1), (1, 6, 1)], [0, 5], (),
     [torch.arange(3), torch.arange(3)], tuple(PAIRS), {0: 5, 1: 6}, "ab", nx.path_graph(2), scipy.sparse.eye(2)],
    ids=lambda edges: f"{type(edges).__name__}{getattr(edges, 'shape', '')}",
)  # fmt: skip
def test_what_is_neither_pairs_nor_two_rows_is_refused(edges):
    for call in (lambda: graph(edges), lambda: heterograph({RATES: edges})):
        with pytest.raises((GraphDataError, InvalidArgumentError), match="edges of|destinations of|sources of"):
            call()


def test_compressed_rows_and_columns():
    indptr, indices, eids = torch.tensor([0, 2, 2, 3]), [4, 1, 0], [2, 0, 1]
    for form, turn in (("csr", 1), ("csc", -1)):
        assert torch.stack(graph((form, (indptr, indices, []))).edges()[::turn]).tolist() == [[0, 0, 2], [4, 1, 0]]
        g = graph((form, (indptr, indices, eids)))
        assert torch.stack(g.edges(order="eid")[::turn]).tolist() == [[0, 2, 0], [1, 0, 4]] and g.num_nodes() == 5
        typed_graph = heterograph({RATES: (form, (np.array([0, 1, 1, 1]), [1], []))})
        rows = "user" if form == "csr" else "item"  # nodes without edges count
        assert {t: typed_graph.num_nodes(t) for t in typed_graph.ntypes} == {"user": 2, "item": 2} | {rows: 3}
        wrongs = (indptr, [4, 1], []), (indptr, indices, [0, 0, 1]), (indptr, indices), ([0, 2, 1, 3], indices, [])
        for wrong in wrongs:
            with pytest.raises(GraphDataError, match="_E"):
                graph((form, wrong))
        with pytest.raises(GraphDataError, match="indptr is of 3 nodes, but there are to be 2"):
            graph((form, ([0, 1, 2, 2], [0, 1], [])), num_nodes=2)
    with pytest.raises(GraphDataError, match="'coo', 'csr' or 'csc'"):
        graph(("dcsr", (indptr, indices, [])))


@pytest.mark.parametrize("edges", [[], ([], []), (np.zeros(0, np.int64), torch.zeros(0))])
def test_empty_graphs(edges):
    assert graph(edges).num_nodes() == 0
    g = graph(edges, num_nodes=3)
    assert repr(g) == "Graph(num_nodes=3, num_edges=0, ndata={}, edata={})" and g.to("cpu") is g
    assert g.num_edges() == 0 and g.in_degrees().tolist() == [0, 0, 0] and g.edge_index().shape == (2, 0)


def test_typed_counts_and_features():
    g = typed()
    assert g.ntypes == ["item", "user"] and g.etypes == ["follows", "rates"]
    assert g.num_nodes() == 8 and g.num_nodes("item") == 5 and g.num_edges() == 5 and g.num_edges("rates") == 3
    assert repr(g).startswith("Graph(num_nodes={'item': 5, 'user': 3}, num_edges={('user', 'follows', 'user'): 2, ")
    g.nodes["user"].data["x"] = torch.eye(3)
    g.edges["rates"].data["w"] = np.ones(3)
    assert list(g.ndata["x"]) == ["user"] and list(g.edata["w"]) == [RATES] and "y" not in g.ndata
    g.ndata["y"] = {"item": torch.zeros(5), "user": torch.ones(3)}
    assert sorted(g.ndata) == ["x", "y"] and g.nodes["item"].data["y"].shape == (5,)
    del g.ndata["y"]
    assert list(g.ndata) == ["x"] and len(g.ndata) == 1


def test_a_graph_without_relations_has_no_edge_features():
    g = heterograph({}, {"user": 3})
    assert "w" not in g.edata and "w" not in g.ndata and g.num_edges() == 0 and list(g.edata) == []
    with pytest.raises(FieldNameError, match="no feature 'w'"):
        g.edata["w"]


def test_counts_are_inferred_over_all_relations_and_isolated_types_kept():
    g = heterograph({RATES: ([4], [0]), FOLLOWS: ([1], [6])}, {"tag": 2})
    assert {t: g.num_nodes(t) for t in g.ntypes} == {"item": 1, "tag": 2, "user": 7}


def test_scopes_leave_the_graph_as_it_was():
    g = graph(([0], [1]))
    g.ndata["x"] = torch.zeros(2)
    with pytest.raises(RuntimeError, match="stop"), g.local_scope():
        g.ndata["x"], g.srcdata["y"] = torch.ones(2), torch.ones(2)
        assert g.dstdata["y"].sum() == 2  # both sides are the same nodes
        raise RuntimeError("stop")
    assert g.ndata["x"].sum() == 0 and "y" not in g.ndata
    twin = g.local_var()
    twin.edata["w"] = torch.ones(1)
    assert "w" not in g.edata and twin.ndata["x"] is g.ndata["x"]


def test_to_bidirected_adds_reverses_once():
    g = graph(([0, 0, 1, 2], [1, 1, 0, 2]), num_nodes=4)
    g.ndata["x"] = torch.arange(4)
    both = to_bidirected(g, copy_ndata=True, readonly=True)
    assert both.edge_index().tolist() == [[0, 1, 2], [1, 0, 2]]
    assert both.ndata["x"].tolist() == [0, 1, 2, 3] and len(to_bidirected(g).ndata) == 0
    assert to_bidirected(graph(([], []))).num_edges() == 0
    with pytest.raises(InvalidArgumentError, match="rates"):
        to_bidirected(typed())


@pytest.mark.parametrize(
    ("edges", "counts", "error", "message"),
    [
        ({RATES: ([0, 9], [1, 1])}, {"user": 3, "item": 2}, GraphDataError, "rates.*edge 1: source 9 is"),
        ({RATES: ([0, 1], [0, -1])}, None, GraphDataError, "edge 1: destination -1 is negative"),
        ({RATES: ([0, 1], [0])}, None, GraphDataError, "2 sources but 1 destinations"),
        ({RATES: ([0.5], [0])}, None, InvalidArgumentError, "must be integers"),
        ({RATES: ([[0]], [0])}, None, InvalidArgumentError, "in one dimension"),
        ({RATES: 7}, None, GraphDataError, r"must be a tuple \(src, dst\)"),
        ({RATES: (["a"], [0])}, None, InvalidArgumentError, "expected numbers"),
        ({"rates": ([0], [0])}, None, EdgeTypeError, "triple"),
        ({RATES: ([0], [0])}, {"user": -1}, InvalidArgumentError, "must be >= 0"),
        ({RATES: ([0], [0])}, {"user": 1, "item": 0}, GraphDataError, "destination 0 is not in"),
    ],
)  # fmt: skip
def test_bad_input_is_named(edges, counts, error, message):
    with pytest.raises(error, match=message):
        heterograph(edges, counts)
