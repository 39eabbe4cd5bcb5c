"""Scores of pairs of nodes against plain torch formulas."""

import pytest
import torch
from torch import nn

import mpigraph.nn.pytorch as dglnn
from mpigraph.errors import InvalidArgumentError
from mpigraph.nn import EdgePredictor

FORMULAS = {
    "dot": lambda a, b: (a @ b.T).diagonal().unsqueeze(1),
    "cos": lambda a, b: ((a @ b.T).diagonal() / (a.norm(dim=1) * b.norm(dim=1))).unsqueeze(1),
    "ele": lambda a, b: torch.einsum("nd,nd->nd", a, b),
    "cat": lambda a, b: torch.hstack([a, b]),
}
WIDTHS = {"dot": 1, "cos": 1, "ele": 6, "cat": 12, "distmult": 1}


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


def test_distmult():
    h_src, h_dst = pairs()
    etypes = torch.arange(20) % 3
    model = EdgePredictor("distmult", 6, num_rels=3).double()
    assert list(dict(model.named_parameters())) == ["w_relation"] and model.w_relation.shape == (3, 6)
    want = [a @ torch.diag(model.w_relation[r]) @ b for a, b, r in zip(h_src, h_dst, etypes.tolist(), strict=True)]
    torch.testing.assert_close(model(h_src, h_dst, etypes), torch.stack(want).unsqueeze(1))
    torch.testing.assert_close(model(h_src, h_dst, 2), model(h_src, h_dst, torch.full((20,), 2)))
    model(h_src, h_dst, etypes).sum().backward()
    products = h_src * h_dst
    torch.testing.assert_close(model.w_relation.grad, torch.stack([products[etypes == r].sum(0) for r in range(3)]))
    one = EdgePredictor("distmult", 6, 2, num_rels=1).double()
    score = (h_src * one.w_relation[0] * h_dst).sum(1, keepdim=True)
    torch.testing.assert_close(one(h_src, h_dst), score @ one.linear.weight.T)


def test_weights_are_drawn_anew():
    torch.manual_seed(3)
    model = EdgePredictor("distmult", 6, 4, bias=True, num_rels=5)
    before = [p.detach().clone() for p in model.parameters()]
    assert all(p.abs().sum() > 0 for p in before)
    assert model.w_relation.abs().max() <= (6 / (5 + 6)) ** 0.5  # Glorot's bound
    model.reset_parameters()
    assert all(not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    twin = nn.Linear(1, 4)
    torch.manual_seed(8)
    model.linear.reset_parameters()
    torch.manual_seed(8)
    twin.reset_parameters()
    assert torch.equal(model.linear.weight, twin.weight)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"op": "sum"}, r"op must be one of .*'sum'"),
        ({"op": "dot", "out_feats": 3}, "in_feats must be given"),
        ({"op": "distmult", "num_rels": 3}, "in_feats must be given"),
        ({"op": "distmult", "in_feats": 3}, "num_rels goes with op 'distmult'"),
        ({"op": "dot", "num_rels": 3}, "num_rels goes with op 'distmult'"),
    ],
)
def test_bad_arguments(arguments, match):
    with pytest.raises(InvalidArgumentError, match=match):
        EdgePredictor(**arguments)


def test_bad_calls():
    h_src, h_dst = pairs()
    with pytest.raises(InvalidArgumentError, match=r"one shape \(got \(20, 6\) and \(1, 6\)\)"):
        EdgePredictor("dot")(h_src, h_dst[:1])
    with pytest.raises(InvalidArgumentError, match="etypes goes with op 'distmult' alone"):
        EdgePredictor("cos")(h_src, h_dst, torch.zeros(20, dtype=torch.int64))
    with pytest.raises(InvalidArgumentError, match="since there are 2 relations"):
        EdgePredictor("distmult", 6, num_rels=2).double()(h_src, h_dst)
