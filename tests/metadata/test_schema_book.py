"""Types and the partition book."""

import numpy as np
import pytest

from mpigraph.errors import EdgeTypeError, InvalidArgumentError, NodeTypeError, OutOfRangeError, PartitionError
from mpigraph.metadata.book import RangeBook, check_ids
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Schema, parse_relation, relation_key

TYPED = Schema(("a", "b"), (("a", "x", "b"), ("b", "x", "a"), ("b", "y", "b")))


def test_homogeneous_is_the_one_element_case():
    schema = Schema.homogeneous()
    assert schema.is_homogeneous and not TYPED.is_homogeneous
    assert schema.ntype_id() == schema.ntype_id(DEFAULT_NTYPE) == 0
    assert schema.relation_id() == schema.relation_id("_E") == schema.relation_id(DEFAULT_ETYPE) == 0
    assert schema.to_canonical(None) == DEFAULT_ETYPE


def test_ids_and_names():
    assert [TYPED.ntype_id(t) for t in "ab"] == [0, 1]
    assert [TYPED.relation_id(r) for r in TYPED.relations] == [0, 1, 2]
    assert TYPED.relation_id("y") == TYPED.relation_id("b:y:b") == TYPED.relation_id(["b", "y", "b"]) == 2
    assert TYPED.ends(1) == (1, 0)
    assert TYPED.relation_key(0) == relation_key(("a", "x", "b")) == "a:x:b"
    assert all(parse_relation(relation_key(r)) == r for r in TYPED.relations)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: TYPED.ntype_id(), NodeTypeError, "node type is ambiguous"),
        (lambda: TYPED.ntype_id("c"), NodeTypeError, "node type 'c' does not exist"),
        (lambda: TYPED.relation_id(), EdgeTypeError, "edge type is ambiguous"),
        (lambda: TYPED.relation_id("x"), EdgeTypeError, "edge type 'x' is ambiguous"),
        (lambda: TYPED.relation_id("z"), EdgeTypeError, "edge type 'z' does not exist"),
        (lambda: TYPED.relation_id(("a", "y", "b")), EdgeTypeError, "does not exist"),
        (lambda: parse_relation("a:b"), EdgeTypeError, "'a:b' is not of the form"),
        (lambda: Schema((), ()), InvalidArgumentError, "at least one node type"),
        (lambda: Schema(("a", "a"), ()), InvalidArgumentError, "node type a is given twice"),
        (lambda: Schema(("a",), (("a", "x", "a"),) * 2), InvalidArgumentError, "is given twice"),
        (lambda: Schema(("a:b",), ()), InvalidArgumentError, "contains ':'"),
        (lambda: Schema(("a",), (("a", "x/y", "a"),)), InvalidArgumentError, "contains '/'"),
        (lambda: Schema(("a~",), ()), InvalidArgumentError, "contains '~'"),
        (lambda: Schema(("a",), (("a", "x", "b"),)), NodeTypeError, "node type 'b' of relation"),
        (lambda: Schema(("a",), ("axa",)), EdgeTypeError, r"got 'axa'|not exist"),
        (lambda: Schema(("a",), ("a:x:a",)), EdgeTypeError, "is a triple"),
    ],
)
def test_misuse_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def book():
    return RangeBook(TYPED, ([0, 3, 3, 10], [0, 0, 1, 1]), ([0, 5, 5, 8], [0, 0, 0, 0], [0, 1, 2, 3]))


def test_owners_with_empty_ranges_against_a_loop():
    b = book()
    assert (b.num_parts, b.num_nodes(0), b.num_nodes(1), b.num_edges(0), b.num_edges(1)) == (3, 10, 1, 8, 0)
    for t in range(2):
        wanted = np.empty(b.num_nodes(t), np.int32)
        for k in range(3):
            wanted[slice(*b.node_range(k, t))] = k
        assert np.array_equal(b.node_owner(np.arange(b.num_nodes(t)), t), wanted)
    assert b.edge_owner(np.array([0, 4, 5, 7]), 0).tolist() == [0, 0, 2, 2]
    assert b.node_owner(np.zeros(0, np.int64), 1).dtype == np.int32


def test_ids_out_of_range_are_named():
    b = book()
    with pytest.raises(OutOfRangeError, match=r"node id of type 'a' 10 at position 1 .*valid: 0 to 9"):
        b.node_owner(np.array([3, 10, 11]), 0)
    with pytest.raises(OutOfRangeError, match=r"-1 at position 0"):
        b.node_owner(np.array([-1]), 0)
    with pytest.raises(OutOfRangeError, match=r"edge id of relation .*valid: none, there are 0"):
        b.edge_owner(np.array([0]), 1)
    check_ids(np.zeros(0, np.int64), 0, "id")


@pytest.mark.parametrize(
    "nodes, edges, message",
    [
        (([0, 1],), ([0, 0],) * 3, "offsets for each node type: 2"),
        (([0, 1], [0, 1, 2]), ([0, 0],) * 3, "must have 2 entries"),
        (([1, 1], [0, 1]), ([0, 0],) * 3, "start at 0 and never fall"),
        (([0, 5, 3], [0, 1, 1]), ([0, 0, 0],) * 3, "start at 0 and never fall"),
        (([0], [0]), ([0],) * 3, "num_parts must be >= 1"),
    ],
)
def test_impossible_books(nodes, edges, message):
    with pytest.raises(PartitionError, match=message):
        RangeBook(TYPED, nodes, edges)


def test_a_book_is_frozen():
    with pytest.raises(ValueError, match="read-only"):
        book().node_offsets[0][1] = 7
