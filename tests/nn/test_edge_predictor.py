"""Scores of pairs of nodes against plain torch formulas."""

import pytest
import torch
from torch import nn

import mpigraph.nn.pytorch as dglnn
from mpigraph.errors import InvalidArgumentError
from mpigraph.nn import EdgePredictor

FORMULAS = {
    "dot": lambda a, b: (a @ b.T).diagonal().unsqueeze(1),
    "ele": lambda a, b: torch.einsum("nd,nd->nd", a, b),
    "cat": lambda a, b: torch.hstack([a, b]),
}
WIDTHS = {"dot": 1, "ele": 6, "cat": 12}


def pairs(n: int = 20, width: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return tuple(torch.randn(n, width, dtype=torch.float64, generator=generator) for _ in range(2))


@pytest.mark.parametrize("op", FORMULAS)
@pytest.mark.parametrize("bias", [False, True])
def test_operations_and_the_linear_map(op, bias):
    h_src, h_dst = pairs()
    want = FORMULAS[op](h_src, h_dst)
    for plain in (EdgePredictor(op), EdgePredictor(op, 6), dglnn.EdgePredictor(op, bias=bias)):
        torch.testing.assert_close(plain(h_src, h_dst), want)
        assert list(plain.parameters()) == []
    mapped = EdgePredictor(op, 6, 3, bias).double()
    assert mapped.linear.weight.shape == (3, WIDTHS[op]) and (mapped.linear.bias is not None) == bias
    shift = mapped.linear.bias if bias else 0
    torch.testing.assert_close(mapped(h_src, h_dst), want @ mapped.linear.weight.T + shift)
    assert EdgePredictor(op)(h_src[:0], h_dst[:0]).shape == (0, WIDTHS[op])


def test_weights_are_drawn_anew():
    model, twin = EdgePredictor("dot", 6, 4, bias=True), nn.Linear(1, 4)
    for layer in (model, twin):
        torch.manual_seed(8)
        layer.reset_parameters()
    assert torch.equal(model.linear.weight, twin.weight)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: EdgePredictor("sum"), r"op must be one of .*'sum'"),
        (lambda: EdgePredictor("dot", out_feats=3), "in_feats must be given"),
        (lambda: EdgePredictor("distmult"), "knowledge_graph.py"),
        (lambda: EdgePredictor("cos"), "normalise rows and take 'dot'"),
        (lambda: EdgePredictor("dot")(pairs()[0], pairs(1)[1]), r"one shape \(got \(20, 6\) and \(1, 6\)\)"),
    ],
)
def test_misuse_is_named(call, match):
    with pytest.raises(InvalidArgumentError, match=match):
        call()
