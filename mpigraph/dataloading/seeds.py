"""Divide a rank's seeds into minibatches, in a reproducible order, with a number of steps that all ranks agree on.

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
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch

from mpigraph.arrays import I64, U64
from mpigraph.collective import collective
from mpigraph.distgraph.typed_ids import EdgeIds, NodeIds, id_array
from mpigraph.kernels.rng import combine, fingerprint, hash_each, hash_of_sequence, sum_of_hashes
from mpigraph.metadata.schema import Relation

TypedIds: TypeAlias = NodeIds | EdgeIds
"""int[n] ids, or type -> int[n], of nodes or of edges."""
TypedTensors: TypeAlias = torch.Tensor | dict[str, torch.Tensor] | dict[Relation, torch.Tensor]
"""int64[n] ids, or type -> int64[n]."""
Item: TypeAlias = int | tuple[str | Relation, int]
"""One id, or its type and it."""


class Chosen(NamedTuple):
    """The seeds of a minibatch."""

    ids: Any  # int64[b], or type -> int64[b]
    times: Any  # their times in this form, or None
    places: Any  # their places among the ids of the trainer that had them first, in this form, or None

    def times_as(self, name: str) -> dict[str, Any]:
        """Return the times as an argument of this name; no argument without times."""
        return {} if self.times is None else {name: self.times}


class Seeds:
    """A rank's seeds: ids, or ids of several types, which batches mix; optionally with times and places."""

    def __init__(self, ids: TypedIds, what: str, times: TypedIds | None = None, *, placed: bool = False) -> None:
        """Keep the ids and their times; ``what`` names them in errors.

        With ``placed``, seeds that move to another trainer keep their places among ``ids`` (of their type).

        Raises:
            InvalidArgumentError: the values are not integers in one dimension.
        """
        self._types: list[str | Relation] | None = None
        if isinstance(ids, Mapping):
            self._types = list(ids)
            lists = [id_array(of_type, f"{what} of {kind!r}") for kind, of_type in ids.items()]
        else:
            lists = [id_array(ids, what)]
        self._ids = _joined(lists)
        self._times = None
        if times is not None:
            of_types = times.values() if isinstance(times, Mapping) else [times]
            self._times = _joined([id_array(of_type, f"times of {what}") for of_type in of_types])
        self._places = _joined([np.arange(len(of_type)) for of_type in lists]) if placed else None
        kinds = np.arange(len(lists), dtype=np.min_scalar_type(len(lists)))
        self._kinds = kinds if self._types is None else np.repeat(kinds, [len(of_type) for of_type in lists])

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def types(self) -> list[str | Relation] | None:
        """The types, in the order of their numbers; None if the ids have none."""
        return self._types

    @property
    def num_columns(self) -> int:
        """The width of :meth:`rows`."""
        return sum(column is not None for column in (self._types, self._ids, self._times, self._places))

    def rows(self, positions: I64) -> I64:
        """Return the seeds at ``positions``: int64[b] ids, or int64[b, c] with type, time and place of each."""
        kinds = None if self._types is None else self._kinds
        columns = [column[positions] for column in (kinds, self._ids, self._times, self._places) if column is not None]
        return columns[0] if len(columns) == 1 else np.stack(columns, axis=1).astype(np.int64, copy=False)

    def of_rows(self, rows: I64) -> "Seeds":
        """Return seeds of the same types from the result of :meth:`rows`."""
        columns = iter([rows] if rows.ndim == 1 else np.ascontiguousarray(rows.T))
        kinds = None if self._types is None else next(columns).astype(self._kinds.dtype)
        seeds = Seeds(next(columns), "seeds")
        seeds._types = self._types
        seeds._kinds = seeds._kinds if kinds is None else kinds
        seeds._times = None if self._times is None else next(columns)
        seeds._places = None if self._places is None else next(columns)
        return seeds

    def _identities(self) -> I64:
        """Return int64[n], a number for each seed by its id and time, not by its place, which differs by trainer."""
        if self._times is None:
            return self._ids
        hashes = np.empty(len(self), np.uint64)
        hash_each(np.uint64(0), self._times, hashes)
        return hashes.view(np.int64) ^ self._ids

    def digest(self) -> int:
        """Return a sum of hashes of the seeds, below 2**48: the same in any order and division among trainers."""
        ids = self._identities()
        if self._types is None:
            return int(sum_of_hashes(np.uint64(0), ids)) % 2**48
        each = (sum_of_hashes(combine(kind), ids[self._kinds == kind]) for kind in range(len(self._types)))
        return sum(map(int, each)) % 2**48

    def sequence(self) -> int:
        """Return a hash of the seeds in their order, below 2**63."""
        key = np.uint64(hash_of_sequence(np.uint64(0), self._kinds.astype(np.int64)))
        return int(hash_of_sequence(key, self._identities())) >> 1

    def hashes(self, key: np.uint64) -> U64:
        """Return uint64[n], a hash of each seed."""
        out = np.empty(len(self), np.uint64)
        hash_each(key, self._identities_of_types(), out)
        return out

    def _identities_of_types(self) -> I64:
        """Return int64[n], as :meth:`_identities`, and different for ids of two types."""
        ids = self._identities()
        return ids if self._types is None else ids + (self._kinds.astype(np.int64) << 48)

    @cached_property
    def repeat(self) -> bool:
        """True if a seed is there several times."""
        ids = self._identities_of_types()
        return not (ids[1:] > ids[:-1]).all() and len(np.unique(ids)) < len(ids)

    def fingerprint(self, positions: I64) -> int:
        """Return a hash of the seeds at int64[b] positions, whatever their order: see :class:`.RandomContext`."""
        ids = self._ids[positions]
        if self._types is None:
            return int(fingerprint(ids))
        kinds = self._kinds[positions]
        return sum(int(fingerprint(ids[kinds == kind])) for kind in np.unique(kinds)) % 2**64

    def chosen(self, positions: I64) -> Chosen:
        """Return the seeds at int64[b] positions."""
        columns = (self._ids, self._times, self._places)
        return Chosen(*(None if column is None else self._by_type(column, positions) for column in columns))

    def _by_type(self, column: I64, positions: I64) -> TypedTensors:
        ids = column[positions]
        if self._types is None:
            return torch.from_numpy(ids)
        kinds = self._kinds[positions]
        by_kind = {self._types[kind]: torch.from_numpy(ids[kinds == kind]) for kind in np.unique(kinds)}
        return cast(TypedTensors, by_kind)  # types of nodes or of edges

    def items(self, positions: I64) -> list[Item]:
        """Return the seeds at int64[b] positions as a list of ids, or of ``(type, id)``."""
        ids: list[int] = self._ids[positions].tolist()
        if self._types is None:
            return list(ids)
        return [(self._types[kind], one) for kind, one in zip(self._kinds[positions], ids, strict=True)]


def as_seed_tensors(seeds_or_pairs: TypedIds | list[Item], what: str) -> TypedTensors:
    """Return ids in the form of :class:`Chosen`, from ids, type -> ids or ``(type, id)`` pairs."""
    ids = cast(TypedIds, seeds_or_pairs)
    if isinstance(seeds_or_pairs, list) and seeds_or_pairs and isinstance(seeds_or_pairs[0], tuple):
        by_kind: dict[str | Relation, list[int]] = {}
        for kind, one in cast(list[tuple[str | Relation, int]], seeds_or_pairs):
            by_kind.setdefault(kind, []).append(one)
        ids = by_kind
    seeds = Seeds(ids, what)
    return cast(TypedTensors, seeds.chosen(np.arange(len(seeds))).ids)


def _joined(lists: list[I64]) -> I64:
    """Concatenate; a single list is not copied."""
    return lists[0] if len(lists) == 1 else np.concatenate([np.empty(0, np.int64), *lists])


@collective("the ranks of ``allreduce``")
def agreed_steps(num_seeds: int, batch_size: int, drop_last: bool, allreduce: Callable[[int, bool], int]) -> int:
    """Return the number of steps of an epoch: as many as the trainer with most seeds needs.

    One with fewer seeds makes smaller minibatches, down to one seed each. With ``drop_last``, as many as every trainer
    can fill, except those that cannot fill one.

    Args:
        num_seeds: seeds of this rank.
        batch_size: most seeds of a batch, at least 1.
        drop_last: leave out seeds that do not fill a batch.
        allreduce: ``allreduce(value, largest)`` is the largest or smallest value of all ranks.
    """
    if not drop_last:
        return allreduce(-(-num_seeds // batch_size), True)
    full = num_seeds // batch_size
    fewest = allreduce(full if full > 0 else np.iinfo(np.int64).max, False)
    return fewest if fewest < np.iinfo(np.int64).max else 0


def batch_bounds(num_seeds: int, batch_size: int, drop_last: bool, steps: int) -> I64:
    """Return int64[batches + 1], the bounds of this rank's batches."""
    if drop_last:
        return np.arange(min(steps, num_seeds // batch_size) + 1, dtype=np.int64) * batch_size
    alone = -(-num_seeds // batch_size)
    if alone == steps:
        return np.minimum(np.arange(steps + 1, dtype=np.int64) * batch_size, num_seeds)
    batches = min(steps, num_seeds)
    small, larger = divmod(num_seeds, max(batches, 1))
    number = np.arange(batches + 1)
    return number * small + np.minimum(number, larger)  # the first ones have one more


def shuffled(num_seeds: int, seed: int, epoch: int, rank: int) -> I64:
    """Return a permutation of ``range(num_seeds)`` that depends only on the arguments."""
    generator = np.random.Generator(np.random.Philox(key=int(combine(seed, epoch, rank))))
    return generator.permutation(num_seeds)
