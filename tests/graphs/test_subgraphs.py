"""Look-ups of edges, parts of graphs, and graphs made of others: against lists of edges and their features."""

import pytest
import torch

import mpigraph as mg
from mpigraph import EID, NID
from mpigraph.errors import EdgeTypeError, GraphDataError, InvalidArgumentError, NodeTypeError, OutOfRangeError

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


def check_part(part, g, eids, nodes=None):
    """Check that a part has the edges ``eids`` of ``g`` and all features, by the values of the features."""
    for relation in g.canonical_etypes:
        expected = eids.get(relation, [])
        frame, ends = part.edges[relation].data, g.edges(etype=relation)
        assert frame["w"].tolist() == [100 * e for e in expected] and frame[EID].tolist() == list(expected)
        for column, ids, ntype in zip(part.edges(etype=relation), ends, relation[::2], strict=True):
            assert part.nodes[ntype].data["x"][column].tolist() == (10 * ids[list(expected)]).tolist()
    for ntype in g.ntypes:
        kept = g.nodes(ntype).tolist() if nodes is None else nodes[ntype]
        assert part.nodes[ntype].data["x"].tolist() == [10 * node for node in kept]
        assert (
            (part.nodes[ntype].data[NID].tolist() == kept) if nodes is not None else NID not in part.nodes[ntype].data
        )


def test_edges_by_their_ends():
    g = plain()
    for h in (g, mg.to_block(g, range(6))):
        ids = h.srcdata.get(NID, g.nodes()).tolist()
        u, v = (torch.tensor([ids.index(node) for node in some]) for some in ([2, 0, 5, 1, 1], [1, 0, 0, 1, 0]))
        assert h.has_edges_between(u, v).tolist() == [True, False, False, True, False]
        eids = [h.edata.get(EID, torch.arange(8))[e] for e in (h.edge_ids(u[0], v[0]), h.edge_ids(u[3], v[3]))]
        assert [int(e) for e in eids] == [0, 3]
        src, dst, eids = h.edge_ids(u, v, return_uv=True)
        assert h.edata["w"][eids].tolist() == [0, 600, 300, 700] and src.tolist() == u[[0, 0, 3, 3]].tolist()
        assert dst.tolist() == v[[0, 0, 3, 3]].tolist()
        with pytest.raises(GraphDataError, match="no edge of .* from"):
            h.edge_ids(u, v)
    assert g.has_edges_between(0, 5) is True and g.has_edges_between(5, 0) is False and g.edge_ids(0, 5) == 5
    assert g.has_edges_between([2, 0, 4], 1).tolist() == [True, True, False]
    assert g.has_edges_between([], []).tolist() == [] and g.edge_ids([], []).tolist() == []
    assert typed().has_edges_between([1, 1], [0, 1], "rates").tolist() == [True, False]
    assert g.has_nodes([0, 5, 6, -1]).tolist() == [True, True, False, False] and g.has_nodes(5) is True


def test_edges_of_nodes():
    g = plain()
    assert g.in_edges([0, 1], "eid").tolist() == [2, 4, 0, 1, 3, 6, 7]
    assert [ends.tolist() for ends in g.in_edges([5, 0, 2])] == [[0, 3, 4], [5, 0, 0]]
    assert [ends.tolist() for ends in g.out_edges([2, 5, 0], "all")] == [[2, 2, 0, 0], [1, 1, 1, 5], [0, 6, 1, 5]]
    assert g.predecessors(0).tolist() == [3, 4] and g.successors(0).tolist() == [1, 5]
    assert g.in_edges([], "eid").tolist() == [] and typed().in_edges(2, etype="rates")[0].tolist() == [0, 1]
    assert g.in_degrees(1) == 5 and g.out_degrees(5) == 0 and isinstance(g.in_degrees(1), int)
    block = mg.to_block(g.in_subgraph([1, 5]), [1, 5])
    assert block.edata["w"][block.in_edges([1, 0], "eid")].tolist() == [500, 0, 100, 300, 600, 700]


@pytest.mark.parametrize("nodes", [[1, 4, 0], torch.tensor([1, 4, 0], dtype=torch.int32)])
def test_parts_of_nodes(nodes):
    g, r = plain(), ("_N", "_E", "_N")
    check_part(mg.node_subgraph(g, nodes), g, {r: [3, 7, 4, 1]}, {"_N": [1, 4, 0]})
    check_part(g.subgraph(nodes, relabel_nodes=False), g, {r: [3, 7, 4, 1]})
    mask = torch.tensor([True, True, False, False, True, False])
    check_part(g.subgraph(mask), g, {r: [1, 3, 7, 4]}, {"_N": [0, 1, 4]})
    check_part(mg.in_subgraph(g, [0, 5]), g, {r: [2, 4, 5]})
    check_part(g.in_subgraph([0, 5], relabel_nodes=True), g, {r: [2, 4, 5]}, {"_N": [3, 4, 0, 5]})
    check_part(mg.out_subgraph(g, nodes), g, {r: [3, 7, 4, 1, 5]})
    plain_part = g.subgraph(nodes, store_ids=False)
    assert NID not in plain_part.ndata and EID not in plain_part.edata


def test_parts_of_typed_graphs():
    g = typed()
    check_part(g.subgraph({"user": [2, 1], "item": [0]}), g, {RATES: [1], FOLLOWS: [2]}, {"user": [2, 1], "item": [0]})
    check_part(g.in_subgraph({"item": [2]}), g, {RATES: [0, 2]})
    check_part(g.out_subgraph({"user": [2]}), g, {FOLLOWS: [1, 2]})
    one = mg.edge_subgraph(g, {"rates": [2, 1]})
    check_part(one, g, {RATES: [2, 1]}, {"user": [1], "item": [2, 0]})
    check_part(g["rates"].edge_subgraph([2, 1]), g["rates"], {RATES: [2, 1]}, {"user": [1], "item": [2, 0]})


def test_parts_of_edges():
    g, r = plain(), ("_N", "_E", "_N")
    check_part(g.edge_subgraph([5, 0]), g, {r: [5, 0]}, {"_N": [0, 2, 5, 1]})
    check_part(g.edge_subgraph(torch.arange(8) > 5, relabel_nodes=False), g, {r: [6, 7]})


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
    assert g.add_self_loop(fill_data="sum").edata["w"][8:].tolist() == [600, 1700, 0, 0, 0, 500]
    assert g.add_self_loop(fill_data="max").edata["w"][8:].tolist() == [400, 700, 0, 0, 0, 500]
    assert g.add_self_loop(["w"], 7).edata["w"][8:].tolist() == [7] * 6
    assert g.add_self_loop([]).edata["w"][8:].tolist() == [0] * 6
    users = typed().add_self_loop(etype="follows")
    assert users.num_edges("follows") == 7 and users.edges["rates"].data["w"].tolist() == [0, 100, 200]
    assert typed().remove_self_loop("follows").num_edges("follows") == 2 and g.num_edges() == 8
    with pytest.raises(InvalidArgumentError, match="within one type"):
        typed().add_self_loop(etype="rates")
    with pytest.raises(InvalidArgumentError, match="fill_data"):
        g.add_self_loop(fill_data="median")


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
        (lambda g: g.subgraph([6]), OutOfRangeError, "node of type '_N': 6"),
        (lambda g: g.subgraph(torch.ones(3, dtype=torch.bool)), InvalidArgumentError, "6 entries"),
        (lambda g: g.subgraph([0.5]), InvalidArgumentError, "must be integers"),
        (lambda g: g.subgraph({"x": [0]}), NodeTypeError, "'x'"),
        (lambda g: g.edge_subgraph([8]), OutOfRangeError, "8"),
        (lambda g: g.edge_subgraph({"x": [0]}), EdgeTypeError, "'x'"),
        (lambda g: typed().subgraph([0]), NodeTypeError, "dict by node type"),
        (lambda g: typed().edge_subgraph([0]), EdgeTypeError, "ambiguous"),
        (lambda g: g.in_edges([0], "uve"), InvalidArgumentError, "form must be"),
        (lambda g: g.has_edges_between([0, 1], [1, 2, 3]), InvalidArgumentError, "2 sources and 3 dest"),
        (lambda g: g.edge_ids([9], [0]), OutOfRangeError, "9"),
        (
            lambda g: mg.in_subgraph(mg.to_block(g, range(6)), [0]),
            InvalidArgumentError,
            "in_subgraph takes .* not a block",
        ),
        (lambda g: mg.add_edges(mg.to_block(g), [0], [0]), InvalidArgumentError, "add_edges takes .* not a block"),
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
    simple, mapping = mg.to_simple(g, writeback_mapping=True, copy_edata=True)
    assert torch.stack(simple.edges()).tolist() == [[0, 1, 2], [1, 2, 0]] and mapping.tolist() == [0, 1, 2, 2, 0]
    assert simple.edata["count"].tolist() == [2, 1, 2] and simple.edata["w"].tolist() == [0, 1, 2]
    assert simple.edata[mg.EID].tolist() == [0, 1, 2] and simple.ndata["x"] is g.ndata["x"]
    assert mg.to_simple(g, copy_edata=True, aggregator="sum").edata["w"].tolist() == [4, 1, 5]
    mean = mg.to_simple(g, return_counts=None, copy_edata=True, aggregator="mean", copy_ndata=False)
    assert mean.edata["w"].tolist() == [2, 1, 2.5] and "count" not in mean.edata and "x" not in mean.ndata
    with pytest.raises(InvalidArgumentError, match="aggregator"):
        mg.to_simple(g, aggregator="max")
