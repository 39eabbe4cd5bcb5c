"""Sampling on graphs of several types: what is drawn exists and is enough, and is the same in every layout."""

import dataclasses
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from batches import digest, parts_of
from layouts import SharedJob, alone, everywhere, on_all, rotated
from typed_oracle import NUM_NODES, RELATIONS, TYPED_ORACLE, WEIGHTED, edges_of, write_typed_oracle

import mpigraph.distributed as dist
from mpigraph.dataloading import LaborSampler, NeighborSampler
from mpigraph.graphs.block import Block
from mpigraph.graphs.fields import EID, NID
from mpigraph.metadata.schema import Relation
from mpigraph.session.context import current

SAMPLING_WAYS = ("alltoallv", "sparse", "everywhere")
Sample = tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], list[Block]]
FANOUTS = dict(zip(RELATIONS, (2, 0, 3, -1, 1, 4, 2), strict=True))
TYPED_SAMPLERS = {
    "uniform": NeighborSampler([3, 2]),
    "by relation": NeighborSampler([FANOUTS, 3]),
    "replace": NeighborSampler([2, FANOUTS], replace=True),
    "all": NeighborSampler([-1, -1, -1]),
    "some weighted": NeighborSampler([3, 2], prob="weight"),
    "one weighted": NeighborSampler([2], prob={"cites": "weight"}),
    "no-eids": NeighborSampler([3, 3], return_eids=False),
    "labor": LaborSampler([3, FANOUTS]),
    "labor weighted": LaborSampler([3, 2], prob="weight", layer_dependency=True, batch_dependency=4),
}


def seeds_of(number: int) -> dict[str, torch.Tensor]:
    """Seeds of one type, of several, of none."""
    rng = np.random.default_rng(number)
    types = [["paper"], ["paper", "author"], list(NUM_NODES), ["venue", "stray"], []][number]
    return {t: torch.from_numpy(rng.permutation(NUM_NODES[t])[: 9 + number]) for t in types}


def left_out(number: int) -> dict[Relation, torch.Tensor] | None:
    if number % 2 == 0:
        return None
    return {r: torch.arange(0, len(edges_of(i)[0]), 2) for i, r in enumerate(RELATIONS) if i in (2, 4, 6)}


def check_block(
    block: Block, fanout: Any, drop: Mapping[Relation, torch.Tensor], weighted: tuple[Relation, ...], replace: bool
) -> None:
    """Every edge exists, none comes twice unless it is put back, and every destination gets its fanout."""
    for number, relation in enumerate(RELATIONS):
        src, dst, eids = *block.edges(etype=relation), block.edges[relation].data[EID].numpy()
        ids = block.srcnodes[relation[0]].data[NID][src].numpy(), block.dstnodes[relation[2]].data[NID][dst].numpy()
        whole = edges_of(number)
        assert np.array_equal(whole[0][eids], ids[0]) and np.array_equal(whole[1][eids], ids[1])
        alive = np.ones(len(whole[0]), bool)
        alive[drop.get(relation, torch.empty(0, dtype=torch.int64)).numpy()] = False
        if relation in weighted:
            alive &= (whole[0] + whole[1]) % 4 > 0
        assert alive[eids].all()
        degrees = np.bincount(whole[1][alive], minlength=NUM_NODES[relation[2]])
        degrees = degrees[block.dstnodes[relation[2]].data[NID].numpy()]
        most = fanout[relation] if isinstance(fanout, dict) else fanout
        put_back = replace and most >= 0
        wanted = most * (degrees > 0) if put_back else np.minimum(degrees, most if most >= 0 else len(whole[0]))
        assert np.array_equal(block.in_degrees(etype=relation).numpy(), wanted)
        assert put_back or len(np.unique(eids)) == len(eids)


def sample_all(path: str, rank: int, trainers: int) -> dict[tuple[str, int], str]:
    g = dist.DistGraph(TYPED_ORACLE, part_config=path)
    found = {}
    for name, sampler in TYPED_SAMPLERS.items():
        how = dataclasses.replace(sampler.arguments, seed=3)
        for number in range(5):
            mine = number % trainers == rank
            seeds = seeds_of(number) if mine else {}
            sample = g.sample_blocks(seeds, how, exclude_edges=left_out(number))
            subgraph = g.sample_subgraph(seeds, how, exclude_edges=left_out(number))
            if mine:
                found[name, number] = digest([sample, parts_of(subgraph)])
                check_sample(name, number, sample)
    return found


def check_sample(name: str, number: int, sample: Sample) -> None:
    inputs, outputs, blocks = sample
    seeds = seeds_of(number)
    assert list(outputs) == list(seeds) and all(torch.equal(outputs[t], seeds[t]) for t in seeds)
    assert all(torch.equal(blocks[0].srcnodes[t].data[NID], inputs[t]) for t in NUM_NODES)
    for before, after in pairwise(blocks):
        assert all(torch.equal(before.dstnodes[t].data[NID], after.srcnodes[t].data[NID]) for t in NUM_NODES)
    if name == "no-eids":
        return
    weighted = {"some weighted": WEIGHTED, "labor weighted": WEIGHTED, "one weighted": WEIGHTED[1:]}.get(name, ())
    for block, fanout in zip(blocks, TYPED_SAMPLERS[name].fanouts, strict=True):
        check_block(block, fanout, left_out(number) or {}, weighted, name == "replace")


@cache
def expected() -> dict[tuple[str, int], str]:
    with TemporaryDirectory() as directory:
        path = write_typed_oracle(Path(directory), 1)
        return alone(lambda: sample_all(path, 0, 1))


@everywhere
@rotated(3)
@pytest.mark.parametrize("num_parts", [1, 3, 5])
def test_blocks_are_right_and_the_same_in_every_layout(job: SharedJob, num_parts: int) -> None:
    """Five parts are more than there are venues; the last type has no edges."""
    path = job.write(write_typed_oracle, num_parts)
    reference = expected()
    job.open(path)
    found = sample_all(path, current().rank, current().num_trainers)
    wrong = [key for key, value in found.items() if reference[key] != value]
    on_all(job.trainers, not wrong, f"{wrong}")
    assert sum(job.trainers.allgather(len(found))) == len(TYPED_SAMPLERS) * 5


@pytest.mark.parametrize("num_prefetch", [0, 2])
def test_loaders_mix_the_types(job: SharedJob, typed_oracle: str, num_prefetch: int) -> None:
    """Every seed comes once, and features come with the types that have them."""

    def body() -> Any:
        g = job.open(typed_oracle)
        mine = {t: dist.node_split(np.ones(NUM_NODES[t], bool), ntype=t, force_even=False) for t in ("paper", "venue")}
        loader = dist.DistNodeDataLoader(
            g,
            mine,
            NeighborSampler([2, FANOUTS], prefetch_labels={"paper": "year"}),
            batch_size=10,
            shuffle=True,
            features="feat",
            num_prefetch=num_prefetch,
        )
        seen: dict[str, list[torch.Tensor]] = {t: [] for t in NUM_NODES}
        none = torch.empty(0, dtype=torch.int64)
        for inputs, outputs, blocks in loader:
            assert outputs.keys() <= mine.keys() and all(len(ids) for ids in outputs.values())
            for ntype in NUM_NODES:
                seen[ntype].append(outputs.get(ntype, none))
                assert torch.equal(blocks[0].srcnodes[ntype].data["feat"], g.nodes[ntype].data["feat"][inputs[ntype]])
                assert torch.equal(blocks[-1].dstnodes[ntype].data[NID], seen[ntype][-1])
            year = blocks[-1].dstnodes["paper"].data["year"]
            assert torch.equal(year, g.nodes["paper"].data["year"][seen["paper"][-1]])
            assert "year" not in blocks[-1].dstnodes["author"].data
        for ntype in NUM_NODES:
            found = torch.cat([*seen[ntype], torch.empty(0, dtype=torch.int64)]).sort().values
            assert torch.equal(found, torch.as_tensor(mine.get(ntype, [])).long().sort().values), ntype
        return {t: torch.cat(seen[t]).tolist() if seen[t] else [] for t in mine}

    found = job.trainers.allgather(body())
    for ntype in ("paper", "venue"):
        assert sorted(v for some in found if some for v in some[ntype]) == list(range(NUM_NODES[ntype]))


def test_batches_of_a_users_own(job: SharedJob, typed_oracle: str) -> None:
    """A dict as dataset gives pairs of type and id, as in DGL; without a collate function ids by type."""
    data = {"paper": torch.arange(5), "venue": torch.arange(2)}
    pairs = [pair for some in dist.DistDataLoader(data, 3, collate_fn=list) for pair in some]
    assert pairs == [("paper", v) for v in range(5)] + [("venue", v) for v in range(2)]
    batches = list(dist.DistDataLoader(data, 4))
    assert [{t: ids.tolist() for t, ids in some.items()} for some in batches] == [
        {"paper": [0, 1, 2, 3]},
        {"paper": [4], "venue": [0, 1]},
    ]
