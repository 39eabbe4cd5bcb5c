"""Personalized propagation (APPNP), with DGL's arguments and numerics."""

import torch
from torch import nn

from mpigraph.graphs.message_passing import MessagePassing
from mpigraph.nn.drop import Dropout
from mpigraph.nn.hops import EdgeWeightNorm, check_whole_graph, hop, inverse_root

__all__ = ["APPNPConv"]


class APPNPConv(nn.Module):
    """Personalized propagation: k times ``h = (1 - alpha) D^-1/2 A D^-1/2 h + alpha x``, from ``h = x`` on.

    Gasteiger, Bojchevski, Guennemann: "Predict then propagate: graph neural networks meet personalized PageRank", ICLR
    2019. D are the out-degrees of sources and the in-degrees of destinations. No parameters.

    Args:
        k: number of hops.
        alpha: probability of going back to ``x``.
        edge_drop: dropout rate of the edges, drawn anew for each hop.
    """

    def __init__(self, k: int, alpha: float, edge_drop: float = 0.0) -> None:
        super().__init__()
        self._k = k
        self._alpha = alpha
        self.edge_drop = Dropout(edge_drop)

    def forward(
        self, graph: MessagePassing, feat: torch.Tensor, edge_weight: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Apply the layer.

        Args:
            graph: a graph of one relation within one type, no block.
            feat: [num_nodes, ...].
            edge_weight: float[num_edges], above 0: entries of A, normalised by their sums.

        Returns:
            [num_nodes, ...].

        Raises:
            InvalidArgumentError: another graph, or not one positive weight for each edge.
        """
        check_whole_graph(graph)
        weight: torch.Tensor | None = None
        before: torch.Tensor | float = 1.0
        after: torch.Tensor | float = 1.0
        if edge_weight is not None:
            weight = EdgeWeightNorm("both")(graph, edge_weight)
        else:
            before, after = (inverse_root(degrees, feat) for degrees in (graph.out_degrees(), graph.in_degrees()))
        dropping = self.training and self.edge_drop.p > 0
        if dropping and weight is None:
            weight = torch.ones(graph.num_edges(), dtype=feat.dtype, device=feat.device)
        x = feat
        for _ in range(self._k):
            used = self.edge_drop(weight) if dropping else weight
            x = (1 - self._alpha) * (after * hop(graph, before * x, used)) + self._alpha * feat
        return x
