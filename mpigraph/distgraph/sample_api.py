"""Neighbour sampling on a DistGraph: one hop as an in-memory graph, or the blocks of a whole minibatch.

All relations of a hop travel in the same messages. And whether edges exist: like a node's neighbours, its owner knows.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from mpigraph.dataloading.edges import by_relation
from mpigraph.dataloading.sampler import Blocks, Fanout
from mpigraph.distgraph.sampling_args import PlannedGraph, as_given, check_nodes, plan_hops
from mpigraph.errors import EdgeTypeError, InvalidArgumentError, MPIGraphError
from mpigraph.graphs.block import Block
from mpigraph.graphs.fields import EID
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.metadata.schema import Relation, Schema
from mpigraph.sampling.hops import Hop, RandomContext, hop_requests, sample_minibatch, sampling_key
from mpigraph.sampling.neighbor_service import NeighborService
from mpigraph.sampling.protocol import EdgeQuery
from mpigraph.session.context import Session

__all__ = ["has_edges_between", "in_subgraph", "sample_blocks", "sample_etype_neighbors", "sample_neighbors"]

_NONE = np.empty(0, np.int64)


class SampledGraph(PlannedGraph, Protocol):
    """What sampling needs of a DistGraph."""

    @property
    def session(self) -> Session: ...
    @property
    def service(self) -> NeighborService: ...
    def num_nodes(self, ntype: str | None = None) -> int: ...


def sample_neighbors(
    g: SampledGraph,
    nodes: Any,
    fanout: Fanout,
    edge_dir: str = "in",
    prob: str | Mapping[Any, str] | None = None,
    exclude_edges: Any = None,
    replace: bool = False,
    etype_sorted: bool = True,
    output_device: torch.device | str | None = None,
    *,
    use_graphbolt: bool = False,
    seed: int | None = None,
) -> HeteroGraph:
    """Sample in-neighbours of nodes.

    Args:
        g: a :class:`DistGraph`.
        nodes: int[n], node ids; or node type -> int[n], which graphs with several node types need.
        fanout: most neighbours of a node in each relation; -1 means all. Or edge type -> most neighbours, with every
            edge type.
        edge_dir: only "in": parts hold the in-edges of their nodes.
        prob: name of an edge feature with a weight for each edge, or a mask. Drawn with probability proportional to
            the weight; an edge of weight 0 is never drawn. It counts for the relations that have the feature, the
            others are drawn uniformly; or edge type -> name.
        exclude_edges: int[k], edge ids, or a dict of them by edge type; they may repeat, and end anywhere. The draw is
            as if these edges did not exist: a node with d in-edges, m of them excluded, is one with d - m.
        replace: draw with replacement: exactly ``fanout`` neighbours of a node that has any.
        etype_sorted: accepted for DGL's scripts.
        output_device: where to put the graph; the CPU by default.
        use_graphbolt: accepted for DGL's scripts.
        seed: makes the draw a function of the arguments alone. By default two calls differ, and the same program
            repeats the same draws on any number of ranks.

    Returns:
        A graph with all nodes and relations of ``g`` and the sampled edges, ordered by their destination's place in
        ``nodes``; ``edges[etype].data[EID]`` are their ids in ``g``.

    Raises:
        OutOfRangeError: a node or an excluded edge does not exist. On every rank if hosts are far.
        FieldNameError: there is no edge feature ``prob``.
        NodeTypeError: a node type does not exist, or there are several and ``nodes`` are not by type.
        EdgeTypeError: a fanout, a weight or excluded edges of a type that does not exist, or a fanout is missing.
        InvalidArgumentError: fanout below -1, another ``edge_dir``, or ids that are not integers.

    Collective on the trainers when hosts are far; local when all are near.
    """
    schema = g.schema
    seeds, (plan,), error = plan_hops(
        g,
        nodes,
        [fanout],
        edge_dir=edge_dir,
        prob=prob,
        exclude_edges=exclude_edges,
        replace=replace,
    )
    g.service.use_threads(g.session.num_threads)
    requests = hop_requests(plan, g.loaded, seeds, sampling_key(g.session.draw(seed), seeds, 0))
    edges, eids = dict.fromkeys(schema.relations, (_NONE, _NONE)), dict.fromkeys(schema.relations, _NONE)
    for request, part in zip(requests, g.service.sample(requests, error), strict=True):
        relation = schema.relations[request.relation]
        edges[relation] = part.src.astype(np.int64), np.repeat(request.ids, np.diff(part.offsets))
        eids[relation] = part.eids
    columns = {r: (torch.from_numpy(src), torch.from_numpy(dst)) for r, (src, dst) in edges.items()}
    frontier = HeteroGraph(schema, columns, {ntype: g.num_nodes(ntype) for ntype in schema.ntypes})
    for relation, ids in eids.items():
        frontier.edges[relation].data[EID] = torch.from_numpy(ids)
    return frontier if output_device is None else frontier.to(output_device)


sample_etype_neighbors = sample_neighbors
"""DGL's name for sampling with a fanout for each relation, which is what :func:`sample_neighbors` does."""


def in_subgraph(g: SampledGraph, nodes: Any) -> HeteroGraph:
    """All in-edges of nodes, as :func:`sample_neighbors` returns them.

    Collective on the trainers when hosts are far; local when all are near.
    """
    return sample_neighbors(g, nodes, -1)


def sample_blocks(
    g: SampledGraph,
    seed_nodes: Any,
    fanouts: Sequence[Fanout],
    *,
    edge_dir: str = "in",
    prob: str | Mapping[Any, str] | None = None,
    exclude_edges: Any = None,
    replace: bool = False,
    return_eids: bool = True,
    seed: int | None = None,
    num_threads: int | None = None,
) -> Blocks:
    """Sample the blocks of one minibatch, all hops fused.

    Args:
        g: a :class:`DistGraph`.
        seed_nodes: int[n], node ids; or node type -> int[n].
        fanouts: fanout of each layer, input side first; each as in :func:`sample_neighbors`.
        edge_dir: only "in".
        prob: as in :func:`sample_neighbors`.
        exclude_edges: as in :func:`sample_neighbors`; left out in every layer.
        replace: as in :func:`sample_neighbors`.
        return_eids: whether ``edata[EID]`` is wanted; without it less is moved.
        seed: as in :func:`sample_neighbors`.
        num_threads: threads that draw near neighbours; by default what ``initialize`` was told.

    Returns:
        Input nodes and output nodes, int64 each (where the graph has several node types: by type), and the blocks,
        input side first.

    Raises:
        OutOfRangeError: a seed or an excluded edge does not exist. On every rank if hosts are far.
        FieldNameError: there is no edge feature ``prob``.
        NodeTypeError: a node type does not exist, or there are several and ``seed_nodes`` are not by type.
        EdgeTypeError: a fanout, a weight or excluded edges of a type that does not exist, or a fanout is missing.
        InvalidArgumentError: a fanout below -1, another ``edge_dir``, or ids that are not integers.

    Collective on the trainers when hosts are far; local when all are near.
    """
    seeds, plans, error = plan_hops(
        g,
        seed_nodes,
        fanouts,
        edge_dir=edge_dir,
        prob=prob,
        exclude_edges=exclude_edges,
        replace=replace,
        return_eids=return_eids,
    )
    draw: RandomContext = g.session.draw(seed)
    g.service.use_threads(num_threads or g.session.num_threads)
    hops = sample_minibatch(g.service, g.loaded, seeds, plans, draw, error)
    blocks = [_block(g.schema, hop, return_eids) for hop in hops]
    return as_given(g.schema, hops[0].src_ids if hops else seeds), as_given(g.schema, seeds), blocks


def has_edges_between(g: SampledGraph, u: Any, v: Any, etype: str | Relation | None = None) -> Any:
    """Whether there is an edge from ``u[i]`` to ``v[i]``; one round, whatever the number of edges and of relations.

    Args:
        g: a :class:`DistGraph`.
        u: int[n], sources; or edge type -> int[n], to ask about several relations at once.
        v: int[n], destinations; or a dict with the same edge types as ``u``, in any order and spelling.
        etype: the edge type; None if there is one, or with dicts.

    Returns:
        bool[n], or relation -> bool[n]; of parallel edges one is enough.

    Raises:
        OutOfRangeError: a node does not exist. As with the other errors, on every rank if hosts are far.
        EdgeTypeError: the edge type does not exist or is ambiguous, or ``v`` has not the edge types of ``u``.
        InvalidArgumentError: ids that are not integers, ``u`` and ``v`` of different lengths, two edge types that are
            the same relation, or ``etype`` together with dicts.

    Collective on the trainers when hosts are far; local when all are near.
    """
    queries: list[EdgeQuery] = []
    error: MPIGraphError | None = None
    try:
        queries = _edge_queries(g, u, v, etype)
    except MPIGraphError as exc:  # raised on every rank by the round
        error = exc
    g.service.use_threads(g.session.num_threads)
    found = [torch.from_numpy(exist) for exist in g.service.has_edges(queries, error)]
    if not isinstance(u, Mapping):
        return found[0]
    return {g.schema.relations[query.relation]: exist for query, exist in zip(queries, found, strict=True)}


def _block(schema: Schema, hop: Hop, with_eids: bool) -> Block:
    parts = {schema.relations[r]: (part.indptr, part.indices, part.eids) for r, part in hop.parts.items()}
    block = Block.from_csc(
        schema,
        parts,
        {schema.ntypes[t]: ids for t, ids in hop.src_ids.items()},
        {schema.ntypes[t]: count for t, count in hop.num_dst.items()},
    )
    for relation in schema.relations:
        if with_eids and relation not in parts:
            block.edges[relation].data[EID] = torch.from_numpy(_NONE)
    return block


def _edge_queries(g: SampledGraph, u: Any, v: Any, etype: str | Relation | None) -> list[EdgeQuery]:
    """What to ask, relation by relation."""
    if etype is not None and (isinstance(u, Mapping) or isinstance(v, Mapping)):
        raise InvalidArgumentError(f"give etype or dicts by edge type, not both (got etype={etype!r})")
    src, dst = (
        by_relation(g.schema, ids if isinstance(ids, Mapping) else {etype: ids}, what)
        for ids, what in ((u, "source ids"), (v, "destination ids"))
    )
    if src.keys() != dst.keys():
        raise EdgeTypeError(f"sources are of edge types {list(src)}, destinations of {list(dst)}")
    queries = []
    for name, some in src.items():
        relation, ends = g.schema.relation_id(name), (some.numpy(), dst[name].numpy())
        if len(ends[0]) != len(ends[1]):
            raise InvalidArgumentError(
                f"an edge has two ends (got {len(ends[0])} sources and {len(ends[1])} destinations of {name})"
            )
        for ids, ntype_id in zip(ends, g.schema.ends(relation), strict=True):
            check_nodes(g, ids, ntype_id)
        queries.append(EdgeQuery(g.loaded.number, relation, ends[1], ends[0]))
    return queries
