"""The sources with the smallest random numbers, which all destinations of a hop share."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.kernels.labor import choose_labor, choose_labor_weighted
from mpigraph.kernels.rng import combine
from mpigraph.kernels.sample import Candidates
from mpigraph.sampling.strategies.strategy import Draw, HopKeys, OwnedRows, Strategy
from mpigraph.sampling.strategies.uniform import Uniform
from mpigraph.sampling.strategies.weighted import Weighted
from mpigraph.store.derived import EdgeWeights
from mpigraph.store.store import Store

_DRAWS = 0x1AB0  # separates these keys from those of draws for each destination


@dataclass(frozen=True)
class Labor(Strategy):
    """Choose the sources with the smallest numbers (``kernels/labor.py``).

    A number is a hash of the source and the key, and the key one of the source's type: relations with one source type
    share their numbers.

    Attributes:
        weights: number of a tensor of edge weights, or of a mask; 0 without.
        same_in_hops: all hops of a minibatch share the numbers, too.
        period: steps that a number lives, in which all minibatches of all trainers share it; 0 for numbers of each
            minibatch.
        phase: the step within the period.
    """

    tag = 5
    keys_by_relation = False
    tables = ("weights",)
    replace: ClassVar[bool] = False
    weights: int = 0
    same_in_hops: bool = False
    period: int = 0
    phase: int = 0

    def at_step(self, step: int) -> Strategy:
        """See :class:`.Strategy`."""
        return replace(self, phase=step % self.period) if self.period else self

    @property
    def needs_tables(self) -> bool:
        """True with weights."""
        return bool(self.weights)

    def hop_key(self, keys: HopKeys, src_type: int) -> np.uint64:
        """Return the key of the numbers of a source type; where they have a period, that of the next one is by 1 more.

        ``keys`` are those of the step in :meth:`at_step`.
        """
        key = keys.every if self.period else keys.minibatch
        key = combine(key, _DRAWS, src_type, 0 if self.same_in_hops else 1 + keys.number)
        return np.uint64((int(key) + keys.step // self.period) % 2**64) if self.period else key

    def prepare(self, store: Store, relation: int) -> Draw:
        """Look up the weights."""
        if not self.weights:
            return _LaborDraw(self, Uniform(self.fanout).prepare(store, relation))
        counting = Weighted(self.fanout, False, self.weights).prepare(store, relation)
        return _LaborDraw(self, counting, store.derived(EdgeWeights, self.weights))


class _LaborDraw:
    def __init__(self, how: Labor, counting: Draw, weights: EdgeWeights | None = None) -> None:
        self._how = how
        self._weights = weights
        self.count = counting.count

    def choose(self, rows: OwnedRows, positions: I64, offsets: I64, picks: I64) -> None:
        """See :class:`.Draw`."""
        columns: list[Array] = [rows.edges.indices]
        if self._weights is not None:
            columns.append(self._weights.values(rows.host))
        how = self._how
        dst = rows.destinations(how.fanout, how.replace)
        kernel: Callable[..., None] = choose_labor if self._weights is None else choose_labor_weighted

        def choose(columns: list[Array], positions: I64, scratch: Candidates) -> None:
            kernel(dst, *columns, how.period, how.phase, positions, scratch, offsets, picks)

        rows.choose_kept(columns, positions, offsets, picks, choose)
