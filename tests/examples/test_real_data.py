"""Real graphs, where they are at hand: the whole path from an npz file to a known accuracy."""

import os
import re
import sys
from pathlib import Path

import pytest
from jobs import EXAMPLES, mpiexec, run

from mpigraph.cli.main import main

DATA = os.environ.get("MPIGRAPH_TEST_DATA", "")
SETTINGS = "--fan_out 25,10 --batch_size 140 --num_hidden 64 --feat_drop 0.5 --norm 2 --lr 0.01 --weight_decay 5e-4"


@pytest.mark.skipif(not DATA, reason="set MPIGRAPH_TEST_DATA to a directory with cora.npz")
@pytest.mark.parametrize("ranks", [1, 3], ids=["python", "mpiexec"])
def test_cora(tmp_path: Path, ranks: int) -> None:
    assert main(["partition", f"{DATA}/cora.npz", "--parts", "2", "-o", str(tmp_path), "--name", "cora"]) == 0
    script = [sys.executable, EXAMPLES / "node_classification.py", "--graph_name", "cora"]
    config = ["--part_config", tmp_path / "cora.json", "--num_epochs", "100", "--eval_every", "100"]
    output = run(*mpiexec(ranks), *script, *config, *SETTINGS.split())
    assert float(re.search(r"^test accuracy ([\d.]+)", output, re.MULTILINE).group(1)) >= 0.78, output
