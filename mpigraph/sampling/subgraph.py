"""Sample a minibatch as one subgraph in which every node is expanded once, as PyG does.

Message-flow graphs (hops.py) draw anew in every hop for all nodes found so far, since each layer has a graph of its
own. Here all layers share one graph: a hop draws only for the nodes that the hop before found. From seed 0::

    hops.py          hop 0: 0 <- 3, 7       hop 1: 0 <- 5, 7    3 <- ...    7 <- ...
    subgraph.py      hop 0: 0 <- 3, 7       hop 1:              3 <- ...    7 <- ...
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mpigraph.arrays import I32, I64
from mpigraph.sampling.hops import HopPlan, RandomContext, hop_requests, sampling_key
from mpigraph.sampling.neighbor_service import NeighborService
from mpigraph.sampling.protocol import SampledNeighbors
from mpigraph.store.graph_store import LoadedGraph

__all__ = ["Subgraph", "grow_subgraph"]

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Subgraph:
    """The nodes that a minibatch reaches, and the edges that were drawn on the way.

    Attributes:
        ids: int64[n], global node ids by node type id: the seeds as they were given, then hop after hop the nodes that
            were found.
        edges: int64[2, e] by relation id, the positions of sources and destinations in ``ids``; hop after hop, in a hop
            by destination.
        eids: int64[e], global edge ids by relation id; None if nobody asked.
        num_nodes: by node type id, the number of seeds and of what each hop found: hops + 1 numbers.
        num_edges: by relation id, how many edges each hop drew.
    """

    ids: list[I64]
    edges: list[I64]
    eids: list[I64] | None
    num_nodes: list[list[int]]
    num_edges: list[list[int]]


@dataclass(frozen=True)
class _Piece:
    """What one hop drew in one relation."""

    edges: I64
    eids: I64


def grow_subgraph(
    service: NeighborService,
    graph: LoadedGraph,
    seeds: Mapping[int, I64],
    plans: Sequence[HopPlan],
    draw: RandomContext,
    error: BaseException | None = None,
) -> Subgraph:
    """Sample the subgraph of one minibatch.

    The order of nodes and edges is that of pyg-lib's ``neighbor_sample``: relations of a hop by their ids, destinations
    as they were found.

    Args:
        service: who samples.
        graph: what is sampled.
        seeds: int64[n] by node type id.
        plans: one for each layer, input side first (DGL's order); all of them want edge ids, or none.
        draw: what the choices depend on.
        error: a reason why this rank cannot ask; every rank of the round raises.

    Collective on the channel's trainers when hosts are far; local when all are near.
    """
    schema, tables = graph.topology.hosts.schema, service.local_ids(graph)
    for ntype, table in enumerate(tables):
        table.reset(seeds.get(ntype, _NONE))
    begins = [[0, table.count] for table in tables]  # where the nodes of each hop begin
    drawn: list[dict[int, _Piece]] = []
    for hop, plan in enumerate(reversed(plans)):
        frontier = {ntype: table.ids[begins[ntype][hop] :] for ntype, table in enumerate(tables)}
        requests = hop_requests(plan, graph, frontier, sampling_key(draw, seeds, hop))
        pieces = {}
        for request, part in zip(requests, service.sample(requests, error), strict=True):
            src, dst = schema.ends(request.relation)
            pieces[request.relation] = _Piece(_edges(part, tables[src].insert(part.src), begins[dst][hop]), part.eids)
        drawn.append(pieces)
        for ntype, table in enumerate(tables):
            begins[ntype].append(table.count)
    want_eids = all(plan.want_eids for plan in plans)
    none = _Piece(np.empty((2, 0), np.int64), _NONE)
    by_relation = [[pieces.get(r, none) for pieces in drawn] for r in range(len(schema.relations))]
    return Subgraph(
        ids=[table.ids.copy() for table in tables],
        edges=[np.concatenate([none.edges, *(p.edges for p in pieces)], axis=1) for pieces in by_relation],
        eids=[np.concatenate([_NONE, *(p.eids for p in pieces)]) for pieces in by_relation] if want_eids else None,
        num_nodes=[np.diff(positions).tolist() for positions in begins],
        num_edges=[[p.edges.shape[1] for p in pieces] for pieces in by_relation],
    )


def _edges(part: SampledNeighbors, src: I32, first_dst: int) -> I64:
    """int64[2, e]: the local ends of drawn edges, destinations being numbered from ``first_dst``."""
    counts = np.diff(part.offsets)
    edges = np.empty((2, len(src)), np.int64)
    edges[0] = src
    edges[1] = np.repeat(np.arange(first_dst, first_dst + len(counts)), counts)
    return edges
