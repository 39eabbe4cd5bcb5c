"""Graphs in memory made of others, or at random: DGL's functions of these names.

No function changes its argument. Those that :class:`.HeteroGraph` has as methods too are described there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mpigraph.errors import InvalidArgumentError, check_integer
from mpigraph.graphs.fields import EID, EdgeType, IdsLike, TensorLike, by_first_appearance
from mpigraph.graphs.hetero import HeteroGraph, graph, heterograph
from mpigraph.metadata.schema import Relation

__all__ = [
    "add_edges",
    "add_reverse_edges",
    "add_self_loop",
    "compact_graphs",
    "edge_subgraph",
    "in_subgraph",
    "node_subgraph",
    "out_subgraph",
    "rand_bipartite",
    "rand_graph",
    "remove_edges",
    "remove_self_loop",
    "reverse",
]

_NodeIds = IdsLike | Mapping[str, IdsLike]
_EdgeIds = IdsLike | Mapping[str | Relation, IdsLike]


def node_subgraph(graph: HeteroGraph, nodes: _NodeIds, **options: Any) -> HeteroGraph:
    """Return the part that has the edges between some nodes: :meth:`.HeteroGraph.subgraph`."""
    return _checked(graph, "node_subgraph").subgraph(nodes, **options)


def edge_subgraph(graph: HeteroGraph, edges: _EdgeIds, **options: Any) -> HeteroGraph:
    """Return the part that has some edges: :meth:`.HeteroGraph.edge_subgraph`."""
    return _checked(graph, "edge_subgraph").edge_subgraph(edges, **options)


def in_subgraph(graph: HeteroGraph, nodes: _NodeIds, **options: Any) -> HeteroGraph:
    """Return the part that has all edges into some nodes: :meth:`.HeteroGraph.in_subgraph`."""
    return _checked(graph, "in_subgraph").in_subgraph(nodes, **options)


def out_subgraph(graph: HeteroGraph, nodes: _NodeIds, **options: Any) -> HeteroGraph:
    """Return the part that has all edges out of some nodes: :meth:`.HeteroGraph.out_subgraph`."""
    return _checked(graph, "out_subgraph").out_subgraph(nodes, **options)


def reverse(g: HeteroGraph, copy_ndata: bool = True, copy_edata: bool = False) -> HeteroGraph:
    """Return the graph with every edge turned: :meth:`.HeteroGraph.reverse`."""
    return _checked(g, "reverse").reverse(copy_ndata, copy_edata)


def add_self_loop(
    g: HeteroGraph,
    edge_feat_names: Sequence[str] | None = None,
    fill_data: float | str = 1.0,
    etype: EdgeType = None,
) -> HeteroGraph:
    """Return the graph with an edge from each node to itself: :meth:`.HeteroGraph.add_self_loop`."""
    return _checked(g, "add_self_loop").add_self_loop(edge_feat_names, fill_data, etype)


def remove_self_loop(g: HeteroGraph, etype: EdgeType = None) -> HeteroGraph:
    """Return the graph without the edges from a node to itself: :meth:`.HeteroGraph.remove_self_loop`."""
    return _checked(g, "remove_self_loop").remove_self_loop(etype)


def add_edges(
    g: HeteroGraph, u: IdsLike, v: IdsLike, data: Mapping[str, TensorLike] | None = None, etype: EdgeType = None
) -> HeteroGraph:
    """Return the graph with more edges behind those of a relation.

    Args:
        g: the graph.
        u: int[n], sources.
        v: int[n], destinations.
        data: features of the new edges, name -> [n, ...]. What they or the old edges lack is 0.
        etype: the relation; None means the only one.

    Raises:
        OutOfRangeError: a node does not exist.
        InvalidArgumentError: ids that are not integers, or different numbers of them.
        GraphDataError: a feature does not have a row for each new edge.
    """
    return _checked(g, "add_edges").with_edges(u, v, data, etype)


def remove_edges(g: HeteroGraph, eids: IdsLike, etype: EdgeType = None, store_ids: bool = False) -> HeteroGraph:
    """Return the graph without some edges of a relation; those behind them get lower ids.

    Args:
        g: the graph.
        eids: int[n].
        etype: the relation; None means the only one.
        store_ids: keep the ids in ``g`` as ``edata[EID]``.

    Raises:
        OutOfRangeError: an edge does not exist.
        InvalidArgumentError: ids that are not integers.
    """
    return _checked(g, "remove_edges").without_edges(eids, etype, store_ids)


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
    for relation in _checked(g, "add_reverse_edges").canonical_etypes:
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
    both = HeteroGraph(g.schema, edges, {ntype: g.num_nodes(ntype) for ntype in g.ntypes})
    if copy_ndata:
        for ntype in g.ntypes:
            both.nodes[ntype].data.update(g.nodes[ntype].data)
    if copy_edata:
        for relation, ids in eids.items():
            both.edges[relation].data.update({name: rows[ids] for name, rows in g.edges[relation].data.items()})
            both.edges[relation].data[EID] = ids
    return both


def compact_graphs(
    graphs: HeteroGraph | Sequence[HeteroGraph],
    always_preserve: _NodeIds | None = None,
    copy_ndata: bool = True,
    copy_edata: bool = True,
) -> Any:
    """Return graphs without the nodes that no edge of any of them touches.

    Args:
        graphs: one, or several with the same nodes.
        always_preserve: int[n], nodes to keep; or node type -> int[n].
        copy_ndata: carry the node features.
        copy_edata: carry the edge features.

    Returns:
        A graph, or a list of them. Edges keep their ids; ``ndata[NID]`` are the ids of the nodes before, in the
        order of first appearance: those to keep, then relation by relation sources and destinations.

    Raises:
        InvalidArgumentError: the graphs have different nodes.
        OutOfRangeError: a node does not exist.
    """
    some = [graphs] if isinstance(graphs, HeteroGraph) else list(graphs)
    if not some:
        return []
    counts = [{ntype: _checked(g, "compact_graphs").num_nodes(ntype) for ntype in g.ntypes} for g in some]
    if any(other != counts[0] for other in counts):
        raise InvalidArgumentError(f"compact_graphs needs graphs with the same nodes (got {counts})")
    ids = some[0]._by_ntype({} if always_preserve is None else always_preserve)
    touched = {ntype: [kept] for ntype, kept in ids.items()}
    for g in some:
        for relation in g.canonical_etypes:
            for column, ntype in zip(g.all_edges(etype=relation), relation[::2], strict=True):
                touched[ntype].append(column)
    nodes = {ntype: by_first_appearance(torch.cat(columns))[0] for ntype, columns in touched.items()}
    made = [g.only_nodes(nodes, copy_ndata, copy_edata) for g in some]
    return made[0] if isinstance(graphs, HeteroGraph) else made


def rand_graph(
    num_nodes: int, num_edges: int, idtype: torch.dtype = torch.int64, device: torch.device | str = "cpu"
) -> HeteroGraph:
    """Return a graph of random edges, each pair of nodes once at most; drawn by torch's generator.

    Args:
        num_nodes: number of nodes.
        num_edges: number of edges.
        idtype: accepted for DGL's scripts; ids are int64.
        device: where to put the graph.

    Raises:
        InvalidArgumentError: more edges than pairs, or a number below 0.
    """
    src, dst = _distinct_pairs(num_nodes, num_nodes, num_edges)
    return graph((src, dst), num_nodes=num_nodes).to(device)


def rand_bipartite(
    utype: str,
    etype: str,
    vtype: str,
    num_src_nodes: int,
    num_dst_nodes: int,
    num_edges: int,
    idtype: torch.dtype = torch.int64,
    device: torch.device | str = "cpu",
) -> HeteroGraph:
    """Return a graph of random edges between two types, each pair of nodes once at most; as :func:`rand_graph`.

    Args:
        utype: type of the sources.
        etype: name of the relation.
        vtype: type of the destinations.
        num_src_nodes: number of sources.
        num_dst_nodes: number of destinations.
        num_edges: number of edges.
        idtype: accepted for DGL's scripts; ids are int64.
        device: where to put the graph.

    Raises:
        InvalidArgumentError: more edges than pairs, or a number below 0.
    """
    edges = _distinct_pairs(num_src_nodes, num_dst_nodes, num_edges)
    return heterograph({(utype, etype, vtype): edges}, {utype: num_src_nodes, vtype: num_dst_nodes}).to(device)


def _distinct_pairs(num_src: int, num_dst: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw so many distinct pairs, each set of them equally likely, in random order."""
    pairs = check_integer("the number of nodes", num_src, 0) * check_integer("the number of nodes", num_dst, 0)
    check_integer("num_edges", count, 0, pairs)
    if 2 * count > pairs:
        found = torch.randperm(pairs)[:count]
    else:  # draws that were there before are made anew
        found = torch.unique(torch.randint(max(pairs, 1), (count,)))
        while len(found) < count:
            found = torch.unique(torch.cat([found, torch.randint(pairs, (count - len(found),))]))
        found = found[torch.randperm(count)]
    return found // max(num_dst, 1), found % max(num_dst, 1)


def _checked(g: HeteroGraph, what: str) -> HeteroGraph:
    """Return the graph. Raises InvalidArgumentError if it is a block."""
    if g.is_block:
        raise InvalidArgumentError(f"{what} takes a graph, not a block")
    return g
