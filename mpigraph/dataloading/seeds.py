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
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, count, pairwise, repeat
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch

from mpigraph.arrays import I64, U64, Array
from mpigraph.collective import collective
from mpigraph.distgraph.typed_ids import EdgeIds, NodeIds, id_array
from mpigraph.errors import InvalidArgumentError, check_state
from mpigraph.kernels.rng import combine, fingerprint, hash_each, told_apart
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
    """A rank's seeds: ids, or ids of several types, which batches mix; optionally with times and places.

    Attributes:
        types: the types, in the order of their numbers; None if the ids have none.
    """

    def __init__(self, ids: TypedIds, what: str, times: TypedIds | None = None, *, placed: bool = False) -> None:
        """Keep the ids and their times; ``what`` names them in errors.

        With ``placed``, seeds that move to another trainer keep their places among ``ids`` (of their type).

        Raises:
            InvalidArgumentError: the values are not integers in one dimension.
        """
        self.types: list[str | Relation] | None = None
        self._columns: dict[str, Array] = {}  # number of the type, id, time and place of each seed, where it has them
        if isinstance(ids, Mapping):
            self.types = list(ids)
            lists = [id_array(of_type, f"{what} of {kind!r}") for kind, of_type in ids.items()]
            kinds = np.arange(len(lists), dtype=np.min_scalar_type(len(lists)))
            self._columns["kind"] = np.repeat(kinds, [len(of_type) for of_type in lists])
        else:
            lists = [id_array(ids, what)]
        self._columns["id"] = _joined(lists)
        if times is not None:
            of_types = times.values() if isinstance(times, Mapping) else [times]
            self._columns["time"] = _joined([id_array(of_type, f"times of {what}") for of_type in of_types])
        if placed:
            self._columns["place"] = _joined([np.arange(len(of_type)) for of_type in lists])

    def __len__(self) -> int:
        return len(self._columns["id"])

    def rows(self, positions: I64) -> I64:
        """Return the seeds at ``positions``: int64[b] ids, or int64[b, c] with type, time and place of each."""
        columns = [column[positions] for column in self._columns.values()]
        return columns[0] if len(columns) == 1 else np.stack(columns, axis=1).astype(np.int64, copy=False)

    def of_rows(self, rows: I64) -> "Seeds":
        """Return seeds of the same types from the result of :meth:`rows`."""
        seeds = Seeds(np.empty(0, np.int64), "seeds")
        seeds.types = self.types
        seeds._columns = dict(zip(self._columns, np.ascontiguousarray(np.atleast_2d(rows.T)), strict=False))
        return seeds

    def _names(self) -> I64:
        """Return int64[n], a number for each seed by id, type and time, not by its place, which differs by trainer."""
        names: I64 = self._columns["id"]
        if "time" in self._columns:
            hashes = np.empty(len(self), np.uint64)
            hash_each(np.uint64(0), self._columns["time"], hashes)
            names = hashes.view(np.int64) ^ names
        return names if self.types is None else names + (self._columns["kind"].astype(np.int64) << 48)

    def digest(self) -> int:
        """Return a sum of hashes of the seeds, below 2**48: the same in any order and division among trainers."""
        return int(self.hashes(np.uint64(0)).sum()) % 2**48

    def hashes(self, key: np.uint64) -> U64:
        """Return uint64[n], a hash of each seed."""
        out = np.empty(len(self), np.uint64)
        hash_each(key, self._names(), out)
        return out

    @cached_property
    def repeat(self) -> bool:
        """True if a seed is there several times."""
        names = self._names()
        return not (names[1:] > names[:-1]).all() and len(np.unique(names)) < len(names)

    def fingerprint(self, positions: I64) -> int:
        """Return a hash of the seeds at int64[b] positions, whatever their order: see :class:`.RandomContext`."""
        ids = self._by_type("id", positions)
        of_types = ids.values() if isinstance(ids, dict) else [ids]
        return sum(int(fingerprint(of_type.numpy())) for of_type in of_types) % 2**64

    def chosen(self, positions: I64) -> Chosen:
        """Return the seeds at int64[b] positions."""
        names = ("id", "time", "place")
        return Chosen(*(self._by_type(name, positions) if name in self._columns else None for name in names))

    def _by_type(self, name: str, positions: I64) -> TypedTensors:
        column = self._columns[name][positions]
        if self.types is None:
            return torch.from_numpy(column)
        kinds = self._columns["kind"][positions]
        by_kind = {self.types[kind]: torch.from_numpy(column[kinds == kind]) for kind in np.unique(kinds)}
        return cast(TypedTensors, by_kind)  # types of nodes or of edges

    def items(self, positions: I64) -> list[Item]:
        """Return the seeds at int64[b] positions as a list of ids, or of ``(type, id)``."""
        ids: list[int] = self._columns["id"][positions].tolist()
        if self.types is None:
            return list(ids)
        return [(self.types[kind], one) for kind, one in zip(self._columns["kind"][positions], ids, strict=True)]


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
    fewest = allreduce(full if full > 0 else _LAST, False)
    return fewest if fewest < _LAST else 0


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
# A state has the seeds that are left, in their order, so that as many trainers go on where they were; others share
# them, in the order of their hashes.

_GOING_ON = "going on from the state of a loader"
_FORMS = {"fingerprint": dict, "trainers": int, "batches": list, "progress": OfTrainer, "left": OfTrainer}
_LAST = 2**63 - 1
_WARNED = -1  # no hash of Python's


@dataclass(eq=False)
class EpochPlan:
    """A pass over seeds.

    Attributes:
        epoch: number of the epoch.
        seeds: its seeds; of a pass that was loaded those that were left.
        order: int64[n], their positions in the order of the pass.
        bounds: int64[batches + 1], the bounds in ``order`` of its batches; negative where one begins that was handed
            out before the pass was loaded.
        steps: the trainers' number of steps, from its beginning on.
        first_step: number of the step of its first batch, counted through all epochs.
        taken: batches that were handed out.
    """

    epoch: int
    seeds: Seeds
    order: I64
    bounds: I64
    steps: int
    first_step: int = 0
    taken: int = 0

    @property
    def length(self) -> int:
        """Number of seeds at its beginning."""
        return len(self.order) - int(self.bounds[0])

    @property
    def step(self) -> int:
        """Number of the step of the next batch, counted through all epochs; the same on each trainer."""
        return self.first_step + self.taken

    @property
    def next_size(self) -> int:
        """Number of seeds of the next batch."""
        return int(self.bounds[self.taken + 1] - self.bounds[self.taken])

    def batches(self) -> Iterator[I64]:
        """Return positions of the seeds of each batch that was not handed out."""
        return (self.order[begin:end] for begin, end in pairwise(self.bounds[self.taken :].tolist()))

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
        """Return the :meth:`.Seeds.rows` of the seeds left after ``taken`` batches, in the order of the pass."""
        return self.seeds.rows(self.order[int(self.bounds[taken]) :])


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
        self._world, self._rank = world, rank
        self.seeds = seeds
        self._batch_size, self._shuffle, self._drop_last = self._batching = (batch_size, shuffle, drop_last)
        self._seed = seed
        self._steps = self._agreed_steps(len(seeds))
        self.bounds = self._bounds(len(seeds), self._steps)
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
        self.current, self.loaded = self.loaded or self._of_epoch(self.next), None
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

    @collective("trainers")
    def _agreed_steps(self, num_seeds: int) -> int:
        return agreed_steps(num_seeds, self._batch_size, self._drop_last, self._world.allreduce_minmax)

    def _bounds(self, num_seeds: int, steps: int) -> I64:
        return batch_bounds(num_seeds, self._batch_size, self._drop_last, steps)

    def _of_epoch(self, epoch: int) -> EpochPlan:
        order = np.arange(len(self.seeds))
        if self._shuffle:
            order = shuffled(len(self.seeds), self._seed, epoch, self._rank)
        return EpochPlan(epoch, self.seeds, order, self.bounds, self._steps, self._first_of(epoch))

    def _first_of(self, epoch: int) -> int:
        known, step = self._first_step
        return step + (epoch - known) * self._steps

    def state_dict(self) -> dict[str, Any]:
        """Return this trainer's position."""
        known = self.current or self.loaded
        progress = [self.next, 0, 0, 0, 0, self._first_of(self.next)]
        left = partial(self.seeds.rows, np.empty(0, np.int64))
        if known is not None:
            progress = [known.epoch, 1, known.length, known.steps, known.taken, known.step]
            left = partial(known.left, known.taken)
        return {
            "fingerprint": self.fingerprint,
            "trainers": len(self._world.trainer_ranks),
            "batches": list(self._batching),
            "progress": OfTrainer(torch.tensor([progress])),
            "left": OfTrainer(lambda: torch.from_numpy(left())),
        }

    @collective("trainers")
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state; see :meth:`.DistDataLoader.load_state_dict`."""
        with self._world.together(_GOING_ON):
            alike = self.check_state_dict(state)
        progress, left = state["progress"].rows, state["left"].rows.numpy()
        self.current = self.loaded = self.begun = None
        if self._world.allreduce_minmax(int(alike), False):
            self._go_on(progress[0].tolist(), left)
        else:
            self._share(progress, left)

    def check_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Return whether a state is of a pass of this trainer itself.

        Raises:
            InvalidArgumentError: it is of another loader, or not a loader's state.
        """
        check_state("a loader", state, _FORMS)
        there, here = state["fingerprint"], self.fingerprint
        pairs = {name: (there.get(name), here.get(name)) for name in {**there, **here}}
        said = [
            f"{name} is {one} in the state, and {other} here"
            for name, (one, other) in pairs.items()
            if repr(one) != repr(other)  # one may be a tensor, which is not compared with a number
        ]
        if said:
            raise InvalidArgumentError(f"the state is of another loader: {'; '.join(said)}")
        alike = state["trainers"] == len(self._world.trainer_ranks) and state["batches"] == list(self._batching)
        return bool(alike and len(state["progress"].rows) == 1)

    def _go_on(self, progress: list[int], left: I64) -> None:
        epoch, runs, length, steps, taken, step = progress
        first_step = epoch + runs, step + steps - taken
        running = self._world.allreduce_minmax(epoch if runs else _LAST, False)
        if epoch == running + 1 and not runs:  # this trainer was through, and the others were not
            epoch, runs = running, 1
        bounds = self._bounds(length, steps)
        self.next, self._first_step = epoch, first_step
        if runs:
            self.loaded = self._rest(epoch, left, bounds - bounds[taken], steps, step - taken, taken)

    def _share(self, progress: torch.Tensor, left: I64) -> None:
        """Take a share of the seeds that all trainers have left; ``left`` are those of this one."""
        agree = self._world.allreduce_minmax
        self.next = agree(min([_LAST, *progress[:, 0].tolist()]), False)
        step = agree(max([0, *progress[:, 5].tolist()]), True)  # drawn by none of them
        self._first_step = self.next, step
        if agree(int(progress[:, 1].any()), True):
            steps = self._agreed_steps(len(left))
            if self._drop_last:  # shares differ by a seed: make no batch that another trainer cannot make
                steps = agree(min(steps, len(left) // self._batch_size), False)
            self._first_step = self.next + 1, step + steps
            if self._shuffle:
                key = combine(self._seed, self.next)
                left = left[np.argsort(self.seeds.of_rows(left).hashes(key), kind="stable")]
            self.loaded = self._rest(self.next, left, self._bounds(len(left), steps), steps, step)

    def _rest(self, epoch: int, rows: I64, bounds: I64, steps: int, first_step: int, taken: int = 0) -> EpochPlan:
        """Return a pass over the seeds in ``rows``, in their order."""
        return EpochPlan(epoch, self.seeds.of_rows(rows), np.arange(len(rows)), bounds, steps, first_step, taken)
