"""Typed graphs without their types: all nodes in one range of ids, all edges in one list."""

from collections.abc import Sequence
from typing import Any

import torch

from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.fields import EID, ETYPE, NID, NTYPE
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Schema

__all__ = ["to_homogeneous"]


def to_homogeneous(
    g: HeteroGraph,
    ndata: Sequence[str] | None = None,
    edata: Sequence[str] | None = None,
    store_type: bool = True,
    return_count: bool = False,
) -> Any:
    """Return the graph without types: nodes type by type, edges relation by relation.

    ``ndata[NID]`` and ``edata[EID]`` are the ids in ``g`` within the type or relation, int64.

    Args:
        g: a graph in memory.
        ndata: names of node features to keep, which every type must have, of one width; None means none.
        edata: likewise for edges.
        store_type: also make ``ndata[NTYPE]`` and ``edata[ETYPE]``, int64, the type ids as in ``g.ntypes`` and
            ``g.canonical_etypes``.
        return_count: also return how many nodes and edges there are of each type.

    Returns:
        The graph; with ``return_count`` a tuple of it and two lists, the numbers of nodes of each type and of edges of
        each relation, in the order of their ids.

    Raises:
        InvalidArgumentError: ``g`` is a block; layers take typed blocks as they are.
        FieldNameError: a type lacks a feature.
    """
    if g.is_block:
        raise InvalidArgumentError("to_homogeneous takes a graph, not a block: layers take typed blocks as they are")
    counts = [g.num_nodes(ntype) for ntype in g.ntypes], [g.num_edges(relation) for relation in g.canonical_etypes]
    node_counts, edge_counts = (torch.tensor(some, dtype=torch.int64, device=g.device) for some in counts)
    begin = dict(zip(g.ntypes, (node_counts.cumsum(0) - node_counts).tolist(), strict=True))
    none = torch.zeros(0, dtype=torch.int64, device=g.device)
    columns = [(none, none)]
    for relation in g.canonical_etypes:
        src, dst = g.all_edges(etype=relation)
        columns.append((src + begin[relation[0]], dst + begin[relation[2]]))
    src, dst = (torch.cat(ids) for ids in zip(*columns, strict=True))
    result = HeteroGraph(Schema.homogeneous(), {DEFAULT_ETYPE: (src, dst)}, {DEFAULT_NTYPE: g.num_nodes()})
    nodes = result.nodes[DEFAULT_NTYPE].data
    edges = result.edges[DEFAULT_ETYPE].data
    nodes[NID] = _within(node_counts)
    edges[EID] = _within(edge_counts)
    if store_type:
        nodes[NTYPE] = torch.repeat_interleave(node_counts)
        edges[ETYPE] = torch.repeat_interleave(edge_counts)
    for name in ndata or ():
        nodes[name] = torch.cat([g.nodes[ntype].data[name] for ntype in g.ntypes])
    for name in edata or ():
        edges[name] = torch.cat([g.edges[relation].data[name] for relation in g.canonical_etypes])
    return (result, *counts) if return_count else result


def _within(counts: torch.Tensor) -> torch.Tensor:
    """Return 0, 1, ... in each group of rows, one group after the other: int64[sum of the counts]."""
    begins = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    return torch.arange(begins.shape[0], device=counts.device) - begins
