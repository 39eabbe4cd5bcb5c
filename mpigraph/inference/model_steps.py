"""The layers of a user's model as steps, and its parameters and mode."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn

from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.block import Block

Rows: TypeAlias = torch.Tensor | dict[str, torch.Tensor]
"""Rows of the nodes of the only type, or by node type."""
Step: TypeAlias = Callable[[Block, tuple[Rows, Rows]], Rows]
"""One layer: a block, rows of its sources and of its destinations -> new rows of the destinations."""


def steps_of(model: object) -> list[Step]:
    """Return the layers of a model, ``model_or_layers`` of :func:`.layerwise`, in their order.

    Raises InvalidArgumentError if it is neither a module with layers nor a list of them, or has no layer.
    """
    model = _bare(model)
    layers: Any = model
    if isinstance(model, nn.Module) and not isinstance(model, nn.ModuleList | nn.Sequential):
        layers = getattr(model, "layers", None)
        if layers is None:
            raise InvalidArgumentError(
                f"{type(model).__name__} has no layers: give a module with .layers, or a list of layers"
            )
    if not isinstance(layers, Sequence | nn.ModuleList | nn.Sequential) or isinstance(layers, str) or not len(layers):
        raise InvalidArgumentError(f"give a module with .layers, or a list of layers (got {type(model).__name__})")
    for layer in layers:
        if not callable(layer):
            raise InvalidArgumentError(f"a layer must be callable (got {type(layer).__name__})")
    forward = getattr(model, "forward_layer", None)
    if callable(forward):
        return [partial(_by_number, forward, number) for number in range(len(layers))]
    if layers is not model and type(model).forward is not nn.Module.forward:  # type: ignore[attr-defined]
        raise InvalidArgumentError(
            f"the steps of {type(model).__name__}.forward between its layers are not known: give the model a method "
            "forward_layer(i, block, h), or pass model.layers if there is nothing between them"
        )
    return [_bare(layer) for layer in layers]


def _bare(model: Any) -> Any:
    """Return a module without DDP's wrapper: trainers call it as often as each has blocks, so not in step."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def _by_number(forward: Callable[[int, Block, Rows], Rows], number: int, block: Block, h: tuple[Rows, Rows]) -> Rows:
    return forward(number, block, h[0])


def input_dtype(model: object) -> torch.dtype | None:
    """Return the dtype of the model's first floating parameter, in which layers take rows; None without one."""
    for module in _modules(model):
        for parameter in module.parameters():
            if parameter.dtype.is_floating_point:
                return parameter.dtype
    return None


def _modules(model: object) -> list[nn.Module]:
    if isinstance(model, nn.Module):
        return [model]
    return [layer for layer in model if isinstance(layer, nn.Module)] if isinstance(model, Sequence) else []


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """Put the modules of a model into evaluation mode, without gradients, while the block runs."""
    before = [(module, module.training) for top in _modules(model) for module in top.modules()]
    for module, _ in before:
        module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in before:
            module.training = training
