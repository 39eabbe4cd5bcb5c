"""The multilevel assignment: the same parts on any number of ranks, few edges cut, balance, odd graphs, errors."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from mpi4py import MPI

from mpigraph.errors import InvalidArgumentError, PartitionError
from mpigraph.metadata.schema import Schema
from mpigraph.partition import source
from mpigraph.partition.assigning import Task, limits
from mpigraph.partition.exchange import ALONE, Exchange, even_bounds
from mpigraph.partition.multilevel import assign as assigning, levels, refinement
from mpigraph.partition.multilevel.assign import assign
from mpigraph.partition.multilevel.levels import finest_level
from mpigraph.partition.over_mpi import MPIExchange
from mpigraph.partition.source import GraphSource
from mpigraph.partition.spill import Scratch

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]


class Graph(NamedTuple):
    """Edges one way, and int32[n, criteria]."""

    num_nodes: int
    src: I64
    dst: I64
    weights: I32

    def assign(self, num_parts: int, seed: int = 0) -> I32:
        """The parts that one rank chooses."""
        return assign(self.task(num_parts, seed=seed))

    def task(
        self,
        num_parts: int,
        exchange: Exchange = ALONE,
        bounds: I64 | None = None,
        both_ways: bool = False,
        **more: Any,
    ) -> Task:
        bounds = even_bounds(self.num_nodes, exchange.size) if bounds is None else bounds
        ends = [np.append(*pair) if both_ways else pair[0] for pair in ((self.src, self.dst), (self.dst, self.src))]
        graph = GraphSource(Schema.homogeneous(), (self.num_nodes,), (tuple(ends),))
        own = self.weights[slice(*bounds[exchange.rank : exchange.rank + 2])]
        return Task(graph, num_parts, bounds, exchange, weights=own, both_ways=both_ways, **more)

    def cut(self, parts: I32) -> float:
        return float((parts[self.src] != parts[self.dst]).mean())

    def balance(self, parts: I32, num_parts: int) -> list[float]:
        """Of each criterion, what the heaviest part exceeds the limit by; 0 where none does."""
        loads = np.zeros((num_parts, self.weights.shape[1]), np.int64)
        np.add.at(loads, parts, self.weights)
        return (loads - limits(loads.sum(axis=0), num_parts)).max(axis=0, initial=0).tolist()


def communities(num_nodes: int, blocks: int, degree: int, criteria: int, inside: float = 0.9) -> Graph:
    """A planted partition with hubs and isolated nodes; criteria: nodes by class, then edges."""
    rng = np.random.default_rng(7)
    shuffle = rng.permutation(num_nodes)
    size = num_nodes // blocks
    src = (rng.random(num_nodes * degree // 2) ** 1.5 * (num_nodes - 20)).astype(np.int64)
    close = np.minimum(src // size * size + rng.integers(0, size, len(src)), num_nodes - 21)
    dst = np.where(rng.random(len(src)) < inside, close, rng.integers(0, num_nodes - 20, len(src)))
    dst[:300] = 0
    src, dst = shuffle[src], shuffle[dst]
    chosen = np.arange(num_nodes) % 5 == 0
    nodes = [np.ones(num_nodes)] if criteria == 1 else [~chosen, chosen]
    degrees = np.bincount(dst, minlength=num_nodes)
    return Graph(num_nodes, src, dst, np.stack([*nodes, degrees][:criteria], axis=1).astype(np.int32))


@pytest.fixture(autouse=True)
def several_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are small."""
    monkeypatch.setattr(assigning, "LEAST", 150)
    monkeypatch.setattr(assigning, "OF_PARTS", 10)


@cache
def parts_alone(criteria: int, num_parts: int) -> I32:
    graph = communities(1600, 8, 8, criteria)
    return graph.assign(num_parts, seed=3)


@pytest.mark.parametrize(
    ("criteria", "num_parts"), [*(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 4), (2, 7))), (3, 3)]
)
def test_the_number_of_ranks_does_not_show(comm: MPI.Intracomm, monkeypatch, criteria: int, num_parts: int) -> None:
    graph = communities(1600, 8, 8, criteria)
    bounds = even_bounds(1600, comm.size)
    if criteria == 1:
        monkeypatch.setattr(assigning, "_MAX_EDGES", 2000)  # so that METIS sees a sample
        monkeypatch.setattr(levels, "_PACKED", 10)  # so that nodes are packed in several rounds
        monkeypatch.setattr(levels, "_CHUNK", 100)
        monkeypatch.setattr(refinement, "_CHUNK", 100)
    else:
        bounds = np.array([0, *sorted([17, 900, 900][: comm.size - 1]), 1600])  # with four ranks one has nothing
    expected = parts_alone(criteria, num_parts)
    monkeypatch.setattr(source, "EDGES_PER_CHUNK", 1000)
    assert max(graph.balance(expected, num_parts)) == 0 and graph.cut(expected) < 0.5
    scratch = Scratch(limit=1000, mapping=criteria == 1)  # nor does it show where the edges lie: in files once parked
    # nor whether both directions are there
    task = graph.task(num_parts, MPIExchange(comm), bounds, both_ways=criteria > 1, seed=3, scratch=scratch)
    parts = assign(task)
    assert parts.dtype == np.int32 and np.array_equal(parts, expected[task.own])


def test_the_finest_level_is_symmetric_and_simple(comm: MPI.Intracomm) -> None:
    rng = np.random.default_rng(comm.size)
    src, dst = rng.integers(0, 60, (2, 500))
    graph = Graph(60, np.append(src, [5, 5]), np.append(dst, [5, 5]), np.ones((60, 1), np.int32))
    task = graph.task(2, MPIExchange(comm))
    level = finest_level(task)
    expected = [set() for _ in range(60)]
    for u, v in zip(src.tolist(), dst.tolist(), strict=True):
        if u != v:
            expected[u].add(v)
            expected[v].add(u)
    for row, node in enumerate(range(task.own.start, task.own.stop)):
        result = level.keys[level.rows.indices[slice(*level.rows.indptr[row : row + 2])]].tolist()
        assert len(result) == len(set(result)) and set(result) == expected[node]


@pytest.mark.parametrize("least", [150, 30_000])
def test_planted_communities_are_found(monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    monkeypatch.setattr(assigning, "LEAST", least)
    rng = np.random.default_rng(1)
    shuffle = rng.permutation(2000)
    src = rng.integers(0, 2000, 16000)
    inside = rng.random(16000) < 0.95
    dst = np.where(inside, src // 500 * 500 + rng.integers(0, 500, 16000), rng.integers(0, 2000, 16000))
    graph = Graph(2000, shuffle[src], shuffle[dst], np.ones((2000, 1), np.int32))
    parts = graph.assign(4)
    planted = np.empty(2000, np.int32)
    planted[shuffle] = np.arange(2000) // 500
    assert graph.cut(parts) <= graph.cut(planted) and graph.balance(parts, 4) == [0]


@pytest.mark.parametrize("criteria", [1, 2, 3])
@pytest.mark.parametrize("num_parts", [2, 7, 30])
def test_every_criterion_is_balanced(criteria: int, num_parts: int) -> None:
    graph = communities(3000, 10, 10, criteria)
    parts = graph.assign(num_parts)
    assert graph.balance(parts, num_parts) == [0] * criteria
    assert set(parts) == set(range(num_parts))


def test_where_metis_fails_parts_are_balanced_all_the_same(monkeypatch) -> None:
    def fails(*args: object, **kwargs: object) -> I32:
        raise PartitionError("METIS failed with status -4")

    graph = communities(3000, 4, 10, 2)
    monkeypatch.setattr(assigning, "call_metis", fails)
    parts = graph.assign(4)
    assert graph.balance(parts, 4) == [0, 0] and graph.cut(parts) < 0.5  # at random: 0.75


ODD = {
    "nothing": Graph(0, np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, 1), np.int64)),
    "one node": Graph(1, np.zeros(2, np.int64), np.zeros(2, np.int64), np.ones((1, 1), np.int32)),
    "fewer nodes than parts": Graph(3, np.array([0, 1, 1, 2]), np.array([1, 0, 2, 0]), np.ones((3, 2), np.int32)),
    "no edges": Graph(900, np.empty(0, np.int64), np.empty(0, np.int64), np.ones((900, 1), np.int32)),
    "loops and repeats": Graph(40, np.array([0, 0, 1, 5, 5]), np.array([1, 1, 0, 5, 5]), np.ones((40, 1), np.int32)),
    "a star": Graph(1000, np.zeros(999, np.int64), np.arange(1, 1000), np.ones((1000, 1), np.int32)),
    "no criterion": Graph(400, np.arange(399), np.arange(1, 400), np.empty((400, 0), np.int64)),
    "a criterion of nothing": Graph(400, np.arange(399), np.arange(1, 400), np.zeros((400, 1), np.int64)),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_graphs(comm: MPI.Intracomm, name: str) -> None:
    graph = ODD[name]
    parts = np.concatenate(comm.allgather(assign(graph.task(5, MPIExchange(comm)))))
    assert np.array_equal(parts, graph.assign(5))
    assert len(parts) == graph.num_nodes and set(parts) <= set(range(5))
    assert not any(graph.balance(parts, 5))
    assert not graph.assign(1).any()


def test_more_nodes_than_a_rank_can_number_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"less than 2\*\*31 nodes \(got 2147483648\): take more ranks"):
        assign(ODD["nothing"].task(2, bounds=np.array([0, 2**31])))
