"""Blocks: what samplers make, what layers read, to_block."""

import numpy as np
import pytest
import torch

from mpigraph.errors import FieldNameError, MPIGraphError, NodeTypeError
from mpigraph.graphs.block import Block, to_block
from mpigraph.graphs.fields import EID, NID
from mpigraph.graphs.hetero import graph, heterograph
from mpigraph.metadata.schema import DEFAULT_ETYPE, Schema

RATES, FOLLOWS = ("user", "rates", "item"), ("user", "follows", "user")
TYPES = Schema(("item", "user"), (FOLLOWS, RATES))


def small():
    """Two destinations (global 7, 3), sources 7 3 9 5: 7 <- 9, 5; 3 <- 9."""
    csc = np.array([0, 2, 3]), np.array([2, 3, 2], np.int32), np.array([40, 41, 50])
    return Block.from_csc(Schema.homogeneous(), {DEFAULT_ETYPE: csc}, {"_N": np.array([7, 3, 9, 5])}, {"_N": 2})


def typed():
    """Users 5 6 8 (destinations 5 6), items 2 (a destination): 2 <- 8; 5 <- 6, 8; 6 has none."""
    rates = np.array([0, 1]), np.array([2], np.int32), None
    follows = np.array([0, 2, 2]), np.array([1, 2], np.int32), np.array([11, 12])
    ids = {"user": np.array([5, 6, 8]), "item": np.array([2])}
    return Block.from_csc(TYPES, {RATES: rates, FOLLOWS: follows}, ids, {"user": 2, "item": 1})


def test_a_sampled_block_reads_as_in_dgl():
    b = small()
    assert repr(b) == "Block(num_src_nodes=4, num_dst_nodes=2, num_edges=3)" and b.is_block
    assert b.srcdata[NID].tolist() == [7, 3, 9, 5] and b.dstdata[NID].tolist() == [7, 3]
    assert b.edata[EID].tolist() == [40, 41, 50] and b.edges[DEFAULT_ETYPE].data[EID].shape == (3,)
    assert [c.tolist() for c in b.edges()] == [[2, 3, 2], [0, 0, 1]] and b.edges("eid").tolist() == [0, 1, 2]
    assert b.edge_index().dtype == torch.int64 and b.edge_index().tolist() == [[2, 3, 2], [0, 0, 1]]
    assert b.in_degrees().tolist() == [2, 1] and b.out_degrees().tolist() == [0, 0, 2, 1]
    assert b.number_of_src_nodes() == 4 and b.number_of_dst_nodes() == 2 and b.number_of_edges() == 3
    assert b.srctypes == b.dsttypes == ["_N"] and b.ntypes == ["_N", "_N"] and b.num_nodes() == 6
    assert b.to("cpu") is b and b.idtype == torch.int64 and b.find_edges([1])[0].tolist() == [3]


def test_arrays_are_not_copied():
    indices, ids = np.array([2, 3, 2], np.int32), np.array([7, 3, 9, 5])
    csc = np.array([0, 2, 3]), indices, None
    b = Block.from_csc(Schema.homogeneous(), {DEFAULT_ETYPE: csc}, {"_N": ids}, {"_N": 2})
    ids[0] = indices[0] = 1
    assert b.srcdata[NID][0] == b.dstdata[NID][0] == b.edges()[0][0] == 1 and EID not in b.edata


def test_typed_blocks_name_their_sides():
    b = typed()
    assert b.srctypes == b.dsttypes == ["item", "user"] and b.canonical_etypes == [FOLLOWS, RATES]
    assert b.num_src_nodes("user") == 3 and b.num_dst_nodes("user") == 2 and b.num_dst_nodes() == 3
    assert b.num_edges() == 3 and b.num_edges("rates") == 1
    assert b.dstdata[NID]["user"].tolist() == [5, 6] and list(b.edata[EID]) == [FOLLOWS]
    b.srcdata["h"] = {"user": torch.eye(3)}
    assert list(b.srcdata["h"]) == ["user"] and b.srcnodes["user"].data["h"].shape == (3, 3)
    assert b.srcnodes["user"].data["h"] is b.nodes["user"].data["h"] and "h" not in b.dstnodes["user"].data
    assert b.num_nodes("user") == 3 and b.nodes("user").tolist() == [0, 1, 2]
    assert b.srcnodes("user").tolist() == [0, 1, 2] and b.dstnodes("user").tolist() == [0, 1]
    assert "'user': 3" in repr(b) and b.in_degrees(etype="follows").tolist() == [2, 0]
    with pytest.raises(NodeTypeError, match="MID/user"):
        b.num_nodes("MID/user")


def test_a_slice_holds_one_relation_and_shares_features():
    b = typed()
    part = b[RATES]
    assert part.srctypes == ["user"] and part.dsttypes == ["item"] and part.canonical_etypes == [RATES]
    part.srcdata["h"] = torch.ones(3)
    assert b.srcnodes["user"].data["h"].sum() == 3 and part.num_edges() == 1
    assert b["follows"].srctypes == b["follows"].dsttypes == ["user"]


def test_scopes_leave_the_block_as_it_was():
    b = small()
    with b.local_scope():
        b.srcdata["h"], b.dstdata["h"], b.edata["w"] = torch.ones(4), torch.ones(2), torch.ones(3)
        assert b.edata["w"].sum() == 3
    assert "h" not in b.srcdata and "h" not in b.dstdata and list(b.edata) == [EID]
    twin = b.local_var()
    twin.dstdata["h"] = torch.ones(2)
    assert "h" not in b.dstdata and twin.srcdata[NID] is b.srcdata[NID]
    with pytest.raises(FieldNameError, match="destination nodes"):
        b.dstdata["h"]


def test_to_moves_structure_and_features():
    b = small()
    b.in_degrees(), b.edges()
    moved = b.to("meta")
    assert moved.device.type == "meta" and moved.srcdata[NID].device.type == "meta" and b.device.type == "cpu"
    assert moved.number_of_dst_nodes() == 2 and moved.edges()[0].device.type == "meta"
    assert moved.structure(DEFAULT_ETYPE).csr_index[0].device.type == "meta"
    assert b.to("meta", non_blocking=True).device.type == "meta" and b.to(device="cpu", non_blocking=True) is b


def edges_by_id(b, etype=None):
    """Edges of a block in global ids, in the order of the block."""
    src, dst = b.edges(etype=etype)
    relation = b.to_canonical_etype(etype)
    src_ids, dst_ids = b.srcnodes[relation[0]].data[NID], b.dstnodes[relation[2]].data[NID]
    return list(zip(src_ids[src].tolist(), dst_ids[dst].tolist(), strict=True))


def test_to_block_without_edges_and_by_type():
    nothing = to_block(graph(([], []), num_nodes=4), [2, 0])
    assert nothing.srcdata[NID].tolist() == [2, 0] and nothing.num_edges() == 0
    assert to_block(graph(([], []), num_nodes=4)).num_dst_nodes() == 0
    g = heterograph({RATES: ([4, 2], [1, 1]), FOLLOWS: ([2, 3], [0, 4])}, {"user": 6, "item": 3})
    with pytest.raises(NodeTypeError, match="must be a dict"):
        to_block(g, [1])
    with pytest.raises(NodeTypeError, match="tag"):
        to_block(g, {"tag": [1]})


@pytest.mark.parametrize(
    ("dst", "message"), [([3], "node 1 has an in-edge"), ([], "node 3 has an in-edge"), ([3, 1, 3], "holds 3 twice")]
)
def test_to_block_names_wrong_destinations(dst, message):
    with pytest.raises(MPIGraphError, match=message):
        to_block(graph(([5, 0, 5, 2, 3], [3, 1, 1, 3, 3]), num_nodes=9), dst)


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("relations", [[("user", "rates", "user")], [FOLLOWS, RATES, ("item", "of", "user")]], ids=len)
def test_to_block_agrees_with_a_dictionary_on_random_frontiers(relations, include):
    """Destinations come first, as they are given or in the order of their ids, then sources as they are met."""
    rng, counts = np.random.default_rng(3), {ntype: 30 for relation in relations for ntype in relation[::2]}
    for number in range(20):
        ends = {r: rng.integers(0, 30, (2, rng.integers(0, 40))) for r in sorted(relations)}
        g = heterograph({r: (src, dst) for r, (src, dst) in ends.items()}, counts)
        seeds = {t: np.unique([v for r in ends if r[2] == t for v in ends[r][1]]).astype(int) for t in counts}
        if number % 2:  # more of them, in any order
            seeds = {t: rng.permutation(np.union1d(ids, rng.integers(0, 30, 5))) for t, ids in seeds.items()}
        for ntype in counts:
            g.nodes[ntype].data["x"] = torch.arange(30) * 10
        for r, (src, _) in ends.items():
            g.edges[r].data["w"] = torch.arange(len(src)) + 0.5
        b = to_block(g, seeds if number % 2 else None, include_dst_in_src=include)
        for ntype in counts:
            met = [u for r in ends if r[0] == ntype for u in ends[r][0].tolist()]
            want = [*dict.fromkeys([*(seeds[ntype].tolist() if include else []), *met])]
            for frame, ids in ((b.srcnodes[ntype].data, want), (b.dstnodes[ntype].data, seeds[ntype].tolist())):
                assert frame[NID].tolist() == ids and frame["x"].tolist() == [10 * node for node in ids]
        for r, (src, dst) in ends.items():
            assert edges_by_id(b, r) == [*zip(src.tolist(), dst.tolist(), strict=True)]
            data = b.edges[r].data
            assert data[EID].tolist() == [*range(len(src))] and torch.equal(data["w"], data[EID] + 0.5)
            assert b.in_degrees(etype=r).tolist() == [(dst == v).sum() for v in seeds[r[2]]]
