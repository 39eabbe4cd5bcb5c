"""DistGraph: counts, types, features, degrees and edges, local and remote; splits; one-hop sampling."""

import os
import pickle

import pytest
import torch
from layouts import Job, SharedJob, api
from oracle import MAX_DEGREE, NUM_NODES, open_graph

import mpigraph.distributed as dist
from mpigraph.dataloading import NeighborSampler
from mpigraph.errors import CollectiveError, GraphDataError, InvalidArgumentError, OutOfRangeError, TensorMismatchError
from mpigraph.graphs.fields import EID, NID
from mpigraph.session.context import current


def degrees_of(orig: torch.Tensor) -> torch.Tensor:
    return orig % (MAX_DEGREE + 1)


def check_edges(g: dist.DistGraph, src: torch.Tensor, dst: torch.Tensor, eids: torch.Tensor) -> None:
    orig = g.ndata["orig"]
    assert torch.equal(g.edata["edge"][eids], 1000 * orig[dst] + orig[src])


def test_counts_types_and_features(job: SharedJob, oracle) -> None:
    path = oracle(3)
    g = job.open(path)
    assert g.metadata() == (g.ntypes, g.canonical_etypes) == (["_N"], [("_N", "_E", "_N")])
    assert set(g.ndata) == {"feat", "label", "orig", "third"}
    assert set(g.edata) == {"edge", "weight", "even"}
    assert g.node_attr_schemes()["feat"] == ((3,), torch.float32)
    edge_schemes = {"edge": ((), torch.int64), "weight": ((), torch.float32), "even": ((), torch.bool)}
    assert {name: tuple(scheme) for name, scheme in g.edge_attr_schemes().items()} == edge_schemes
    assert g.is_pinned() is False
    assert g.nodes["_N"].data["label"].dtype == torch.int64
    assert g.edges["_E"].data["even"].dtype == torch.bool
    assert g.rank() == current().rank == int(current().world.trainers.rank)
    first, nodes, edges = repr(g).split("\n  ")
    assert first == f"DistGraph('oracle', num_nodes={NUM_NODES}, num_edges={g.num_edges()})"
    assert nodes.startswith(f"_N: {NUM_NODES} nodes; ") and "feat float32[3]" in nodes and "label int64" in nodes
    assert edges.startswith(f"_N, _E, _N: {g.num_edges()} edges; ") and "even bool" in edges
    with pytest.raises(InvalidArgumentError, match=r"cannot be pickled: .*spawned"):
        pickle.dumps((g, NeighborSampler([2])))
    assert job.open(path).num_edges() == int(degrees_of(torch.arange(NUM_NODES)).sum())


@api
def test_torch_distributed_finds_its_rank(layout: Job, oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    path = oracle(2)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    for name in names:
        monkeypatch.delenv(name, raising=False)

    def body() -> None:
        g = open_graph(path)
        torch.distributed.init_process_group("gloo")
        assert torch.distributed.get_rank() == g.rank() == int(os.environ["RANK"])
        assert torch.distributed.get_world_size() == current().num_trainers
        total = torch.ones(1)
        torch.distributed.all_reduce(total)
        assert int(total) == current().num_trainers
        torch.distributed.destroy_process_group()

    layout.run(body)
    assert not any(name in os.environ for name in names)


def test_partition_book_and_local_partition(g: dist.DistGraph) -> None:
    book, local = g.get_partition_book(), g.local_partition
    assert book.num_partitions() == 3 and 0 <= book.partid < 3
    for part, other in ((0, 1), (1, 2), (2, 0)):
        ids = book.partid2nids(part)
        with pytest.raises(OutOfRangeError, match=f"{ids[0]} is no node of part {other}"):
            book.nid2localnid(ids, other)
        with pytest.raises(OutOfRangeError, match=f"is no edge of part {other}"):
            book.eid2localeid(book.partid2eids(part), other)
    src, dst = local.edges()
    check_edges(g, src, dst, local.edata[EID])
    assert torch.equal(local.ndata[NID], torch.arange(NUM_NODES))
    assert torch.equal(local.edata[EID], book.partid2eids(book.partid))
    assert (book.nid2partid(dst) == book.partid).all()


def test_added_features_are_seen_and_removed(g: dist.DistGraph) -> None:
    g.ndata["h"] = dist.DistTensor((NUM_NODES, 2), torch.float32, "h")
    g.edata["w"] = dist.DistTensor((g.num_edges(),), torch.float32, "w")
    assert "h" in g.ndata and g.edata["w"].shape == (591,)
    with pytest.raises(TensorMismatchError, match="are not nodes"):
        g.ndata["w"] = g.edata["w"]
    del g.ndata["h"]
    assert "h" not in g.ndata
    with pytest.raises(KeyError):
        del g.ndata["h"]


def test_arguments_in_dgls_order(g: dist.DistGraph) -> None:
    nodes = torch.arange(NUM_NODES)
    named = g.sample_neighbors(nodes, 7, prob="weight", replace=True, seed=1)
    positional = g.sample_neighbors(nodes, 7, "in", "weight", None, True, True, "cpu", seed=1)
    assert torch.equal(named.edata[EID], positional.edata[EID])
    sizes = dist.sample_neighbors(g, nodes, 7, "in", None, None, True, use_graphbolt=True).in_degrees(nodes)
    assert torch.equal(sizes, torch.where(g.in_degrees() > 0, 7, 0))
    meta = g.sample_neighbors(nodes, 2, output_device="meta")
    assert meta.device.type == meta.edges()[0].device.type == meta.edata[EID].device.type == "meta"
    sampler = NeighborSampler([2], "in", None, None, False, ["feat"], ["label"], ["edge"], "cpu", False)
    assert (sampler.prefetch_node_feats, sampler.prefetch_labels) == (["feat"], ["label"])
    assert sampler.sample(g, nodes, None)[2][0].num_edges() <= 2 * NUM_NODES
    excluded = torch.arange(2)
    for sample in (sampler.sample, sampler.sample_blocks):
        assert not torch.isin(sample(g, nodes, excluded)[2][0].edata[EID], excluded).any()
    without = g.sample_neighbors(nodes, -1, "in", None, excluded)
    assert torch.equal(without.edata[EID], torch.arange(2, g.num_edges()))


def test_a_negative_weight_raises_where_it_is_met(g: dist.DistGraph) -> None:
    g.edata["w"] = dist.DistTensor((g.num_edges(),), torch.float32, "w")
    if g.rank() == 0:
        g.edata["w"][:] = -1.0
    g.barrier()
    with pytest.raises((GraphDataError, CollectiveError), match=r"'w' of edge \d+ must be finite and >= 0"):
        dist.sample_neighbors(g, torch.arange(NUM_NODES), 2, prob="w")
    g.barrier()
