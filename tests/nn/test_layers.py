"""Layers against dense formulas, on graphs and on blocks."""

import numpy as np
import pytest
import torch

import mpigraph.nn.pytorch as dglnn
from mpigraph import nn as layers
from mpigraph.errors import InvalidArgumentError, MPIGraphError
from mpigraph.graphs.aggregate import mean_and_own
from mpigraph.graphs.block import Block, to_block
from mpigraph.graphs.hetero import graph, heterograph
from mpigraph.metadata.schema import Schema
from mpigraph.nn import GATConv, GraphConv, HGTConv, RelGraphConv, SAGEConv, TypedLinear, edge_softmax
from mpigraph.nn.layers import project_first
from mpigraph.nn.typed import TypedEdges

SIZES = [(5, 3), (3, 5)]  # with and without the linear map before the aggregation


def whole(loops=False):
    rng = np.random.default_rng(5)
    src, dst = rng.integers(0, 9, 30), rng.integers(0, 8, 30)
    extra = np.arange(10) if loops else np.zeros(0, np.int64)
    return graph((np.append(src, extra), np.append(dst, extra)), num_nodes=10)


def part(loops=False):
    return to_block(whole(loops), np.array([8, *range(8), 9]) if not loops else np.arange(9, -1, -1))


def dense(g, weights=None):
    """Matrix num_dst x num_src with the number (or the weight) of the edges."""
    src, dst = g.edges()
    values = torch.ones(len(src), dtype=torch.float64) if weights is None else weights.reshape(-1)
    zeros = torch.zeros(g.num_dst_nodes(), g.num_src_nodes(), dtype=torch.float64)
    return zeros.index_put((dst, src), values, accumulate=True)


def features(g, width):
    return torch.randn(g.num_src_nodes(), width, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def test_every_layer_has_its_name_in_dgl():
    assert dglnn.__all__ == layers.__all__
    assert all(getattr(dglnn, name) is getattr(layers, name) for name in layers.__all__)


@pytest.fixture(params=[whole, part], ids=["graph", "block"])
def make(request):
    return request.param


@pytest.mark.parametrize(("width", "out"), SIZES)
@pytest.mark.parametrize("weighted", [False, True])
def test_sage_mean_and_gcn(make, width, out, weighted):
    g = make()
    x = features(g, width)
    w = torch.rand(g.num_edges(), dtype=torch.float64) if weighted else None
    degrees = g.in_degrees().double().unsqueeze(-1)
    x_dst = x[: g.num_dst_nodes()]
    mean = SAGEConv(width, out, "mean").double()
    want = mean.fc_self(x_dst) + mean.fc_neigh(dense(g, w) @ x / degrees.clamp(min=1))
    torch.testing.assert_close(mean(g, x, w), want)
    torch.testing.assert_close(mean(g, (x, x_dst), w), want)
    gcn = SAGEConv(width, out, "gcn").double()
    torch.nn.init.normal_(gcn.bias)
    want = gcn.fc_neigh((dense(g, w) @ x + x_dst) / (degrees + 1)) + gcn.bias
    torch.testing.assert_close(gcn(g, x, w), want)
    assert list(g.srcdata) == list(g.local_var().srcdata) and "h" not in g.dstdata


@pytest.mark.parametrize(("width", "out"), SIZES)
def test_sage_pool(make, width, out):
    g = make()
    x = features(g, width)
    layer = SAGEConv(width, out, "pool").double()
    hidden = torch.relu(layer.fc_pool(x))
    src, dst = g.edges()
    best = torch.zeros(g.num_dst_nodes(), width, dtype=torch.float64)
    for u, v in zip(src.tolist(), dst.tolist(), strict=True):
        best[v] = torch.maximum(best[v], hidden[u])  # all are >= 0
    torch.testing.assert_close(layer(g, x), layer.fc_self(x[: g.num_dst_nodes()]) + layer.fc_neigh(best))


def test_sage_arguments_and_parameters(make):
    g = make()
    x, narrow = features(g, 4), features(g, 2)[: g.num_dst_nodes()]
    layer = SAGEConv((4, 2), 3, "mean", bias=False, norm=torch.abs, activation=torch.tanh).double()
    degrees = g.in_degrees().double().unsqueeze(-1).clamp(min=1)
    inner = layer.fc_self(narrow) + layer.fc_neigh(dense(g) @ x / degrees)
    torch.testing.assert_close(layer(g, (x, narrow)), torch.tanh(inner).abs())
    assert sorted(layer.state_dict()) == ["fc_neigh.weight", "fc_self.weight"]
    assert sorted(SAGEConv(4, 3, "mean").state_dict()) == ["fc_neigh.weight", "fc_self.bias", "fc_self.weight"]
    assert sorted(SAGEConv(4, 3, "gcn").state_dict()) == ["bias", "fc_neigh.weight"]
    assert SAGEConv(4, 3, "gcn", bias=False).bias is None
    bound = np.sqrt(2) * np.sqrt(6 / (400 + 300))
    assert 0.95 * bound < SAGEConv(400, 300, "mean").fc_neigh.weight.abs().max() <= bound


def test_sage_drops_the_same_features_on_both_sides():
    g = graph((torch.arange(50), torch.arange(50)))
    layer = SAGEConv(8, 8, "mean", feat_drop=0.5, bias=False)
    torch.nn.init.eye_(layer.fc_self.weight)
    torch.nn.init.eye_(layer.fc_neigh.weight)
    layer.train()
    assert set(layer(g, torch.ones(50, 8)).unique().tolist()) == {0.0, 4.0}  # (2 + 2) or (0 + 0), never 2
    layer.eval()
    assert (layer(g, torch.ones(50, 8)) == 2).all()


@pytest.mark.parametrize(("width", "out"), SIZES)
@pytest.mark.parametrize("norm", ["both", "right", "left", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_graph_conv(make, width, out, norm, weighted):
    g = make(loops=True)
    x = features(g, width)
    w = torch.rand(g.num_edges(), 1, dtype=torch.float64) if weighted else None
    layer = GraphConv(width, out, norm=norm, activation=torch.tanh).double()
    torch.nn.init.normal_(layer.bias)
    d_in, d_out = g.in_degrees().double()[:, None], g.out_degrees().double().clamp(min=1)[None]
    scale = {"both": (d_in * d_out) ** -0.5, "right": 1 / d_in, "left": 1 / d_out, "none": torch.ones(1)}[norm]
    want = torch.tanh((dense(g, w) * scale) @ x @ layer.weight + layer.bias)
    torch.testing.assert_close(layer(g, x, edge_weight=w), want)
    torch.testing.assert_close(layer(g, (x, x[: g.num_dst_nodes()]), edge_weight=w), want)


def test_graph_conv_with_a_weight_from_outside(make):
    g = make(loops=True)
    x, weight = features(g, 4), torch.randn(4, 2, dtype=torch.float64)
    layer = GraphConv(4, 2, norm="right", weight=False, bias=False)
    degrees = g.in_degrees().double()[:, None]
    torch.testing.assert_close(layer(g, x, weight=weight), dense(g) @ x @ weight / degrees)
    torch.testing.assert_close(layer(g, x), dense(g) @ x / degrees)
    cube = features(g, 12).reshape(-1, 3, 4)  # more dimensions between rows and features
    torch.testing.assert_close(layer(g, cube, weight=weight)[:, 1], layer(g, cube[:, 1], weight=weight))
    with pytest.raises(InvalidArgumentError, match="has its own"):
        GraphConv(4, 2)(g, x.float(), weight=weight)


def test_graph_conv_refuses_zero_in_degree_unless_allowed(make):
    g = make()
    x = features(g, 4).float()
    layer = GraphConv(4, 2)
    with pytest.raises(MPIGraphError, match="2 destinations have no in-edge"):
        layer(g, x)
    layer.set_allow_zero_in_degree(True)
    torch.nn.init.ones_(layer.bias)
    assert (layer(g, x)[g.in_degrees() == 0] == 1).all()


@pytest.mark.parametrize("layer", [SAGEConv(4, 2, "mean"), SAGEConv(2, 4, "pool"), GraphConv(2, 4)])
def test_gradients_of_whole_layers(make, layer):
    g, layer = make(loops=True), layer.double()
    width = 4 if isinstance(layer, SAGEConv) and layer.fc_neigh.in_features == 4 else 2
    x = features(g, width).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: layer(g, x), (x, *layer.parameters()))


@pytest.mark.parametrize("layer", [*(SAGEConv(3, 2, a) for a in ("mean", "gcn", "pool")), GraphConv(3, 2)])
@pytest.mark.parametrize(("num_src", "num_dst"), [(0, 0), (3, 2), (3, 0)])
def test_blocks_without_edges(layer, num_src, num_dst):
    b = Block.from_csc(Schema.homogeneous(), {}, {"_N": np.arange(num_src)}, {"_N": num_dst})
    if isinstance(layer, GraphConv):
        layer.set_allow_zero_in_degree(True)
    out = layer(b, torch.ones(num_src, 3))
    assert out.shape == (num_dst, 2)
    out.sum().backward()
    layer.zero_grad()


@pytest.mark.parametrize(
    "layer", [SAGEConv(96, 32, "mean"), GraphConv(96, 32, norm="right", allow_zero_in_degree=True)]
)
def test_a_linear_map_before_or_after_the_sum_gives_the_same(layer):
    whole_graph = graph((torch.arange(50).repeat(4), torch.arange(200) % 40))
    few = to_block(_in_edges_of(whole_graph, torch.arange(2)), torch.arange(2))
    assert project_first(whole_graph, 96, 32) and not project_first(few, 96, 32)
    x = torch.randn(50, 96, dtype=torch.float64)
    on_block = layer.double()(few, x[few.srcdata["_ID"]])
    torch.testing.assert_close(on_block, layer(whole_graph, x)[:2])


def test_own_rows_and_means_share_one_gradient():
    block, x = part(), features(part(), 4)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    factor = torch.randn(2, block.num_dst_nodes(), 4, dtype=torch.float64)
    mean, own = mean_and_own(block.structure(block.to_canonical_etype()), inputs[0])
    want = dense(block) @ inputs[1] / block.in_degrees().double().clamp(min=1)[:, None]
    torch.testing.assert_close(mean, want)
    (mean * factor[0] + own * factor[1]).sum().backward()
    (want * factor[0] + inputs[1][: block.num_dst_nodes()] * factor[1]).sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad)


def test_two_layers_on_blocks_equal_two_layers_on_the_graph():
    g = whole(loops=True)
    seeds = torch.tensor([4, 0])
    last = to_block(_in_edges_of(g, seeds), seeds)
    first = to_block(_in_edges_of(g, last.srcdata["_ID"]), last.srcdata["_ID"])
    one, two = SAGEConv(3, 4, "mean", activation=torch.relu), SAGEConv(4, 2, "mean")
    x = features(g, 3).float()
    torch.testing.assert_close(two(last, one(first, x[first.srcdata["_ID"]])), two(g, one(g, x))[seeds])


def _in_edges_of(g, nodes):
    src, dst = g.edges()
    keep = torch.isin(dst, nodes)
    return graph((src[keep], dst[keep]), num_nodes=g.num_nodes())


@pytest.mark.parametrize(
    ("make_layer", "message"),
    [
        (lambda: SAGEConv(3, 2, "sum"), r"mean.*gcn.*pool.*lstm.*got 'sum'"),
        (lambda: SAGEConv((3, 2), 2, "gcn"), "one width"),
        (lambda: GraphConv(3, 2, norm="up"), "norm must be"),
        (lambda: SAGEConv(3, 2, "mean")(whole(), torch.ones(10, 3), torch.ones(4)), "30 rows"),
        (lambda: SAGEConv(3, 2, "mean")(whole(), torch.ones(10, 3), torch.tensor(1.0)), r"30 rows \(got shape \(\)"),
        (lambda: GATConv(3, 2, 2)(whole(True), torch.ones(10, 3), torch.ones(1)), r"40 rows \(got shape \(1,\)"),
        (lambda: edge_softmax(whole(), torch.ones(30), "all"), "expected edge ids.*'all'"),
    ],
)
def test_misuse_is_named(make_layer, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make_layer()


@pytest.mark.parametrize(
    ("layer", "args"),
    [
        (SAGEConv(3, 2, "mean"), ()),
        (SAGEConv(3, 2, "pool"), ()),
        (SAGEConv(3, 2, "gcn"), ()),
        (GATConv(3, 2, 2), ()),
        (RelGraphConv(3, 2, 1), (torch.zeros(3, dtype=torch.int64),)),
        (HGTConv(3, 2, 2, 1, 1), (torch.zeros(4, dtype=torch.int64), torch.zeros(3, dtype=torch.int64))),
    ],
    ids=lambda x: type(x).__name__,
)
def test_one_tensor_for_a_graph_between_two_types(layer, args):
    """More users than items: the first users' rows would pass for those of the items."""
    g = heterograph({("user", "buys", "item"): ([0, 3, 2], [0, 0, 1])}, {"user": 4, "item": 2})["buys"]
    users, items = torch.ones(4, 3), torch.ones(2, 3)
    with pytest.raises(InvalidArgumentError, match=r"joins \['user'\] and \['item'\]: give a pair"):
        layer(g, users, *args)
    if not args:
        assert len(layer(g, (users, items))) == 2
    one = GraphConv(3, 2)  # does not look at destinations
    assert torch.equal(one(g, users), one(g, (users, items)))


def test_the_graph_of_one_relation_has_two_sides():
    """Features by type for ``g[relation]``: the self loop is of the destinations."""
    whole_graph = heterograph({("user", "buys", "item"): ([0, 3, 2], [0, 0, 1])}, {"user": 4, "item": 2})
    users, items = features(whole(), 3)[:4], features(whole(), 3)[4:6]
    rgcn = RelGraphConv(3, 2, 1).double()
    hgt = HGTConv(3, 2, 2, 2, 1, dropout=0.0).double()
    total = torch.stack([users[0] + users[3], users[2]])
    want = total @ rgcn.linear_r.W[0] + items @ rgcn.loop_weight + rgcn.h_bias
    part, both, pair = whole_graph["buys"], {"user": users, "item": items}, ({"user": users}, {"item": items})
    for g, feat in ((whole_graph, both), (part, both), (part, pair)):
        torch.testing.assert_close(rgcn(g, feat)["item"], want)
    result = hgt(part, both)
    assert list(result) == ["item"] and result["item"].shape == (2, 4)
    assert torch.equal(result["item"], hgt(part, pair)["item"])


def test_joined_relations_are_kept_on_the_graph():
    g = heterograph({("user", "buys", "item"): ([0, 3, 2], [0, 0, 1])}, {"user": 4, "item": 2})
    edges = TypedEdges.of_relations(g, 1)
    assert TypedEdges.of_relations(g, 1) is edges is TypedEdges.of_relations(g.local_var(), 1)
    assert TypedEdges.of_relations(g, 3).cell_counts.tolist() == [2, 0, 0]
    part = TypedEdges.of_relations(g["buys"], 1)  # the same relation, between fewer nodes
    assert (edges.cells.num_src, part.cells.num_src) == (6, 4) and (edges.num_dst, part.num_dst) == (6, 2)
    block = to_block(g, {"item": [0, 1]})  # used but once
    assert TypedEdges.of_relations(block, 1) is not TypedEdges.of_relations(block, 1)


def test_weights_of_typed_edges_go_by_relation():
    g = heterograph({("a", "r", "a"): ([0], [0])})
    with pytest.raises(InvalidArgumentError, match=r"go by relation \(got Tensor\)"):
        RelGraphConv(3, 2, 1)(g, {"a": torch.ones(1, 3)}, norm=torch.ones(1))


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ([0, 1, 2, 3], r"in \[0, 3\) \(got 0 to 3\)"),
        ([0, 1, 2, -1], r"in \[0, 3\) \(got -1 to 2\)"),
        ([0, 1], r"shape \(4,\) \(got \(2,\)\)"),
        ([0.0, 1.0, 1.0, 2.0], r"integers \(got torch.float32\)"),
    ],
)
def test_types_that_are_none(types, message):
    g, x, good = graph(([0, 1, 2, 3], [1, 2, 3, 0])), torch.ones(4, 3), [0, 1, 2, 0]
    hgt, linear = HGTConv(3, 2, 2, 3, 3), TypedLinear(3, 2, 3)
    calls = {
        "etypes": [lambda t: RelGraphConv(3, 2, 3)(g, x, t), lambda t: hgt(g, x, good, t)],
        "ntype": [lambda t: hgt(g, x, t, good), lambda t: hgt(g, x, t, good, presorted=True)],
        "x_type": [lambda t: linear(x, t), lambda t: linear(x, torch.tensor(t), True)],
    }
    for what, some in calls.items():
        for call in some:
            call(good if what == "etypes" else sorted(good))
            with pytest.raises(InvalidArgumentError, match=f"{what} must (be|have) {message}"):
                call(types)
    typed = heterograph({("a", "r", "b"): ([0], [0])}, {"a": 1, "b": 1, "c": 0, "d": 1})
    with pytest.raises(InvalidArgumentError, match="3 node types, but the graph has 4"):
        hgt(typed, dict.fromkeys("abcd", torch.ones(1, 3)) | {"c": torch.ones(0, 3)})


def test_the_name_that_scripts_import():
    assert dglnn.SAGEConv is SAGEConv and dglnn.GraphConv is GraphConv
