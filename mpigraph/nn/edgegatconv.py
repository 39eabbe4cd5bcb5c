"""Graph attention layer with features of edges, with DGL's arguments, parameter names, initialisation and numerics."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

import mpigraph.function as fn
from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.message_passing import MessagePassing
from mpigraph.nn.common import Features, check_in_degrees, source_and_destination
from mpigraph.nn.drop import Dropout
from mpigraph.nn.functional import edge_softmax

__all__ = ["EdgeGATConv"]


class EdgeGATConv(nn.Module):
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

    bias: nn.Parameter | None
    res_fc: nn.Module | None

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
        super().__init__()
        in_src, in_dst = in_feats if isinstance(in_feats, tuple) else (in_feats, in_feats)
        width = out_feats * num_heads
        self._num_heads = num_heads
        self._out_feats = out_feats
        self._allow_zero_in_degree = allow_zero_in_degree
        self._negative_slope = negative_slope
        self.activation = activation
        if isinstance(in_feats, tuple):
            self.fc_src = nn.Linear(in_src, width, bias=False)
            self.fc_dst = nn.Linear(in_dst, width, bias=False)
        else:
            self.fc = nn.Linear(in_src, width, bias=False)
        self.fc_edge = nn.Linear(edge_feats, width, bias=False)
        self.attn_l = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.attn_r = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.attn_edge = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.feat_drop = Dropout(feat_drop)
        self.attn_drop = Dropout(attn_drop)
        self.res_fc = nn.Linear(in_dst, width, bias=False) if residual else None
        self.register_parameter("bias", nn.Parameter(torch.empty(width)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the weights: Glorot normal with the gain of ReLU; the bias is 0."""
        gain = nn.init.calculate_gain("relu")
        linear = (module.weight for module in self.children() if isinstance(module, nn.Linear))
        for weight in (*linear, self.attn_l, self.attn_r, self.attn_edge):
            nn.init.xavier_normal_(weight, gain=gain)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def set_allow_zero_in_degree(self, set_value: bool) -> None:
        """Accept destinations without in-edges, or not."""
        self._allow_zero_in_degree = set_value

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
        if not hasattr(self, "fc") and not isinstance(feat, tuple):
            raise InvalidArgumentError("a layer of two input widths needs a pair of features")
        if not self._allow_zero_in_degree:
            check_in_degrees(graph)
        src, dst = source_and_destination(graph, feat, self.feat_drop)
        rows = self._by_head(self._linear(0), src)
        of_dst = self._by_head(self._linear(1), dst) if isinstance(feat, tuple) else rows[: graph.num_dst_nodes()]
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
        if self.res_fc is not None:
            out = out + self._by_head(self.res_fc, dst)
        if self.bias is not None:
            out = out + self.bias.reshape(self._num_heads, self._out_feats)
        if self.activation is not None:
            out = self.activation(out)
        return (out, attention) if get_attention else out

    def _linear(self, side: int) -> nn.Module:
        """Return the linear map of the sources (0) or of the destinations (1)."""
        return self.fc if hasattr(self, "fc") else (self.fc_src, self.fc_dst)[side]

    def _by_head(self, linear: nn.Module, rows: torch.Tensor) -> torch.Tensor:
        """Map [n, ..., in] to [n, ..., num_heads, out]."""
        return torch.as_tensor(linear(rows)).reshape(*rows.shape[:-1], self._num_heads, self._out_feats)
