"""What the layers of graph attention share: heads, the maps of both sides, the residual, the initialisation."""

from collections.abc import Callable

import torch
from torch import nn

from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.message_passing import MessagePassing
from mpigraph.nn.common import Features, check_in_degrees, source_and_destination
from mpigraph.nn.drop import Dropout

__all__ = ["AttentionLayer"]


class AttentionLayer(nn.Module):
    """A layer with several heads, of ``out_feats`` each; the arguments are described where a layer is.

    A subclass makes ``res_fc``, or leaves it None, and registers ``bias``, or None.
    """

    bias: nn.Parameter | None
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
        self.res_fc = None
        self._needs_pair = False

    def set_allow_zero_in_degree(self, set_value: bool) -> None:
        """Accept destinations without in-edges, or not."""
        self._allow_zero_in_degree = set_value

    def _make_maps(self, of_pairs: bool) -> None:
        """Make the linear map of both sides, or one of each, and then features must come in pairs."""
        self._needs_pair = of_pairs
        if of_pairs:
            self.fc_src = nn.Linear(self._in_src, self._width, bias=False)
            self.fc_dst = nn.Linear(self._in_dst, self._width, bias=False)
        else:
            self.fc = nn.Linear(self._in_src, self._width, bias=False)

    def _map_of(self, side: int) -> nn.Module:
        """Return the linear map of the sources (0) or of the destinations (1)."""
        return (self.fc_src, self.fc_dst)[side] if self._needs_pair else self.fc

    def _reset(self, *attention: torch.Tensor) -> None:
        """Reinitialise linear maps and attention: Glorot normal with the gain of ReLU; biases are 0."""
        gain = nn.init.calculate_gain("relu")
        for module in self.children():  # a map that both sides share once
            if isinstance(module, nn.Linear):
                nn.init.xavier_normal_(module.weight, gain=gain)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for weight in attention:
            nn.init.xavier_normal_(weight, gain=gain)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def _sides(self, graph: MessagePassing, feat: Features) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the features of sources and destinations after dropout, checked."""
        if self._needs_pair and not isinstance(feat, tuple):
            raise InvalidArgumentError("a layer of two input widths needs a pair of features")
        if not self._allow_zero_in_degree:
            check_in_degrees(graph)
        return source_and_destination(graph, feat, self.feat_drop)

    def _by_head(self, linear: nn.Module, rows: torch.Tensor) -> torch.Tensor:
        """Map [n, ..., in] to [n, ..., num_heads, out]."""
        return torch.as_tensor(linear(rows)).reshape(*rows.shape[:-1], self._num_heads, self._out_feats)

    def _finished(self, out: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
        """Add residual and bias, and activate."""
        if self.res_fc is not None:
            out = out + self._by_head(self.res_fc, dst)
        if self.bias is not None:
            out = out + self.bias.reshape(self._num_heads, self._out_feats)
        return out if self.activation is None else self.activation(out)
