"""The same seeds give the same blocks, bit for bit, whatever the layout of the job."""

import dataclasses
from functools import cache

import pytest
import torch
from batches import NUM_BATCHES, SAMPLERS, batch, digest
from layouts import SharedJob, alone, everywhere, on_all, rotated
from oracle import NAME

import mpigraph.distributed as dist
from mpigraph.session.context import current

SAMPLING_WAYS = ("alltoallv", "sparse")


def sample_all(path: str, rank: int, trainers: int) -> dict[tuple[str, int], str]:
    """This trainer's share of all minibatches."""
    graph = dist.DistGraph(NAME, part_config=path)
    found = {}
    for name in SAMPLERS:
        for number in range(NUM_BATCHES):
            mine = number % trainers == rank
            seeds = batch(number) if mine else torch.empty(0, dtype=torch.int64)
            sampler = SAMPLERS[name]
            sample = graph.sample_blocks(seeds, dataclasses.replace(sampler.arguments, seed=7))
            if mine:
                found[name, number] = digest(sample)
    return found


@cache
def expected(path: str) -> dict[tuple[str, int], str]:
    """What one process alone draws."""
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
