"""The whole method: from edges to a part for each node."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from mpigraph.arrays import F64, I32, I64
from mpigraph.collective import collective
from mpigraph.errors import InvalidArgumentError
from mpigraph.log import get_logger
from mpigraph.memory import give_back
from mpigraph.partition.balance import TOLERANCE, Criteria
from mpigraph.partition.exchange import ALONE, Exchange
from mpigraph.partition.multilevel.clustering import find_clusters
from mpigraph.partition.multilevel.contraction import Descent, contract
from mpigraph.partition.multilevel.dist_csr import Level, level_of_edges
from mpigraph.partition.multilevel.initial import initial_parts
from mpigraph.partition.multilevel.refinement import Effort, refine
from mpigraph.partition.source import GraphSource, all_edges_among_nodes
from mpigraph.partition.spill import Scratch

AIM = 1.03  # over the mean, which leaves METIS's k-way method's balance as it is
CAP = 7  # mean weights at the target
_READ, _COARSENED, _CUT = 0.25, 0.5, 0.6  # of the time has passed by then, about

Report = Callable[[float], None]
"""Gets the approximate fraction of the work that is done."""


class Coarsening(NamedTuple):
    """The end of clustering: the target is the largest of three numbers of nodes."""

    least: int = 30_000  # number of nodes
    fraction: float = 1 / 12  # fraction of the finest level's nodes
    of_parts: int = 64  # nodes for each part
    # a level of up to this many times the target stays; a further one would have nearly as many edges
    slack: float = 1.25
    levels: int = 4  # the most levels to add


@collective("ranks")
def assign(
    exchange: Exchange,
    bounds: I64,
    edges: Iterable[tuple[I64, I64]],
    weights: I32,
    num_parts: int,
    *,
    seed: int = 0,
    both_ways: bool = False,
    scratch: Scratch | None = None,
    coarsening: Coarsening = Coarsening(),  # noqa: B008  immutable
    report: Report = lambda fraction: None,
) -> I32:
    """Assign every node to a part: few edges cut, every criterion spread evenly. The result is that of one rank.

    Args:
        exchange: the ranks.
        bounds: int64[ranks + 1], the nodes that each rank owns.
        edges: this rank's share, in chunks: ``(src, dst)`` int64[k] each.
        weights: int32[own nodes, criteria], >= 0.
        num_parts: number of parts, >= 1; may exceed the number of nodes.
        seed: equal seeds give equal assignments.
        both_ways: the reverse of every edge is among the edges of some rank, so that none is to be added.
        scratch: for temporary files.
        coarsening: the end of clustering.
        report: gets the progress.

    Returns:
        int32[own nodes].

    Raises:
        InvalidArgumentError: there are too many nodes for one rank; on every rank.
    """
    if np.diff(bounds).max() >= 2**31:
        raise InvalidArgumentError(f"a rank holds less than 2**31 nodes (got {np.diff(bounds).max()}): take more ranks")
    total = int(bounds[-1])
    if num_parts == 1 or total == 0:
        return np.zeros(len(weights), np.int32)
    totals = exchange.total(weights.sum(axis=0))
    limits = _limits(totals, num_parts)
    target = max(coarsening.least, int(total * coarsening.fraction), coarsening.of_parts * num_parts)
    caps = np.clip(CAP * totals // target, 2, 2**31 - 1)
    scratch = scratch or Scratch()
    level = level_of_edges(exchange, bounds, edges, weights, scratch, both_ways)
    give_back()
    level, ways_back = _coarsest(level, caps, target, coarsening, seed, scratch, report)
    report(_COARSENED)
    parts = initial_parts(level, num_parts, limits, seed)
    give_back()
    report(_CUT)
    criteria = int(np.count_nonzero(totals))
    sizes = [len(finer.indices) for finer, _ in ways_back] + [len(level.indices)]
    for depth in reversed(range(len(ways_back) + 1)):
        if depth < len(ways_back):
            level, descent = ways_back.pop()
            parts = descent.project(parts)
            del descent
        parts = refine(level, parts, num_parts, limits, _effort(depth, criteria), seed + depth, depth == 0)
        report(_CUT + (1 - _CUT) * sum(sizes[depth:]) / max(sum(sizes), 1))
    give_back()
    return parts[: len(weights)]


@collective("ranks")
def multilevel_assign(
    source: GraphSource,
    num_parts: int,
    criteria: Criteria,
    *,
    seed: int = 0,
    both_ways: bool = False,
    exchange: Exchange = ALONE,
    bounds: I64 | None = None,
    scratch: Scratch | None = None,
    report: Report = lambda fraction: None,
) -> I32:
    """Assign every node of every type to a part: int32[own nodes]. All relations count alike.

    Each rank reads its share of the source, and gives the criteria of its own nodes, types one after the other. Their
    arrays are replaced by views of the one that is worked with, to save memory. Other arguments are those of
    :func:`assign`; by default one rank owns all nodes.
    """
    bounds = source.node_bases[[0, -1]] if bounds is None else bounds
    own = int(bounds[exchange.rank + 1] - bounds[exchange.rank])
    weights = np.empty((own, len(criteria)), np.int32)
    for number, name in enumerate(criteria):
        weights[:, number] = criteria[name]
        criteria[name] = weights[:, number]
    edges = all_edges(source, exchange, report)
    return assign(
        exchange, bounds, edges, weights, num_parts,
        seed=seed, both_ways=both_ways, scratch=scratch, report=report,
    )  # fmt: skip


def all_edges(source: GraphSource, exchange: Exchange, report: Report) -> Iterator[tuple[I64, I64]]:
    """Yield this rank's chunks of all relations, in ids of all nodes."""
    total = sum(source.edge_counts)
    done = 0
    for src, dst in all_edges_among_nodes(source, exchange.rank, exchange.size):
        report(_READ * min(done / total, 1.0))
        done += len(src) * exchange.size
        yield src, dst


def _limits(totals: I64, num_parts: int) -> I64:
    """Return int64[criteria], the limits of a part: 3 % over the mean, and the mean + 1 if 5 % allow that."""
    means: F64 = totals / num_parts
    ceiling = np.ceil(means)
    aim = np.maximum(np.floor(means * AIM), ceiling + 1)
    limits: F64 = np.maximum(np.minimum(aim, np.floor(means * TOLERANCE)), ceiling)
    return limits.astype(np.int64)


def _coarsest(
    level: Level, caps: I64, target: int, coarsening: Coarsening, seed: int, scratch: Scratch, report: Report
) -> tuple[Level, list[tuple[Level, Descent]]]:
    """Return the coarsest level, and the ways back with the finer levels, the finest first."""
    ways_back: list[tuple[Level, Descent]] = []
    exchange = level.exchange
    count = exchange.sum_of(level.num_own)
    first = count
    while count > target * coarsening.slack and len(ways_back) < coarsening.levels:
        clusters = find_clusters(level, caps, target, seed + len(ways_back))
        give_back()
        before = count
        report(_READ + (_COARSENED - _READ) * min((first - count) / (first - target), 1.0))
        count = exchange.sum_of(int(np.count_nonzero(clusters.members)))
        if count > 0.95 * before:
            break
        coarse, descent = contract(level, clusters, scratch)
        del clusters
        ways_back.append((level.parked(scratch), descent.parked(scratch)))
        del descent
        level = coarse
        give_back()
        get_logger().info("level %d: %d nodes, %d edges here", len(ways_back), count, len(level.indices))
    level.table.close()
    return level, ways_back


def _effort(depth: int, criteria: int) -> Effort:
    """Return the effort for a level; with many criteria parts must not exceed their limits by much."""
    many = criteria >= 3
    inflow = 1.02 if many else 1.1
    return Effort(8 if depth == 0 else 16, 1 if depth == 0 else 3, inflow, 3 if many else 0)
