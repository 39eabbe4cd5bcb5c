"""Cut a rank's seeds into minibatches, in a reproducible order, with a number of steps that all ranks agree on.

Data-parallel training needs the same number of steps on every rank. Every rank keeps exactly its own seeds, none is
repeated and none is left out (unless ``drop_last``); a rank that would run out early makes smaller batches instead.
With batch size 4 and 9, 8, 3 and 0 seeds on four ranks::

    rank   seeds   alone      agreed: 3 steps
    0      9       4 4 1      4 4 1
    1      8       4 4        3 3 2
    2      3       3          1 1 1
    3      0       -          -          (nothing to make a batch of: use DDP's ``join`` for empty ranks)
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mpigraph.arrays import I64
from mpigraph.kernels.rng import combine

__all__ = ["Seeds", "agreed_steps", "batch_bounds", "shuffled"]


class Seeds:
    """A rank's seeds: ids, or ids of several types, which batches mix."""

    def __init__(self, given: I64 | Mapping[Any, I64]) -> None:
        """Keep int64[n] ids, or type -> int64[n]."""
        self._types = list(given) if isinstance(given, Mapping) else None
        lists = list(given.values()) if isinstance(given, Mapping) else [given]
        self._ids = lists[0] if len(lists) == 1 else np.concatenate([np.empty(0, np.int64), *lists])
        kinds = np.arange(len(lists), dtype=np.min_scalar_type(len(lists)))
        self._kinds = kinds if self._types is None else np.repeat(kinds, [len(ids) for ids in lists])

    def __len__(self) -> int:
        return len(self._ids)

    def take(self, positions: I64) -> I64 | dict[Any, I64]:
        """The seeds at int64[b] positions: ids, or ids by type with the types that occur."""
        ids = self._ids[positions]
        if self._types is None:
            return ids
        kinds = self._kinds[positions]
        return {self._types[kind]: ids[kinds == kind] for kind in np.unique(kinds)}

    def items(self, positions: I64) -> list[Any]:
        """The seeds at int64[b] positions, one by one: ids, or ``(type, id)``."""
        ids: list[int] = self._ids[positions].tolist()
        if self._types is None:
            return ids
        return [(self._types[kind], one) for kind, one in zip(self._kinds[positions], ids, strict=True)]


def agreed_steps(num_seeds: int, batch_size: int, drop_last: bool, allreduce: Callable[[int, bool], int]) -> int:
    """The number of steps of an epoch.

    Args:
        num_seeds: seeds of this rank.
        batch_size: most seeds of a batch, at least 1.
        drop_last: leave out seeds that do not fill a batch.
        allreduce: ``allreduce(value, largest)`` is the largest or smallest value of all ranks.

    Collective on whatever ``allreduce`` is collective on.
    """
    if not drop_last:
        return allreduce(-(-num_seeds // batch_size), True)
    full = num_seeds // batch_size
    fewest = allreduce(full if full > 0 else np.iinfo(np.int64).max, False)
    return fewest if fewest < np.iinfo(np.int64).max else 0


def batch_bounds(num_seeds: int, batch_size: int, drop_last: bool, steps: int) -> I64:
    """int64[batches + 1]: where this rank's batches begin and end."""
    if drop_last:
        return np.arange(min(steps, num_seeds // batch_size) + 1, dtype=np.int64) * batch_size
    alone = -(-num_seeds // batch_size)
    if alone == steps:
        return np.minimum(np.arange(steps + 1, dtype=np.int64) * batch_size, num_seeds)
    batches = min(steps, num_seeds)
    small, larger = divmod(num_seeds, max(batches, 1))
    sizes = np.full(batches, small, np.int64)
    sizes[:larger] += 1
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def shuffled(num_seeds: int, seed: int, epoch: int, rank: int) -> I64:
    """A permutation of ``range(num_seeds)`` that depends on the arguments alone."""
    generator = np.random.Generator(np.random.Philox(key=int(combine(seed, epoch, rank))))
    return generator.permutation(num_seeds)
