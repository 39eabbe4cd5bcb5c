"""Loaders of edges: pair graphs and blocks agree, every edge comes once, and excluded edges are never sampled.

In graphs with one relation and with several.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import OneHop, digest
from layouts import SharedJob, everywhere, on_all, rotated
from oracle import NAME, partitioned
from typed_oracle import FORWARD, RELATIONS, REVERSE, TYPED_ORACLE

import mpigraph.distributed as dist
from mpigraph.dataloading import NeighborSampler, as_edge_prediction_sampler, reverse_edges
from mpigraph.dataloading.negative_sampler import GlobalUniform, JointUniform, Uniform
from mpigraph.errors import InvalidArgumentError, MPIGraphError
from mpigraph.graphs.fields import EID, NID
from mpigraph.metadata.schema import DEFAULT_NTYPE, Schema
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.session.context import current

NUM_EDGES = 591
SEEDS = (FORWARD, ("paper", "cites", "paper"), ("venue", "prints", "paper"))
ALL = np.ones(NUM_EDGES, bool)
NEGATIVES = {
    "none": None,
    "uniform": Uniform(3),
    "global": GlobalUniform(3),
    "joint": JointUniform(4),
    "own": lambda g, eids: (torch.zeros_like(eids), g.find_edges(eids)[0]),
}


def check_minibatch(g: dist.DistGraph, sample: tuple) -> None:
    """Everything that must agree in a minibatch: its graphs, blocks and ids, by type, in order of first appearance."""
    inputs, positive, *negative, blocks = sample
    listed: dict[str, list[int]] = {ntype: [] for ntype in g.ntypes}
    for graph in (positive, *negative):
        for relation in g.canonical_etypes:
            sides = zip(relation[::2], graph.edges(etype=relation), strict=True)
            ends = [graph.nodes[ntype].data[NID][some] for ntype, some in sides]
            assert len(ends[0]) == len(ends[1])
            for ntype, ids in zip(relation[::2], ends, strict=True):
                listed[ntype] += ids.tolist()
            if graph is positive:
                data = positive.edges[relation].data
                found = g.find_edges(data[EID], relation)
                assert "edge" not in data or torch.equal(data["edge"], g.edges[relation].data["edge"][data[EID]])
                assert torch.equal(ends[0], found[0]) and torch.equal(ends[1], found[1])
    for ntype, ids in listed.items():
        nodes = positive.nodes[ntype].data[NID]
        assert all(torch.equal(graph.nodes[ntype].data[NID], nodes) for graph in negative)
        assert nodes.tolist() == list(dict.fromkeys(ids))
        assert torch.equal(blocks[-1].dstnodes[ntype].data[NID], nodes)
        first = blocks[0].srcnodes[ntype].data
        assert torch.equal(first[NID], inputs[ntype] if isinstance(inputs, dict) else inputs)
        assert "feat" not in first or torch.equal(first["feat"], g.nodes[ntype].data["feat"][first[NID]])
    for block in blocks:
        for relation in g.canonical_etypes:
            (src, dst), found = block.edges(etype=relation), g.find_edges(block.edges[relation].data[EID], relation)
            assert torch.equal(block.srcnodes[relation[0]].data[NID][src], found[0])
            assert torch.equal(block.dstnodes[relation[2]].data[NID][dst], found[1])


@pytest.mark.parametrize("name", NEGATIVES)
@rotated(3)
def test_pair_graphs_and_blocks_agree(g: dist.DistGraph, name: str) -> None:
    loader = dist.DistEdgeDataLoader(
        g,
        dist.edge_split(ALL, force_even=False),
        NeighborSampler([3, 2], prefetch_node_feats=["orig"]),
        batch_size=60,
        shuffle=True,
        negative_sampler=NEGATIVES[name],
        features=["feat"],
        labels="edge",
    )
    for sample in loader:
        inputs, positive, blocks = sample[0], sample[1], sample[-1]
        assert len(sample) == (3 if name == "none" else 4), name
        check_minibatch(g, sample)
        assert "feat" in blocks[0].srcdata and torch.equal(blocks[0].srcdata["orig"], g.ndata["orig"][inputs])
        orig = g.ndata["orig"][positive.ndata[NID]]
        named = 1000 * orig[positive.edges()[1]] + orig[positive.edges()[0]]
        assert torch.equal(positive.edata["edge"], named)


def reversed_ids() -> torch.Tensor:
    """Some reverse edge for each edge: what it is does not matter to a sampler."""
    return torch.arange(NUM_EDGES).flip(0)


@everywhere
@rotated(2)
@pytest.mark.parametrize("several", [False, True])
def test_minibatches_are_the_same_on_every_layout_and_with_prefetching(
    job: SharedJob, oracle, typed_oracle: str, several: bool
) -> None:
    """Every sampler in every layout, with prefetching or without; alone with both."""
    path = typed_oracle if several else oracle(3)

    def epochs_of(g: dist.DistGraph, name: str, depth: int) -> list[str]:
        eids, sampler, how = torch.arange(150), NeighborSampler([3, 3]), {"exclude": "reverse_id"}
        how["reverse_eids"] = reversed_ids()
        if several:
            eids, how = {r: torch.arange(0, g.num_edges(r), 3) for r in SEEDS}, {"exclude": "self"}
            sampler = NeighborSampler([2, {r: i % 3 for i, r in enumerate(RELATIONS)}])
        how |= {"batch_size": 50, "negative_sampler": NEGATIVES[name], "num_prefetch": depth, "seed": 5}
        loader = dist.DistEdgeDataLoader(g, eids, sampler, **how)
        return [digest(sample) for _ in range(2) for sample in loader]

    def body(*depths: int) -> dict[str, list[str]]:
        g, epochs = dist.DistGraph(TYPED_ORACLE if several else NAME, part_config=path), {}
        for number, name in enumerate(("none", "uniform", "global", "joint", "own")[: 3 if several else 5]):
            found = [epochs_of(g, name, depth) for depth in depths or (2 * (number % 2),)]
            assert found.count(found[0]) == len(found), name
            epochs[name] = found[0]
            assert len(set(epochs[name])) == len(epochs[name]) >= 6, name
        return epochs

    job.open(path)
    on_all(job.trainers, body() == job.alone(lambda: body(0, 2)))


# Exclusion, on a multigraph with self loops in which every edge has a reverse one


def write_multigraph(directory: Path) -> str:
    """Random edges between 40 nodes, some of them double, some loops; edges e and e ^ 1 are each other's reverse."""
    rng = np.random.default_rng(3)
    one, other = rng.integers(0, 40, 250), rng.integers(0, 40, 250)
    one[:20], other[:20] = one[20:40], other[20:40]
    other[40:60] = one[40:60]
    src, dst = (np.stack(pair, axis=1).reshape(-1) for pair in ((one, other), (other, one)))
    features = {f"{DEFAULT_NTYPE}:_E:{DEFAULT_NTYPE}": {"orig": Feature.of(np.arange(500))}}
    source = GraphSource(Schema.homogeneous(), (40,), ((src, dst),), {DEFAULT_NTYPE: {}}, features)
    return partitioned(source, NAME, 3, directory, "random")


@pytest.fixture
def multigraph(job: SharedJob) -> str:
    return job.write(write_multigraph)


def reverse_of(g: dist.DistGraph) -> torch.Tensor:
    orig = g.edata["orig"][:]
    number = torch.empty_like(orig)
    number[orig] = torch.arange(len(orig))
    reverse = number[orig ^ 1]
    src, dst = g.find_edges(torch.arange(len(orig)))
    assert torch.equal(src[reverse], dst) and torch.equal(dst[reverse], src)
    return reverse


def in_a_tensor(g: dist.DistGraph, reverse: torch.Tensor) -> dist.DistTensor:
    tensor = dist.DistTensor((len(reverse),), torch.int64, part_policy=g.get_edge_partition_policy())
    if g.rank() == 0:
        tensor[:] = reverse
    g.barrier()
    return tensor


ETYPE = ("_N", "_E", "_N")
Eids = dict[Any, torch.Tensor]
WAYS: dict[str, Callable[[dist.DistGraph, torch.Tensor], dict]] = {
    "self": lambda g, reverse: {"exclude": "self"},
    "reverse_id": lambda g, reverse: {"exclude": "reverse_id", "reverse_eids": reverse},
    "ndarray": lambda g, reverse: {"exclude": "reverse_id", "reverse_eids": reverse.numpy()},
    "DistTensor": lambda g, reverse: {"exclude": "reverse_id", "reverse_eids": in_a_tensor(g, reverse)},
    "dict": lambda g, reverse: {"exclude": "reverse_id", "reverse_eids": {"_E": reverse}},
    "callable": lambda g, reverse: {"exclude": lambda eids: torch.cat([reverse[eids], eids])},
    "tensor": lambda g, reverse: {"exclude": torch.arange(400)},
    "dict of edges": lambda g, reverse: {"exclude": {ETYPE: np.arange(100, 500)}},
    "reverse_types": lambda g, reverse: {
        "exclude": "reverse_types",
        "reverse_etypes": {"_E": "_E"},
        "reverse_eids": reverse,
    },
}

FIXED = {"tensor": torch.arange(400), "dict of edges": torch.arange(100, 500)}


def excluded_by(way: str, eids: torch.Tensor, reverse: torch.Tensor) -> torch.Tensor:
    if way in FIXED:
        return FIXED[way]
    return eids if way == "self" else torch.cat([eids, reverse[eids]])


def check_exclusion(g: dist.DistGraph, seeds: Eids, sampler: Any, excluded: Callable[[Eids], Eids], **how: Any) -> int:
    """One epoch: each seed comes once, no excluded edge, and each destination has its fanout of the others.

    Return how many nodes had no edge left, over all minibatches.
    """
    heads = {r: g.find_edges(torch.arange(g.num_edges(r)), r)[1] for r in g.canonical_etypes}
    seen, without = {r: list[int]() for r in seeds}, 0
    how |= {"batch_size": 50, "shuffle": True, "negative_sampler": Uniform(2)}
    for sample in dist.DistEdgeDataLoader(g, seeds, sampler, **how):
        check_minibatch(g, sample)
        batch = {r: sample[1].edges[r].data[EID] for r in seeds}
        for relation, eids in batch.items():
            seen[relation] += eids.tolist()
            assert sample[2].num_edges(relation) == 2 * len(eids)
        gone = excluded(batch)
        for relation in g.canonical_etypes:
            alive = torch.ones(g.num_edges(relation), dtype=torch.bool)
            alive[gone.get(relation, torch.empty(0, dtype=torch.int64))] = False
            left = torch.bincount(heads[relation][alive], minlength=g.num_nodes(relation[2]))
            without += int((left == 0).sum())
            for fanout, block in zip(sampler.fanouts, sample[-1], strict=True):
                assert alive[block.edges[relation].data[EID]].all()
                of_node = left[block.dstnodes[relation[2]].data[NID]]
                drawn = of_node if fanout < 0 else of_node.clamp(max=fanout)
                if sampler.replace and fanout >= 0:
                    drawn = torch.where(of_node > 0, fanout, 0)
                assert torch.equal(block.in_degrees(etype=relation), drawn)
    assert {r: sorted(some) for r, some in seen.items()} == {r: sorted(ids.tolist()) for r, ids in seeds.items()}
    return without


@rotated(2)
@pytest.mark.parametrize("replace", [False, True])
def test_excluded_edges_are_never_sampled_and_fanouts_are_honoured(
    job: SharedJob, multigraph: str, replace: bool
) -> None:
    g = job.open(multigraph)
    reverse, seeds = reverse_of(g), {ETYPE: dist.edge_split(np.arange(500) % 2 == 0)}
    for way, how in WAYS.items():

        def excluded(batch: Eids, way: str = way) -> Eids:
            return {ETYPE: excluded_by(way, batch[ETYPE], reverse)}

        without = check_exclusion(g, seeds, NeighborSampler([4, 6, -1], replace=replace), excluded, **how(g, reverse))
        assert without > 0 or way not in FIXED


@rotated(3)
@pytest.mark.parametrize("way", ["one way", "both ways", "reverse_id"])
def test_excluded_edges_of_all_relations_are_never_sampled(job: SharedJob, typed_oracle: str, way: str) -> None:
    """The seeds, and what is the reverse of one: in the other relation, in both, or an edge of its own relation."""
    g = job.open(typed_oracle)
    seeds = {r: dist.edge_split(np.ones(g.num_edges(r), bool), etype=r, force_even=False) for r in (*SEEDS, REVERSE)}
    tables = reverse_edges(g, {FORWARD: REVERSE, REVERSE: FORWARD})
    others = {FORWARD: REVERSE, REVERSE: FORWARD} if way == "both ways" else {FORWARD: REVERSE}
    reverse = {r: tables[r][:] for r in others}
    how = {"exclude": "reverse_types", "reverse_eids": reverse, "reverse_etypes": {r[1]: others[r] for r in others}}
    if way == "reverse_id":
        others, reverse = {r: r for r in seeds}, {r: torch.arange(g.num_edges(r)).flip(0) for r in seeds}
        how = {"exclude": "reverse_id", "reverse_eids": reverse}

    def excluded(batch: Eids) -> Eids:
        gone = dict(batch)
        for relation, other in others.items():
            gone[other] = torch.cat([gone[other], reverse[relation][batch[relation]]])
        return gone

    check_exclusion(g, seeds, NeighborSampler([2, -1]), excluded, features="feat", labels="edge", **how)


# Samplers of the user's own, and other ways to give what is needed


def test_samplers_of_the_users_own(g: dist.DistGraph) -> None:

    class Twice:
        def sample(self, g, seed_edges):
            return as_edge_prediction_sampler(OneHop()).sample(g, torch.cat([seed_edges, seed_edges]))

    mine = dist.edge_split(ALL)[:30]
    for sampler, times in ((OneHop(), 1), (Twice(), 2)):
        for sample in dist.DistEdgeDataLoader(g, mine, sampler, batch_size=9):
            check_minibatch(g, sample)
            assert sample[1].num_edges() in (9 * times, len(mine) % 9 * times)


def test_a_sampler_of_edges_and_its_options(g: dist.DistGraph) -> None:
    options = {"exclude": "self", "negative_sampler": Uniform(2)}
    sampler = as_edge_prediction_sampler(NeighborSampler([3, 3]), prefetch_labels="edge", **options)
    eids = torch.arange(100)
    made = dist.DistEdgeDataLoader(g, {"_E": eids}, sampler, batch_size=30, seed=1)
    given = dist.DistEdgeDataLoader(g, eids, NeighborSampler([3, 3]), batch_size=30, seed=1, **options)
    digests = []
    for loader in (made, given):
        samples = list(loader)
        digests.append([digest(sample) for sample in samples])
        assert ("edge" in samples[0][1].edata) == (loader is made)
    assert digests[0] == digests[1] and len(digests[0]) == 4


# What can be wrong


def of_first(change: Callable[[torch.Tensor, torch.Tensor], Any]) -> Callable[[Any, torch.Tensor], Any]:
    """Negatives of which those of the first trainer are changed."""

    def draw(g: dist.DistGraph, eids: torch.Tensor) -> Any:
        src, dst = g.find_edges(eids)
        return change(src, dst) if g.rank() == 0 else (src, dst)

    return draw


def no_negatives(src: torch.Tensor, dst: torch.Tensor) -> None:
    raise LookupError("no negatives today")


class Faulty(dist.DistTensor):
    """Reverse edges that only the first trainer finds to be wrong."""

    dtype = torch.int64

    def __init__(self, value: int) -> None:
        self.value = value

    def __len__(self) -> int:
        return NUM_EDGES

    def __getitem__(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.full_like(ids, self.value) if current().rank == 0 else ids


WRONG = {
    "too large": (
        {"negative_sampler": of_first(lambda src, dst: (src, dst + 101))},
        "destination of a negative of .* is out of range .valid: 0 to 100.",
    ),
    "negative": (
        {"negative_sampler": of_first(lambda src, dst: (src - 101, dst))},
        "source of a negative of .* is out of range",
    ),
    "lengths": (
        {"negative_sampler": of_first(lambda src, dst: (src, dst[:-1]))},
        "as many sources as destinations .* .got 4 and 3.",
    ),
    "one array": ({"negative_sampler": of_first(lambda src, dst: src)}, r"must return a pair .src, dst. .*got Tensor"),
    "three arrays": ({"negative_sampler": of_first(lambda src, dst: (src, dst, dst))}, "must return a pair"),
    "floats": ({"negative_sampler": of_first(lambda src, dst: (src, dst / 2))}, "must be integers"),
    "matrices": ({"negative_sampler": of_first(lambda src, dst: (src[None], dst[None]))}, "in one dimension"),
    "masks": (
        {"negative_sampler": of_first(lambda src, dst: (src.to(torch.uint8), dst))},
        "source of a negative of .* of uint8 look like a mask",
    ),
    "mask to exclude": (
        {"exclude": lambda eids: eids if current().rank else np.ones(NUM_EDGES, np.uint8)},
        "edges to exclude of uint8 look like a mask",
    ),
    "unknown type": ({"negative_sampler": of_first(lambda src, dst: {"x": (src, dst)})}, "'x' does not exist"),
    "exception": ({"negative_sampler": of_first(no_negatives)}, "no negatives today"),
    "excluded": ({"exclude": lambda eids: eids + NUM_EDGES * (current().rank == 0)}, "edge id of relation .* 591"),
    "reverse": ({"exclude": "reverse_id", "reverse_eids": Faulty(NUM_EDGES)}, "edge id of relation .* 591"),
    "seed": ({"eids": [3, NUM_EDGES]}, "edge id of relation"),
    "negative seed": ({"eids": [-1], "negative_sampler": GlobalUniform(2)}, "edge id of relation"),
}


@pytest.mark.parametrize("depth", [0, 2])
def test_what_is_wrong_on_one_trainer_is_raised_there(g: dist.DistGraph, depth: int) -> None:

    def check(g: dist.DistGraph, options: dict, match: str) -> None:
        mine, more = torch.arange(12) + 100 * g.rank(), {"batch_size": 4, "num_prefetch": depth} | options
        wrong = more.pop("eids", mine)
        loader = dist.DistEdgeDataLoader(g, mine if g.rank() else wrong, NeighborSampler([2, 2]), **more)
        if g.rank() == 0:
            with pytest.raises((MPIGraphError, LookupError), match=match):
                list(loader)
        else:
            assert len(list(loader)) == 3

    for options, match in WRONG.values():
        check(g, options, match)
    good = dist.DistEdgeDataLoader(g, [1, 2], NeighborSampler([2]), negative_sampler=GlobalUniform(2))
    assert len(list(good)) == 2  # and the job goes on
    short = dist.DistEdgeDataLoader(g, [1], NeighborSampler([2]), exclude="reverse_id", reverse_eids=torch.arange(9))
    with pytest.raises(InvalidArgumentError, match=r"one entry for each of 591 edges of .*got 9"):
        list(short)
