"""Negative samplers: what they draw, how evenly, and that an edge's draws depend on the epoch and the edge alone."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from layouts import ALONE, SharedJob, everywhere, on_all, on_layouts, rotated
from oracle import MAX_DEGREE, NUM_NODES, open_graph, partitioned

import mpigraph.distributed as dist
from mpigraph.dataloading import NeighborSampler
from mpigraph.dataloading.negative_sampler import GlobalUniform, JointUniform, Uniform, draw_negatives, find_edges
from mpigraph.errors import EdgeTypeError
from mpigraph.graphs.fields import EID, NID
from mpigraph.kernels.negatives import draw_nodes
from mpigraph.kernels.rng import mix64
from mpigraph.metadata.schema import Schema
from mpigraph.partition.source import GraphSource

NUM_EDGES = 591
on_one = on_layouts([ALONE])
RELATIONS = liked, knows, likes = ("item", "liked", "user"), ("user", "knows", "user"), ("user", "likes", "item")


def mix(x: int) -> int:
    return int(mix64(np.uint64(x)))


def reference(key: int, eid: int, number: int, num: int) -> int:
    return mix((mix(key ^ mix(eid)) + number) % 2**64) * num >> 64


@pytest.mark.parametrize("num", [1, 2, 101, 2**31 + 11, 2**32, 2**40 + 12345, 2**62 + 1])
def test_draws_are_hashes(num: int) -> None:
    key, eids = np.uint64(0xFEDCBA9876543210), np.array([0, 7, 7, 2**40, 3], np.int64)
    out = np.full(len(eids) * 4, -1)
    draw_nodes(key, eids, 4, num, out)
    assert out.tolist() == [reference(int(key), e, j, num) for e in eids.tolist() for j in range(4)]


def is_even(counts: np.ndarray) -> bool:
    """Chi-square against equal odds, within five standard deviations of its mean."""
    mean, cells = counts.mean(), len(counts)
    chi2 = float(((counts - mean) ** 2 / mean).sum())
    return abs(chi2 - (cells - 1)) < 5 * (2 * (cells - 1)) ** 0.5


def write_ring(directory: Path) -> str:
    """Edge e goes to node e, from the next."""
    ids = np.arange(NUM_NODES)
    source = GraphSource(Schema.homogeneous(), (NUM_NODES,), (((ids + 1) % NUM_NODES, ids),))
    return partitioned(source, "ring", 1, directory)


@pytest.fixture
def ring(job: SharedJob) -> dist.DistGraph:
    return job.open(job.write(write_ring))


def draw(g: dist.DistGraph, sampler: Callable[..., Any], eids: Any) -> Any:
    """What a sampler draws, with the same key each time."""
    g.session.num_draws = 0
    return sampler(g, eids)


@on_one
def test_destinations_are_drawn_evenly(ring: dist.DistGraph) -> None:
    src, dst = Uniform(200)(ring, torch.arange(NUM_NODES))
    assert is_even(np.bincount(dst.numpy(), minlength=NUM_NODES))
    assert torch.equal(src, (torch.arange(NUM_NODES) + 1).remainder(NUM_NODES).repeat_interleave(200))
    pairs = (dst - src) % NUM_NODES  # no distance between the two ends is preferred
    assert is_even(np.bincount(pairs.numpy(), minlength=NUM_NODES))
    for number in range(3):  # nor does the number of the negative matter
        assert is_even(np.bincount(dst.numpy()[number::10], minlength=NUM_NODES))


@on_one
def test_global_pairs_are_drawn_evenly(ring: dist.DistGraph) -> None:
    every = GlobalUniform(300, exclude_self_loops=False, replace=True, exclude_edges=False)
    src, dst = every(ring, torch.arange(NUM_NODES))
    assert len(src) == len(dst) == 300 * NUM_NODES
    assert is_even(np.bincount((src * NUM_NODES + dst).numpy(), minlength=NUM_NODES**2))
    some = GlobalUniform(60, replace=True)(ring, torch.arange(NUM_NODES))
    distance = np.bincount(((some[0] - some[1]) % NUM_NODES).numpy(), minlength=NUM_NODES)
    assert distance[0] == distance[1] == 0 and is_even(distance[2:])


@on_one
def test_shared_destinations_are_drawn_evenly(ring: dist.DistGraph) -> None:
    drawn = [JointUniform(100)(ring, torch.arange(2))[1][:100] for _ in range(100)]
    assert is_even(np.bincount(torch.cat(drawn).numpy(), minlength=NUM_NODES))


def by_edge(batches: list) -> dict[int, list[tuple[int, int]]]:
    """The negatives of each seed edge, in batches of a sampler that draws as many for each."""
    found: dict[int, list[tuple[int, int]]] = {}
    for _, positive, negative, _ in batches:
        ids, eids = negative.ndata[NID], positive.edata[EID].tolist()
        src, dst = (ids[ends].tolist() for ends in negative.edges())
        pairs = list(zip(src, dst, strict=True))
        k = len(pairs) // len(eids)
        assert len(pairs) == k * len(eids)
        found |= {eid: pairs[i * k : (i + 1) * k] for i, eid in enumerate(eids)}
    return found


STEADY = {
    "Uniform": Uniform(3),
    "GlobalUniform": GlobalUniform(3, exclude_self_loops=False, replace=True, exclude_edges=False),
}


@everywhere
@rotated(2)
@pytest.mark.parametrize("name", STEADY)
def test_an_edge_has_the_same_negatives_on_every_layout(job: SharedJob, oracle, name: str) -> None:
    path = oracle(3)

    def body() -> list[dict]:
        g = open_graph(path)
        mine = dist.edge_split(np.ones(g.num_edges(), bool))
        loader = dist.DistEdgeDataLoader(
            g, mine, NeighborSampler([2]), batch_size=31, shuffle=True, negative_sampler=STEADY[name], seed=9
        )
        return [by_edge(list(loader)) for _ in range(2)]

    job.open(path)
    alone = job.alone(body)
    assert len(alone[0]) == len(alone[1]) == NUM_EDGES
    assert sum(alone[0][eid] == alone[1][eid] for eid in alone[0]) < 5  # another epoch, other negatives
    found = body()
    wrong = [eid for mine, all_of in zip(found, alone, strict=True) for eid in mine if mine[eid] != all_of[eid]]
    on_all(job.trainers, not wrong, f"{wrong}")
    assert sum(job.trainers.allgather(len(found[1]))) == NUM_EDGES


def test_global_uniform_returns_no_edges_no_loops_no_repeats(g: dist.DistGraph) -> None:
    eids = torch.arange(g.rank(), NUM_EDGES, 9)
    orig = g.ndata["orig"][:]

    def ends(sampler: GlobalUniform, eids: torch.Tensor = eids) -> tuple[torch.Tensor, torch.Tensor]:
        src, dst = sampler(g, eids)
        assert len(src) == len(dst) <= sampler.k * len(eids)
        return orig[src], orig[dst]

    def are_edges(src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
        step = (src - dst) % NUM_NODES
        return (step >= 1) & (step <= dst % (MAX_DEGREE + 1))

    for k in (1, 5, 40):
        src, dst = ends(GlobalUniform(k))
        assert len(src) > 0.85 * k * len(eids) * (1 - (k * len(eids)) / NUM_NODES**2)
        assert not are_edges(src, dst).any() and not (src == dst).any()
        assert len(torch.unique(src * NUM_NODES + dst)) == len(src)
    src, dst = ends(GlobalUniform(40, exclude_self_loops=False, replace=True, redundancy=2.0))
    assert len(src) == 40 * len(eids) and not are_edges(src, dst).any() and (src == dst).any()
    assert len(torch.unique(src * NUM_NODES + dst)) < len(src)
    src, dst = ends(GlobalUniform(40, exclude_edges=False))
    assert are_edges(src, dst).any() and not (src == dst).any()
    mine = eids if g.rank() == 0 else eids[:0]  # a trainer without edges makes its round
    assert len(ends(GlobalUniform(2), mine)[0]) == 0 or g.rank() == 0


def test_global_uniform_in_loaders_that_are_not_in_step(g: dist.DistGraph) -> None:
    mine = torch.arange(NUM_EDGES)[: 20 * (g.rank() + 1)]
    loader = dist.DistEdgeDataLoader(
        g, mine, NeighborSampler([2, 2]), batch_size=6, negative_sampler=GlobalUniform(3), num_prefetch=1
    )
    for _ in range(2):
        seen = [positive.edata[EID] for _, positive, _, _ in loader]
        assert torch.equal(torch.cat(seen), mine)
    for number, _ in enumerate(loader):
        if number == g.rank():
            break
    assert len(list(loader)) == len(loader)


@on_one
def test_each_edge_keeps_its_first_allowed_candidates(ring: dist.DistGraph) -> None:
    """With repeats allowed an edge's negatives do not depend on the batch; else the first edge has the pair."""
    ring.has_edges_between, eids = Mock(wraps=ring.has_edges_between), torch.arange(NUM_NODES)
    alone = [draw(ring, GlobalUniform(3, replace=True), [e]) for e in eids.tolist()]
    together = draw(ring, GlobalUniform(3, replace=True), eids)
    for side in (0, 1):
        assert torch.equal(torch.cat([pair[side] for pair in alone]), together[side])
    asked = [sum(map(len, call.args[0].values())) for call in ring.has_edges_between.call_args_list]
    assert asked == [4] * NUM_NODES + [4 * NUM_NODES]  # one question for each batch
    src, dst = GlobalUniform(2)(ring, torch.zeros(50, dtype=torch.int64))  # the same edge again has other candidates
    assert torch.unique(torch.stack([src, dst]), dim=1).shape == (2, 100)


def test_joint_negatives_are_shared(job: SharedJob, oracle) -> None:
    path = oracle(3)

    def body() -> dict:
        g, shared, how = open_graph(path), {}, {"batch_size": 30, "seed": 2, "negative_sampler": JointUniform(5)}
        for begin in (0, 100):
            eids = torch.arange(begin, begin + 30)
            for turned in (eids, eids.flip(0)):
                loader = dist.DistEdgeDataLoader(g, turned, NeighborSampler([1]), **how)
                ((_, positive, negative, blocks),) = list(loader)
                nodes = negative.ndata[NID]
                src, dst = (nodes[ends].reshape(30, 5) for ends in negative.edges())
                assert (dst == dst[0]).all() and torch.equal(src[:, 0], nodes[positive.edges()[0]])
                assert blocks[-1].num_dst_nodes() <= 60 + 5
                assert shared.setdefault(begin, dst[0].tolist()) == dst[0].tolist()
        assert shared[0] != shared[100]
        return shared

    job.open(path)
    on_all(job.trainers, body() == job.alone(body))


def write_shop(directory: Path) -> str:
    users, items = np.arange(4), np.array([0, 1, 2, 4])
    schema, edges = Schema(("item", "user"), RELATIONS), ((items, users), (users[:2], users[1:3]), (users, items))
    return partitioned(GraphSource(schema, (500, 4), edges), "shop", 1, directory)


@on_one
def test_several_relations(job: SharedJob) -> None:
    g = job.open(job.write(write_shop))
    drawn = draw(g, Uniform(50), {"likes": [0, 3], liked: [0, 3]})
    assert set(drawn) == {likes, liked}
    assert torch.equal(drawn[likes][0], torch.tensor([0, 3]).repeat_interleave(50))
    assert int(drawn[likes][1].max()) > 4 > int(drawn[liked][1].max())
    other = draw(g, Uniform(50), {liked: [0, 3]})
    assert torch.equal(other[liked][1], drawn[liked][1])
    pairs = GlobalUniform(5, exclude_self_loops=True, redundancy=20)(g, {"knows": [0, 1]})[knows]
    assert sorted(zip(*(ends.tolist() for ends in pairs), strict=True)) == sorted(
        {(u, v) for u in range(4) for v in range(4) if u != v} - {(0, 1), (1, 2)}
    )
    g.has_edges_between = Mock(wraps=g.has_edges_between)
    GlobalUniform(2, redundancy=1)(g, {likes: [0, 1, 2], knows: [0]})
    ((asked, _), _) = g.has_edges_between.call_args
    assert {relation: len(ends) for relation, ends in asked.items()} == {likes: 9, knows: 3}
    assert g.has_edges_between.call_count == 1  # one question for all relations
    with pytest.raises(EdgeTypeError, match="ambiguous"):
        Uniform(2)(g, [0])


class Shifted(Uniform):
    """A sampler of the user's own, made of one of ours."""

    def __call__(self, g, eids):
        src, dst = super().__call__(g, eids)
        return src, (dst + 1) % g.num_nodes()


@on_one
def test_samplers_derived_from_ours_are_called(ring: dist.DistGraph) -> None:
    edges = find_edges(ring, torch.arange(30))
    ours, derived = (draw(ring, partial(draw_negatives, kind(3)), edges) for kind in (Uniform, Shifted))
    ((src, dst),) = ours.values()
    assert torch.equal(derived[0], src) and torch.equal(derived[1], (dst + 1) % NUM_NODES)
