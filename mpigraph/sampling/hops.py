"""Sample a whole minibatch: hop after hop, renumbered on the way, nothing sorted.

Fused: one map from global to local ids lives through all hops of a minibatch. A hop's sources are the next hop's
destinations with the same local numbers, and the destinations of a hop are its first sources, as message-flow graphs
demand.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mpigraph.arrays import I32, I64
from mpigraph.kernels.compact import LocalIds
from mpigraph.kernels.rng import combine, fingerprint
from mpigraph.sampling.neighbor_service import NeighborService
from mpigraph.sampling.protocol import RelationRequest, SampledNeighbors
from mpigraph.store.graph_store import LoadedGraph

__all__ = ["RandomContext", "Hop", "HopPlan", "SampledCSC", "sample_minibatch", "sampling_key"]

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
class HopPlan:
    """How one hop samples.

    Attributes:
        fanouts: fanout by relation id; relations left out are not sampled.
        replace: with replacement.
        weights: tensor number of the edge weights by relation id; relations left out are uniform.
        want_eids: whether edge ids are wanted.
        excluded: by relation id, int64[k] edge ids that are as if they did not exist, ascending, each once.
    """

    fanouts: Mapping[int, int]
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
        eids: int64[edges], global edge ids, or None.
    """

    indptr: I64
    indices: I32
    eids: I64 | None


@dataclass(frozen=True)
class Hop:
    """One layer of a minibatch.

    Attributes:
        parts: sampled edges by relation id.
        src_ids: int64[num_src] by node type id, global; the first ``num_dst`` are the destinations.
        num_dst: number of destinations by node type id.
    """

    parts: dict[int, SampledCSC]
    src_ids: dict[int, I64]
    num_dst: dict[int, int]


def sampling_key(draw: RandomContext, seeds: Mapping[int, I64], hop: int) -> np.uint64:
    """Hash all that a hop's draws depend on, but relation, node and number of the draw.

    Args:
        draw: user seed and epoch.
        seeds: int64[n] by node type id; their order does not matter.
        hop: 0 for the hop of the seeds.
    """
    key = combine(draw.seed, draw.epoch)
    for ntype, ids in sorted(seeds.items()):
        if len(ids):
            key = combine(key, ntype, fingerprint(ids))
    return combine(key, hop)


def hop_requests(
    plan: HopPlan, graph: LoadedGraph, frontier: Mapping[int, I64], key: np.uint64
) -> list[RelationRequest]:
    """The requests of one hop, one for each relation that has destinations in the frontier and a fanout."""
    schema, requests = graph.topology.hosts.schema, []
    for relation, fanout in sorted(plan.fanouts.items()):
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
                weights=plan.weights.get(relation, -1),
                excluded=plan.excluded.get(relation, _NONE),
            )
        )
    return requests


def sample_minibatch(
    service: NeighborService,
    graph: LoadedGraph,
    seeds: Mapping[int, I64],
    plans: Sequence[HopPlan],
    draw: RandomContext,
    error: BaseException | None = None,
) -> list[Hop]:
    """Sample the message-flow graphs of one minibatch.

    Args:
        service: who samples.
        graph: what is sampled.
        seeds: int64[n] by node type id.
        plans: one for each layer, input side first (DGL's order).
        draw: what the choices depend on.
        error: a reason why this rank cannot ask; every rank of the round raises.

    Returns:
        One hop for each layer, input side first.

    Collective on the channel's trainers when hosts are far; local when all are near.
    """
    schema, tables = graph.topology.hosts.schema, service.local_ids(graph)
    for ntype, table in enumerate(tables):
        table.reset(seeds.get(ntype, _NONE))
    drawn: list[tuple[dict[int, SampledCSC], list[int], list[int]]] = []
    for number, plan in enumerate(reversed(plans)):
        frontier = {ntype: table.ids for ntype, table in enumerate(tables)}
        num_dst = [table.count for table in tables]
        requests = hop_requests(plan, graph, frontier, sampling_key(draw, seeds, number))
        parts = service.sample(requests, error)
        local = {
            request.relation: _localise(tables[schema.ends(request.relation)[0]], part, plan.want_eids)
            for request, part in zip(requests, parts, strict=True)
        }
        drawn.append((local, num_dst, [table.count for table in tables]))
    ids = [table.ids.copy() for table in tables]  # a hop's sources are the first of these
    return [
        Hop(local, {t: ids[t][:n] for t, n in enumerate(num_src)}, dict(enumerate(num_dst)))
        for local, num_dst, num_src in reversed(drawn)
    ]


def _localise(table: LocalIds, part: SampledNeighbors, want_eids: bool) -> SampledCSC:
    return SampledCSC(part.offsets, table.insert(part.src), part.eids if want_eids else None)
