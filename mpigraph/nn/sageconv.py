"""GraphSAGE layer, with DGL's arguments, parameter names, initialisation and numerics."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

import mpigraph.function as fn
from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.aggregate import mean_and_own
from mpigraph.graphs.message_passing import MessagePassing
from mpigraph.graphs.messages import Message, rounded, widened
from mpigraph.nn.common import Features, project_first, source_and_destination, weighted_copy
from mpigraph.nn.drop import Dropout

_AGGREGATORS = ("mean", "gcn", "pool", "lstm")


class SAGEConv(nn.Module):
    """GraphSAGE: combine a node's own features with an aggregate of its in-neighbours'.

    Hamilton, Ying, Leskovec: "Inductive representation learning on large graphs", NeurIPS 2017.

    * mean: ``fc_self(h) + fc_neigh(mean of h over in-neighbours)``
    * pool: ``fc_self(h) + fc_neigh(max of relu(fc_pool(h)) over in-neighbours)``
    * gcn: ``fc_neigh((h + sum of h over in-neighbours) / (in-degree + 1)) + bias``
    * lstm: ``fc_self(h) + fc_neigh(last state of an LSTM over the in-neighbours' h, in the order of edge ids)``; the
      nodes of one in-degree at a time, so slower than the others

    The aggregate of no neighbour is 0. Where the output is narrower than the input, ``fc_neigh`` is applied before
    the aggregation if that is less work: on a graph, but seldom on a block, which has many sources (and never for pool
    and lstm, which are not linear).

    Args:
        in_feats: width of the input, or a pair of widths for sources and destinations.
        out_feats: width of the output.
        aggregator_type: "mean", "gcn", "pool" or "lstm".
        feat_drop: dropout rate of the input.
        bias: add a learnable bias.
        norm: applied last to the output.
        activation: applied to the output, before ``norm``.

    Raises:
        InvalidArgumentError: another aggregator, or "gcn" with two widths.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_feats: int | tuple[int, int],
        out_feats: int,
        aggregator_type: str,
        feat_drop: float = 0.0,
        bias: bool = True,
        norm: Callable[[torch.Tensor], torch.Tensor] | None = None,
        activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        if aggregator_type not in _AGGREGATORS:
            raise InvalidArgumentError(f"aggregator_type must be one of {_AGGREGATORS} (got {aggregator_type!r})")
        in_src, in_dst = in_feats if isinstance(in_feats, tuple) else (in_feats, in_feats)
        if aggregator_type == "gcn" and in_src != in_dst:
            raise InvalidArgumentError(f"'gcn' needs sources and destinations of one width (got {in_src}, {in_dst})")
        self._aggregator = aggregator_type
        self.feat_drop = Dropout(feat_drop)
        self.norm = norm
        self.activation = activation
        if aggregator_type == "pool":
            self.fc_pool = nn.Linear(in_src, in_src)
        if aggregator_type == "lstm":
            self.lstm = nn.LSTM(in_src, in_src, batch_first=True)
        self.fc_neigh = nn.Linear(in_src, out_feats, bias=False)
        if aggregator_type == "gcn":
            self.register_parameter("bias", nn.Parameter(torch.zeros(out_feats)) if bias else None)
        else:
            self.fc_self = nn.Linear(in_dst, out_feats, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the weights: Glorot uniform with the gain of ReLU, those of an LSTM as torch does."""
        if self._aggregator == "lstm":
            self.lstm.reset_parameters()
        gain = nn.init.calculate_gain("relu")
        for name in ("fc_pool", "fc_self", "fc_neigh"):
            if hasattr(self, name):
                nn.init.xavier_uniform_(getattr(self, name).weight, gain=gain)

    def forward(self, graph: MessagePassing, feat: Features, edge_weight: torch.Tensor | None = None) -> torch.Tensor:
        """Apply the layer.

        Args:
            graph: a block, or a graph of one relation.
            feat: [num_src, in_feats], destinations first in a block; or a pair for both sides.
            edge_weight: [num_edges] or [num_edges, 1], multiplied with the messages.

        Returns:
            [num_dst, out_feats].

        Raises:
            InvalidArgumentError: one tensor is given for a graph between two types, or ``edge_weight`` does not have a
                row for each edge.
        """
        with graph.local_scope():
            if self._aggregator == "mean" and edge_weight is None and self._aggregates_own(graph, feat):
                x = self.feat_drop(feat)
                graph.srcdata["h"] = x  # checks the number of rows
                mean, own = mean_and_own(graph.structure(graph.to_canonical_etype(None)), x)
                out = self._combined(own, self.fc_neigh(mean))
            else:
                src, dst = source_and_destination(graph, feat, self.feat_drop)
                send = weighted_copy(graph, edge_weight)
                if self._aggregator == "gcn":
                    out = self._gcn(graph, src, dst, send)
                else:
                    out = self._combined(dst, self._neighbours(graph, src, send))
        if self.activation is not None:
            out = self.activation(out)
        return out if self.norm is None else self.norm(out)

    def _aggregates_own(self, graph: MessagePassing, feat: Features) -> bool:
        """Return whether :func:`mean_and_own` applies: the aggregated rows begin with the destinations' own."""
        plain = isinstance(feat, torch.Tensor) and feat.dim() == 2 and feat.dtype in (torch.float32, torch.float64)
        return graph.is_block and plain and not project_first(graph, *self.fc_neigh.weight.T.shape)

    def _combined(self, dst: torch.Tensor, neighbours: torch.Tensor) -> torch.Tensor:
        own: torch.Tensor = self.fc_self(dst)
        # in place is safe: the gradient of a linear map does not need its output; that of a user's module may
        in_place = type(self.fc_self) is nn.Linear and own.dtype == neighbours.dtype
        return own.add_(neighbours) if in_place else own + neighbours

    def _neighbours(self, graph: MessagePassing, src: torch.Tensor, send: Message) -> torch.Tensor:
        """Aggregate by mean, pool or LSTM, through ``fc_neigh``."""
        if self._aggregator == "pool":
            graph.srcdata["h"] = F.relu(self.fc_pool(src))
            graph.update_all(send, fn.max("m", "h"))
        elif self._aggregator == "lstm":
            graph.srcdata["h"] = src
            graph.update_all(send, lambda nodes: {"last": self._last_state(nodes.mailbox["m"])})
            if graph.num_edges() == 0:  # run the LSTM on no sequence, so that it has a gradient of 0
                none = self._last_state(src[:0].unsqueeze(1)).sum()
                graph.dstdata["last"] = src.new_zeros(graph.num_dst_nodes(), src.shape[1]) + none
            return torch.as_tensor(self.fc_neigh(graph.dstdata["last"]))
        else:
            before = project_first(graph, *self.fc_neigh.weight.T.shape)
            graph.srcdata["h"] = self.fc_neigh(src) if before else src
            graph.update_all(send, fn.mean("m", "h"))
            if before:
                return torch.as_tensor(graph.dstdata["h"])
        return torch.as_tensor(self.fc_neigh(graph.dstdata["h"]))

    def _last_state(self, sequences: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.lstm(sequences)[1][0].squeeze(0))

    def _gcn(self, graph: MessagePassing, src: torch.Tensor, dst: torch.Tensor, send: Message) -> torch.Tensor:
        # not the mean of dgl.function: the node counts as one more neighbour, without an edge of its own
        graph.srcdata["h"] = widened(src)  # 16 bits hold neither many degrees nor the sums
        graph.update_all(send, fn.sum("m", "h"))
        total = graph.dstdata["h"] + dst
        degrees = graph.in_degrees().to(total).unsqueeze(-1)
        out: torch.Tensor = self.fc_neigh(rounded(total / (degrees + 1), src.dtype))
        return out if self.bias is None else out + self.bias
