"""Sample a whole minibatch: hop after hop, renumbered on the way, nothing sorted.

Fused: one map from global to local ids lives through all hops of a minibatch. A hop's sources are the next hop's
destinations with the same local numbers, and the destinations of a hop are its first sources, as message-flow graphs
demand. Message-flow graphs draw anew in every hop for all nodes found so far, since each layer has a graph of its own.
In PyG all layers share one graph, in which every node is expanded once: a hop draws only for the nodes that the hop
before found. From seed 0::

    blocks      hop 0: 0 <- 3, 7       hop 1: 0 <- 5, 7    3 <- ...    7 <- ...
    subgraph    hop 0: 0 <- 3, 7       hop 1:              3 <- ...    7 <- ...
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mpigraph.arrays import I32, I64
from mpigraph.kernels.rng import combine, fingerprint
from mpigraph.metadata.schema import Schema
from mpigraph.sampling.neighbor_service import NeighborService
from mpigraph.sampling.protocol import Kind, RelationRequest
from mpigraph.store.graph_store import LoadedGraph

__all__ = [
    "Hop",
    "RandomContext",
    "SampledCSC",
    "SampledHops",
    "SamplingPlan",
    "Subgraph",
    "hop_requests",
    "sample_hops",
    "sampling_key",
]

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class RandomContext:
    """What the random choices of a minibatch depend on, besides its seeds.

    Attributes:
        seed: the user's seed.
        epoch: which pass over the data, or which call.
    """

    seed: int
    epoch: int


@dataclass(frozen=True)
class SamplingPlan:
    """How a minibatch is sampled.

    Attributes:
        fanouts: for each layer, input side first (DGL's order), the fanout by relation id; relations left out are not
            sampled.
        replace: with replacement.
        weights: tensor number of the edge weights by relation id; relations left out are uniform.
        want_eids: whether edge ids are wanted.
        excluded: by relation id, int64[k] edge ids, removed before sampling in every layer; ascending, each once.
    """

    fanouts: Sequence[Mapping[int, int]]
    replace: bool
    weights: Mapping[int, int]
    want_eids: bool
    excluded: Mapping[int, I64] = field(default_factory=dict)


@dataclass(frozen=True)
class SampledCSC:
    """The sampled edges of one relation with local source ids.

    Attributes:
        indptr: int64[num_dst + 1].
        indices: int32[edges], positions in the hop's source ids.
        eids: int64[edges], global edge ids; empty if nobody asked.
    """

    indptr: I64
    indices: I32
    eids: I64


_NO_ENDS = np.empty((2, 0), np.int64)
_NO_EDGES = SampledCSC(np.zeros(1, np.int64), np.empty(0, np.int32), _NONE)


@dataclass(frozen=True)
class Hop:
    """What one hop drew.

    Attributes:
        edges: sampled edges by relation id.
        first_dst: by node type id, the local id of the first destination; 0 in hops of blocks.
        num_dst: by node type id, one behind the local id of the last destination.
        num_src: by node type id, how many nodes there were after the hop; the first ``num_dst`` were there before.
    """

    edges: dict[int, SampledCSC]
    first_dst: list[int]
    num_dst: list[int]
    num_src: list[int]


@dataclass(frozen=True)
class Subgraph:
    """The nodes that a minibatch reaches, and the edges that were drawn on the way.

    The order of nodes and edges is that of pyg-lib's ``neighbor_sample``: relations of a hop by their ids, destinations
    as they were found.

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
class SampledHops:
    """All hops of a minibatch.

    Attributes:
        schema: the types of the graph.
        ids: int64[n], global node ids by node type id; the seeds first, then as they were found. Local ids are
            positions here, so a hop's sources are the first ``num_src`` of these.
        hops: the hop of the seeds first.
        want_eids: whether edge ids were asked for.
    """

    schema: Schema
    ids: list[I64]
    hops: list[Hop]
    want_eids: bool

    def subgraph(self) -> Subgraph:
        """The hops as one graph, where each node was expanded once."""
        edges, eids, num_edges = [], [], []
        for relation in range(len(self.schema.relations)):
            dst = self.schema.ends(relation)[1]
            drawn = [(hop.edges.get(relation, _NO_EDGES), hop.first_dst[dst]) for hop in self.hops]
            edges.append(np.concatenate([_NO_ENDS, *(_ends(csc, first) for csc, first in drawn)], axis=1))
            eids.append(np.concatenate([_NONE, *(csc.eids for csc, _ in drawn)]))
            num_edges.append([len(csc.indices) for csc, _ in drawn])
        num_nodes = []
        for ntype, ids in enumerate(self.ids):
            num_nodes.append(np.diff([0, *(hop.num_dst[ntype] for hop in self.hops), len(ids)]).tolist())
        return Subgraph(self.ids, edges, eids if self.want_eids else None, num_nodes, num_edges)


def sampling_key(context: RandomContext, seeds: Mapping[int, I64], hop: int) -> np.uint64:
    """Return the hop's RNG key; relation, node and draw index are mixed in later.

    Args:
        context: user seed and epoch.
        seeds: int64[n] by node type id; their order does not matter.
        hop: 0 for the hop of the seeds.
    """
    key = combine(context.seed, context.epoch)
    for ntype, ids in sorted(seeds.items()):
        if len(ids):
            key = combine(key, ntype, fingerprint(ids))
    return combine(key, hop)


def hop_requests(
    plan: SamplingPlan, layer: int, graph: LoadedGraph, frontier: Mapping[int, I64], key: np.uint64
) -> list[RelationRequest]:
    """The requests of one hop, one for each relation that has destinations in the frontier and a fanout."""
    schema = graph.topology.hosts.schema
    requests = []
    for relation, fanout in sorted(plan.fanouts[layer].items()):
        ids = frontier.get(schema.ends(relation)[1], _NONE)
        if len(ids) == 0 or fanout == 0:
            continue
        requests.append(
            RelationRequest(
                graph=graph.number,
                relation=relation,
                ids=ids,
                fanout=fanout,
                replace=plan.replace,
                want_eids=plan.want_eids,
                key=combine(key, relation),
                kind=Kind.WEIGHTED if relation in plan.weights else Kind.UNIFORM,
                weights=plan.weights.get(relation, 0),
                excluded=plan.excluded.get(relation, _NONE),
            )
        )
    return requests


def sample_hops(
    service: NeighborService,
    graph: LoadedGraph,
    seeds: Mapping[int, I64],
    plan: SamplingPlan,
    context: RandomContext,
    *,
    expand_once: bool,
    error: BaseException | None = None,
) -> SampledHops:
    """Sample all hops of one minibatch.

    Args:
        service: who samples.
        graph: what is sampled.
        seeds: int64[n] by node type id.
        plan: how.
        context: what the choices depend on.
        expand_once: a hop draws only for the nodes that the hop before found, else for all nodes found so far.
        error: a reason why this rank cannot ask; every rank of the round raises.

    Collective on the channel's trainers when hosts are far; local when all are near.
    """
    schema = graph.topology.hosts.schema
    tables = service.local_ids(graph)
    for ntype, table in enumerate(tables):
        table.reset(seeds.get(ntype, _NONE))
    hops: list[Hop] = []
    first_dst = [0 for _ in tables]
    for layer in reversed(range(len(plan.fanouts))):
        num_dst = [table.count for table in tables]
        frontier = {ntype: table.ids[first_dst[ntype] :] for ntype, table in enumerate(tables)}
        requests = hop_requests(plan, layer, graph, frontier, sampling_key(context, seeds, len(hops)))
        edges = {}
        for request, found in zip(requests, service.sample(requests, error), strict=True):
            indices = tables[schema.ends(request.relation)[0]].insert(found.src)
            edges[request.relation] = SampledCSC(found.offsets, indices, found.eids)
        hops.append(Hop(edges, first_dst, num_dst, [table.count for table in tables]))
        first_dst = num_dst if expand_once else first_dst
    return SampledHops(schema, [table.ids.copy() for table in tables], hops, plan.want_eids)


def _ends(csc: SampledCSC, first_dst: int) -> I64:
    """int64[2, e]: the local ends of drawn edges, destinations being numbered from ``first_dst``."""
    counts = np.diff(csc.indptr)
    ends = np.empty((2, len(csc.indices)), np.int64)
    ends[0] = csc.indices
    ends[1] = np.repeat(np.arange(first_dst, first_dst + len(counts)), counts)
    return ends
