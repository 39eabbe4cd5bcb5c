"""The kill matrix (``killed.py``) on one node and on two simulated ones; the suite has a sample."""

import killed
import pytest
from jobs import SOON, warm_python
from killed import CASES, Case

SAMPLE = {
    Case("node", "before", "trainer 0", "KILL"): pytest.mark.slow,
    Case("node", "epoch", "server", "TERM"): pytest.mark.slow,
    Case("simulated", "saving", "trainer 1", "KILL"): (),
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=SAMPLE.get(c, pytest.mark.study), id=" ".join(c)) for c in CASES if c.nodes != "hosts"],
)
def test_a_killed_rank_ends_the_job_is_named_and_leaves_nothing(oracle, case: Case) -> None:
    result = killed.run(case, oracle(2), warm_python())
    assert not result.wrong(case), result
    assert result.seconds < (SOON if case in SAMPLE else 5), result  # a study has the machine to itself
