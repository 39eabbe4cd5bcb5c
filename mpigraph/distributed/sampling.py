"""Neighbour sampling on a DistGraph: one hop as an in-memory graph, or the blocks of a whole minibatch.

And whether edges exist: like a node's neighbours, its owner knows.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from mpigraph.base import EID
from mpigraph.block import Block
from mpigraph.distributed.context import Session
from mpigraph.distributed.ids import as_ids
from mpigraph.errors import EdgeTypeError, InvalidArgumentError, MPIGraphError
from mpigraph.heterograph import HeteroGraph
from mpigraph.metadata.book import check_ids
from mpigraph.metadata.schema import Relation, Schema
from mpigraph.service.hops import Draw, Hop, HopPlan, hop_requests, sample_minibatch, sampling_key
from mpigraph.service.protocol import EdgeQuery
from mpigraph.service.sampling import NeighborService
from mpigraph.service.state import Graph

__all__ = ["edge_weights", "has_edges_between", "in_subgraph", "sample_blocks", "sample_neighbors"]

_I64 = npt.NDArray[np.int64]
_NONE = np.empty(0, np.int64)
Blocks = tuple[torch.Tensor, torch.Tensor, list[Block]]


class SampledGraph(Protocol):
    """What sampling needs of a DistGraph."""

    loaded: Graph

    @property
    def schema(self) -> Schema: ...
    @property
    def session(self) -> Session: ...
    @property
    def service(self) -> NeighborService: ...
    @property
    def edata(self) -> Mapping[str, Any]: ...
    def num_nodes(self, ntype: str | None = None) -> int: ...


def sample_neighbors(
    g: SampledGraph,
    nodes: Any,
    fanout: int,
    edge_dir: str = "in",
    prob: str | None = None,
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
        nodes: int[n], node ids.
        fanout: most neighbours of a node; -1 means all.
        edge_dir: only "in": parts hold the in-edges of their nodes.
        prob: name of an edge feature with a weight for each edge, or a mask. Drawn with probability proportional to
            the weight; an edge of weight 0 is never drawn.
        exclude_edges: int[k], edge ids, or a dict of them by edge type; they may repeat, and end anywhere. The draw is
            as if these edges did not exist: a node with d in-edges, m of them excluded, is one with d - m.
        replace: draw with replacement: exactly ``fanout`` neighbours of a node that has any.
        etype_sorted: accepted for DGL's scripts.
        output_device: where to put the graph; the CPU by default.
        use_graphbolt: accepted for DGL's scripts.
        seed: makes the draw a function of the arguments alone. By default two calls differ, and the same program
            repeats the same draws on any number of ranks.

    Returns:
        A graph with all nodes of ``g`` and the sampled edges, ordered by their destination's place in ``nodes``;
        ``edata[EID]`` are their ids in ``g``.

    Raises:
        OutOfRangeError: a node or an excluded edge does not exist. On every rank if hosts are far.
        FieldNameError: there is no edge feature ``prob``.
        EdgeTypeError: excluded edges of a type that does not exist.
        InvalidArgumentError: fanout below -1, another ``edge_dir``, or ids that are not integers.

    Collective on the trainers when hosts are far; local when all are near.
    """
    schema, session = g.schema, g.session
    seeds, plans, error = _prepare(g, nodes, [fanout], edge_dir, prob, exclude_edges, replace, want_eids=True)
    ids = next(iter(seeds.values()))
    g.service.use_threads(session.num_threads)
    key = sampling_key(session.draw(seed), seeds, 0)
    requests = hop_requests(plans[0], g.loaded, seeds, key)
    parts = g.service.sample(requests, error)
    relation = schema.relations[0]
    edges, eids = (np.empty(0, np.int64), np.empty(0, np.int64)), np.empty(0, np.int64)
    for part in parts:
        edges = (part.src.astype(np.int64), np.repeat(ids, np.diff(part.offsets)))
        eids = part.eids
    counts = {ntype: g.num_nodes(ntype) for ntype in schema.ntypes}
    frontier = HeteroGraph(schema, {relation: (torch.from_numpy(edges[0]), torch.from_numpy(edges[1]))}, counts)
    frontier.edges[relation].data[EID] = torch.from_numpy(eids)
    return frontier if output_device is None else frontier.to(output_device)


def in_subgraph(g: SampledGraph, nodes: Any) -> HeteroGraph:
    """All in-edges of nodes, as :func:`sample_neighbors` returns them.

    Collective on the trainers when hosts are far; local when all are near.
    """
    return sample_neighbors(g, nodes, -1)


def sample_blocks(
    g: SampledGraph,
    seed_nodes: Any,
    fanouts: Sequence[int],
    *,
    edge_dir: str = "in",
    prob: str | None = None,
    exclude_edges: Any = None,
    replace: bool = False,
    return_eids: bool = True,
    seed: int | None = None,
    num_threads: int | None = None,
) -> Blocks:
    """Sample the blocks of one minibatch, all hops fused.

    Args:
        g: a :class:`DistGraph`.
        seed_nodes: int[n], node ids.
        fanouts: fanout of each layer, input side first.
        edge_dir: only "in".
        prob: as in :func:`sample_neighbors`.
        exclude_edges: as in :func:`sample_neighbors`; left out in every layer.
        replace: as in :func:`sample_neighbors`.
        return_eids: whether ``edata[EID]`` is wanted; without it less is moved.
        seed: as in :func:`sample_neighbors`.
        num_threads: threads that draw near neighbours; by default what ``initialize`` was told.

    Returns:
        Input nodes int64, output nodes int64 and the blocks, input side first.

    Raises:
        OutOfRangeError: a seed or an excluded edge does not exist. On every rank if hosts are far.
        FieldNameError: there is no edge feature ``prob``.
        EdgeTypeError: excluded edges of a type that does not exist.
        InvalidArgumentError: a fanout below -1, another ``edge_dir``, or ids that are not integers.

    Collective on the trainers when hosts are far; local when all are near.
    """
    seeds, plans, error = _prepare(g, seed_nodes, fanouts, edge_dir, prob, exclude_edges, replace, return_eids)
    if error is not None and not plans:
        raise error  # no layer, no round that could tell the others
    draw: Draw = g.session.draw(seed)
    g.service.use_threads(num_threads or g.session.num_threads)
    hops = sample_minibatch(g.service, g.loaded, seeds, plans, draw, error)
    output = torch.from_numpy(next(iter(seeds.values())))
    blocks = [_block(g.schema, hop) for hop in hops]
    input_ids = torch.from_numpy(hops[0].src_ids[0]) if hops else output
    return input_ids, output, blocks


def has_edges_between(g: SampledGraph, u: Any, v: Any, etype: str | Relation | None = None) -> torch.Tensor:
    """Whether there is an edge from ``u[i]`` to ``v[i]``; one round, whatever the number of edges.

    Args:
        g: a :class:`DistGraph`.
        u: int[n], sources.
        v: int[n], destinations.
        etype: the edge type; None if there is one.

    Returns:
        bool[n]; of parallel edges one is enough.

    Raises:
        OutOfRangeError: a node does not exist. As with the other errors, on every rank if hosts are far.
        EdgeTypeError: the edge type does not exist or is ambiguous.
        InvalidArgumentError: ids that are not integers, or ``u`` and ``v`` of different lengths.

    Collective on the trainers when hosts are far; local when all are near.
    """
    query = EdgeQuery(g.loaded.number, 0, _NONE, _NONE)
    error: MPIGraphError | None = None
    try:
        query = _edge_query(g, as_ids(u, "source ids"), as_ids(v, "destination ids"), g.schema.relation_id(etype))
    except MPIGraphError as exc:  # raised on every rank by the round
        error = exc
    g.service.use_threads(g.session.num_threads)
    return torch.from_numpy(g.service.has_edges(query, error))


def _block(schema: Schema, hop: Hop) -> Block:
    return Block.from_csc(
        schema,
        {schema.relations[r]: (part.indptr, part.indices, part.eids) for r, part in hop.parts.items()},
        {schema.ntypes[t]: ids for t, ids in hop.src_ids.items()},
        {schema.ntypes[t]: count for t, count in hop.num_dst.items()},
    )


def _prepare(
    g: SampledGraph,
    nodes: Any,
    fanouts: Sequence[int],
    edge_dir: str,
    prob: str | None,
    exclude_edges: Any,
    replace: bool,
    want_eids: bool,
) -> tuple[dict[int, _I64], list[HopPlan], MPIGraphError | None]:
    """Check the arguments of this rank; what is wrong is returned, to be raised on every rank of the round."""
    seeds, plans = {0: _NONE}, [HopPlan({0: 0}, replace, {}, want_eids) for _ in fanouts]
    try:
        if len(g.schema.relations) != 1:
            raise EdgeTypeError("sampling works on graphs with one edge type")
        if edge_dir != "in":
            raise InvalidArgumentError(f"edge_dir must be 'in': parts hold in-edges (got {edge_dir!r})")
        for fanout in fanouts:
            if not isinstance(fanout, int | np.integer) or fanout < -1:
                raise InvalidArgumentError(f"fanout must be an integer >= -1 (got {fanout!r})")
        weights = {} if prob is None else {0: edge_weights(g, prob)}
        dst = g.schema.ends(0)[1]
        seeds = {dst: as_ids(nodes, "node ids")}
        excluded = _excluded(g, exclude_edges)
        plans = [HopPlan({0: int(fanout)}, replace, weights, want_eids, excluded) for fanout in fanouts]
        _check_nodes(g, seeds[dst], dst)
    except MPIGraphError as error:
        return seeds, plans, error
    return seeds, plans, None


def _check_nodes(g: SampledGraph, ids: _I64, ntype_id: int) -> None:
    check_ids(ids, g.loaded.topology.hosts.num_nodes(ntype_id), f"node id of type {g.schema.ntypes[ntype_id]!r}")


def _excluded(g: SampledGraph, edges: Any) -> dict[int, _I64]:
    """By relation id, the ids of edges to leave out, ascending, each once."""
    if edges is None:
        return {}
    book = g.loaded.topology.hosts
    found: dict[int, list[_I64]] = {}
    for etype, some in edges.items() if isinstance(edges, Mapping) else [(None, edges)]:
        relation = g.schema.relation_id(etype)
        ids = as_ids(some, "exclude_edges")
        check_ids(ids, book.num_edges(relation), f"exclude_edges: edge id of relation {g.schema.relations[relation]}")
        found.setdefault(relation, []).append(ids)
    return {relation: np.unique(np.concatenate(lists)) for relation, lists in found.items()}


def _edge_query(g: SampledGraph, src: _I64, dst: _I64, relation: int) -> EdgeQuery:
    if len(src) != len(dst):
        raise InvalidArgumentError(f"an edge has two ends (got {len(src)} sources and {len(dst)} destinations)")
    for ids, ntype_id in zip((src, dst), g.schema.ends(relation), strict=True):
        _check_nodes(g, ids, ntype_id)
    return EdgeQuery(g.loaded.number, relation, dst, src)


def edge_weights(g: SampledGraph, prob: str) -> int:
    """The number of the tensor of edge weights. Local; no communication.

    Raises:
        FieldNameError: there is no such edge feature.
        InvalidArgumentError: it is not one number or mask for each edge.
    """
    tensor = g.edata[prob]
    if len(tensor.shape) != 1 or tensor.rows.dtype not in ("bool", "uint8", "float32", "float64"):
        raise InvalidArgumentError(
            f"edge weights {prob!r} must be one bool, uint8, float32 or float64 for each edge "
            f"(got {tensor.dtype}, shape {tensor.shape})"
        )
    return int(tensor.rows.number)
