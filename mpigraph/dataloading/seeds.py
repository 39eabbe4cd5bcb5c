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
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch

from mpigraph.arrays import I64, U64
from mpigraph.collective import collective
from mpigraph.distgraph.typed_ids import EdgeIds, NodeIds, id_array
from mpigraph.kernels.id_hashes import hash_each, hash_of_sequence, sum_of_hashes
from mpigraph.kernels.rng import combine
from mpigraph.metadata.schema import Relation

__all__ = [
    "Chosen",
    "Item",
    "Seeds",
    "TypedIds",
    "TypedTensors",
    "agreed_steps",
    "as_seed_tensors",
    "batch_bounds",
    "shuffled",
]

TypedIds: TypeAlias = NodeIds | EdgeIds
"""int[n] ids, or type -> int[n], of nodes or of edges."""
TypedTensors: TypeAlias = torch.Tensor | dict[str, torch.Tensor] | dict[Relation, torch.Tensor]
"""int64[n] ids, or type -> int64[n]."""
Item: TypeAlias = int | tuple[str | Relation, int]
"""One id, or its type and it."""


class Chosen(NamedTuple):
    """Seeds of which more is known than their ids; all in the form of these.

    Attributes:
        ids: the seeds.
        times: their times, or None.
        places: which of the ids they are that a trainer was first given, or None.
    """

    ids: Any
    times: Any
    places: Any


class Seeds:
    """A rank's seeds: ids, or ids of several types, which batches mix; with times and places if wanted."""

    def __init__(self, given: TypedIds, what: str, times: TypedIds | None = None, *, placed: bool = False) -> None:
        """Keep the ids.

        Args:
            given: the ids.
            what: names them in errors.
            times: their times, in the same form.
            placed: keep for each seed, which may get to another trainer, its place among ``given`` (of its type).

        Raises:
            InvalidArgumentError: the values are not integers in one dimension.
        """
        self._types: list[str | Relation] | None = None
        if isinstance(given, Mapping):
            self._types = list(given)
            lists = [id_array(ids, f"{what} of {kind!r}") for kind, ids in given.items()]
        else:
            lists = [id_array(given, what)]
        self._ids = _joined(lists)
        self._times = None
        if times is not None:
            of_types = times.values() if isinstance(times, Mapping) else [times]
            self._times = _joined([id_array(some, f"times of {what}") for some in of_types])
        self._places = _joined([np.arange(len(ids)) for ids in lists]) if placed else None
        kinds = np.arange(len(lists), dtype=np.min_scalar_type(len(lists)))
        self._kinds = kinds if self._types is None else np.repeat(kinds, [len(ids) for ids in lists])

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def types(self) -> list[str | Relation] | None:
        """The types, in the order of their numbers; None if the ids have none."""
        return self._types

    @property
    def num_columns(self) -> int:
        """How many numbers :meth:`rows` has of each seed."""
        return sum(some is not None for some in (self._types, self._ids, self._times, self._places))

    def rows(self, positions: I64) -> I64:
        """The seeds at some positions as numbers: int64[b] ids, or int64[b, c] with all that is known of each."""
        kinds = None if self._types is None else self._kinds
        columns = [some[positions] for some in (kinds, self._ids, self._times, self._places) if some is not None]
        return columns[0] if len(columns) == 1 else np.stack(columns, axis=1).astype(np.int64, copy=False)

    def of_rows(self, rows: I64) -> "Seeds":
        """Other seeds, of the same types, of what :meth:`rows` has returned."""
        columns = iter([rows] if rows.ndim == 1 else np.ascontiguousarray(rows.T))
        kinds = None if self._types is None else next(columns).astype(self._kinds.dtype)
        seeds = Seeds(next(columns), "seeds")
        seeds._types = self._types
        seeds._kinds = seeds._kinds if kinds is None else kinds
        seeds._times = None if self._times is None else next(columns)
        seeds._places = None if self._places is None else next(columns)
        return seeds

    def _identities(self) -> I64:
        """int64[n]: a number for each seed, of its id and its time. The place does not count: it differs by trainer."""
        if self._times is None:
            return self._ids
        found = np.empty(len(self), np.uint64)
        hash_each(np.uint64(0), self._times, found)
        return found.view(np.int64) ^ self._ids

    def digest(self) -> int:
        """A sum of hashes of the seeds, below 2**48; whatever their order, and whoever has which, sums add up."""
        ids = self._identities()
        if self._types is None:
            return int(sum_of_hashes(np.uint64(0), ids)) % 2**48
        each = (sum_of_hashes(combine(kind), ids[self._kinds == kind]) for kind in range(len(self._types)))
        return sum(map(int, each)) % 2**48

    def sequence(self) -> int:
        """A hash of the seeds in their order, below 2**63."""
        key = np.uint64(hash_of_sequence(np.uint64(0), self._kinds.astype(np.int64)))
        return int(hash_of_sequence(key, self._identities())) >> 1

    def hashes(self, key: np.uint64) -> U64:
        """uint64[n]: a hash of each seed."""
        ids = self._identities()
        found = np.empty(len(self), np.uint64)
        hash_each(key, ids if self._types is None else ids + (self._kinds.astype(np.int64) << 48), found)
        return found

    def tensors(self, positions: I64) -> TypedTensors | Chosen:
        """The seeds at int64[b] positions: ids, or ids by type with the types that occur; more if more is known."""
        ids, times, places = (
            None if some is None else self._by_type(some, positions) for some in (self._ids, self._times, self._places)
        )
        assert ids is not None
        return ids if times is None and places is None else Chosen(ids, times, places)

    def _by_type(self, column: I64, positions: I64) -> TypedTensors:
        ids = column[positions]
        if self._types is None:
            return torch.from_numpy(ids)
        kinds = self._kinds[positions]
        by_kind = {self._types[kind]: torch.from_numpy(ids[kinds == kind]) for kind in np.unique(kinds)}
        return cast(TypedTensors, by_kind)  # types of nodes or of edges

    def items(self, positions: I64) -> list[Item]:
        """The seeds at int64[b] positions, one by one: ids, or ``(type, id)``."""
        ids: list[int] = self._ids[positions].tolist()
        if self._types is None:
            return list(ids)
        return [(self._types[kind], one) for kind, one in zip(self._kinds[positions], ids, strict=True)]


def as_seed_tensors(given: TypedIds | list[Item], what: str) -> TypedTensors:
    """Seeds as samplers take them, of ids, of ids by type or of ``(type, id)`` pairs; as :meth:`Seeds.tensors`."""
    ids = cast(TypedIds, given)
    if isinstance(given, list) and given and isinstance(given[0], tuple):
        by_kind: dict[str | Relation, list[int]] = {}
        for kind, one in cast(list[tuple[str | Relation, int]], given):
            by_kind.setdefault(kind, []).append(one)
        ids = by_kind
    seeds = Seeds(ids, what)
    return cast(TypedTensors, seeds.tensors(np.arange(len(seeds))))


def _joined(lists: list[I64]) -> I64:
    """One list, without copying where there is one."""
    return lists[0] if len(lists) == 1 else np.concatenate([np.empty(0, np.int64), *lists])


@collective("the ranks of ``allreduce``")
def agreed_steps(num_seeds: int, batch_size: int, drop_last: bool, allreduce: Callable[[int, bool], int]) -> int:
    """Return the number of steps of an epoch, which is that of every trainer that can make as many minibatches.

    That is as many as the trainer with most seeds needs; one with fewer seeds makes smaller minibatches, down to one
    seed each. With ``drop_last``, as many as every trainer can fill, except those that cannot fill one.

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
