"""The interface of a method that assigns nodes to parts; criteria, limits and balance of all methods."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np

from mpigraph.arrays import F64, I32, I64, Array, Mask
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError
from mpigraph.kernels.csr import count_keys
from mpigraph.partition.exchange import ALONE, Exchange, Route, owners_of
from mpigraph.partition.loops import tally
from mpigraph.partition.source import GraphSource, edge_chunks, ends_among_nodes
from mpigraph.partition.spill import Scratch

TOLERANCE = 1.05


@dataclass(frozen=True, eq=False)
class Task:
    """A graph whose nodes are to be assigned. Ranks own ranges of nodes, types one after the other."""

    source: GraphSource
    num_parts: int
    bounds: I64  # int64[ranks + 1], the nodes that each rank owns
    exchange: Exchange = ALONE
    seed: int = 0
    objtype: str = "cut"
    given: Array | None = None  # int[all nodes], parts that were made elsewhere
    classes: Mapping[str, Array] = field(default_factory=dict)  # node type -> int[nodes], each to be spread evenly
    balance_edges: bool = False  # spread the edges evenly, too
    scratch: Scratch = field(default_factory=Scratch)  # for temporary files
    weights: I32 = field(default_factory=lambda: np.empty((0, 0), np.int32))  # [own nodes, criteria], to spread evenly
    both_ways: bool = False  # the reverse of every edge is among the edges
    report: Callable[[float], None] = lambda fraction: None  # gets the approximate fraction of the work that is done

    @property
    def num_nodes(self) -> int:
        """Number of all nodes."""
        return int(self.source.node_bases[-1])

    @property
    def own(self) -> slice:
        """The nodes that this rank owns."""
        return slice(*self.bounds[self.exchange.rank : self.exchange.rank + 2].tolist())

    def own_of(self, ntype_id: int) -> slice:
        """Return the range, of the own nodes, of those that are of a type."""
        ends = self.source.node_bases[ntype_id : ntype_id + 2].clip(self.own.start, self.own.stop) - self.own.start
        return slice(*ends.tolist())

    @collective("ranks")
    def on_first(self, assign: Callable[[], I32]) -> I32:
        """Have rank 0 assign all nodes, int32[all nodes]; return the parts of the own ones."""
        whole = np.empty(0, np.int32)
        with self.exchange.together("assigning nodes"):
            if self.exchange.rank == 0:
                whole = assign()
        parts: I32 = self.exchange.scatter(whole[:, None], self.bounds)[:, 0]
        return parts


@collective("ranks")
def balance_criteria(task: Task) -> tuple[list[str], I32]:
    """Return the names of weights that parts are to hold evenly, and int32[own nodes, criteria].

    Criteria are the nodes of each type, or of each of its classes and, where nodes have no class (a number below 0),
    all nodes of the type; and with ``balance_edges`` the edges, which count at their destination, because its part
    holds them.

    Raises:
        GraphDataError: the classes of a type do not fit its nodes.
    """
    source, exchange = task.source, task.exchange
    names: list[str] = []
    nodes: list[tuple[slice, Mask]] = []  # of each criterion
    for i, (ntype, count) in enumerate(zip(source.schema.ntypes, source.num_nodes, strict=True)):
        own = task.own_of(i)
        node_classes = np.full(own.stop - own.start, -1)
        numbers = [-1] if count else []
        if ntype in task.classes:
            begin = int(task.own.start - source.node_bases[i]) + own.start
            with exchange.together("reading balance classes"):
                given = np.asarray(task.classes[ntype]).reshape(-1)
                node_classes = np.maximum(given[begin : begin + len(node_classes)].astype(np.int64), -1)
                if len(given) != count:
                    raise GraphDataError(f"balance classes of {ntype!r} must be {count} numbers (got {len(given)})")
            numbers = sorted({*chain(*exchange.gather_json(np.unique(node_classes).tolist()))})
        for number in numbers:
            names.append(f"nodes {ntype}" if len(source.num_nodes) > 1 else "nodes")
            names[-1] += f" class {number}" if number >= 0 else ""
            nodes.append((own, (node_classes == number) | (number < 0)))
    names += ["edges"] if task.balance_edges else []
    weights = np.zeros((task.own.stop - task.own.start, len(names)), np.int32)
    for column, (own, of_own) in enumerate(nodes):
        weights[own, column] = of_own
    if task.balance_edges:
        weights[:, -1] = np.minimum(_in_degrees(task), 2**31 - 1)
    return names, weights


ALL_NODES = np.empty(0, np.int64)
ONE_BIN = np.empty(0, np.int16)


def loads_of(weights: Array, parts: I32, num_parts: int, nodes: I64 = ALL_NODES) -> I64:
    """Return int64[parts, criteria], the weight in each part; of the ``nodes``, int64[k], whose parts are int32[k].

    ``weights`` are int[n, criteria]; all nodes by default.
    """
    loads = np.zeros((num_parts, 1, weights.shape[1]), np.int64)
    tally(nodes, parts, ONE_BIN, weights, loads)
    return loads[:, 0]


def limits(totals: I64, num_parts: int, aim: float = TOLERANCE) -> I64:
    """Return int64[criteria], the limits of a part; ``totals``, int64[criteria], are the weights of all parts.

    ``aim`` times the mean, and the mean + 1 if 5 % over the mean allow that; at least its ceiling.
    """
    means: F64 = totals / num_parts
    ceiling = np.ceil(means)
    wanted = np.maximum(np.floor(means * aim), ceiling + 1)
    bounds: F64 = np.maximum(np.minimum(wanted, np.floor(means * TOLERANCE)), ceiling)
    return bounds.astype(np.int64)


def measured_balance(criteria: Iterable[str], loads: I64) -> dict[str, float]:
    """Return for each criterion, by name, the heaviest part over the mean (1.0 is perfect); of :func:`loads_of`."""
    return {
        name: round(float(column.max() * len(column) / max(int(column.sum()), 1)), 4)
        for name, column in zip(criteria, loads.T, strict=True)
    }


def _in_degrees(task: Task) -> I64:
    exchange, bounds = task.exchange, task.bounds
    degrees = np.zeros(task.own.stop - task.own.start, np.int64)
    for chunk in edge_chunks(task.source, None, exchange.rank, exchange.size):
        _, ends = ends_among_nodes(task.source, chunk)
        came = Route(exchange, owners_of(bounds, ends)).there(ends[:, None])[:, 0]
        count_keys(came, -task.own.start, degrees)
    return degrees


ROUND_BYTES = 225 << 20
"""Edges on their way to and from other ranks, and what spills keep; a rank alone needs less."""


class Workload(NamedTuple):
    """The sizes that memory depends on."""

    num_nodes: int  # all nodes
    num_edges: int  # all directed edges; "multilevel" counts each as stored both ways
    num_parts: int  # number of parts
    method: str  # "metis", "multilevel", "random" or "given"
    # bytes that each rank holds before, of Python, libraries and the input (memory-mapped files do not count)
    held: int = 200 << 20
    carried: int = 0  # bytes of rows that travel with nodes and edges


class Method(NamedTuple):
    """A way to assign nodes to parts."""

    # returns int32[own nodes], the same on any number of ranks; every rank calls it
    assign: Callable[[Task], I32]
    # returns the bytes that a rank takes, and those of its temporary files; gets the number of ranks, and whether large
    # arrays lie in temporary files
    memory: Callable[[Workload, int, bool], tuple[int, int]]
    objectives: tuple[str, ...] = ("cut", "vol")  # that it knows; one that knows one may ignore it
    reports: bool = False  # it reports its progress


def spread_types(task: Task) -> I32:
    """Assign every node to a part at random, each type evenly: int32[all nodes]."""
    rng = np.random.default_rng(task.seed % 2**64)  # numpy takes no negative seeds
    assignment = np.empty(task.num_nodes, np.int32)
    first = 0  # each type continues where the one before stopped, so that small types do not all lie in part 0
    for base, count in zip(task.source.node_bases[:-1], task.source.num_nodes, strict=True):
        assignment[base : base + count] = (rng.permutation(count) + first) % task.num_parts
        first = (first + count) % task.num_parts
    return assignment
