"""Layers over several relations, and attention, against loops over edges in float64: values and gradients."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from layer_checks import agree, normal, randomised

import mpigraph as mg
import mpigraph.nn.pytorch as dglnn
from mpigraph.errors import EdgeTypeError, InvalidArgumentError
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


def features(g, width=WIDTH):
    """Rows by type; those of a node are the same in a graph and in a block of it."""
    result = {}
    for i, ntype in enumerate(g.srctypes):
        rows = normal(NODES[ntype], width, seed=i)
        result[ntype] = (rows[g.srcnodes[ntype].data[mg.NID]] if g.is_block else rows).requires_grad_()
    return result


def own(g, feat):
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


# RelGraphConv and what it is made of


def matrices(linear):
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
    assert (bare(g, feat)["unknown"] == 0).all() and (bare(g, feat)["topic"][2] == 0).all()
    assert (dglnn.RelGraphConv(WIDTH, 2, 6, dropout=1.0)(g, feat)["paper"] == 0).all()
    homo, rows = mg.to_homogeneous(g), torch.cat(list(feat.values()))
    refused = [
        (lambda: dglnn.RelGraphConv(WIDTH, 6, 6, "bdd", 3), "multiples of num_bases 3"),
        (lambda: dglnn.RelGraphConv(WIDTH, 6, 6, "lasso"), "regularizer must be one of"),
        (lambda: dglnn.RelGraphConv(WIDTH, 2, 5)(g, feat), "5 relations, but the graph has 6"),
        (lambda: bare(g, {t: feat[t] for t in feat if t != "topic"}), "3 nodes of type 'topic', but features of 0"),
        (lambda: bare(g, feat, torch.zeros(65, dtype=torch.int64)), "etypes go with"),
        (lambda: bare(g, feat, norm={"cites": torch.ones(3)}), "numbers are given"),
        (lambda: bare(g, feat, norm={"likes": torch.ones(3)}), "'likes' does not exist"),
        (lambda: bare(g, feat, norm=torch.ones(1)), r"go by relation \(got Tensor\)"),
        (lambda: bare(homo, rows, homo.edata[mg.ETYPE], torch.ones(3)), "norm must hold 65 numbers"),
    ]
    for call, message in refused:
        with pytest.raises((InvalidArgumentError, EdgeTypeError), match=message):
            call()


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
    assert basis().shape == (5, 3, 4)
    torch.testing.assert_close(basis()[4], basis.w_comp[4, 0] * basis.weight[0] + basis.w_comp[4, 1] * basis.weight[1])


# HeteroGraphConv


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
    of_type = {t: [] for t in g.dsttypes}
    for relation in g.canonical_etypes:
        src, _, dst = relation
        of_type[dst].append(mods[relation](g[relation], (feat[src], own(g, feat)[dst])))
    expected = {t: AGGREGATES[aggregate](torch.stack(parts)) for t, parts in of_type.items() if parts}
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


# Attention


@pytest.mark.parametrize("kind", ["graph", "block"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 1)], ids=str)
def test_edge_softmax(kind, shape):
    rng = np.random.default_rng(3)
    g = mg.graph((rng.integers(0, 9, 30), rng.integers(0, 8, 30)), num_nodes=10)
    g = g if kind == "graph" else to_block(g, np.array([8, *range(8), 9]))
    group = g.all_edges()[1]
    logits = normal(30, *shape).requires_grad_()
    expected = torch.zeros_like(logits)
    for member in group.unique().tolist():
        at = (group == member).nonzero().reshape(-1)
        expected = expected.index_put((at,), logits[at].softmax(0))
    agree({"": dglnn.edge_softmax(g, logits)}, {"": expected}, logits)


def test_edge_softmax_of_large_numbers():
    g = mg.graph(([0, 1, 2, 0], [3, 3, 3, 1]))
    result = dglnn.edge_softmax(g, torch.tensor([1e4, 1e4 - 1, -1e4, -1e30]))
    torch.testing.assert_close(result, torch.tensor([1, math.exp(-1), 0, 1 + math.exp(-1)]) / (1 + math.exp(-1)))
    rows = torch.tensor([[60000.0], [60000.0]], dtype=torch.float16)  # their sum is beyond float16
    assert torch.equal(softmax_rows(rows, torch.tensor([1, 1]), 2), torch.full((2, 1), 0.5, dtype=torch.float16))
    with pytest.raises(InvalidArgumentError, match="logits must have 4 rows"):
        dglnn.edge_softmax(g, torch.zeros(3))


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


def test_the_graph_of_one_relation_has_two_sides():
    """Features by type for ``g[relation]``: the self loop is of the destinations."""
    whole_graph = mg.heterograph({("user", "buys", "item"): ([0, 3, 2], [0, 0, 1])}, {"user": 4, "item": 2})
    users, items = normal(4, 3), normal(2, 3, seed=3)
    rgcn = dglnn.RelGraphConv(3, 2, 1).double()
    hgt = dglnn.HGTConv(3, 2, 2, 2, 1, dropout=0.0).double()
    total = torch.stack([users[0] + users[3], users[2]])
    want = total @ rgcn.linear_r.W[0] + items @ rgcn.loop_weight + rgcn.h_bias
    part, both, pair = whole_graph["buys"], {"user": users, "item": items}, ({"user": users}, {"item": items})
    for g, feat in ((whole_graph, both), (part, both), (part, pair)):
        torch.testing.assert_close(rgcn(g, feat)["item"], want)
    result = hgt(part, both)
    assert list(result) == ["item"] and result["item"].shape == (2, 4)
    assert torch.equal(result["item"], hgt(part, pair)["item"])


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
    g, x, good = mg.graph(([0, 1, 2, 3], [1, 2, 3, 0])), torch.ones(4, 3), [0, 1, 2, 0]
    hgt, linear = dglnn.HGTConv(3, 2, 2, 3, 3), dglnn.TypedLinear(3, 2, 3)
    calls = {
        "etypes": [lambda t: dglnn.RelGraphConv(3, 2, 3)(g, x, t), lambda t: hgt(g, x, good, t)],
        "ntype": [lambda t: hgt(g, x, t, good), lambda t: hgt(g, x, t, good, presorted=True)],
        "x_type": [lambda t: linear(x, t), lambda t: linear(x, torch.tensor(t), True)],
    }
    for what, some in calls.items():
        for call in some:
            call(good if what == "etypes" else sorted(good))
            with pytest.raises(InvalidArgumentError, match=f"{what} must (be|have) {message}"):
                call(types)
    typed = mg.heterograph({("a", "r", "b"): ([0], [0])}, {"a": 1, "b": 1, "c": 0, "d": 1})
    with pytest.raises(InvalidArgumentError, match="3 node types, but the graph has 4"):
        hgt(typed, dict.fromkeys("abcd", torch.ones(1, 3)) | {"c": torch.ones(0, 3)})


# Typed graphs


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
    bare, nodes, edges = mg.to_homogeneous(g, store_type=False, return_count=True)
    assert nodes == [NODES[t] for t in g.ntypes] and edges == [RELATIONS[r] for r in g.canonical_etypes]
    assert list(bare.ndata) == [mg.NID] and list(bare.edata) == [mg.EID]
    with pytest.raises(InvalidArgumentError, match="not a block"):
        mg.to_homogeneous(block_of(g, CHOSEN))
