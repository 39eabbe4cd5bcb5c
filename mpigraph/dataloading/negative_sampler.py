"""Negative samplers: pairs of nodes to tell from the edges of a minibatch.

A negative sampler is any callable ``(g, eids) -> (src, dst)``, int64 each; where the graph has several relations,
``eids`` and what it returns are keyed by canonical relation. Those here draw by hashes of the loader's seed, the epoch,
the edge and the number of the negative, so a run can be repeated on any number of ranks. Their cost is the new nodes
that they add to a minibatch, whose neighbours are sampled and features read:

==================  ==========================================  ============================
sampler             destinations                                new nodes of a batch, at most
==================  ==========================================  ============================
PerSourceUniform    k of all nodes for each edge                n * k
GlobalUniform       (sources too) of all nodes                  2 * n * k
JointUniform        k of all nodes for the batch                k
==================  ==========================================  ============================
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np
import torch

from mpigraph.arrays import I64
from mpigraph.dataloading.sampler import check_graph, plain
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.sampling_arguments import TimeFilter
from mpigraph.distgraph.typed_ids import EdgeIds, EdgeTensors, by_relation, unwrap_edges
from mpigraph.errors import InvalidArgumentError, check_integer
from mpigraph.kernels.negatives import draw_nodes, keep_candidates
from mpigraph.kernels.rng import combine, fingerprint, told_apart
from mpigraph.metadata.schema import Relation
from mpigraph.namespaces import attach
from mpigraph.sampling.minibatch import RandomContext

__all__ = ["GlobalUniform", "JointUniform", "NegativeSampler", "PerSourceUniform", "Uniform"]

_Pair: TypeAlias = tuple[torch.Tensor, torch.Tensor]
Negatives: TypeAlias = _Pair | dict[Relation, _Pair]
"""Sources and destinations, int64 each; by relation where the graph has several."""
NegativesOf: TypeAlias = Callable[[DistGraph, EdgeTensors], Negatives]
"""Any negative sampler: ``(g, eids) -> (src, dst)``."""
_Pairs = dict[Relation, tuple[I64, I64]]
_TAG = 0x4E4547  # separates these draws from those of neighbours with the same seed and epoch
_TIMES_TAG = 0x4E4554  # and those that replace newer nodes
_TRIES = 10


@dataclass(frozen=True)
class Edges:
    """Edges of one relation.

    Attributes:
        eids: int64[n], edge ids.
        src: int64[n], their sources.
        dst: int64[n], their destinations.
    """

    eids: I64
    src: I64
    dst: I64

    def __len__(self) -> int:
        return len(self.eids)


NO_EDGES = Edges(*(np.empty(0, np.int64) for _ in range(3)))


def find_edges(g: DistGraph, eids: EdgeIds) -> dict[Relation, Edges]:
    """Return the edges with their ends, by relation. One-sided; the target does nothing.

    Raises:
        OutOfRangeError: an edge does not exist.
        EdgeTypeError: an edge type is unknown or ambiguous, or the ids are not by type and the graph has several.
        InvalidArgumentError: the ids are not integers in one dimension, or two edge types are the same relation.
    """
    edges = {}
    for relation, ids in by_relation(g.schema, eids, "edge ids").items():
        src, dst = g.find_edges(ids, relation)
        edges[relation] = Edges(ids.numpy(), src.numpy(), dst.numpy())
    return edges


class NegativeSampler:
    """Draws ``k`` negatives for each edge.

    Inside a loader an edge's draws depend on the loader's seed, the epoch and the edge alone. Outside they depend on
    the job's seed and the number of calls so far. An edge that is given several times in a call has other draws each
    time, and so have the minibatches of an epoch that consist of the same edges.

    A call looks up the sources of the edges: one-sided, except in :class:`GlobalUniform`.
    """

    def __init__(self, k: int) -> None:
        """Draw ``k`` negatives for each edge.

        Raises:
            InvalidArgumentError: ``k`` is not an integer >= 1.
        """
        self.k = check_integer("k", k, 1, 2**31 - 1)

    def describe(self) -> str:
        """Return the class and options, which the draws depend on."""
        return f"{type(self).__qualname__}({plain(vars(self))})"

    def __call__(self, g: DistGraph, eids: EdgeIds) -> Negatives:
        """Draw negatives.

        Args:
            g: the graph.
            eids: int64[n], edge ids, or edge type -> edge ids.

        Returns:
            Sources and destinations, int64 each, the negatives of an edge one after the other; by canonical relation if
            ``eids`` are by edge type.

        Raises:
            OutOfRangeError: an edge does not exist.
        """
        g = check_graph(g)
        pairs = self.draw(g, find_edges(g, eids))
        return pairs if isinstance(eids, Mapping) else next(iter(pairs.values()))

    def draw(self, g: DistGraph, edges: Mapping[Relation, Edges]) -> dict[Relation, _Pair]:
        """Draw negatives of edges whose ends are known, by relation.

        Only :class:`GlobalUniform` communicates: a round on the trainers when hosts are remote.
        """
        context = g.session.next_context()
        keys = {r: combine(context.seed, context.epoch, _TAG, g.schema.relation_id(r)) for r in edges}
        pairs = self._draw(g, edges, keys)
        return {relation: (torch.from_numpy(src), torch.from_numpy(dst)) for relation, (src, dst) in pairs.items()}

    def _draw(self, g: DistGraph, edges: Mapping[Relation, Edges], keys: Mapping[Relation, np.uint64]) -> _Pairs:
        """Draw for the edges of each relation, with a key for each."""
        return {relation: self._pairs(g, relation, seeds, keys[relation]) for relation, seeds in edges.items()}

    def _pairs(self, g: DistGraph, relation: Relation, edges: Edges, key: np.uint64) -> tuple[I64, I64]:
        """Draw for the edges of one relation."""
        raise NotImplementedError


class PerSourceUniform(NegativeSampler):
    """Keeps the source of each edge and draws ``k`` destinations among all nodes of the destination type.

    A negative may happen to be an edge. An edge has the same negatives throughout an epoch, in whatever batch and on
    whatever rank, if it is a seed once. One-sided; the target does nothing.
    """

    def _pairs(self, g: DistGraph, relation: Relation, edges: Edges, key: np.uint64) -> tuple[I64, I64]:
        return np.repeat(edges.src, self.k), _nodes(key, edges.eids, self.k, g.num_nodes(relation[2]))


Uniform = PerSourceUniform


class GlobalUniform(NegativeSampler):
    """Draws both ends among all nodes of their types, and keeps at most ``k`` pairs for each edge that are allowed.

    Each edge has ``k * redundancy`` candidates, and keeps the first ``k`` that pass: fewer where too many are refused,
    which is rare except in small or dense graphs. One round for the whole batch asks the hosts for existing edges.

    When hosts are remote and existing edges are excluded, every trainer must make the same number of calls, if need be
    for no edges. Else the draw is local.
    """

    def __init__(
        self,
        k: int,
        exclude_self_loops: bool = True,
        replace: bool = False,
        *,
        exclude_edges: bool = True,
        redundancy: float = 1.3,
    ) -> None:
        """Describe the draw.

        Args:
            k: most negatives of an edge.
            exclude_self_loops: refuse pairs of a node with itself, in relations within one type.
            replace: a pair may occur more than once in a batch. Then an edge has the same negatives throughout an
                epoch, in whatever batch; else a pair goes to the first edge of the batch that draws it.
            exclude_edges: refuse pairs that are edges of the relation.
            redundancy: candidates of an edge for each of its ``k`` negatives; at least ``k + 1`` candidates are drawn.

        Raises:
            InvalidArgumentError: ``k`` or ``redundancy`` below 1.
        """
        super().__init__(k)
        if not redundancy >= 1 or math.isinf(redundancy):
            raise InvalidArgumentError(f"redundancy must be a number >= 1 (got {redundancy!r})")
        self.exclude_self_loops = exclude_self_loops
        self.replace = replace
        self.exclude_edges = exclude_edges
        self.redundancy = redundancy

    def _draw(self, g: DistGraph, edges: Mapping[Relation, Edges], keys: Mapping[Relation, np.uint64]) -> _Pairs:
        candidates, tries = {}, {}
        for relation, seeds in edges.items():
            refuses = self._refuses_loops(relation) or self.exclude_edges or not self.replace
            tries[relation] = max(math.ceil(self.k * self.redundancy), self.k + 1) if refuses else self.k
            src, dst = (
                _nodes(combine(keys[relation], end), seeds.eids, tries[relation], g.num_nodes(ntype))
                for end, ntype in enumerate(relation[::2])
            )
            candidates[relation] = src, dst
        known: Mapping[Relation, torch.Tensor] = {}
        if self.exclude_edges:  # a round, also without edges: another trainer's batch may have some
            u, v = ({r: torch.from_numpy(ends[side]) for r, ends in candidates.items()} for side in (0, 1))
            known = cast(dict[Relation, torch.Tensor], g.has_edges_between(u, v))
        pairs = {}
        for relation, (src, dst) in candidates.items():
            allowed = ~np.asarray(known[relation]) if relation in known else np.ones(len(src), np.bool_)
            if self._refuses_loops(relation):
                allowed &= src != dst
            keep_candidates(src, dst, tries[relation], self.k, not self.replace, allowed)
            pairs[relation] = src[allowed], dst[allowed]
        return pairs

    def _refuses_loops(self, relation: Relation) -> bool:
        return self.exclude_self_loops and relation[0] == relation[2]


class JointUniform(NegativeSampler):
    """Keeps the source of each edge and pairs it with ``k`` destinations that all edges of the batch share.

    The destinations are drawn among all nodes of the destination type, and are a hash of the set of the batch's edges.
    The batch gets ``k`` new nodes in place of ``n * k`` (the shared negative sampling of DGL-KE, Zheng et al., SIGIR
    2020). One-sided; the target does nothing.
    """

    def _pairs(self, g: DistGraph, relation: Relation, edges: Edges, key: np.uint64) -> tuple[I64, I64]:
        shared = _nodes(combine(key, fingerprint(edges.eids)), np.zeros(1, np.int64), self.k, g.num_nodes(relation[2]))
        return np.repeat(edges.src, self.k), np.tile(shared, len(edges))


def draw_negatives(sampler: NegativesOf, g: DistGraph, edges: dict[Relation, Edges]) -> Negatives:
    """Call any negative sampler; those of this module need not look the edges up again.

    Args:
        sampler: called with the graph and int64[n] (or relation -> int64[n] where there are several relations).
        g: the graph.
        edges: the positive edges by relation.
    """
    if isinstance(sampler, NegativeSampler) and type(sampler).__call__ is NegativeSampler.__call__:
        return sampler.draw(g, edges)
    seeds = {relation: torch.from_numpy(positives.eids) for relation, positives in edges.items()}
    return sampler(g, unwrap_edges(g.schema, seeds))


def _nodes(key: np.uint64, eids: I64, count: int, num: int) -> I64:
    """Return int64[n * count]: ``count`` of ``num`` nodes for each edge."""
    out = np.empty(len(eids) * count, np.int64)
    draw_nodes(key, told_apart(eids), count, num, out)
    return out


def describe_negatives(sampler: object) -> str:
    """Return a description of a sampler of negatives, or the name of a user's function."""
    if isinstance(sampler, NegativeSampler):
        return sampler.describe()
    return str(getattr(sampler, "__qualname__", type(sampler).__qualname__))


def redraw_newer(
    g: DistGraph,
    how: TimeFilter,
    context: RandomContext,
    relation: Relation,
    edges: Edges,
    times: I64,
    ends: tuple[I64, I64],
) -> tuple[tuple[I64, I64], I64]:
    """Give the negatives of a relation the times of their edges, and replace destinations that are newer than these.

    Where nodes have times, newer ones are drawn again among all nodes, as hashes of the edge and the number of the
    negative. A negative that is still too new after :data:`_TRIES` draws is left out. One-sided: it reads the times of
    nodes.

    Args:
        g: the graph.
        how: the sampler's filter.
        context: seed and epoch.
        relation: of the edges.
        edges: the edges.
        times: int64[n], their times.
        ends: int64[n * k] sources and destinations of the negatives, as many for each edge, with its source.

    Returns:
        Ends and times of the negatives that are left.

    Raises:
        InvalidArgumentError: the sources do not show the edge of each negative, and so its time.
    """
    src, dst = ends
    k = len(src) // max(len(edges), 1)
    if not np.array_equal(np.repeat(edges.src, k), src):
        raise InvalidArgumentError(
            f"edge_label_time: the negatives of {relation} must keep the sources of their edges, as many for each edge "
            "and in their order, so that they have their times, as those of PerSourceUniform do"
        )
    times = np.repeat(times, k)
    of_nodes = g.times(how.attr).of_nodes.get(g.schema.ntype_id(relation[2]))
    if of_nodes is None or not len(dst):
        return ends, times

    def too_new(places: I64) -> I64:
        own = of_nodes.rows.gather(dst[places])
        return places[own > times[places] if how.comparison == "<=" else own >= times[places]]

    dst = dst.copy()
    newer = too_new(np.arange(len(dst)))
    key = combine(context.seed, context.epoch, _TIMES_TAG, g.schema.relation_id(relation))
    for number in range(_TRIES):
        if not len(newer):
            break
        dst[newer] = _nodes(combine(key, number), edges.eids, k, g.num_nodes(relation[2]))[newer]
        newer = too_new(newer)
    kept = np.ones(len(dst), np.bool_)
    kept[newer] = False
    return (src[kept], dst[kept]), times[kept]


attach(__name__)
