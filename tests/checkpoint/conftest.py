"""What tests of checkpoints begin with."""

from pathlib import Path

import pytest
from layouts import SharedJob


@pytest.fixture
def shared_path(job: SharedJob, tmp_path: Path) -> Path:
    return job.one_has(lambda: tmp_path)
