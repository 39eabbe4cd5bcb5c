"""Whatever users ask a distributed graph, lists of edges answer the same, as they do for a graph in memory."""

from pathlib import Path

import pytest
from edge_lists import FACE, PARTS, SHAPES, Lists, check_misuse, questions
from layouts import SharedJob


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


def test_misuse_of_a_distributed_graph_is_named(job: SharedJob) -> None:
    check_misuse(job.open(job.write(write, "typed", 3)))
