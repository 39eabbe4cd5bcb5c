"""Neighbours by random walks: those of DGL's rule, computed from the walks in plain Python, on every layout."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import typed_oracle as typed
from layouts import SharedJob, everywhere, on_all, refuses, several
from oracle import in_memory
from typed_oracle import typed_in_memory, write_typed_oracle

import mpigraph.distributed as dist
from mpigraph.dataloading import DataLoader, PinSAGESampler, RandomWalkNeighborSampler, random_walk
from mpigraph.dataloading.walk_samplers import most_visited
from mpigraph.errors import EdgeTypeError, InvalidArgumentError, MPIGraphError, NodeTypeError
from mpigraph.graphs.fields import EID, NID

SAMPLING_WAYS = ("alltoallv", "sparse")
PATH = [("paper", "in", "venue"), ("venue", "prints", "paper")]


def by_rule(visits: list[int], count: int) -> list[tuple[int, int]]:
    """DGL's rule: the nodes of most visits, of equally many those of higher id, with the number of visits."""
    ranked = sorted(((times, node) for node, times in Counter(visits).items() if node >= 0), reverse=True)
    return [(node, times) for times, node in ranked[:count]]


def neighbours(graph: Any, seeds: list[int], weights: str = "weights") -> list[list[tuple[int, int]]]:
    src, dst = graph.edges()
    listed = list(zip(src.tolist(), graph.edata[weights].tolist(), dst.tolist(), strict=True))
    return [[(node, times) for node, times, to in listed if to == seed] for seed in seeds]


@pytest.mark.parametrize("seed", range(5))
def test_most_visited_nodes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    visits = rng.integers(-1, 6, (int(rng.integers(0, 8)), int(rng.integers(1, 12))))
    src, place, times = most_visited(visits, 3)
    expected = [(node, at, number) for at, row in enumerate(visits.tolist()) for node, number in by_rule(row, 3)]
    assert list(zip(src.tolist(), place.tolist(), times.tolist(), strict=True)) == expected


@pytest.mark.usefixtures("unseeded")
def test_neighbours_are_those_of_the_walks() -> None:
    g, seeds = in_memory(), [3, 50, 12]
    for number, (traversals, end, walks) in enumerate(((1, 0.0, 5), (4, 0.5, 30))):
        torch.manual_seed(number)
        graph = RandomWalkNeighborSampler(g, traversals, end, walks, 4, weight_column="visits")(seeds)
        torch.manual_seed(number)
        ends = [0.0] + [end] * (traversals - 1)
        traces, _ = random_walk(g, np.repeat(seeds, walks), length=traversals, restart_prob=ends)
        visits = traces[:, 1:].reshape(3, -1).tolist()
        assert neighbours(graph, seeds, "visits") == [by_rule(row, 4) for row in visits]
        assert graph.num_nodes() == g.num_nodes() and graph.canonical_etypes == [("_N", "_E", "_N")]


@pytest.mark.usefixtures("unseeded")
def test_neighbours_of_a_metapath_are_those_of_the_walks() -> None:
    g = typed_in_memory()
    seeds = [7, *g.all_edges(etype=PATH[0])[0].unique()[:2].tolist()]
    torch.manual_seed(1)
    graph = PinSAGESampler(g, "paper", "venue", 3, 0.4, 20, 5)({"paper": seeds})
    torch.manual_seed(1)
    traces, _ = random_walk(g, np.repeat(seeds, 20), metapath=PATH * 3, restart_prob=[0, 0, 0.4, 0, 0.4, 0])
    expected = [by_rule(row, 5) for row in traces[:, 2::2].reshape(3, -1).tolist()]
    assert neighbours(graph, seeds) == expected and sum(map(len, expected)) > 5
    assert graph.ntypes == ["paper"]


def collect(blocks: Any, ntype: str, into: dict[Any, Any]) -> bool:
    """Note the neighbours of each destination in each layer; return whether all that are known already agree."""
    agree = True
    for layer, block in enumerate(blocks):
        src, dst = (block.srcnodes[ntype].data[NID], block.dstnodes[ntype].data[NID])
        assert torch.equal(src[: len(dst)], dst) and EID not in block.edata
        u, v = block.edges()
        for place, node in enumerate(dst.tolist()):
            drawn = [
                (int(src[a]), int(w)) for a, w in zip(u[v == place], block.edata["weights"][v == place], strict=True)
            ]
            agree &= into.setdefault((layer, node), drawn) == drawn
    return agree


def draw_in_loader(g: Any, ids: Any, make: Callable[[Any], RandomWalkNeighborSampler], loader: Any) -> dict[Any, Any]:
    """The neighbours that the minibatches of an epoch have in each layer; those of a node are the same in all."""
    sampler, found = make(g), dict[Any, Any]()
    batches = loader(g, ids, sampler, batch_size=5, seed=4)
    for _, outputs, blocks in batches:
        assert collect(blocks, sampler.ntype, found)
        labels = blocks[-1].dstnodes[sampler.ntype].data
        if "label" in sampler.prefetch_labels:
            assert torch.equal(labels["label"], outputs % 7)
    return found


def compare(job: SharedJob, g: dist.DistGraph, memory: Any, ids: Any, make: Any, typed: bool) -> None:
    wrapped = (lambda own: {"paper": own}) if typed else (lambda own: own)
    expected = draw_in_loader(memory, wrapped(ids), make, DataLoader)
    found = draw_in_loader(g, wrapped(ids[job.rank :: job.trainers.size]), make, dist.DistNodeDataLoader)
    on_all(job.trainers, all(expected[key] == drawn for key, drawn in found.items() if key in expected))
    lasts = {node for layer, node in found if layer == 1}
    on_all(job.trainers, lasts == set(ids[job.rank :: job.trainers.size].tolist()))


def walking(g: Any) -> RandomWalkNeighborSampler:
    return RandomWalkNeighborSampler(g, 3, 0.3, 8, 3, num_layers=2, prefetch_labels=["label"])


def pinsage(g: Any) -> RandomWalkNeighborSampler:
    return PinSAGESampler(g, "paper", "venue", 2, 0.3, 8, 3, num_layers=2)


@everywhere
def test_minibatches_are_the_same_in_every_layout(job: SharedJob, oracle) -> None:
    compare(job, job.open(oracle(3, "given")), in_memory(), torch.arange(40), walking, False)


@everywhere
def test_typed_minibatches_are_the_same_in_every_layout(job: SharedJob) -> None:
    g = job.open(job.write(write_typed_oracle, 3))
    compare(job, g, typed_in_memory(), torch.arange(typed.NUM_NODES["paper"]), pinsage, True)


def test_wrong_arguments_are_named(job: SharedJob) -> None:
    g = job.open(job.write(write_typed_oracle, 3))
    memory = in_memory()
    two = partial(RandomWalkNeighborSampler, memory, 1, 0.5)
    cases: list[tuple[type[MPIGraphError], str, Callable[[], object]]] = [
        (InvalidArgumentError, "num_traversals must be an integer >= 1", lambda: walking_of(memory, 0, 0.5, 1, 1)),
        (InvalidArgumentError, "num_random_walks must be", lambda: two(0, 1)),
        (InvalidArgumentError, "num_neighbors must be", lambda: two(1, 0)),
        (InvalidArgumentError, "termination_prob must be in [0, 1]", lambda: walking_of(memory, 1, 1.5, 1, 1)),
        (EdgeTypeError, "edge type is ambiguous", lambda: walking_of(g, 1, 0.5, 1, 1)),
        (EdgeTypeError, "must lead from a node type back", lambda: walking_of(g, 1, 0.5, 1, 1, ["writes", "in"])),
        (
            EdgeTypeError,
            "one edge type from 'author' to 'paper'",
            lambda: PinSAGESampler(g, "author", "paper", 1, 0, 1, 1),
        ),
        (NodeTypeError, "nope", lambda: PinSAGESampler(g, "nope", "paper", 1, 0, 1, 1)),
    ]
    for error, text, make in cases:
        on_all(job.trainers, refuses(error, text, make), text)
    sampler = RandomWalkNeighborSampler(g, 1, 0.5, 1, 1, ["writes", "written_by"])
    seeds = {"author": [1], "paper": [2]}
    on_all(job.trainers, refuses(InvalidArgumentError, "must be of type 'author'", lambda: sampler(seeds)))
    for text, given in (("exclude_eids must be None", ([1], [3])), ("once each", ([1, 1], None))):
        blocks = partial(sampler.sample_blocks, g, {"author": given[0]}, given[1])
        on_all(job.trainers, refuses(InvalidArgumentError, text, blocks))


def walking_of(*arguments: Any) -> RandomWalkNeighborSampler:
    return RandomWalkNeighborSampler(*arguments)


@several
def test_a_wrong_argument_of_one_trainer_is_raised_on_all(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    make: Callable[[], object] = partial(RandomWalkNeighborSampler, g, 1, 2.0 if job.rank == 0 else 0.5, 1, 1)
    on_all(job.trainers, refuses(MPIGraphError, "termination_prob", make))
    sampler = RandomWalkNeighborSampler(g, 1, 0.5, 1, 1)
    draw = partial(sampler.sample_blocks, g, [1, 1] if job.rank == 0 else [1])
    on_all(job.trainers, refuses(MPIGraphError, "once each", draw) or job.rank > 0)
    on_all(job.trainers, len(sampler.sample_blocks(g, [1])[2]) == 1)
