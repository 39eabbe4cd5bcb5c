"""ShaDow's minibatches: the subgraphs of the sampled nodes by brute force, and the same on every layout."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import typed_oracle as typed
from layouts import SharedJob, everywhere, on_all, refuses, rotated, several
from oracle import NUM_NODES, in_memory
from typed_oracle import typed_in_memory, write_typed_oracle

import mpigraph.distributed as dist
from mpigraph.dataloading import DataLoader, NeighborSampler, ShaDowKHopSampler, as_edge_prediction_sampler
from mpigraph.distgraph.sampling_arguments import SamplingArguments
from mpigraph.errors import InvalidArgumentError, MPIGraphError, OutOfRangeError
from mpigraph.graphs.fields import EID, NID
from mpigraph.metadata.schema import DEFAULT_ETYPE

SAMPLING_WAYS = ("alltoallv", "sparse")
SAMPLERS: dict[str, Callable[[], ShaDowKHopSampler]] = {
    "uniform": partial(ShaDowKHopSampler, [3, 4]),
    "all": partial(ShaDowKHopSampler, [-1, -1]),
    "weights": partial(ShaDowKHopSampler, [2, 2], replace=True, prob="weight"),
    "no-hop": partial(ShaDowKHopSampler, []),
}


class Seeded(NeighborSampler):
    """Repeats its draws."""

    @property
    def arguments(self) -> SamplingArguments:
        return dataclasses.replace(super().arguments, seed=11)


def seeded(sampler: ShaDowKHopSampler) -> ShaDowKHopSampler:
    how = sampler.neighbors
    sampler.neighbors = Seeded(how.fanouts, prob=how.prob, replace=how.replace)
    return sampler


def batch(number: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(number).permutation(NUM_NODES)[:9].astype(np.int64))


def edges_of(sample: Any, relation: Any = DEFAULT_ETYPE) -> dict[int, tuple[int, int]]:
    """Ends of the edges of a subgraph by id, with the nodes' ids in the graph."""
    graph = sample[2]
    u, v = graph.all_edges(etype=relation)
    src, dst = graph.nodes[relation[0]].data[NID][u], graph.nodes[relation[2]].data[NID][v]
    listed = graph.edges[relation].data[EID].tolist()
    assert len(set(listed)) == len(listed)
    return dict(zip(listed, zip(src.tolist(), dst.tolist(), strict=True), strict=True))


def check(g: Any, sample: Any, excluded: set[int], relation: Any = DEFAULT_ETYPE) -> None:
    """The subgraph has each edge of the graph whose ends are among its nodes, and no other one."""
    inside = [set(sample[2].nodes[ntype].data[NID].tolist()) for ntype in relation[::2]]
    src, dst = (ends.tolist() for ends in g.find_edges(torch.arange(g.num_edges(relation)), relation))
    expected = {
        edge: (u, v)
        for edge, (u, v) in enumerate(zip(src, dst, strict=True))
        if u in inside[0] and v in inside[1] and edge not in excluded
    }
    assert edges_of(sample, relation) == expected


def tensors(sample: Any) -> list[torch.Tensor]:
    nodes, seeds, graph = sample
    return [nodes, seeds, *graph.edges(), graph.ndata[NID], graph.edata[EID]]


@everywhere
@rotated(2)
@pytest.mark.parametrize("num_parts", [1, 3])
def test_subgraphs_are_induced_and_the_same_in_every_layout(job: SharedJob, oracle, num_parts: int) -> None:
    memory, g = in_memory(), job.open(oracle(num_parts, "given"))
    for name, make in SAMPLERS.items():
        sampler = seeded(make())
        for excluded in (None, torch.arange(0, g.num_edges(), 3)):
            seeds = batch(job.rank)
            sample = sampler.sample(g, seeds, excluded)
            expected = tensors(sampler.sample(memory, seeds, excluded))
            same = all(map(torch.equal, tensors(sample), expected))
            on_all(job.trainers, same and torch.equal(sample[0][: len(seeds)], seeds), name)
            check(g, sample, set() if excluded is None else set(excluded.tolist()))
            reached = set(g.sample_blocks(seeds, sampler.neighbors.arguments, exclude_edges=excluded)[0].tolist())
            assert set(sample[0].tolist()) == reached


@everywhere
def test_typed_subgraphs(job: SharedJob) -> None:
    g = job.open(job.write(write_typed_oracle, 3))
    fanouts = [{relation: 2 for relation in typed.RELATIONS}, 3]
    sampler = seeded(ShaDowKHopSampler(fanouts))
    seeds = {"paper": [5, 90, 33 + job.rank], "author": [2]}
    sample, expected = sampler.sample(g, seeds), sampler.sample(typed_in_memory(), seeds)
    for relation in typed.RELATIONS:
        check(g, sample, set(), relation)
        on_all(job.trainers, edges_of(sample, relation) == edges_of(expected, relation))
    on_all(job.trainers, sample[0]["paper"][:3].tolist() == seeds["paper"] and len(sample[0]["venue"]) > 0)


def test_a_loader_gathers_features_of_all_nodes_and_edges(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    sampler = ShaDowKHopSampler([2, 2], prefetch_node_feats=["feat"], prefetch_edge_feats=["edge"])
    own = dist.node_split(np.ones(NUM_NODES))
    loader = dist.DistNodeDataLoader(
        g, own, sampler, batch_size=7, labels=["label"], shuffle=True, seed=3, cache="1MiB"
    )
    for _ in range(2):
        right, seen = [], []
        for nodes, seeds, graph in loader:
            seen += seeds.tolist()
            right.append(torch.equal(graph.ndata["feat"], g.ndata["feat"][nodes]))
            right.append(torch.equal(graph.ndata["label"], g.ndata["label"][nodes]))
            right.append(torch.equal(graph.edata["edge"], g.edata["edge"][graph.edata[EID]]))
            right.append(torch.equal(nodes[: len(seeds)], seeds))
            check(g, (nodes, seeds, graph), set())
        on_all(job.trainers, all(right) and sorted(seen) == sorted(own.tolist()))
    loader.close()


def test_a_loader_in_memory() -> None:
    g = in_memory()
    for nodes, seeds, graph in DataLoader(g, torch.arange(20), ShaDowKHopSampler([2]), batch_size=6):
        assert torch.equal(nodes[: len(seeds)], seeds) and torch.equal(graph.ndata["label"], nodes % 7)
        assert torch.equal(graph.edata["weight"], g.edata["weight"][graph.edata[EID]])
        check(g, (nodes, seeds, graph), set())


@several
def test_wrong_arguments_are_named_and_hang_no_other(job: SharedJob, oracle) -> None:
    g, sampler = job.open(oracle(3)), ShaDowKHopSampler([2])
    on_all(job.trainers, refuses(InvalidArgumentError, "once each", partial(sampler.sample, g, [3, 3])))
    on_all(job.trainers, refuses(OutOfRangeError, "node id", partial(sampler.sample, g, [NUM_NODES])))
    draw = partial(sampler.sample, g, [3, 3] if job.rank == 0 else [3])
    on_all(job.trainers, refuses(MPIGraphError, "once each", draw) or job.rank > 0)
    on_all(job.trainers, len(sampler.sample(g, [3])[1]) == 1)
    for options, text in (({"output": "pyg"}, "torch.stack(subgraph.edges())"), ({"features": ["nope"]}, "nope")):
        make = partial(dist.DistNodeDataLoader, g, [1], sampler, **options)
        on_all(job.trainers, refuses(MPIGraphError, text, make), text)
    make = partial(dist.DistEdgeDataLoader, g, [1], sampler)
    on_all(job.trainers, refuses(InvalidArgumentError, "sample around edges", make))
    assert refuses(InvalidArgumentError, "LaborSampler have it", lambda: as_edge_prediction_sampler(sampler))
    assert refuses(InvalidArgumentError, "", lambda: ShaDowKHopSampler([-2]))
