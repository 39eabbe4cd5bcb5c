"""LABOR: exact counts, numbers that destinations, hops, relations, trainers and steps share, and fewer rows.

That its draws are the same in every layout, with weights, masks, types and excluded edges, is in the tests that have
all samplers (``support/batches.py``); its kernels and their distributions are in ``kernels/test_labor_draws.py``.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from batches import digest
from layouts import SharedJob, on_all, on_one_rank
from oracle import NUM_NODES
from scipy.special import bdtrc

import mpigraph as mg
import mpigraph.distributed as dist
from mpigraph.dataloading import LaborSampler, NeighborSampler, as_edge_prediction_sampler
from mpigraph.dataloading.negative_sampler import GlobalUniform
from mpigraph.graphs.block import Block
from mpigraph.graphs.fields import EID, NID
from mpigraph.graphs.hetero import HeteroGraph


def dense_graph(num_nodes: int = 1500, num_edges: int = 40_000, seed: int = 0) -> HeteroGraph:
    """Skewed degrees, about 27 in-neighbours of a node."""
    rng = np.random.default_rng(seed)
    src = (num_nodes * rng.random(num_edges) ** 2).astype(np.int64)
    ends = np.unique(np.stack([rng.integers(0, num_nodes, num_edges), src]), axis=1)
    return mg.graph((torch.from_numpy(ends[1]), torch.from_numpy(ends[0])), num_nodes=num_nodes)


def drawn(block: Block) -> dict[int, tuple[int, ...]]:
    src, dst = block.edges()
    sources, nodes = block.srcdata[NID][src].tolist(), block.dstdata[NID].tolist()
    taken: dict[int, list[int]] = {node: [] for node in nodes}
    for source, at in zip(sources, dst.tolist(), strict=True):
        taken[nodes[at]].append(source)
    return {node: tuple(sorted(of_node)) for node, of_node in taken.items()}


def agreement(one: dict[int, tuple[int, ...]], other: dict[int, tuple[int, ...]]) -> float:
    """The share of equal draws among nodes that both have, of nodes that had a choice."""
    common = [node for node in one.keys() & other.keys() if len(one[node]) == 3]
    assert common
    return sum(one[node] == other[node] for node in common) / len(common)


def test_counts_are_exact_and_rows_are_fewer() -> None:
    """The mean of distinct sources is within 2 % of the expected value.

    A destination of degree d takes a source with number r if fewer than k of its other d - 1 sources have smaller ones.
    """
    on_one_rank(dense_graph(3000, 80_000), check_counts)


def check_counts(g: dist.DistGraph) -> None:
    k, rng = 10, np.random.default_rng(1)
    degrees = g.in_degrees()
    counts: dict[str, list[int]] = {"labor": [], "uniform": []}
    expected, steps = [], (np.arange(100) + 0.5) / 100
    for _ in range(20):
        seeds = torch.from_numpy(rng.permutation(g.num_nodes())[:100])
        for name, sampler in (("labor", LaborSampler([k])), ("uniform", NeighborSampler([k]))):
            _, _, (block,) = sampler.sample_blocks(g, seeds)
            assert torch.equal(block.in_degrees(), degrees[seeds].clamp(max=k))
            counts[name].append(len(block.edges()[0].unique()))
        src, dst = dist.in_subgraph(g, seeds).edges()
        missed = np.ones((g.num_nodes(), len(steps)))
        others = degrees[dst].numpy()[:, None] - 1
        np.multiply.at(missed, src.numpy(), np.where(others < k, 0, bdtrc(k - 1, np.maximum(others, k), steps)))
        expected.append((1 - missed.mean(axis=1)).sum())
    labor, uniform = (float(np.mean(counts[name])) for name in ("labor", "uniform"))
    assert abs(labor / np.mean(expected) - 1) < 0.02
    assert labor < 0.85 * uniform


def test_all_relations_of_a_source_type_share_numbers() -> None:
    src, dst = dense_graph(300, 6000).edges()
    types = [("a", "x", "b"), ("a", "y", "b"), ("c", "z", "b")]
    g = mg.heterograph(dict.fromkeys(types, (src, dst)), {"a": 300, "b": 300, "c": 300})
    seeds = torch.arange(300)

    def check(g: dist.DistGraph) -> None:
        for _ in range(3):
            _, _, (block,) = LaborSampler([3]).sample_blocks(g, {"b": seeds})
            x, y, z = (block.edges[r].data[EID].tolist() for r in types)  # equal edges have equal ids
            assert x == y
            assert x != z
        _, _, (block,) = NeighborSampler([3]).sample_blocks(g, {"b": seeds})
        assert block.edges[types[0]].data[EID].tolist() != block.edges[types[1]].data[EID].tolist()

    on_one_rank(g, check)


def test_hops_share_numbers_with_layer_dependency_alone() -> None:
    on_one_rank(dense_graph(), check_hops)


def check_hops(g: dist.DistGraph) -> None:
    seeds, rows = torch.arange(0, 1500, 50), {}
    for dependent in (False, True):
        sampler = LaborSampler([3, 3], layer_dependency=dependent)
        inputs, _, (outer, inner) = sampler.sample_blocks(g, seeds)
        same = agreement(drawn(outer), drawn(inner))
        assert same == 1 if dependent else same < 0.2
        rows[dependent] = np.mean([len(sampler.sample_blocks(g, seeds)[0]) for _ in range(20)])
        assert len(inputs) > len(seeds)
    assert rows[True] < rows[False]


def epochs_of(loader: object, number: int = 2) -> list[dict[int, tuple[int, ...]]]:
    return [drawn(blocks[0]) for _ in range(number) for _, _, blocks in loader]


@pytest.mark.parametrize("period", [1, 4, 1000])
def test_numbers_live_for_a_period_of_steps(period: int) -> None:
    """In each step one node in ``period`` renews its number, also at the end of an epoch."""
    sampler, options = LaborSampler([3, 3], batch_dependency=period), {"batch_size": 100, "shuffle": True}
    steps = on_one_rank(
        dense_graph(), lambda g: epochs_of(dist.DistNodeDataLoader(g, torch.arange(1500), sampler, **options))
    )
    assert len(steps) == 30
    same = float(np.mean([agreement(one, other) for one, other in pairwise(steps)]))
    apart = float(np.mean([agreement(one, other) for one, other in zip(steps, steps[4:], strict=False)]))
    if period == 1:
        assert same < 0.1
    elif period == 4:  # a draw stays if its three sources keep their numbers, and no other one gets a smaller one
        assert 0.15 < same < 0.55
        assert apart < 0.1
    else:
        assert same > 0.97 and 0.9 < apart < same


def test_trainers_share_the_numbers_of_a_step(job: SharedJob, g: dist.DistGraph) -> None:
    """Each trainer has other seeds; where two draw for one node in one step, they draw the same."""
    nodes = torch.randperm(NUM_NODES, generator=torch.Generator().manual_seed(g.rank()))
    for sampler in (
        LaborSampler([3, 3], batch_dependency=2),
        LaborSampler([3, 3], batch_dependency=2, layer_dependency=True),
    ):
        loader = dist.DistNodeDataLoader(g, nodes, sampler, batch_size=30)
        steps = epochs_of(loader, 1)
        alike = [
            agreement(one, other) == 1
            for all_of_step in zip(*job.trainers.allgather(steps), strict=True)
            for one, other in pairwise(all_of_step)
        ]
        on_all(job.trainers, all(alike), f"{sampler.needs.description}: {alike}")
        loader.close()
    loader = dist.DistNodeDataLoader(g, nodes, LaborSampler([3, 3]), batch_size=30)
    of_trainers = job.trainers.allgather(epochs_of(loader, 1)[0])
    on_all(job.trainers, all(agreement(one, other) < 0.5 for one, other in pairwise(of_trainers)), "one minibatch each")
    loader.close()


def step_of(loader: Any) -> int:
    return int(loader.state_dict()["progress"].rows[0, -1])


@pytest.mark.slow
def test_a_resumed_loader_continues_with_the_step(job: SharedJob, oracle) -> None:
    g = job.open(oracle(2))
    nodes = torch.arange(g.rank(), NUM_NODES, 3)
    options = {"batch_size": 9, "shuffle": True, "seed": 5}
    sampler = LaborSampler([2, 3], batch_dependency=3)
    loader = dist.DistNodeDataLoader(g, nodes, sampler, **options)
    state, whole = None, []
    for epoch in range(2):
        for number, sample in enumerate(loader):
            whole.append(digest(sample))
            if (epoch, number) == (1, 1):
                state = loader.state_dict()
    resumed = dist.DistNodeDataLoader(g, nodes, sampler, **options)
    resumed.load_state_dict(state)
    rest = [digest(sample) for sample in resumed]
    on_all(job.trainers, rest == whole[-len(rest) :] and len(rest) == len(loader) - 2, str(len(rest)))
    smaller = dist.DistNodeDataLoader(g, nodes, sampler, **options | {"batch_size": 4})  # the rest in other minibatches
    smaller.load_state_dict(state)
    before, left = step_of(smaller), sum(1 for _ in smaller)
    on_all(job.trainers, before == len(loader) + 2 and step_of(smaller) == before + left > before)
    for one in (loader, resumed, smaller):
        one.close()


@pytest.mark.parametrize("number", [np.int64, torch.tensor])
def test_a_state_is_that_of_a_sampler_with_equal_numbers_of_any_kind(number: Callable[[int], Any]) -> None:
    """And of no other one; numbers of another kind draw the same, too."""

    def samplers(number: Callable[[int], Any]) -> list[Any]:
        negatives = GlobalUniform(number(3), redundancy=number(2))
        return [
            NeighborSampler([number(3), {"a": number(2)}]),
            NeighborSampler([3], time_attr="t", time_window=number(5)),
            LaborSampler([3]),
            LaborSampler([3], layer_dependency=number(1)),
            LaborSampler([3], batch_dependency=number(4)),
            as_edge_prediction_sampler(NeighborSampler([3]), negative_sampler=negatives),
        ]

    plain, others = ([one.needs.description for one in samplers(kind)] for kind in (int, number))
    assert plain == others and len(set(plain)) == len(plain)

    def draw(g: dist.DistGraph, sampler: Any) -> list[dict[int, tuple[int, ...]]]:
        return epochs_of(dist.DistNodeDataLoader(g, torch.arange(200), sampler, batch_size=50, seed=1), 1)

    one, other = samplers(int)[4], samplers(number)[4]
    on_one_rank(dense_graph(200, 4000), lambda g: assert_equal(draw(g, one), draw(g, other)))


def assert_equal(one: object, other: object) -> None:
    assert one == other
