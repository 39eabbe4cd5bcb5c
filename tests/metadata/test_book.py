"""The partition book: owners of ranges."""

import numpy as np

from mpigraph.metadata.book import RangeBook
from mpigraph.metadata.schema import Schema

TYPED = Schema(("a", "b"), (("a", "x", "b"), ("b", "x", "a"), ("b", "y", "b")))


def book():
    return RangeBook(TYPED, ([0, 3, 3, 10], [0, 0, 1, 1]), ([0, 5, 5, 8], [0, 0, 0, 0], [0, 1, 2, 3]))


def test_owners_with_empty_ranges_against_a_loop():
    b = book()
    assert (b.num_parts, b.num_nodes(0), b.num_nodes(1), b.num_edges(0), b.num_edges(1)) == (3, 10, 1, 8, 0)
    for t in range(2):
        expected = np.empty(b.num_nodes(t), np.int32)
        for k in range(3):
            expected[slice(*b.node_range(k, t))] = k
        assert np.array_equal(b.node_owner(np.arange(b.num_nodes(t)), t), expected)
    assert b.edge_owner(np.array([0, 4, 5, 7]), 0).tolist() == [0, 0, 2, 2]
    assert b.node_owner(np.zeros(0, np.int64), 1).dtype == np.int32
