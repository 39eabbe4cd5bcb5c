"""Layers of several hops, by ``D^-1/2 A D^-1/2``, with DGL's arguments, parameter names and numerics."""

from collections.abc import Callable, Iterator

import torch
from torch import nn

import mpigraph.function as fn
from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.message_passing import MessagePassing
from mpigraph.nn.common import ChecksInDegrees, check_edge_weight, weighted_copy
from mpigraph.nn.drop import Dropout

_NORMS = ("none", "both", "right")


class EdgeWeightNorm(nn.Module):
    """Normalises the weights of edges, as :class:`.GraphConv` does by degrees.

    Args:
        norm: "both": divide by the square roots of the sums of weights out of the source and into the destination;
            "right": by the sum of weights into the destination; "none": leave them.
        eps: added to the sums.

    Raises:
        InvalidArgumentError: another norm.
    """

    def __init__(self, norm: str = "both", eps: float = 0.0) -> None:
        super().__init__()
        if norm not in _NORMS:
            raise InvalidArgumentError(f"norm must be one of {_NORMS} (got {norm!r})")
        self._norm = norm
        self._eps = eps

    def forward(self, graph: MessagePassing, edge_weight: torch.Tensor) -> torch.Tensor:
        """Normalise weights.

        Args:
            graph: a block, or a graph of one relation.
            edge_weight: float[num_edges], in the order of edge ids.

        Returns:
            float[num_edges].

        Raises:
            InvalidArgumentError: not one number for each edge, or with "both" one that is not above 0.
        """
        check_edge_weight(graph, edge_weight)
        if edge_weight.dim() > 1:
            raise InvalidArgumentError(f"edge_weight must be one number for each edge (got {tuple(edge_weight.shape)})")
        if self._norm == "none":
            return edge_weight
        src, dst = graph.all_edges()
        into = edge_weight.new_zeros(graph.num_dst_nodes()).index_add(0, dst, edge_weight) + self._eps
        if self._norm == "right":
            return edge_weight / into[dst]
        if bool((edge_weight <= 0).any()):
            raise InvalidArgumentError("edge_weight must be above 0: norm='both' divides by square roots of its sums")
        out = edge_weight.new_zeros(graph.num_src_nodes()).index_add(0, src, edge_weight) + self._eps
        return edge_weight * out[src] ** -0.5 * into[dst] ** -0.5


class TAGConv(nn.Module):
    """Topology adaptive graph convolution: a linear map of ``[x, Px, ..., P^k x]``, where ``P = D^-1/2 A D^-1/2``.

    Du et al., "Topology adaptive graph convolutional networks", 2017. D are the in-degrees.

    Args:
        in_feats: width of the input.
        out_feats: width of the output.
        k: number of hops.
        bias: add a learnable bias.
        activation: applied to the output.
    """

    def __init__(
        self,
        in_feats: int,
        out_feats: int,
        k: int = 2,
        bias: bool = True,
        activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        self._k = k
        self._activation = activation
        self.lin = nn.Linear(in_feats * (k + 1), out_feats, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the weight: Glorot normal with the gain of ReLU."""
        nn.init.xavier_normal_(self.lin.weight, gain=nn.init.calculate_gain("relu"))

    def forward(
        self, graph: MessagePassing, feat: torch.Tensor, edge_weight: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Apply the layer.

        Args:
            graph: a graph of one relation within one type, no block.
            feat: [num_nodes, ..., in_feats].
            edge_weight: float[num_edges], above 0: entries of A, normalised by their sums.

        Returns:
            [num_nodes, ..., out_feats].

        Raises:
            InvalidArgumentError: another graph, or not one positive weight for each edge.
        """
        _check_whole_graph(graph)
        out: torch.Tensor = self.lin(torch.cat(list(_powers(graph, feat, edge_weight, self._k)), -1))
        return out if self._activation is None else self._activation(out)


class SGConv(ChecksInDegrees):
    """Simplified graph convolution: a linear map of ``P^k x``, where ``P = D^-1/2 A D^-1/2``.

    Wu et al., "Simplifying graph convolutional networks", ICML 2019. D are the in-degrees; add self loops to the graph
    first.

    Args:
        in_feats: width of the input.
        out_feats: width of the output.
        k: number of hops.
        cached: keep ``P^k x`` of the first call, for graph and input that never change.
        bias: add a learnable bias.
        norm: applied to ``P^k x``.
        allow_zero_in_degree: accept nodes without in-edges (they get the bias only).
    """

    def __init__(
        self,
        in_feats: int,
        out_feats: int,
        k: int = 1,
        cached: bool = False,
        bias: bool = True,
        norm: Callable[[torch.Tensor], torch.Tensor] | None = None,
        allow_zero_in_degree: bool = False,
    ) -> None:
        super().__init__()
        self._k = k
        self._cached = cached
        self._cached_h: torch.Tensor | None = None
        self._allow_zero_in_degree = allow_zero_in_degree
        self.norm = norm
        self.fc = nn.Linear(in_feats, out_feats, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the weight, Glorot uniform; the bias is 0."""
        nn.init.xavier_uniform_(self.fc.weight)
        if self.fc.bias is not None:
            nn.init.zeros_(self.fc.bias)

    def forward(
        self, graph: MessagePassing, feat: torch.Tensor, edge_weight: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Apply the layer; arguments, result and errors are those of :meth:`TAGConv.forward`.

        Raises:
            MPIGraphError: a node has no in-edge and ``allow_zero_in_degree`` is off.
        """
        _check_whole_graph(graph)
        self._check_in_degrees(graph)
        smooth = self._cached_h
        if smooth is None:
            *_, smooth = _powers(graph, feat, edge_weight, self._k)
            smooth = smooth if self.norm is None else self.norm(smooth)
            if self._cached:
                self._cached_h = smooth
        return torch.as_tensor(self.fc(smooth))


class APPNPConv(nn.Module):
    """Personalized propagation: k times ``h = (1 - alpha) D^-1/2 A D^-1/2 h + alpha x``, from ``h = x`` on.

    Gasteiger, Bojchevski, Guennemann: "Predict then propagate: graph neural networks meet personalized PageRank", ICLR
    2019. D are the out-degrees of sources and the in-degrees of destinations. No parameters.

    Args:
        k: number of hops.
        alpha: probability of going back to ``x``.
        edge_drop: dropout rate of the edges, drawn anew for each hop.
    """

    def __init__(self, k: int, alpha: float, edge_drop: float = 0.0) -> None:
        super().__init__()
        self._k = k
        self._alpha = alpha
        self.edge_drop = Dropout(edge_drop)

    def forward(
        self, graph: MessagePassing, feat: torch.Tensor, edge_weight: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Propagate ``feat``, [num_nodes, ...]; other arguments and errors are those of :meth:`TAGConv.forward`."""
        _check_whole_graph(graph)
        weight: torch.Tensor | None = None
        before: torch.Tensor | float = 1.0
        after: torch.Tensor | float = 1.0
        if edge_weight is not None:
            weight = EdgeWeightNorm("both")(graph, edge_weight)
        else:
            before, after = (_inverse_root(degrees, feat) for degrees in (graph.out_degrees(), graph.in_degrees()))
        dropping = self.training and self.edge_drop.p > 0
        if dropping and weight is None:
            weight = torch.ones(graph.num_edges(), dtype=feat.dtype, device=feat.device)
        x = feat
        for _ in range(self._k):
            used = self.edge_drop(weight) if dropping else weight
            x = (1 - self._alpha) * (after * _hop(graph, before * x, used)) + self._alpha * feat
        return x


def _check_whole_graph(graph: MessagePassing) -> None:
    """Raise InvalidArgumentError unless the output of one hop can be the input of the next one."""
    if graph.is_block or graph.srctypes != graph.dsttypes:
        raise InvalidArgumentError(
            "a layer of several hops needs a graph whose sources are its destinations, not a block or a graph between "
            "two types: use it on a whole graph or on a subgraph of it"
        )


def _inverse_root(degrees: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return degrees to the power of -1/2, at least 1 of them, in the shape of rows of ``like``."""
    return (degrees.to(like).clamp(min=1) ** -0.5).reshape(-1, *[1] * (like.dim() - 1))


def _hop(graph: MessagePassing, x: torch.Tensor, edge_weight: torch.Tensor | None) -> torch.Tensor:
    """Return the sums over in-neighbours of rows of ``x``, times weights if there are any; the shape of ``x``."""
    with graph.local_scope():
        graph.srcdata["h"] = x
        graph.update_all(weighted_copy(graph, edge_weight), fn.sum("m", "h"))
        return torch.as_tensor(graph.dstdata["h"])


def _powers(graph: MessagePassing, x: torch.Tensor, edge_weight: torch.Tensor | None, k: int) -> Iterator[torch.Tensor]:
    """Yield ``x``, ``P x`` and so on to ``P^k x``, where ``P = D^-1/2 A D^-1/2`` and D are the in-degrees."""
    weight = None if edge_weight is None else EdgeWeightNorm("both")(graph, edge_weight)
    norm = _inverse_root(graph.in_degrees(), x) if weight is None else None
    yield x
    for _ in range(k):
        x = _hop(graph, x, weight) if norm is None else norm * _hop(graph, norm * x, None)
        yield x
