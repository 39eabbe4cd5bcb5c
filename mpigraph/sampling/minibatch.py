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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from mpigraph.arrays import I32, I64, U64, Mask
from mpigraph.collective import WHEN_REMOTE, collective
from mpigraph.kernels.rng import combine, fingerprint, told_apart
from mpigraph.kernels.temporal import root_keys
from mpigraph.metadata.schema import Schema
from mpigraph.sampling.neighbor_service import NeighborService
from mpigraph.sampling.protocol import SampledNeighbors, SamplingRequest
from mpigraph.sampling.strategies import HopKeys, Strategy
from mpigraph.store.store import LoadedGraph

_NONE = np.empty(0, np.int64)
_NO_ROOTS = np.empty(0, np.uint64)
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
    """The strategies of one layer by relation id; no other relation is sampled. It is not changed."""

    _groups: "list[_Group] | None" = None

    @cached_property
    def tensors(self) -> set[int]:
        """The numbers of the tensors that the strategies draw by."""
        return {number for strategy in self.values() for number in strategy.tensors if number}

    @cached_property
    def needs_tables(self) -> bool:
        """True if owners look up something besides edges for one of the strategies."""
        return any(strategy.needs_tables for strategy in self.values())

    def groups(self, schema: Schema) -> "list[_Group]":
        """Return the relations by what one request can ask for; ``schema`` is always the same."""
        if self._groups is None:
            family_of = {key: how.family for key, how in {id(how): how for how in self.values()}.items()}
            alike: dict[tuple[object, ...], list[int]] = {}
            for relation, how in sorted(self.items()):
                src, dst = schema.ends(relation)
                src = 0 if how.keys_by_relation else src  # then keys do not depend on it
                alike.setdefault((dst, src, family_of[id(how)]), []).append(relation)
            self._groups = [_Group.of(self, relations, schema) for relations in alike.values()]
        return self._groups


class _Group(NamedTuple):
    """Relations into one node type that are drawn from by strategies which differ in tensors alone.

    Attributes:
        how: one of the strategies.
        src: node type id of the sources of one of them; of all where keys depend on it.
        dst: node type id of their destinations.
        chosen: bool[relations], these.
        tensors: int64[tables, chosen relations], the numbers of their tensors, see :attr:`.Strategy.tables`.
    """

    how: Strategy
    src: int
    dst: int
    chosen: Mask
    tensors: I64

    @classmethod
    def of(cls, layer: Layer, relations: list[int], schema: Schema) -> "_Group":
        how = layer[relations[0]]
        chosen = np.zeros(len(schema.relations), np.bool_)
        chosen[relations] = True
        tensors = np.empty((0, len(relations)), np.int64)
        if how.needs_tables:
            tensors = np.array([layer[relation].tensors for relation in relations], np.int64).T.copy()
        return cls(how, *schema.ends(relations[0]), chosen, tensors)


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
        edges: sampled edges by relation id; relations of few edges are left out where none were drawn.
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
    """Return the requests of one hop: through the relations with a strategy and destinations in the frontier.

    With ``trees`` destinations draw by keys of their own.
    """
    topology = graph.topology
    requests = []
    for how, src, dst, chosen, tensors in plan.layers[layer].groups(topology.hosts.schema):
        ids = frontier.get(dst, _NONE)
        if not len(ids):
            continue
        strategy = how.at_step(keys.step)
        key = strategy.hop_key(keys, src)
        roots = _NO_ROOTS
        if trees is not None:
            roots, strategy = trees.roots(dst, strategy), trees.with_times(dst, strategy)
        edges = [topology.edges.numbers(r, of) for r, of in plan.excluded.items() if chosen[r]]
        excluded = edges[0] if len(edges) == 1 else np.sort(np.concatenate([_NONE, *edges]))
        requests.append(
            SamplingRequest(graph.number, dst, chosen, ids, strategy, plan.want_eids, key, roots, excluded, tensors)
        )
    return requests


def is_local(graph: LoadedGraph, layer: Layer) -> bool:
    """Return whether all that a hop needs lies on this node, whatever its destinations are."""
    topology = graph.topology
    return topology.everywhere and (not layer.needs_tables or topology.world.all_local)


@collective("the trainers", WHEN_REMOTE)
def sample_hops(
    service: NeighborService,
    graph: LoadedGraph,
    plan: SamplingPlan,
    context: RandomContext,
    *,
    expand_once: bool = False,
    keys: HopKeys | None = None,
    near: bool = False,
) -> SampledHops:
    """Sample all hops of one minibatch.

    Args:
        service: samples the hops.
        graph: the graph.
        plan: the checked arguments.
        context: user seed and epoch.
        expand_once: a hop draws only for the nodes that the hop before it reached, else for all nodes so far.
        keys: replace those by ``context`` and seeds in a single hop.
        near: this node has the in-edges of all seeds of a single hop; the call is then local.
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
        local = near or is_local(graph, plan.layers[layer])
        for relation, neighbors in service.sample(requests, local).items():
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
