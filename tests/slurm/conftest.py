"""One Slurm and one graph for all tests of this folder."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from batch import SETUP, run
from cluster import Cluster
from jobs import warm_python

from mpigraph.cli.main import main


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Jobs find a warm ``python`` on their PATH."""
    python = tmp_path_factory.mktemp("bin") / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.join(warm_python())} "$@"\n')
    python.chmod(0o755)
    with Cluster(tmp_path_factory.mktemp("slurm")) as running:
        running.env["PATH"] = f"{python.parent}:{running.env['PATH']}"
        yield running


@pytest.fixture(scope="session")
def parts(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph in two parts, by the shipped template."""
    where = tmp_path_factory.mktemp("graph")
    sizes = "--nodes 3000 --edges 30000 --feat-dim 16 --classes 4"
    assert main(["generate", *sizes.split(), "-o", str(where / "data/S")]) == 0
    changes = {"--cpus-per-task": "1", "INPUT": "$PWD/data/S", "PARTS": "2"}
    result, output = run(cluster, where, "partition", changes, {"setup": SETUP})
    assert result["JobState"] == "COMPLETED", output
    assert "edges cut" in output
    return where / "parts/S/S.json"
