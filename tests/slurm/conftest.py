"""One Slurm and one graph for all tests of this folder."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from batch import SETUP, run
from cluster import Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture(scope="session")
def parts(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph in two parts, by the shipped template."""
    where = tmp_path_factory.mktemp("graph")
    sizes = "--nodes 3000 --edges 30000 --feat-dim 16 --classes 4".split()
    generate = [sys.executable, "-m", "mpigraph", "generate", *sizes, "-o", str(where / "data/S")]
    subprocess.run(generate, check=True, capture_output=True, timeout=60)
    changes = {"--cpus-per-task": "1", "INPUT": "$PWD/data/S", "PARTS": "2"}
    result, output = run(cluster, where, "partition", changes, {"setup": SETUP})
    assert result["JobState"] == "COMPLETED", output
    assert "edges cut" in output
    return where / "parts/S/S.json"
