"""The whole method: from edges to a part for each node; the coarsest level is partitioned by METIS on rank 0.

METIS's memory grows with the edges, so it gets a sample of a large coarse graph: a hash of its ends keeps an edge of
weight w with probability min(1, w / t), with weight max(w, t), which leaves the expected cut as it is.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from mpigraph.arrays import F64, I32, I64
from mpigraph.collective import collective
from mpigraph.errors import InvalidArgumentError, PartitionError
from mpigraph.kernels.rng import combine
from mpigraph.log import get_logger
from mpigraph.memory import give_back
from mpigraph.partition.assigning import ROUND_BYTES, Method, Task, Workload, limits, loads_of
from mpigraph.partition.metis import call_metis
from mpigraph.partition.multilevel.levels import Descent, Level, contract, find_clusters, finest_level
from mpigraph.partition.multilevel.loops import Rows, hashes
from mpigraph.partition.multilevel.refinement import refine, violation

_AIM = 1.03  # over the mean, which leaves METIS's k-way method's balance as it is
_CAP = 7  # mean weights at the target
_READ, _COARSENED, _CUT = 0.25, 0.5, 0.6  # of the time has passed by then, about

# The target is the largest of three numbers of nodes: the least, a fraction of all, some for each part.
LEAST = 30_000
_FRACTION = 1 / 12
OF_PARTS = 64
_SLACK = 1.25  # a level of up to this many times the target stays; a further one would have nearly as many edges
_LEVELS = 4  # the most to add


@collective("ranks")
def assign(task: Task) -> I32:
    """Assign every node to a part: few edges cut, every criterion spread evenly; all relations count alike.

    The number of parts may exceed that of nodes.

    Returns:
        int32[own nodes], the parts that one rank would choose.

    Raises:
        InvalidArgumentError: there are too many nodes for one rank; on every rank.
    """
    num_parts, seed, weights = task.num_parts, task.seed, task.weights
    most = int(np.diff(task.bounds).max())
    if most >= 2**31:
        raise InvalidArgumentError(f"a rank holds less than 2**31 nodes (got {most}): take more ranks")
    if num_parts == 1 or task.num_nodes == 0:
        return np.zeros(len(weights), np.int32)
    totals = task.exchange.total(weights.sum(axis=0))
    within = limits(totals, num_parts, _AIM)
    level = finest_level(replace(task, report=lambda fraction: task.report(_READ * fraction)))
    give_back()
    level, ways_back = _coarsest(task, level, totals)
    task.report(_COARSENED)
    parts = initial_parts(level, num_parts, within, seed)
    give_back()
    for depth in reversed(range(len(ways_back) + 1)):
        task.report(_CUT + (1 - _CUT) / 2 ** (depth + 1))
        if depth < len(ways_back):
            level = ways_back[-1].level
            parts = ways_back.pop().project(parts)
        parts = refine(level, parts, num_parts, within, seed + depth, depth == 0)
    give_back()
    return parts[: len(weights)]


def _memory(work: Workload, ranks: int, mapping: bool) -> tuple[int, int]:
    nodes = -(-work.num_nodes // ranks)
    edges = -(-work.num_edges // ranks)  # counted as stored both ways
    ghosts = min(work.num_nodes - nodes, edges)
    clustering = 54 * nodes + 28 * ghosts + (64 << 20 if ranks == 1 else ROUND_BYTES)
    clustering += 4 * (work.num_nodes - nodes - ghosts)  # the table of positions has a place for those, too
    coarsest = 22 * nodes + 2 * ghosts + 18 * work.num_nodes + 126 * min(3 * work.num_edges // 4, _MAX_EDGES)  # METIS
    if not mapping:  # 4 of the finest level, which waits in a file beyond 64 MiB, and 6 of the next one
        clustering += 10 * edges
        coarsest += 6 * edges + min(4 * edges, 64 << 20)
    return max(clustering, coarsest), edges * (28 if mapping else 16)


MULTILEVEL = Method(assign, _memory, objectives=("cut",), reports=True)


def _coarsest(task: Task, level: Level, totals: I64) -> tuple[Level, list[Descent]]:
    """Return the coarsest level, and the ways back to finer levels, the finest first.

    ``totals``, int64[criteria], are the weights of all nodes.
    """
    target = max(LEAST, int(task.num_nodes * _FRACTION), OF_PARTS * task.num_parts)
    caps = np.clip(_CAP * totals // target, 2, 2**31 - 1)
    ways_back: list[Descent] = []
    count = task.num_nodes
    while count > target * _SLACK and len(ways_back) < _LEVELS:
        clusters = find_clusters(level, caps, target, task.seed + len(ways_back))
        give_back()
        before, count = count, clusters.count()
        task.report(_READ + (_COARSENED - _READ) * min((task.num_nodes - count) / (task.num_nodes - target), 1.0))
        if count > 0.95 * before:
            break
        coarse, descent = contract(level, clusters, task.scratch)
        del clusters
        ways_back.append(descent)
        level = coarse
        give_back()
        get_logger().info("level %d: %d nodes, %d edges here", len(ways_back), count, len(level.rows.indices))
    level.table.close()
    return level, ways_back


_MAX_EDGES = 6_000_000
_ATTEMPTS = 3  # bisections, which differ much from seed to seed; cuts by the k-way method differ little
_MAX_BISECTED = 8
_HEAVY = 1 << 16  # heavier edges count as this
_CHUNK = 1 << 20  # edges looked at together


@collective("ranks")
def initial_parts(level: Level, num_parts: int, within: I64, seed: int) -> I32:
    """Partition the coarsest level within limits, int64[criteria]; return int32[n + ghosts]."""
    exchange = level.exchange
    own = level.num_own
    nodes = exchange.gather_to_first(np.concatenate([level.keys[:own, None], level.weights], axis=1))
    sample = [exchange.gather_to_first(_sample(level, seed))]
    parts = np.empty(0, np.int32)
    bounds = np.zeros(exchange.size + 1, np.int64)
    if exchange.rank == 0:  # nodes come by ascending key, since ranks own ranges
        parts = _cut(nodes, sample, num_parts, within, seed)
        bounds = np.searchsorted(nodes[:, 0], level.ghosts.bounds)
    result = np.zeros(len(level.keys), np.int32)
    result[:own] = exchange.scatter(parts[:, None], bounds)[:, 0]
    level.ghosts.tell(result)
    return result


def spread(weights: I64, keys: I64, num_parts: int, seed: int) -> I32:
    """Spread nodes evenly, regardless of edges: nodes of equal weights in turn, in the order of hashes.

    ``weights`` are int64[n, criteria], ``keys`` int64[n].
    """
    order = np.lexsort((hashes(keys, combine(seed, 6)), *(-weights.T)))
    parts = np.empty(len(keys), np.int32)
    parts[order] = np.arange(len(keys)) % num_parts
    return parts


def _sample(level: Level, seed: int) -> I64:
    """Choose edges for METIS: int64[k, 3], keys of both ends and weight."""
    exchange = level.exchange
    threshold = 1
    if exchange.sum_of(len(level.rows.indices)) > _MAX_EDGES:
        histogram = np.zeros(_HEAVY + 1, np.int64)
        for _, _, weights in _edges(level):
            histogram += np.bincount(np.minimum(weights, _HEAVY), minlength=_HEAVY + 1)
        threshold = _threshold(exchange.total(histogram))
    rows = [np.empty((0, 3), np.int64)]
    for src, dst, weights in _edges(level):
        pairs = hashes(np.minimum(src, dst), combine(seed, 4)) ^ hashes(np.maximum(src, dst), combine(seed, 5))
        fraction = (hashes(pairs.view(np.int64), combine(seed, 7)) >> np.uint64(32)).astype(np.int64)
        kept = np.flatnonzero(fraction * threshold < np.minimum(weights, _HEAVY) << 32)
        rows.append(np.stack([src[kept], dst[kept], np.maximum(weights[kept], threshold)], axis=1))
    return np.concatenate(rows)


def _edges(level: Level) -> Iterator[tuple[I64, I64, I64]]:
    """Yield chunks of this rank's edges: keys of both ends, and weights."""
    indptr, indices, weights = level.rows
    for begin in range(0, len(indices), _CHUNK):
        dst = level.keys[indices[begin : begin + _CHUNK]]
        rows = np.searchsorted(indptr, np.arange(begin, begin + len(dst)), side="right") - 1
        of_edges = weights[begin : begin + _CHUNK] if len(weights) else np.ones(len(dst), np.int32)
        yield level.keys[rows], dst, of_edges.astype(np.int64)


def _threshold(histogram: I64) -> int:
    """Return the least t for which the sample is expected to be small enough; ``histogram``: edges by weight."""
    values = np.arange(len(histogram))

    def suffices(threshold: int) -> bool:
        fractions: F64 = np.minimum(values / threshold, 1.0)
        return float((histogram * fractions).sum()) <= _MAX_EDGES

    return 1 + bisect_left(range(1, _HEAVY), True, key=suffices)


def _cut(nodes: I64, sample: list[I64], num_parts: int, within: I64, seed: int) -> I32:
    """Partition the gathered level on rank 0; return the best of several attempts.

    ``nodes``, int64[n, 1 + criteria], has keys, ascending, and weights; ``sample``, int64[m, 3], the keys of both ends
    and the weight: it is emptied, so that METIS can use the memory.
    """
    keys = nodes[:, 0]
    weights = np.ascontiguousarray(nodes[:, 1:])
    best = spread(weights, keys, num_parts, seed)
    if len(nodes) <= num_parts or len(sample[0]) == 0:
        return best
    rows = _rows_of(keys, sample.pop())
    best_value = (float("inf"), 0)
    for attempt in range(_ATTEMPTS if num_parts <= _MAX_BISECTED else 1):
        try:
            seed_there = int(combine(seed, 9, attempt)) >> 33
            parts = call_metis(rows, num_parts, weights, seed_there)
        except PartitionError as error:  # happens with several criteria: the even spread is refined
            get_logger().info("initial parts: %s", error)
            continue
        cut = np.repeat(parts, np.diff(rows.indptr)) != parts[rows.indices]
        value = violation(loads_of(weights, parts, num_parts), within), int(rows.weights[cut].sum())
        if value < best_value:
            best = parts
            best_value = value
    return best


def _rows_of(keys: I64, edges: I64) -> Rows:
    """Return edges as rows in an order that depends on keys alone, since METIS's result depends on it."""
    rows, columns = np.searchsorted(keys, edges[:, 0]), np.searchsorted(keys, edges[:, 1])
    order = np.lexsort((columns, rows))
    indptr = np.searchsorted(rows, np.arange(len(keys) + 1), sorter=order)
    return Rows(indptr.astype(np.int64), columns[order], edges[order, 2])
