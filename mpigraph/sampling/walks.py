"""Random walks: in each step the owners of the nodes that the walks have reached choose one out-edge of each.

A step is a request for one neighbour of each node with a key for each walk: a hash of the root, the number of the walk
among those of its root, and the number of the step. So a walk is the same on any number of ranks, and however roots are
divided among calls of one seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mpigraph.arrays import F64, I64, U64
from mpigraph.collective import WHEN_REMOTE, collective
from mpigraph.kernels.rng import combine
from mpigraph.kernels.temporal import root_keys, tree_keys
from mpigraph.sampling.minibatch import RandomContext
from mpigraph.sampling.neighbor_service import NeighborService
from mpigraph.sampling.protocol import RelationRequest
from mpigraph.sampling.strategies import Strategy

_WALKS, _EDGES, _ENDS = 0x57414C4B, 1, 2  # words of hashes
_S12 = np.uint64(12)


@dataclass(frozen=True)
class WalkPlan:
    """The checked arguments of random walks.

    Attributes:
        graph: number of the graph of out-edges.
        relations: the relation of each step.
        strategies: by relation, what chooses one out-edge.
        roots: int64[n], where the walks begin.
        ntype: id of the roots' type.
        ends: float64[steps], the probability that a walk ends before each step.
        want_eids: return the edges.
    """

    graph: int
    relations: Sequence[int]
    strategies: dict[int, Strategy]
    roots: I64
    ntype: int
    ends: F64
    want_eids: bool = False


@collective("the channel's trainers", WHEN_REMOTE)
def walk(service: NeighborService, plan: WalkPlan, context: RandomContext) -> tuple[I64, I64]:
    """Walk from each root, one request a step.

    Returns:
        int64[n, steps + 1], the nodes, beginning with the roots; and int64[n, steps], the edges, with the ids that the
        graph of out-edges has for them (int64[n, 0] without ``want_eids``). Both -1 where a walk has ended.
    """
    steps, count = len(plan.relations), len(plan.roots)
    traces = np.full((count, steps + 1), -1, np.int64)
    traces[:, 0] = plan.roots
    eids = np.full((count, steps if plan.want_eids else 0), -1, np.int64)
    keys: U64 = np.empty(count, np.uint64)
    root_keys(combine(context.seed, context.epoch, _WALKS, plan.ntype), plan.roots, occurrences(plan.roots), keys)
    walking = np.arange(count)
    for step, relation in enumerate(plan.relations):
        if plan.ends[step] > 0:
            drawn = (_of_step(keys, walking, step, _ENDS) >> _S12) * 2.0**-52  # 52 random bits
            walking = walking[drawn >= plan.ends[step]]
        requests = []
        if len(walking):
            own = _of_step(keys, walking, step, _EDGES)
            at, strategy = np.ascontiguousarray(traces[walking, step]), plan.strategies[relation]
            requests = [RelationRequest(plan.graph, relation, at, strategy, plan.want_eids, own)]
        for neighbors in service.sample(
            requests
        ).values():  # a round even without requests: the other trainers make one
            walking = walking[np.diff(neighbors.offsets) > 0]
            traces[walking, step + 1] = neighbors.src
            if plan.want_eids:
                eids[walking, step] = neighbors.eids
    return traces, eids


def occurrences(ids: I64) -> I64:
    """Return int64[n], how often each of ``ids`` (int64[n]) stands before it."""
    order = np.argsort(ids, kind="stable")
    is_first = np.append(True, np.diff(ids[order]) != 0)[: len(ids)]
    firsts = np.flatnonzero(is_first)
    numbers = np.empty(len(ids), np.int64)
    numbers[order] = np.arange(len(ids)) - np.repeat(firsts, np.diff(np.append(firsts, len(ids))))
    return numbers


def _of_step(keys: U64, walking: I64, step: int, word: int) -> U64:
    """Return uint64[n], hashes of the walks at a step."""
    own: U64 = np.empty(len(walking), np.uint64)
    tree_keys(keys, walking, combine(word, step), own)
    return own
