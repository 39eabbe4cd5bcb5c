"""What tests of layers share: rows and parameters at random in float64, and the comparison with a formula."""

from collections.abc import Mapping
from typing import Any

import torch

import mpigraph.function as fn


def normal(*shape: int, seed: int = 2) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def sums(block: Any, h: Any) -> torch.Tensor:
    """A layer whose sums of small integers are the same bits in any order."""
    with block.local_scope():
        block.srcdata["h"] = h[0]
        block.update_all(fn.copy_u("h", "m"), fn.sum("m", "out"))
        return torch.as_tensor(block.dstdata["out"]) + 2 * h[1]


def randomised(layer: torch.nn.Module) -> torch.nn.Module:
    """The layer in float64, without a parameter that is 0 or 1."""
    for i, parameter in enumerate(layer.double().parameters()):
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(100 + i))
    return layer


def agree(result: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], *leaves: torch.Tensor) -> None:
    """Check for the same values, and the same gradients of the leaves for some gradient of the values."""
    assert result.keys() == expected.keys()
    grads = []
    for values in (result, expected):
        loss = sum((rows * normal(*rows.shape, seed=9)).sum() for rows in values.values())
        loss = loss + sum(0 * leaf.sum() for leaf in leaves)  # no message reaches a graph without edges
        grads.append(torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True, materialize_grads=True))
    for name in expected:
        torch.testing.assert_close(result[name], expected[name])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)
