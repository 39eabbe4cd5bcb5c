"""Ways to choose neighbours: parameters, what owners prepare for each, and its kernel. Importing it makes them known.

A request carries one strategy and knows none of its parameters. A new strategy is a frozen dataclass: its fields travel
by themselves, its :meth:`Strategy.prepare` looks up what the draw needs on an owner, and the :class:`Draw` that it
returns calls a kernel.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np

from mpigraph.arrays import I64, U64, Array
from mpigraph.errors import CollectiveError, GraphDataError
from mpigraph.kernels.labor import Numbers
from mpigraph.kernels.rng import combine
from mpigraph.kernels.sample import Candidates, Destinations, Edges, choose, count
from mpigraph.kernels.temporal import Times
from mpigraph.store.derived import EdgeTimes, EdgeWeights
from mpigraph.store.edge_tables import Adjacency
from mpigraph.store.store import Store

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
        rows: int64[n], their rows in ``edges``, counted from :attr:`.Adjacency.first_row`; undefined on other hosts.
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

    def destinations(self, fanout: int, replace: bool) -> Destinations:
        """Return the destinations as kernels take them."""
        return Destinations(self.ids, self.rows, fanout, replace, self.keys)

    def to_draw(self) -> Edges:
        """Return the host's edges as kernels take them, all alike."""
        return Edges(self.edges.indptr, self.edges.first_row, excluded=self.excluded)


class Draw:
    """A strategy with its tables on this rank; called for each host, and for each thread's ``positions``."""

    def __init__(
        self, fanout: int, replace: bool, known: Callable[[OwnedRows], Edges], weights: EdgeWeights | None = None
    ) -> None:
        """Draw by the kernels, from the edges that ``known`` returns of a host; errors are about ``weights``."""
        self._how = fanout, replace
        self._known = known
        self._weights = weights

    def count(self, rows: OwnedRows, positions: I64, counts: I64) -> None:
        """Fill ``counts`` (int64[n]) at ``positions`` (int64[m]) with the numbers of neighbours to choose.

        Raises GraphDataError if an edge weight is negative, infinite or NaN.
        """
        bad = count(rows.destinations(*self._how), self._known(rows), positions, rows.scratch, counts)
        if bad >= 0 and self._weights is not None:
            weight = self._weights.values(rows.host)[bad]
            raise GraphDataError(self._weights.complaint(rows.edges.first_edge + bad, weight))

    def choose(self, rows: OwnedRows, positions: I64, offsets: I64, picks: I64) -> None:
        """Fill ``picks`` with edges of the host, counted from its first one.

        ``offsets`` (int64[n + 1]) has the place of each destination's first edge.
        """
        choose(rows.destinations(*self._how), self._known(rows), positions, rows.scratch, offsets, picks)


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
    def num_words(cls) -> int:
        """Return the number of :meth:`words`."""
        return len(_parameters(cls))

    @classmethod
    def from_words(cls, words: Sequence[int], arrays: Sequence[I64]) -> "Strategy":
        """Return the strategy with these parameters, ``arrays`` being the columns."""
        values: dict[str, Any] = dict(zip(cls.columns, arrays, strict=True))
        values |= {name: kind(word) for (name, kind), word in zip(_parameters(cls), words, strict=True)}
        return cls(**values)

    def hop_key(self, keys: HopKeys, src_type: int) -> np.uint64:
        """Return the key of a hop's draws; destination and number of the draw are mixed in later.

        The relation is mixed in with :attr:`keys_by_relation`; only without it may the key depend on the type of the
        sources.
        """
        return keys.hop

    @property
    def needs_tables(self) -> bool:
        """True if owners look up tensors of the relation besides its edges; else all relations are one pass."""
        return any(self.tensors)

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
        """Return the strategy for draws of a step; :meth:`hop_key` has the step in its ``keys``."""
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


@dataclass(frozen=True)
class Uniform(Strategy):
    """Choose each edge with the same probability.

    Attributes:
        replace: with replacement.
    """

    tag = 1
    replace: bool = False

    def prepare(self, store: Store, relation: int) -> Draw:
        """Look up nothing."""
        return Draw(self.fanout, self.replace, OwnedRows.to_draw)


@dataclass(frozen=True)
class Weighted(Strategy):
    """Choose edges with probability proportional to their weights; an edge of weight 0 is never chosen.

    Attributes:
        replace: with replacement.
        weights: number of the tensor of edge weights.
    """

    tag = 2
    tables = ("weights",)
    replace: bool
    weights: int

    def prepare(self, store: Store, relation: int) -> Draw:
        """Look up the weights, and the tables of prepared ones."""
        weights = store.derived(EdgeWeights, self.weights)
        tables = weights.tables  # one object for all passes, whatever is written meanwhile

        def known(rows: OwnedRows) -> Edges:
            drawable, table = (tables.of(name, rows.host) for name in ("num_drawable", "table"))
            return self._known(rows.to_draw(), weights.values(rows.host), drawable, table)

        return Draw(self.fanout, self.replace, known, weights)

    @staticmethod
    def _known(edges: Edges, weights: Array, drawable: Array, table: Array) -> Edges:
        return edges._replace(weights=weights, drawable=drawable, table=table)


@dataclass(frozen=True)
class Masked(Weighted):
    """Choose each edge whose mask is set with the same probability; ``weights`` is the number of a tensor of bool."""

    tag = 3

    @staticmethod
    def _known(edges: Edges, weights: Array, drawable: Array, table: Array) -> Edges:
        return edges._replace(drawable=drawable, order=table) if len(table) else edges._replace(mask=weights)


@dataclass(frozen=True)
class Temporal(Strategy):
    """Choose, of the edges that are not above a time, each with the same probability, or the newest.

    Attributes:
        replace: with replacement.
        mask: number of a tensor of bool, of edges that may be chosen; 0 without a mask.
        times: number of the tensor of times by which the relation's edges are sorted.
        strict: leave out edges of exactly the root's time, too.
        last: choose among the newest ``fanout`` edges alone.
        window: most by which an edge may be older than the root; -1 without a limit.
        until: int64[n], the times of the destinations' roots.
    """

    tag = 4
    columns = ("until",)
    tables = ("mask", "times")
    replace: bool
    mask: int
    times: int
    strict: bool
    last: bool
    window: int
    until: I64 = field(default_factory=lambda: np.empty(0, np.int64))

    def with_root_times(self, times: I64) -> "Temporal":
        """See :class:`.Strategy`."""
        return replace(self, until=times)

    def prepare(self, store: Store, relation: int) -> Draw:
        """Look up the sorted edges and the mask."""
        tables = store.derived(EdgeTimes, self.times, relation).tables  # one object for both passes
        mask = store.tensor(self.mask) if self.mask else None

        def known(rows: OwnedRows) -> Edges:
            by_time, order = (tables.of(name, rows.host) for name in ("times", "order"))
            times = Times(by_time, self.until, self.strict, self.last, self.window)
            allowed = None if mask is None else mask.memory(rows.host)
            return rows.to_draw()._replace(order=order, times=times, mask=allowed)

        return Draw(self.fanout, self.replace, known)


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

    def hop_key(self, keys: HopKeys, src_type: int) -> np.uint64:
        """Return the key of the numbers of a source type; where they have a period, that of the next one is by 1 more.

        ``keys`` are those of the step in :meth:`at_step`.
        """
        key = keys.every if self.period else keys.minibatch
        key = combine(key, _DRAWS, src_type, 0 if self.same_in_hops else 1 + keys.number)
        return np.uint64((int(key) + keys.step // self.period) % 2**64) if self.period else key

    def prepare(self, store: Store, relation: int) -> Draw:
        """Look up the weights, and how many edges of each destination have one above 0."""
        weights = store.derived(EdgeWeights, self.weights) if self.weights else None
        tables = weights.tables if weights else None

        def known(rows: OwnedRows) -> Edges:
            edges = rows.to_draw()._replace(labor=Numbers(rows.edges.indices, self.period, self.phase))
            if weights is None or tables is None:
                return edges
            return edges._replace(weights=weights.values(rows.host), drawable=tables.of("num_drawable", rows.host))

        return Draw(self.fanout, self.replace, known, weights)
