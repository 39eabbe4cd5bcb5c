"""Graph attention layer with features of edges, with DGL's arguments, parameter names, initialisation and numerics."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

import mpigraph.function as fn
from mpigraph.graphs.message_passing import MessagePassing
from mpigraph.nn.attention import AttentionLayer
from mpigraph.nn.common import Features
from mpigraph.nn.functional import edge_softmax

__all__ = ["EdgeGATConv"]


class EdgeGATConv(AttentionLayer):
    """Graph attention: ``sum over in-edges e from u of a_e (W h_u + W_e f_e) + bias`` for each head.

    ``a_e`` is the softmax over the in-edges of v of ``LeakyReLU(<attn_l, W h_u> + <attn_r, W h_v> + <attn_edge, W_e
    f_e>)``. Monninger et al., "SCENE: Reasoning about traffic scenes using heterogeneous graph neural networks", RA-L
    2023.

    Args:
        in_feats: width of the input, or a pair of widths for sources and destinations.
        edge_feats: width of the features of edges.
        out_feats: width of the output of one head.
        num_heads: number of heads.
        feat_drop: dropout rate of the input.
        attn_drop: dropout rate of the attention.
        negative_slope: of the LeakyReLU.
        residual: add the destination's input, through a linear map.
        activation: applied to the output.
        allow_zero_in_degree: accept destinations without in-edges (they get bias and residual only).
        bias: add a learnable bias.
    """

    def __init__(
        self,
        in_feats: int | tuple[int, int],
        edge_feats: int,
        out_feats: int,
        num_heads: int,
        feat_drop: float = 0.0,
        attn_drop: float = 0.0,
        negative_slope: float = 0.2,
        residual: bool = True,
        activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
        allow_zero_in_degree: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__(
            in_feats, out_feats, num_heads, feat_drop, attn_drop, negative_slope, activation, allow_zero_in_degree
        )
        width = self._width
        self._make_maps(isinstance(in_feats, tuple))
        self.fc_edge = nn.Linear(edge_feats, width, bias=False)
        self.attn_l = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.attn_r = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.attn_edge = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.res_fc = nn.Linear(self._in_dst, width, bias=False) if residual else None
        self.register_parameter("bias", nn.Parameter(torch.empty(width)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the weights: Glorot normal with the gain of ReLU; the bias is 0."""
        self._reset(self.attn_l, self.attn_r, self.attn_edge)

    def forward(
        self, graph: MessagePassing, feat: Features, edge_feat: torch.Tensor, get_attention: bool = False
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Apply the layer.

        Args:
            graph: a block, or a graph of one relation.
            feat: [num_src, ..., in_feats], destinations first if ``graph`` is a block; or a pair of tensors for sources
                and destinations.
            edge_feat: [num_edges, ..., edge_feats], in the order of edge ids, with the same dimensions between.
            get_attention: return the attention too.

        Returns:
            [num_dst, ..., num_heads, out_feats]; with ``get_attention`` also [num_edges, ..., num_heads, 1], in the
            order of edge ids.

        Raises:
            MPIGraphError: a destination has no in-edge and ``allow_zero_in_degree`` is off.
            InvalidArgumentError: one tensor is given to a layer of two input widths or for a graph between two types.
            GraphDataError: ``edge_feat`` does not have a row for each edge.
        """
        src, dst = self._sides(graph, feat)
        rows = self._by_head(self._map_of(0), src)
        of_dst = self._by_head(self._map_of(1), dst) if isinstance(feat, tuple) else rows[: graph.num_dst_nodes()]
        of_edges = self._by_head(self.fc_edge, edge_feat)
        with graph.local_scope():
            graph.srcdata.update({"ft": rows, "el": (rows * self.attn_l).sum(-1, keepdim=True)})
            graph.dstdata["er"] = (of_dst * self.attn_r).sum(-1, keepdim=True)
            graph.edata["ft"] = of_edges
            graph.apply_edges(fn.u_add_v("el", "er", "e"))
            scores = graph.edata["e"] + (of_edges * self.attn_edge).sum(-1, keepdim=True)
            attention = self.attn_drop(edge_softmax(graph, F.leaky_relu(scores, self._negative_slope)))
            # the sum over u and that over e by themselves: the first is a sparse product, without a row for each edge
            graph.edata.update({"a": attention, "m": of_edges * attention})
            graph.update_all(fn.u_mul_e("ft", "a", "m"), fn.sum("m", "of_u"))
            graph.update_all(fn.copy_e("m", "m"), fn.sum("m", "of_e"))
            out = torch.as_tensor(graph.dstdata["of_u"] + graph.dstdata["of_e"])
        out = self._finished(out, dst)
        return (out, attention) if get_attention else out
