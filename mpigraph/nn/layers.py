"""Layers on the edges of one relation, with DGL's arguments, parameter names, initialisation and numerics.

Graph convolution (GCN), GraphSAGE, graph isomorphism (GIN) without and with features of edges, scores of pairs of
nodes; and what layers share: features of the two sides, checks of their input, weighted messages.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

import mpigraph.function as fn
from mpigraph.errors import InvalidArgumentError, MPIGraphError
from mpigraph.graphs.aggregate import first_rows, mean_and_own
from mpigraph.graphs.block import Block
from mpigraph.graphs.message_passing import MessagePassing
from mpigraph.graphs.messages import Message, rounded, widened
from mpigraph.nn.drop import Dropout

Features = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
"""Rows of the sources, destinations first in a block; or a pair of tensors for sources and destinations."""

_WEIGHT = "_edge_weight"

_FLOPS_PER_GATHERED = 16
"""Operations of a matrix product in the time that it takes to add one number of a gathered row."""
_NORMS = ("none", "both", "right", "left")
_AGGREGATORS = ("mean", "gcn", "pool", "lstm")
_Apply = Callable[[torch.Tensor], torch.Tensor]
_REDUCERS = {"sum": fn.sum, "max": fn.max, "mean": fn.mean}
_OPS = ("dot", "ele", "cat")


class ChecksInDegrees(nn.Module):
    """A layer that refuses destinations without in-edges, unless it is told to accept them."""

    _allow_zero_in_degree: bool

    def set_allow_zero_in_degree(self, set_value: bool) -> None:
        """Accept destinations without in-edges, or not."""
        self._allow_zero_in_degree = set_value

    def _check_in_degrees(self, graph: MessagePassing) -> None:
        """Raise MPIGraphError if a destination of a graph of one relation has no in-edge, and may not."""
        zero_in_degree = 0 if self._allow_zero_in_degree else int((graph.in_degrees() == 0).sum())
        if zero_in_degree:
            raise MPIGraphError(
                f"{zero_in_degree} destinations have no in-edge, so their output would carry nothing: "
                "add self loops to the graph, or pass allow_zero_in_degree=True"
            )


def source_and_destination(
    graph: MessagePassing, feat: Features, transform: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the features of sources and destinations, each tensor transformed once, for example by dropout.

    Raises:
        InvalidArgumentError: one tensor is given for a graph between two types.
    """
    change = (lambda x: x) if transform is None else transform
    if isinstance(feat, tuple):
        return change(feat[0]), change(feat[1])
    if not graph.is_block and graph.srctypes != graph.dsttypes:
        sides = f"{graph.srctypes} and {graph.dsttypes}"
        raise InvalidArgumentError(f"the graph joins {sides}: give a pair of features, for sources and destinations")
    src = change(feat)
    return src, first_rows(src, graph.num_dst_nodes()) if graph.is_block else src


def _source_degrees(graph: MessagePassing) -> torch.Tensor:
    """Return the out-degrees of the sources of a graph of one relation, int64[num_src].

    For a block that knows them (:attr:`.Block.graph_out_degrees`), those in the whole graph.
    """
    known = graph.graph_out_degrees if isinstance(graph, Block) else None
    degrees = graph.out_degrees() if known is None else known(graph.canonical_etypes[0]).to(graph.device)
    return torch.as_tensor(degrees)


def check_edge_weight(graph: MessagePassing, edge_weight: torch.Tensor) -> None:
    """Raise InvalidArgumentError unless there is a row for each edge."""
    if edge_weight.dim() == 0 or edge_weight.shape[0] != graph.num_edges():
        shape = tuple(edge_weight.shape)
        raise InvalidArgumentError(f"edge_weight must have {graph.num_edges()} rows (got shape {shape})")


def _weighted_copy(graph: MessagePassing, edge_weight: torch.Tensor | None) -> Message:
    """Return the message "m" that copies the source's "h", times the weight if there is one.

    Call it in a local scope of the graph. Raises InvalidArgumentError as :func:`check_edge_weight`.
    """
    if edge_weight is None:
        return fn.copy_u("h", "m")
    check_edge_weight(graph, edge_weight)
    graph.edata[_WEIGHT] = edge_weight
    return fn.u_mul_e("h", _WEIGHT, "m")


def project_first(graph: MessagePassing, width: int, out: int) -> bool:
    """Return whether a linear map is cheaper on the sources than on their aggregate.

    It can be if it narrows the rows, since the aggregation then gathers fewer numbers. But a block has many more
    sources than destinations, and their products may cost more than that saves. False for blocks of whole
    neighbourhoods: the order of operations must not depend on how the graph is partitioned.
    """
    if out >= width or (isinstance(graph, Block) and graph.graph_out_degrees is not None):
        return False
    products = 2 * width * out * (graph.num_src_nodes() - graph.num_dst_nodes())
    return products < _FLOPS_PER_GATHERED * graph.num_edges() * (width - out)


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
                rows = rows * self._factor(_source_degrees(graph), rows)
            graph.srcdata["h"] = rows
            graph.update_all(_weighted_copy(graph, edge_weight), fn.sum("m", "h"))
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

    Example:
        >>> layer = mpigraph.nn.SAGEConv(16, 4, "mean")
        >>> h = layer(blocks[0], g.ndata["feat"][input_nodes])
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
                send = _weighted_copy(graph, edge_weight)
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
        if aggregator_type not in _REDUCERS:
            raise InvalidArgumentError(f"aggregator_type must be sum, max or mean (got {aggregator_type!r})")
        self.apply_func = apply_func
        self.activation = activation
        self._reduce = _REDUCERS[aggregator_type]
        _set_eps(self, init_eps, learn_eps)

    def forward(self, graph: MessagePassing, feat: Features, edge_weight: torch.Tensor | None = None) -> torch.Tensor:
        """Apply the layer; arguments, result and errors are those of :meth:`.SAGEConv.forward`."""
        src, dst = source_and_destination(graph, feat)
        with graph.local_scope():
            graph.srcdata["h"] = src
            graph.update_all(_weighted_copy(graph, edge_weight), self._reduce("m", "h"))
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


class EdgePredictor(nn.Module):
    """Combine the representations of two nodes into a score, or into features of the pair.

    * dot: ``<h_src, h_dst>``
    * ele: ``h_src * h_dst``
    * cat: ``h_src || h_dst``

    With ``out_feats`` a linear map follows.

    Args:
        op: one of these.
        in_feats: width of the representations; needed with ``out_feats``.
        out_feats: width of the output of the linear map; None for no map.
        bias: add a bias to the linear map.

    Raises:
        InvalidArgumentError: another ``op``, or ``in_feats`` is missing.
    """

    linear: nn.Linear | None

    def __init__(self, op: str, in_feats: int | None = None, out_feats: int | None = None, bias: bool = False) -> None:
        super().__init__()
        if op not in _OPS:
            raise InvalidArgumentError(
                f"op must be one of {_OPS} (got {op!r}): for 'cos' normalise rows and take 'dot', for 'distmult' "
                "multiply the sources by the relations' rows, as in examples/knowledge_graph.py"
            )
        self.op = op
        self.linear = None
        if out_feats is not None:
            if in_feats is None:
                raise InvalidArgumentError(f"in_feats must be given with out_feats (op {op!r})")
            width = {"ele": in_feats, "cat": 2 * in_feats}.get(op, 1)
            self.linear = nn.Linear(width, out_feats, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the linear map as torch does."""
        if self.linear is not None:
            self.linear.reset_parameters()

    def forward(self, h_src: torch.Tensor, h_dst: torch.Tensor) -> torch.Tensor:
        """Score pairs.

        Args:
            h_src: [n, in_feats], representations of the sources.
            h_dst: [n, in_feats], of the destinations.

        Returns:
            [n, out_feats] with a linear map; else [n, in_feats] for "ele", [n, 2 * in_feats] for "cat" and [n, 1] for
            "dot".

        Raises:
            InvalidArgumentError: the two shapes differ.
        """
        if h_src.shape != h_dst.shape:
            raise InvalidArgumentError(
                f"h_src and h_dst must have one shape (got {tuple(h_src.shape)} and {tuple(h_dst.shape)})"
            )
        h = self._combined(h_src, h_dst)
        return h if self.linear is None else torch.as_tensor(self.linear(h))

    def _combined(self, h_src: torch.Tensor, h_dst: torch.Tensor) -> torch.Tensor:
        if self.op == "ele":
            return h_src * h_dst
        if self.op == "cat":
            return torch.cat([h_src, h_dst], dim=-1)
        return rounded((widened(h_src) * widened(h_dst)).sum(-1, keepdim=True), h_src.dtype)
