"""What layers of several hops need: ``D^-1/2 A D^-1/2``, with degrees or with the weights of edges."""

import torch
from torch import nn

import mpigraph.function as fn
from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.message_passing import MessagePassing
from mpigraph.nn.common import check_edge_weight, weighted_copy

__all__ = ["EdgeWeightNorm", "check_whole_graph", "hop", "inverse_root"]

_NORMS = ("none", "both", "right")


class EdgeWeightNorm(nn.Module):
    """Normalises the weights of edges, as :class:`.GraphConv` does by degrees.

    Args:
        norm: "both": divide by the square roots of the sums of weights out of the source and into the destination;
            "right": by the sum of weights into the destination; "none": leave them.
        eps: added to the sums.

    Raises:
        InvalidArgumentError: another norm.
    """

    def __init__(self, norm: str = "both", eps: float = 0.0) -> None:
        super().__init__()
        if norm not in _NORMS:
            raise InvalidArgumentError(f"norm must be one of {_NORMS} (got {norm!r})")
        self._norm = norm
        self._eps = eps

    def forward(self, graph: MessagePassing, edge_weight: torch.Tensor) -> torch.Tensor:
        """Normalise weights.

        Args:
            graph: a block, or a graph of one relation.
            edge_weight: float[num_edges], in the order of edge ids.

        Returns:
            float[num_edges].

        Raises:
            InvalidArgumentError: not one number for each edge, or with "both" one that is not above 0.
        """
        check_edge_weight(graph, edge_weight)
        if edge_weight.dim() > 1:
            raise InvalidArgumentError(f"edge_weight must be one number for each edge (got {tuple(edge_weight.shape)})")
        if self._norm == "none":
            return edge_weight
        src, dst = graph.all_edges()
        into = edge_weight.new_zeros(graph.num_dst_nodes()).index_add(0, dst, edge_weight) + self._eps
        if self._norm == "right":
            return edge_weight / into[dst]
        if bool((edge_weight <= 0).any()):
            raise InvalidArgumentError("edge_weight must be above 0: norm='both' divides by square roots of its sums")
        out = edge_weight.new_zeros(graph.num_src_nodes()).index_add(0, src, edge_weight) + self._eps
        return edge_weight * out[src] ** -0.5 * into[dst] ** -0.5


def check_whole_graph(graph: MessagePassing) -> None:
    """Raise InvalidArgumentError unless the output of one hop can be the input of the next one."""
    if graph.is_block or graph.srctypes != graph.dsttypes:
        raise InvalidArgumentError(
            "a layer of several hops needs a graph whose sources are its destinations, not a block or a graph between "
            "two types: use it on a whole graph or on a subgraph of it"
        )


def inverse_root(degrees: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return degrees to the power of -1/2, at least 1 of them, in the shape of rows of ``like``."""
    return (degrees.to(like).clamp(min=1) ** -0.5).reshape(-1, *[1] * (like.dim() - 1))


def hop(graph: MessagePassing, x: torch.Tensor, edge_weight: torch.Tensor | None) -> torch.Tensor:
    """Return the sums over in-neighbours of rows of ``x``, times weights if there are any; the shape of ``x``."""
    with graph.local_scope():
        graph.srcdata["h"] = x
        graph.update_all(weighted_copy(graph, edge_weight), fn.sum("m", "h"))
        return torch.as_tensor(graph.dstdata["h"])
