"""Real graphs, where they lie beside the checkout: the whole path from an npz file to a known accuracy."""

import re
import sys
from pathlib import Path

import pytest
from conftest import SHARED_DATA
from test_examples import EXAMPLES, run
from test_failures import launcher

CORA = SHARED_DATA / "cora.npz"
SETTINGS = "--fan_out 25,10 --batch_size 140 --num_hidden 64 --feat_drop 0.5 --norm 2 --lr 0.01 --weight_decay 5e-4"


@pytest.mark.skipif(not CORA.exists(), reason="cora.npz is not beside the checkout")
@pytest.mark.parametrize("start", ["python", "mpiexec"])
def test_cora(tmp_path: Path, start: str) -> None:
    run(sys.executable, "-m", "mpigraph", "partition", str(CORA), "--parts", "2", "-o", str(tmp_path), "--name", "cora")
    prefix = [] if start == "python" else [launcher(), "-n", "3"]
    script = [sys.executable, str(EXAMPLES / "node_classification.py"), "--graph_name", "cora"]
    config = ["--part_config", str(tmp_path / "cora.json"), "--num_epochs", "100", "--eval_every", "100"]
    output = run(*prefix, *script, *config, *SETTINGS.split())
    assert float(re.search(r"^test accuracy ([\d.]+)", output, re.MULTILINE).group(1)) >= 0.78, output
