"""Graphs in memory made of other graphs, or at random, by DGL's names.

No function changes its argument. Functions that are also methods of :class:`.HeteroGraph` are described there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mpigraph.errors import InvalidArgumentError, check_integer
from mpigraph.graphs.aggregate import group_sums
from mpigraph.graphs.fields import EID, ETYPE, NID, NTYPE, EdgeType, IdsLike, TensorLike, by_first_appearance
from mpigraph.graphs.hetero import HeteroGraph, graph, heterograph
from mpigraph.graphs.messages import rounded
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Relation, Schema

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


def khop_in_subgraph(
    graph: HeteroGraph,
    nodes: _NodeIds,
    k: int,
    *,
    relabel_nodes: bool = True,
    store_ids: bool = True,
    output_device: torch.device | str | None = None,
) -> Any:
    """Return the subgraph of all nodes from which some nodes can be reached in at most ``k`` steps.

    Args:
        graph: the graph.
        nodes: int[n], or a number; or node type -> one of these.
        k: how many steps.
        relabel_nodes: number the nodes anew, ascending by their ids, and leave out the others; else keep all nodes.
        store_ids: keep the ids in the graph as ``ndata[NID]`` (if the nodes are numbered anew) and ``edata[EID]``.
        output_device: where to put the part.

    Returns:
        The part; with ``relabel_nodes`` also the new numbers of ``nodes``, int64[n], or a dict of them by node type
        if a dict was given.

    Raises:
        OutOfRangeError: a node does not exist.
        InvalidArgumentError: ``k`` is no integer of at least 0, or ids are not integers.
        NodeTypeError: a node type does not exist, or there are several and ``nodes`` are not by type.
    """
    return _khop(_checked(graph, "khop_in_subgraph"), nodes, k, 2, relabel_nodes, store_ids, output_device)


def khop_out_subgraph(
    graph: HeteroGraph,
    nodes: _NodeIds,
    k: int,
    *,
    relabel_nodes: bool = True,
    store_ids: bool = True,
    output_device: torch.device | str | None = None,
) -> Any:
    """Return the subgraph of all nodes that can be reached from some nodes in at most ``k`` steps.

    Arguments, results and errors are those of :func:`khop_in_subgraph`.
    """
    return _khop(_checked(graph, "khop_out_subgraph"), nodes, k, 0, relabel_nodes, store_ids, output_device)


def _khop(
    graph: HeteroGraph,
    nodes: _NodeIds,
    k: int,
    side: int,
    relabel_nodes: bool,
    store_ids: bool,
    output_device: torch.device | str | None,
) -> Any:
    """Return the part within ``k`` steps against the edges (``side=2``) or along them (``side=0``)."""
    seeds = graph._by_ntype(nodes)
    reached = {ntype: torch.unique(ids) for ntype, ids in seeds.items()}
    last = reached
    for _ in range(check_integer("k", k, 0)):
        columns = {ntype: [ids] for ntype, ids in reached.items()}
        for relation in graph.canonical_etypes:
            step = graph.in_edges if side else graph.out_edges
            ends = step(last[relation[side]], etype=relation)
            columns[relation[2 - side]].append(ends[0 if side else 1])
        merged = {ntype: torch.unique(torch.cat(ids_of)) for ntype, ids_of in columns.items()}
        last = {ntype: ids[~torch.isin(ids, reached[ntype])] for ntype, ids in merged.items()}
        reached = merged
    part = graph.subgraph(reached, relabel_nodes=relabel_nodes, store_ids=store_ids, output_device=output_device)
    if not relabel_nodes:
        return part
    numbers = {t: torch.searchsorted(reached[t], ids).to(part.device) for t, ids in seeds.items()}
    return part, {t: numbers[t] for t in nodes} if isinstance(nodes, Mapping) else numbers[graph.ntypes[0]]


def to_simple(
    g: HeteroGraph,
    return_counts: str | None = "count",
    writeback_mapping: bool = False,
    copy_ndata: bool = True,
    copy_edata: bool = False,
    aggregator: str = "arbitrary",
) -> Any:
    """Return the graph with parallel edges made one; edges are in the order of source, then destination.

    Args:
        g: the graph.
        return_counts: name of the edge feature for the number of merged edges, int64; None leaves it out.
        writeback_mapping: also return the new edge of each edge.
        copy_ndata: carry the node features (the tensors are shared).
        copy_edata: carry the edge features.
        aggregator: the features of merged edges: "arbitrary" (those of the first), "sum" or "mean". Sums of integers
            are int64, their means float32.

    Returns:
        The graph; with ``writeback_mapping`` also int64[num_edges of g], or a dict of them by relation where there are
        several.

    Raises:
        InvalidArgumentError: another ``aggregator``.
    """
    if aggregator not in ("arbitrary", "sum", "mean"):
        raise InvalidArgumentError(f"aggregator must be 'arbitrary', 'sum' or 'mean' (got {aggregator!r})")
    edges, mapping, counts = {}, {}, {}
    for relation in _checked(g, "to_simple").canonical_etypes:
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
            for name, rows in g.edges[relation].data.items():
                frame[name] = _merged(rows, places, counts[relation], first, aggregator)
            if aggregator == "arbitrary":
                frame[EID] = first
        if return_counts is not None:
            frame[return_counts] = counts[relation]
    if not writeback_mapping:
        return simple
    return simple, mapping if len(mapping) > 1 else next(iter(mapping.values()))


def _merged(
    rows: torch.Tensor, places: torch.Tensor, counts: torch.Tensor, first: torch.Tensor, aggregator: str
) -> torch.Tensor:
    if aggregator == "arbitrary":
        return rows[first]
    total = group_sums(rows, places, len(counts))
    if aggregator == "mean":
        total = total / counts.reshape(-1, *[1] * (rows.dim() - 1))
    return rounded(total, rows.dtype)


def reverse(g: HeteroGraph, copy_ndata: bool = True, copy_edata: bool = False) -> HeteroGraph:
    """Return the graph with every edge turned: :meth:`.HeteroGraph.reverse`."""
    return _checked(g, "reverse").reverse(copy_ndata, copy_edata)


def add_self_loop(
    g: HeteroGraph, edge_feat_names: Sequence[str] | None = None, fill_data: float | str = 1.0, etype: EdgeType = None
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
    edges = {}
    for relation in g.canonical_etypes:
        if relation[0] != relation[2]:
            raise InvalidArgumentError(f"to_bidirected needs relations within one type (got {relation})")
        num = g.num_nodes(relation[0])
        src, dst = g.all_edges(etype=relation)
        key = torch.unique(torch.cat([src * num + dst, dst * num + src]))  # sorted, so by source, then destination
        edges[relation] = (key // num, key % num) if num else (src, dst)
    return g.with_edge_lists(edges, copy_ndata)


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
    _checked(g, "to_homogeneous")
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
    several = [graphs] if isinstance(graphs, HeteroGraph) else list(graphs)
    if not several:
        return []
    counts = [{ntype: _checked(g, "compact_graphs").num_nodes(ntype) for ntype in g.ntypes} for g in several]
    if any(other != counts[0] for other in counts):
        raise InvalidArgumentError(f"compact_graphs needs graphs with the same nodes (got {counts})")
    ids = several[0]._by_ntype({} if always_preserve is None else always_preserve)
    touched = {ntype: [kept] for ntype, kept in ids.items()}
    for g in several:
        for relation in g.canonical_etypes:
            for column, ntype in zip(g.all_edges(etype=relation), relation[::2], strict=True):
                touched[ntype].append(column)
    nodes = {ntype: by_first_appearance(torch.cat(columns))[0] for ntype, columns in touched.items()}
    compacted = [g.only_nodes(nodes, copy_ndata, copy_edata) for g in several]
    return compacted[0] if isinstance(graphs, HeteroGraph) else compacted


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
    """Draw ``count`` distinct pairs, all sets of pairs equally likely, in random order."""
    pairs = check_integer("the number of nodes", num_src, 0) * check_integer("the number of nodes", num_dst, 0)
    check_integer("num_edges", count, 0, pairs)
    if 2 * count > pairs:
        pairs_drawn = torch.randperm(pairs)[:count]
    else:  # repeated draws are drawn again
        pairs_drawn = torch.unique(torch.randint(max(pairs, 1), (count,)))
        while len(pairs_drawn) < count:
            pairs_drawn = torch.unique(torch.cat([pairs_drawn, torch.randint(pairs, (count - len(pairs_drawn),))]))
        pairs_drawn = pairs_drawn[torch.randperm(count)]
    return pairs_drawn // max(num_dst, 1), pairs_drawn % max(num_dst, 1)


def _checked(g: HeteroGraph, what: str) -> HeteroGraph:
    """Return the graph. Raises InvalidArgumentError if it is a block."""
    if g.is_block:
        raise InvalidArgumentError(f"{what} takes a graph, not a block: layers take typed blocks as they are")
    return g
