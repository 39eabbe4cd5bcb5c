"""A sample of the damaged partitions of ``damage.py``; all of them with ``python tests/store/damage.py``."""

from pathlib import Path

import pytest
from jobs import clean_environment, run_job, warm_python

SCRIPT = Path(__file__).with_name("damage.py")


@pytest.mark.parametrize(
    "variants", [22, pytest.param(220, marks=pytest.mark.slow), pytest.param(2200, marks=pytest.mark.study)]
)
def test_damaged_partitions_load_as_they_were_or_are_one_error(tmp_path: Path, variants: int) -> None:
    done = run_job([*warm_python(), SCRIPT, "--variants", variants], clean_environment() | {"TMPDIR": str(tmp_path)})
    assert done.status == 0, done.output
    assert f"{variants} variants, {2 * variants} uses, 0 bad" in done.stdout
