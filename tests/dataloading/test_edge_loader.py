"""Loaders of edges: pair graphs and blocks agree, every edge comes once, and excluded edges are never sampled."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import OneHop, digest
from layouts import SharedJob, everywhere, on_all, rotated
from memory_graphs import InMemory
from oracle import NAME, open_graph

import mpigraph.distributed as dist
from mpigraph.dataloading import BlockSampler, NeighborSampler, as_edge_prediction_sampler
from mpigraph.dataloading.negative_sampler import GlobalUniform, InBatch, JointUniform, LocalUniform, Uniform
from mpigraph.errors import EdgeTypeError, FieldNameError, GraphDataError, InvalidArgumentError, MPIGraphError
from mpigraph.graphs.fields import EID, NID
from mpigraph.graphs.hetero import HeteroGraph, heterograph
from mpigraph.metadata.schema import DEFAULT_NTYPE, Schema
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.session.context import current

NUM_EDGES = 591
ALL = np.ones(NUM_EDGES, bool)
NEGATIVES = {
    "none": None,
    "uniform": Uniform(3),
    "global": GlobalUniform(3),
    "joint": JointUniform(4),
    "local": LocalUniform(2),
    "in-batch": InBatch(2),
    "own": lambda g, eids: (torch.zeros_like(eids), g.find_edges(eids)[0]),
}


def first_appearance(*ids: torch.Tensor) -> list[int]:
    return list(dict.fromkeys(torch.cat(ids).tolist()))


def check_minibatch(g: dist.DistGraph, sample: tuple) -> tuple[torch.Tensor, torch.Tensor]:
    """Everything that must agree in a minibatch; return the ends of its negatives."""
    input_nodes, positive, *negative, blocks = sample
    src, dst = g.find_edges(positive.edata[EID])
    nodes = positive.ndata[NID]
    ends = [src, dst]
    assert torch.equal(nodes[positive.edges()[0]], src) and torch.equal(nodes[positive.edges()[1]], dst)
    for graph in negative:
        assert torch.equal(graph.ndata[NID], nodes) and graph.num_nodes() == positive.num_nodes()
        ends += [nodes[some] for some in graph.edges()]
    assert nodes.tolist() == first_appearance(*ends)
    assert torch.equal(blocks[-1].dstdata[NID], nodes) and torch.equal(blocks[0].srcdata[NID], input_nodes)
    for block in blocks:
        found = g.find_edges(block.edata[EID])
        assert torch.equal(block.srcdata[NID][block.edges()[0]], found[0])
        assert torch.equal(block.dstdata[NID][block.edges()[1]], found[1])
    return tuple(ends[-2:]) if negative else (src[:0], dst[:0])


def test_pair_graphs_and_blocks_agree(job: SharedJob, oracle) -> None:

    def check(g: dist.DistGraph, name: str) -> None:
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
            src, dst = check_minibatch(g, sample)
            assert len(src) == len(dst)
            assert torch.equal(blocks[0].srcdata["feat"], g.ndata["feat"][inputs])
            assert torch.equal(blocks[0].srcdata["orig"], g.ndata["orig"][inputs])
            orig = g.ndata["orig"][positive.ndata[NID]]
            named = 1000 * orig[positive.edges()[1]] + orig[positive.edges()[0]]
            assert torch.equal(positive.edata["edge"], named)

    g = job.open(oracle(3))
    for name in NEGATIVES:
        check(g, name)


def reversed_ids() -> torch.Tensor:
    """Some reverse edge for each edge: what it is does not matter to a sampler."""
    return torch.arange(NUM_EDGES).flip(0)


def epochs_of(g: dist.DistGraph, eids: Any, depth: int, **options: Any) -> list[str]:
    loader = dist.DistEdgeDataLoader(
        g, eids, NeighborSampler([3, 3]), batch_size=50, num_prefetch=depth, seed=5, **options
    )
    return [digest(sample) for _ in range(2) for sample in loader]


SAME = ("none", "uniform", "global", "joint", "in-batch", "own")


@everywhere
@rotated(2)
def test_minibatches_are_the_same_on_every_layout_and_with_prefetching(job: SharedJob, oracle) -> None:
    """Every sampler in every layout, with prefetching or without; alone with both."""
    path = oracle(3)

    def body(*depths: int) -> dict[str, list[str]]:
        g, epochs = open_graph(path), {}
        for number, name in enumerate(SAME):
            options = {"negative_sampler": NEGATIVES[name], "exclude": "reverse_id", "reverse_eids": reversed_ids()}
            found = [epochs_of(g, torch.arange(150), depth, **options) for depth in depths or (2 * (number % 2),)]
            assert found.count(found[0]) == len(found), name
            epochs[name] = found[0]
            assert len(set(epochs[name])) == len(epochs[name]) == 6, name
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
    return str(partition_source(source, NAME, 3, directory, "random").config_path)


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


def check_exclusion(g: dist.DistGraph, way: str, replace: bool, reverse: torch.Tensor, heads: torch.Tensor) -> int:
    """One epoch; return how many nodes had no edge left, over all minibatches."""
    sampler, without = NeighborSampler([4, 6, -1], replace=replace), 0
    mine = dist.edge_split(np.ones(500, bool))
    loader = dist.DistEdgeDataLoader(
        g, mine, sampler, batch_size=50, shuffle=True, negative_sampler=Uniform(1), **WAYS[way](g, reverse)
    )
    for sample in loader:
        check_minibatch(g, sample)
        alive = torch.ones(500, dtype=torch.bool)
        alive[excluded_by(way, sample[1].edata[EID], reverse)] = False
        left = torch.bincount(heads[alive], minlength=40)
        for fanout, block in zip(sampler.fanouts, sample[-1], strict=True):
            assert alive[block.edata[EID]].all(), way
            of_node = left[block.dstdata[NID]]
            drawn = of_node if fanout < 0 else of_node.clamp(max=fanout)
            if replace and fanout >= 0:
                drawn = torch.where(of_node > 0, fanout, 0)
            assert torch.equal(block.in_degrees(), drawn), way
        without += int((left == 0).sum())
    return without


@rotated(2)
@pytest.mark.parametrize("replace", [False, True])
def test_excluded_edges_are_never_sampled_and_fanouts_are_honoured(
    job: SharedJob, multigraph: str, replace: bool
) -> None:
    g = job.open(multigraph)
    reverse, heads = reverse_of(g), g.find_edges(torch.arange(500))[1]
    for way in WAYS:
        without = check_exclusion(g, way, replace, reverse, heads)
        assert without > 0 or way not in FIXED


# Samplers of the user's own, and other ways to give what is needed


def test_samplers_of_the_users_own(job: SharedJob, oracle) -> None:

    class Twice:
        """A sampler of edges of the user's own."""

        def sample(self, g, seed_edges):
            return as_edge_prediction_sampler(OneHop()).sample(g, torch.cat([seed_edges, seed_edges]))

    g = job.open(oracle(3))
    mine = dist.edge_split(ALL)[:30]
    for sampler, times in ((OneHop(), 1), (Twice(), 2)):
        for sample in dist.DistEdgeDataLoader(g, mine, sampler, batch_size=9):
            check_minibatch(g, sample)
            assert sample[1].num_edges() in (9 * times, len(mine) % 9 * times)


def test_a_sampler_of_edges_and_its_options(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    options = {"exclude": "self", "negative_sampler": Uniform(2)}
    sampler = as_edge_prediction_sampler(NeighborSampler([3, 3]), prefetch_labels="edge", **options)
    eids = torch.arange(100)
    made = dist.DistEdgeDataLoader(g, {"_E": eids}, sampler, batch_size=30, seed=1)
    given = dist.DistEdgeDataLoader(g, eids, NeighborSampler([3, 3]), batch_size=30, seed=1, **options)
    collator = dist.EdgeCollator(g, eids, NeighborSampler([3, 3]), **options)
    collated = dist.DistDataLoader(collator.dataset, 30, collate_fn=collator.collate, seed=1)
    digests = []
    for loader in (made, given, collated):
        samples = list(loader)
        digests.append([digest(sample) for sample in samples])
        assert ("edge" in samples[0][1].edata) == (loader is made)
    assert digests[0] == digests[1] == digests[2] and len(digests[0]) == 4
    nodes = dist.NodeCollator(g, torch.arange(20), NeighborSampler([2]))
    for _, seeds, blocks in dist.DistDataLoader(nodes.dataset, 6, collate_fn=nodes.collate):
        assert torch.equal(blocks[-1].dstdata[NID], seeds)


def test_weights_features_and_devices(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    mine = dist.edge_split(g.edata["even"])
    assert (g.edata["even"][mine]).all()
    for prob in ("weight", "even"):
        sampler = NeighborSampler([3, 2], prob=prob, prefetch_labels=["label"])
        for _, positive, _, blocks in dist.DistEdgeDataLoader(
            g, mine, sampler, batch_size=60, negative_sampler=Uniform(1)
        ):
            assert all((g.edata[prob][block.edata[EID]] > 0).all() for block in blocks)
            assert torch.equal(blocks[-1].dstdata["label"], g.ndata["label"][positive.ndata[NID]])
    loader = dist.DistEdgeDataLoader(
        g, mine[:8], NeighborSampler([2]), "meta", batch_size=4, negative_sampler=Uniform(2), labels=["edge"]
    )
    for inputs, positive, negative, blocks in loader:
        tensors = [inputs, positive.edata["edge"], *negative.edges(), negative.ndata[NID], *blocks[0].edges()]
        assert {tensor.device.type for tensor in tensors} == {"meta"}


# What can be wrong


def test_bad_arguments(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    ids, blocks = torch.arange(8), NeighborSampler([2])

    def refused(match: str, *args: Any, error: type = InvalidArgumentError, **options: Any) -> None:
        with pytest.raises(error, match=match):
            dist.DistEdgeDataLoader(*(args or (g, ids, blocks)), **options)

    refused("edge .* has no reverse edge in", exclude="reverse_id", error=GraphDataError)
    refused("exclude='reverse_types' needs reverse_etypes", exclude="reverse_types")
    with pytest.raises(InvalidArgumentError, match="needs reverse_eids: DistEdgeDataLoader looks them up"):
        as_edge_prediction_sampler(blocks, "reverse_types", reverse_etypes={"_E": "_E"}).sample(g, ids)
    refused("exclude must be None, 'self', 'reverse_id'", exclude="both")
    refused("exclude must be None, 'self', 'reverse_id'", exclude=3)
    refused("reverse_eids must be integers", exclude="reverse_id", reverse_eids=[0.5] * 8)
    refused("reverse_eids must be a tensor", exclude="reverse_id", reverse_eids=g.edata["weight"])
    refused("negative_sampler must be callable", negative_sampler=3)
    refused("graph_sampler must have sample_blocks", g, ids, [2, 2])
    refused("batch_size must be an integer >= 1", batch_size=0)
    refused("DistEdgeDataLoader takes no g_sampling: neighbours are sampled from the graph", g_sampling=g)
    dist.DistEdgeDataLoader(g, ids, blocks, g_sampling=None, use_ddp=True, gb_padding=1).close()
    for bad in (np.ones(NUM_EDGES, np.uint8), torch.ones(NUM_EDGES, dtype=torch.uint8)):
        refused("eids of uint8 look like a mask", g, bad, blocks)
        refused("eids of uint8 look like a mask", g, {"_E": bad}, blocks, output="pyg")
        refused("reverse_eids of uint8 look like a mask", exclude="reverse_id", reverse_eids=bad)
    refused("eids must be integers .got a mask of bool", g, np.ones(NUM_EDGES, bool), blocks)
    refused("edge type .x. does not exist", g, {"_E": ids, "x": ids}, blocks, error=EdgeTypeError)
    refused("'x' does not exist", g, {"x": ids}, blocks, error=EdgeTypeError)
    refused("no feature 'nothing'", labels=["nothing"], error=FieldNameError)
    refused("no feature 'nothing'", features=["nothing"], error=FieldNameError)
    refused("to as_edge_prediction_sampler", g, ids, as_edge_prediction_sampler(blocks), exclude="self")
    with pytest.raises(InvalidArgumentError, match="sampler must have sample_blocks"):
        as_edge_prediction_sampler([2, 2])
    with pytest.raises(InvalidArgumentError, match="EdgeCollator takes no g_sampling: neighbours are"):
        dist.EdgeCollator(g, ids, blocks, g)
    g.barrier()


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
}


@pytest.mark.parametrize("depth", [0, 2])
def test_what_is_wrong_on_one_trainer_is_raised_there(job: SharedJob, oracle, depth: int) -> None:

    def check(g: dist.DistGraph, options: dict, match: str) -> None:
        mine = torch.arange(12) + 100 * g.rank()
        loader = dist.DistEdgeDataLoader(g, mine, NeighborSampler([2, 2]), batch_size=4, num_prefetch=depth, **options)
        if g.rank() == 0:
            with pytest.raises((MPIGraphError, LookupError), match=match):
                list(loader)
        else:
            assert len(list(loader)) == 3

    g = job.open(oracle(3))
    for options, match in WRONG.values():
        check(g, options, match)
    good = dist.DistEdgeDataLoader(g, [1, 2], NeighborSampler([2]), negative_sampler=GlobalUniform(2))
    assert len(list(good)) == 2  # and the job goes on


def test_bad_seed_edges_of_one_trainer(job: SharedJob, oracle) -> None:

    def check(g: dist.DistGraph, eids: list[int], negatives: Any) -> None:
        loader = dist.DistEdgeDataLoader(g, eids, NeighborSampler([2]), batch_size=2, negative_sampler=negatives)
        if g.rank() == 0:
            with pytest.raises(IndexError, match="edge id of relation"):
                list(loader)
        else:
            assert len(list(loader)) == 1

    g = job.open(oracle(3))
    for bad in (NUM_EDGES, -1):
        for negatives in (None, GlobalUniform(2)):
            check(g, [3, bad if g.rank() == 0 else 4], negatives)
    options = {"exclude": "reverse_id", "reverse_eids": torch.arange(9)}
    short = dist.DistEdgeDataLoader(g, [1], NeighborSampler([2]), **options)
    with pytest.raises(InvalidArgumentError, match=r"one entry for each of 591 edges of .*got 9"):
        list(short)


# Several relations


class Recording(BlockSampler):
    """Draws nothing; keeps what it was asked."""

    def sample_blocks(self, g, seed_nodes, exclude_eids=None):
        self.seeds, self.excluded = seed_nodes, exclude_eids
        return seed_nodes, seed_nodes, []


LIKES, LIKED = ("user", "likes", "item"), ("item", "liked", "user")


def typed() -> InMemory:
    edges = {LIKES: ([0, 1, 2, 3], [1, 0, 4, 2]), LIKED: ([0, 4, 1, 2], [1, 2, 0, 3])}
    return InMemory(heterograph(edges, {"user": 4, "item": 5}))


def ends_of(graph: HeteroGraph, relation: tuple[str, str, str]) -> list[tuple[int, int]]:
    src, dst = graph.edges(etype=relation)
    src, dst = graph.nodes[relation[0]].data[NID][src], graph.nodes[relation[2]].data[NID][dst]
    return list(zip(src.tolist(), dst.tolist(), strict=True))


def test_pair_graphs_of_several_relations() -> None:
    g, blocks = typed(), Recording()
    sampler = as_edge_prediction_sampler(blocks, negative_sampler=Uniform(2))
    _, positive, negative, _ = sampler.sample(g, {"likes": torch.tensor([2, 0]), LIKED: torch.tensor([3])})
    assert positive.canonical_etypes == negative.canonical_etypes == list(g.schema.relations)
    assert ends_of(positive, LIKES) == [(2, 4), (0, 1)] and ends_of(positive, LIKED) == [(2, 3)]
    assert [src for src, _ in ends_of(negative, LIKES)] == [2, 2, 0, 0]
    assert [src for src, _ in ends_of(negative, LIKED)] == [2, 2]
    assert positive.edges[LIKES].data[EID].tolist() == [2, 0] and positive.edges[LIKED].data[EID].tolist() == [3]
    for ntype in ("user", "item"):
        ids = positive.nodes[ntype].data[NID]
        assert len(torch.unique(ids)) == len(ids)
        assert torch.equal(ids, negative.nodes[ntype].data[NID]) and torch.equal(ids, blocks.seeds[ntype])
    assert blocks.excluded is None
    for bad in ((torch.zeros(2), torch.zeros(2)), {"likes": (torch.tensor([9]), torch.tensor([0]))}):
        with pytest.raises(MPIGraphError, match="ambiguous|source of a negative of .* 9 "):
            as_edge_prediction_sampler(blocks, negative_sampler=lambda g, eids, bad=bad: bad).sample(g, {LIKES: [1]})


@pytest.mark.parametrize(
    ("seeds", "excluded"),
    [
        ({LIKES: [0, 2]}, {LIKES: [0, 2], LIKED: [1, 2]}),
        ({LIKES: [0, 2], LIKED: [0, 3]}, {LIKES: [0, 1, 2, 3], LIKED: [0, 1, 2, 3]}),  # neither overwrites the other
    ],
)
def test_reverse_types(seeds: dict, excluded: dict) -> None:
    g, blocks = typed(), Recording()
    reverse = {LIKES: [2, 0, 1, 3], "liked": torch.tensor([1, 2, 0, 3])}
    for etypes in ({"likes": "liked", "liked": "likes"}, {LIKES: LIKED, LIKED: LIKES}):
        as_edge_prediction_sampler(blocks, "reverse_types", reverse, etypes).sample(g, seeds)
        assert {relation: sorted(ids.tolist()) for relation, ids in blocks.excluded.items()} == excluded
    as_edge_prediction_sampler(blocks, "reverse_types", reverse, {"likes": "liked"}).sample(g, {LIKED: [3]})
    assert {relation: ids.tolist() for relation, ids in blocks.excluded.items()} == {LIKED: [3]}
    for tables, etypes in (
        ({**reverse, LIKED: [0, 0, 0, 0]}, {LIKES: LIKED}),
        (reverse, {LIKES: LIKED, "likes": LIKED}),
    ):
        with pytest.raises(InvalidArgumentError, match="reverse_.*: relation .* is given twice"):
            as_edge_prediction_sampler(blocks, "reverse_types", tables, etypes).sample(g, seeds)


def test_reverse_ids_of_several_relations() -> None:
    g, blocks = typed(), Recording()
    reverse = {"likes": torch.tensor([3, 2, 1, 0]), LIKED: [0, 0, 0, 0]}
    as_edge_prediction_sampler(blocks, "reverse_id", reverse).sample(g, {LIKES: [0, 1], LIKED: [2]})
    assert {r: ids.tolist() for r, ids in blocks.excluded.items()} == {LIKES: [0, 1, 3, 2], LIKED: [2, 0]}
    with pytest.raises(InvalidArgumentError, match="reverse_eids has no edges of .*'liked'"):
        as_edge_prediction_sampler(blocks, "reverse_id", {"likes": [3, 2, 1, 0]}).sample(g, {LIKED: [2]})
