"""The examples run as their first lines say, in the starts that this machine has."""

import re
import sys
from pathlib import Path

import pytest
import torch
from jobs import EXAMPLES, clean_environment, mpiexec, run, run_job

import mpigraph as mg
from mpigraph.distributed.partition import partition_graph
from mpigraph.partition.generate import Recipe, generate_graph


@pytest.mark.parametrize("ranks", [1, 3], ids=["python", "mpiexec"])
def test_node_classification_beats_the_mlp(ranks: int) -> None:
    script = [sys.executable, EXAMPLES / "node_classification.py", "--num_epochs", "12", "--eval_every", "12"]
    output = run(*mpiexec(ranks), *script)
    sage, mlp = map(float, re.search(r"test accuracy ([\d.]+), of an MLP .* ([\d.]+)", output).groups())
    assert sage > mlp + 0.10, output
    assert len(re.findall(r"wait [\d.]+ s, compute [\d.]+ s", output)) == 24


def test_what_launch_sets_reaches_the_example(tmp_path: Path) -> None:
    data = generate_graph(Recipe(500, 4000, feat_dim=8, num_classes=4))
    g = mg.graph((data["edge_src"], data["edge_dst"]), num_nodes=500)
    g.ndata.update({name: torch.from_numpy(data[name]) for name in data if not name.startswith("edge")})
    partition_graph(g, "small", 2, tmp_path, part_method="random")
    variables = {"NUM_SERVERS": 2, "PART_CONFIG": tmp_path / "small.json", "LOG_LEVEL": "INFO"}
    start = ["env", *(f"MPIGRAPH_{name}={value}" for name, value in variables.items()), *mpiexec(3)]
    options = "--graph_name small --num_epochs 1 --fan_out 2,2 --num_hidden 8".split()
    done = run_job([*start, sys.executable, EXAMPLES / "node_classification.py", *options], clean_environment())
    assert done.status == 0 and "1 trainers, 2 hosts, 1 nodes" in done.output, done.output
    assert "test accuracy" in done.output and "MLP" not in done.output  # which is for the generated graph


def test_partition_example(tmp_path: Path) -> None:
    assert "edge" in run(sys.executable, EXAMPLES / "partition.py", cwd=tmp_path)
