"""Minibatches for PyG: those of its own NeighborLoader, attribute by attribute, and the same in every layout.

PyG draws neighbours with pyg-lib. Where that is not installed its NeighborLoader gets a sampler of this file, which
does the same in plain Python where all neighbours are taken; everything else is PyG's own.
"""

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from layouts import ALONE, Layout, SharedJob, on_all, on_layouts, rotated
from oracle import partitioned
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader
from torch_geometric.sampler import BaseSampler, EdgeSamplerInput, HeteroSamplerOutput, NodeSamplerInput, SamplerOutput
from torch_geometric.sampler.neighbor_sampler import edge_sample, node_sample
from torch_geometric.typing import WITH_PYG_LIB

import mpigraph.distributed as dist
from mpigraph.convert import from_pyg
from mpigraph.dataloading import BlockSampler, NeighborSampler
from mpigraph.dataloading.negative_sampler import Uniform
from mpigraph.errors import InvalidArgumentError, OutOfRangeError
from mpigraph.graphs.fields import NID
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Schema, relation_key
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.session.context import current

CLASSES = 3
WRITES = ("author", "writes", "paper")
KINDS: dict[str, tuple[dict[str, int], tuple]] = {
    "plain": ({DEFAULT_NTYPE: 67}, (DEFAULT_ETYPE,)),
    "typed": (
        {"author": 41, "paper": 67, "tag": 3},
        (
            WRITES,
            ("paper", "cites", "paper"),
            ("paper", "draws on", "paper"),
            ("paper", "never", "tag"),
            ("paper", "written by", "author"),
            ("tag", "is-on", "paper"),
        ),
    ),
}
ALL_KINDS = pytest.mark.parametrize("kind", KINDS)


def in_edges(num_src: int, num_dst: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges by destination, then source, none twice. What node v hears of are nodes of class ``v // 3 % 3``."""
    sources = [np.empty(0, np.int64)]
    for v in range(num_dst):
        some = (7 * v + 5 * np.arange((v + number) % 6)) % (num_src // CLASSES)
        sources.append(np.unique(CLASSES * some + v // 3 % CLASSES))
    return np.concatenate(sources), np.repeat(np.arange(num_dst), [len(some) for some in sources[1:]])


def weights_of(src: np.ndarray, dst: np.ndarray) -> dict[str, Feature]:
    weight = ((src + dst) % 3).astype(np.float32)
    return {"weight": Feature.of(weight), "double": Feature.of(2 * weight)}


@cache
def source_of(kind: str) -> GraphSource:
    """A graph whose nodes have classes and hear of the class that they are to tell; tags have no features."""
    counts, relations = KINDS[kind]
    ends = {r: in_edges(counts[r[0]], 0 if r[1] == "never" else counts[r[2]], i) for i, r in enumerate(relations)}
    nodes = {ntype: np.arange(count) for ntype, count in counts.items() if ntype != "tag"}
    x = {ntype: np.eye(CLASSES, dtype=np.float32)[ids % CLASSES] for ntype, ids in nodes.items()}
    return GraphSource(
        Schema(tuple(counts), relations),
        tuple(counts.values()),
        tuple(ends.values()),
        {t: {"x": Feature.of(x[t]), "y": Feature.of(ids // 3 % CLASSES)} for t, ids in nodes.items()},
        {relation_key(r): weights_of(*some) for r, some in ends.items()},
    )


def partition(directory: Path, kind: str, num_parts: int) -> str:
    """Partition a graph without changing its ids; return the path of its configuration."""
    return partitioned(source_of(kind), kind, num_parts, directory)


@pytest.fixture
def write(job: SharedJob) -> Callable[..., str]:
    """Partitions a graph, which happens once; returns the path of its configuration on every trainer."""
    return lambda kind, num_parts=3: job.write(partition, kind, num_parts)


def seeds_of(kind: str, ids: Any) -> Any:
    return torch.as_tensor(ids) if kind == "plain" else {"paper": torch.as_tensor(ids)}


def store_of(batch: Data | HeteroData) -> Any:
    return batch["paper"] if isinstance(batch, HeteroData) else batch


def whole(kind: str, with_weights: bool = True) -> Data | HeteroData:
    source = source_of(kind)
    data = Data() if kind == "plain" else HeteroData()
    for ntype, count in zip(source.schema.ntypes, source.num_nodes, strict=True):
        store = data if kind == "plain" else data[ntype]
        store["num_nodes"] = count
        for name, feature in source.node_feats.get(ntype, {}).items():
            store[name] = torch.from_numpy(feature.values)
    for relation, ends in zip(source.schema.relations, source.edges, strict=True):
        store = data if kind == "plain" else data[relation]
        store["edge_index"] = torch.from_numpy(np.stack(ends))
        for name, feature in source.edge_feats[relation_key(relation)].items() if with_weights else ():
            store[name] = torch.from_numpy(feature.values)
    return data


class AllNeighbors(BaseSampler):
    """pyg-lib's ``neighbor_sample`` and ``hetero_neighbor_sample`` with all neighbours, in plain Python."""

    edge_permutation = None

    def __init__(self, source: GraphSource, hops: int) -> None:
        self.edges = dict(zip(source.schema.relations, source.edges, strict=True))
        self.counts, self.hops = dict(zip(source.schema.ntypes, source.num_nodes, strict=True)), hops

    def sample_from_nodes(self, inputs: NodeSamplerInput, **_: Any) -> SamplerOutput | HeteroSamplerOutput:
        return node_sample(inputs, self.sample)

    def sample_from_edges(self, inputs: EdgeSamplerInput, **_: Any) -> SamplerOutput | HeteroSamplerOutput:
        counts = self.counts if inputs.input_type else self.counts[DEFAULT_NTYPE]
        return edge_sample(inputs, self.sample, counts, disjoint=False)

    def sample(self, seed: Any, seed_time: None = None) -> SamplerOutput | HeteroSamplerOutput:
        seeds = seed if isinstance(seed, dict) else {DEFAULT_NTYPE: seed}
        ids = {ntype: seeds[ntype].tolist() if ntype in seeds else [] for ntype in self.counts}
        drawn: dict[tuple, list[tuple[int, int, int]]] = {relation: [] for relation in self.edges}
        begin, end = dict.fromkeys(ids, 0), {ntype: len(some) for ntype, some in ids.items()}
        num_nodes = {ntype: [count] for ntype, count in end.items()}
        num_edges: dict[tuple, list[int]] = {relation: [] for relation in self.edges}
        for _ in range(self.hops):
            for relation, (src, dst) in self.edges.items():
                before, sources = len(drawn[relation]), ids[relation[0]]
                for local in range(begin[relation[2]], end[relation[2]]):
                    for edge in np.flatnonzero(dst == ids[relation[2]][local]).tolist():
                        if src[edge] not in sources:
                            sources.append(int(src[edge]))
                        drawn[relation].append((sources.index(src[edge]), local, edge))
                num_edges[relation].append(len(drawn[relation]) - before)
            begin, end = end, {ntype: len(some) for ntype, some in ids.items()}
            for ntype in ids:
                num_nodes[ntype].append(end[ntype] - begin[ntype])
        node = {ntype: torch.tensor(some, dtype=torch.int64) for ntype, some in ids.items()}
        ends = {r: torch.tensor(some, dtype=torch.int64).reshape(-1, 3).T for r, some in drawn.items()}
        row, col, edge = ({r: some[i] for r, some in ends.items()} for i in range(3))
        found = {"node": node, "row": row, "col": col, "edge": edge}
        found |= {"num_sampled_nodes": num_nodes, "num_sampled_edges": num_edges}
        if isinstance(seed, dict):
            return HeteroSamplerOutput(**found, batch=None)
        return SamplerOutput(**{name: next(iter(some.values())) for name, some in found.items()}, batch=None)


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, HeteroData):
        same_types = ours.node_types == theirs.node_types and ours.edge_types == theirs.edge_types
        return same_types and all(same(ours[key], theirs[key]) for key in (*ours.node_types, *ours.edge_types))
    if set(ours.keys()) != set(theirs.keys()):
        return False
    return all(equal(ours[key], theirs[key]) for key in ours.keys())


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and one == other


@rotated(2)
@ALL_KINDS
def test_minibatches_are_those_of_neighbor_loader(job: SharedJob, write, kind: str) -> None:
    path = write(kind)

    def body() -> tuple[int, int]:
        g = job.open(path)
        nids = np.random.default_rng(1).permutation(67)[g.rank() :: current().num_trainers]
        sampler = NeighborSampler([-1, -1], prefetch_edge_feats=["weight", "double"])
        options = {"batch_size": 5, "features": "x", "labels": "y", "output": "pyg"}
        loader = dist.DistNodeDataLoader(g, seeds_of(kind, nids), sampler, shuffle=True, **options)
        reference = NeighborLoader(
            whole(kind),
            [-1, -1],
            input_nodes=torch.from_numpy(nids) if kind == "plain" else ("paper", torch.from_numpy(nids)),
            neighbor_sampler=None if WITH_PYG_LIB else AllNeighbors(source_of(kind), 2),
            filter_per_worker=True,
        )
        good = [same(batch, reference.collate_fn(store_of(batch).input_id)) for batch in loader]
        return sum(good), len(good)

    found = body()
    on_all(job.trainers, found[0] == found[1] > 1, f"{found}")


def edges_of(kind: str, eids: Any) -> Any:
    return torch.as_tensor(eids) if kind == "plain" else {WRITES: torch.as_tensor(eids)}


def by_name(batch: Data | HeteroData, source: GraphSource) -> list[Any]:
    """What a minibatch says, whatever the order of its nodes and edges."""
    found: list[Any] = []
    plain = isinstance(batch, Data)
    for ntype in source.schema.ntypes:
        store = batch if plain else batch[ntype]
        order = store.n_id.argsort()
        found += [store.num_nodes, store.num_sampled_nodes, store.n_id[order]]
        found += [store.x[order], store.y[order]] if "x" in store else []
    for relation in source.schema.relations:
        store = batch if plain else batch[relation]
        src, dst = (batch if plain else batch[relation[end]] for end in (0, 2))
        order = store.e_id.argsort()
        row, col = store.edge_index[:, order]
        found += [store.num_sampled_edges, store.e_id[order], src.n_id[row], dst.n_id[col], sorted(store.keys())]
        if "edge_label_index" in store:
            found += [src.n_id[store.edge_label_index[0]], dst.n_id[store.edge_label_index[1]], store.input_id]
    return found


@rotated(2)
@ALL_KINDS
def test_minibatches_of_edges_are_those_of_link_neighbor_loader(job: SharedJob, write, kind: str) -> None:
    path, source = write(kind), source_of(kind)
    src, dst = source.edges[0]

    def body() -> tuple[int, int]:
        g = job.open(path)
        eids = np.random.default_rng(2).permutation(len(src))[g.rank() :: current().num_trainers]
        options = {"batch_size": 40, "features": "x", "output": "pyg"}
        sampler = NeighborSampler([-1, -1], prefetch_node_feats="y")
        loader = dist.DistEdgeDataLoader(g, edges_of(kind, eids), sampler, **options)
        ends = torch.from_numpy(np.stack([src[eids], dst[eids]]))
        reference = LinkNeighborLoader(
            whole(kind, with_weights=False),
            [-1, -1],
            edge_label_index=ends if kind == "plain" else (WRITES, ends),
            neighbor_sampler=None if WITH_PYG_LIB else AllNeighbors(source, 2),
            filter_per_worker=True,
        )
        good = []
        for batch in loader:
            at = (batch if kind == "plain" else batch[WRITES]).input_id
            pairs = zip(by_name(batch, source), by_name(reference.collate_fn(at), source), strict=True)
            good.append(all(equal(*pair) for pair in pairs))
        return sum(good), len(good)

    found = body()
    on_all(job.trainers, found[0] == found[1] >= 1, f"{found}")


def test_negatives_labels_and_exclusion(job: SharedJob, write) -> None:
    path, source = write("typed"), source_of("typed")
    (src, dst), counts = source.edges[0], KINDS["typed"][0]
    g = job.open(path)
    eids, sampler = {WRITES: np.arange(len(src))[::-2].copy()}, NeighborSampler([2, 3])
    options = {"batch_size": 16, "shuffle": True, "output": "pyg"}
    drawn = dist.DistEdgeDataLoader(
        g, eids, sampler, negative_sampler=Uniform(2), exclude="self", device="cpu", **options
    )
    for batch in drawn:
        store = batch[WRITES]
        count, ids = len(store.input_id), eids[WRITES][store.input_id.numpy()]
        row, col = store.edge_label_index
        authors, papers = batch["author"].n_id[row], batch["paper"].n_id[col]
        assert torch.equal(authors[:count], torch.from_numpy(src[ids]))
        assert torch.equal(papers[:count], torch.from_numpy(dst[ids]))
        assert torch.equal(authors[count:], authors[:count].repeat_interleave(2))
        assert torch.equal(store.edge_label, torch.cat([torch.ones(count), torch.zeros(2 * count)]))
        assert not set(store.e_id.tolist()) & set(ids.tolist())
        assert row.max() < batch["author"].num_sampled_nodes[0]
        assert batch["paper"].num_sampled_nodes[0] == len(set(papers.tolist()))
        for relation, ends in zip(source.schema.relations, source.edges, strict=True):
            heads = np.delete(ends[1], ids) if relation == WRITES else ends[1]
            found = batch[relation[2]]
            left = np.bincount(heads, minlength=counts[relation[2]])[found.n_id]
            limits = np.repeat([3, 2, 0], found.num_sampled_nodes)  # of the hop after the one that found the node
            drawn_by = torch.bincount(batch[relation].edge_index[1], minlength=len(found.n_id)).numpy()
            assert np.array_equal(drawn_by, np.minimum(left, limits))
    for batch in dist.DistEdgeDataLoader(g, eids, sampler, labels="weight", **options):
        ids = eids[WRITES][batch[WRITES].input_id.numpy()]
        assert torch.equal(batch[WRITES].edge_label, g.edges[WRITES].data["weight"][ids])
    with pytest.raises(InvalidArgumentError, match="labels and negatives"):
        dist.DistEdgeDataLoader(g, eids, sampler, labels="weight", negative_sampler=Uniform(2), output="pyg")
    with pytest.raises(InvalidArgumentError, match="one edge_label for each relation"):
        dist.DistEdgeDataLoader(g, eids, sampler, labels=["weight", "double"], output="pyg")
    g.barrier()


def test_seeds_of_several_types(job: SharedJob, write) -> None:
    g = job.open(write("typed"))
    nids = {"author": np.arange(7) + 1, "paper": np.arange(20)[::-1].copy()}
    loader = dist.DistNodeDataLoader(
        g, nids, NeighborSampler([1, 2]), batch_size=6, shuffle=True, output="pyg", device="cpu"
    )
    seen: dict[str, list[int]] = {"author": [], "paper": []}
    for batch in loader:
        for ntype, ids in nids.items():
            store = batch[ntype]
            assert np.array_equal(ids[store.input_id.numpy()], store.n_id[: store.batch_size])
            assert store.num_sampled_nodes[0] == store.batch_size == len(store.input_id)
            seen[ntype] += store.input_id.tolist()
        assert "batch_size" not in batch["tag"] and "x" not in batch["paper"]
        assert torch.equal(from_pyg(batch).nodes["paper"].data[NID], batch["paper"].n_id)
    assert {ntype: sorted(some) for ntype, some in seen.items()} == {"author": [*range(7)], "paper": [*range(20)]}


class OnlyBlocks(BlockSampler):
    def sample_blocks(self, g, seed_nodes, exclude_eids=None):
        raise NotImplementedError


def test_what_cannot_be_given_is_refused(job: SharedJob, write, monkeypatch: pytest.MonkeyPatch) -> None:
    g = job.open(write("typed"))
    nids, sampler = {"paper": [1, 2]}, NeighborSampler([2])

    def refused(match: str, how: Any = sampler) -> None:
        with pytest.raises(InvalidArgumentError, match=match):
            dist.DistNodeDataLoader(g, nids, how, output="pyg")

    refused("needs a sampler with sample_subgraph, like NeighborSampler .got OnlyBlocks", how=OnlyBlocks())
    without = NeighborSampler([2], prefetch_edge_feats=["weight"], return_eids=False)
    with pytest.raises(InvalidArgumentError, match="edge features need edge ids: the sampler has return_eids=False"):
        list(dist.DistNodeDataLoader(g, nids, without, output="pyg"))
    with pytest.raises(OutOfRangeError, match="node id of type 'paper' 999"):
        list(dist.DistNodeDataLoader(g, {"paper": [3, 999]}, sampler, output="pyg"))
    own = SimpleNamespace(sampler=sampler, sample=print)
    with pytest.raises(InvalidArgumentError, match=r"needs a sampler of as_edge_prediction_sampler \(got Simple"):
        dist.DistEdgeDataLoader(g, {WRITES: [1]}, own, output="pyg")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch_geometric.data", None)
        refused("graphs of PyG need torch_geometric: pip install torch_geometric")
    g.barrier()


@on_layouts([ALONE, Layout(2, 0, 1)])
def test_names_that_pyg_has_taken_are_refused_at_once(job: SharedJob, write) -> None:
    """What a minibatch has already, on nodes and on edges, and what nodes and edges of a ``Data`` share."""
    paths = {kind: write(kind) for kind in KINDS}
    taken = ["num_nodes", "n_id", "num_sampled_nodes", "edge_index", "e_id", "num_sampled_edges", "input_id"]
    taken += ["batch_size", "edge_label", "edge_label_index", "adj_t"]

    def refused(g: dist.DistGraph, match: str, nodes: Any, **feats: Any) -> None:
        sampler, edges = NeighborSampler([2], **feats), {r: [0] for r in g.canonical_etypes[:1]}
        for make, seeds in ((dist.DistNodeDataLoader, seeds_of(g.graph_name, [1])), (dist.DistEdgeDataLoader, edges)):
            with pytest.raises(InvalidArgumentError, match=match):
                make(g, seeds, sampler, features=nodes, output="pyg")

    for kind, path in paths.items():
        g = job.open(path)
        ntype, relation = ("paper", WRITES) if kind == "typed" else (DEFAULT_NTYPE, DEFAULT_ETYPE)
        nodes, edges = g.nodes[ntype].data, g.edges[relation].data
        policies = g.get_node_partition_policy(ntype), g.get_edge_partition_policy(relation)
        for name in (*taken, "weight"):
            for data, policy in zip((nodes, edges), policies, strict=True):
                data[name] = dist.DistTensor((policy.get_size(),), torch.float32, part_policy=policy)
        for name in taken:
            refused(g, f"feature '{name}' on nodes: PyG means something else", {ntype: ["x", name]})
            refused(g, f"feature '{name}' on nodes", (), prefetch_node_feats=["x", name])
            refused(g, f"feature '{name}' on edges", "x", prefetch_edge_feats={relation: name})
        both = NeighborSampler([2], prefetch_edge_feats="weight")
        if kind == "plain":
            refused(g, "nodes and edges both have 'weight'", "weight", prefetch_edge_feats="weight")
        else:
            loader = dist.DistNodeDataLoader(g, {ntype: [1, 2]}, both, features={ntype: "weight"}, output="pyg")
            assert all("weight" in batch[ntype] and "weight" in batch[WRITES] for batch in loader)
        g.barrier()
