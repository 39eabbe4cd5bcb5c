"""What a hop costs in a job of 1,024 and of 8,192 ranks, simulated in one process (``support/many_ranks.py``)."""

import numpy as np
import pytest
from many_ranks import Hop

SMALL, LARGE = 1024, 8192


@pytest.mark.parametrize("asked", [3, 31])
def test_a_sparse_hop_grows_with_the_asked_owners_and_not_with_the_ranks(asked: int) -> None:
    small, large = (Hop("sparse", ranks, asked).cost() for ranks in (SMALL, LARGE))
    assert small[:3] == large[:3] and small.messages == 2 * asked
    assert large.allocated - small.allocated < LARGE - SMALL  # not a byte for each rank


def test_a_round_of_all_ranks_runs_python_for_the_asked_alone() -> None:
    small, large = (Hop("alltoallv", ranks, 3).cost() for ranks in (SMALL, LARGE))
    assert large.messages == 8 * (LARGE - 1) > small.messages  # four steps, each way: that is MPI's
    assert small.lines == large.lines


def test_both_ways_draw_the_same() -> None:
    assert np.array_equal(*(Hop(way, SMALL, 15).make() for way in ("alltoallv", "sparse")))
