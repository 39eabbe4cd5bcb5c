"""Layers over several relations, and attention, against loops over edges in float64: values and gradients."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

import mpigraph as mg
import mpigraph.function as fn
import mpigraph.nn.pytorch as dglnn
from mpigraph.errors import EdgeTypeError, InvalidArgumentError, MPIGraphError, OutOfRangeError
from mpigraph.graphs.block import to_block
from mpigraph.nn.functional import softmax_rows
from mpigraph.nn.typed import grouped_product

NODES = {"author": 6, "paper": 9, "topic": 3, "unknown": 2}  # of topics one has no in-edge, "unknown" has no edges
RELATIONS = {
    ("author", "writes", "paper"): 14,
    ("author", "edits", "paper"): 5,  # two relations between the same types
    ("paper", "by", "author"): 14,
    ("paper", "cites", "paper"): 20,  # a type to itself
    ("paper", "on", "topic"): 12,
    ("topic", "never", "author"): 0,
}
CHOSEN = {"author": [5, 0, 3], "paper": [8, 2], "topic": [0, 2, 1]}
WIDTH = 4


def edges(rng, relation, count):
    src, _, dst = relation
    return rng.integers(0, NODES[src], count), rng.integers(0, NODES[dst] - (dst == "topic"), count)


def whole():
    rng = np.random.default_rng(5)
    return mg.heterograph({r: edges(rng, r, count) for r, count in RELATIONS.items()}, NODES)


def block_of(g, chosen):
    """The block of some destinations with all their in-edges."""
    frontier = {}
    for relation in g.canonical_etypes:
        src, dst = g.all_edges(etype=relation)
        keep = torch.isin(dst, torch.tensor(chosen.get(relation[2], []), dtype=torch.int64))
        frontier[relation] = src[keep], dst[keep]
    return to_block(mg.heterograph(frontier, {t: g.num_nodes(t) for t in g.ntypes}), chosen)


def many():
    """200 relations, a quarter of them without edges."""
    rng = np.random.default_rng(7)
    ends = [("author", "paper"), ("paper", "author"), ("paper", "paper"), ("topic", "author")]
    relations = [(*ends[i % 4][:1], f"r{i:03}", ends[i % 4][1]) for i in range(200)]
    return mg.heterograph({r: edges(rng, r, max(0, int(rng.integers(-2, 5)))) for r in relations}, NODES)


GRAPHS = {
    "graph": whole,
    "block": lambda: block_of(whole(), CHOSEN),
    "no destinations": lambda: block_of(whole(), {}),
    "200 relations": many,
    "200 relations, block": lambda: block_of(many(), CHOSEN),
}


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.slow) if "200" in name else name for name in GRAPHS], ids=str
)
def g(request):
    return GRAPHS[request.param]()


def normal(*shape, seed=2):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def features(g, width=WIDTH):
    """Rows by type; those of a node are the same in a graph and in a block of it."""
    result = {}
    for i, ntype in enumerate(g.srctypes):
        rows = normal(NODES[ntype], width, seed=i)
        result[ntype] = (rows[g.srcnodes[ntype].data[mg.NID]] if g.is_block else rows).requires_grad_()
    return result


def own(g, feat):
    """The destinations' rows."""
    return {t: rows[: g.num_dst_nodes(t)] for t, rows in feat.items()}


def loop(g):
    """(relation id, relation, source, destination, edge) of each edge."""
    for number, relation in enumerate(g.canonical_etypes):
        for edge, (u, v) in enumerate(zip(*(ends.tolist() for ends in g.all_edges(etype=relation)), strict=True)):
            yield number, relation, u, v, edge


def summed(g, width, message: Callable[..., torch.Tensor]):
    """Sums by destination of what a function of an edge gives."""
    total = {t: list(torch.zeros(g.num_dst_nodes(t), width, dtype=torch.float64)) for t in g.dsttypes}
    for number, relation, u, v, edge in loop(g):
        total[relation[2]][v] = total[relation[2]][v] + message(number, relation, u, v, edge)
    return {t: torch.stack(rows) if rows else torch.zeros(0, width).double() for t, rows in total.items()}


def agree(result, expected, *leaves):
    """The same values, and the same gradients of the leaves for some gradient of the values."""
    assert result.keys() == expected.keys()
    grads = []
    for values in (result, expected):
        loss = sum((rows * normal(*rows.shape, seed=9)).sum() for rows in values.values())
        grads.append(torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True, materialize_grads=True))
    for ntype in expected:
        torch.testing.assert_close(result[ntype], expected[ntype])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


def randomised(layer):
    """The layer in float64, without a parameter that is 0 or 1."""
    for i, parameter in enumerate(layer.double().parameters()):
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(100 + i))
    return layer


# RelGraphConv and what it is made of


def matrices(linear):
    """The matrix of each type, composed by hand."""
    if linear.regularizer == "basis":
        return sum(linear.coeff[:, b, None, None] * linear.W[b] for b in range(linear.num_bases))
    if linear.regularizer == "bdd":
        shape = linear.num_bases, linear.in_size // linear.num_bases, linear.out_size // linear.num_bases
        return torch.stack([torch.block_diag(*row.reshape(shape)) for row in linear.W])
    return linear.W


REGULARIZERS = pytest.mark.parametrize(("regularizer", "num_bases"), [(None, None), ("basis", 3), ("bdd", 2)])


@REGULARIZERS
@pytest.mark.parametrize("normed", [False, True])
def test_rgcn(g, regularizer, num_bases, normed):
    num_rels = len(g.canonical_etypes)
    layer = randomised(dglnn.RelGraphConv(WIDTH, 6, num_rels, regularizer, num_bases, activation=torch.tanh))
    feat = features(g)
    norm = {r: normal(g.num_edges(r), seed=i).requires_grad_() for i, r in enumerate(g.canonical_etypes)}
    if normed:
        del norm[g.canonical_etypes[1]]  # missing weights are 1
    weights = matrices(layer.linear_r)

    def message(number, relation, u, v, edge):
        factor = norm[relation][edge] if normed and relation in norm else 1.0
        return factor * (feat[relation[0]][u] @ weights[number])

    total = summed(g, 6, message)
    expected = {t: torch.tanh(total[t] + h @ layer.loop_weight + layer.h_bias) for t, h in own(g, feat).items()}
    leaves = [*feat.values(), *layer.parameters(), *(norm.values() if normed else ())]
    agree(layer(g, feat, norm=norm if normed else None), expected, *leaves)
    result = layer(g, (feat, own(g, feat)), norm=norm if normed else None)
    agree(result, expected, *leaves)


@REGULARIZERS
def test_rgcn_with_a_type_for_each_edge(regularizer, num_bases):
    """DGL's call, on the graph without types and on a block of it, is the typed call."""
    g = whole()
    layer = randomised(dglnn.RelGraphConv(WIDTH, 6, 8, regularizer, num_bases, layer_norm=True))  # two never occur
    norm = {r: normal(g.num_edges(r), seed=i) for i, r in enumerate(g.canonical_etypes)}
    feat = features(g)
    expected = torch.cat(list(layer(g, feat, norm=norm).values()))
    joined, weights = torch.cat(list(feat.values())), torch.cat(list(norm.values()))
    homo = mg.to_homogeneous(g)
    for presorted in (False, True):
        result = layer(homo, joined, homo.edata[mg.ETYPE], weights[:, None], presorted=presorted)
        agree({"_N": result}, {"_N": expected}, *feat.values(), *layer.parameters())
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    block = to_block(homo, order)
    etypes, inputs = homo.edata[mg.ETYPE][block.edata[mg.EID]], joined[block.srcdata[mg.NID]]
    result = layer(block, inputs, etypes.tolist(), weights[block.edata[mg.EID]])
    agree({"_N": result}, {"_N": expected[order]}, *feat.values(), *layer.parameters())


def test_rgcn_arguments():
    g, feat = whole(), {t: rows.detach().float() for t, rows in features(whole()).items()}
    bare = dglnn.RelGraphConv(WIDTH, 2, 6, bias=False, self_loop=False)
    assert sorted(bare.state_dict()) == ["linear_r.W"]
    assert (bare(g, feat)["unknown"] == 0).all() and (bare(g, feat)["topic"][2] == 0).all()
    full = dglnn.RelGraphConv(WIDTH, 2, 6, "basis", layer_norm=True)
    names = ["h_bias", "layer_norm_weight.bias", "layer_norm_weight.weight", "linear_r.W", "linear_r.coeff"]
    assert sorted(full.state_dict()) == [*names, "loop_weight"] and full.linear_r.num_bases == 6
    assert (dglnn.RelGraphConv(WIDTH, 2, 6, dropout=1.0)(g, feat)["paper"] == 0).all()
    with pytest.raises(InvalidArgumentError, match="multiples of num_bases 3"):
        dglnn.RelGraphConv(WIDTH, 6, 6, "bdd", 3)
    with pytest.raises(InvalidArgumentError, match="regularizer must be one of"):
        dglnn.RelGraphConv(WIDTH, 6, 6, "lasso")
    with pytest.raises(InvalidArgumentError, match="5 relations, but the graph has 6"):
        dglnn.RelGraphConv(WIDTH, 2, 5)(g, feat)
    with pytest.raises(InvalidArgumentError, match="3 nodes of type 'topic', but features of 0"):
        bare(g, {t: rows for t, rows in feat.items() if t != "topic"})
    with pytest.raises(InvalidArgumentError, match="etypes go with"):
        bare(g, feat, torch.zeros(65, dtype=torch.int64))
    with pytest.raises(InvalidArgumentError, match="numbers are given"):
        bare(g, feat, norm={"cites": torch.ones(3)})
    with pytest.raises(EdgeTypeError, match="'likes' does not exist"):
        bare(g, feat, norm={"likes": torch.ones(3)})
    homo, rows = mg.to_homogeneous(g), torch.cat(list(feat.values()))
    with pytest.raises(InvalidArgumentError, match=r"in \[0, 6\) \(got 0 to 6\)"):
        bare(homo, rows, homo.edata[mg.ETYPE] + 2 * (homo.edata[mg.ETYPE] == 4))
    with pytest.raises(InvalidArgumentError, match=r"etypes must have shape \(65,\)"):
        bare(homo, rows, [0, 1])
    with pytest.raises(InvalidArgumentError, match="norm must hold 65 numbers"):
        bare(homo, rows, homo.edata[mg.ETYPE], torch.ones(3))


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("counts", [[5, 0, 17, 1, 0, 300], [0, 0], [2500], [1] * 200], ids=lambda counts: len(counts))
@pytest.mark.parametrize(("dtype", "width"), [(torch.float64, 2), (torch.float32, 2), (torch.float32, 4)], ids=str)
def test_grouped_product(blocks, counts, dtype, width):
    x = normal(sum(counts), width * blocks).to(dtype).requires_grad_()
    w = normal(len(counts), blocks, width, 8, seed=3).to(dtype).requires_grad_()
    groups = zip(x.split(counts), w, strict=True)
    expected = torch.cat([rows @ torch.block_diag(*matrix) for rows, matrix in groups])
    result = grouped_product(x, w, torch.tensor(counts))
    torch.testing.assert_close(result, expected)
    for one, other in zip(*(torch.autograd.grad(y.sum(), (x, w)) for y in (result, expected)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_typed_linear_and_weight_basis():
    x, types = normal(50, 6).requires_grad_(), torch.arange(50) % 4
    for regularizer, num_bases in ((None, None), ("basis", 2), ("bdd", 3)):
        layer = randomised(dglnn.TypedLinear(6, 9, 5, regularizer, num_bases))
        expected = torch.stack([row @ matrices(layer)[t] for row, t in zip(x, types.tolist(), strict=True)])
        agree({"": layer(x, types)}, {"": expected}, x, *layer.parameters())
        order = torch.argsort(types, stable=True)
        agree({"": layer(x[order], types[order], True)}, {"": expected[order]}, x, *layer.parameters())
    with pytest.raises(InvalidArgumentError, match="num_bases must be at least 1"):
        dglnn.TypedLinear(6, 9, 5, "basis")
    basis = dglnn.WeightBasis((3, 4), 2, 5)
    assert sorted(basis.state_dict()) == ["w_comp", "weight"] and basis().shape == (5, 3, 4)
    torch.testing.assert_close(basis()[4], basis.w_comp[4, 0] * basis.weight[0] + basis.w_comp[4, 1] * basis.weight[1])


# HeteroGraphConv


def parts_by_hand(g, mods, feat):
    """Return the outputs of each relation's module, by destination type."""
    result = {t: [] for t in g.dsttypes}
    for relation in g.canonical_etypes:
        src, _, dst = relation
        result[dst].append(mods[relation](g[relation], (feat[src], own(g, feat)[dst])))
    return {t: torch.stack(parts) for t, parts in result.items() if parts}


AGGREGATES = {
    "sum": lambda parts: parts.sum(0),
    "mean": lambda parts: parts.mean(0),
    "max": lambda parts: parts.amax(0),
    "min": lambda parts: parts.amin(0),
    "stack": lambda parts: parts.transpose(0, 1),
}


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_hetero_graph_conv(g, aggregate):
    kinds = [lambda: dglnn.SAGEConv(WIDTH, 3, "mean"), lambda: dglnn.GraphConv(WIDTH, 3, norm="right")]
    mods = {r: randomised(kinds[i % 2]()) for i, r in enumerate(g.canonical_etypes)}
    feat = features(g)
    conv = dglnn.HeteroGraphConv(mods, aggregate)
    result = conv(g, feat)
    expected = {t: AGGREGATES[aggregate](parts) for t, parts in parts_by_hand(g, mods, feat).items()}
    assert "unknown" not in expected
    agree(result, expected, *feat.values(), *conv.parameters())
    again = conv(g, (feat, own(g, feat)))
    assert all(torch.equal(again[t], result[t]) for t in result)
    # raises if a module was not called: those of empty relations are, so that all ranks have the same gradients
    torch.autograd.grad(sum(h.sum() for h in conv(g, feat).values()), list(conv.parameters()))


def test_hetero_graph_conv_arguments():
    g, feat = whole(), {t: rows.detach() for t, rows in features(whole()).items()}
    seen = []

    class Module(torch.nn.Module):
        def forward(self, part, feat, *args, **kwargs):
            seen.append((part.canonical_etypes[0], len(feat[0]), len(feat[1]), args, kwargs))
            return feat[1]

    names = {name: Module() for _, name, _ in RELATIONS if name != "cites"}
    conv = dglnn.HeteroGraphConv(names | {("paper", "cites", "paper"): Module()}, lambda parts, t: (t, len(parts)))
    result = conv(g, feat, {"on": (1, 2)}, {("topic", "never", "author"): {"key": 3}})
    assert result == {"author": ("author", 2), "paper": ("paper", 3), "topic": ("topic", 1)}
    assert (("paper", "on", "topic"), 9, 3, (1, 2), {}) in seen
    assert (("topic", "never", "author"), 3, 6, (), {"key": 3}) in seen and len(seen) == 6
    assert conv(g, {t: feat[t] for t in ("author", "paper")}).keys() == {"author", "paper"}
    assert conv(g, ({"paper": feat["paper"]}, {"topic": feat["topic"]})) == {"topic": ("topic", 1)}
    clashing = mg.heterograph({("a", name, "a"): ([0], [0]) for name in ("to", "items", "v1.0")})
    mods = {name: Module() for name in clashing.etypes}
    assert dglnn.HeteroGraphConv(mods)(clashing, {"a": torch.ones(1, 1)})["a"] == 3
    keys = "writes", ("paper", "cites", "paper"), "to", "v1.0"  # as in DGL, where a ModuleDict takes them
    linear = dglnn.HeteroGraphConv({key: torch.nn.Linear(1, 1, bias=False) for key in keys})
    names = ["mods.writes.weight", "mods.('paper', 'cites', 'paper').weight", "mods.to%.weight", "mods.v1%2E0.weight"]
    assert list(linear.state_dict()) == names
    with pytest.raises(EdgeTypeError, match=r"no module for relation \('author', 'edits', 'paper'\)"):
        dglnn.HeteroGraphConv({"writes": Module()})(g, feat)
    with pytest.raises(InvalidArgumentError, match="aggregate must be one of"):
        dglnn.HeteroGraphConv({}, "median")


@pytest.mark.parametrize("make", [whole, many])
def test_a_block_with_all_in_edges_gives_what_the_graph_gives(make):
    g = make()
    block, num_rels = block_of(g, CHOSEN), len(g.canonical_etypes)
    relations = {r: randomised(dglnn.GATConv(WIDTH, 3, 2)) for r in g.canonical_etypes}
    layers = [
        randomised(dglnn.RelGraphConv(WIDTH, 5, num_rels)),
        randomised(dglnn.HGTConv(WIDTH, 3, 2, len(g.ntypes), num_rels, dropout=0.0)),
        dglnn.HeteroGraphConv(relations, "mean"),
    ]
    for layer in layers:
        expected, result = layer(g, features(g)), layer(block, features(block))
        for ntype, chosen in CHOSEN.items():
            if ntype in expected:
                torch.testing.assert_close(result[ntype], expected[ntype][chosen])


# Attention


def one_relation(kind):
    rng = np.random.default_rng(3)
    src, dst = rng.integers(0, 9, 30), rng.integers(0, 8, 30)
    g = mg.graph((src, dst), num_nodes=10)
    return g if kind == "graph" else to_block(g, np.array([8, *range(8), 9]))


KINDS = pytest.mark.parametrize("kind", ["graph", "block"])


@KINDS
@pytest.mark.parametrize("norm_by", ["dst", "src"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 1)], ids=str)
def test_edge_softmax(kind, norm_by, shape):
    g = one_relation(kind)
    group = g.all_edges()[norm_by == "dst"]
    logits = normal(30, *shape).requires_grad_()
    expected = torch.zeros_like(logits)
    for member in group.unique().tolist():
        at = (group == member).nonzero().reshape(-1)
        expected = expected.index_put((at,), logits[at].softmax(0))
    agree({"": dglnn.edge_softmax(g, logits, norm_by=norm_by)}, {"": expected}, logits)
    assert torch.autograd.gradcheck(lambda x: dglnn.edge_softmax(g, x, norm_by=norm_by), logits)
    some = torch.tensor([4, 0, 9, 17, 9])
    result = mg.nn.edge_softmax(g, logits[some], some, norm_by)
    weight = logits[some].exp()
    total = torch.stack([weight[group[some] == group[e]].sum(0) for e in some])
    torch.testing.assert_close(result, weight / total)


def test_edge_softmax_of_large_numbers():
    g = mg.graph(([0, 1, 2, 0], [3, 3, 3, 1]))
    result = dglnn.edge_softmax(g, torch.tensor([1e4, 1e4 - 1, -1e4, -1e30]))
    torch.testing.assert_close(result, torch.tensor([1, math.exp(-1), 0, 1 + math.exp(-1)]) / (1 + math.exp(-1)))
    rows = torch.tensor([[60000.0], [60000.0]], dtype=torch.float16)  # their sum is beyond float16
    assert torch.equal(softmax_rows(rows, torch.tensor([1, 1]), 2), torch.full((2, 1), 0.5, dtype=torch.float16))
    with pytest.raises(InvalidArgumentError, match="norm_by"):
        dglnn.edge_softmax(g, torch.zeros(4), norm_by="both")
    with pytest.raises(InvalidArgumentError, match="logits must have 4 rows"):
        dglnn.edge_softmax(g, torch.zeros(3))
    with pytest.raises(OutOfRangeError, match="Invalid edge ID: 4"):
        dglnn.edge_softmax(g, torch.zeros(1), [4])


@KINDS
def test_sums_weighted_by_head(kind):
    g = one_relation(kind)
    x = normal(g.num_src_nodes(), 2, 3, 5).requires_grad_()
    w = normal(30, 2, 3, 1, seed=4).requires_grad_()
    with g.local_scope():
        g.srcdata["x"], g.edata["w"] = x, w
        g.update_all(fn.u_mul_e("x", "w", "m"), fn.sum("m", "sum"))
        g.update_all(fn.u_mul_e("x", "w", "m"), fn.mean("m", "mean"))
        result = {"sum": g.dstdata["sum"], "mean": g.dstdata["mean"]}
    src, dst = g.edges()
    total = torch.zeros(g.num_dst_nodes(), 2, 3, 5, dtype=torch.float64).index_add(0, dst, x[src] * w)
    expected = {"sum": total, "mean": total / g.in_degrees().clamp(min=1).reshape(-1, 1, 1, 1)}
    agree(result, expected, x, w)


def attention_by_hand(g, scores):
    """Softmax of [num_edges, heads] over the edges into each destination."""
    dst = g.edges()[1]
    rows = [scores[e].exp() / scores[dst == dst[e]].exp().sum(0) for e in range(len(dst))]
    return torch.stack(rows)


@KINDS
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(("width", "slope"), [(4, 0.2), (6, 0.7)])  # 6: the output's, so that the residual needs no map
def test_gat(kind, residual, width, slope):
    g = one_relation(kind)
    x = normal(g.num_src_nodes(), width).requires_grad_()
    options = {"residual": residual, "activation": torch.tanh, "allow_zero_in_degree": True}
    layer = randomised(dglnn.GATConv(width, 3, 2, negative_slope=slope, **options))
    w = normal(30, seed=6).requires_grad_()
    src, dst = g.edges()
    num_dst = g.num_dst_nodes()
    h = layer.fc(x).reshape(-1, 2, 3)
    scores = (h[src] * layer.attn_l).sum(-1) + (h[dst] * layer.attn_r).sum(-1)
    attention = attention_by_hand(g, torch.nn.functional.leaky_relu(scores, slope)).unsqueeze(-1) * w[:, None, None]
    expected = torch.zeros(num_dst, 2, 3, dtype=torch.float64).index_add(0, dst, attention * h[src])
    if residual:
        expected = expected + (layer.res_fc(x[:num_dst]) if width == 4 else x[:num_dst]).reshape(-1, 2, 3)
    if layer.bias is not None:
        expected = expected + layer.bias.reshape(2, 3)
    result, shares = layer(g, x, w, get_attention=True)
    expected = {"out": torch.tanh(expected), "attention": attention}
    agree({"out": result, "attention": shares}, expected, x, w, *layer.parameters())
    torch.testing.assert_close(layer(g, (x, x[:num_dst]), w), result)
    cube = torch.stack([x, 2 * x], 1)
    torch.testing.assert_close(layer(g, cube)[:, 0], layer(g, x))
    assert "e" not in g.edata and "ft" not in g.srcdata


def test_gat_arguments():
    g = mg.heterograph({("a", "r", "b"): ([0, 1, 1], [0, 0, 1])}, {"a": 2, "b": 3})[None]
    a, b = normal(2, 4), normal(3, 5)
    pair = randomised(dglnn.GATConv((4, 5), 2, 3, bias=False))
    with pytest.raises(MPIGraphError, match="1 destinations have no in-edge"):
        pair(g, (a, b))
    pair.set_allow_zero_in_degree(True)
    result = pair(g, (a, b))
    ha, hb = pair.fc_src(a).reshape(-1, 3, 2), pair.fc_dst(b).reshape(-1, 3, 2)
    torch.testing.assert_close(result[1], ha[1])  # the only in-edge
    scores = [(ha[u] * pair.attn_l[0]).sum(-1) + (hb[0] * pair.attn_r[0]).sum(-1) for u in (0, 1)]
    share = torch.nn.functional.leaky_relu(torch.stack(scores), 0.2).softmax(0).unsqueeze(-1)
    torch.testing.assert_close(result[0], (share * ha).sum(0))
    assert (result[2] == 0).all()
    with pytest.raises(InvalidArgumentError, match="needs a pair"):
        pair(g, a)
    assert sorted(pair.state_dict()) == ["attn_l", "attn_r", "fc_dst.weight", "fc_src.weight"]
    names = ["attn_l", "attn_r", "fc.weight"]
    assert sorted(dglnn.GATConv(4, 2, 3).state_dict()) == [*names[:2], "bias", "fc.weight"]
    linear = [*names, "res_fc.bias", "res_fc.weight"]
    assert sorted(dglnn.GATConv(4, 2, 3, residual=True).state_dict()) == linear
    dropped = randomised(dglnn.GATConv(4, 2, 3, attn_drop=1.0, bias=False, allow_zero_in_degree=True))
    assert (dropped(g, (a, b[:, :4])) == 0).all() and (dropped.eval()(g, (a, b[:, :4])) != 0).any()


@KINDS
def test_gat_drops_its_input(kind):
    """All of it: every in-edge gets the same attention, and the bias is left."""
    g = one_relation(kind)
    x = normal(g.num_src_nodes(), WIDTH)
    layer = randomised(dglnn.GATConv(WIDTH, 3, 2, feat_drop=1.0, residual=True, allow_zero_in_degree=True))
    result, attention = layer(g, x, get_attention=True)
    expected = layer.res_fc.bias.reshape(2, 3).expand(g.num_dst_nodes(), 2, 3)
    torch.testing.assert_close(result, expected)
    equal = 1 / g.in_degrees()[g.edges()[1]].double()
    torch.testing.assert_close(attention, equal.reshape(-1, 1, 1).expand(-1, 2, 1))
    kept = dglnn.GATConv(WIDTH, 3, 2, residual=True, allow_zero_in_degree=True).double()
    kept.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer.eval()(g, x), kept(g, x))


def hgt_by_hand(g, layer, feat):
    """The formulas of the paper, edge by edge."""
    heads, d = layer.num_heads, layer.head_size

    def mapped(linear, ntype, row):
        return (row @ linear.W[g.get_ntype_id(ntype)]).reshape(heads, d)

    def score(number, relation, u, v):
        k, q = (
            mapped(layer.linear_k, relation[0], feat[relation[0]][u]),
            mapped(layer.linear_q, relation[2], feat[relation[2]][v]),
        )
        result = [k[i] @ layer.relation_att[i].W[number] @ q[i] * layer.relation_pri[i][number] for i in range(heads)]
        return torch.stack(result) / math.sqrt(d)

    weights = {(relation, edge): score(number, relation, u, v).exp() for number, relation, u, v, edge in loop(g)}
    norms = summed(g, heads, lambda number, relation, u, v, edge: weights[relation, edge])

    def message(number, relation, u, v, edge):
        value = mapped(layer.linear_v, relation[0], feat[relation[0]][u])
        sent = torch.stack([value[i] @ layer.relation_msg[i].W[number] for i in range(heads)])
        return ((weights[relation, edge] / norms[relation[2]][v]).unsqueeze(-1) * sent).flatten()

    total, expected = summed(g, heads * d, message), {}
    for ntype, rows in own(g, feat).items():
        number = g.get_ntype_id(ntype)
        alpha = torch.sigmoid(layer.skip[number])
        residual = rows @ layer.residual_w if hasattr(layer, "residual_w") else rows
        expected[ntype] = total[ntype] @ layer.linear_a.W[number] * alpha + residual * (1 - alpha)
    return expected if layer.norm is None else {t: layer.norm(rows) for t, rows in expected.items()}


@pytest.mark.parametrize(("head_size", "use_norm"), [(3, False), (2, True)])  # 2 x 2: as wide as the input
def test_hgt(g, head_size, use_norm):
    layer = dglnn.HGTConv(WIDTH, head_size, 2, len(g.ntypes), len(g.canonical_etypes), 0.0, use_norm)
    layer = randomised(layer)
    feat = features(g)
    agree(layer(g, feat), hgt_by_hand(g, layer, feat), *feat.values(), *layer.parameters())


def test_hgt_with_types_of_nodes_and_edges():
    """DGL's call, on the graph without types and on a block of it, is the typed call."""
    g = whole()
    layer, feat = randomised(dglnn.HGTConv(WIDTH, 3, 2, 5, 7, dropout=0.0)), features(g)
    joined, expected = torch.cat(list(feat.values())), torch.cat(list(layer(g, feat).values()))
    homo = mg.to_homogeneous(g)
    ntypes, etypes = homo.ndata[mg.NTYPE], homo.edata[mg.ETYPE]
    leaves = [*feat.values(), *layer.parameters()]
    for presorted in (False, True):
        agree({"": layer(homo, joined, ntypes, etypes, presorted=presorted)}, {"": expected}, *leaves)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    block = to_block(homo, order)
    inputs = block.srcdata[mg.NID]
    result = layer(block, joined[inputs], ntypes[inputs].tolist(), etypes[block.edata[mg.EID]])
    agree({"": result}, {"": expected[order]}, *leaves)
    assert torch.equal(layer(g, (feat, feat))["paper"], layer(g, feat)["paper"])
    with pytest.raises(InvalidArgumentError, match="ntype and etype go with"):
        layer(homo, joined, ntypes)
    with pytest.raises(InvalidArgumentError, match="by node type without"):
        layer(g, feat, ntypes, etypes)
    with pytest.raises(InvalidArgumentError, match=r"ntype must have shape \(20,\)"):
        layer(homo, joined, [0], etypes)
    names = {name.partition(".")[0] for name in layer.state_dict()}
    linear = {"linear_k", "linear_q", "linear_v", "linear_a", "relation_att", "relation_msg"}
    assert names == linear | {"relation_pri", "skip", "residual_w"}
    assert dglnn.HGTConv(WIDTH, 2, 2, 5, 7).drop.p == 0.2


def test_hgt_drops_what_the_neighbours_give():
    """All of it: what is left is the destination's share of its input."""
    g = whole()
    layer, feat = randomised(dglnn.HGTConv(WIDTH, 3, 2, 4, 6, dropout=1.0)), features(g)
    shares = 1 - torch.sigmoid(layer.skip)
    expected = {t: rows @ layer.residual_w * shares[g.get_ntype_id(t)] for t, rows in feat.items()}
    agree(layer(g, feat), expected, *feat.values(), *layer.parameters())
    torch.testing.assert_close(layer.eval()(g, feat), hgt_by_hand(g, layer, feat))


# Typed graphs


def test_the_graph_of_one_relation():
    g = whole()
    g.nodes["paper"].data["x"] = torch.arange(9)
    g.edges["on"].data["w"] = torch.arange(12)
    on, cites = g["on"], g["paper", "cites", "paper"]
    assert on.canonical_etypes == [("paper", "on", "topic")] and not on.is_block
    assert (on.srctypes, on.dsttypes, on.ntypes) == (["paper"], ["topic"], ["paper", "topic"])
    assert (on.num_nodes("paper"), on.num_nodes("topic"), on.num_nodes(), on.num_edges()) == (9, 3, 12, 12)
    assert torch.equal(torch.stack(on.edges()), torch.stack(g.edges(etype="on")))
    assert list(on.srcdata) == ["x"] and list(on.dstdata) == [] and list(on.edata) == ["w"]
    assert torch.equal(on.nodes["paper"].data["x"], torch.arange(9)) and list(on.ndata["x"]) == ["paper"]
    on.update_all(fn.copy_u("x", "m"), fn.sum("m", "total"))
    dense = torch.zeros(3, dtype=torch.int64).index_add(0, on.edges()[1], on.edges()[0])
    assert torch.equal(g.nodes["topic"].data["total"], dense)  # the features are those of the graph
    with on.local_scope():
        on.dstdata["gone"] = dense
    assert "gone" not in on.dstdata and "gone" not in g.nodes["topic"].data
    cites.ndata["y"] = torch.zeros(9)
    assert "y" in g.nodes["paper"].data and cites.ntypes == ["paper"] and cites.is_homogeneous
    with pytest.raises(EdgeTypeError, match="does not exist"):
        g["likes"]


def test_to_homogeneous():
    g = whole()
    for ntype, rows in features(g).items():
        g.nodes[ntype].data["x"] = rows.detach()
    homo = mg.to_homogeneous(g, ndata=["x"])
    assert homo.num_nodes() == 20 and homo.num_edges() == 65 and homo.is_homogeneous
    types, ids = homo.ndata[mg.NTYPE].tolist(), homo.ndata[mg.NID].tolist()
    assert list(zip(types, ids, strict=True)) == [(i, n) for i, t in enumerate(g.ntypes) for n in range(NODES[t])]
    for number, relation in enumerate(g.canonical_etypes):
        edge = homo.edata[mg.ETYPE] == number
        assert torch.equal(homo.edata[mg.EID][edge], torch.arange(g.num_edges(relation)))
        for side, ends, expected in zip((0, 2), homo.edges(), g.edges(etype=relation), strict=True):
            assert torch.equal(homo.ndata[mg.NID][ends[edge]], expected)
            assert (homo.ndata[mg.NTYPE][ends[edge]] == g.get_ntype_id(relation[side])).all()
    assert torch.equal(homo.ndata["x"], torch.cat([g.nodes[t].data["x"] for t in g.ntypes]))
    assert mg.NTYPE not in mg.to_homogeneous(g, store_type=False).ndata
    with pytest.raises(InvalidArgumentError, match="not a block"):
        mg.to_homogeneous(block_of(g, CHOSEN))


def test_to_homogeneous_with_counts():
    g = whole()
    homo, nodes, edges = mg.to_homogeneous(g, ndata=None, edata=None, store_type=False, return_count=True)
    assert nodes == [NODES[t] for t in g.ntypes] and edges == [RELATIONS[r] for r in g.canonical_etypes]
    assert list(homo.ndata) == [mg.NID] and list(homo.edata) == [mg.EID] and homo.num_nodes() == sum(nodes)
