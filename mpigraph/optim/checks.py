"""What an optimizer is given, checked: embeddings, numbers, gradients."""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch

from mpigraph.arrays import I64
from mpigraph.distgraph.embedding import DistEmbedding
from mpigraph.errors import InvalidArgumentError

__all__ = ["check_embeddings", "check_settings", "dense_gradient"]

_BELOW_ONE = math.nextafter(1.0, 0.0)


def check_embeddings(params: Sequence[DistEmbedding]) -> list[DistEmbedding]:
    """The embeddings of an optimizer.

    Raises:
        InvalidArgumentError: they are not a list of DistEmbeddings, none, or two have one name.
    """
    if isinstance(params, DistEmbedding) or not hasattr(params, "__iter__"):
        raise InvalidArgumentError(f"params must be a list of DistEmbeddings (got a {type(params).__name__})")
    found = list(params)
    for emb in found:
        if not isinstance(emb, DistEmbedding):
            raise InvalidArgumentError(f"params must be DistEmbeddings (got a {type(emb).__name__} among them)")
    names = [emb.name for emb in found]
    if not names:
        raise InvalidArgumentError("params are empty: give at least one DistEmbedding")
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgumentError(f"two of the embeddings are called {name!r}")
    return found


def check_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of an optimizer as plain numbers.

    Raises:
        InvalidArgumentError: one is out of its range.
    """
    checked = dict(settings)
    checked["lr"] = _number("lr", settings["lr"], 0.0, 1e30)  # schedules begin and end with 0
    if "eps" in settings:
        checked["eps"] = _number("eps", settings["eps"], 0.0, 1e30)
    if "betas" in settings:
        betas = settings["betas"]
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise InvalidArgumentError(f"betas must be two numbers (got {betas!r})")
        checked["betas"] = [_number("each of betas", beta, 0.0, _BELOW_ONE) for beta in betas]
    if settings["reduction"] not in ("mean", "sum"):
        raise InvalidArgumentError(f"reduction must be 'mean' or 'sum' (got {settings['reduction']!r})")
    return checked


def _number(name: str, value: object, least: float, most: float) -> float:
    number = float(value) if isinstance(value, Real) else math.nan
    if not least <= number <= most:
        raise InvalidArgumentError(f"{name} must be a number from {least:.7g} to {most:.7g} (got {value!r})")
    return number


def dense_gradient(emb: DistEmbedding, ids: I64, grad: torch.Tensor) -> torch.Tensor:
    """The gradient of rows ``ids`` that were read, float32[len(ids), dim], contiguous on the CPU.

    Raises:
        InvalidArgumentError: it has another shape, or is not finite.
    """
    wanted = (len(ids), emb.embedding_dim)
    what = f"embedding {emb.name!r}: the gradient of"
    if tuple(grad.shape) != wanted:
        raise InvalidArgumentError(f"{what} {len(ids)} rows must have shape {wanted} (got {tuple(grad.shape)})")
    dense = grad.to_dense() if grad.layout != torch.strided else grad
    dense = dense.detach().to("cpu", torch.float32).contiguous()
    if not dense.sum().isfinite():  # which that of finite ones may be, too
        for row in (~dense.isfinite().all(1)).nonzero()[:1, 0].tolist():
            values = dense[row].tolist()
            raise InvalidArgumentError(
                f"embedding {emb.name!r}: the gradient of row {ids[row]} is not finite: {values}"
            )
    return dense
