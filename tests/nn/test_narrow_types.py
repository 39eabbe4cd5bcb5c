"""Features of 16 bits and small integers: layers and message functions give what float32 or int64 gives."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import mpigraph.function as fn
from mpigraph import nn
from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.aggregate import edge_dots, group_sums
from mpigraph.graphs.block import Block, to_block
from mpigraph.graphs.hetero import HeteroGraph, graph, heterograph

MANY = 65520
"""The first number that float16 rounds to infinity."""
HALVES = [torch.float16, torch.bfloat16]
MESSAGES = {
    "copy_u": fn.copy_u("u", "m"),
    "copy_e": fn.copy_e("e", "m"),
    "u_mul_e": fn.u_mul_e("u", "e", "m"),
    "u_add_v": fn.u_add_v("u", "v", "m"),
    "u_dot_v": fn.u_dot_v("u", "v", "m"),
}
LONELY: Any = {"allow_zero_in_degree": True}
LAYERS: dict[str, Callable[[], Any]] = {
    **{f"norm {norm}": partial(nn.GraphConv, 2, 2, norm, **LONELY) for norm in ("none", "both", "right", "left")},
    "narrow": partial(nn.GraphConv, 2, 1, **LONELY),
    **{kind: partial(nn.SAGEConv, 2, 2, kind) for kind in ("gcn", "mean", "pool")},
    **{f"gin {kind}": partial(nn.GINConv, torch.nn.Linear(2, 2), kind) for kind in ("sum", "mean")},
    "gine": partial(nn.GINEConv, torch.nn.Linear(2, 2)),
    "gat": partial(nn.GATConv, 2, 2, 2, **LONELY),
    "gatv2": partial(nn.GATv2Conv, 2, 2, 2, **LONELY),
    "rgcn": partial(nn.RelGraphConv, 2, 2, 3),
    "hgt": partial(nn.HGTConv, 2, 1, 2, 2, 3),
}


def star(num_edges: int) -> HeteroGraph:
    """All edges into node 0."""
    return graph((torch.arange(num_edges) % 1000 + 1, torch.zeros(num_edges, dtype=torch.int64)))


def block() -> Block:
    return to_block(star(MANY), [0, 1])


def close(found: torch.Tensor, want: torch.Tensor) -> bool:
    """Return whether no number is wrong by more than 3 % of the largest."""
    return bool((found.double() - want.double()).abs().max() <= 0.03 * want.double().abs().max())


def output(layer: Any, name: str, g: Any, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x, edges = (torch.rand(n, 2, generator=generator).to(dtype) / 16 for n in (g.num_src_nodes(), g.num_edges()))
    types = torch.arange(g.num_edges()) % 3
    more: dict[str, tuple[Any, ...]] = {
        "gine": (edges,),
        "rgcn": (types, 1 / g.in_degrees()[g.all_edges()[1]]),
        "hgt": (torch.arange(len(x)) % 2, types),
    }
    return layer.eval()(g, x, *more.get(name, ()))[:1]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("make", [partial(star, MANY), block], ids=["graph", "block"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_at_a_node_of_many_edges(name: str, make: Callable[[], Any], dtype: torch.dtype, autocast: bool) -> None:
    torch.manual_seed(3)
    layer, g = LAYERS[name](), make()
    with torch.no_grad():
        want = output(layer, name, g, torch.float32)
        with torch.autocast("cpu", dtype, enabled=autocast):
            found = output(copy.deepcopy(layer).to(torch.float32 if autocast else dtype), name, g, dtype)
    assert close(found, want)


def test_layers_whose_sum_is_beyond_float16() -> None:
    """Only the sum divided by degrees is rounded to 16 bits."""
    g, x = star(70000), torch.ones(1001, 2)
    for layer in (nn.GraphConv(2, 2, "right", allow_zero_in_degree=True), nn.SAGEConv(2, 2, "gcn")):
        with torch.no_grad():
            want = layer(g, x)[:1]
            assert close(layer.half()(g, x.half())[:1], want) and bool(want.any())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("shape", [(), (2,)])
def test_reducers_and_their_gradients(shape: tuple[int, ...], name: str, op: str, dtype: torch.dtype) -> None:
    if not shape and name == "u_dot_v":
        return
    g, found = star(MANY), []
    for kind in (torch.float32, dtype):
        fields = [
            torch.full((n, *shape), value, dtype=kind, requires_grad=True)
            for n, value in ((1001, 0.5), (1001, 0.25), (MANY, 0.5))
        ]
        (g.ndata["u"], g.ndata["v"]), g.edata["e"] = fields[:2], fields[2]
        g.update_all(MESSAGES[name], getattr(fn, op)("m", "y"))
        y = g.ndata["y"][:1]
        (y.float().sum() / 16).backward()
        found.append([y, *(field.grad for field in fields)])
    for one, want in zip(found[1], found[0], strict=True):
        assert (one is None) == (want is None) and (one is None or (close(one, want) and bool(want.any())))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32])
@pytest.mark.parametrize("name", ["copy_u", "copy_e", "u_mul_e", "u_mul_v", "u_sub_v", "u_dot_v", "e_div_v"])
def test_integers_do_not_wrap(name: str, dtype: torch.dtype) -> None:
    g = star(300)
    sides = {"u": (301, 100), "v": (301, 120), "e": (300, 100)}
    for side, (n, value) in sides.items():
        (g.edata if side == "e" else g.ndata)[side] = torch.full((n, 3), value).to(dtype)
    u, v, e = (int(torch.tensor(value).to(dtype)) for _, value in sides.values())
    lhs, *rest = name.split("_")
    message = getattr(fn, name)(*([rest[0], "m"] if lhs == "copy" else [lhs, rest[1], "m"]))
    each = {"copy_u": u, "copy_e": e, "u_mul_e": u * e, "u_mul_v": u * v, "u_sub_v": u - v, "u_dot_v": 3 * u * v}
    want = each.get(name, e / v)
    if dtype == torch.bool and name == "u_sub_v":
        with pytest.raises(InvalidArgumentError, match="'u' and 'v' are masks"):
            g.update_all(message, fn.sum("m", "y"))
        return
    for op in ("sum", "mean", "max", "min"):
        g.update_all(message, getattr(fn, op)("m", "y"))
        right = torch.full_like(g.ndata["y"][0], want * (300 if op == "sum" else 1), dtype=torch.float64)
        torch.testing.assert_close(g.ndata["y"][0].double(), right, rtol=1e-5, atol=0)


def test_masks_stay_masks() -> None:
    g = star(3)
    g.ndata["a"], g.edata["b"] = torch.tensor([True, True, False, True]), torch.tensor([True] * 3)
    g.apply_edges(fn.u_mul_e("a", "b", "m"))
    assert g.edata["m"].tolist() == [True, False, True] and g.edata["m"].dtype == torch.bool
    with pytest.raises(InvalidArgumentError, match="masks, which have no sum"):
        g.apply_edges(fn.u_add_v("a", "a", "m"))


def test_a_degree_beside_16_bits() -> None:
    g = star(MANY)
    g.edata["x"], g.ndata["degree"] = torch.full((MANY,), 1000.0).half(), g.in_degrees()
    g.apply_edges(fn.e_div_v("x", "degree", "m"))
    assert g.edata["m"].dtype == torch.float16 and close(g.edata["m"], torch.full((MANY,), 1000 / MANY))
    g.edata["w"] = torch.full((MANY,), 1 / MANY)  # float32 beside float16 is float32, as in torch
    g.ndata["x"] = torch.ones(g.num_nodes(), 2).half()
    g.update_all(fn.u_mul_e("x", "w", "m"), fn.sum("m", "y"))
    assert g.ndata["y"].dtype == torch.float32 and close(g.ndata["y"][0], torch.ones(2))


@pytest.mark.parametrize("aggregate", ["sum", "mean", "max", "min", "stack"])
@pytest.mark.parametrize("dtype", HALVES)
def test_aggregates_of_relations(aggregate: str, dtype: torch.dtype) -> None:
    src, dst = star(MANY).edges()
    g = heterograph({("_N", name, "_N"): (src, dst) for name in ("r", "s")})
    torch.manual_seed(0)
    mods = {"r": nn.SAGEConv(2, 2, "gcn"), "s": nn.GraphConv(2, 2)}
    layer, x = nn.HeteroGraphConv(mods, aggregate), torch.rand(1001, 2)
    with torch.no_grad():
        want = layer(g, {"_N": x})["_N"][0]
        assert close(layer.to(dtype)(g, {"_N": x.to(dtype)})["_N"][0], want)


def test_relations_of_integers() -> None:
    src, dst = star(300).edges()
    g = heterograph({("_N", name, "_N"): (src, dst) for name in ("r", "s")})
    g.ndata["x"] = torch.full((301, 1), 100, dtype=torch.uint8)
    functions = fn.copy_u("x", "m"), fn.sum("m", "y")
    for cross, want in (("sum", 60000), ("mean", 30000), ("max", 30000), ("min", 30000)):
        g.multi_update_all({"r": functions, "s": functions}, cross)
        assert g.ndata["y"][0].item() == want


@pytest.mark.parametrize("dtype", HALVES)
def test_sums_that_would_stagnate(dtype: torch.dtype) -> None:
    """In bfloat16 256 + 1 is 256, in float16 2048 + 1 is 2048."""
    n = 4096
    ones, group = torch.ones(n).to(dtype), torch.zeros(n, dtype=torch.int64)
    assert group_sums(ones, group, 1).tolist() == [n]
    linear = nn.TypedLinear(1, 1, 1).to(dtype)
    linear(ones[:, None], group).sum().backward()
    assert linear.W.grad.item() == n
    g = star(n)
    x = torch.ones(1001).to(dtype).requires_grad_()
    g.ndata["x"] = x
    g.apply_edges(lambda edges: {"m": edges.dst["x"]})  # a function of the user's
    g.edata["m"].sum().backward()
    assert x.grad[0].item() == n


def test_dots_beyond_float16() -> None:
    rows = torch.tensor([[300.0, 300.0]]).half()
    g = graph(([0], [0]))
    g.ndata["a"], g.ndata["b"] = rows, rows * torch.tensor([1, -1])
    g.apply_edges(fn.u_dot_v("a", "b", "m"))
    edges = g.structure(g.canonical_etypes[0])
    dots = edge_dots(edges, g.ndata["a"][:, None], g.ndata["b"][:, None])
    assert g.edata["m"].item() == dots.item() == nn.EdgePredictor("dot")(g.ndata["a"], g.ndata["b"]).item() == 0


def test_integers_as_features_and_scores() -> None:
    g, x = star(300), torch.full((301, 2), 100, dtype=torch.uint8)
    for layer in (nn.GraphConv(2, 2, "both", allow_zero_in_degree=True), nn.SAGEConv(2, 2, "gcn")):
        with torch.no_grad():
            assert close(layer(g, x)[0], layer(g, x.float())[0])
    with pytest.raises(InvalidArgumentError, match="logits must be floats"):
        nn.edge_softmax(g, torch.ones(300, dtype=torch.int64))
