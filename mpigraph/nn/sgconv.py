"""Simplified graph convolution, with DGL's arguments, parameter names, initialisation and numerics."""

from collections.abc import Callable

import torch
from torch import nn

from mpigraph.graphs.message_passing import MessagePassing
from mpigraph.nn.common import check_in_degrees
from mpigraph.nn.hops import EdgeWeightNorm, check_whole_graph, hop, inverse_root

__all__ = ["SGConv"]


class SGConv(nn.Module):
    """Simplified graph convolution: a linear map of ``P^k x``, where ``P = D^-1/2 A D^-1/2``.

    Wu et al., "Simplifying graph convolutional networks", ICML 2019. D are the in-degrees; add self loops to the graph
    first.

    Args:
        in_feats: width of the input.
        out_feats: width of the output.
        k: number of hops.
        cached: keep ``P^k x`` of the first call, for graph and input that never change.
        bias: add a learnable bias.
        norm: applied to ``P^k x``.
        allow_zero_in_degree: accept nodes without in-edges (they get the bias only).
    """

    def __init__(
        self,
        in_feats: int,
        out_feats: int,
        k: int = 1,
        cached: bool = False,
        bias: bool = True,
        norm: Callable[[torch.Tensor], torch.Tensor] | None = None,
        allow_zero_in_degree: bool = False,
    ) -> None:
        super().__init__()
        self._k = k
        self._cached = cached
        self._cached_h: torch.Tensor | None = None
        self._allow_zero_in_degree = allow_zero_in_degree
        self.norm = norm
        self.fc = nn.Linear(in_feats, out_feats, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the weight, Glorot uniform; the bias is 0."""
        nn.init.xavier_uniform_(self.fc.weight)
        if self.fc.bias is not None:
            nn.init.zeros_(self.fc.bias)

    def set_allow_zero_in_degree(self, set_value: bool) -> None:
        """Accept nodes without in-edges, or not."""
        self._allow_zero_in_degree = set_value

    def forward(
        self, graph: MessagePassing, feat: torch.Tensor, edge_weight: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Apply the layer.

        Args:
            graph: a graph of one relation within one type, no block.
            feat: [num_nodes, in_feats].
            edge_weight: float[num_edges], above 0: entries of A, normalised by their sums.

        Returns:
            [num_nodes, out_feats].

        Raises:
            MPIGraphError: a node has no in-edge and ``allow_zero_in_degree`` is off.
            InvalidArgumentError: another graph, or not one positive weight for each edge.
        """
        check_whole_graph(graph)
        if not self._allow_zero_in_degree:
            check_in_degrees(graph)
        smooth = self._cached_h
        if smooth is None:
            smooth = self._smoothed(graph, feat, edge_weight)
            if self._cached:
                self._cached_h = smooth
        return torch.as_tensor(self.fc(smooth))

    def _smoothed(self, graph: MessagePassing, x: torch.Tensor, edge_weight: torch.Tensor | None) -> torch.Tensor:
        """Return ``P^k x``, normalised."""
        weight = None if edge_weight is None else EdgeWeightNorm("both")(graph, edge_weight)
        norm = inverse_root(graph.in_degrees(), x) if weight is None else None
        for _ in range(self._k):
            x = hop(graph, x, weight) if norm is None else norm * hop(graph, norm * x, None)
        return x if self.norm is None else self.norm(x)
