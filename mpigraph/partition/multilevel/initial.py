"""Partitioning of the coarsest level by METIS on rank 0.

METIS's memory grows with the edges, so it gets a sample of a large coarse graph: a hash of its ends keeps an edge of
weight w with probability min(1, w / t), with weight max(w, t), which leaves the expected cut as it is.
"""

from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from mpigraph.arrays import F64, I32, I64
from mpigraph.collective import collective
from mpigraph.errors import PartitionError
from mpigraph.kernels.rng import combine
from mpigraph.log import get_logger
from mpigraph.partition.balance import Criteria
from mpigraph.partition.metis import Adjacency, metis_cut
from mpigraph.partition.multilevel.dist_csr import Level, hashes

MAX_EDGES = 6_000_000
ATTEMPTS = 3  # bisections, which differ much from seed to seed; cuts by the k-way method differ little
MAX_BISECTED = 8
_HEAVY = 1 << 16  # heavier edges count as this
_CHUNK = 1 << 20  # edges looked at together


@collective("ranks")
def initial_parts(level: Level, num_parts: int, limits: I64, seed: int) -> I32:
    """Partition the coarsest level within ``limits``, int64[criteria]; return int32[n + ghosts]."""
    exchange = level.exchange
    own = level.num_own
    nodes = exchange.gather_to_first(np.concatenate([level.keys[:own, None], level.weights], axis=1))
    sample = [exchange.gather_to_first(_sample(level, seed))]
    parts = np.empty(0, np.int32)
    bounds = np.zeros(exchange.size + 1, np.int64)
    if exchange.rank == 0:  # nodes come by ascending key, since ranks own ranges
        parts = _cut(nodes, sample, num_parts, limits, seed)
        bounds = np.searchsorted(nodes[:, 0], level.ghosts.bounds)
    result = np.zeros(len(level.keys), np.int32)
    result[:own] = exchange.scatter(parts[:, None], bounds)[:, 0]
    level.tell(result)
    return result


def spread(weights: I64, keys: I64, num_parts: int, seed: int) -> I32:
    """Spread nodes evenly, regardless of edges: nodes of equal weights in turn, in the order of hashes.

    ``weights`` are int64[n, criteria], ``keys`` int64[n].
    """
    order = np.lexsort((hashes(keys, combine(seed, 6)), *(-weights.T)))
    parts = np.empty(len(keys), np.int32)
    parts[order] = np.arange(len(keys)) % num_parts
    return parts


def violation(loads: I64, limits: I64) -> float:
    """Return by how much loads int64[parts, criteria] exceed limits int64[criteria], in limits, summed over all."""
    return float((np.maximum(loads - limits, 0) / np.maximum(limits, 1)).sum())


def _sample(level: Level, seed: int) -> I64:
    """Choose edges for METIS: int64[k, 3], keys of both ends and weight."""
    exchange = level.exchange
    threshold = 1
    if exchange.sum_of(len(level.indices)) > MAX_EDGES:
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
    first = 0
    while first < level.num_own:
        after = int(np.searchsorted(level.indptr, level.indptr[first] + _CHUNK, side="right"))
        last = min(max(after - 1, first + 1), level.num_own)
        entries = slice(int(level.indptr[first]), int(level.indptr[last]))
        src = np.repeat(level.keys[first:last], np.diff(level.indptr[first : last + 1]))
        dst = level.keys[level.indices[entries]]
        weights = level.edge_weights[entries] if len(level.edge_weights) else np.ones(len(src), np.int32)
        yield src, dst, weights.astype(np.int64)
        first = last


def _threshold(histogram: I64) -> int:
    """Return the least t for which the sample is expected to be small enough; ``histogram``: edges by weight."""
    values = np.arange(len(histogram))

    def suffices(threshold: int) -> bool:
        fractions: F64 = np.minimum(values / threshold, 1.0)
        return float((histogram * fractions).sum()) <= MAX_EDGES

    return 1 + bisect_left(range(1, _HEAVY), True, key=suffices)


def _cut(nodes: I64, sample: list[I64], num_parts: int, limits: I64, seed: int) -> I32:
    """Partition the gathered level on rank 0; return the best of several attempts.

    ``nodes``, int64[n, 1 + criteria], has keys, ascending, and weights; ``sample``, int64[m, 3], the keys of both ends
    and the weight: it is emptied, so that METIS can use the memory.
    """
    keys = nodes[:, 0]
    weights = np.ascontiguousarray(nodes[:, 1:])
    best = spread(weights, keys, num_parts, seed)
    if len(nodes) <= num_parts or len(sample[0]) == 0:
        return best
    adjacency, edge_weights = _rows_of(keys, sample.pop())
    criteria: Criteria = {str(i): column for i, column in enumerate(weights.T) if column.sum() >= 10 * num_parts}
    best_value = (float("inf"), 0)
    for attempt in range(ATTEMPTS if num_parts <= MAX_BISECTED else 1):
        try:
            seed_there = int(combine(seed, 9, attempt)) >> 33
            parts = metis_cut(adjacency, edge_weights, num_parts, criteria, seed=seed_there)
        except PartitionError as error:  # happens with several criteria: the even spread is refined
            get_logger().info("initial parts: %s", error)
            continue
        value = _value(parts, adjacency, edge_weights, weights, num_parts, limits)
        if value < best_value:
            best = parts
            best_value = value
    return best


def _rows_of(keys: I64, edges: I64) -> tuple[Adjacency, I64]:
    """Return adjacency and edge weights in an order that depends on keys alone, since METIS's result depends on it."""
    pairs = np.searchsorted(keys, edges[:, 0]) * len(keys)
    pairs += np.searchsorted(keys, edges[:, 1])
    order = np.argsort(pairs)
    edge_weights = edges[order, 2]
    del edges
    pairs = pairs[order]
    del order
    indptr = np.searchsorted(pairs, np.arange(len(keys) + 1) * len(keys))
    pairs %= len(keys)
    return Adjacency(indptr.astype(np.int64), pairs), edge_weights


def _value(
    parts: I32, adjacency: Adjacency, edge_weights: I64, weights: I64, num_parts: int, limits: I64
) -> tuple[float, int]:
    """Return the violation of the limits, and the cut."""
    loads = np.zeros((num_parts, weights.shape[1]), np.int64)
    np.add.at(loads, parts, weights)
    cut = np.repeat(parts, np.diff(adjacency.indptr)) != parts[adjacency.indices]
    return violation(loads, limits), int(edge_weights[cut].sum())
