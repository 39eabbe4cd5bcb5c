"""Sample a whole minibatch: hop after hop, renumbered on the way, nothing sorted.

Fused: one map from global to local ids lives through all hops of a minibatch. A hop's sources are the next hop's
destinations with the same local numbers, and the destinations of a hop are its first sources, as message-flow graphs
demand. Message-flow graphs draw anew in every hop for all nodes found so far, since each layer has a graph of its own.
In PyG all layers share one graph, in which every node is expanded once: a hop draws only for the nodes that the hop
before found. From seed 0::

    blocks      hop 0: 0 <- 3, 7       hop 1: 0 <- 5, 7    3 <- ...    7 <- ...
    subgraph    hop 0: 0 <- 3, 7       hop 1:              3 <- ...    7 <- ...

Where trees are disjoint every seed is the root of a tree of its own, and a node is in each tree that reaches it. What a
tree draws depends on its root, and on the time of it, and not on the minibatch that it is in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mpigraph.arrays import I32, I64, U64
from mpigraph.collective import WHEN_FAR, collective
from mpigraph.kernels.rng import combine, fingerprint
from mpigraph.kernels.temporal import root_keys, tree_keys
from mpigraph.metadata.schema import Schema
from mpigraph.sampling.neighbor_service import NeighborService
from mpigraph.sampling.protocol import Kind, RelationRequest, SampledNeighbors
from mpigraph.store.store import LoadedGraph

__all__ = [
    "Hop",
    "RandomContext",
    "SampledCSC",
    "SampledHops",
    "SamplingPlan",
    "Subgraph",
    "Temporal",
    "Trees",
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
class Temporal:
    """Which edges may be drawn by the time of a root.

    Attributes:
        times: number of the times of edges by relation id; relations left out have none, and are not filtered.
        last: draw among the newest edges alone.
        strict: edges of just the root's time are left out, too.
        window: how much older than the root an edge may be at most; -1 without a limit.
    """

    times: Mapping[int, int]
    last: bool
    strict: bool
    window: int


@dataclass(frozen=True)
class Trees:
    """The trees of a minibatch, one for each seed, those of node type 0 first.

    Attributes:
        of_nodes: int64[n] by node type id, the tree that each node is in.
        times: int64[trees], the times of their roots; None without times.
    """

    of_nodes: list[I64]
    times: I64 | None


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
        disjoint: whether each seed has a tree of its own.
        temporal: which edges a root's time leaves; such trees are disjoint.
    """

    fanouts: Sequence[Mapping[int, int]]
    replace: bool
    weights: Mapping[int, int]
    want_eids: bool
    excluded: Mapping[int, I64] = field(default_factory=dict)
    disjoint: bool = False
    temporal: Temporal | None = None


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
        trees: which tree each node is in, if trees are disjoint.
    """

    ids: list[I64]
    edges: list[I64]
    eids: list[I64] | None
    num_nodes: list[list[int]]
    num_edges: list[list[int]]
    trees: Trees | None = None


@dataclass(frozen=True)
class SampledHops:
    """All hops of a minibatch.

    Attributes:
        schema: the types of the graph.
        ids: int64[n], global node ids by node type id; the seeds first, then as they were found. Local ids are
            positions here, so a hop's sources are the first ``num_src`` of these.
        hops: the hop of the seeds first.
        want_eids: whether edge ids were asked for.
        trees: which tree each of ``ids`` is in, if trees are disjoint.
    """

    schema: Schema
    ids: list[I64]
    hops: list[Hop]
    want_eids: bool
    trees: Trees | None = None

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
        return Subgraph(self.ids, edges, eids if self.want_eids else None, num_nodes, num_edges, self.trees)


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
    plan: SamplingPlan,
    layer: int,
    graph: LoadedGraph,
    frontier: Mapping[int, I64],
    key: np.uint64,
    trees: "_Growing | None" = None,
) -> list[RelationRequest]:
    """The requests of one hop, one for each relation that has destinations in the frontier and a fanout."""
    schema = graph.topology.hosts.schema
    requests = []
    for relation, fanout in sorted(plan.fanouts[layer].items()):
        ids = frontier.get(schema.ends(relation)[1], _NONE)
        if len(ids) == 0 or fanout == 0:
            continue
        request = RelationRequest(
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
        requests.append(request if trees is None else trees.request(request, schema.ends(relation)[1], plan.temporal))
    return requests


@collective("the channel's trainers", WHEN_FAR)
def sample_hops(
    service: NeighborService,
    graph: LoadedGraph,
    seeds: Mapping[int, I64],
    plan: SamplingPlan,
    context: RandomContext,
    *,
    expand_once: bool,
    times: Mapping[int, I64] | None = None,
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
        times: int64[n] by node type id, the time of each seed, if the plan is temporal.
        error: a reason why this rank cannot ask; every rank of the round raises.
    """
    schema = graph.topology.hosts.schema
    trees = _Growing(service, graph, seeds, plan, context, times) if plan.disjoint else None
    tables = service.local_ids(graph) if trees is None else []
    for ntype, table in enumerate(tables):
        table.reset(seeds.get(ntype, _NONE))
    nodes = tables if trees is None else trees.tables
    hops: list[Hop] = []
    first_dst = [0 for _ in nodes]
    for layer in reversed(range(len(plan.fanouts))):
        num_dst = [table.count for table in nodes]
        if trees is None:
            frontier = {ntype: table.ids[first_dst[ntype] :] for ntype, table in enumerate(tables)}
            key = sampling_key(context, seeds, len(hops))
        else:
            frontier, key = trees.frontier(first_dst), combine(0, len(hops))
        requests = hop_requests(plan, layer, graph, frontier, key, trees)
        edges = {}
        for request, found in zip(requests, service.sample(requests, error), strict=True):
            src, dst = schema.ends(request.relation)
            indices = tables[src].insert(found.src) if trees is None else trees.insert(src, dst, found)
            edges[request.relation] = SampledCSC(found.offsets, indices, found.eids)
        hops.append(Hop(edges, first_dst, num_dst, [table.count for table in nodes]))
        first_dst = num_dst if expand_once else first_dst
    if trees is not None:
        listed = [table.listed() for table in trees.tables]
        grown = Trees([of.copy() for _, of in listed], trees.times if plan.temporal is not None else None)
        return SampledHops(schema, [ids.copy() for ids, _ in listed], hops, plan.want_eids, grown)
    return SampledHops(schema, [table.ids.copy() for table in tables], hops, plan.want_eids)


class _Growing:
    """The trees of a minibatch while they grow.

    Attributes:
        tables: the nodes of all trees, by node type id.
        times: int64[trees], the times of the roots; empty without times.
    """

    def __init__(
        self,
        service: NeighborService,
        graph: LoadedGraph,
        seeds: Mapping[int, I64],
        plan: SamplingPlan,
        context: RandomContext,
        times: Mapping[int, I64] | None,
    ) -> None:
        ntypes = range(len(graph.topology.hosts.schema.ntypes))
        ids = [seeds.get(ntype, _NONE) for ntype in ntypes]
        of_roots = [_NONE if times is None else times.get(ntype, _NONE) for ntype in ntypes]
        firsts = np.cumsum([0, *map(len, ids)])
        self.tables = service.tree_ids(graph)
        self.times = np.concatenate(of_roots) if plan.temporal is not None else _NONE
        self._keys = np.empty(firsts[-1], np.uint64)
        self._trees = [_NONE for _ in ntypes]  # by node type id, those of the nodes in the frontier
        base = combine(context.seed, context.epoch)
        for ntype, table in enumerate(self.tables):
            first, end = firsts[ntype : ntype + 2].tolist()
            table.reset(ids[ntype], np.arange(first, end), int(firsts[-1]))
            root_keys(combine(base, ntype), ids[ntype], self.times[first:end], self._keys[first:end])

    def frontier(self, first_dst: Sequence[int]) -> dict[int, I64]:
        """By node type id, the nodes from which the next hop draws: those from position ``first_dst`` on."""
        listed = [table.listed(first) for table, first in zip(self.tables, first_dst, strict=True)]
        self._trees = [trees for _, trees in listed]
        return {ntype: ids for ntype, (ids, _) in enumerate(listed)}

    def request(self, request: RelationRequest, dst: int, temporal: Temporal | None) -> RelationRequest:
        """A request for the frontier's nodes of type ``dst``, with keys by root, and times if its relation has any."""
        trees = self._trees[dst]
        keys: U64 = np.empty(len(trees), np.uint64)
        tree_keys(self._keys, trees, np.uint64(request.key), keys)
        if temporal is None or request.relation not in temporal.times:
            return replace(request, key=keys)
        return replace(
            request,
            key=keys,
            kind=Kind.TEMPORAL,
            times=temporal.times[request.relation],
            until=self.times[trees],
            strict=temporal.strict,
            last=temporal.last,
            window=temporal.window,
        )

    def insert(self, src: int, dst: int, found: SampledNeighbors) -> I32:
        """int32[edges]: the positions of drawn sources in the trees of their destinations."""
        return self.tables[src].insert(found.src, found.offsets, self._trees[dst])


def _ends(csc: SampledCSC, first_dst: int) -> I64:
    """int64[2, e]: the local ends of drawn edges, destinations being numbered from ``first_dst``."""
    counts = np.diff(csc.indptr)
    ends = np.empty((2, len(csc.indices)), np.int64)
    ends[0] = csc.indices
    ends[1] = np.repeat(np.arange(first_dst, first_dst + len(counts)), counts)
    return ends
