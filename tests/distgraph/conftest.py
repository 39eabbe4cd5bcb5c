"""What tests of distributed objects begin with."""

import pytest
from layouts import SharedJob

import mpigraph.distributed as dist


@pytest.fixture
def g(job: SharedJob, oracle) -> dist.DistGraph:
    return job.open(oracle(3))
