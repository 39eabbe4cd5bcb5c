"""DGL's numbering of typed graphs: every look-up of the partition book against one made by counting."""

import numpy as np
import pytest
import torch
from typed_parts import COUNTS, EDGES, random_book

from mpigraph.distgraph.partition_book import (
    EdgePartitionPolicy,
    NodePartitionPolicy,
    PartitionPolicy,
    RangePartitionBook,
)
from mpigraph.errors import EdgeTypeError, InvalidArgumentError, NodeTypeError, OutOfRangeError, PartitionError
from mpigraph.metadata.book import RangeBook
from mpigraph.metadata.schema import Schema

PARTS = [1, 2, 5]
MANY = 4  # books of each number of parts


def counted(offsets: list[np.ndarray], num_parts: int) -> list[tuple[int, int, int]]:
    """For each homogeneous id (part, type, type-wise id): part after part, and in a part type after type."""
    ids = []
    for part in range(num_parts):
        for kind, table in enumerate(offsets):
            ids += [(part, kind, i) for i in range(table[part], table[part + 1])]
    return ids


@pytest.mark.parametrize("seed", range(MANY))
@pytest.mark.parametrize("num_parts", PARTS)
@pytest.mark.parametrize("is_node", [True, False], ids=["nodes", "edges"])
def test_the_numbering_is_what_counting_gives(num_parts: int, seed: int, is_node: bool) -> None:
    book = random_book(num_parts, seed)
    face = RangePartitionBook(book, num_parts - 1)
    ids = counted(book.node_offsets if is_node else book.edge_offsets, num_parts)
    parts, kinds, values = torch.tensor(ids).T
    split = face.map_to_per_ntype if is_node else face.map_to_per_etype
    join = face.map_to_homo_nid if is_node else face.map_to_homo_eid
    owner = face.nid2partid if is_node else face.eid2partid
    owned = face.partid2nids if is_node else face.partid2eids
    local = face.nid2localnid if is_node else face.eid2localeid
    shuffled = torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))
    for order in (torch.arange(len(ids)), shuffled):
        types_and_ids = split(order)
        assert torch.equal(types_and_ids[0], kinds[order]) and torch.equal(types_and_ids[1], values[order])
        assert torch.equal(owner(order), parts[order])  # no type: homogeneous ids, as in DGL
    for kind, name in enumerate(COUNTS if is_node else EDGES):
        homogeneous = torch.nonzero(kinds == kind).reshape(-1)
        homogeneous = homogeneous[values[homogeneous].argsort()]
        owners, everything = parts[homogeneous], torch.arange(len(homogeneous))
        assert torch.equal(join(everything, name), homogeneous)
        assert torch.equal(owner(everything, name), owners)
        for part in range(num_parts):
            own = owned(part, name)
            assert torch.equal(own, everything[owners == part])
            assert torch.equal(local(own, part, name), torch.arange(len(own)))
            here = RangePartitionBook(book, part)
            policy = NodePartitionPolicy(here, name) if is_node else EdgePartitionPolicy(here, name)
            text = f"node~{name}" if is_node else f"edge~{':'.join(name)}"
            assert policy.policy_str == PartitionPolicy(text, here).policy_str == text
            assert PartitionPolicy.of(here, is_node, kind).policy_str == text and policy.type_name == name
            assert (policy.is_node, policy.type_id, policy.part_id) == (is_node, kind, part)
            assert (policy.get_size(), policy.get_part_size()) == (len(owners), len(own))
            assert torch.equal(policy.to_partid(everything), owners)
            assert torch.equal(policy.to_local(own), torch.arange(len(own)))
    for part in range(num_parts):
        assert torch.equal(owned(part), torch.nonzero(parts == part).reshape(-1))
        assert torch.equal(local(owned(part), part), torch.arange(int((parts == part).sum())))


@pytest.mark.parametrize("num_parts", PARTS)
def test_what_a_book_says_of_its_parts(num_parts: int) -> None:
    book = random_book(num_parts, 1)
    for part in range(num_parts):
        face = RangePartitionBook(book, part)
        assert face.num_partitions() == num_parts and face.partid == part and not face.is_homogeneous
        assert face.ntypes == list(COUNTS) and face.canonical_etypes == list(EDGES)
        assert face.etypes == [relation[1] for relation in EDGES]
        assert face.metadata()[part] == {
            "machine_id": part,
            "num_nodes": sum(int(table[part + 1] - table[part]) for table in book.node_offsets),
            "num_edges": sum(int(table[part + 1] - table[part]) for table in book.edge_offsets),
        }
        for offset, tables in (
            (face.local_ntype_offset, book.node_offsets),
            (face.local_etype_offset, book.edge_offsets),
        ):
            assert offset == [0, *np.cumsum([int(table[part + 1] - table[part]) for table in tables]).tolist()]
        assert face.global_nid_dtype == face.global_eid_dtype == torch.int64
        face.shared_memory("typed")


def test_a_relation_with_the_default_name_between_named_types() -> None:
    """The default means homogeneous ids, whatever relations are called; the name alone means the relation."""
    relations = ("item", "seen", "user"), ("user", "_E", "item")
    for named, offsets in ((relations[1:], ([0, 2, 5],)), (relations, ([0, 1, 3], [0, 2, 5]))):
        book = RangeBook(Schema(("item", "user"), named), ([0, 3, 4], [0, 1, 4]), offsets)
        face = RangePartitionBook(book, 0)
        first, total = (sum(table[i] for table in offsets) for i in (1, 2))
        assert face.eid2partid(range(total)).tolist() == [0] * first + [1] * (total - first)
        assert face.partid2eids(1).tolist() == [*range(first, total)]
        for name in ("_E", relations[1]):
            assert face.eid2partid([1, 2], name).tolist() == [0, 1]
    two = RangeBook(Schema(("a", "b"), (("a", "_E", "b"), ("b", "_E", "a"))), ([0, 1], [0, 1]), ([0, 2], [0, 3]))
    face = RangePartitionBook(two, 0)
    assert face.partid2eids(0).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(EdgeTypeError, match="ambiguous"):
        face.partid2eids(0, "_E")


def test_no_ids_and_no_relations() -> None:
    face = RangePartitionBook(random_book(3, 0), 0)
    none = torch.empty(0, dtype=torch.int64)
    for ids in (*face.map_to_per_ntype(none), face.map_to_homo_nid([], "paper"), face.eid2partid([], "writes")):
        assert ids.dtype == torch.int64 and len(ids) == 0
    bare = RangePartitionBook(RangeBook(Schema(("a", "b"), ()), ([0, 1, 3], [0, 2, 2]), ()), 1)
    assert bare.map_to_per_ntype([0, 1, 2, 3, 4])[1].tolist() == [0, 0, 1, 1, 2]
    assert bare.metadata()[0] == {"machine_id": 0, "num_nodes": 3, "num_edges": 0}
    assert len(bare.map_to_per_etype([])[0]) == 0 and bare.etypes == []


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda b: b.map_to_homo_nid([0], "venue"), NodeTypeError, "'venue' does not exist"),
        (lambda b: b.map_to_homo_nid([0]), NodeTypeError, "ambiguous"),
        (lambda b: b.nid2partid([0], None), NodeTypeError, "ambiguous"),
        (lambda b: b.partid2nids(0, "venue"), KeyError, "'venue' does not exist"),
        (lambda b: b.eid2partid([0], "edits_not"), EdgeTypeError, "does not exist"),
        (lambda b: b.partid2eids(0, ("paper", "writes", "author")), EdgeTypeError, "does not exist"),
        (lambda b: b.map_to_homo_eid([0]), EdgeTypeError, "ambiguous"),
        (lambda b: b.to_canonical_etype("cited"), EdgeTypeError, "does not exist"),
        (lambda b: b.nid2partid([40], "author"), OutOfRangeError, "node id of type 'author' 40"),
        (lambda b: b.nid2partid([172]), OutOfRangeError, "172 at position 0"),
        (lambda b: b.map_to_homo_nid([0], "editor"), OutOfRangeError, "none, there are 0"),
        (lambda b: b.map_to_per_ntype([3, 172]), OutOfRangeError, "homogeneous node id 172 at position 1"),
        (lambda b: b.map_to_per_etype([-1]), OutOfRangeError, "homogeneous edge id -1"),
        (lambda b: b.partid2nids(3, "paper"), PartitionError, r"partid must be in \[0, 3\)"),
    ],
)
def test_wrong_types_and_ids_are_named(call, error, message: str) -> None:
    with pytest.raises(error, match=message):
        call(RangePartitionBook(random_book(3, 0), 0))


def test_policies_of_nothing_are_refused() -> None:
    face = RangePartitionBook(random_book(2, 0), 0)
    with pytest.raises(InvalidArgumentError, match="begins with 'node' or 'edge' .got 'graph~author'"):
        PartitionPolicy("graph~author", face)
    with pytest.raises(NodeTypeError, match="'reviewer' does not exist"):
        NodePartitionPolicy(face, "reviewer")
    with pytest.raises(EdgeTypeError, match="'likes' does not exist"):
        EdgePartitionPolicy(face, "likes")
    for text in ("node", "edge"):
        with pytest.raises((NodeTypeError, EdgeTypeError), match="type is ambiguous"):
            PartitionPolicy(text, face)
    plain = RangePartitionBook(RangeBook(Schema.homogeneous(), ([0, 3, 7],), ([0, 5, 9],)), 1)
    assert NodePartitionPolicy(plain).to_local([3, 6]).tolist() == [0, 3]
    assert EdgePartitionPolicy(plain).to_partid([0, 4, 5, 8]).tolist() == [0, 0, 1, 1]
    assert [PartitionPolicy(text, plain).get_part_size() for text in ("node", "edge")] == [4, 4]
    with pytest.raises(OutOfRangeError):
        NodePartitionPolicy(plain).to_partid([7])
    with pytest.raises(OutOfRangeError, match="2 is no node of part 1, which has ids from 3 up to 7"):
        NodePartitionPolicy(plain).to_local([3, 2])
