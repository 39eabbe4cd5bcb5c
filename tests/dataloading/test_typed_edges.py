"""What callers give and get by edge type and by node type: collators, labels, reverse edges, spelling of types."""

from pathlib import Path
from typing import Any

import pytest
import torch
from batches import digest
from layouts import SharedJob
from typed_oracle import FORWARD, RELATIONS, REVERSE

import mpigraph.distributed as dist
from mpigraph import graph
from mpigraph.dataloading import BlockSampler, LaborSampler, NeighborSampler, as_edge_prediction_sampler, reverse_edges
from mpigraph.dataloading.negative_sampler import Uniform
from mpigraph.errors import EdgeTypeError, InvalidArgumentError, MPIGraphError
from mpigraph.graphs.fields import EID, NID
from mpigraph.nn import RelGraphConv

READS, CITES = ("author", "reads", "paper"), ("paper", "cites", "paper")


@pytest.mark.parametrize("of_edges", [False, True])
def test_a_loader_with_a_collator_is_the_loader(job: SharedJob, typed_oracle: str, of_edges: bool) -> None:
    g = job.open(typed_oracle)
    sampler, options, how = NeighborSampler([2, 3]), {"shuffle": True, "seed": 3}, {}
    ids: dict[Any, Any] = {"venue": [2, 0], "author": torch.arange(3 * g.rank(), 30)}
    make, collate = dist.DistNodeDataLoader, dist.NodeCollator
    if of_edges:
        ids, how = {READS: torch.arange(g.rank(), 40), "cites": range(20)}, {"exclude": "self"}
        how["negative_sampler"] = Uniform(2)
        make, collate = dist.DistEdgeDataLoader, dist.EdgeCollator
    collator = collate(g, ids, sampler, **how)
    kept = {kind[1] if of_edges else kind: some.tolist() for kind, some in collator.dataset.items() if len(some)}
    assert kept == {kind[1] if kind == READS else kind: list(map(int, some)) for kind, some in ids.items()}
    collated = list(dist.DistDataLoader(collator.dataset, 7, collate_fn=collator.collate, **options))
    made = list(make(g, ids, sampler, batch_size=7, **how, **options))
    assert list(map(digest, collated)) == list(map(digest, made))
    kinds = [[batch[1].num_edges(r) for r in (READS, CITES)] if of_edges else list(batch[1]) for batch in made]
    assert any(all(counts) for counts in kinds) if of_edges else ["author", "venue"] in kinds
    g.barrier()


def test_labels_of_one_edge_type(job: SharedJob, typed_oracle: str) -> None:
    g = job.open(typed_oracle)
    eids = {READS: torch.arange(8), FORWARD: torch.arange(8)}
    for labels in ({"writes": "edge"}, {FORWARD: ["edge", "weight"]}):
        sampler = as_edge_prediction_sampler(NeighborSampler([2]), prefetch_labels=labels)
        for _, positive, _ in dist.DistEdgeDataLoader(g, eids, sampler, batch_size=5):
            found = positive.edges[FORWARD].data
            names = next(iter(labels.values()))
            for name in [names] if isinstance(names, str) else names:
                assert torch.equal(found[name], g.edges[FORWARD].data[name][found[EID]])
            assert "edge" not in positive.edges[READS].data


def test_reverse_edges_are_looked_up_by_their_ends(job: SharedJob, typed_oracle: str) -> None:
    g = job.open(typed_oracle)
    tables = reverse_edges(g, {FORWARD: REVERSE, REVERSE[1]: FORWARD[1]})
    assert list(tables) == [FORWARD, REVERSE]
    src, dst = g.find_edges(torch.arange(g.num_edges(FORWARD)), FORWARD)
    back_src, back_dst = g.find_edges(tables[FORWARD][:], REVERSE)
    assert torch.equal(src, back_dst) and torch.equal(dst, back_src)
    assert torch.equal(tables[REVERSE][tables[FORWARD][:]], torch.arange(len(src)))
    with pytest.raises(EdgeTypeError, match="not the reverse"):
        reverse_edges(g, {FORWARD: CITES})
    with pytest.raises(MPIGraphError, match="has no reverse edge"):
        reverse_edges(g, {CITES: CITES})
    given = torch.arange(40) % g.num_edges(FORWARD)
    how = {"exclude": "reverse_types", "reverse_etypes": {FORWARD: REVERSE}}
    options = {"batch_size": 8, "seed": 1}
    blocks = NeighborSampler([-1])
    ours = dist.DistEdgeDataLoader(g, {FORWARD: given}, blocks, **how, **options)
    theirs = dist.DistEdgeDataLoader(
        g, {FORWARD: given}, blocks, reverse_eids={FORWARD: tables[FORWARD][:]}, **how, **options
    )
    found = 0
    for mine, other in zip(ours, theirs, strict=True):
        for relation in RELATIONS:
            assert torch.equal(mine[2][0].edges[relation].data[EID], other[2][0].edges[relation].data[EID])
        found += mine[2][0].num_edges(REVERSE)
    assert found > 0
    g.barrier()


def test_parallel_edges_have_a_reverse_each(job: SharedJob) -> None:
    """Whatever the parts and whoever looks them up: nodes 0 to 9 in a ring, with two or three edges each way."""

    def write(folder: Path) -> str:
        u = torch.arange(10).repeat_interleave(2 + torch.arange(10) % 2)
        v = (u + 1) % 10
        dist.partition_graph(graph((torch.cat([u, v]), torch.cat([v, u]))), "ring", 3, folder, part_method="random")
        return str(folder / "ring.json")

    g = job.open(job.write(write))
    (table,) = reverse_edges(g, {"_E": "_E"}).values()
    back = table[:]
    src, dst = g.find_edges(torch.arange(g.num_edges()))
    assert torch.equal(src[back], dst) and torch.equal(dst[back], src)
    assert torch.equal(back[back], torch.arange(g.num_edges()))
    g.barrier()


def test_relations_without_edges_may_be_left_out(job: SharedJob, typed_oracle: str) -> None:
    g = job.open(typed_oracle)
    seeds = {"paper": torch.arange(4)}
    whole, some = NeighborSampler([2, 2]), NeighborSampler([2, 2], empty_relations=False)
    options = {"batch_size": 4, "seed": 5}
    ours, theirs = (dist.DistNodeDataLoader(g, seeds, sampler, **options) for sampler in (some, whole))
    for (inputs, _, blocks), (all_inputs, _, full) in zip(ours, theirs, strict=True):
        assert digest(inputs) == digest(all_inputs)
        for block, other in zip(blocks, full, strict=True):
            assert other.canonical_etypes == list(RELATIONS)
            kept = [relation for relation in RELATIONS if other.num_edges(relation)]
            assert block.canonical_etypes == kept and len(kept) < len(RELATIONS)
            assert all(torch.equal(block.edges[r].data[EID], other.edges[r].data[EID]) for r in kept)
            assert block.ntypes == other.ntypes and block.num_dst_nodes("venue") == other.num_dst_nodes("venue")
            layer = RelGraphConv(2, 3, len(RELATIONS))
            feats = {ntype: torch.ones(block.num_src_nodes(ntype), 2) for ntype in block.srctypes}
            with pytest.raises(InvalidArgumentError, match="empty_relations=True"):
                layer(block.to("cpu"), feats)
            assert layer(other, feats)["paper"].shape == (block.num_dst_nodes("paper"), 3)
    (empty,) = NeighborSampler([0], empty_relations=False).sample(g, seeds)[2]
    assert empty.num_edges() == 0 and empty.canonical_etypes == list(RELATIONS)
    g.barrier()


class _OwnSampler(BlockSampler):
    """Returns the seeds as output nodes, as DGL's samplers do."""

    def sample_blocks(self, g: Any, seed_nodes: Any, exclude_eids: Any = None) -> Any:
        inputs, _, blocks = NeighborSampler([2]).sample_blocks(g, seed_nodes)
        return inputs, seed_nodes, blocks


@pytest.mark.parametrize("sampler", [NeighborSampler([2]), LaborSampler([2]), NeighborSampler([]), _OwnSampler()])
def test_output_nodes_have_the_types_of_the_seeds_alone(job: SharedJob, typed_oracle: str, sampler: Any) -> None:
    """A script that takes the only type must not get one without seeds; labels come for all types."""
    g = job.open(typed_oracle)
    labels = {"labels": {"paper": "year"}} if sampler.needs.random else {}
    for ntype in ("paper", "venue"):
        seeds = {ntype: torch.tensor([1, 0, 2])}
        for inputs, outputs, blocks in dist.DistNodeDataLoader(g, seeds, sampler, batch_size=2, **labels):
            ((only, ids),) = outputs.items()
            assert only == ntype and len(ids)
            assert not blocks or inputs.keys() == set(g.ntypes)
            for block in blocks[-1:]:
                assert torch.equal(block.dstnodes[ntype].data[NID], ids)
                if labels:
                    want = g.nodes["paper"].data["year"][outputs.get("paper", ids[:0])]
                    assert torch.equal(block.dstnodes["paper"].data["year"], want)
    given = {"venue": torch.tensor([2]), "author": torch.empty(0, dtype=torch.int64)}
    assert list(sampler.sample(g, given)[1]) == ["venue", "author"]
    g.barrier()
