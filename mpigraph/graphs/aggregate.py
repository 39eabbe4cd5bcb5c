"""The in-edges of one relation, and the aggregation of messages at their destinations.

Edges have two orders: the *edge id* order, in which users see features, and the *CSC* order, by destination. In a block
they are the same; in an in-memory graph ``perm`` leads from CSC position to edge id (:class:`InEdges`).

Sums and means of source features, plain or weighted by one number for each edge (or one for each of its heads), are
products with a sparse matrix by torch's kernels: no row for each edge is ever made, and no gradient is computed for
features that need none. Everything else is evaluated edge by edge and then reduced.

On CPU, float32 products go through ``torch.embedding_bag``: it sums rows in the same order as the CSR product, to the
same bits, but prefetches them, which is 2 to 7 times as fast on rows of 100 to 256 numbers.

A sum over neighbours reads each row of a block's sources about once. Gathering the rows first costs several times as
much as the sum: they are read, written and read again, mostly in memory, since blocks do not fit in caches. So the
sources of a block can be a :class:`TableRows`: the values of the gathered rows, which :func:`spmm` reads directly from
the table. All other operations gather the rows first.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from mpigraph.graphs.fields import Frame
from mpigraph.graphs.messages import EdgeBatch, Message, Reduce, edge_values, rounded, widened

_Tensor = torch.Tensor
_KNOWN_WITHOUT_ROWS: set[Callable[..., Any]] = {
    *(getattr(_Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "requires_grad", "is_sparse")),
    *(_Tensor.dim, _Tensor.size, _Tensor.numel, _Tensor.__len__, _Tensor.is_floating_point),
}
_SUM = 0
"""The mode of ``torch.embedding_bag``."""
_CHUNK = 1 << 22
"""Numbers that :func:`_sampled_dots` gathers at a time: 16 MiB of float32."""


@dataclass(frozen=True, eq=False)
class InEdges:
    """Edges of one relation by destination. Derived layouts are made on first use and kept: it must never change.

    Attributes:
        indptr: int64[num_dst + 1]; the in-edges of destination d are positions indptr[d] to indptr[d + 1].
        indices: int32[num_edges] or int64[num_edges]; source of each edge, in CSC order.
        num_src: number of source nodes.
        perm: int64[num_edges], the edge id at each CSC position; None where that is the position itself.
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    num_src: int
    perm: torch.Tensor | None = None

    @classmethod
    def from_coo(cls, src: torch.Tensor, dst: torch.Tensor, num_src: int, num_dst: int) -> "InEdges":
        """Group edges (src, dst: int64[num_edges]) by destination, keeping the order of edge ids within one."""
        perm: torch.Tensor | None = None
        if dst.numel() > 1 and bool((dst[1:] < dst[:-1]).any()):  # else perm would be the identity
            perm = torch.argsort(dst, stable=True)
            src = src[perm]
        return cls.of_degrees(torch.bincount(dst, minlength=num_dst), src, num_src, perm)

    @classmethod
    def of_degrees(
        cls, degrees: torch.Tensor, src: torch.Tensor, num_src: int, perm: torch.Tensor | None = None
    ) -> "InEdges":
        """Make the structure of edges that are already sorted by destination, from in-degrees int64[num_dst], and
        sources int64[num_edges] or int32[num_edges] and ``perm`` as attributes of the class.
        """
        # int32 where it fits: products with a sparse matrix are bound by memory, and indices are half of the traffic
        return cls(_indptr(degrees), src.to(torch.int32) if num_src < 2**31 else src, num_src, perm)

    @property
    def num_dst(self) -> int:
        """Number of destination nodes."""
        return self.indptr.shape[0] - 1

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.indices.shape[0]

    @cached_property
    def degrees(self) -> torch.Tensor:
        """In-degree of each destination, int64[num_dst]."""
        return self.indptr[1:] - self.indptr[:-1]

    @cached_property
    def dst(self) -> torch.Tensor:
        """Destination of each edge in CSC order, int64[num_edges]."""
        rows = torch.arange(self.num_dst, dtype=torch.int64, device=self.indptr.device)
        # output_size: on a GPU torch would otherwise wait for the sum of the degrees
        return torch.repeat_interleave(rows, self.degrees, output_size=self.num_edges)

    @cached_property
    def csr_index(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Row pointers and columns of the num_dst x num_src matrix; torch wants both in one integer type."""
        small = self.num_edges < 2**31 and self.indices.dtype == torch.int32
        dtype = torch.int32 if small else torch.int64
        return self.indptr.to(dtype), self.indices.to(dtype)

    @cached_property
    def transposed(self) -> tuple["InEdges", torch.Tensor]:
        """The same edges by source, and int64[num_edges], the CSC position of each edge in that order."""
        order = torch.argsort(self.indices, stable=True)  # stable: gradients are summed in one order, bit for bit
        rows = self.dst[order].to(self.indices.dtype)
        degrees = torch.bincount(self.indices, minlength=self.num_src)
        return InEdges(_indptr(degrees), rows, self.num_dst), order

    @cached_property
    def coo(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Source and destination of each edge by edge id, int64[num_edges] each."""
        return self.to_eid_order(self.indices.to(torch.int64)), self.to_eid_order(self.dst)

    def matrix(self, dtype: torch.dtype, values: torch.Tensor | None = None) -> torch.Tensor:
        """Return the sparse CSR matrix num_dst x num_src of values, [num_edges] in CSC order; None means ones of a
        dtype.

        The matrix of ones is kept.
        """
        if values is None and dtype in self._unit_matrices:
            return self._unit_matrices[dtype]
        _trigger_beta_warning()
        data = torch.ones(self.num_edges, dtype=dtype, device=self.indices.device) if values is None else values
        shape = self.num_dst, self.num_src
        matrix = torch.sparse_csr_tensor(*self.csr_index, data, shape, check_invariants=False)
        if values is None:
            self._unit_matrices[dtype] = matrix
        return matrix

    @cached_property
    def _unit_matrices(self) -> dict[torch.dtype, torch.Tensor]:
        return {}

    def to_csc_order(self, values: torch.Tensor) -> torch.Tensor:
        """Reorder rows from edge id order to CSC order."""
        return values if self.perm is None else values[self.perm]

    def to_eid_order(self, values: torch.Tensor) -> torch.Tensor:
        """Reorder rows from CSC order to edge id order."""
        if self.perm is None:
            return values
        inverse = torch.empty_like(self.perm)
        inverse[self.perm] = torch.arange(self.num_edges, device=self.perm.device)
        return values[inverse]

    def from_rows(self, rows: torch.Tensor, num_src: int) -> "InEdges":
        """Return the structure with ``rows[s]`` (int[num_src]) in place of each source ``s``, out of ``num_src``."""
        return InEdges(self.indptr, rows[self.indices], num_src, self.perm)

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "InEdges":
        """Return the structure with ``change(tensor)`` in place of every tensor; layouts already made move along."""
        perm = None if self.perm is None else change(self.perm)
        moved = InEdges(change(self.indptr), change(self.indices), self.num_src, perm)
        if "transposed" in self.__dict__:  # where cached_property keeps it; the other layouts are cheap to make again
            turned, order = self.transposed
            moved.__dict__["transposed"] = (turned.changed(change), change(order))
        return moved


@cache
def _trigger_beta_warning() -> None:
    """Trigger torch's one-time beta warning of CSR tensors while warnings are suppressed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor(torch.tensor([0, 0]), torch.tensor([], dtype=torch.int64), torch.tensor([]), (1, 1))


def _indptr(degrees: torch.Tensor) -> torch.Tensor:
    """Return the prefix sums of the degrees, int64[num_rows + 1], from 0 on."""
    indptr = torch.zeros(degrees.shape[0] + 1, dtype=torch.int64, device=degrees.device)
    torch.cumsum(degrees, 0, out=indptr[1:])
    return indptr


class TableRows(torch.Tensor):
    """``table[rows]``, gathered on first access and kept from then on, also when it is written to.

    Attributes:
        table: [num_rows, ...], on the CPU; never written through this tensor.
        rows: int[n].
    """

    table: torch.Tensor
    rows: torch.Tensor
    _gathered: torch.Tensor | None

    @staticmethod
    def __new__(cls, table: torch.Tensor, rows: torch.Tensor) -> "TableRows":  # noqa: D102
        shape = (len(rows), *table.shape[1:])
        tensor: TableRows = _Tensor._make_wrapper_subclass(cls, shape, dtype=table.dtype)  # type: ignore[attr-defined]
        tensor.table, tensor.rows, tensor._gathered = table, rows, None
        return tensor

    @property
    def in_place(self) -> bool:
        """True until the rows are gathered."""
        return self._gathered is None

    def gathered(self) -> torch.Tensor:
        """Return the rows, always the same tensor, made outside of any tracing mode."""
        if self._gathered is None:
            with _disable_current_modes(), torch.inference_mode(False):
                self._gathered = self.table.index_select(0, self.rows)
        return self._gathered

    def first(self, n: int) -> torch.Tensor:
        """Return the first ``n`` rows, for reading."""
        return self.table.index_select(0, self.rows[:n]) if self._gathered is None else self._gathered[:n]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run operations from Python on the gathered rows; shape and dtype are known without them."""
        if func in _KNOWN_WITHOUT_ROWS and args[0].in_place:
            with torch._C.DisableTorchFunctionSubclass():  # type: ignore[attr-defined]
                return func(*args, **(kwargs or {}))
        return _with_gathered(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run operations from C++, such as a scripted module, on the gathered rows."""
        return _with_gathered(func, args, kwargs)


def first_rows(x: torch.Tensor, n: int) -> torch.Tensor:
    """Return ``x[:n]``, for reading, without gathering the other rows."""
    return x.first(n) if isinstance(x, TableRows) else x[:n]


def _with_gathered(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
    def plain(x: Any) -> Any:
        return x.gathered() if isinstance(x, TableRows) else x

    return func(*tree_map(plain, tuple(args)), **tree_map(plain, dict(kwargs or {})))


def aggregate(in_edges: InEdges, frames: tuple[Frame, Frame, Frame], message: Message, reduce: Reduce) -> torch.Tensor:
    """Return the reduced messages, [num_dst, ...], of frames of the sources, of the destinations and of the edges.

    The result of no message is 0.
    """
    if reduce.op in ("sum", "mean"):
        factors = _as_product(message, frames, in_edges)
        if factors is not None:
            return spmm(in_edges, *factors, mean=reduce.op == "mean")
    edges = EdgeBatch.of(frames, in_edges.indices, in_edges.dst, in_edges.perm)
    return reduce_rows(in_edges, edge_values(message, edges), reduce.op)


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


def reduce_rows(in_edges: InEdges, rows: torch.Tensor, op: str) -> torch.Tensor:
    """Reduce rows of edges, [num_edges, ...] in CSC order, to rows of destinations, [num_dst, ...].

    ``op`` is "sum", "mean", "max" or "min"; the result of no row is 0. The dtypes of sums and means are those of
    :func:`spmm`.
    """
    if op in ("sum", "mean"):
        total = group_sums(rows, in_edges.dst, in_edges.num_dst)
        return rounded(total / _divisors(in_edges, total) if op == "mean" else total, rows.dtype)
    best: torch.Tensor = _Extreme.apply(rows, in_edges, op)  # type: ignore[no-untyped-call]
    return best


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
