"""Which far rows are said to be read most often, beside a plain computation, and beside what is read."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from layouts import FAR, SharedJob, alone, on_all, on_layouts
from oracle import NAME, NUM_NODES, oracle_source
from typed_oracle import NUM_NODES as NUM_TYPED
from typed_oracle import SCHEMA, edges_of, write_typed_oracle

import mpigraph.distributed as dist
from mpigraph.errors import InvalidArgumentError
from mpigraph.rows.row_tensor import Policy
from mpigraph.sampling import hot_rows as module
from mpigraph.sampling.hot_rows import hot_rows
from mpigraph.sampling.minibatch import SamplingPlan
from mpigraph.session.context import current

Edges = Sequence[tuple[np.ndarray, np.ndarray]]
Seeds = Mapping[int, np.ndarray]
ONE = 2.0**52
NODES, EDGES = Policy(True, 0), Policy(False, 0)
BATCH = 4


def plan_of(*fanouts: int | Mapping[int, int], replace: bool = False, relations: int = 1) -> SamplingPlan:
    given = [dict.fromkeys(range(relations), f) if isinstance(f, int) else f for f in fanouts]
    return SamplingPlan(given, replace, {}, True)


PLANS = {
    "blocks": (plan_of(2, 3), False),
    "once": (plan_of(2, 3, 2), True),
    "all": (plan_of(-1, 0, 1), False),
    "replace": (plan_of(2, 3, replace=True), False),
}


def by_hand(
    edges: Edges, ends: Sequence[tuple[int, int]], sizes: Sequence[int], seeds: Seeds, plan: SamplingPlan, once: bool
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The chances of all nodes by type, and reads of each edge by relation, edge after edge."""

    def amount(odd: float) -> int:
        return math.floor(min(-math.log1p(-odd), 64.0) * ONE + 0.5) if odd < 1 else 64 << 52

    def found(before: float, missed: int) -> float:
        return (1 - before) * -math.expm1(-(min(missed, 64 << 52) / ONE))

    count = sum(map(len, seeds.values()))
    total = [np.zeros(n) for n in sizes]
    for t, ids in seeds.items():
        for v in ids:
            total[t][v] = found(0.0, amount(BATCH / count))
    fresh = [chances.copy() for chances in total]
    reads = [np.zeros(len(src)) for src, _ in edges]
    for fanouts in reversed(plan.fanouts):
        missed = [[0] * n for n in sizes]
        for r, fanout in fanouts.items():
            (src, dst), (src_type, dst_type) = edges[r], ends[r]
            degrees = np.bincount(dst, minlength=sizes[dst_type])
            for e, (v, u) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
                d = int(degrees[u])
                w = 1.0 if fanout < 0 else fanout / d if fanout < d else 1.0
                if fanout >= 0 and plan.replace and d > 1:
                    w = -math.expm1(fanout * math.log1p(-1 / d))
                odd = w * (fresh if once else total)[dst_type][u]
                reads[r][e] += odd
                missed[src_type][v] += amount(odd)
        for t, old in enumerate(total):
            fresh[t] = np.array([found(a, m) for a, m in zip(old.tolist(), missed[t], strict=True)])
            total[t] = old + fresh[t]
    return total, reads


def hottest(scores: np.ndarray, near: Sequence[tuple[int, int]], most: int) -> list[int]:
    """Ids by score, then id, of those in no range of ``near``."""
    scores = scores.copy()
    for begin, end in near:
        scores[begin:end] = 0
    order = np.lexsort((np.arange(len(scores)), -scores))
    return order[scores[order] > 0][:most].tolist()


def near_ranges(graph: Any, key: Policy) -> list[tuple[int, int]]:
    hosts = graph.loaded.topology.hosts
    ranges = hosts.node_range if key.is_node else hosts.edge_range
    return [ranges(int(host), key.type_id) for host in np.flatnonzero(current().world.near)]


def check(job: SharedJob, graph: Any, edges: Edges, seeds: Seeds, steps: int, plan: SamplingPlan, once: bool,
          capacities: Mapping[Policy, int]) -> None:  # fmt: skip
    """Compare what the ranks find with what one finds by hand for all of a node's trainers."""
    world = current().world
    schema = graph.schema
    sizes = [graph.loaded.topology.hosts.num_nodes(t) for t in range(len(schema.ntypes))]
    found = hot_rows(world, graph.loaded, plan, seeds, BATCH, steps, "vip", capacities, expand_once=once)
    ends = [schema.ends(r) for r in range(len(edges))]
    want = {key: np.zeros(sizes[key.type_id] if key.is_node else len(edges[key.type_id][0])) for key in capacities}
    for node, its_seeds, its_steps in job.trainers.allgather((world.node_index, seeds, steps)):
        if node == world.node_index and sum(map(len, its_seeds.values())):
            total, reads = by_hand(edges, ends, sizes, its_seeds, plan, once)
            for key in want:
                want[key] += its_steps * (total if key.is_node else reads)[key.type_id]
    bad = []
    for key, most in capacities.items():
        expected = hottest(want[key], near_ranges(graph, key), most)
        if found[key].tolist() != expected:
            bad.append(f"{key}: {found[key].tolist()[:9]} {expected[:9]} of {len(found[key])}, {len(expected)}")
    on_all(job.trainers, not bad, str(bad))


@on_layouts(FAR)
@pytest.mark.parametrize("name", list(PLANS))
def test_the_order_is_that_of_the_chances(job: SharedJob, oracle, monkeypatch, name: str) -> None:
    """In every layout exactly what is computed by hand; the second trainer of a node has no seeds, or other ones."""
    monkeypatch.setattr(module, "_EDGES", 40)
    monkeypatch.setattr(module, "_AT_ONCE", 9)
    graph = job.open(oracle(4, "given"))
    world = current().world
    edges = [tuple(a[np.lexsort(oracle_source().edges[0])] for a in oracle_source().edges[0])]
    plan, once = PLANS[name]
    held = np.concatenate([np.arange(*r) for r in near_ranges(graph, NODES)])
    mine = held[world.local_trainer :: 3] if world.local_trainer == 0 or name == "blocks" else held[:0]
    for most in (7, 1, 1000, 0) if name == "blocks" else (1000,):
        check(job, graph, edges, {0: mine}, 3, plan, once, {NODES: most, EDGES: 5 * most})


@on_layouts(FAR)
def test_types_and_relations_have_chances_of_their_own(job: SharedJob) -> None:
    graph = job.open(job.write(write_typed_oracle, 4))
    edges = [edges_of(r) for r in range(len(SCHEMA.relations))]
    capacities = {Policy(True, t): 20 for t in range(len(NUM_TYPED))}
    capacities |= {Policy(False, r): 30 for r in range(len(edges))}
    paper, author = SCHEMA.ntype_id("paper"), SCHEMA.ntype_id("author")
    seeds = {paper: np.arange(job.rank, 101, 9), author: np.arange(job.rank, 53, 12)}
    plan = plan_of(2, {0: 1, 2: 3, 4: -1, 6: 2}, relations=len(edges))
    for once in (False, True):
        check(job, graph, edges, seeds, 1 + job.rank, plan, once, capacities)


@on_layouts(FAR)
def test_by_degree_sources_with_most_edges_come_first(job: SharedJob, oracle) -> None:
    graph = job.open(oracle(4, "given"))
    world = current().world
    degrees = np.bincount(oracle_source().edges[0][0], minlength=NUM_NODES)
    for most in (0, 1, 9, 1000):
        found = hot_rows(world, graph.loaded, plan_of(2), {}, 1, 1, "degree", {NODES: most}, expand_once=False)
        expected = hottest(degrees.astype(float), near_ranges(graph, NODES), most)
        on_all(job.trainers, found[NODES].tolist() == expected, f"{found} {expected}")
    for policy, key in (("degree", EDGES), ("hot", NODES)):
        with pytest.raises(InvalidArgumentError, match="degree"):
            hot_rows(world, graph.loaded, plan_of(2), {}, 1, 1, policy, {key: 3}, expand_once=False)


def test_nothing_is_far_on_one_node(oracle) -> None:
    def body() -> None:
        graph = dist.DistGraph(NAME, part_config=oracle(2))
        seeds = {0: np.arange(5)}
        found = hot_rows(current().world, graph.loaded, plan_of(2), seeds, 1, 5, "vip", {NODES: 3}, expand_once=False)
        assert len(found[NODES]) == 0

    alone(body)


@pytest.mark.parametrize(("fanouts", "once"), [([2], False), ([2, 2], True), ([2, 2], False)])
def test_nodes_are_read_about_as_often_as_computed(oracle, fanouts: list[int], once: bool) -> None:
    """The chances by hand, which the ranks agree with exactly, beside counts of what minibatches read.

    Where a hop draws again for the same destinations, those that are in a minibatch are so in all of its later hops;
    the chances are taken for independent, and so are too high. The order is right.
    """

    def body() -> None:
        graph = dist.DistGraph(NAME, part_config=oracle(4, "given"))
        seeds = np.arange(0, 50, 3)
        total, _ = by_hand([oracle_source().edges[0]], [(0, 0)], [NUM_NODES], {0: seeds}, plan_of(*fanouts), once)
        rng = np.random.default_rng(1)
        times = 500
        reads = np.zeros(NUM_NODES)
        for number in range(times):
            chosen = torch.from_numpy(rng.choice(seeds, BATCH, replace=False))
            if once:
                nodes = graph.sample_subgraph(chosen, fanouts, seed=number).ids[0]
            else:
                nodes = graph.sample_blocks(chosen, fanouts, seed=number)[0].numpy()
            reads[np.unique(nodes)] += 1
        often = reads / times
        # five standard deviations, and a tenth since edges of one destination are not drawn independently
        bound = 5 * np.sqrt(np.maximum(total[0] * (1 - total[0]), 1e-3) / times) + 0.1 * total[0]
        assert (often < total[0] + bound).all(), (often - total[0] - bound).max()
        if once or len(fanouts) == 1:
            assert (often > total[0] - bound).all(), (total[0] - bound - often).max()
        assert not often[total[0] == 0].any()
        best = np.sort(reads)[::-1][:20].sum()
        assert reads[np.argsort(-total[0])[:20]].sum() >= 0.95 * best

    alone(body)
