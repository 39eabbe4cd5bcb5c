"""Shared by the layers: features of the two sides, checks of their input, weighted messages."""

from collections.abc import Callable

import torch
from torch import nn

import mpigraph.function as fn
from mpigraph.errors import InvalidArgumentError, MPIGraphError
from mpigraph.graphs.aggregate import first_rows
from mpigraph.graphs.block import Block
from mpigraph.graphs.message_passing import MessagePassing
from mpigraph.graphs.messages import Message

Features = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
"""Rows of the sources, destinations first in a block; or a pair of tensors for sources and destinations."""

_WEIGHT = "_edge_weight"

_FLOPS_PER_GATHERED = 16
"""Operations of a matrix product in the time that it takes to add one number of a gathered row."""


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


def source_degrees(graph: MessagePassing) -> torch.Tensor:
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


def weighted_copy(graph: MessagePassing, edge_weight: torch.Tensor | None) -> Message:
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
