"""Graph isomorphism layers, without and with features of edges, with DGL's arguments and numerics."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

import mpigraph.function as fn
from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.message_passing import MessagePassing
from mpigraph.nn.common import Features, source_and_destination, weighted_copy

_Apply = Callable[[torch.Tensor], torch.Tensor]
_AGGREGATORS = {"sum": fn.sum, "max": fn.max, "mean": fn.mean}


class GINConv(nn.Module):
    """Graph isomorphism network: ``f((1 + eps) h_v + aggregate of h_u over in-neighbours u)``.

    Xu et al., "How powerful are graph neural networks?", ICLR 2019. The aggregate of no neighbour is 0.

    Args:
        apply_func: ``f``, a module or function; None leaves the sum as it is.
        aggregator_type: "sum", "max" or "mean".
        init_eps: the first value of ``eps``.
        learn_eps: make ``eps`` a parameter.
        activation: applied to the output.

    Raises:
        InvalidArgumentError: another aggregator.
    """

    eps: torch.Tensor

    def __init__(
        self,
        apply_func: _Apply | None = None,
        aggregator_type: str = "sum",
        init_eps: float = 0,
        learn_eps: bool = False,
        activation: _Apply | None = None,
    ) -> None:
        super().__init__()
        if aggregator_type not in _AGGREGATORS:
            raise InvalidArgumentError(f"aggregator_type must be sum, max or mean (got {aggregator_type!r})")
        self.apply_func = apply_func
        self.activation = activation
        self._reduce = _AGGREGATORS[aggregator_type]
        _set_eps(self, init_eps, learn_eps)

    def forward(self, graph: MessagePassing, feat: Features, edge_weight: torch.Tensor | None = None) -> torch.Tensor:
        """Apply the layer; arguments, result and errors are those of :meth:`.SAGEConv.forward`."""
        src, dst = source_and_destination(graph, feat)
        with graph.local_scope():
            graph.srcdata["h"] = src
            graph.update_all(weighted_copy(graph, edge_weight), self._reduce("m", "h"))
            out = (1 + self.eps) * dst + graph.dstdata["h"]
        if self.apply_func is not None:
            out = self.apply_func(out)
        return out if self.activation is None else self.activation(out)


class GINEConv(nn.Module):
    """Graph isomorphism network with features of edges: ``f((1 + eps) h_v + sum over in-edges of ReLU(h_u + f_e))``.

    Hu et al., "Strategies for pre-training graph neural networks", ICLR 2020.

    Args:
        apply_func: ``f``, a module or function; None leaves the sum as it is.
        init_eps: the first value of ``eps``.
        learn_eps: make ``eps`` a parameter.
    """

    eps: torch.Tensor

    def __init__(self, apply_func: _Apply | None = None, init_eps: float = 0, learn_eps: bool = False) -> None:
        super().__init__()
        self.apply_func = apply_func
        _set_eps(self, init_eps, learn_eps)

    def forward(self, graph: MessagePassing, node_feat: Features, edge_feat: torch.Tensor) -> torch.Tensor:
        """Apply the layer; ``graph``, features of nodes, result and errors are those of :meth:`.SAGEConv.forward`.

        ``edge_feat`` is [num_edges, in_feats], in the order of edge ids.

        Raises:
            GraphDataError: ``edge_feat`` does not have a row for each edge.
        """
        src, dst = source_and_destination(graph, node_feat)
        with graph.local_scope():
            graph.srcdata["h"] = src
            graph.edata["h"] = edge_feat
            graph.apply_edges(fn.u_add_e("h", "h", "m"))
            graph.edata["m"] = F.relu(graph.edata["m"])
            graph.update_all(fn.copy_e("m", "m"), fn.sum("m", "h"))
            out = (1 + self.eps) * dst + graph.dstdata["h"]
        return out if self.apply_func is None else self.apply_func(out)


def _set_eps(layer: nn.Module, first: float, learn: bool) -> None:
    eps = torch.tensor([first], dtype=torch.float32)
    if learn:
        layer.register_parameter("eps", nn.Parameter(eps))
    else:
        layer.register_buffer("eps", eps)
