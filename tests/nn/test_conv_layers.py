"""Attention with edges, isomorphism networks, LSTMs: each against plain torch, edge by edge."""

import pytest
import torch
from torch.nn.functional import leaky_relu, relu

import mpigraph.nn as mgnn
from mpigraph.errors import GraphDataError, InvalidArgumentError, MPIGraphError
from mpigraph.graphs.block import to_block
from mpigraph.graphs.hetero import graph, heterograph

NODES = 7
SRC, DST = [0, 3, 1, 6, 6, 2, 5, 5, 0, 4, 3], [1, 1, 0, 0, 0, 2, 3, 4, 6, 5, 1]  # parallel, a loop, in-degrees 1 to 3


def whole():
    return graph((SRC, DST), num_nodes=NODES)


def part():
    return to_block(whole(), [3, 1, 0, 2, 6, 5, 4])


def two_sides():
    return heterograph({("a", "to", "b"): (SRC, DST)}, {"a": 7, "b": 7})["to"]


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def pairs(g):
    return list(zip(*(ends.tolist() for ends in g.edges()), strict=True))


def sums(g, rows):
    """Add up a row for each edge at its destination."""
    out = torch.zeros(g.num_dst_nodes(), *rows[0].shape, dtype=torch.float64)
    for (_, v), row in zip(pairs(g), rows, strict=True):
        out[v] = out[v] + row
    return out


def softmax(g, scores):
    """Over the in-edges of each destination."""
    exps = [score.exp() for score in scores]
    total = sums(g, exps)
    return [e / total[v] for e, (_, v) in zip(exps, pairs(g), strict=True)]


def rows_for(g, width):
    """One tensor, or a pair for a graph between two types; and what sources and destinations have."""
    x = random(g.num_src_nodes(), width)
    if g.srctypes != g.dsttypes:
        y = random(g.num_dst_nodes(), width + 1)[:, :width].contiguous()
        return (x, y), x, y
    return x, x, x[: g.num_dst_nodes()]


@pytest.fixture(params=[whole, part, two_sides], ids=["graph", "block", "bipartite"])
def g(request):
    return request.param()


@pytest.mark.parametrize("options", [{}, {"share_weights": True, "bias": False, "residual": True}])
def test_gatv2(g, options):
    feat, x, y = rows_for(g, 6)
    layer = mgnn.GATv2Conv(6, 2, 3, activation=torch.tanh, **options).double()
    left, right = layer.fc_src(x).reshape(-1, 3, 2), layer.fc_dst(y).reshape(-1, 3, 2)
    scores = [(leaky_relu(left[u] + right[v], 0.2) * layer.attn[0]).sum(-1, keepdim=True) for u, v in pairs(g)]
    attention = softmax(g, scores)
    want = sums(g, [a * left[u] for a, (u, _) in zip(attention, pairs(g), strict=True)])
    if "residual" in options:
        want = want + y.reshape(-1, 3, 2)  # as wide as all heads: no map
        assert layer.fc_dst is layer.fc_src
    out, result = layer(g, feat, get_attention=True)
    torch.testing.assert_close(out, torch.tanh(want))
    torch.testing.assert_close(result, torch.stack(attention))
    assert torch.equal(layer(g, feat), out)


@pytest.mark.parametrize("share_weights", [True, False])
def test_gatv2_maps_no_row_twice(g, share_weights):
    feat, x, y = rows_for(g, 6)
    layer = mgnn.GATv2Conv(6, 2, 3, share_weights=share_weights).double()
    mapped = []
    for linear in {layer.fc_src, layer.fc_dst}:
        linear.register_forward_hook(lambda _, inputs, __: mapped.append(len(inputs[0])))
    layer(g, feat)
    both_sides = isinstance(feat, tuple) or not share_weights
    assert sorted(mapped) == sorted([len(x), len(y)] if both_sides else [len(x)])


def test_gatv2_of_two_widths_and_its_names():
    g, x, y = two_sides(), random(7, 3), random(7, 5)
    layer = mgnn.GATv2Conv((3, 5), 2, 2, residual=True).double()
    assert layer(g, (x, y)).shape == (7, 2, 2)
    names = ["attn", *(f"{fc}.{kind}" for fc in ("fc_dst", "fc_src", "res_fc") for kind in ("bias", "weight"))]
    assert sorted(layer.state_dict()) == names
    assert layer.fc_dst.in_features == layer.res_fc.in_features == 5


@pytest.mark.parametrize("residual", [True, False])
def test_edge_gat(g, residual):
    feat, x, y = rows_for(g, 4)
    features = random(g.num_edges(), 3)
    widths = (4, 4) if isinstance(feat, tuple) else 4
    layer = mgnn.EdgeGATConv(widths, 3, 2, 2, residual=residual).double()
    torch.nn.init.normal_(layer.bias)
    maps = (layer.fc_src, layer.fc_dst) if isinstance(feat, tuple) else (layer.fc, layer.fc)
    left, right, edge = (
        linear(rows).reshape(-1, 2, 2) for linear, rows in zip((*maps, layer.fc_edge), (x, y, features), strict=True)
    )
    scores = [
        leaky_relu((left[u] * layer.attn_l + right[v] * layer.attn_r + edge[e] * layer.attn_edge)[0].sum(-1), 0.2)
        for e, (u, v) in enumerate(pairs(g))
    ]
    attention = softmax(g, scores)
    want = sums(g, [attention[e][:, None] * (left[u] + edge[e]) for e, (u, _) in enumerate(pairs(g))])
    want = want + layer.bias.reshape(2, 2) + (layer.res_fc(y).reshape(-1, 2, 2) if residual else 0)
    out, result = layer(g, feat, features, get_attention=True)
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(result.squeeze(-1), torch.stack(attention))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("how", ["sum", "mean", "max"])
def test_gin(g, how, weighted):
    feat, x, y = rows_for(g, 4)
    weight = random(g.num_edges()) if weighted else None
    layer = mgnn.GINConv(torch.nn.Linear(4, 2).double(), how, 0.5, learn_eps=True, activation=torch.tanh).double()
    messages = [x[u] * (weight[e] if weighted else 1) for e, (u, _) in enumerate(pairs(g))]
    want = torch.zeros(g.num_dst_nodes(), 4, dtype=torch.float64)
    for v in range(len(want)):
        own = [m for m, (_, end) in zip(messages, pairs(g), strict=True) if end == v]
        want[v] = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax}[how](torch.stack(own), 0)
    torch.testing.assert_close(layer(g, feat, weight), torch.tanh(layer.apply_func(1.5 * y + want)))
    assert "eps" in dict(layer.named_parameters()) and "eps" in mgnn.GINConv().state_dict()


def test_gine(g):
    feat, x, y = rows_for(g, 4)
    features = random(g.num_edges(), 4)
    want = 1.25 * y + sums(g, [relu(x[u] + features[e]) for e, (u, _) in enumerate(pairs(g))])
    torch.testing.assert_close(mgnn.GINEConv(None, 0.25).double()(g, feat, features), want)
    with pytest.raises(GraphDataError, match="must have 11 rows"):
        mgnn.GINEConv()(g, feat, features[:3])


@pytest.mark.parametrize("weighted", [False, True])
def test_sage_lstm(g, weighted):
    feat, x, y = rows_for(g, 4)
    weight = random(g.num_edges()) if weighted else None
    layer = mgnn.SAGEConv(4, 3, "lstm").double()
    last = []
    for v in range(g.num_dst_nodes()):
        own = [x[u] * (weight[e] if weighted else 1) for e, (u, end) in enumerate(pairs(g)) if end == v]
        last.append(layer.lstm(torch.stack(own)[None])[1][0][0, 0])
    want = layer.fc_self(y) + layer.fc_neigh(torch.stack(last))
    torch.testing.assert_close(layer(g, feat, weight), want)
    names = [f"lstm.{kind}_{of}_l0" for kind in ("bias", "weight") for of in ("hh", "ih")]
    assert sorted(layer.state_dict()) == ["fc_neigh.weight", "fc_self.bias", "fc_self.weight", *names]


LAYERS = {
    "GATv2": (lambda **o: mgnn.GATv2Conv(4, 2, 2, **o), 0),
    "EdgeGAT": (lambda **o: mgnn.EdgeGATConv(4, 3, 2, 2, **o), 3),
    "GIN": (lambda: mgnn.GINConv(torch.nn.Linear(4, 2), learn_eps=True), 0),
    "GINE": (lambda: mgnn.GINEConv(learn_eps=True), 4),
    "lstm": (lambda: mgnn.SAGEConv(4, 2, "lstm"), 0),
}


@pytest.mark.parametrize("name", LAYERS)
def test_gradients(name):
    make, width = LAYERS[name]
    layer, g = make().double().eval(), whole()
    more = (random(11, width),) if width else ()
    inputs = (random(NODES, 4).requires_grad_(), *(rows.requires_grad_() for rows in more))
    assert torch.autograd.gradcheck(lambda *args: layer(g, *args[: len(inputs)]), (*inputs, *layer.parameters()))


@pytest.mark.parametrize("name", LAYERS)
def test_nodes_without_in_edges(name):
    """An error where DGL has one, and what is left of the layer where they are allowed."""
    make, width = LAYERS[name]
    g, x = graph(([0, 2], [1, 1]), num_nodes=4), random(4, 4)
    more = (random(2, width),) if width else ()
    if name in ("GATv2", "EdgeGAT"):
        strict = make().double()
        with pytest.raises(MPIGraphError, match="3 destinations have no in-edge"):
            strict(g, x, *more)
        strict.set_allow_zero_in_degree(True)
        assert strict(g, x, *more).isfinite().all()
    layer = (make(allow_zero_in_degree=True) if name in ("GATv2", "EdgeGAT") else make()).double()
    out = layer(g, x, *more)
    nothing = graph(([], []), num_nodes=4)
    alone = layer(nothing, x, *(rows[:0] for rows in more))
    torch.testing.assert_close(out[[0, 2, 3]], alone[[0, 2, 3]])
    alone.sum().backward() if alone.requires_grad else None


def test_other_misuse():
    g, x = two_sides(), torch.ones(7, 4)
    for layer, more in ((mgnn.GATv2Conv(4, 2, 2), ()), (mgnn.GINConv(), ())):
        with pytest.raises(InvalidArgumentError, match="give a pair"):
            layer(g, x, *more)
    with pytest.raises(InvalidArgumentError, match="needs a pair"):
        mgnn.EdgeGATConv((4, 4), 3, 2, 2)(g, x, torch.ones(11, 3))
    with pytest.raises(InvalidArgumentError, match="sum, max or mean"):
        mgnn.GINConv(None, "median")
