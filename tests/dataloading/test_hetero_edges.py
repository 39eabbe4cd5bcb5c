"""Edges of several relations as training examples: numbering by type, negatives, exclusion, in every layout."""

import numpy as np
import torch
from batches import digest
from layouts import SharedJob, everywhere, on_all, rotated
from typed_oracle import FORWARD, NUM_NODES, RELATIONS, REVERSE, TYPED_ORACLE

import mpigraph.distributed as dist
from mpigraph.dataloading import NeighborSampler
from mpigraph.dataloading.negative_sampler import GlobalUniform, Uniform
from mpigraph.graphs.fields import EID, NID
from mpigraph.metadata.schema import Relation
from mpigraph.session.context import current

CITES, PRINTS = ("paper", "cites", "paper"), ("venue", "prints", "paper")
SEEDS = (FORWARD, CITES, PRINTS)


def reverse_ids(g: dist.DistGraph) -> torch.Tensor:
    """The edge of REVERSE that is the other way round, for each edge of FORWARD."""
    src, dst = g.find_edges(torch.arange(g.num_edges(FORWARD)), FORWARD)
    back = g.find_edges(torch.arange(g.num_edges(REVERSE)), REVERSE)
    reverse = torch.empty_like(src)
    there, here = (x * 1000 + y for x, y in (back[::-1], (src, dst)))
    reverse[here.argsort()] = there.argsort()
    ends = g.find_edges(reverse, REVERSE)
    assert torch.equal(ends[0], dst) and torch.equal(ends[1], src)
    return reverse


def own_edges(g: dist.DistGraph) -> dict[Relation, torch.Tensor]:
    return {r: dist.edge_split(np.ones(g.num_edges(r), bool), etype=r, force_even=False) for r in SEEDS}


def check_pairs(g: dist.DistGraph, sample: tuple) -> None:
    """All graphs of a minibatch share the nodes of the last block, and their edges are what they say."""
    inputs, positive, *negative, blocks = sample
    for ntype in NUM_NODES:
        nodes = positive.nodes[ntype].data[NID]
        assert len(torch.unique(nodes)) == len(nodes)
        for graph in negative:
            assert torch.equal(graph.nodes[ntype].data[NID], nodes)
        assert torch.equal(blocks[-1].dstnodes[ntype].data[NID], nodes)
        assert torch.equal(blocks[0].srcnodes[ntype].data[NID], inputs[ntype])
        assert torch.equal(blocks[0].srcnodes[ntype].data["feat"], g.nodes[ntype].data["feat"][inputs[ntype]])
    for relation in RELATIONS:
        src, dst = positive.edges(etype=relation)
        if relation not in SEEDS:
            assert len(src) == 0
            continue
        edges = positive.edges[relation].data
        ends = g.find_edges(edges[EID], relation)
        assert torch.equal(positive.nodes[relation[0]].data[NID][src], ends[0])
        assert torch.equal(positive.nodes[relation[2]].data[NID][dst], ends[1])
        assert torch.equal(edges["edge"], g.edges[relation].data["edge"][edges[EID]])


def test_excluded_edges_of_all_relations_are_never_sampled(job: SharedJob, typed_oracle: str) -> None:
    """The seeds, and the reverse of those that have one; every destination gets its fanout of the others."""
    g = job.open(typed_oracle)
    reverse = reverse_ids(g)
    heads = {r: g.find_edges(torch.arange(g.num_edges(r)), r)[1] for r in RELATIONS}
    sampler = NeighborSampler([2, -1])
    loader = dist.DistEdgeDataLoader(
        g,
        own_edges(g),
        sampler,
        batch_size=40,
        shuffle=True,
        negative_sampler=Uniform(2),
        exclude="reverse_types",
        reverse_eids={FORWARD: reverse},
        reverse_etypes={"writes": "written_by"},
        features="feat",
        labels="edge",
    )
    seen: dict[Relation, list[torch.Tensor]] = {r: [] for r in SEEDS}
    for sample in loader:
        check_pairs(g, sample)
        positive, negative, blocks = sample[1:]
        dropped = {r: positive.edges[r].data[EID] for r in SEEDS}
        for relation, eids in dropped.items():
            seen[relation].append(eids)
            assert negative.num_edges(relation) == 2 * len(eids)
        dropped[REVERSE] = reverse[dropped[FORWARD]]
        for relation in RELATIONS:
            alive = torch.ones(g.num_edges(relation), dtype=torch.bool)
            alive[dropped.get(relation, torch.empty(0, dtype=torch.int64))] = False
            left = torch.bincount(heads[relation][alive], minlength=NUM_NODES[relation[2]])
            for fanout, block in zip(sampler.fanouts, blocks, strict=True):
                assert alive[block.edges[relation].data[EID]].all()
                degrees = left[block.dstnodes[relation[2]].data[NID]]
                expected = degrees if fanout < 0 else degrees.clamp(max=fanout)
                assert torch.equal(block.in_degrees(etype=relation), expected)
    for relation, mine in own_edges(g).items():
        found = torch.cat([*seen[relation], mine[:0]])
        assert torch.equal(found.sort().values, mine.sort().values)


def test_reverse_edges_may_be_in_a_dist_tensor(job: SharedJob, typed_oracle: str) -> None:
    """It is read batch by batch, and leaves out what a tensor of the same numbers leaves out."""
    g = job.open(typed_oracle)
    ids = reverse_ids(g)
    spread = dist.DistTensor(ids.shape, torch.int64, part_policy=g.get_edge_partition_policy(FORWARD))
    if g.rank() == 0:
        spread[:] = ids
    g.barrier()
    options = {"batch_size": 40, "shuffle": True, "seed": 1, "reverse_etypes": {FORWARD: REVERSE}}
    options |= {"exclude": "reverse_types"}
    epochs = [
        [
            digest(sample)
            for sample in dist.DistEdgeDataLoader(
                g, own_edges(g), NeighborSampler([-1, 3]), reverse_eids={FORWARD: table}, **options
            )
        ]
        for table in (ids, spread, ids.flip(0))
    ]
    assert epochs[0] == epochs[1] != epochs[2]


@everywhere
@rotated(2)
def test_minibatches_are_the_same_on_every_layout(job: SharedJob, typed_oracle: str) -> None:
    """Every sampler in every layout, with prefetching or without; alone with both."""

    def body(*depths: int) -> list[list[str]]:
        g = dist.DistGraph(TYPED_ORACLE, part_config=typed_oracle)
        found = []
        for number, negatives in enumerate((None, Uniform(2), GlobalUniform(2))):
            epochs = []
            for depth in depths or (2 * (number % 2),):
                loader = dist.DistEdgeDataLoader(
                    g,
                    {r: torch.arange(0, g.num_edges(r), 3) for r in SEEDS},
                    NeighborSampler([2, {r: i % 3 for i, r in enumerate(RELATIONS)}]),
                    batch_size=50,
                    negative_sampler=negatives,
                    exclude="self",
                    num_prefetch=depth,
                    seed=4,
                )
                epochs.append([digest(sample) for sample in loader])
            assert epochs.count(epochs[0]) == len(epochs) and len(set(epochs[0])) == len(epochs[0]) > 3
            found.append(epochs[0])
        return found

    job.open(typed_oracle)
    on_all(job.trainers, body() == job.alone(lambda: body(0, 2)))


def test_negatives_of_many_relations_are_checked_in_one_round(job: SharedJob, typed_oracle: str) -> None:
    g = job.open(typed_oracle)
    before, remote = g.service.rounds, not current().world.all_local
    pairs = GlobalUniform(3)(g, {r: torch.arange(20) for r in (FORWARD, CITES, REVERSE)})
    assert g.service.rounds == before + remote
    for relation, (src, dst) in pairs.items():
        assert 0 < len(src) <= 60
        assert int(src.max()) < NUM_NODES[relation[0]] and int(dst.max()) < NUM_NODES[relation[2]]
        assert not g.has_edges_between(src, dst, relation).any()
        assert relation != CITES or (src != dst).all()
    u, v = g.find_edges(torch.arange(30), FORWARD)
    exist = g.has_edges_between({"writes": u, REVERSE: v}, {"writes": v, REVERSE: u})
    assert exist[FORWARD].all() and exist[REVERSE].all()
