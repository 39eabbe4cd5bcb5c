"""Graph attention layer of GATv2, with DGL's arguments, parameter names, initialisation and numerics."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

import mpigraph.function as fn
from mpigraph.graphs.message_passing import MessagePassing
from mpigraph.nn.attention import AttentionLayer
from mpigraph.nn.common import Features
from mpigraph.nn.functional import edge_softmax

__all__ = ["GATv2Conv"]


class GATv2Conv(AttentionLayer):
    """Graph attention: ``sum over in-neighbours u of a_uv W_src h_u`` for each head.

    ``a_uv`` is the softmax over the in-edges of v of ``<attn, LeakyReLU(W_src h_u + W_dst h_v)>``, so which neighbours
    count most can differ from node to node. Brody, Alon, Yahav: "How attentive are graph attention networks?", ICLR
    2022.

    Args:
        in_feats: width of the input, or a pair of widths for sources and destinations.
        out_feats: width of the output of one head.
        num_heads: number of heads.
        feat_drop: dropout rate of the input.
        attn_drop: dropout rate of the attention.
        negative_slope: of the LeakyReLU.
        residual: add the destination's input, through a linear map unless it is as wide as all heads together.
        activation: applied to the output.
        allow_zero_in_degree: accept destinations without in-edges (they get the residual only).
        bias: add a learnable bias in each linear map.
        share_weights: use one linear map for both sides; with one width of the input only.
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
        share_weights: bool = False,
    ) -> None:
        super().__init__(
            in_feats, out_feats, num_heads, feat_drop, attn_drop, negative_slope, activation, allow_zero_in_degree
        )
        width = self._width
        self.fc_src = nn.Linear(self._in_src, width, bias=bias)
        shared = share_weights and not isinstance(in_feats, tuple)
        self.fc_dst = self.fc_src if shared else nn.Linear(self._in_dst, width, bias=bias)
        self.attn = nn.Parameter(torch.empty(1, num_heads, out_feats))
        if residual:
            self.res_fc = nn.Linear(self._in_dst, width, bias=bias) if self._in_dst != width else nn.Identity()
        self.register_parameter("bias", None)  # linear maps have theirs
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the weights: Glorot normal with the gain of ReLU; biases are 0."""
        self._reset(self.attn)

    def forward(
        self, graph: MessagePassing, feat: Features, get_attention: bool = False
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Apply the layer.

        Args:
            graph: a block, or a graph of one relation.
            feat: [num_src, ..., in_feats], destinations first if ``graph`` is a block; or a pair of tensors for sources
                and destinations.
            get_attention: return the attention too.

        Returns:
            [num_dst, ..., num_heads, out_feats]; with ``get_attention`` also [num_edges, ..., num_heads, 1], in the
            order of edge ids.

        Raises:
            MPIGraphError: a destination has no in-edge and ``allow_zero_in_degree`` is off.
            InvalidArgumentError: one tensor is given for a graph between two types.
        """
        src, dst = self._sides(graph, feat)
        with graph.local_scope():
            graph.srcdata["el"] = self._by_head(self.fc_src, src)
            graph.dstdata["er"] = self._by_head(self.fc_dst, dst)
            graph.apply_edges(fn.u_add_v("el", "er", "e"))
            scores = (F.leaky_relu(graph.edata["e"], self._negative_slope) * self.attn).sum(-1, keepdim=True)
            attention = self.attn_drop(edge_softmax(graph, scores))
            graph.edata["a"] = attention
            graph.update_all(fn.u_mul_e("el", "a", "m"), fn.sum("m", "ft"))
            out = torch.as_tensor(graph.dstdata["ft"])
        out = self._finished(out, dst)
        return (out, attention) if get_attention else out
