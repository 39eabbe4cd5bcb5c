"""Aggregation of messages at their destinations.

Sums and means of source features, plain or weighted by one number for each edge (or one for each of its heads), are
products with a sparse matrix by torch's kernels: no row for each edge is ever made, and no gradient is computed for
features that need none. Everything else is evaluated edge by edge and then reduced.

On CPU, float32 products go through ``torch.embedding_bag``: it sums rows in the same order as the CSR product, to the
same bits, but prefetches them, which is 2 to 7 times as fast on rows of 100 to 256 numbers.
"""

import math

import torch
from torch.autograd.function import FunctionCtx, once_differentiable

from mpigraph.graphs.frame import Frame
from mpigraph.graphs.inedges import InEdges
from mpigraph.graphs.messages import EdgeBatch, Message, Reduce, edge_values, rounded, widened
from mpigraph.graphs.table_rows import TableRows, first_rows

_SUM = 0
"""The mode of ``torch.embedding_bag``."""

_CHUNK = 1 << 22
"""Numbers that :func:`_sampled_dots` gathers at a time: 16 MiB of float32."""


def aggregate(
    in_edges: InEdges, frames: tuple[Frame, Frame, Frame], message: Message, reduce: Reduce, empty: float = 0.0
) -> torch.Tensor:
    """Return the reduced messages, [num_dst, ...], of frames of the sources, of the destinations and of the edges.

    ``empty`` is the maximum or minimum of no message; sum and mean of none are 0.
    """
    if reduce.op in ("sum", "mean"):
        factors = _as_product(message, frames, in_edges)
        if factors is not None:
            return spmm(in_edges, *factors, mean=reduce.op == "mean")
    edges = EdgeBatch.of(frames, in_edges.indices, in_edges.dst, in_edges.perm)
    return reduce_rows(in_edges, edge_values(message, edges), reduce.op, empty)


def spmm(in_edges: InEdges, x: torch.Tensor, weights: torch.Tensor | None = None, mean: bool = False) -> torch.Tensor:
    """Sum rows of ``x``, [num_src, ...], over the in-edges of each destination: [num_dst, ...] of its type.

    float16 and bfloat16 are summed in float32; integers are gathered for each edge and summed in int64, which is their
    result. With ``mean`` each sum is divided by the in-degree, and means of integers are float32; without in-edges it
    stays 0.

    ``weights`` are [num_edges], in CSC order, or [num_edges, heads, ...] for ``x`` of [num_src, heads, ..., width];
    None means ones. They may be of another dtype.
    """
    if isinstance(x, TableRows):
        if x.in_place and not torch.is_grad_enabled() and (weights is None or weights.dim() == 1):
            return spmm(in_edges.from_rows(x.rows, len(x.table)), x.table, weights, mean)
        x = x.gathered()
    if weights is not None and weights.dim() > 1:
        return _by_head(in_edges, x, weights, mean)
    if x.dtype not in (torch.float32, torch.float64):
        if x.is_floating_point():
            return rounded(spmm(in_edges, widened(x), weights, mean), x.dtype)
        rows = x.index_select(0, in_edges.indices)
        rows = rows if weights is None else rows * weights.reshape(-1, *[1] * (x.dim() - 1))
        return reduce_rows(in_edges, rows, "mean" if mean else "sum")
    weights = None if weights is None else weights.to(x.dtype)
    flat = x.reshape(x.shape[0], math.prod(x.shape[1:]))
    total: torch.Tensor = _Spmm.apply(flat, weights, in_edges, mean)  # type: ignore[no-untyped-call]
    return total.reshape(in_edges.num_dst, *x.shape[1:])


def mean_and_own(in_edges: InEdges, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean of the sources of each destination and its own row, in a block, [num_dst, width] twice.

    The same as ``spmm(in_edges, x, mean=True), x[:num_dst]`` for ``x`` of float[num_src, width], but the gradient of
    the own rows is added in place into that of the means; autograd's gradient of a slice would first be padded with
    zeros to all sources. The first sources are the destinations.
    """
    if isinstance(x, TableRows):
        return spmm(in_edges, x, mean=True), first_rows(x, in_edges.num_dst)
    both: tuple[torch.Tensor, torch.Tensor] = _MeanAndOwn.apply(x, None, in_edges, True)  # type: ignore[no-untyped-call]
    return both


def edge_dots(in_edges: InEdges, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the dot product of the rows of source and destination on each edge, head by head: [num_edges, heads], in
    CSC order, for ``x`` of float[num_src, heads, width] and ``y`` of float[num_dst, heads, width].
    """
    dots: torch.Tensor = _EdgeDots.apply(x, y, in_edges)  # type: ignore[no-untyped-call]
    return dots


def reduce_rows(in_edges: InEdges, rows: torch.Tensor, op: str, empty: float = 0.0) -> torch.Tensor:
    """Reduce rows of edges, [num_edges, ...] in CSC order, to rows of destinations, [num_dst, ...].

    ``op`` is "sum", "mean", "max" or "min"; ``empty`` the maximum or minimum of no row. The dtypes of sums and means
    are those of :func:`spmm`.
    """
    if op in ("sum", "mean"):
        total = group_sums(rows, in_edges.dst, in_edges.num_dst)
        return rounded(total / _divisors(in_edges, total) if op == "mean" else total, rows.dtype)
    if not rows.is_floating_point() and math.isinf(empty):
        limits = torch.iinfo(rows.dtype)
        empty = limits.min if empty < 0 else limits.max
    if in_edges.num_edges == 0:
        # plus a sum of no rows, so that the inputs of the messages get a gradient of 0 instead of none
        return rows.new_full((in_edges.num_dst, *rows.shape[1:]), empty) + rows.sum().to(rows.dtype)
    best: torch.Tensor = _Extreme.apply(rows, in_edges, op)  # type: ignore[no-untyped-call]
    zero_in_degree = (in_edges.degrees == 0).reshape(-1, *[1] * (rows.dim() - 1))
    return best.masked_fill(zero_in_degree, empty)


def group_sums(rows: torch.Tensor, group: torch.Tensor, num_groups: int) -> torch.Tensor:
    """Add up the rows, [n, ...], of each group, int[n]: [num_groups, ...] in the dtype of :func:`.widened`."""
    wide = widened(rows)
    return wide.new_zeros(num_groups, *rows.shape[1:]).index_add(0, group, wide)


class _Spmm(torch.autograd.Function):
    """``A @ x`` with A the num_dst x num_src matrix of the edges; A^T is made only if x needs a gradient.

    The mean is divided in place here, and its gradient once for each destination; a separate division would
    allocate another tensor in both directions.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: FunctionCtx, x: torch.Tensor, weights: torch.Tensor | None, in_edges: InEdges, mean: bool
    ) -> torch.Tensor:
        ctx.in_edges = in_edges  # type: ignore[attr-defined]
        ctx.mean = mean  # type: ignore[attr-defined]
        # x is needed again only for the gradient of the weights
        keep_x = weights is not None and ctx.needs_input_grad[1]  # type: ignore[attr-defined]
        ctx.save_for_backward(x if keep_x else None, weights)  # type: ignore[arg-type]
        total = _product(in_edges, x, weights)
        return total.div_(_divisors(in_edges, total)) if mean else total

    @staticmethod
    @once_differentiable  # type: ignore[misc, untyped-decorator]
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        in_edges: InEdges = ctx.in_edges  # type: ignore[attr-defined]
        if ctx.mean:  # type: ignore[attr-defined]
            grad = grad / _divisors(in_edges, grad)
        x, weights = ctx.saved_tensors  # type: ignore[attr-defined]
        grad_x = grad_weights = None
        if ctx.needs_input_grad[0]:  # type: ignore[attr-defined]
            if in_edges.num_edges == 0 or grad.shape[1] == 0:
                grad_x = grad.new_zeros(in_edges.num_src, grad.shape[1])
            else:
                transposed, order = in_edges.transposed
                grad_x = _product(transposed, grad.contiguous(), None if weights is None else weights[order])
        if weights is not None and ctx.needs_input_grad[1]:  # type: ignore[attr-defined]
            grad_weights = _sampled_dots(in_edges, x, grad).squeeze(1).to(weights.dtype)
        return grad_x, grad_weights, None, None


class _MeanAndOwn(torch.autograd.Function):
    """:class:`_Spmm` of the mean, with the destinations' own rows as a second output."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: FunctionCtx, x: torch.Tensor, weights: None, in_edges: InEdges, mean: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return _Spmm.forward(ctx, x, weights, in_edges, mean), x[: in_edges.num_dst]

    @staticmethod
    @once_differentiable  # type: ignore[misc, untyped-decorator]
    def backward(
        ctx: FunctionCtx, grad: torch.Tensor, grad_own: torch.Tensor
    ) -> tuple[torch.Tensor | None, None, None, None]:
        grad_x = _Spmm.backward(ctx, grad)[0]
        if grad_x is not None:
            grad_x[: grad_own.shape[0]].add_(grad_own)  # in place is safe: grad_x is a new tensor
        return grad_x, None, None, None


class _EdgeDots(torch.autograd.Function):
    """Sampled dense-dense products (SDDMM): dots on edges; their gradients are sums over edges, weighted by head."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: FunctionCtx, x: torch.Tensor, y: torch.Tensor, in_edges: InEdges
    ) -> torch.Tensor:
        ctx.in_edges = in_edges  # type: ignore[attr-defined]
        ctx.save_for_backward(x, y)
        return _sampled_dots(in_edges, x.flatten(1), y.flatten(1), x.shape[1])

    @staticmethod
    @once_differentiable  # type: ignore[misc, untyped-decorator]
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        in_edges: InEdges = ctx.in_edges  # type: ignore[attr-defined]
        x, y = ctx.saved_tensors  # type: ignore[attr-defined]
        grad_x = grad_y = None
        if ctx.needs_input_grad[0]:  # type: ignore[attr-defined]
            transposed, order = in_edges.transposed
            grad_x = _by_head(transposed, y, grad[order], mean=False)
        if ctx.needs_input_grad[1]:  # type: ignore[attr-defined]
            grad_y = _by_head(in_edges, x, grad, mean=False)
        return grad_x, grad_y, None


class _Extreme(torch.autograd.Function):
    """Maximum or minimum of the rows of each destination; ties split the gradient evenly.

    Not ``torch.segment_reduce``: its gradient of ties is wrong on CPU (seen in torch 2.13).
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: FunctionCtx, rows: torch.Tensor, in_edges: InEdges, op: str
    ) -> torch.Tensor:
        index = in_edges.dst.reshape(-1, *[1] * (rows.dim() - 1)).expand_as(rows)
        best = rows.new_zeros(in_edges.num_dst, *rows.shape[1:])
        best.scatter_reduce_(0, index, rows, {"max": "amax", "min": "amin"}[op], include_self=False)
        ctx.in_edges = in_edges  # type: ignore[attr-defined]
        ctx.save_for_backward(rows, best)
        return best

    @staticmethod
    @once_differentiable  # type: ignore[misc, untyped-decorator]
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        dst = ctx.in_edges.dst  # type: ignore[attr-defined]
        rows, best = ctx.saved_tensors  # type: ignore[attr-defined]
        attained = (rows == best.index_select(0, dst)).to(grad.dtype)
        count = group_sums(attained, dst, grad.shape[0])
        return attained.mul_((grad / count.clamp_(min=1)).index_select(0, dst)), None, None


def _by_head(in_edges: InEdges, x: torch.Tensor, weights: torch.Tensor, mean: bool) -> torch.Tensor:
    """Do :func:`spmm` head by head, so that no row of all heads is made for each edge."""
    heads = math.prod(weights.shape[1:])
    # unbind, not slices: the gradient of a slice is a tensor of the full size, and they would all be added up
    rows = x.reshape(x.shape[0], heads, math.prod(x.shape[weights.dim() :])).unbind(1)
    columns = weights.reshape(weights.shape[0], heads).unbind(1)
    sums = [spmm(in_edges, row, column.contiguous(), mean) for row, column in zip(rows, columns, strict=True)]
    return torch.stack(sums, 1).reshape(in_edges.num_dst, *x.shape[1:])


def _product(in_edges: InEdges, x: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Return A @ x, [num_dst, width], for x of [num_src, width] and weights of [num_edges] or None for ones."""
    if in_edges.num_edges == 0 or x.shape[1] == 0:
        return x.new_zeros(in_edges.num_dst, x.shape[1])
    if x.device.type == "cpu" and x.dtype == torch.float32:
        indptr, indices = in_edges.csr_index
        # a bag is a destination; the last argument says that the offsets end with the number of edges
        bags = torch.embedding_bag(x.contiguous(), indices, indptr, False, _SUM, False, weights, True)
        return bags[0]
    with torch.autocast(x.device.type, enabled=False):  # it would multiply, and sum, in 16 bits
        return in_edges.matrix(x.dtype, weights) @ x


def _sampled_dots(in_edges: InEdges, x: torch.Tensor, y: torch.Tensor, heads: int = 1) -> torch.Tensor:
    """Return x[src] . y[dst] for each edge and head, [num_edges, heads], chunk by chunk to bound the memory."""
    step = max(1, _CHUNK // max(1, x.shape[1]))
    dots = x.new_empty(in_edges.num_edges, heads)
    for start in range(0, in_edges.num_edges, step):
        chunk = slice(start, start + step)
        rows = widened(x.index_select(0, in_edges.indices[chunk])).mul_(y.index_select(0, in_edges.dst[chunk]))
        dots[chunk] = rows.reshape(-1, heads, x.shape[1] // heads).sum(2)
    return dots


def _as_product(
    message: Message, frames: tuple[Frame, Frame, Frame], in_edges: InEdges
) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """Return (source features, edge weights in CSC order) if the sum of the messages is A @ x, else None."""
    if message.op == "copy" and message.lhs.side == "u":
        return frames[0][message.lhs.field], None
    if message.op != "mul" or message.rhs is None or {message.lhs.side, message.rhs.side} != {"u", "e"}:
        return None
    u, e = sorted((message.lhs, message.rhs), key=lambda operand: operand.side == "e")  # multiplication commutes
    x = frames[0][u.field]
    weights = frames[2][e.field]
    dtype = torch.promote_types(x.dtype, weights.dtype)
    if not (x.is_floating_point() and weights.is_floating_point()):
        return None
    x = x if x.dtype == dtype else x.to(dtype)
    if math.prod(weights.shape[1:]) == 1 and weights.dim() <= x.dim():  # a number for each edge
        return x, in_edges.to_csc_order(weights.reshape(-1))
    if weights.dim() == x.dim() and weights.shape[1:] == (*x.shape[1:-1], 1):  # a number for each head
        return x, in_edges.to_csc_order(weights.squeeze(-1))
    return None


def _divisors(in_edges: InEdges, like: torch.Tensor) -> torch.Tensor:
    """Return the in-degrees in a shape that divides the rows of ``like``; at least 1, so that sums of no row stay 0."""
    degrees = in_edges.degrees.clamp(min=1).reshape(-1, *[1] * (like.dim() - 1))
    return degrees.to(like.dtype if like.is_floating_point() else torch.float32)
