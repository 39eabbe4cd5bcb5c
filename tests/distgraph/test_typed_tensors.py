"""Splits and tensors of typed graphs, where types share sizes and some have no nodes at all or none in a part."""

from pathlib import Path

import numpy as np
import pytest
import torch
from layouts import SharedJob
from typed_parts import COUNTS, EDGES, typed_source, write_typed

import mpigraph.distributed as dist
from mpigraph.errors import EdgeTypeError, InvalidArgumentError, TensorMismatchError
from mpigraph.session.context import current


@pytest.fixture
def typed(job: SharedJob) -> str:
    return job.write(write_typed)


def test_a_name_of_two_relations_needs_the_triple(job: SharedJob, tmp_path: Path) -> None:
    relations = {("a", "has", "b"): 9, ("b", "has", "a"): 5, ("b", "is", "b"): 4}
    source = typed_source({"a": 6, "b": 8}, relations)
    g = job.open(job.one_has(lambda: write_typed(tmp_path, 2, source, "twice")))
    assert g.etypes == ["has", "has", "is"]
    for call in (g.num_edges, g.to_canonical_etype, g.edges.__getitem__, g.get_edge_partition_policy):
        with pytest.raises(EdgeTypeError, match=r"'has' is ambiguous: name one of \[\('a', 'has', 'b'\), \('b', "):
            call("has")
    assert {r: g.num_edges(r) for r in relations} == relations and g.num_edges("is") == 4


def test_without_attach_a_feature_is_found(job: SharedJob, typed: str) -> None:
    g = job.open(typed)
    for ntype in COUNTS:
        third = g.nodes[ntype].data["third"]
        policy = g.get_node_partition_policy(ntype)
        options = {"shape": third.shape, "dtype": third.dtype, "name": "third", "part_policy": policy}
        feature = dist.DistTensor(**options, attach=False)
        assert feature.rows is third.rows
        other = dist.DistTensor(**options)  # as in DGL another one
        assert other.rows is not third.rows and not other[:].any()
        with pytest.raises(TensorMismatchError, match="'third' exists with shape"):
            dist.DistTensor(**options | {"dtype": torch.float64}, attach=False)


def chosen(count: int) -> np.ndarray:
    return np.arange(count) % 3 != 1


def test_splits_of_every_type_cover_the_mask_once(job: SharedJob, typed: str) -> None:
    def body() -> dict:
        g = job.open(typed)
        book, shares = g.get_partition_book(), {}
        for even in (True, False):
            for ntype, count in COUNTS.items():
                own = dist.node_split(
                    chosen(count), book, ntype=ntype, force_even=even, node_trainer_ids=np.zeros(count)
                )
                shares[ntype, even] = own
            for relation, count in EDGES.items():
                shares[relation, even] = dist.edge_split(chosen(count), book, etype=relation, force_even=even)
                by_name = dist.edge_split(chosen(count), book, etype=relation[1], force_even=even)
                assert torch.equal(by_name, shares[relation, even])
        for share in shares.values():
            assert share.dtype == torch.int64 and torch.equal(share, share.sort().values)
        return {what: share.tolist() for what, share in shares.items()}

    of_trainers = job.trainers.allgather(body())
    for kind, count in (COUNTS | EDGES).items():
        for even in (True, False):
            shares = [shares[kind, even] for shares in of_trainers]
            assert sorted(sum(shares, [])) == np.flatnonzero(chosen(count)).tolist()
            assert not even or max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_mask_with_a_policy_says_its_type(job: SharedJob, typed: str) -> None:
    g = job.open(typed)
    book = g.get_partition_book()
    for ntype in COUNTS:
        mask = g.nodes[ntype].data["third"]
        plain = dist.node_split(mask[:], book, ntype=ntype)
        assert torch.equal(dist.node_split(mask), plain)
        assert torch.equal(dist.node_split(mask, book, ntype), plain)
    masks = {r: dist.DistTensor((n,), torch.bool, part_policy=g.get_edge_partition_policy(r)) for r, n in EDGES.items()}
    for relation, mask in masks.items():
        if g.rank() == 0:
            mask[:] = torch.from_numpy(chosen(EDGES[relation]))
    g.barrier()
    for relation, mask in masks.items():
        assert torch.equal(dist.edge_split(mask), dist.edge_split(chosen(EDGES[relation]), book, relation))


def test_types_of_one_size_need_a_policy(job: SharedJob, typed: str) -> None:
    g = job.open(typed)
    for size in (40, 90, 200, 0):  # two node types, a node type and a relation, two relations, three of nothing
        with pytest.raises(TensorMismatchError, match=rf"several .* have {size} rows .*: give part_policy"):
            dist.DistTensor((size, 2), torch.float32)
    with pytest.raises(TensorMismatchError, match="several .*: give part_policy"):
        dist.DistEmbedding(40, 2)
    with pytest.raises(TensorMismatchError, match="no node or edge type has 41 rows"):
        dist.DistTensor((41,), torch.float32)
    with pytest.raises(TensorMismatchError, match=r"a tensor of 'node~author' has 40 rows .got shape .90,"):
        dist.DistTensor((90,), torch.float32, part_policy=g.get_node_partition_policy("author"))
    foreign = dist.PartitionPolicy("node~author", dist.load_partition_book(typed, 0)[0])
    with pytest.raises(InvalidArgumentError, match="'node~author' is of a book that no open graph has"):
        dist.DistTensor((40,), torch.float32, part_policy=foreign)
    assert dist.DistTensor((150,), torch.bool).part_policy.policy_str == "edge~reader:reads:paper"
    policies = [g.get_node_partition_policy(ntype) for ntype in COUNTS]
    policies += [g.get_edge_partition_policy(relation) for relation in EDGES]
    tensors = {}
    for number, policy in enumerate(policies):
        size = policy.get_size()
        t = tensors[number] = dist.DistTensor((size, 2), torch.int64, f"of {number}", part_policy=policy)
        assert t.part_policy.policy_str == policy.policy_str and len(t) == size
        own = torch.arange(size)[g.rank() :: current().num_trainers]
        t[own] = torch.stack([own, torch.full_like(own, number)], 1)
    g.barrier()
    for number, t in tensors.items():
        assert torch.equal(t[:], torch.stack([torch.arange(len(t)), torch.full((len(t),), number)], 1))
    authors, readers = (g.get_node_partition_policy(ntype) for ntype in ("author", "reader"))
    weight = dist.DistEmbedding(40, 2, part_policy=readers).weight
    assert weight.part_policy.policy_str == "node~reader"
    other = dist.DistTensor((40, 2), torch.int64, "of 0", part_policy=readers)  # names count within a type
    assert other.part_policy.policy_str == "node~reader" and not other[:].any()
    with pytest.raises(TensorMismatchError, match="cannot combine"):
        _ = dist.DistTensor((40,), torch.bool, part_policy=authors) | dist.DistTensor(
            (40,), torch.bool, part_policy=readers
        )
