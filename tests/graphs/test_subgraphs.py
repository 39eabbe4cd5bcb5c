"""Graphs made of others, by DGL's functions."""

import pytest
import torch

import mpigraph as mg
from mpigraph import EID
from mpigraph.errors import GraphDataError, InvalidArgumentError, NodeTypeError, OutOfRangeError

SRC, DST = [2, 0, 3, 1, 4, 0, 2, 1], [1, 1, 0, 1, 0, 5, 1, 1]  # parallel edges 0, 6; loops 3, 7
RATES, FOLLOWS = ("user", "rates", "item"), ("user", "follows", "user")


def plain():
    g = mg.graph((SRC, DST), num_nodes=6)
    g.ndata["x"], g.edata["w"] = torch.arange(6) * 10, torch.arange(8) * 100
    return g


def typed():
    g = mg.heterograph({RATES: ([0, 1, 1], [2, 0, 2]), FOLLOWS: ([0, 2, 2], [1, 0, 2])}, {"item": 5, "user": 4})
    for ntype in g.ntypes:
        g.nodes[ntype].data["x"] = torch.arange(g.num_nodes(ntype)) * 10
    for relation in g.canonical_etypes:
        g.edges[relation].data["w"] = torch.arange(g.num_edges(relation)) * 100
    return g


def test_graphs_of_the_same_edges():
    g = typed()
    turned = mg.reverse(g, copy_edata=True)
    back = ("item", "rates", "user")
    assert turned.ntypes == g.ntypes and [e.tolist() for e in turned.edges(etype=back)] == [[2, 0, 2], [0, 1, 1]]
    assert torch.equal(turned.edges[back].data["w"], g.edges[RATES].data["w"]) and "x" in turned.nodes["user"].data
    assert len(g.reverse(copy_ndata=False).nodes["user"].data) == len(g.reverse().edges[back].data) == 0
    both = mg.add_reverse_edges(plain(), copy_edata=True)
    assert [e.tolist() for e in both.edges()] == [[*SRC, 1, 1, 0, 0, 5, 1], [*DST, 2, 0, 3, 4, 0, 2]]
    assert both.edata["w"].tolist() == [*range(0, 800, 100), 0, 100, 200, 400, 500, 600]
    assert both.edata[EID].tolist() == [*range(8), 0, 1, 2, 4, 5, 6]
    assert mg.add_reverse_edges(plain(), exclude_self=False).num_edges() == 16
    with pytest.raises(InvalidArgumentError, match="within one type"):
        mg.add_reverse_edges(g)
    assert mg.add_reverse_edges(g, ignore_bipartite=True).num_edges("follows") == 5


def test_loops():
    g = plain()
    assert mg.remove_self_loop(g).edata["w"].tolist() == [0, 100, 200, 400, 500, 600]
    more = mg.add_self_loop(g)
    assert [e.tolist() for e in more.edges()] == [[*SRC, *range(6)], [*DST, *range(6)]]
    assert more.edata["w"].tolist() == [*range(0, 800, 100)] + [1] * 6 and torch.equal(more.ndata["x"], g.ndata["x"])
    assert g.add_self_loop(["w"], 7).edata["w"][8:].tolist() == [7] * 6
    assert g.add_self_loop([]).edata["w"][8:].tolist() == [0] * 6
    users = typed().add_self_loop(etype="follows")
    assert users.num_edges("follows") == 7 and users.edges["rates"].data["w"].tolist() == [0, 100, 200]
    assert typed().remove_self_loop("follows").num_edges("follows") == 2 and g.num_edges() == 8
    with pytest.raises(InvalidArgumentError, match="within one type"):
        typed().add_self_loop(etype="rates")
    with pytest.raises(InvalidArgumentError, match="fill_data"):
        g.add_self_loop(fill_data="sum")


def test_more_and_fewer_edges():
    g = mg.add_edges(plain(), [5, 4], [0, 0], {"w": torch.tensor([8, 9]), "new": torch.ones(2, 2)})
    assert g.edata["w"].tolist() == [*range(0, 800, 100), 8, 9] and g.edata["new"].sum(1).tolist() == [0] * 8 + [2, 2]
    fewer = mg.remove_edges(g, [8, 0], store_ids=True)
    assert fewer.edata["w"].tolist() == [*range(100, 800, 100), 9] and fewer.edata[EID].tolist() == [*range(1, 8), 9]
    assert g.num_edges() == 10


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda g: g.subgraph([1, 1]), InvalidArgumentError, "given once each"),
        (lambda g: g.subgraph(torch.ones(3, dtype=torch.bool)), InvalidArgumentError, "6 entries"),
        (lambda g: g.subgraph([6]), OutOfRangeError, "node id of type '_N' 6"),
        (lambda g: mg.to_block(g).edge_subgraph([0]), InvalidArgumentError, "not a block"),
        (lambda g: g.subgraph([0.5]), InvalidArgumentError, "must be integers"),
        (lambda g: typed().subgraph([0]), NodeTypeError, "dict by node type"),
        (lambda g: g.edge_ids([9], [0]), OutOfRangeError, "9"),
        (lambda g: mg.in_subgraph(mg.to_block(g, range(6)), [0]), InvalidArgumentError, "not a block"),
        (lambda g: mg.add_edges(g, [0], [7]), OutOfRangeError, "7"),
        (lambda g: mg.add_edges(g, [0], [1], {"w": torch.ones(2)}), GraphDataError, "rows"),
    ],
)
def test_misuse_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call(plain())


def test_parallel_edges_become_one() -> None:
    g = mg.graph(([0, 1, 2, 2, 0], [1, 2, 0, 0, 1]), num_nodes=4)
    g.ndata["x"], g.edata["w"] = torch.arange(4.0) + 1, torch.arange(5.0)
    simple = mg.to_simple(g, copy_edata=True)
    assert torch.stack(simple.edges()).tolist() == [[0, 1, 2], [1, 2, 0]]
    assert simple.edata["count"].tolist() == [2, 1, 2] and simple.edata["w"].tolist() == [0, 1, 2]
    assert simple.edata[mg.EID].tolist() == [0, 1, 2] and simple.ndata["x"] is g.ndata["x"]
    bare = mg.to_simple(g, return_counts=None, copy_ndata=False)
    assert not bare.edata and not bare.ndata
