"""A sample of the kill matrix (``killed.py``)."""

import killed
import pytest
from jobs import SOON, warm_python
from killed import Case

SAMPLE = [
    pytest.param(Case("node", "before", "trainer 0", "KILL"), marks=pytest.mark.slow),
    pytest.param(Case("node", "epoch", "server", "TERM"), marks=pytest.mark.slow),
    Case("simulated", "saving", "trainer 1", "KILL"),
]


@pytest.mark.parametrize("case", SAMPLE, ids=" ".join)
def test_a_killed_rank_ends_the_job_is_named_and_leaves_nothing(oracle, case: Case) -> None:
    result = killed.run(case, oracle(2), warm_python())
    assert not result.wrong(case), result
    assert result.seconds < SOON
