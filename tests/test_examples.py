"""The examples run as their first lines say, in the starts that this machine has."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_failures import clean_environment, launcher

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=clean_environment(), capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("start", ["python", "mpiexec"])
def test_node_classification_beats_the_mlp(start: str) -> None:
    prefix = [] if start == "python" else [launcher(), "-n", "3"]
    script = [sys.executable, str(EXAMPLES / "node_classification.py"), "--num_epochs", "12", "--eval_every", "12"]
    output = run(*prefix, *script)
    sage, mlp = map(float, re.search(r"test accuracy ([\d.]+), of an MLP .* ([\d.]+)", output).groups())
    assert sage > mlp + 0.10, output
    assert len(re.findall(r"wait [\d.]+ s, compute [\d.]+ s", output)) == 24


def test_partition_example(tmp_path: Path) -> None:
    assert "edge" in run(sys.executable, str(EXAMPLES / "partition.py"), cwd=tmp_path)
