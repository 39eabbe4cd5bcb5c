"""The same seeds give the same blocks, bit for bit, whatever the layout of the job."""

import hashlib
from functools import cache

import numpy as np
import pytest
import torch
from conftest import Job, Layout, on_all
from mpi4py import MPI
from oracle import NAME, NUM_NODES

import mpigraph.distributed as dist
from mpigraph.base import NID
from mpigraph.dataloading import NeighborSampler
from mpigraph.distributed.context import current

NUM_BATCHES = 6
SAMPLERS = {
    "uniform": NeighborSampler([3, 4]),
    "replace": NeighborSampler([2, 5], replace=True),
    "all": NeighborSampler([-1, -1]),
    "prob": NeighborSampler([3, 2], prob="weight"),
    "prob-replace": NeighborSampler([3, 2], prob="weight", replace=True),
    "mask": NeighborSampler([2, 2], mask="even"),
    "no-eids": NeighborSampler([3, 3], return_eids=False),
}


def batch(number: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(number).permutation(NUM_NODES)[:17].astype(np.int64))


def digest(sample: tuple) -> str:
    """A fingerprint of every array of a minibatch, with the features of its input nodes."""
    inputs, outputs, blocks = sample
    state = hashlib.sha256()
    for tensor in (inputs, outputs):
        state.update(tensor.numpy().tobytes())
    for block in blocks:
        for tensor in (*block.edges(), block.srcdata[NID], block.edata.get(NID, torch.empty(0))):
            state.update(tensor.numpy().tobytes())
    return state.hexdigest()


def sample_all(path: str, rank: int, trainers: int) -> dict[tuple[str, int], str]:
    """This trainer's share of all minibatches."""
    graph = dist.DistGraph(NAME, part_config=path)
    found = {}
    for name in SAMPLERS:
        for number in range(NUM_BATCHES):
            mine = number % trainers == rank
            seeds = batch(number) if mine else torch.empty(0, dtype=torch.int64)
            sampler = SAMPLERS[name]
            sample = graph.sample_blocks(seeds, sampler.fanouts, seed=7, **sampler._options)
            if mine:
                found[name, number] = digest(sample)
    return found


@cache
def expected(path: str) -> dict[tuple[str, int], str]:
    """What one process alone draws."""
    return Job(MPI.COMM_SELF, Layout(1, 0, 0)).run(lambda: sample_all(path, 0, 1))


@pytest.mark.parametrize("num_parts", [1, 3, 4])
def test_blocks_are_the_same_in_every_layout(layout: Job, oracle, num_parts: int) -> None:
    """Hosts, servers, near or far, and how many parts one order of the nodes is cut into: nothing changes a bit."""
    path = oracle(num_parts, "given")
    reference = expected(oracle(1, "given"))
    found = layout.run(lambda: sample_all(path, current().rank, current().num_trainers)) or {}
    wrong = [key for key, value in found.items() if reference[key] != value]
    on_all(layout.comm, not wrong, f"{wrong}")
    assert sum(layout.comm.allgather(len(found))) == len(SAMPLERS) * NUM_BATCHES
