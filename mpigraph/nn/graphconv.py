"""Graph convolution (GCN) layer, with DGL's arguments, parameter names, initialisation and numerics."""

from collections.abc import Callable

import torch
from torch import nn

import mpigraph.function as fn
from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.message_passing import MessagePassing
from mpigraph.graphs.messages import rounded, widened
from mpigraph.nn.common import ChecksInDegrees, Features, project_first, source_degrees, weighted_copy

_NORMS = ("none", "both", "right", "left")


class GraphConv(ChecksInDegrees):
    """Graph convolution: ``sum over in-neighbours u of h_u W / c_uv + bias``.

    Kipf, Welling: "Semi-supervised classification with graph convolutional networks", ICLR 2017.

    ``c_uv`` depends on ``norm``. "both": the square root of the out-degree of u times the in-degree of v; "right": the
    in-degree of v; "left": the out-degree of u; "none": 1. Degrees are those of the block; in
    :func:`mpigraph.inference.layerwise` out-degrees are those of the graph. Where the output is narrower
    than the input, W is applied before the sum if that is less work.

    Args:
        in_feats: width of the input.
        out_feats: width of the output.
        norm: "both", "right", "left" or "none".
        weight: own a weight matrix; if not, ``forward`` may be given one.
        bias: add a learnable bias.
        activation: applied to the output.
        allow_zero_in_degree: accept destinations without in-edges (they get the bias only).

    Raises:
        InvalidArgumentError: another norm.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        in_feats: int,
        out_feats: int,
        norm: str = "both",
        weight: bool = True,
        bias: bool = True,
        activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
        allow_zero_in_degree: bool = False,
    ) -> None:
        super().__init__()
        if norm not in _NORMS:
            raise InvalidArgumentError(f"norm must be one of {_NORMS} (got {norm!r})")
        self._norm = norm
        self._allow_zero_in_degree = allow_zero_in_degree
        self._activation = activation
        self.register_parameter("weight", nn.Parameter(torch.empty(in_feats, out_feats)) if weight else None)
        self.register_parameter("bias", nn.Parameter(torch.empty(out_feats)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the weight, Glorot uniform; set the bias to 0."""
        if self.weight is not None:
            nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self,
        graph: MessagePassing,
        feat: Features,
        weight: torch.Tensor | None = None,
        edge_weight: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Apply the layer.

        Args:
            graph: a block, or a graph of one relation.
            feat: [num_src, ..., in_feats], or a pair of tensors, whose second is ignored.
            weight: [in_feats, out_feats], for a layer without its own.
            edge_weight: [num_edges] or [num_edges, 1], multiplied with the messages.

        Returns:
            [num_dst, ..., out_feats].

        Raises:
            MPIGraphError: a destination has no in-edge and ``allow_zero_in_degree`` is off.
            InvalidArgumentError: a weight is given to a layer that has its own.
        """
        if weight is not None and self.weight is not None:
            raise InvalidArgumentError("a weight was given, but the layer has its own (make it with weight=False)")
        weight = self.weight if weight is None else weight
        in_degrees = graph.in_degrees()  # numbers of edges: their weights do not count in c_uv
        self._check_in_degrees(graph)
        src = feat[0] if isinstance(feat, tuple) else feat
        before = weight is not None and project_first(graph, *weight.shape)
        if weight is not None and before:
            src = src @ weight
        rows = widened(src)  # until the sums are divided: 16 bits hold neither many degrees nor the sums
        with graph.local_scope():
            if self._norm in ("left", "both"):
                rows = rows * self._factor(source_degrees(graph), rows)
            graph.srcdata["h"] = rows
            graph.update_all(weighted_copy(graph, edge_weight), fn.sum("m", "h"))
            out = torch.as_tensor(graph.dstdata["h"])
        if self._norm in ("right", "both"):
            out = out * self._factor(in_degrees, out)
        out = rounded(out, src.dtype)
        if weight is not None and not before:
            out = out @ weight
        if self.bias is not None:
            out = out + self.bias
        return out if self._activation is None else self._activation(out)

    def _factor(self, degrees: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Return degrees to the power of -1/2 ("both") or -1, in the shape and float dtype of rows of ``like``."""
        # at least 1: a node without edges has nothing to scale, and 0 would give infinity
        dtype = like.dtype if like.is_floating_point() else torch.float32
        power = degrees.to(dtype).clamp(min=1) ** (-0.5 if self._norm == "both" else -1.0)
        return power.reshape(-1, *[1] * (like.dim() - 1))
