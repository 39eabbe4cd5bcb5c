"""The interface of a way to choose neighbours: its parameters, what owners prepare for it, and its kernel.

A request carries one strategy and knows none of its parameters. A new strategy is a frozen dataclass in a file of this
folder: its fields travel by themselves, its :meth:`Strategy.prepare` looks up what the draw needs on an owner, and the
:class:`Draw` that it returns calls a kernel.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, ClassVar, Protocol

import numpy as np

from mpigraph.arrays import I64, U64, Array
from mpigraph.errors import CollectiveError
from mpigraph.kernels.exclude import copy_kept, step_over
from mpigraph.kernels.rng import combine
from mpigraph.kernels.sample import Candidates, Destinations
from mpigraph.store.edge_tables import Adjacency
from mpigraph.store.store import Store

MAX_WORDS = 8
"""How many numbers a strategy may have on the wire."""
_NO_KEY = np.uint64(0)


@dataclass(frozen=True)
class HopKeys:
    """Hashes that the draws of one hop may depend on.

    Attributes:
        minibatch: the same in all hops of a minibatch: a hash of seed, epoch and seed nodes. 0 where each root of a
            tree has a key of its own, which is then mixed into that of the request.
        hop: another one in each hop.
        number: number of the hop; 0 is that of the seeds.
        every: the same in all minibatches of all trainers: a hash of the seed.
        step: number of the step, the same for all trainers' minibatches of a step, see :class:`.RandomContext`.
    """

    minibatch: np.uint64
    hop: np.uint64
    number: int
    every: np.uint64
    step: int

    @classmethod
    def of(cls, minibatch: np.uint64, number: int, every: np.uint64 = _NO_KEY, step: int = 0) -> "HopKeys":
        """Return the keys of hop ``number``."""
        return cls(minibatch, combine(minibatch, number), number, every, step)


@dataclass(frozen=True)
class OwnedRows:
    """The destinations of a request that one host of this node holds, and the host's edges.

    Attributes:
        host: index of the host.
        edges: the host's in-edges of the relation.
        ids: int64[n], the destinations of the whole request.
        rows: int64[n], their rows in ``edges``, counted from :attr:`first_row`; undefined on other hosts.
        keys: uint64[n], for each destination, or uint64[1], for all: input of the draws besides the destination.
        excluded: int64[k], excluded edges, ascending, counted from the host's first edge.
        scratch: int64[n] each, for kernels; ``choose`` reads the notes of ``count`` there.
    """

    host: int
    edges: Adjacency
    ids: I64
    rows: I64
    keys: U64
    excluded: I64
    scratch: Candidates

    @property
    def first_row(self) -> int:
        """The number of the first row of ``edges`` in :attr:`rows`."""
        return self.edges.first_node if self.edges.rows is None else 0

    def destinations(self, fanout: int, replace: bool) -> Destinations:
        """Return the destinations as kernels take them that choose."""
        return Destinations(self.ids, fanout, replace, self.keys)

    def to_count(self, fanout: int, replace: bool) -> Destinations:
        """Return the destinations as kernels take them that count: by row."""
        return Destinations(self.rows, fanout, replace, self.keys)

    def split(self, positions: I64) -> tuple[I64, I64]:
        """Return the positions of the rows without excluded edges, and of those that were shortened."""
        shortened = self.scratch.num_excluded[positions] > 0
        return positions[~shortened], positions[shortened]

    def choose_kept(
        self, columns: Sequence[Array], positions: I64, offsets: I64, picks: I64, choose: Callable[..., None]
    ) -> None:
        """Choose by ``columns``, [edges] each, of rows from which excluded edges were removed.

        ``choose(columns, positions, scratch)`` fills ``picks``. Shortened rows are drawn from a copy of the columns.
        """
        if len(self.excluded):
            positions, shortened = self.split(positions)
            scratch, starts = self.scratch, np.empty(len(self.ids), np.int64)
            left = int(scratch.degrees[shortened].sum())
            kept = [np.empty(left, column.dtype) for column in columns]
            for column, copy in zip(columns, kept, strict=True):
                copy_kept(column, self.excluded, shortened, scratch, starts, copy)
            choose(kept, shortened, scratch._replace(begins=starts))
            step_over(self.excluded, shortened, starts, scratch, offsets, picks)
        choose(columns, positions, self.scratch)


class Draw(Protocol):
    """A strategy with its tables on this rank; called for each host, and for each thread's ``positions``."""

    def count(self, rows: OwnedRows, positions: I64, counts: I64) -> None:
        """Fill ``counts`` (int64[n]) at ``positions`` (int64[m]) with the numbers of neighbours to choose."""

    def choose(self, rows: OwnedRows, positions: I64, offsets: I64, picks: I64) -> None:
        """Fill ``picks`` with edges of the host, counted from its first one.

        ``offsets`` (int64[n + 1]) has the place of each destination's first edge.
        """


@dataclass(frozen=True)
class Strategy(ABC):
    """A way to choose in-neighbours of nodes through one relation.

    Fields are ints and bools, which travel as words: owners answer requests with equal strategies in one pass. Those
    that :attr:`columns` names are int64[n], a number for each destination.

    Attributes:
        fanout: most neighbours of a destination; -1 means all.
    """

    tag: ClassVar[int]
    """The strategy's number on the wire, from 1 on; another one for each."""
    columns: ClassVar[tuple[str, ...]] = ()
    """Names of the fields that have a number for each destination."""
    tables: ClassVar[tuple[str, ...]] = ()
    """Names of the fields that are numbers of a relation's tensors, so that each relation has its own."""
    keys_by_relation: ClassVar[bool] = True
    """Each relation has keys of its own; else those with one source type have the same."""
    _by_tag: ClassVar[dict[int, type["Strategy"]]] = {}

    fanout: int

    def __init_subclass__(cls) -> None:
        known = Strategy._by_tag.setdefault(cls.tag, cls)
        if known.__qualname__ != cls.__qualname__:
            raise TypeError(f"{cls.__qualname__}: {known.__qualname__} has tag {cls.tag}: give another one")
        Strategy._by_tag[cls.tag] = cls

    @staticmethod
    def of_tag(tag: int) -> type["Strategy"]:
        """Return the strategy with a tag. Raises CollectiveError if this rank knows none."""
        if tag not in Strategy._by_tag:
            raise CollectiveError(
                f"no sampling strategy has tag {tag} on this rank: import its module before initialize(), so that "
                "servers know it, too"
            )
        return Strategy._by_tag[tag]

    def words(self) -> list[int]:
        """Return the parameters, in the order of the fields."""
        return [int(getattr(self, name)) for name, _ in _parameters(type(self))]

    @classmethod
    def from_words(cls, words: Sequence[int], arrays: Sequence[I64]) -> "Strategy":
        """Return the strategy with these parameters, ``arrays`` being the columns; ``words`` may be longer."""
        values: dict[str, Any] = dict(zip(cls.columns, arrays, strict=True))
        values |= {name: kind(word) for (name, kind), word in zip(_parameters(cls), words, strict=False)}
        return cls(**values)

    def hop_key(self, keys: HopKeys, src_type: int) -> np.uint64:
        """Return the key of the draws in a hop through relations from a source type."""
        return keys.hop

    def key(self, keys: HopKeys, relation: int, src_type: int) -> np.uint64:
        """Return the key of a relation's draws in a hop; destination and number of the draw are mixed in later.

        A class with another ``key``, in place of another :meth:`hop_key`, has a request for each relation.
        """
        key = self.hop_key(keys, src_type)
        return combine(key, relation) if self.keys_by_relation else key

    @property
    def needs_tables(self) -> bool:
        """True if owners look up something of the relation besides its edges; else all relations are one pass."""
        return True

    @property
    def family(self) -> tuple[object, ...]:
        """The words that strategies have in common whose relations share a request: all but their tensors."""
        words = zip(_parameters(type(self)), self.words(), strict=True)
        common = (bool(word) if name in self.tables else word for (name, _), word in words)
        return type(self), *common

    @property
    def tensors(self) -> list[int]:
        """The numbers of the relation's tensors, in the order of :attr:`tables`."""
        return [getattr(self, name) for name in self.tables]

    def with_tensors(self, numbers: Sequence[int]) -> "Strategy":
        """Return the strategy for a relation whose tensors have these numbers."""
        return replace(self, **dict(zip(self.tables, numbers, strict=True)))

    def at(self, positions: I64) -> "Strategy":
        """Return the strategy for the destinations at ``positions``, int64[m], which may repeat."""
        own = {name: getattr(self, name)[positions] for name in self.columns}
        return replace(self, **own) if own else self

    def at_step(self, step: int) -> "Strategy":
        """Return the strategy for draws of a step; :meth:`key` has the step in its ``keys``."""
        return self

    def with_root_times(self, times: I64) -> "Strategy":
        """Return the strategy for destinations whose roots have these times, int64[n]."""
        return self

    @abstractmethod
    def prepare(self, store: Store, relation: int) -> Draw:
        """Look up the tensors and tables of the draw on this rank.

        Raises:
            NotOpenHere: a tensor is not open here.
            ClosedError: a tensor was closed.
        """
        raise NotImplementedError


@cache
def _parameters(strategy: type[Strategy]) -> list[tuple[str, Any]]:
    """Return names and types of the fields that are words."""
    return [(field.name, field.type) for field in fields(strategy) if field.name not in strategy.columns]
