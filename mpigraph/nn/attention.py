"""Layers of graph attention, with DGL's arguments, parameter names, initialisation and numerics."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

import mpigraph.function as fn
from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.message_passing import MessagePassing
from mpigraph.nn.drop import Dropout
from mpigraph.nn.functional import edge_softmax
from mpigraph.nn.layers import ChecksInDegrees, Features, check_edge_weight, source_and_destination

_Result = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


class _AttentionLayer(ChecksInDegrees):
    """A layer of heads; a subclass makes its linear maps, then calls ``_complete``, and says what scores an edge."""

    attn_l: nn.Parameter
    attn_r: nn.Parameter
    bias: nn.Parameter | None
    fc: nn.Linear
    fc_src: nn.Linear
    fc_dst: nn.Linear
    res_fc: nn.Module | None

    def __init__(
        self,
        in_feats: int | tuple[int, int],
        out_feats: int,
        num_heads: int,
        feat_drop: float,
        attn_drop: float,
        negative_slope: float,
        activation: Callable[[torch.Tensor], torch.Tensor] | None,
        allow_zero_in_degree: bool,
    ) -> None:
        super().__init__()
        self._in_src, self._in_dst = in_feats if isinstance(in_feats, tuple) else (in_feats, in_feats)
        self._width = out_feats * num_heads
        self._num_heads = num_heads
        self._out_feats = out_feats
        self._allow_zero_in_degree = allow_zero_in_degree
        self._negative_slope = negative_slope
        self.activation = activation
        self.feat_drop = Dropout(feat_drop)
        self.attn_drop = Dropout(attn_drop)
        self._needs_pair = False

    def _residual(self, bias: bool) -> nn.Module:
        return nn.Identity() if self._in_dst == self._width else nn.Linear(self._in_dst, self._width, bias=bias)

    def _complete(self, residual: nn.Module | None, bias: bool, *attention: str) -> None:
        """Make attention vectors of these names and a bias, and initialise all."""
        self._attention = attention
        for name in attention:
            self.register_parameter(name, nn.Parameter(torch.empty(1, self._num_heads, self._out_feats)))
        self.res_fc = residual
        self.register_parameter("bias", nn.Parameter(torch.empty(self._width)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise linear maps and attention: Glorot normal with the gain of ReLU; biases are 0."""
        gain = nn.init.calculate_gain("relu")
        for module in self.children():  # a map that both sides share once
            if isinstance(module, nn.Linear):
                nn.init.xavier_normal_(module.weight, gain=gain)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for name in self._attention:
            nn.init.xavier_normal_(self.get_parameter(name), gain=gain)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def _by_head(self, linear: nn.Module, rows: torch.Tensor) -> torch.Tensor:
        """Map [n, ..., in] to [n, ..., num_heads, out]."""
        return torch.as_tensor(linear(rows)).reshape(*rows.shape[:-1], self._num_heads, self._out_feats)

    def _maps(self) -> tuple[nn.Module, nn.Module]:
        """Return the linear maps of the sources and of the destinations, one of them or two."""
        return (self.fc_src, self.fc_dst) if self._needs_pair else (self.fc, self.fc)

    def _terms(self, of_src: torch.Tensor, of_dst: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the two ends of an edge add to its score, from mapped rows by head."""
        # <a, W h_u || W h_v> = <attn_l, W h_u> + <attn_r, W h_v>: one number for each node instead of each edge
        return _dots(of_src, self.attn_l), _dots(of_dst, self.attn_r)

    def _scores(self, terms: torch.Tensor) -> torch.Tensor:
        """Return scores, [num_edges, ..., num_heads, 1], from the sums of the ends' terms."""
        return F.leaky_relu(terms, self._negative_slope)

    def _attended(
        self,
        graph: MessagePassing,
        feat: Features,
        get_attention: bool,
        edge_weight: torch.Tensor | None = None,
    ) -> _Result:
        """Apply the layer; see :meth:`GATConv.forward`."""
        if self._needs_pair and not isinstance(feat, tuple):
            raise InvalidArgumentError("a layer of two input widths needs a pair of features")
        self._check_in_degrees(graph)
        src, dst = source_and_destination(graph, feat, self.feat_drop)
        of_src, of_dst = self._maps()
        rows = self._by_head(of_src, src)
        is_known = of_src is of_dst and not isinstance(feat, tuple)  # destinations are the first sources
        dst_rows = rows[: graph.num_dst_nodes()] if is_known else self._by_head(of_dst, dst)
        with graph.local_scope():
            graph.srcdata["ft"] = rows
            graph.srcdata["el"], graph.dstdata["er"] = self._terms(rows, dst_rows)
            graph.apply_edges(fn.u_add_v("el", "er", "e"))
            attention = self.attn_drop(edge_softmax(graph, self._scores(graph.edata["e"])))
            if edge_weight is not None:
                check_edge_weight(graph, edge_weight)
                attention = attention * edge_weight.reshape(-1, *[1] * (attention.dim() - 1))
            graph.edata["a"] = attention
            graph.update_all(fn.u_mul_e("ft", "a", "m"), fn.sum("m", "ft"))
            out = torch.as_tensor(graph.dstdata["ft"])
        if self.res_fc is not None:
            out = out + self._by_head(self.res_fc, dst)
        if self.bias is not None:
            out = out + self.bias.reshape(self._num_heads, self._out_feats)
        out = out if self.activation is None else self.activation(out)
        return (out, attention) if get_attention else out


def _dots(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (rows * weight).sum(-1, keepdim=True)


class GATConv(_AttentionLayer):
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

    Example:
        >>> layer = mpigraph.nn.GATConv(16, 4, num_heads=2, allow_zero_in_degree=True)
        >>> h = layer(blocks[0], g.ndata["feat"][input_nodes]).flatten(1)
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
        self._needs_pair = isinstance(in_feats, tuple)
        if self._needs_pair:
            self.fc_src = nn.Linear(self._in_src, self._width, bias=False)
            self.fc_dst = nn.Linear(self._in_dst, self._width, bias=False)
        else:
            self.fc = nn.Linear(self._in_src, self._width, bias=False)
        more = self._residual(bias) if residual else None
        # a linear map has the bias, as in DGL
        self._complete(more, bias and not isinstance(more, nn.Linear), "attn_l", "attn_r")

    def forward(
        self,
        graph: MessagePassing,
        feat: Features,
        edge_weight: torch.Tensor | None = None,
        get_attention: bool = False,
    ) -> _Result:
        """Apply the layer.

        Args:
            graph: a block, or a graph of one relation.
            feat: [num_src, ..., in_feats], destinations first in a block; or a pair for both sides.
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
        return self._attended(graph, feat, get_attention, edge_weight)


class GATv2Conv(_AttentionLayer):
    """Graph attention: ``sum over in-neighbours u of a_uv W_src h_u`` for each head.

    ``a_uv`` is the softmax over the in-edges of v of ``<attn, LeakyReLU(W_src h_u + W_dst h_v)>``, so which neighbours
    count most can differ from node to node. Brody, Alon, Yahav: "How attentive are graph attention networks?", ICLR
    2022.

    Args:
        in_feats, out_feats, num_heads, feat_drop, attn_drop, negative_slope, residual, activation,
            allow_zero_in_degree: as in :class:`GATConv`.
        bias: add a learnable bias in each linear map.
        share_weights: use one linear map for both sides; with one width of the input only.
    """

    attn: nn.Parameter

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
        self._complete(self._residual(bias) if residual else None, False, "attn")  # linear maps have their biases

    def _maps(self) -> tuple[nn.Module, nn.Module]:
        return self.fc_src, self.fc_dst

    def _terms(self, of_src: torch.Tensor, of_dst: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return of_src, of_dst

    def _scores(self, terms: torch.Tensor) -> torch.Tensor:
        return _dots(F.leaky_relu(terms, self._negative_slope), self.attn)

    def forward(self, graph: MessagePassing, feat: Features, get_attention: bool = False) -> _Result:
        """Apply the layer; arguments, results and errors are those of :meth:`GATConv.forward`."""
        return self._attended(graph, feat, get_attention)
