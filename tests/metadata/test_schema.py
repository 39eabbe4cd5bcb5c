"""Types of nodes and edges: their ids, names, and what is refused."""

import pytest
from odd_names import NAMES

from mpigraph.errors import EdgeTypeError, InvalidArgumentError, NodeTypeError
from mpigraph.metadata.schema import (
    DEFAULT_ETYPE,
    DEFAULT_NTYPE,
    Schema,
    escape,
    parse_relation,
    relation_key,
    unescape,
)

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


def test_any_name_has_one_key_and_one_escaped_form():
    triples = [(a, b, c) for a in NAMES for b in NAMES for c in NAMES[:5]]
    keys = list(map(relation_key, triples))
    assert len(set(keys)) == len(triples) and list(map(parse_relation, keys)) == triples
    for mark in "~%":
        escaped = [escape(name, ":/", mark) for name in NAMES]
        assert not any(":" in name or "/" in name for name in escaped) and len(set(escaped)) == len(NAMES)
        assert [unescape(name, mark) for name in escaped] == list(NAMES)
    assert escape("a_b-%", ":/") == "a_b-%"  # as it stands in older files


def test_a_key_means_its_own_relation():
    """A relation may be called as another one is written."""
    schema = Schema(("a", "d:e"), (("a", "b", "a"), ("d:e", "a:b:a", "a"), ("a", "x/y~:", "d:e")))
    assert [schema.relation_id(r) for r in schema.relations] == [
        schema.relation_id(schema.relation_key(i)) for i in range(3)
    ]
    assert schema.relation_id("a:b:a") == 0 and schema.relation_id("a:x/y~::d:e") == schema.relation_id("x/y~:") == 2


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
        (lambda: Schema(("\ud800",), ()), InvalidArgumentError, r"type's name must be without surrogates .*'\\ud800'"),
        (lambda: Schema(("a",), (("a", "x\0", "a"),)), InvalidArgumentError, r"relation's name must be .*'x\\x00'"),
        (lambda: Schema(("",), ()), InvalidArgumentError, "a node type's name must not be empty"),
        (lambda: Schema((5,), ()), InvalidArgumentError, "a node type's name must be a string .got 5"),
        (lambda: Schema(("a",), (("a", "x", "b"),)), NodeTypeError, "node type 'b' of relation"),
        (lambda: Schema(("a",), ("axa",)), EdgeTypeError, r"got 'axa'|not exist"),
        (lambda: Schema(("a",), ("a:x:a",)), EdgeTypeError, "is a triple"),
    ],
)
def test_misuse_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
