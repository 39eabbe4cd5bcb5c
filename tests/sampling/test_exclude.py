"""Edges that are left out of draws, and whether edges exist: on multigraphs, in every layout.

A draw without some edges is, bit for bit, the draw of a graph that lacks them. So the expected values come from graphs
with the same nodes and fewer edges, opened by one process alone.
"""

import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from batches import NUM_BATCHES, SAMPLERS, batch, digest
from layouts import SharedJob, alone, everywhere, on_all, rotated
from oracle import NUM_NODES, partitioned

import mpigraph.distributed as dist
from mpigraph.dataloading import NeighborSampler
from mpigraph.graphs.fields import EID
from mpigraph.metadata.schema import Schema
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.session.context import current

SAMPLING_WAYS = ("alltoallv", "sparse", "everywhere")
I64 = npt.NDArray[np.int64]
MULTI = "multi"
MANY: list[dict[str, Any]] = [{}, {"replace": True}, {"prob": "weight"}, {"mask": "even"}]
EVERY = SAMPLERS | {f"many-{how}": NeighborSampler([70, 66], **how) for how in MANY}
FORMS: list[Callable[[I64], Any]] = [
    torch.from_numpy,
    np.asarray,
    lambda ids: ids.tolist(),
    lambda ids: {"_E": ids},
    lambda ids: {("_N", "_E", "_N"): torch.from_numpy(ids)},
    lambda ids: torch.from_numpy(ids).int(),
]


@cache
def multigraph(seed: int) -> tuple[I64, I64]:
    """Sources and destinations in the order of edge ids: hubs, parallel edges, self loops, isolated nodes."""
    rng = np.random.default_rng(seed)
    dst = (NUM_NODES * rng.random(600) ** 3).astype(np.int64)
    src = rng.integers(0, 30, 600)
    loops, again = rng.integers(0, NUM_NODES, 30), rng.integers(0, 600, 60)
    src, dst = np.concatenate([src, loops, src[again]]), np.concatenate([dst, loops, dst[again]])
    order = np.lexsort((src, dst))
    src, dst = src[order], dst[order]
    assert len(np.unique(np.stack([src, dst]), axis=1).T) < len(src) and (src == dst).any()
    return src, dst


def write(directory: Path, name: str, src: I64, dst: I64, num_parts: int) -> str:
    """Partition edges that are in the order of their ids; nodes and edges keep these."""
    feats = {"weight": ((src + 2 * dst) % 4).astype(np.float32), "even": (src + dst) % 2 == 0}
    of_edges = {"_N:_E:_N": {field: Feature.of(values) for field, values in feats.items()}}
    source = GraphSource(Schema.homogeneous(), (NUM_NODES,), ((src, dst),), {}, of_edges)
    return partitioned(source, name, num_parts, directory / name)


def write_multi(directory: Path, seed: int, num_parts: int) -> str:
    return write(directory, MULTI, *multigraph(seed), num_parts)


@pytest.fixture
def multi(job: SharedJob) -> str:
    return job.write(write_multi, 0, 3)


@cache
def excluded(seed: int, number: int) -> I64:
    """What minibatch ``number`` leaves out, in any order, repeats included."""
    src, dst = multigraph(seed)
    rng, every = np.random.default_rng([seed, number]), np.arange(len(src))
    return [
        every[:0],
        rng.integers(0, len(every), 90),
        rng.permutation(np.concatenate([every[dst == 0], every[dst == 7], every[src == 3]])),
        rng.permutation(np.concatenate([every[::2], every[::4]])),
        rng.permutation(every),
        np.concatenate([every[src == dst], every[rng.random(len(every)) < 0.5]]),
    ][number]


# Sampling


@cache
def expected(seed: int) -> dict[tuple[str, int], str]:
    """What one process alone draws from the graphs that lack the edges, under the ids of the edges left."""
    src, dst = multigraph(seed)

    def body() -> dict[tuple[str, int], str]:
        found = {}
        for number in range(NUM_BATCHES):
            kept = np.setdiff1d(np.arange(len(src)), excluded(seed, number))
            with TemporaryDirectory() as directory:
                name = f"less{number}"
                g = dist.DistGraph(name, part_config=write(Path(directory), name, src[kept], dst[kept], 1))
            for name, sampler in EVERY.items():
                sample = g.sample_blocks(batch(number), dataclasses.replace(sampler.arguments, seed=7))
                for block in sample[2]:
                    if EID in block.edata:
                        block.edata[EID] = torch.from_numpy(kept)[block.edata[EID]]
                found[name, number] = digest(sample)
        return found

    return alone(body)


def sample_all(path: str, seed: int, prepared: bool) -> dict[tuple[str, int], str]:
    g, (rank, trainers) = dist.DistGraph(MULTI, part_config=path), (current().rank, current().num_trainers)
    if prepared:
        for name in ("prob", "mask"):
            dist.DistNodeDataLoader(g, np.arange(2), SAMPLERS[name])
    found = {}
    for name, sampler in EVERY.items():
        for number in range(NUM_BATCHES):
            mine = number % trainers == rank
            seeds = batch(number) if mine else torch.empty(0, dtype=torch.int64)
            given = FORMS[number](excluded(seed, number))
            sample = g.sample_blocks(seeds, dataclasses.replace(sampler.arguments, seed=7), exclude_edges=given)
            if mine:
                found[name, number] = digest(sample)
    return found


@everywhere
@rotated(3)
@pytest.mark.parametrize(("seed", "num_parts", "prepared"), [(0, 1, False), (1, 3, True), (2, 4, False)])
def test_a_draw_without_edges_is_that_of_a_graph_that_lacks_them(
    job: SharedJob, seed: int, num_parts: int, prepared: bool
) -> None:
    path = job.write(write_multi, seed, num_parts)
    reference = expected(seed)
    job.open(path)
    found = sample_all(path, seed, prepared)
    wrong = [key for key, value in found.items() if reference[key] != value]
    on_all(job.trainers, not wrong, f"{wrong}")
    assert sum(job.trainers.allgather(len(found))) == len(EVERY) * NUM_BATCHES


@pytest.mark.parametrize("name", ["uniform", "replace", "prob", "labor", "labor-mask"])
def test_threads_draw_alike(job: SharedJob, multi: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpigraph.sampling.local._WORTH_IT", 3)
    sampler = SAMPLERS[name]
    g = job.open(multi)
    for number in (0, 1, 2, 5):
        how, without = (
            (dataclasses.replace(sampler.arguments, seed=3, num_threads=n) for n in (1, 3)),
            excluded(0, number),
        )
        alone, together = (digest(g.sample_blocks(batch(number), one, exclude_edges=without)) for one in how)
        assert alone == together


# Existence


def test_edges_are_looked_up_in_one_round(job: SharedJob, multi: str) -> None:
    g = job.open(multi)
    rng = np.random.default_rng(g.rank())
    rounds, remote = g.service.rounds, not g.loaded.topology.everywhere
    src, dst = multigraph(0)
    known = np.zeros((NUM_NODES, NUM_NODES), bool)
    known[src, dst] = True
    for turn in range(6):
        u, v = rng.integers(0, NUM_NODES, (2, (0, 40, 1000)[(turn + g.rank()) % 3]))
        assert np.array_equal(g.has_edges_between(torch.from_numpy(u), v), known[u, v])
        assert g.service.rounds == rounds + remote * (turn + 1)
    assert g.has_edges_between(src, dst, "_E").all()
    assert g.has_edges_between(int(src[0]), int(dst[0])) is True
    every = [x.reshape(-1) for x in np.meshgrid(np.arange(NUM_NODES), np.arange(NUM_NODES))]
    pairs = np.unique(np.stack([src, dst]), axis=1).shape[1]
    assert int(g.has_edges_between(*every, ("_N", "_E", "_N")).sum()) == pairs


def test_a_loaders_thread_looks_edges_up_and_excludes(job: SharedJob, multi: str) -> None:
    """Trainers with different numbers of batches, and of rounds in a batch; the main thread reads meanwhile."""
    g = job.open(multi)
    src, dst = multigraph(0)

    def collate(eids: list[int]) -> tuple[bool, bool, int]:
        found = g.has_edges_between(src[eids], dst[eids])
        if eids[0] % 2:
            found &= g.has_edges_between(src[eids], dst[eids])
        _, _, blocks = NeighborSampler([2, -1]).sample(g, np.unique(dst[eids]), eids)
        hit = any(np.isin(block.edata[EID], eids).any() for block in blocks)
        return bool(found.all()), bool(hit), blocks[-1].num_edges()

    mine = np.arange(40 * g.rank(), 40 * g.rank() + (40, 23, 9, 0)[g.rank()])
    epochs = []
    for depth in (0, 2):
        loader = dist.DistDataLoader(mine, 4, collate_fn=collate, num_prefetch=depth)
        batches = []
        for found in loader:
            batches.append(found)
            assert torch.equal(g.edata["even"][:8], torch.from_numpy((src[:8] + dst[:8]) % 2 == 0))
        assert [batch[:2] for batch in batches] == [(True, False)] * len(loader)
        epochs.append(batches)
    assert epochs[0] == epochs[1]
