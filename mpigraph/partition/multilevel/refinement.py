"""Refinement of parts after Jet (see the package), by synchronous moves of all nodes at once, and rebalancing.

In an iteration, each node that did not move in the last one looks for a better part, and may lose a little; a move is
kept if it loses nothing once all neighbours that gain more have moved; then parts that became too heavy lose nodes. The
best state of all iterations is kept. Where more nodes would move than a part can take, a histogram over gain and
hash, summed over the ranks, selects them.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from mpigraph.arrays import F64, I32, I64, Array, Mask
from mpigraph.collective import collective
from mpigraph.kernels.rng import combine
from mpigraph.partition.assigning import loads_of
from mpigraph.partition.loops import tally
from mpigraph.partition.multilevel.levels import Level
from mpigraph.partition.multilevel.loops import Moves, best_parts, confirm_moves, hashes, leaving_parts

REBALANCING_ROUNDS = 6
LAST_ROUNDS = 40
_IDLE = 2
_RELAXED = 1.1
_NO_LIMIT = 2**62
_BINS = 1024
_HASH_BITS = 4
_CHUNK = 1 << 18  # nodes that are ranked at a time


def violation(loads: I64, limits: I64) -> float:
    """Return by how much loads int64[parts, criteria] exceed limits int64[criteria], in limits, summed over all."""
    return float((np.maximum(loads - limits, 0) / np.maximum(limits, 1)).sum())


@collective("ranks")
def refine(level: Level, parts: I32, num_parts: int, limits: I64, seed: int, finest: bool) -> I32:
    """Improve parts, int32[n + ghosts], within limits, int64[criteria]; the ``finest`` level must end in balance.

    With many criteria parts must not exceed their limits by much.
    """
    many = np.count_nonzero(limits) >= 3
    refinement = _Refinement(level, parts, num_parts, limits, seed)
    refinement.rebalance(REBALANCING_ROUNDS)
    refinement.iterate(8 if finest else 16, 1 if finest else 3, 1.02 if many else 1.1, keeping=False)
    if many:
        refinement.iterate(3, 0, 1.0, keeping=True)
    if finest:
        refinement.rebalance(LAST_ROUNDS)
        refinement.look()
        refinement.back_to_best()
    return refinement.parts


def balanced(level: Level, parts: I32, num_parts: int, limits: I64, seed: int) -> I32:
    """Return parts, int32[n], of a level on one rank, within limits where that can be."""
    refinement = _Refinement(level, parts, num_parts, limits, seed)
    refinement.rebalance(LAST_ROUNDS)
    return refinement.parts


class _Refinement:
    """The state of the parts of one level."""

    def __init__(self, level: Level, parts: I32, num_parts: int, limits: I64, seed: int) -> None:
        self._level = level
        self._limits = limits
        self._seed = seed
        self._step = 0
        self.parts = parts
        self._loads = level.exchange.total(loads_of(level.weights, parts[: level.num_own], num_parts))
        self._scale = _scale(level)
        self._locked = np.zeros(level.num_own, np.bool_)
        self._moves = Moves(np.full(len(parts), -1, np.int32), np.zeros(len(parts), np.int32))
        self._best = parts[: level.num_own].copy()
        self._best_loads = self._loads  # which no method changes in place
        self._best_value = (float("inf"), 0)

    def iterate(self, iterations: int, quarters: int, inflow: float, keeping: bool) -> None:
        """Move and rebalance ``iterations`` times, and return to the best state; stop early when nothing moves.

        Args:
            iterations: at most.
            quarters: a move may lose this many quarters of the weight of edges to the own part.
            inflow: factor of its limit to which a part may grow before it is rebalanced.
            keeping: only moves that keep the balance.
        """
        idle = 0
        self._locked[:] = False
        for _ in range(iterations):
            self.look(quarters, keeping)
            nodes = np.flatnonzero(self._confirm())
            quota = np.maximum(np.floor(self._limits * inflow).astype(np.int64) - self._loads, 0)
            nodes = nodes[self._within(nodes, quota)]
            self._locked[:] = False
            self._locked[nodes] = True
            moved = self._level.exchange.sum_of(len(nodes))
            self._apply(nodes)
            self.rebalance(REBALANCING_ROUNDS)
            idle = idle + 1 if moved == 0 else 0
            if idle == _IDLE:
                break
        self.look()
        self.back_to_best()

    def back_to_best(self) -> None:
        """Return to the best state so far."""
        own = self.parts[: self._level.num_own]
        changed = own != self._best
        own[:] = self._best
        self._level.ghosts.tell(self.parts, changed)
        self._loads = self._best_loads

    def rebalance(self, rounds: int) -> None:
        """Move nodes out of overloaded parts, those that lose least first.

        Where no part can take the excess of another, as with several criteria, the worst criterion comes first: for a
        round the others may exceed their limits a little, and nodes that weigh most in the worst one move first.
        """
        own = self._level.num_own
        stuck = False
        for _ in range(rounds):
            excess = np.maximum(self._loads - self._limits, 0)
            if not excess.any():
                return
            caps = self._limits
            worst = None
            if stuck:
                worst = int(np.argmax(excess.sum(axis=0) / np.maximum(self._limits, 1)))
                caps = np.ceil(self._limits * _RELAXED).astype(np.int64)
                caps[worst] = self._limits[worst]
                excess[:, np.arange(len(caps)) != worst] = 0
            leaving_parts(self._level.graph, self.parts, self._loads, excess, caps, self._salt(), self._moves)
            nodes = np.flatnonzero(self._moves.targets[:own] >= 0)
            ranking = self._by_gain if worst is None else partial(self._by_weight, worst)
            nodes = nodes[self._first(self.parts[nodes], nodes, ranking, excess, enough=True)]
            nodes = nodes[self._within(nodes, np.maximum(caps - self._loads, 0))]
            if self._level.exchange.sum_of(len(nodes)) > 0:
                self._apply(nodes)
                stuck = False
            elif stuck or len(caps) == 1:
                return
            else:
                stuck = True
            if violation(self._loads, self._limits) < self._best_value[0] < float("inf"):
                self.look()

    def _salt(self) -> np.uint64:
        self._step += 1
        return combine(self._seed, 8, self._step)

    def look(self, quarters: int = 0, keeping: bool = False) -> None:
        """Look for the best part of each node; keep the present state if it is the best so far."""
        graph = self._level.graph
        caps = self._limits if keeping else np.full_like(self._limits, _NO_LIMIT)
        cut = best_parts(graph, self.parts, self._locked, self._loads, caps, quarters, self._salt(), self._moves)
        value = violation(self._loads, self._limits), self._level.exchange.sum_of(cut)  # each edge twice
        if value < self._best_value:
            self._best_value = value
            self._best[:] = self.parts[: len(self._best)]
            self._best_loads = self._loads

    def _confirm(self) -> Mask:
        level = self._level
        own = level.num_own
        targets, gains = self._moves
        targets[own:] = -1
        positions, values = level.ghosts.update(targets[:own] >= 0, targets[:own], gains[:own])
        targets[positions] = values[:, 0]
        gains[positions] = values[:, 1]
        confirmed = np.empty(own, np.bool_)
        confirm_moves(level.graph, self.parts, self._moves, self._salt(), confirmed)
        return confirmed

    def _apply(self, nodes: I64) -> None:
        targets = self._moves.targets
        weights, count = self._level.weights, len(self._loads)
        came, went = (loads_of(weights, of[nodes], count, nodes) for of in (targets, self.parts))
        self._loads = self._loads + self._level.exchange.total(came - went)
        self.parts[nodes] = targets[nodes]
        changed = np.zeros(self._level.num_own, np.bool_)
        changed[nodes] = True
        self._level.ghosts.tell(self.parts, changed)

    def _within(self, nodes: I64, quota: I64) -> Mask:
        """Choose the nodes that may move to their targets, the best first: bool[k]."""
        groups = self._moves.targets[nodes]
        inflow = self._level.exchange.total(loads_of(self._level.weights, groups, len(quota), nodes))
        too_much = np.any(inflow > quota, axis=1)
        chosen: Mask = ~too_much[groups]
        if too_much.any():
            number = (np.cumsum(too_much) - 1).astype(np.int32)
            crowded = ~chosen
            chosen[crowded] = self._first(
                number[groups[crowded]], nodes[crowded], self._by_gain, quota[too_much], enough=False
            )
        return chosen

    def _by_gain(self, nodes: I64) -> I64:
        """Rank nodes, int64[k] in [1, 63]: lower for more gain by size, in half octaves on both sides of 0."""
        gains = self._moves.gains[nodes].astype(np.int64)
        value: F64 = np.abs(gains) * 1024.0 / self._relative_sizes(nodes)
        mantissa, exponent = np.frexp(value)
        steps = np.clip(2 * exponent.astype(np.int64) + (mantissa >= 0.75), 1, 31)
        return 32 - np.sign(gains) * steps

    def _by_weight(self, criterion: int, nodes: I64) -> I64:
        """Rank nodes, int64[k] in [0, 63]: lower for nodes that weigh more in a criterion than in others."""
        weights = self._level.weights[nodes, criterion]
        fraction: F64 = np.minimum(weights * self._scale[criterion] / self._relative_sizes(nodes), 1.0)
        return np.floor(63 * (1 - fraction)).astype(np.int64)

    def _relative_sizes(self, nodes: I64) -> F64:
        """Return float64[k]: about 1024 for a node of mean weight, all criteria together."""
        sizes: F64 = np.floor(self._level.weights[nodes] * self._scale).sum(axis=1)
        return np.clip(sizes, 1, 2**31 - 1)

    def _first(self, groups: I32, nodes: I64, ranking: Callable[[I64], I64], bounds: I64, enough: bool) -> Mask:
        """Choose nodes of each group (int32[k]) by rank (in [0, 63], lower first), then by hash: bool[k].

        Choose until the bounds, weights int64[groups, criteria], are reached if ``enough``, else while they hold.
        ``ranking`` gets a part of the nodes at a time, since there may be as many as the rank has.
        """
        level = self._level
        salt = self._salt()
        bins = np.empty(len(nodes), np.int16)
        for begin in range(0, len(nodes), _CHUNK):
            chunk = nodes[begin : begin + _CHUNK]
            hashed = hashes(level.keys[chunk], salt) >> np.uint64(64 - _HASH_BITS)
            bins[begin : begin + _CHUNK] = ranking(chunk) << _HASH_BITS | hashed.astype(np.int64)
        chosen, limit, left = _first_bins(level, nodes, groups, bins, bounds, enough)
        rest = np.flatnonzero(bins == limit[groups])
        finer = (hashes(level.keys[nodes[rest]], salt) & np.uint64(_BINS - 1)).astype(np.int16)
        chosen[rest], _, _ = _first_bins(level, nodes[rest], groups[rest], finer, left, enough, last=True)
        return chosen


def _first_bins(
    level: Level, nodes: I64, groups: I32, bins: Array, bounds: I64, enough: bool, last: bool = False
) -> tuple[Mask, Array, I64]:
    """Choose whole bins of each group; return the chosen nodes, the first bin left out, and the bounds left for it."""
    table = np.zeros((len(bounds), _BINS, bounds.shape[1]), np.int64)
    tally(nodes, groups, bins, level.weights, table)
    table = level.exchange.total(table)
    ends = np.cumsum(table, axis=1)
    if enough:  # take a bin whole while its end does not reach the bounds
        fits = np.any(ends < bounds[:, None], axis=2)
    else:
        fits = np.all(ends <= bounds[:, None], axis=2)
    limit = np.where(np.all(fits, axis=1), _BINS, np.argmin(fits, axis=1)).astype(np.int16)
    before = np.where(limit[:, None] > 0, ends[np.arange(len(bounds)), np.maximum(limit - 1, 0)], 0)
    reach = limit + 1 if enough and last else limit
    return bins < reach[groups], limit, bounds - before


def _scale(level: Level) -> F64:
    """Return float64[criteria], factors that make the mean weights 1024 together."""
    totals = level.exchange.total(np.append(level.weights.sum(axis=0), level.num_own))
    scale: F64 = 1024.0 * totals[-1] / np.maximum(totals[:-1], 1) / max(np.count_nonzero(totals[:-1]), 1)
    return scale
