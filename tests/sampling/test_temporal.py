"""Temporal and disjoint sampling: random graphs with ties, compared with a filter in plain Python, in every layout."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from batches import digest
from layouts import SharedJob, everywhere, on_all, rotated
from temporal_graphs import I64, NEWEST, OLDEST, Temporal, temporal, write

import mpigraph.distributed as dist
from mpigraph.dataloading import NeighborSampler
from mpigraph.distgraph.sampling_arguments import SamplingArguments
from mpigraph.graphs.fields import EID, NID, SEED_TIME, TREE
from mpigraph.metadata.schema import DEFAULT_ETYPE, Relation
from mpigraph.store.derived import EdgeTimes

SAMPLING_WAYS = ("alltoallv", "sparse", "everywhere")


def visible(
    some: Temporal, relation: Relation, node: int, now: int, sampler: NeighborSampler, excluded: dict[Relation, I64]
) -> list[int]:
    """Ids of the in-edges of a node that a root of time ``now`` may see, oldest first, equal ones by id."""
    kept = some.ends[relation][1] == node
    kept[excluded[relation]] = False
    of_node = np.flatnonzero(kept & some.mask[relation] if sampler.prob else kept).tolist()
    times = some.time_of(relation)
    if times is None:
        return of_node
    how = sampler.time_filter
    assert how is not None
    seen = []
    for edge in of_node:
        time = int(times[edge])  # Python's integers, which do not overflow
        if (time <= now if how.comparison == "<=" else time < now) and (how.window is None or now - time <= how.window):
            seen.append((time, edge))
    return [edge for _, edge in sorted(seen)]


def check_blocks(
    some: Temporal,
    sampler: NeighborSampler,
    seeds: dict[str, I64],
    times: dict[str, I64],
    excluded: dict[Relation, I64],
    sample: Any,
) -> None:
    """Compare each drawn edge, and how many there are, with what a filter in plain Python leaves."""
    schema = some.schema
    blocks = sample[2]
    roots = np.concatenate([times[t] for t in schema.ntypes])
    for block, fanout in zip(blocks, sampler.fanouts, strict=True):
        for ntype in schema.ntypes:
            src, dst = block.srcnodes[ntype].data, block.dstnodes[ntype].data
            pairs = torch.stack([src[TREE], src[NID]])
            assert torch.equal(pairs[:, : len(dst[NID])], torch.stack([dst[TREE], dst[NID]]))
            assert len(torch.unique(pairs, dim=1).T) == pairs.shape[1]
            assert torch.equal(src[SEED_TIME], torch.from_numpy(roots)[src[TREE]])
        for relation in schema.relations:
            src, dst = block.srcnodes[relation[0]].data, block.dstnodes[relation[2]].data
            ends, eids = block.all_edges(etype=relation), block.edges[relation].data[EID].numpy()
            assert torch.equal(src[TREE][ends[0]], dst[TREE][ends[1]])
            assert np.array_equal(src[NID][ends[0]], some.ends[relation][0][eids])
            assert np.array_equal(dst[NID][ends[1]], some.ends[relation][1][eids])
            for place, (node, tree) in enumerate(zip(dst[NID].tolist(), dst[TREE].tolist(), strict=True)):
                drawn = eids[ends[1].numpy() == place].tolist()
                allowed = visible(some, relation, node, int(roots[tree]), sampler, excluded)
                check_drawn(drawn, allowed, fanout, sampler, some.time_of(relation) is not None)
    last = blocks[-1]
    for ntype in schema.ntypes:
        assert np.array_equal(last.dstnodes[ntype].data[NID], seeds[ntype])
        assert np.array_equal(last.dstnodes[ntype].data[SEED_TIME], times[ntype])


def check_drawn(drawn: list[int], allowed: list[int], fanout: int, sampler: NeighborSampler, timed: bool) -> None:
    newest = timed and sampler.time_filter is not None and sampler.time_filter.strategy == "last"
    pool = allowed[-fanout:] if newest and fanout > 0 else allowed
    if sampler.replace and fanout >= 0:
        assert len(drawn) == (fanout if allowed else 0) and set(drawn) <= set(pool)
        return
    assert len(drawn) == (len(allowed) if fanout < 0 else min(fanout, len(allowed)))
    assert len(set(drawn)) == len(drawn) and set(drawn) <= set(pool)


def some_seeds(some: Temporal, rng: np.random.Generator) -> tuple[dict[str, I64], dict[str, I64]]:
    """Seeds that repeat, with the same time and with others; at times none."""
    seeds, times = {}, {}
    for ntype, count in some.counts.items():
        num = int(rng.choice([0, 1, 5]))
        seeds[ntype] = rng.integers(0, count, num)
        times[ntype] = rng.choice(np.array([OLDEST, -1, 0, 3, 5, 9, NEWEST]), num)
    return seeds, times


def samplers(rng: np.random.Generator) -> NeighborSampler:
    return NeighborSampler(
        rng.choice([-1, 0, 1, 2, 4], int(rng.integers(1, 4))).tolist(),
        time_attr="time",
        temporal_strategy=str(rng.choice(["uniform", "last"])),
        temporal_comparison=str(rng.choice(["<=", "<"])),
        time_window=[None, 0, 3, 2**62, NEWEST][int(rng.integers(0, 5))],
        replace=bool(rng.random() < 0.2),
        mask="mask" if rng.random() < 0.3 else None,
    )


def unwrapped(some: Temporal, ids: dict[Any, I64]) -> Any:
    return ids if len(ids) > 1 else next(iter(ids.values()))


def draw_all(g: dist.DistGraph, some: Temporal, seed: int, cases: int) -> list[str]:
    """Fingerprints of minibatches, each of them checked."""
    found = []
    for number in range(cases):
        rng = np.random.default_rng([seed, number])
        sampler, (seeds, times) = samplers(rng), some_seeds(some, rng)
        share = rng.choice([0, 0.2])
        excluded = {r: np.flatnonzero(rng.random(len(ends[0])) < share) for r, ends in some.ends.items()}
        given = {"seed_times": unwrapped(some, times), "exclude_edges": unwrapped(some, excluded)}
        sample = g.sample_blocks(unwrapped(some, seeds), dataclasses.replace(sampler.arguments, seed=number), **given)
        check_blocks(some, sampler, seeds, times, excluded, sample)
        found.append(digest(sample[2]))
    return found


def compare(job: SharedJob, kind: tuple[int, bool, bool], cases: int) -> None:
    path, some = job.write(write, *kind), temporal(*kind)
    expected = job.alone(lambda: draw_all(dist.DistGraph("temporal", part_config=path), some, kind[0], cases))
    found = draw_all(job.open(path), some, kind[0], cases)
    on_all(job.trainers, found == expected, f"{found} is not {expected}")


@everywhere
@rotated(2)
@pytest.mark.parametrize("of_nodes", [False, True])
@pytest.mark.parametrize("typed", [False, True])
def test_draws_are_those_that_a_filter_leaves(job: SharedJob, typed: bool, of_nodes: bool) -> None:
    compare(job, (0, typed, of_nodes), 6)


def trees_of(some: Temporal, g: dist.DistGraph, sampler: NeighborSampler, seeds: dict[str, I64]) -> dict[Any, Any]:
    """By tree, what it has drawn in each layer: edges by relation, in their order."""
    blocks = sampler.sample_blocks(g, seeds)[2]
    drawn: dict[Any, Any] = {}
    for layer, block in enumerate(blocks):
        for ntype in some.schema.ntypes:
            src = block.srcnodes[ntype].data
            assert SEED_TIME not in src and len(torch.unique(torch.stack([src[TREE], src[NID]]), dim=1).T) == len(
                src[NID]
            )
        for relation in some.schema.relations:
            src, dst = block.srcnodes[relation[0]].data, block.dstnodes[relation[2]].data
            ends, eids = block.all_edges(etype=relation), block.edges[relation].data[EID]
            assert torch.equal(src[TREE][ends[0]], dst[TREE][ends[1]])
            assert np.array_equal(src[NID][ends[0]], some.ends[relation][0][eids])
            assert np.array_equal(dst[NID][ends[1]], some.ends[relation][1][eids])
            for tree, edge in zip(dst[TREE][ends[1]].tolist(), eids.tolist(), strict=True):
                drawn.setdefault(tree, []).append((layer, relation, edge))
    return drawn


class _SeededTrees(NeighborSampler):
    @property
    def arguments(self) -> SamplingArguments:
        return dataclasses.replace(super().arguments, seed=5)


@everywhere
def test_trees_without_times_depend_on_their_roots_alone(job: SharedJob) -> None:
    path, some = job.write(write, 0, True, True), temporal(0, True, True)
    sampler = _SeededTrees([3, 2, 2], disjoint=True)
    rng = np.random.default_rng(0)
    seeds = {t: rng.integers(0, count, 4) for t, count in some.counts.items()}
    seeds["b"][1:3] = seeds["b"][0]
    expected = job.alone(lambda: trees_of(some, dist.DistGraph("temporal", part_config=path), sampler, seeds))
    g = job.open(path)
    found = trees_of(some, g, sampler, seeds)
    on_all(job.trainers, found == expected)
    first = trees_of(some, g, sampler, {"a": seeds["a"][:0], "b": seeds["b"][1:2]})
    on_all(job.trainers, found[4] == first[0] and found[5] != found[4] != found[6] != found[5])  # one root, thrice


@pytest.mark.study
@pytest.mark.parametrize(("typed", "of_nodes"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("seed", range(1, 126))
def test_many_graphs(job: SharedJob, seed: int, typed: bool, of_nodes: bool) -> None:
    compare(job, (seed, typed, of_nodes), 4)


def test_times_that_are_written_count_after_the_next_barrier(job: SharedJob) -> None:
    some = temporal(0, False, False)
    g = job.open(job.write(write, 0, False, False))
    node = int(np.bincount(some.ends[DEFAULT_ETYPE][1]).argmax())
    mine = np.flatnonzero(some.ends[DEFAULT_ETYPE][1] == node)
    sampler = NeighborSampler([-1], time_attr="time", temporal_strategy="last")

    def drawn(now: int) -> list[int]:
        block = sampler.sample_blocks(g, [node], input_time=[now])[2][0]
        return sorted(block.edata[EID].tolist())

    def write_all(times: I64) -> None:
        if job.rank == 0:
            g.edata["time"][mine] = torch.from_numpy(times)
        g.barrier()

    drawn(0)
    write_all(np.arange(len(mine))[::-1] + 100)
    try:
        for now in (99, 100, 101, 10**6):
            on_all(job.trainers, drawn(now) == mine[len(mine) - min(max(now - 99, 0), len(mine)) :].tolist())
    finally:
        write_all(some.edge_time[DEFAULT_ETYPE][mine])


def test_who_draws_while_times_are_sorted_anew_sees_the_old_ones(job: SharedJob) -> None:
    g = job.open(job.write(write, 0, False, False))
    g.prepare_times("time")
    tensor = g.edata["time"]
    times = g.session.store.derived(EdgeTimes, tensor.rows.number, 0)
    host = int(np.argmax(g.session.world.is_local))
    old = tensor[torch.arange(g.num_edges())]

    def write_all(values: torch.Tensor) -> None:
        if job.rank == 0:
            tensor[torch.arange(g.num_edges())] = values
        g.barrier()

    held, before = times.tables, [times.tables.of(column, host).copy() for column in ("times", "order")]
    try:
        for step in (1, 2):  # also once more while someone still draws
            write_all(1000 * step - old.clamp(-100, 100))
            now = times.tables
            on_all(job.trainers, now is not held and bool((now.of("times", host) >= 1000 * step - 100).all()))
            still = [held.of(column, host) for column in ("times", "order")]
            on_all(job.trainers, all(map(np.array_equal, still, before)))
            del still
            del now
        on_all(job.trainers, len(times._outdated) == 1)  # what nobody held is gone
        del held
        write_all(old)
        on_all(job.trainers, not times._outdated and np.array_equal(times.tables.of("times", host), before[0]))
    finally:
        write_all(old)
