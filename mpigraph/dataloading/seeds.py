"""A rank's seeds: divided into minibatches, with a number of steps that all ranks agree on; one pass over them.

Data-parallel training needs the same number of steps on every rank. Every rank keeps exactly its own seeds, none is
repeated and none is left out (unless ``drop_last``); a rank that would run out early makes smaller batches instead.
With batch size 4 and 9, 8, 3 and 0 seeds on four ranks::

    rank   seeds   alone      agreed: 3 steps
    0      9       4 4 1      4 4 1
    1      8       4 4        3 3 2
    2      3       3          1 1 1
    3      0       -          -          (nothing to make a batch of: use DDP's ``join`` for empty ranks)
"""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from itertools import chain, count, pairwise, repeat
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch

from mpigraph.arrays import I64, U64
from mpigraph.collective import collective
from mpigraph.distgraph.typed_ids import EdgeIds, NodeIds, id_array
from mpigraph.errors import InvalidArgumentError, check_integer, check_state
from mpigraph.kernels.rng import combine, fingerprint, hash_each, hash_of_sequence, sum_of_hashes, told_apart
from mpigraph.log import get_logger
from mpigraph.metadata.schema import Relation
from mpigraph.mpi.world import World
from mpigraph.sampling.minibatch import RandomContext
from mpigraph.session.context import OfTrainer

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


# One pass over a trainer's seeds: their order, the bounds of batches, and the number of batches handed out.
#
# A pass is an epoch, or the remainder of one that began on another number of trainers. Hashes of its seeds order a
# remainder, so that what is left of it later has the same order.

_GOING_ON = "going on from the state of a loader"
_FORMS = {"fingerprint": dict, "trainers": int, "batches": list, "progress": OfTrainer, "left": OfTrainer}
_NO_PASS = 0
_EPOCH = 1
_REMAINDER = 2
_COLUMNS = 7  # of progress
_BEYOND = 2**62  # an epoch, or a step, beyond all that a job can reach
_WARNED = -1  # no hash of Python's


class EpochPlan:
    """A pass over seeds; ``length`` is their number at its beginning."""

    def __init__(
        self,
        epoch: int,
        seeds: Seeds,
        order: I64,
        bounds: I64,
        steps: int,
        *,
        first_step: int = 0,
        taken: int = 0,
        is_remainder: bool = False,
    ) -> None:
        """Begin or go on.

        Args:
            epoch: number of the epoch.
            seeds: its seeds; of a remainder without those handed out before it was loaded.
            order: int64[n], their positions in the order of the pass.
            bounds: int64[batches + 1], the bounds of its batches, counted from its beginning.
            steps: the trainers' number of steps, from its beginning on.
            first_step: number of the step of its first batch, counted through all epochs.
            taken: batches that were handed out.
            is_remainder: it is the rest of an epoch of other trainers; the first seed in ``order`` is then the first
                one that was not handed out.
        """
        self.epoch = epoch
        self.seeds = seeds
        self.steps = steps
        self.length = len(order) + (int(bounds[taken]) if is_remainder else 0)
        self.taken = taken
        self.is_remainder = is_remainder
        self._first_step = first_step
        self._order = order
        self._bounds = bounds
        self._base = int(bounds[taken]) if is_remainder else 0

    @property
    def step(self) -> int:
        """Number of the step of the next batch, counted through all epochs; the same on each trainer."""
        return self._first_step + self.taken

    @property
    def next_size(self) -> int:
        """Number of seeds of the next batch."""
        return int(self._bounds[self.taken + 1] - self._bounds[self.taken])

    def batches(self) -> Iterator[I64]:
        """Return positions of the seeds of each batch that was not handed out."""
        bounds = (self._bounds[self.taken :] - self._base).tolist()
        return (self._order[begin:end] for begin, end in pairwise(bounds))

    def contexts(self, seed: int) -> Iterator[RandomContext]:
        """Return what the draws of each of :meth:`batches` depend on.

        Batches of the same seeds are numbered from the last one on, so that the number of one does not depend on how
        many were handed out before: a loaded pass repeats no draws, and goes on as it would have.
        """
        names: list[int] = []
        if self.seeds.repeat:
            hashes = self.seeds.hashes(np.uint64(0)).view(np.int64)
            sums = np.array([hashes[positions].sum() for positions in self.batches()], np.int64)[::-1]
            told = told_apart(sums)
            names = np.where(told == sums, 0, told)[::-1].tolist()
        for step, positions, name in zip(count(self.step), self.batches(), chain(names, repeat(0)), strict=False):
            epoch = int(combine(self.epoch, name)) if name else self.epoch
            yield RandomContext(seed, epoch, step, minibatch=self.seeds.fingerprint(positions))

    def left(self, taken: int) -> I64:
        """Return the :meth:`.Seeds.rows` of the seeds left after ``taken`` batches, in their original order."""
        out = np.zeros(len(self.seeds), np.bool_)
        out[self._order[int(self._bounds[taken]) - self._base :]] = True
        return self.seeds.rows(np.flatnonzero(out))


class Passes:
    """The passes of a loader over this trainer's seeds: the next one, and the progress of the present one.

    Attributes:
        bounds: int64[batches + 1], the bounds of an epoch's batches.
        next: number of the next epoch.
        loaded: the pass to begin with, from a loaded state.
        fingerprint: JSON values by name that a state must agree with.
        begun: hashes of the job's loaders that began with the first epoch, to warn of a loader that is made anew in
            each epoch and repeats it; None for a loader with a seed or epoch of its own, or without draws.
    """

    @collective("trainers")
    def __init__(
        self, world: World, rank: int, seeds: Seeds, batch_size: int, shuffle: bool, drop_last: bool, seed: int
    ) -> None:
        """Plan the epochs; the options are those of :class:`.DistDataLoader`."""
        self._world = world
        self.seeds = seeds
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._drop_last = drop_last
        self._seed = seed
        self._rank = rank
        self._steps = agreed_steps(len(seeds), batch_size, drop_last, world.allreduce_minmax)
        self.bounds = batch_bounds(len(seeds), batch_size, drop_last, self._steps)
        self._warn_if_uneven()
        self.next = 0
        self._first_step = 0, 0  # an epoch, and the number of its first step
        self.current: EpochPlan | None = None
        self.loaded: EpochPlan | None = None
        self.begun: set[int] | None = None
        types = None if seeds.types is None else [kind if isinstance(kind, str) else list(kind) for kind in seeds.types]
        self.fingerprint: dict[str, Any] = {
            "seed": seed,
            "number of seeds": world.allreduce_sum(len(seeds)),
            "hash of seeds": world.allreduce_sum(seeds.digest()) % 2**48,
            "types of seeds": types,
        }

    @collective("trainers")
    def _warn_if_uneven(self) -> None:
        """Warn on one trainer if others have another number of minibatches."""
        trainers, batches = len(self._world.trainer_ranks), len(self.bounds) - 1
        ends = [self._world.allreduce_minmax(batches * trainers + self._rank, largest) for largest in (False, True)]
        (fewest, this), (most, other) = (divmod(end, trainers) for end in ends)
        if fewest < most and self._rank == this:
            get_logger().warning(
                "trainer %d has %d minibatches in an epoch (%d seeds), trainer %d has %d: DDP needs equal "
                "numbers. Wrap the epoch in `with model.join():`, or use fewer trainers or other batch sizes",
                this,
                fewest,
                len(self.seeds),
                other,
                most,
            )

    def __repr__(self) -> str:
        of = self.fingerprint
        sampler = f", {of['sampler']}" if "sampler" in of else ""
        batches = f"{len(self.bounds) - 1} minibatches of at most {self._batch_size} from {len(self.seeds)} seeds"
        return f"{of.get('loader', 'Passes')}({batches}{sampler}, epoch {self.epoch})"

    @property
    def epoch(self) -> int:
        """Number of the epoch in progress, else of the next one."""
        known = self.current or self.loaded
        return self.next if known is None else known.epoch

    def set_epoch(self, epoch: int) -> None:
        """Number the next epoch; keep a loaded state only if it is in this epoch."""
        self.next = epoch
        self.begun = None
        if self.loaded is not None and self.loaded.epoch != epoch:
            self.loaded = None

    def begin(self) -> EpochPlan:
        """Begin a pass: the next epoch, or the rest of it."""
        if self.begun is not None:
            self._check_repetition(self.begun)
        self.begun = None
        self.current, self.loaded = self.loaded or self._of_epoch(self.next, 0), None
        self.next = self.current.epoch + 1
        return self.current

    def _check_repetition(self, begun: set[int]) -> None:
        """Warn, once a job, if another loader like this one has begun with the same epoch."""
        kind = hash(json.dumps([self.fingerprint, self._batching, self.next]))
        if kind in begun and _WARNED not in begun and self._rank == 0:
            get_logger().warning(
                "%r was made before, and repeats its order and draws: each new loader begins with epoch 0. Make one "
                "for all epochs, or call set_epoch(epoch) or give seed= (said once a job)",
                self,
            )
            begun.add(_WARNED)
        begun.add(kind)

    def end(self, plan: EpochPlan) -> None:
        """Note that a pass is over, or was left."""
        if self.current is plan:
            self.current = None

    def _of_epoch(self, epoch: int, taken: int) -> EpochPlan:
        order = np.arange(len(self.seeds))
        if self._shuffle:
            order = shuffled(len(self.seeds), self._seed, epoch, self._rank)
        first = self._first_of(epoch)
        return EpochPlan(epoch, self.seeds, order, self.bounds, self._steps, first_step=first, taken=taken)

    def _first_of(self, epoch: int) -> int:
        known, step = self._first_step
        return step + (epoch - known) * self._steps

    def _remainder(self, epoch: int, rows: I64, bounds: I64, steps: int, taken: int) -> EpochPlan:
        seeds = self.seeds.of_rows(rows)
        order = np.arange(len(seeds))
        if self._shuffle:
            order = np.argsort(seeds.hashes(combine(self._seed, epoch)), kind="stable")
        first = self._first_of(epoch + 1) - steps
        return EpochPlan(epoch, seeds, order, bounds, steps, first_step=first, taken=taken, is_remainder=True)

    def state_dict(self) -> dict[str, Any]:
        """Return this trainer's position."""
        known = self.current or self.loaded
        progress = [self.next, _NO_PASS, 0, 0, 0, self._sequence, self._first_of(self.next)]
        left = partial(self.seeds.rows, np.empty(0, np.int64))
        if known is not None:
            kind = _REMAINDER if known.is_remainder else _EPOCH
            progress = [known.epoch, kind, known.length, known.steps, known.taken, self._sequence, known.step]
            left = partial(known.left, known.taken)
        return {
            "fingerprint": self.fingerprint,
            "trainers": len(self._world.trainer_ranks),
            "batches": self._batching,
            "progress": OfTrainer(torch.tensor([progress])),
            "left": OfTrainer(lambda: torch.from_numpy(left())),
        }

    @property
    def _batching(self) -> list[int | bool]:
        return [self._batch_size, self._shuffle, self._drop_last]

    @cached_property
    def _sequence(self) -> int:
        return self.seeds.sequence()

    @collective("trainers")
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state; see :meth:`.DistDataLoader.load_state_dict`."""
        with self._world.together(_GOING_ON):
            alike = self.check_state_dict(state)
        progress, left = state["progress"].rows, state["left"].rows.numpy()
        self.current = self.loaded = self.begun = None
        if self._world.allreduce_minmax(int(alike), False):
            self._go_on(progress[0, :_COLUMNS].tolist(), left)
        else:
            self._share(progress, left)

    def check_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Return whether a state is of a pass of this trainer itself.

        Raises:
            InvalidArgumentError: it is of another loader, or not a loader's state.
        """
        try:
            return self._check_state(state)
        except RuntimeError as error:  # as torch raises where tensors stand in place of numbers
            raise InvalidArgumentError(f"the state is not that of a loader: {error}") from error

    def _check_state(self, state: Mapping[str, Any]) -> bool:
        """As :meth:`check_state_dict`; raises RuntimeError where tensors stand in place of numbers."""
        check_state("a loader", state, _FORMS)
        there, here = state["fingerprint"], self.fingerprint
        different = [name for name in {**there, **here} if there.get(name) != here.get(name)]
        if different:
            said = "; ".join(
                f"{name} is {there.get(name)} in the state, and {here.get(name)} here" for name in different
            )
            raise InvalidArgumentError(f"the state is of another loader: {said}")
        progress, left, most = state["progress"].rows, state["left"].rows, here["number of seeds"]
        _check_rows("progress", progress, _COLUMNS)
        _check_rows("left", left, self.seeds.num_columns)
        numbers = progress[:, [0, 1, 2, 3, 4, 6]]
        limits = torch.tensor([_BEYOND, _REMAINDER, most, most, most, _BEYOND])
        least = torch.tensor([0, 0, 0, 0, 0, -_BEYOND])  # a smaller epoch can come after a larger one
        if bool(((numbers < least) | (numbers > limits)).any()):
            what = "epoch, kind of pass, seeds, steps and batches taken, and the next step"
            raise InvalidArgumentError(f"the state of a loader of {most} seeds: {what} cannot be {numbers.tolist()}")
        kinds = left[:, :1] if self.seeds.types else left[:0]
        if len(left) > most or bool(((kinds < 0) | (kinds >= len(self.seeds.types or ()))).any()):
            raise InvalidArgumentError(f"the state of a loader: the seeds left are not seeds of it ({len(left)} rows)")
        alike = bool(state["trainers"] == len(self._world.trainer_ranks) and state["batches"] == self._batching)
        if not alike or len(progress) != 1:
            return False
        kind, its_seeds = progress[0, [1, 5]].tolist()
        return bool(kind == _REMAINDER or its_seeds == self._sequence)

    def _go_on(self, progress: list[int], left: I64) -> None:
        epoch, kind, length, steps, taken, _, step = progress
        rest = steps - taken if kind == _REMAINDER else -taken
        first_step = epoch + (kind == _REMAINDER), step + rest
        last = np.iinfo(np.int64).max
        running = self._world.allreduce_minmax(last if kind == _NO_PASS else epoch, False)
        if kind == _NO_PASS and epoch == running + 1:  # this trainer was through, and the others were not
            epoch, kind, taken = running, _EPOCH, len(self.bounds) - 1
        bounds = self.bounds
        if kind == _REMAINDER:
            bounds = batch_bounds(length, self._batch_size, self._drop_last, steps)
        with self._world.together(_GOING_ON):
            if kind != _NO_PASS and taken >= len(bounds):
                raise InvalidArgumentError(f"{taken} batches of {len(bounds) - 1} were taken in the state of a loader")
            if kind == _REMAINDER and len(left) != length - int(bounds[taken]):
                raise InvalidArgumentError(f"{len(left)} seeds are left of {length} in the state of a loader")
        self.next, self._first_step = epoch, first_step
        if kind == _EPOCH:
            self.loaded = self._of_epoch(epoch, taken)
        elif kind == _REMAINDER:
            self.loaded = self._remainder(epoch, left, bounds, steps, taken)

    def _share(self, progress: torch.Tensor, left: I64) -> None:
        """Take a share of the seeds that all trainers have left; ``left`` are those of this one."""
        running = bool((progress[:, 1] != _NO_PASS).any())
        last = np.iinfo(np.int64).max
        self.next = self._world.allreduce_minmax(min([last, *progress[:, 0].tolist()]), False)
        step = self._world.allreduce_minmax(max([0, *progress[:, 6].tolist()]), True)  # drawn by none of them
        self._first_step = self.next, step
        if self._world.allreduce_minmax(int(running), True):
            agree = self._world.allreduce_minmax
            steps = agreed_steps(len(left), self._batch_size, self._drop_last, agree)
            if self._drop_last:  # shares differ by a seed: make no batch that another trainer cannot make
                steps = agree(min(steps, len(left) // self._batch_size), False)
            bounds = batch_bounds(len(left), self._batch_size, self._drop_last, steps)
            self._first_step = self.next + 1, step + steps
            self.loaded = self._remainder(self.next, left, bounds, steps, 0)


class HasEpochs:
    """The length and the epochs of a loader, which are those of its passes."""

    _passes: Passes

    def __len__(self) -> int:
        """Number of minibatches that this rank yields in an epoch; a resumed epoch has fewer left."""
        return len(self._passes.bounds) - 1

    def __repr__(self) -> str:
        return repr(self._passes)

    @property
    def epoch(self) -> int:
        """Number of the epoch in progress, else of the next one; a resumed script continues there."""
        return self._passes.epoch

    def set_epoch(self, epoch: int) -> None:
        """Number the next epoch, for example when training resumes. Raises InvalidArgumentError if it is no integer.

        If a loaded state is in this epoch, only the rest of it follows.
        """
        self._passes.set_epoch(check_integer("epoch", epoch, 0))


def _check_rows(name: str, rows: torch.Tensor, columns: int) -> None:
    """Raise InvalidArgumentError unless rows of a state are int64[n, columns or more]; of one column also int64[n]."""
    width = 1 if rows.ndim == 1 else rows.shape[1] if rows.ndim == 2 else 0
    if rows.dtype != torch.int64 or width < columns:
        raise InvalidArgumentError(
            f"{name!r} in the state of a loader must be int64[n, {columns}] (got {rows.dtype}{list(rows.shape)})"
        )
