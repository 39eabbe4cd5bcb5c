"""Layers on one relation against formulas, edge by edge in float64; their names, dropout, and what they refuse."""

from functools import partial

import numpy as np
import pytest
import torch
from layer_checks import agree, normal, randomised
from torch.nn.functional import leaky_relu, relu

import mpigraph as mg
import mpigraph.nn.pytorch as dglnn
from mpigraph import nn
from mpigraph.errors import GraphDataError, InvalidArgumentError, MPIGraphError
from mpigraph.graphs.block import Block, to_block
from mpigraph.graphs.hetero import graph, heterograph
from mpigraph.metadata.schema import Schema

SRC, DST = [0, 3, 1, 6, 6, 2, 5, 5, 0, 4, 3], [1, 1, 0, 0, 0, 2, 3, 4, 6, 5, 1]  # parallel edges, a loop; 7 has none
EDGES = len(SRC)


def whole():
    return graph((SRC, DST), num_nodes=8)


def block_of(g, seeds):
    return to_block(mg.in_subgraph(g, seeds), seeds)


def two_sides():
    return heterograph({("a", "to", "b"): (SRC, DST)}, {"a": 9, "b": 8})["to"]


def edgeless(num_src, num_dst):
    return Block.from_csc(Schema.homogeneous(), {}, {"_N": np.arange(num_src)}, {"_N": num_dst})


GRAPHS = {
    "graph": whole,
    "block": lambda: block_of(whole(), torch.tensor([3, 1, 7, 6, 5])),
    "bipartite": two_sides,
    **{f"{sizes} edgeless": partial(edgeless, *sizes) for sizes in ((3, 2), (3, 0), (0, 0))},
}


def added(rows):
    return rows.sum(0)


def at_ends(g, rows, reduce=added):
    """Reduce a row for each edge at its destination; zeros where there is none."""
    dst = g.edges()[1]
    out = torch.zeros(g.num_dst_nodes(), *rows.shape[1:], dtype=rows.dtype)
    for v in dst.unique().tolist():
        out[v] = reduce(rows[dst == v])
    return out


# Formulas: of a layer, a graph, rows of sources and destinations, and a column of weights or rows of edges


def sage(kind):
    def formula(layer, g, x, y, w):
        sent = (relu(layer.fc_pool(x)) if kind == "pool" else x)[g.edges()[0]] * w
        if kind == "gcn":
            neighbours = layer.fc_neigh((at_ends(g, sent) + y) / (g.in_degrees()[:, None] + 1))
            return {"out": torch.sin(torch.tanh(neighbours + layer.bias))}
        last = lambda rows: layer.lstm(rows[None])[1][0][0, 0]  # noqa: E731
        reduce = {"mean": lambda rows: rows.mean(0), "pool": lambda rows: rows.amax(0), "lstm": last}[kind]
        return {"out": torch.sin(torch.tanh(layer.fc_self(y) + layer.fc_neigh(at_ends(g, sent, reduce))))}

    return formula


def graph_conv(norm):
    def formula(layer, g, x, y, w):
        src, dst = g.edges()
        d_in, d_out = (degrees.clamp(min=1).double() for degrees in (g.in_degrees()[dst], g.out_degrees()[src]))
        scale = {"both": (d_in * d_out) ** -0.5, "right": 1 / d_in, "left": 1 / d_out, "none": torch.ones(len(src))}
        return {"out": torch.tanh(at_ends(g, x[src] * w * scale[norm][:, None]) @ layer.weight + layer.bias)}

    return formula


def gin(reduce):
    def formula(layer, g, x, y, w):
        return {"out": torch.tanh(layer.apply_func((1 + layer.eps) * y + at_ends(g, x[g.edges()[0]] * w, reduce)))}

    return formula


def gine(layer, g, x, y, edges):
    return {"out": layer.apply_func(1.25 * y + at_ends(g, relu(x[g.edges()[0]] + edges)))}


def attention(score, slope=0.2):
    """Of two heads: ``score(layer, left, right, slope)`` by edge and head."""

    def formula(layer, g, x, y, w):
        src, dst = g.edges()
        maps = (layer.fc, layer.fc) if hasattr(layer, "fc") else (layer.fc_src, layer.fc_dst)
        left, right = (linear(rows).unflatten(1, (2, -1)) for linear, rows in zip(maps, (x, y), strict=True))
        exps = score(layer, left[src], right[dst], slope).exp()
        shares = (exps / at_ends(g, exps)[dst])[:, :, None] * w[:, :, None]
        out = at_ends(g, shares * left[src])
        for more in (layer.res_fc(y) if layer.res_fc is not None else None, layer.bias):
            out = out if more is None else out + more.reshape(-1, *out.shape[1:])
        return {"out": torch.tanh(out), "attention": shares}

    return formula


def gat(layer, left, right, slope):
    return leaky_relu((left * layer.attn_l + right * layer.attn_r).sum(-1), slope)


def gatv2(layer, left, right, slope):
    return (leaky_relu(left + right, slope) * layer.attn).sum(-1)


ANY = {"allow_zero_in_degree": True}
OUT = {"activation": torch.tanh}
HOW = {"sum": added, "mean": lambda rows: rows.mean(0), "max": lambda rows: rows.amax(0)}
WEIGHT, EDGE = "weights of edges", "features of edges"
LAYERS = {  # (widths, out): the layer; its formula; what it takes of edges
    **{f"sage {kind}": (lambda a, b, kind=kind: nn.SAGEConv(a, b, kind, norm=torch.sin, **OUT), sage(kind), WEIGHT)
       for kind in ("mean", "gcn", "pool", "lstm")},
    **{f"gcn {norm}": (lambda a, b, norm=norm: nn.GraphConv(a, b, norm, **OUT, **ANY), graph_conv(norm), WEIGHT)
       for norm in ("both", "right", "left", "none")},
    **{f"gin {how}": (lambda a, b, how=how: nn.GINConv(torch.nn.Linear(a, b), how, 0.5, True, **OUT), gin(HOW[how]),
                      WEIGHT) for how in HOW},
    "gine": (lambda a, b: nn.GINEConv(torch.nn.Linear(a, b), 0.25), gine, EDGE),
    "gat": (lambda a, b: nn.GATConv(a, b, 2, **OUT, **ANY), attention(gat), WEIGHT),
    "gat residual": (lambda a, b: nn.GATConv(a, b, 2, negative_slope=0.7, residual=True, **OUT, **ANY),
                     attention(gat, 0.7), WEIGHT),
    "gatv2": (lambda a, b: nn.GATv2Conv(a, b, 2, **OUT, **ANY), attention(gatv2), None),
    "gatv2 shared": (lambda a, b: nn.GATv2Conv(a, b, 2, residual=True, bias=False, share_weights=True, **OUT, **ANY),
                     attention(gatv2), None),
}  # fmt: skip
TWO_WIDTHS = {"sage mean", "sage pool", "sage lstm", *(name for name in LAYERS if "gat" in name)}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("kind", GRAPHS)
def test_values_and_gradients_are_those_of_the_formula(kind, name):
    make, formula, of_edges = LAYERS[name]
    g, is_pair = GRAPHS[kind](), kind == "bipartite"
    for width, out in ((6, 3), (3, 5)):  # a linear map before or after the sum; 6: as wide as two heads
        edges = normal(g.num_edges(), width if name == "gine" else 6, seed=5).requires_grad_()
        of_dst = width + (is_pair and name in TWO_WIDTHS)
        layer = randomised(make((width, of_dst) if of_dst != width else width, out))
        x, other = normal(g.num_src_nodes(), width).requires_grad_(), normal(8, of_dst, seed=3).requires_grad_()
        y = other if is_pair else x[: g.num_dst_nodes()]
        weight = normal(g.num_edges(), 1, seed=4).abs().requires_grad_()
        ones = torch.ones(g.num_edges(), 1, dtype=torch.float64)
        calls = {WEIGHT: ((ones, {}), (weight, {"edge_weight": weight[:, 0] if out == 3 else weight})),
                 EDGE: ((edges, {"edge_feat": edges}),), None: ((ones, {}),)}[of_edges]  # fmt: skip
        for column, more in calls:
            expected = formula(layer, g, x, y, column)
            options = more | ({"get_attention": True} if "attention" in expected else {})
            for feat in ((x, y),) if is_pair else (x, (x, y)):
                found = layer(g, feat, **options)
                found = dict(zip(expected, found if isinstance(found, tuple) else (found,), strict=True))
                agree(found, expected, x, other, edges, weight, *layer.parameters())
            assert torch.equal(layer(g, feat, **more), found["out"])
    assert not {"h", "m", "e", "a", "ft", "_edge_weight"} & {*g.srcdata, *g.dstdata, *g.edata}  # nothing is left


STATES = {  # the names of parameters, as DGL has them
    "fc_neigh.weight fc_self.bias fc_self.weight": [nn.SAGEConv(4, 3, "mean")],
    "fc_neigh.weight fc_self.weight": [nn.SAGEConv((4, 2), 3, "mean", bias=False)],
    "bias fc_neigh.weight": [nn.SAGEConv(4, 3, "gcn")],
    "fc_neigh.weight": [nn.SAGEConv(4, 3, "gcn", bias=False)],
    "fc_neigh.weight fc_self.bias fc_self.weight lstm.bias_hh_l0 lstm.bias_ih_l0 lstm.weight_hh_l0 lstm.weight_ih_l0": [
        nn.SAGEConv(4, 3, "lstm")
    ],
    "eps": [nn.GINConv(), nn.GINConv(learn_eps=True), nn.GINEConv()],
    "attn_l attn_r bias fc.weight": [nn.GATConv(4, 2, 3)],
    "attn_l attn_r fc.weight res_fc.bias res_fc.weight": [nn.GATConv(4, 2, 3, residual=True)],
    "attn_l attn_r fc_dst.weight fc_src.weight": [nn.GATConv((4, 5), 2, 3, bias=False)],
    "attn fc_dst.bias fc_dst.weight fc_src.bias fc_src.weight res_fc.bias res_fc.weight": [
        nn.GATv2Conv((3, 5), 2, 2, residual=True)
    ],
    "linear_r.W": [nn.RelGraphConv(4, 2, 6, bias=False, self_loop=False)],
    "h_bias layer_norm_weight.bias layer_norm_weight.weight linear_r.W linear_r.coeff loop_weight": [
        nn.RelGraphConv(4, 2, 6, "basis", layer_norm=True)
    ],
    "w_comp weight": [nn.WeightBasis((3, 4), 2, 5)],
}


@pytest.mark.parametrize("names", STATES)
def test_parameters_have_their_names_in_dgl(names):
    for layer in STATES[names]:
        assert " ".join(sorted(layer.state_dict())) == names


def test_layers_have_their_names_in_dgl_and_weights_of_its_size():
    assert dglnn.__all__ == nn.__all__ and all(getattr(dglnn, name) is getattr(nn, name) for name in nn.__all__)
    bound = np.sqrt(2) * np.sqrt(6 / (400 + 300))
    assert 0.95 * bound < nn.SAGEConv(400, 300, "mean").fc_neigh.weight.abs().max() <= bound
    assert "eps" in dict(nn.GINConv(learn_eps=True).named_parameters()) and not [*nn.GINConv().parameters()]


def test_sage_drops_the_same_features_on_both_sides():
    g = graph((torch.arange(50), torch.arange(50)))
    layer = nn.SAGEConv(8, 8, "mean", feat_drop=0.5, bias=False)
    torch.nn.init.eye_(layer.fc_self.weight)
    torch.nn.init.eye_(layer.fc_neigh.weight)
    assert set(layer(g, torch.ones(50, 8)).unique().tolist()) == {0.0, 4.0}  # (2 + 2) or (0 + 0), never 2
    assert (layer.eval()(g, torch.ones(50, 8)) == 2).all()


@pytest.mark.parametrize("kind", ["graph", "block"])
def test_gat_drops_its_input_and_its_attention(kind):
    """All of it: every in-edge gets the same attention, and the bias is left."""
    g = GRAPHS[kind]()
    x = normal(g.num_src_nodes(), 4)
    layer = randomised(nn.GATConv(4, 3, 2, feat_drop=1.0, residual=True, **ANY))
    result, shares = layer(g, x, get_attention=True)
    torch.testing.assert_close(result, layer.res_fc.bias.reshape(2, 3).expand(g.num_dst_nodes(), 2, 3))
    equal = 1 / g.in_degrees()[g.edges()[1]].double()
    torch.testing.assert_close(shares, equal.reshape(-1, 1, 1).expand(-1, 2, 1))
    kept = nn.GATConv(4, 3, 2, residual=True, **ANY).double()
    kept.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer.eval()(g, x), kept(g, x))
    dropped = randomised(nn.GATConv(4, 2, 3, attn_drop=1.0, bias=False, **ANY))
    assert (dropped(g, x) == 0).all() and (dropped.eval()(g, x) != 0).any()


def test_more_dimensions_stand_between_rows_and_features():
    g, x, weight = whole(), normal(8, 3, 4), normal(4, 2)
    for layer, more in ((nn.GraphConv(4, 2, "right", weight=False, bias=False, **ANY), {"weight": weight}),
                        (nn.GATConv(4, 3, 2, **ANY).double(), {})):  # fmt: skip
        torch.testing.assert_close(layer(g, x, **more)[:, 1], layer(g, x[:, 1], **more))


def test_graph_conv_with_a_weight_from_outside():
    g, x, weight = whole(), normal(8, 4), normal(4, 2)
    layer = nn.GraphConv(4, 2, norm="right", weight=False, bias=False, **ANY)
    torch.testing.assert_close(layer(g, x), at_ends(g, x[g.edges()[0]], HOW["mean"]))
    torch.testing.assert_close(layer(g, x, weight=weight), layer(g, x) @ weight)


PAIRS = {
    "dot": (1, lambda a, b: (a * b).sum(1, keepdim=True)),
    "ele": (4, lambda a, b: a * b),
    "cat": (8, lambda a, b: torch.hstack([a, b])),
}


@pytest.mark.parametrize("op", PAIRS)
@pytest.mark.parametrize("bias", [False, True])
def test_scores_of_pairs(op, bias):
    (width, formula), h_src, h_dst = PAIRS[op], normal(20, 4), normal(20, 4, seed=3)
    plain, mapped = nn.EdgePredictor(op, 4), nn.EdgePredictor(op, 4, 3, bias).double()
    torch.testing.assert_close(plain(h_src, h_dst), formula(h_src, h_dst))
    twin = torch.nn.Linear(width, 3, bias).double()
    torch.manual_seed(8)
    mapped.reset_parameters()
    torch.manual_seed(8)
    twin.reset_parameters()
    torch.testing.assert_close(mapped(h_src, h_dst), twin(formula(h_src, h_dst)))
    assert plain(h_src[:0], h_dst[:0]).shape == (0, width) and not [*plain.parameters()]


# What is refused


@pytest.mark.parametrize("layer", [nn.GraphConv(4, 2), nn.GATConv(4, 2, 2), nn.GATv2Conv(4, 2, 2)])
def test_zero_in_degree_is_refused_unless_allowed(layer):
    g = graph(([0, 2], [1, 1]), num_nodes=4)
    with pytest.raises(MPIGraphError, match="3 destinations have no in-edge"):
        layer(g, torch.ones(4, 4))
    layer.set_allow_zero_in_degree(True)
    assert layer(g, torch.ones(4, 4)).isfinite().all()


X8, TWO = torch.ones(8, 3), (torch.ones(9, 3), torch.ones(8, 3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.SAGEConv(3, 2, "sum"), r"mean.*gcn.*pool.*lstm.*got 'sum'"),
        (lambda: nn.SAGEConv((3, 2), 2, "gcn"), "one width"),
        (lambda: nn.GraphConv(3, 2, norm="up"), "norm must be"),
        (lambda: nn.GINConv(None, "median"), "sum, max or mean"),
        (lambda: nn.GraphConv(3, 2, **ANY)(whole(), X8, weight=torch.ones(3, 2)), "has its own"),
        (lambda: nn.SAGEConv(3, 2, "mean")(whole(), X8, torch.ones(4)), "11 rows"),
        (lambda: nn.SAGEConv(3, 2, "mean")(whole(), X8, torch.tensor(1.0)), r"11 rows \(got shape \(\)"),
        (lambda: nn.GATConv(3, 2, 2, **ANY)(whole(), X8, torch.ones(1)), r"11 rows \(got shape \(1,\)"),
        (lambda: nn.GINEConv()(whole(), X8, torch.ones(3, 3)), "must have 11 rows"),
        (lambda: nn.GATConv((3, 3), 2, 2, **ANY)(two_sides(), X8), "needs a pair"),
        (lambda: nn.EdgePredictor("sum"), r"op must be one of .*'sum'"),
        (lambda: nn.EdgePredictor("distmult"), "for 'cos' normalise rows and take 'dot'.*knowledge_graph.py"),
        (lambda: nn.EdgePredictor("dot", out_feats=3), "in_feats must be given"),
        (lambda: nn.EdgePredictor("dot")(X8, X8[:1]), r"one shape \(got \(8, 3\) and \(1, 3\)\)"),
    ],
)
def test_misuse_is_named(call, message):
    with pytest.raises((InvalidArgumentError, GraphDataError), match=message):
        call()


@pytest.mark.parametrize(
    ("layer", "more"),
    [
        *((nn.SAGEConv(3, 2, kind), ()) for kind in ("mean", "pool", "gcn")),
        (nn.GATConv(3, 2, 2, **ANY), ()),
        (nn.GATv2Conv(3, 2, 2, **ANY), ()),
        (nn.GINConv(), ()),
        (nn.RelGraphConv(3, 2, 1), (torch.zeros(EDGES, dtype=torch.int64),)),
        (nn.HGTConv(3, 2, 2, 1, 1), (torch.zeros(9, dtype=torch.int64), torch.zeros(EDGES, dtype=torch.int64))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_one_tensor_for_a_graph_between_two_types(layer, more):
    """More sources than destinations: the first sources' rows would pass for those of the destinations."""
    with pytest.raises(InvalidArgumentError, match=r"joins \['a'\] and \['b'\]: give a pair"):
        layer(two_sides(), TWO[0], *more)
    if not more:
        assert len(layer(two_sides(), TWO)) == 8
    one = nn.GraphConv(3, 2, **ANY)  # does not look at destinations
    assert torch.equal(one(two_sides(), TWO[0]), one(two_sides(), TWO))
