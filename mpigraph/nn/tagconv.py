"""Topology adaptive graph convolution, with DGL's arguments, parameter names, initialisation and numerics."""

from collections.abc import Callable

import torch
from torch import nn

from mpigraph.graphs.message_passing import MessagePassing
from mpigraph.nn.hops import EdgeWeightNorm, check_whole_graph, hop, inverse_root

__all__ = ["TAGConv"]


class TAGConv(nn.Module):
    """Topology adaptive graph convolution: a linear map of ``[x, Px, ..., P^k x]``, where ``P = D^-1/2 A D^-1/2``.

    Du et al., "Topology adaptive graph convolutional networks", 2017. D are the in-degrees.

    Args:
        in_feats: width of the input.
        out_feats: width of the output.
        k: number of hops.
        bias: add a learnable bias.
        activation: applied to the output.
    """

    def __init__(
        self,
        in_feats: int,
        out_feats: int,
        k: int = 2,
        bias: bool = True,
        activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        self._k = k
        self._activation = activation
        self.lin = nn.Linear(in_feats * (k + 1), out_feats, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the weight: Glorot normal with the gain of ReLU."""
        nn.init.xavier_normal_(self.lin.weight, gain=nn.init.calculate_gain("relu"))

    def forward(
        self, graph: MessagePassing, feat: torch.Tensor, edge_weight: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Apply the layer.

        Args:
            graph: a graph of one relation within one type, no block.
            feat: [num_nodes, ..., in_feats].
            edge_weight: float[num_edges], above 0: entries of A, normalised by their sums.

        Returns:
            [num_nodes, ..., out_feats].

        Raises:
            InvalidArgumentError: another graph, or not one positive weight for each edge.
        """
        check_whole_graph(graph)
        weight = None if edge_weight is None else EdgeWeightNorm("both")(graph, edge_weight)
        norm = inverse_root(graph.in_degrees(), feat) if weight is None else None
        found = [feat]
        for _ in range(self._k):
            x = found[-1]
            found.append(hop(graph, x, weight) if norm is None else norm * hop(graph, norm * x, None))
        out: torch.Tensor = self.lin(torch.cat(found, -1))
        return out if self._activation is None else self._activation(out)
