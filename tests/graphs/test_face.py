"""Whatever users ask a graph in memory, or a block, lists of edges answer the same."""

import pytest
from edge_lists import FACE, IN_MEMORY, PARTS, SHAPES, Lists, check_misuse, questions

from mpigraph.graphs.block import to_block


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("operation", FACE + PARTS + IN_MEMORY, ids=lambda operation: operation.__name__)
def test_a_graph_in_memory_answers_as_lists_do(shape, seed, operation):
    lists = Lists.drawn(shape, seed, by_destination=seed % 2 == 0)
    g = lists.graph()
    for question in questions(lists, seed):
        operation(g, lists, question)
        if operation in FACE:  # of all nodes on both sides, so places are ids
            operation(to_block(g, {t: range(n) for t, n in lists.counts.items()}), lists, question)


def test_misuse_of_a_graph_in_memory_is_named():
    check_misuse(Lists.drawn("typed", 0, by_destination=False).graph())
