"""Graph attention layer (GAT), with DGL's arguments, parameter names, initialisation and numerics."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

import mpigraph.function as fn
from mpigraph.graphs.message_passing import MessagePassing
from mpigraph.nn.attention import AttentionLayer
from mpigraph.nn.common import Features, check_edge_weight
from mpigraph.nn.functional import edge_softmax

__all__ = ["GATConv"]


class GATConv(AttentionLayer):
    """Graph attention: ``sum over in-neighbours u of a_uv W h_u + bias`` for each head.

    ``a_uv`` is the softmax over the in-edges of v of ``LeakyReLU(<attn_l, W h_u> + <attn_r, W h_v>)``. Velickovic et
    al., "Graph attention networks", ICLR 2018.

    Args:
        in_feats: width of the input, or a pair of widths for sources and destinations.
        out_feats: width of the output of one head.
        num_heads: number of heads.
        feat_drop: dropout rate of the input.
        attn_drop: dropout rate of the attention.
        negative_slope: of the LeakyReLU.
        residual: add the destination's input, through a linear map unless it is as wide as all heads together.
        activation: applied to the output.
        allow_zero_in_degree: accept destinations without in-edges (they get bias and residual only).
        bias: add a learnable bias.
    """

    def __init__(
        self,
        in_feats: int | tuple[int, int],
        out_feats: int,
        num_heads: int,
        feat_drop: float = 0.0,
        attn_drop: float = 0.0,
        negative_slope: float = 0.2,
        residual: bool = False,
        activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
        allow_zero_in_degree: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__(
            in_feats, out_feats, num_heads, feat_drop, attn_drop, negative_slope, activation, allow_zero_in_degree
        )
        self._make_maps(isinstance(in_feats, tuple))
        self.attn_l = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.attn_r = nn.Parameter(torch.empty(1, num_heads, out_feats))
        width = self._width
        mapped = residual and self._in_dst != width  # then the bias is that of res_fc, as in DGL
        if residual:
            self.res_fc = nn.Linear(self._in_dst, width, bias=bias) if mapped else nn.Identity()
        self.register_parameter("bias", nn.Parameter(torch.empty(width)) if bias and not mapped else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the weights: Glorot normal with the gain of ReLU; the bias is 0."""
        self._reset(self.attn_l, self.attn_r)

    def forward(
        self,
        graph: MessagePassing,
        feat: Features,
        edge_weight: torch.Tensor | None = None,
        get_attention: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Apply the layer.

        Args:
            graph: a block, or a graph of one relation.
            feat: [num_src, ..., in_feats], destinations first if ``graph`` is a block; or a pair of tensors for
                sources and destinations.
            edge_weight: [num_edges] or [num_edges, 1], multiplied with the attention.
            get_attention: return the attention too.

        Returns:
            [num_dst, ..., num_heads, out_feats]; with ``get_attention`` also [num_edges, ..., num_heads, 1], in the
            order of edge ids.

        Raises:
            MPIGraphError: a destination has no in-edge and ``allow_zero_in_degree`` is off.
            InvalidArgumentError: one tensor is given to a layer of two input widths or for a graph between two types,
                or ``edge_weight`` does not have a row for each edge.
        """
        src, dst = self._sides(graph, feat)
        rows = self._by_head(self._map_of(0), src)
        with graph.local_scope():
            # <a, W h_u || W h_v> = <attn_l, W h_u> + <attn_r, W h_v>: one number for each node instead of each edge
            graph.srcdata.update({"ft": rows, "el": (rows * self.attn_l).sum(-1, keepdim=True)})
            if isinstance(feat, tuple):
                rows = self._by_head(self._map_of(1), dst)
            graph.dstdata["er"] = (rows[: graph.num_dst_nodes()] * self.attn_r).sum(-1, keepdim=True)
            graph.apply_edges(fn.u_add_v("el", "er", "e"))
            scores = F.leaky_relu(graph.edata["e"], self._negative_slope)
            attention = self.attn_drop(edge_softmax(graph, scores))
            if edge_weight is not None:
                check_edge_weight(graph, edge_weight)
                attention = attention * edge_weight.reshape(-1, *[1] * (attention.dim() - 1))
            graph.edata["a"] = attention
            graph.update_all(fn.u_mul_e("ft", "a", "m"), fn.sum("m", "ft"))
            out = torch.as_tensor(graph.dstdata["ft"])
        out = self._finished(out, dst)
        return (out, attention) if get_attention else out
