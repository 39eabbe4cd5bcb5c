"""Whatever users ask a graph, in memory, distributed, or a block: lists of edges answer the same."""

from pathlib import Path

import pytest
from edge_lists import FACE, IN_MEMORY, PARTS, SHAPES, Lists, check_misuse, questions
from layouts import SharedJob

from mpigraph.graphs.block import to_block


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", SHAPES)
def test_a_graph_in_memory_answers_as_lists_do(shape: str, seed: int) -> None:
    lists = Lists.drawn(shape, seed, by_destination=seed % 2 == 0)
    g = lists.graph()
    block = to_block(g, {t: range(n) for t, n in lists.counts.items()})  # of all nodes, so places are ids
    for question in questions(lists, seed):
        for operation in FACE + PARTS + IN_MEMORY:
            operation(g, lists, question)
        for operation in FACE:
            operation(block, lists, question)
    for relation, edges in lists.edges.items():  # the graph of one relation
        one = Lists({t: lists.counts[t] for t in relation[::2]}, {relation: edges})
        for question in questions(one, seed):
            for operation in FACE + PARTS + IN_MEMORY:
                operation(g[relation], one, question)


def write(directory: Path, shape: str, num_parts: int) -> str:
    return Lists.drawn(shape, num_parts, by_destination=True).partitioned(directory, num_parts)


@pytest.mark.parametrize(("shape", "num_parts"), [*zip(SHAPES, (3, 2, 1, 3, 4), strict=True)])
def test_a_distributed_graph_answers_as_lists_do(job: SharedJob, shape: str, num_parts: int) -> None:
    """Every trainer asks something else at the same time."""
    lists = Lists.drawn(shape, num_parts, by_destination=True)
    g = job.open(job.write(write, shape, num_parts))
    for question in questions(lists, job.rank):
        for operation in FACE + PARTS:
            operation(g, lists, question)


def test_misuse_is_named_by_every_graph(job: SharedJob) -> None:
    check_misuse(Lists.drawn("typed", 0, by_destination=False).graph())
    check_misuse(job.open(job.write(write, "typed", 3)))
