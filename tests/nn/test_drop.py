"""Dropout: its odds, its scale, its gradient, and whose draws it uses; memory that is kept for the next one."""

import pytest
import torch
from layouts import Layout, own_on_layouts
from torch.nn import functional as F

from mpigraph.errors import InvalidArgumentError
from mpigraph.nn import Dropout, dropout, relu_dropout
from mpigraph.session import context

LARGE = 400, 501  # an odd number of elements in the last draw


@pytest.mark.parametrize("p", [0.5, 0.25, 0.1, 0.9, 1e-9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_odds_and_scale(p, dtype):
    torch.manual_seed(1)
    out = dropout(torch.ones(LARGE, dtype=dtype), p)
    kept = (out != 0).double()
    assert out.shape == LARGE and out.dtype == dtype
    step = 2**-16  # the odds are a multiple of it
    assert abs(float(kept.mean()) - (1 - p)) < 5 * ((p + step) * (1 - p) / out.numel()) ** 0.5 + step
    torch.testing.assert_close(out.unique()[-1].item(), 1 / (1 - p), rtol=2**-12, atol=0)
    # neither rows nor columns nor neighbours are dropped together
    assert kept.mean(0).var() < 2 * p * (1 - p) / LARGE[0] + 1e-4
    assert abs(float((kept[:, 1:] * kept[:, :-1]).mean()) - (1 - p) ** 2) < 0.01


@pytest.mark.parametrize("p", [0.5, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_relu_and_gradients(p, dtype):
    x = torch.randn(LARGE, dtype=dtype, requires_grad=True)
    factor = torch.randn(LARGE, dtype=dtype)
    for drop, mask in ((dropout, torch.ones_like(x)), (relu_dropout, (x > 0).to(dtype))):
        torch.manual_seed(3)
        out = drop(x, p)
        torch.manual_seed(3)
        scale = dropout(torch.ones_like(x), p)  # the same draws
        torch.testing.assert_close(out, x * mask * scale, rtol=1e-6, atol=0)
        (grad,) = torch.autograd.grad((out * factor).sum(), x)
        torch.testing.assert_close(grad, factor * mask * scale, rtol=1e-6, atol=0)


def test_layouts_and_special_values():
    x = torch.full((6, 4), float("nan")).t()
    assert dropout(x).isnan().all() and relu_dropout(x).isnan().all()
    wide = torch.arange(1.0, 25.0).reshape(4, 6).t().requires_grad_()
    out = dropout(wide, 0.5)
    assert set((out / wide).unique().tolist()) <= {0.0, 2.0}
    out.backward(torch.ones(4, 6).t())
    assert torch.equal(wide.grad, (out / wide).detach())
    assert dropout(torch.ones(0, 3)).shape == (0, 3) and dropout(torch.tensor(1.0)).shape == ()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_types_are_torchs(dtype):
    x = torch.ones(1000, dtype=dtype)
    torch.manual_seed(1)
    out = dropout(x)
    torch.manual_seed(1)
    assert torch.equal(out, F.dropout(x))
    assert relu_dropout(-x).eq(0).all()


def test_off_and_misuse():
    x = torch.randn(5)
    assert dropout(x, 0.0) is x and dropout(x, training=False) is x
    assert torch.equal(relu_dropout(x, training=False), F.relu(x))
    assert (dropout(x, 1.0) == 0).all() and (relu_dropout(x, 1.0) == 0).all()
    layer = Dropout(0.5)
    assert set(layer(torch.ones(100)).tolist()) == {0.0, 2.0} and layer.eval()(x) is x
    for p in (-0.1, 1.1, float("nan")):
        with pytest.raises(InvalidArgumentError, match="between 0 and 1"):
            dropout(x, p)


@own_on_layouts([Layout(2, 1, 0)])
@pytest.mark.parametrize("keep", [0, 1])
def test_trainers_keep_memory_unless_they_are_told_not_to(layout, monkeypatch, keep):
    asked = []
    monkeypatch.setattr(context, "keep_freed_memory", lambda: asked.append(True))
    monkeypatch.setenv("MPIGRAPH_KEEP_MEMORY", str(keep))
    is_trainer = layout.run(lambda: True)
    assert asked == ([True] if keep and is_trainer else [])
