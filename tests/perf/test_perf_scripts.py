"""The measuring scripts still run: the shared parts, data and sampling of a toy. No time is judged."""

import json
import subprocess
import sys
from pathlib import Path

import common
import pytest
from test_failures import clean_environment

HERE = Path(__file__).resolve().parent

TOY = """
import sys
import prepare, sampling
prepare.SIZES["S"], prepare.PARTS["S"], prepare.BATCH = (3000, 30000, 50), (2,), 50
directory, out = sys.argv[1:]
sys.argv[1:] = [directory]
prepare.main()
sys.argv[1:] = [directory, "--rounds", "1", "--quiet", "0", "--batches", "2", "--out", out]
sampling.main()
"""


def test_alternating_and_ratios() -> None:
    calls: list[str] = []

    def side(name: str, value: float):
        return lambda: calls.append(name) or {"wall": value}

    found, loads = common.alternate({common.OURS: side("a", 2.0), "peer": side("b", 5.0)}, rounds=3)
    assert calls == list("abbaab") and loads == [0.0] * 6
    row = common.compare("work", "s", common.pick(found, "wall"), "peer", must=2.0)
    assert (row.ratio, row.spread, row.values) == (2.5, (2.5, 2.5), {common.OURS: 2.0, "peer": 5.0})
    more = common.compare("work", "GB/s", common.pick(found, "wall"), "peer", must=2.0, more_is_better=True)
    assert more.ratio == 0.4
    table = common.markdown([row, more, common.alone("work", "s", {common.OURS: [1.0]})])
    assert "| >= 2 | reached |" in table and "| >= 2 | not reached |" in table


def test_worker_answers_and_ends() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import common; common.answer(add=lambda a, b: {'sum': a + b})"
    with common.Worker([sys.executable, "-c", code, HERE]) as worker:
        assert worker.ask("add", a=2, b=3) == {"sum": 5}
    with pytest.raises(RuntimeError, match="ended with 3"):
        common.Worker([sys.executable, "-c", "raise SystemExit(3)"])


def test_sampling_of_a_toy(tmp_path: Path) -> None:
    env = clean_environment() | {"PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1", "DGL_PYTHON": ""}
    command = [sys.executable, "-c", TOY, str(tmp_path), str(tmp_path / "out.json")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "DGL is left out: DGL_PYTHON is not set" in done.stderr
    edges = [row["values"] for row in json.loads((tmp_path / "out.json").read_text())["rows"] if "edges" in row["what"]]
    assert edges and all(value > 0 for row in edges for value in row.values())
