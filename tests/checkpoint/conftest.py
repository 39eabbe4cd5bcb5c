"""What tests of checkpoints begin with."""

from pathlib import Path

import pytest
from layouts import SharedJob

import mpigraph.distributed as dist


@pytest.fixture
def shared_path(job: SharedJob, tmp_path: Path) -> Path:
    return job.one_has(lambda: tmp_path)


@pytest.fixture
def g(job: SharedJob, oracle) -> dist.DistGraph:
    return job.open(oracle(3))
