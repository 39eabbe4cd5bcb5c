"""The same seeds give the same blocks, bit for bit, whatever the layout of the job."""

import dataclasses
from functools import cache

import pytest
import torch
from batches import NUM_BATCHES, SAMPLERS, batch, digest, parts_of
from layouts import SharedJob, alone, everywhere, on_all, rotated
from oracle import MAX_DEGREE, NAME, NUM_NODES

import mpigraph.distributed as dist
from mpigraph.dataloading import LaborSampler, NeighborSampler
from mpigraph.graphs.fields import EID
from mpigraph.session.context import current

SAMPLING_WAYS = ("alltoallv", "sparse", "everywhere")


def sample_all(path: str, rank: int, trainers: int) -> dict[tuple[str, int], str]:
    graph = dist.DistGraph(NAME, part_config=path)
    found = {}
    for name in SAMPLERS:
        for number in range(NUM_BATCHES):
            mine = number % trainers == rank
            seeds = batch(number) if mine else torch.empty(0, dtype=torch.int64)
            how = dataclasses.replace(SAMPLERS[name].arguments, seed=7)
            sample = graph.sample_blocks(seeds, how)
            subgraph = graph.sample_subgraph(torch.cat([seeds, seeds[:1]]), how)  # one seed is repeated
            if mine:
                found[name, number] = digest([sample, parts_of(subgraph)])
    return found


@cache
def expected(path: str) -> dict[tuple[str, int], str]:
    return alone(lambda: sample_all(path, 0, 1))


@everywhere
@rotated(3)
@pytest.mark.parametrize("num_parts", [1, 3, 4])
def test_blocks_are_the_same_in_every_layout(job: SharedJob, oracle, num_parts: int) -> None:
    """Hosts, servers, local or remote, and how many parts one order of the nodes is cut into: nothing changes a bit."""
    path = oracle(num_parts, "given")
    reference = expected(oracle(1, "given"))
    job.open(path)
    found = sample_all(path, current().rank, current().num_trainers)
    wrong = [key for key, value in found.items() if reference[key] != value]
    on_all(job.trainers, not wrong, f"{wrong}")
    assert sum(job.trainers.allgather(len(found))) == len(SAMPLERS) * NUM_BATCHES


REPEATED = {
    "uniform": NeighborSampler([1, 2]),
    "replace": NeighborSampler([2, 2], replace=True),
    "prob": NeighborSampler([1, 2], prob="weight"),
    "mask": NeighborSampler([1, 1], mask="even"),
    "disjoint": NeighborSampler([2, 2], disjoint=True),
    "labor": LaborSampler([1, 2]),
}


def sample_repeated(path: str, rank: int, trainers: int) -> dict[str, list[list[tuple[int, ...]]]]:
    """This trainer's share of minibatches whose seeds are given 20 times: the edges of each hop, by destination."""
    graph = dist.DistGraph(NAME, part_config=path)
    found = {}
    for number, (name, sampler) in enumerate(REPEATED.items()):
        mine = number % trainers == rank
        nodes = torch.arange(NUM_NODES if mine else 0)
        blocks = graph.sample_blocks(nodes.repeat(20), dataclasses.replace(sampler.arguments, seed=7))[2]
        frontier = graph.sample_neighbors(nodes.repeat(20), 2, prob=sampler.prob, replace=sampler.replace, seed=7)
        if mine:
            rows = []
            for block in blocks:
                eids, counts = block.edata[EID], block.in_degrees().tolist()
                rows.append([tuple(row.tolist()) for row in eids.split(counts)])
            found[name] = [*rows, [tuple(frontier.edata[EID].tolist())]]
    return found


@everywhere
def test_a_node_that_is_given_again_draws_anew(job: SharedJob, oracle) -> None:
    """In each hop that it is a destination of, and in all layouts alike. LABOR's destinations agree: it does not."""
    path = oracle(3, "given")
    g = job.open(path)
    reference = alone(lambda: sample_repeated(oracle(1, "given"), 0, 1))
    found = sample_repeated(path, current().rank, current().num_trainers)
    on_all(job.trainers, all(reference[name] == draws for name, draws in found.items()))
    many = torch.argwhere(g.in_degrees(torch.arange(NUM_NODES)) == MAX_DEGREE).flatten().tolist()
    for name, (outer, inner, _) in found.items():
        for rows in (inner, outer) if name != "disjoint" else (inner,):
            for node in many:
                distinct = len(set(rows[node : 20 * NUM_NODES : NUM_NODES]))
                assert distinct == 1 if name == "labor" else distinct >= 4, (name, node, distinct)
