"""The softmax over the edges of a node, as in ``dgl.nn.functional``."""

import torch
from torch.autograd.function import FunctionCtx, once_differentiable

from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.aggregate import group_sums
from mpigraph.graphs.message_passing import MessagePassing
from mpigraph.namespaces import attach

__all__ = ["edge_softmax"]


def edge_softmax(graph: MessagePassing, logits: torch.Tensor) -> torch.Tensor:
    """Return the softmax of edge scores over the edges into each destination.

    Args:
        graph: a block, or a graph of one relation.
        logits: float[num_edges, ...].

    Returns:
        float[num_edges, ...].

    Raises:
        InvalidArgumentError: not a row for each edge, or integers.
    """
    if logits.dim() == 0 or logits.shape[0] != graph.num_edges():
        raise InvalidArgumentError(f"logits must have {graph.num_edges()} rows (got shape {tuple(logits.shape)})")
    if not logits.is_floating_point():
        raise InvalidArgumentError(f"logits must be floats (got {logits.dtype})")
    return softmax_rows(logits, graph.all_edges()[1], graph.num_dst_nodes())


def softmax_rows(rows: torch.Tensor, group: torch.Tensor, num_groups: int) -> torch.Tensor:
    """Return the softmax of each column within each group of rows.

    The maximum of a group is subtracted first, so that nothing overflows. float16 and bfloat16 are summed in float32.
    ``rows`` and the result are float[n, ...], ``group`` is int64[n].
    """
    if rows.dtype in (torch.float16, torch.bfloat16):
        return softmax_rows(rows.float(), group, num_groups).to(rows.dtype)
    probabilities: torch.Tensor = _Softmax.apply(rows, group, num_groups)  # type: ignore[no-untyped-call]
    return probabilities


class _Softmax(torch.autograd.Function):
    """Softmax within groups; only the result is kept for the gradient, ``p * (g - sum of p * g over the group)``."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: FunctionCtx, rows: torch.Tensor, group: torch.Tensor, num_groups: int
    ) -> torch.Tensor:
        index = group.reshape(-1, *[1] * (rows.dim() - 1)).expand_as(rows)
        largest = rows.new_zeros(num_groups, *rows.shape[1:])
        largest.scatter_reduce_(0, index, rows, "amax", include_self=False)
        result = (rows - largest.index_select(0, group)).exp_()
        result.div_(group_sums(result, group, num_groups).index_select(0, group))
        ctx.num_groups = num_groups  # type: ignore[attr-defined]
        ctx.save_for_backward(result, group)
        return result

    @staticmethod
    @once_differentiable  # type: ignore[misc, untyped-decorator]
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        result, group = ctx.saved_tensors  # type: ignore[attr-defined]
        weighted = result * grad
        sums = group_sums(weighted, group, ctx.num_groups)  # type: ignore[attr-defined]
        return weighted.addcmul_(result, sums.index_select(0, group), value=-1), None, None


attach(__name__)
