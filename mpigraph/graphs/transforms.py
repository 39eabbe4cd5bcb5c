"""Graphs in memory made of other graphs, by DGL's names; no function changes its argument."""

from collections.abc import Sequence
from typing import Any

import torch

from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.fields import EID, ETYPE, NID, NTYPE
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Schema


def to_simple(
    g: HeteroGraph,
    return_counts: str | None = "count",
    copy_ndata: bool = True,
    copy_edata: bool = False,
) -> HeteroGraph:
    """Return the graph with parallel edges made one; edges are in the order of source, then destination.

    Args:
        g: the graph.
        return_counts: name of the edge feature for the number of merged edges, int64; None leaves it out.
        copy_ndata: carry the node features (the tensors are shared).
        copy_edata: carry the edge features, of merged edges those of the first, whose ids in ``g`` are ``edata[EID]``.
    """
    edges, mapping, counts = {}, {}, {}
    for relation in g.canonical_etypes:
        src, dst = g.all_edges(etype=relation)
        num = max(g.num_nodes(relation[2]), 1)
        pairs = src * num + dst
        keys, mapping[relation], counts[relation] = torch.unique(pairs, return_inverse=True, return_counts=True)
        edges[relation] = keys // num, keys % num
    simple = g.with_edge_lists(edges, copy_ndata)
    for relation, places in mapping.items():
        frame = simple.edges[relation].data
        if copy_edata:
            first = places.new_full((len(counts[relation]),), len(places))
            first = first.scatter_reduce(0, places, torch.arange(len(places), device=g.device), "amin")
            frame.update({name: rows[first] for name, rows in g.edges[relation].data.items()})
            frame[EID] = first
        if return_counts is not None:
            frame[return_counts] = counts[relation]
    return simple


def add_reverse_edges(
    g: HeteroGraph,
    readonly: bool | None = None,
    copy_ndata: bool = True,
    copy_edata: bool = False,
    ignore_bipartite: bool = False,
    exclude_self: bool = True,
) -> HeteroGraph:
    """Return the graph with the reverse of each edge behind the edges of its relation, in their order.

    Args:
        g: the graph.
        readonly: ignored; accepted because DGL's scripts give it.
        copy_ndata: carry the node features (the tensors are shared).
        copy_edata: carry the edge features, a reverse edge getting those of its edge, and their ids in ``g`` as
            ``edata[EID]``.
        ignore_bipartite: leave relations between two types as they are; else they are an error.
        exclude_self: give edges from a node to itself no reverse.

    Raises:
        InvalidArgumentError: a relation joins two types, without ``ignore_bipartite``.
    """
    edges, eids = {}, {}
    for relation in g.canonical_etypes:
        src, dst = g.all_edges(etype=relation)
        turned = torch.arange(len(src), device=g.device)
        if relation[0] != relation[2]:
            if not ignore_bipartite:
                raise InvalidArgumentError(f"add_reverse_edges needs relations within one type (got {relation})")
            turned = turned[:0]
        elif exclude_self:
            turned = (src != dst).nonzero().squeeze(1)
        edges[relation] = torch.cat([src, dst[turned]]), torch.cat([dst, src[turned]])
        eids[relation] = torch.cat([torch.arange(len(src), device=g.device), turned])
    both = g.with_edge_lists(edges, copy_ndata)
    if copy_edata:
        for relation, ids in eids.items():
            both.edges[relation].data.update({name: rows[ids] for name, rows in g.edges[relation].data.items()})
            both.edges[relation].data[EID] = ids
    return both


def to_bidirected(g: HeteroGraph, copy_ndata: bool = False, readonly: bool | None = None) -> HeteroGraph:
    """Add the reverse of every edge and remove duplicates; the result is sorted by source, then destination.

    Edge features are dropped, since two edges may become one.

    Args:
        g: the graph; every relation must join a type with itself.
        copy_ndata: carry the node features (the tensors are shared).
        readonly: ignored; accepted because DGL's scripts give it.

    Raises:
        InvalidArgumentError: a relation joins two types.
    """
    both = add_reverse_edges(g, copy_ndata=copy_ndata)
    return to_simple(both, return_counts=None, copy_ndata=copy_ndata)


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
    node_counts, edge_counts = (torch.tensor(numbers, dtype=torch.int64, device=g.device) for numbers in counts)
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


node_subgraph = HeteroGraph.subgraph
edge_subgraph = HeteroGraph.edge_subgraph
in_subgraph = HeteroGraph.in_subgraph
reverse = HeteroGraph.reverse
add_self_loop = HeteroGraph.add_self_loop
remove_self_loop = HeteroGraph.remove_self_loop
add_edges = HeteroGraph.with_edges
remove_edges = HeteroGraph.without_edges
