"""Dropout that uses one or two random bytes for each element.

``torch.nn.functional.dropout`` draws one number of the generator for each element, which on CPU (torch 2.13) costs more
than the matrix product before it. Here each draw of 64 bits decides on 4 or 8 elements. The draws come from torch's
default generator, so ``torch.manual_seed`` makes them repeatable; the masks differ from torch's.
"""

import torch
from torch import nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional as F

from mpigraph.arrays import Array
from mpigraph.errors import InvalidArgumentError
from mpigraph.kernels import flat as kernels


def dropout(x: torch.Tensor, p: float = 0.5, training: bool = True) -> torch.Tensor:
    """Zero each element with probability ``p`` and divide the others by ``1 - p``.

    On CPU ``p`` is rounded to a multiple of 2**-16 and the scale goes with it, so the expectation is exact.

    Args:
        x: any shape; float32 and float64 on CPU are fast, everything else is torch's own dropout.
        p: between 0 and 1.
        training: if not, return ``x``.

    Raises:
        InvalidArgumentError: ``p`` is not between 0 and 1.
    """
    if not _is_on(p, training):
        return x
    if not _is_fast(x, p):
        return F.dropout(x, p)
    out: torch.Tensor = _Drop.apply(x, p)  # type: ignore[no-untyped-call]
    return out


def relu_dropout(x: torch.Tensor, p: float = 0.5, training: bool = True) -> torch.Tensor:
    """Return ``dropout(relu(x), p, training)`` in one pass; only the result is kept for the gradient.

    Args and errors are those of :func:`dropout`.
    """
    if not _is_on(p, training):
        return F.relu(x)
    if not _is_fast(x, p):
        return F.dropout(F.relu(x), p)
    out: torch.Tensor = _ReluDrop.apply(x, p)  # type: ignore[no-untyped-call]
    return out


class Dropout(nn.Dropout):
    """:func:`dropout` as a module."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Drop in training."""
        return dropout(x, self.p, self.training)


class _Drop(torch.autograd.Function):
    """:func:`dropout`; keeps the bits, a byte or two for each element."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: torch.Tensor, p: float) -> torch.Tensor:  # type: ignore[override]
        bits = _random_bits(x.numel(), p)
        ctx.p = p  # type: ignore[attr-defined]
        ctx.save_for_backward(bits)
        return _dropped(x, bits, p)

    @staticmethod
    @once_differentiable  # type: ignore[misc, untyped-decorator]
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (bits,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return _dropped(grad, bits, ctx.p), None  # type: ignore[attr-defined]


class _ReluDrop(torch.autograd.Function):
    """:func:`relu_dropout`; keeps its output, which is 0 where the gradient is, and no bits."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: torch.Tensor, p: float) -> torch.Tensor:  # type: ignore[override]
        ctx.p = p  # type: ignore[attr-defined]
        out = _dropped(x, _random_bits(x.numel(), p), p, relu=True)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    @once_differentiable  # type: ignore[misc, untyped-decorator]
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (kept,) = ctx.saved_tensors  # type: ignore[attr-defined]
        grad = grad.contiguous()
        out = torch.empty_like(kept)
        scale = _flat(grad).dtype.type(_odds(ctx.p)[2])  # type: ignore[attr-defined]
        kernels.relu_drop_backward(_flat(grad), _flat(kept), scale, _flat(out))
        return out, None


def _is_on(p: float, training: bool) -> bool:
    if not 0 <= p <= 1:
        raise InvalidArgumentError(f"the dropout rate must be between 0 and 1 (got {p})")
    return training and p > 0


def _is_fast(x: torch.Tensor, p: float) -> bool:
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and p < 1


def _odds(p: float) -> tuple[torch.dtype, int, float]:
    """Return the dtype of the random bits, the value below which they keep an element, and the scale of kept ones."""
    # one byte is exact for p = 1/2, 1/4, ...; others need two for a resolution of 2**-16
    dtype = torch.uint8 if ((1 - p) * 256).is_integer() else torch.uint16
    values = 1 << 8 * dtype.itemsize
    limit = min(max(round((1 - p) * values), 1), values - 1)
    return dtype, limit, values / limit


def _random_bits(size: int, p: float) -> torch.Tensor:
    """Draw one unsigned integer for each element, 4 or 8 of them with each draw of the generator."""
    dtype = _odds(p)[0]
    draws = torch.empty(-(-size * dtype.itemsize // 8), dtype=torch.int64)
    return draws.random_(-(2**63), None).view(dtype)[:size]


def _dropped(x: torch.Tensor, bits: torch.Tensor, p: float, relu: bool = False) -> torch.Tensor:
    """Run the dropout kernel on ``x`` of any shape."""
    x = x.contiguous()
    out = torch.empty_like(x)
    _, limit, scale = _odds(p)
    values = _flat(x)
    draws = bits.numpy()
    # limit and scale in the types of the arrays: mixed types would keep the loop from being vectorized
    kernels.drop(values, draws, draws.dtype.type(limit), values.dtype.type(scale), relu, _flat(out))
    return out


def _flat(x: torch.Tensor) -> Array:
    flat: Array = x.detach().reshape(-1).numpy()
    return flat
