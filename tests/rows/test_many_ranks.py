"""What reads and pushes of rows cost in jobs of 4 and of 8,192 ranks (``support/many_ranks.py``).

A few ranks answer, the same in both jobs; the others hold rows, too, and neither ask nor answer.
"""

import pytest
from many_ranks import Push, Reads

SMALL, LARGE = 4, 8192


@pytest.mark.parametrize("slots", [0, 500, 4000], ids=["no cache", "a small cache", "a cache for all rows"])
def test_reads_cost_nothing_for_ranks_that_do_not_answer(slots: int) -> None:
    small, large = (Reads(ranks, 3, slots).cost() for ranks in (SMALL, LARGE))
    assert small[:3] == large[:3] and small.messages > 0 and small.lines > 0
    assert large.allocated - small.allocated < 5 * (LARGE - SMALL)  # ten minibatches: not a bool for each rank


def test_a_push_runs_no_python_for_ranks_that_own_no_row() -> None:
    """It has three collective steps of all trainers, in which each tells each how many rows come."""
    small, large = (Push(ranks, 3).cost() for ranks in (SMALL, LARGE))
    assert small.lines == large.lines
    assert large.messages == 3 * 2 * (LARGE - 1) > small.messages
    assert large.allocated - small.allocated < 100 * (LARGE - SMALL)
