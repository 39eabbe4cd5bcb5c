"""Sample a whole minibatch: hop after hop, renumbered on the way, nothing sorted.

Fused: one map from global to local ids lives through all hops of a minibatch. A hop's sources are the next hop's
destinations with the same local numbers, and the destinations of a hop are its first sources, as message-flow graphs
demand. Message-flow graphs draw anew in every hop for all nodes reached so far, since each layer has its own graph.
In PyG all layers share one graph, in which every node is expanded once: a hop draws only for the nodes that the hop
before it reached. From seed 0::

    blocks      hop 0: 0 <- 3, 7       hop 1: 0 <- 5, 7    3 <- ...    7 <- ...
    subgraph    hop 0: 0 <- 3, 7       hop 1:              3 <- ...    7 <- ...

Where trees are disjoint every seed is the root of a tree of its own, and a node is in each tree that reaches it. The
draws of a tree depend on its root and the root's time, not on the minibatch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from mpigraph.arrays import I32, I64, U64, Mask
from mpigraph.collective import WHEN_REMOTE, collective
from mpigraph.kernels.rng import combine, fingerprint, told_apart
from mpigraph.kernels.temporal import root_keys, tree_keys
from mpigraph.metadata.schema import Schema
from mpigraph.sampling.neighbor_service import NeighborService, SamplingRequest
from mpigraph.sampling.protocol import RelationRequest, SampledNeighbors, SharedRequest
from mpigraph.sampling.strategies import HopKeys, Strategy
from mpigraph.store.edge_tables import SharedEdges
from mpigraph.store.store import LoadedGraph

_NONE = np.empty(0, np.int64)
_NO_ROOTS = np.empty(0, np.uint64)
_FEW = 3  # relations drawn from alike: fewer of them have a request each, which is cheaper
_EVERY = 0xE7E4  # separates keys without an epoch from those of epochs


@dataclass(frozen=True)
class RandomContext:
    """The inputs of a minibatch's random choices, besides its seeds.

    Trainers that take minibatches at the same rate have the same ``step``, whichever seeds they have: draws that depend
    on it in place of the minibatch agree between trainers. In a loader a step is the minibatch with one number, counted
    through all epochs, of each trainer; loaders with one seed share it. Outside of loaders it is a call.

    Attributes:
        seed: the user's seed.
        epoch: number of the pass over the data, or of the call; with later minibatches of the same seeds in this pass,
            a hash of it and of their number.
        step: number of the step.
        draw: number of the draw within the minibatch.
        minibatch: in a loader the sum of the fingerprints of the minibatch's seeds, of each type; else 0.
    """

    seed: int
    epoch: int
    step: int = 0
    draw: int = 0
    minibatch: int = 0

    @property
    def every(self) -> np.uint64:
        """A key that all steps and epochs share."""
        return combine(self.seed, _EVERY, self.draw)

    def of_draw(self, number: int) -> "RandomContext":
        """Return the context of another draw for the same minibatch; number 0 is the first one."""
        return replace(self, epoch=int(combine(self.epoch, number)), draw=number) if number else self


@dataclass(frozen=True)
class Trees:
    """The trees of a minibatch, one for each seed, those of node type 0 first.

    Attributes:
        of_nodes: int64[n] by node type id, the tree that each node is in.
        times: int64[trees], the times of their roots; None without times.
    """

    of_nodes: list[I64]
    times: I64 | None


class Layer(dict[int, Strategy]):
    """The strategies of one layer by relation id; no other relation is sampled. It is not changed.

    Attributes:
        families: what :func:`_families` found; None before the first hop.
    """

    families: "list[_Family] | None" = None

    @cached_property
    def tensors(self) -> set[int]:
        """The numbers of the tensors that the strategies draw by."""
        return {number for strategy in self.values() for number in strategy.tensors if number}


class _Family(NamedTuple):
    """Relations that share tables and are drawn from by strategies that differ in tensors alone.

    Attributes:
        how: one of the strategies.
        among: bool[relations that share], these.
        tensors: int64[tables, relations that share], the numbers of their tensors, see :attr:`.Strategy.tables`.
    """

    how: Strategy
    among: Mask
    tensors: I64


@dataclass(frozen=True)
class SamplingPlan:
    """The checked arguments of a minibatch (:class:`.SamplingArguments`), with numbers in place of names.

    Attributes:
        layers: the layers, outermost hop first (DGL's order).
        seeds: int64[n] by node type id.
        want_eids: return edge ids.
        excluded: by relation id, int64[k] edge ids, removed before sampling in every layer; ascending, each once.
        disjoint: each seed has a tree of its own.
        times: int64[n] by node type id, the time of each seed; such trees are disjoint. None without times.
    """

    layers: Sequence[Layer]
    seeds: Mapping[int, I64]
    want_eids: bool = True
    excluded: Mapping[int, I64] = field(default_factory=dict)
    disjoint: bool = False
    times: Mapping[int, I64] | None = None


@dataclass(frozen=True)
class SampledCSC:
    """The sampled edges of one relation with local source ids.

    Attributes:
        indptr: int64[num_dst + 1].
        indices: int32[edges], positions in the hop's source ids.
        eids: int64[edges], global edge ids; empty without ``want_eids``.
    """

    indptr: I64
    indices: I32
    eids: I64


_NO_ENDS = np.empty((2, 0), np.int64)
_NO_EDGES = SampledCSC(np.zeros(1, np.int64), np.empty(0, np.int32), _NONE)


@dataclass(frozen=True)
class Hop:
    """The edges of one hop.

    Attributes:
        edges: sampled edges by relation id; relations that share tables may be left out where none were drawn.
        first_dst: by node type id, the local id of the first destination; 0 in hops of blocks.
        num_dst: by node type id, one behind the local id of the last destination.
        num_src: by node type id, the number of nodes after the hop; the first ``num_dst`` were there before.
    """

    edges: dict[int, SampledCSC]
    first_dst: list[int]
    num_dst: list[int]
    num_src: list[int]


@dataclass(frozen=True)
class Subgraph:
    """The nodes that a minibatch reaches, and the edges that were drawn on the way.

    The order of nodes and edges is that of pyg-lib's ``neighbor_sample``: relations of a hop by their ids, destinations
    by first appearance.

    Attributes:
        ids: int64[n], global node ids by node type id: the seeds in their order, then hop after hop the new nodes.
        edges: int64[2, e] by relation id, the positions of sources and destinations in ``ids``; hop after hop, in a hop
            by destination.
        eids: int64[e], global edge ids by relation id; None without ``want_eids``.
        num_nodes: by node type id, the number of seeds and of the new nodes of each hop: hops + 1 numbers.
        num_edges: by relation id, the number of edges of each hop.
        trees: the tree of each node, if trees are disjoint.
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
        ids: int64[n], global node ids by node type id; the seeds first, then by first appearance. Local ids are
            positions here, so a hop's sources are the first ``num_src`` of these.
        seeds: int64[n] by node type id, in the order of the request.
        hops: the hop of the seeds first.
        want_eids: edge ids were asked for.
        trees: the tree of each of ``ids``, if trees are disjoint.
    """

    schema: Schema
    ids: list[I64]
    seeds: Mapping[int, I64]
    hops: list[Hop]
    want_eids: bool
    trees: Trees | None = None

    def subgraph(self) -> Subgraph:
        """Return the hops as one graph, where each node was expanded once."""
        edges, eids, num_edges = [], [], []
        drawn_from = set().union(*(hop.edges for hop in self.hops))
        for relation in range(len(self.schema.relations)):
            if relation not in drawn_from:  # thousands of relations may have no edges
                edges.append(_NO_ENDS)
                eids.append(_NONE)
                num_edges.append([0] * len(self.hops))
                continue
            dst = self.schema.ends(relation)[1]
            drawn = [(hop.edges.get(relation, _NO_EDGES), hop.first_dst[dst]) for hop in self.hops]
            edges.append(np.concatenate([_NO_ENDS, *(_ends(csc, first) for csc, first in drawn)], axis=1))
            eids.append(np.concatenate([_NONE, *(csc.eids for csc, _ in drawn)]))
            num_edges.append([len(csc.indices) for csc, _ in drawn])
        num_nodes = []
        for ntype, ids in enumerate(self.ids):
            num_nodes.append(np.diff([0, *(hop.num_dst[ntype] for hop in self.hops), len(ids)]).tolist())
        return Subgraph(self.ids, edges, eids if self.want_eids else None, num_nodes, num_edges, self.trees)


def minibatch_key(context: RandomContext, seeds: Mapping[int, I64]) -> np.uint64:
    """Return the key of a minibatch's draws; hop, relation, node and number of the draw are mixed in later.

    It depends on the seeds. In a loader, nodes other than the minibatch's own seeds may be the same in many
    minibatches, such as those that a ``collate_fn`` samples for: their key depends on the minibatch, too.

    Args:
        context: user seed, epoch and minibatch.
        seeds: int64[n] by node type id; their order does not matter.
    """
    key = combine(context.seed, context.epoch)
    total = 0
    for ntype, ids in sorted(seeds.items()):
        if len(ids):
            of_type = fingerprint(ids)
            key = combine(key, ntype, of_type)
            total += int(of_type)
    return combine(key, context.minibatch) if context.minibatch not in (0, total % 2**64) else key


def hop_requests(
    plan: SamplingPlan,
    layer: int,
    graph: LoadedGraph,
    frontier: Mapping[int, I64],
    keys: HopKeys,
    trees: "_Growing | Repeated | None" = None,
) -> list[SamplingRequest]:
    """Return the requests of one hop: through each relation with a strategy and destinations in the frontier.

    Relations that share tables have one request for all whose strategies differ in tensors alone. With ``trees``
    destinations draw by keys of their own.
    """
    schema = graph.topology.hosts.schema
    hows = plan.layers[layer]
    requests: list[SamplingRequest] = []
    alone = set(hows)
    if graph.topology.shared is not None:
        for request in _shared_requests(plan, hows, graph, graph.topology.shared, frontier, keys, trees):
            alone.difference_update(graph.topology.shared.relations[request.chosen].tolist())
            requests += [request] if len(request.ids) else []
    for relation in sorted(alone):
        src, dst = schema.ends(relation)
        if len(frontier.get(dst, _NONE)) == 0:
            continue
        strategy = hows[relation].at_step(keys.step)
        key: np.uint64 | U64 = strategy.key(keys, relation, src)
        if trees is not None:
            key, strategy = trees.of_roots(dst, key, strategy)
        edges_of = plan.excluded.get(relation, _NONE)
        requests.append(RelationRequest(graph.number, relation, frontier[dst], strategy, plan.want_eids, key, edges_of))
    return requests


def _families(hows: Layer, graph: LoadedGraph, shared: SharedEdges) -> list[_Family]:
    """Return the families of the relations that share tables, of several relations each."""
    if hows.families is not None:
        return hows.families
    place_of = graph.topology.place_of_shared
    family_of = {key: how.family for key, how in {id(how): how for how in hows.values()}.items()}
    by_family: dict[tuple[object, ...], list[int]] = {}
    for relation, how in hows.items():
        if relation in place_of and type(how).key is Strategy.key:  # owners make the keys of these from the hop's
            by_family.setdefault(family_of[id(how)], []).append(relation)
    families = []
    for relations in by_family.values():
        if len(relations) < _FEW:
            continue
        how = hows[relations[0]]
        among = np.isin(shared.relations, relations)
        tensors = np.zeros((len(how.tables) if how.needs_tables else 0, len(among)), np.int64)
        if len(tensors):
            tensors[:, among] = np.array([hows[relation].tensors for relation in sorted(relations)]).T
        families.append(_Family(how, among, tensors))
    hows.families = families
    return families


def _shared_requests(
    plan: SamplingPlan,
    hows: Layer,
    graph: LoadedGraph,
    shared: SharedEdges,
    frontier: Mapping[int, I64],
    keys: HopKeys,
    trees: "_Growing | Repeated | None",
) -> Iterator[SharedRequest]:
    """Yield the requests of a hop through relations that share tables, have strategies of one family, and one node type
    of destinations.
    """
    place_of = graph.topology.place_of_shared
    num_types = len(graph.topology.hosts.schema.ntypes)
    for how, among, tensors in _families(hows, graph, shared):
        strategy = how.at_step(keys.step)
        types = shared.ends[:, 1] + (0 if how.keys_by_relation else num_types * shared.ends[:, 0])
        for one in np.unique(types[among]).tolist():
            src, dst = divmod(one, num_types)  # a source type where keys need one
            chosen = among & (types == one)
            edges = [
                shared.numbers(place_of[r], ids)
                for r, ids in plan.excluded.items()
                if r in place_of and chosen[place_of[r]]
            ]
            yield SharedRequest(
                graph.number,
                dst,
                chosen,
                frontier.get(dst, _NONE),
                strategy if trees is None else trees.with_times(dst, strategy),
                plan.want_eids,
                strategy.hop_key(keys, src),
                _NO_ROOTS if trees is None else trees.roots(dst, strategy),
                np.sort(np.concatenate([_NONE, *edges])),
                tensors,
            )


@collective("the trainers", WHEN_REMOTE)
def sample_hops(
    service: NeighborService,
    graph: LoadedGraph,
    plan: SamplingPlan,
    context: RandomContext,
    *,
    expand_once: bool = False,
    keys: HopKeys | None = None,
) -> SampledHops:
    """Sample all hops of one minibatch.

    Args:
        service: samples the hops.
        graph: the graph.
        plan: the checked arguments.
        context: user seed and epoch.
        expand_once: a hop draws only for the nodes that the hop before it reached, else for all nodes so far.
        keys: replace those by ``context`` and seeds in a single hop with local destinations; the call is then local.
    """
    schema = graph.topology.hosts.schema
    trees = _Growing(service, graph, plan, context) if plan.disjoint else None
    key = minibatch_key(context, plan.seeds) if trees is None else np.uint64(0)
    tables = service.local_ids(graph) if trees is None else []
    for ntype, table in enumerate(tables):
        table.reset(plan.seeds.get(ntype, _NONE))
    nodes = tables if trees is None else trees.tables
    every = context.every
    repeats = Repeated.of(plan.seeds) if trees is None else None  # of hops, too: seeds are destinations of each
    hops: list[Hop] = []
    sample = service.sample if keys is None else service.sample_local
    first_dst = [0 for _ in nodes]
    for layer in reversed(range(len(plan.layers))):
        num_dst = [table.count for table in nodes]
        if trees is None:
            frontier = {ntype: table.ids[first_dst[ntype] :] for ntype, table in enumerate(tables)}
        else:
            frontier = trees.frontier(first_dst)
        of_hop = keys or HopKeys.of(key, len(hops), every, context.step)
        if repeats is not None:
            repeats = Repeated.of(frontier)
        requests = hop_requests(plan, layer, graph, frontier, of_hop, trees or repeats)
        edges = {}
        for relation, neighbors in sample(requests).items():
            src, dst = schema.ends(relation)
            indices = tables[src].insert(neighbors.src) if trees is None else trees.insert(src, dst, neighbors)
            edges[relation] = SampledCSC(neighbors.offsets, indices, neighbors.eids)
        hops.append(Hop(edges, first_dst, num_dst, [table.count for table in nodes]))
        first_dst = num_dst if expand_once else first_dst
    if trees is not None:
        listed = [table.listed() for table in trees.tables]
        grown = Trees([of.copy() for _, of in listed], None if plan.times is None else trees.times)
        return SampledHops(schema, [ids.copy() for ids, _ in listed], plan.seeds, hops, plan.want_eids, grown)
    return SampledHops(schema, [table.ids.copy() for table in tables], plan.seeds, hops, plan.want_eids)


class Repeated:
    """The nodes of a frontier, told apart where some are given several times: each time is a draw of its own."""

    def __init__(self, roots: Mapping[int, U64]) -> None:
        """Keep the keys of the nodes, uint64[n] by node type id, of types that have a repeated one."""
        self._roots = roots

    @classmethod
    def of(cls, frontier: Mapping[int, I64]) -> "Repeated | None":
        """Return the repeated nodes of a frontier (int64[n] by node type id), or None if each is there once."""
        roots = {}
        for ntype, ids in frontier.items():
            names = told_apart(ids)
            if names is not ids:
                roots[ntype] = names.view(np.uint64)
        return cls(roots) if roots else None

    def roots(self, dst: int, strategy: Strategy) -> U64:
        """Return uint64[n], a key for each of the frontier's nodes of type ``dst``, or uint64[0] for none.

        A strategy whose destinations share numbers chooses the same edges however often a node is given.
        """
        return self._roots.get(dst, _NO_ROOTS) if strategy.keys_by_relation else _NO_ROOTS

    def of_roots(self, dst: int, key: np.uint64 | U64, strategy: Strategy) -> tuple[np.uint64 | U64, Strategy]:
        """Return the key of the frontier's nodes of type ``dst``, or one for each; and the strategy."""
        roots = self.roots(dst, strategy)
        if not len(roots):
            return key, strategy
        keys: U64 = np.empty(len(roots), np.uint64)
        tree_keys(roots, np.arange(len(roots)), np.uint64(key), keys)
        return keys, strategy

    def with_times(self, dst: int, strategy: Strategy) -> Strategy:
        """Return the strategy itself."""
        return strategy


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
        plan: SamplingPlan,
        context: RandomContext,
    ) -> None:
        ntypes = range(len(graph.topology.hosts.schema.ntypes))
        ids = [plan.seeds.get(ntype, _NONE) for ntype in ntypes]
        firsts = np.cumsum([0, *map(len, ids)])
        self.tables = service.tree_ids(graph)
        self.times = _NONE
        if plan.times is not None:
            self.times = np.concatenate([plan.times.get(ntype, _NONE) for ntype in ntypes])
        self._keys = np.empty(firsts[-1], np.uint64)
        self._trees = [_NONE for _ in ntypes]  # by node type id, those of the nodes in the frontier
        base = combine(context.seed, context.epoch)
        for ntype, table in enumerate(self.tables):
            first, end = firsts[ntype : ntype + 2].tolist()
            table.reset(ids[ntype], np.arange(first, end), int(firsts[-1]))
            root_keys(combine(base, ntype), ids[ntype], self.times[first:end], self._keys[first:end])
        self._keys = told_apart(self._keys.view(np.int64)).view(np.uint64)

    def frontier(self, first_dst: Sequence[int]) -> dict[int, I64]:
        """Return by node type id the destinations of the next hop: the nodes from position ``first_dst`` on."""
        listed = [table.listed(first) for table, first in zip(self.tables, first_dst, strict=True)]
        self._trees = [trees for _, trees in listed]
        return {ntype: ids for ntype, (ids, _) in enumerate(listed)}

    def roots(self, dst: int, strategy: Strategy) -> U64:
        """Return uint64[n], the keys of the trees of the frontier's nodes of type ``dst``."""
        roots: U64 = self._keys[self._trees[dst]]
        return roots

    def of_roots(self, dst: int, key: np.uint64 | U64, strategy: Strategy) -> tuple[U64, Strategy]:
        """Return the keys of the frontier's nodes of type ``dst``, by root, and the strategy :meth:`with_times`."""
        trees = self._trees[dst]
        keys: U64 = np.empty(len(trees), np.uint64)
        tree_keys(self._keys, trees, np.uint64(key), keys)
        return keys, self.with_times(dst, strategy)

    def with_times(self, dst: int, strategy: Strategy) -> Strategy:
        """Return the strategy for the times of the roots of the frontier's nodes of type ``dst``."""
        return strategy.with_root_times(self.times[self._trees[dst]]) if len(self.times) else strategy

    def insert(self, src: int, dst: int, neighbors: SampledNeighbors) -> I32:
        """Return int32[edges], the positions of drawn sources in the trees of their destinations."""
        return self.tables[src].insert(neighbors.src, neighbors.offsets, self._trees[dst])


def _ends(csc: SampledCSC, first_dst: int) -> I64:
    """Return the local ends of drawn edges, int64[2, e]; destinations are numbered from ``first_dst``."""
    counts = np.diff(csc.indptr)
    ends = np.empty((2, len(csc.indices)), np.int64)
    ends[0] = csc.indices
    ends[1] = np.repeat(np.arange(first_dst, first_dst + len(counts)), counts)
    return ends
