"""Reduction by a user's function: destinations of one in-degree at a time, so that their messages form a tensor.

Degree bucketing, as in DGL. A destination without in-edges is in no bucket and gets 0.
"""

from collections.abc import Mapping

import torch

from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.frame import Frame
from mpigraph.graphs.inedges import InEdges
from mpigraph.graphs.messages import Gathered, NodeBatch, NodeFunction, check_rows, node_ids

__all__ = ["reduce_by_degree"]


def reduce_by_degree(
    in_edges: InEdges, messages: Mapping[str, torch.Tensor], frame: Frame, ntype: str, func: NodeFunction
) -> dict[str, torch.Tensor]:
    """Call a reduce function once for all destinations of each in-degree above 0.

    Args:
        in_edges: the edges.
        messages: name -> [num_edges, ...], in CSC order.
        frame: features of the destinations, ``nodes.data``.
        ntype: the type of the destinations.
        func: of a batch of n nodes, with ``nodes.mailbox[name]`` [n, degree, ...], the messages of a node in the order
            of their edge ids; returns name -> [n, ...], the same names and widths for each degree.

    Returns:
        Name -> [num_dst, ...]; nothing if there are no edges, as the names are not known then.

    Raises:
        InvalidArgumentError: the function returned something else.
    """
    parts: list[dict[str, torch.Tensor]] = []
    order = torch.argsort(in_edges.degrees, stable=True)
    degrees, counts = torch.unique_consecutive(in_edges.degrees[order], return_counts=True)
    buckets = torch.split(order, counts.tolist())
    for degree, nodes in zip(degrees.tolist(), buckets, strict=True):
        if degree > 0:
            parts.append(_bucket(in_edges, messages, frame, ntype, func, nodes, degree))
            if parts[-1].keys() != parts[0].keys():
                raise InvalidArgumentError(
                    f"the reduce function must return the same names for each degree (got {list(parts[0])}, then "
                    f"{list(parts[-1])} for degree {degree})"
                )
    zero_in_degree = int((in_edges.degrees == 0).sum())
    return {name: _in_place(order, zero_in_degree, [part[name] for part in parts]) for name in (parts or [{}])[0]}


def _bucket(
    in_edges: InEdges,
    messages: Mapping[str, torch.Tensor],
    frame: Frame,
    ntype: str,
    func: NodeFunction,
    nodes: torch.Tensor,
    degree: int,
) -> dict[str, torch.Tensor]:
    """Reduce the messages of destinations ``nodes``, int64[n], which all have ``degree`` in-edges."""
    edges = (in_edges.indptr[nodes].unsqueeze(1) + torch.arange(degree, device=nodes.device)).reshape(-1)
    mailbox = {
        name: values.index_select(0, edges).reshape(len(nodes), degree, *values.shape[1:])
        for name, values in messages.items()
    }
    batch = NodeBatch(Gathered(frame, nodes), node_ids(frame, nodes, nodes.device), mailbox, ntype)
    return check_rows(func(batch), len(nodes), "the reduce function")


def _in_place(order: torch.Tensor, zero_in_degree: int, parts: list[torch.Tensor]) -> torch.Tensor:
    """Put the results of the buckets, which follow one another in ``order`` after those of no edge, in their rows."""
    try:
        values = torch.cat(parts)
    except RuntimeError as error:
        shapes = [tuple(part.shape[1:]) for part in parts]
        raise InvalidArgumentError(f"the reduce function must return rows of one shape (got {shapes})") from error
    rows = order[zero_in_degree:]
    return values.new_zeros(order.shape[0], *values.shape[1:]).index_copy(0, rows, values)
