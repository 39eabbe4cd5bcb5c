"""The measuring scripts still run: the shared parts, and what needs no second host on a toy. No time is judged."""

import json
import sys
from pathlib import Path

import all as everything
import common
import mag
import numpy as np
import pytest
from jobs import Done, clean_environment, mpiexec, run_job, warm_python

SELF = Path(__file__).resolve()
HERE = SELF.parent
SCRIPTS = sorted(path.stem for path in HERE.glob("*.py") if "parser(__doc__" in path.read_text() and path != SELF)

TOY = """
import prepare
prepare.SIZES["S"], prepare.PARTS["S"], prepare.BATCH = (3000, 30000, 50), (2,), 50
prepare.main()
"""
USAGE = """
import runpy, sys
for script in sys.argv[1:]:
    sys.argv = [script, "--help"]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as stop:
        assert not stop.code, script
"""
ON_TOY = {
    "sampling": (["--batches", "2"], "edges, fanouts 15,10,5"),
    "sampling --ways": (["--ways", "time, last", "weights", "mask"], "an edge, fanouts 15,10,5"),
    "device": (["--steps", "2", "--batch_size", "50"], "step, fanouts 10,25, minibatches brought to the device"),
    "partition": ([], "METIS into 2 parts, S: share of the edges that is cut"),
}


def test_alternating_and_ratios() -> None:
    calls: list[str] = []

    def side(name: str, value: float):
        return lambda: calls.append(name) or {"wall": value}

    found, loads = common.alternate({common.OURS: side("a", 2.0), "peer": side("b", 5.0)}, rounds=3)
    assert calls == list("abbaab") and loads == [0.0] * 6
    rows = common.beside("work", "s", common.pick(found, "wall"))
    assert rows[0] == ("work, beside peer", "s", {common.OURS: 2.0, "peer": 5.0}, 2.5, (2.5, 2.5), rows[1].rounds)
    assert common.markdown(rows).splitlines()[2:] == [
        "| work, beside peer | mpigraph 2, peer 5 s | 2.50 (2.50-2.50) |",
        "| work | mpigraph 2, peer 5 s |  |",
    ]


def test_worker_answers_and_ends() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import common; common.answer(add=lambda a, b: {'sum': a + b})"
    with common.Worker([sys.executable, "-c", code, HERE]) as worker:
        assert worker.ask("add", a=2, b=3) == {"sum": 5}
    with pytest.raises(RuntimeError, match="ended with 3"):
        common.Worker([sys.executable, "-c", "raise SystemExit(3)"])


def python(*words: object) -> Done:
    env = clean_environment() | {"PYTHONPATH": str(HERE), "DGL_PYTHON": ""}
    done = run_job([*warm_python(), *words], env)
    assert done.status == 0, done.output
    return done


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("toy")
    python("-c", TOY, directory)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_TOY)
def test_a_script_on_a_toy(name: str, toy: Path, tmp_path: Path) -> None:
    options, what = ON_TOY[name]
    common_options = ["--rounds", "1", "--quiet", "0", "--out", tmp_path / "out.json"]
    done = python(HERE / f"{name.split()[0]}.py", toy, *common_options, *options)
    rows = {row["what"]: row["values"] for row in json.loads((tmp_path / "out.json").read_text())["rows"]}
    assert rows[what] and all(value > 0 for value in rows[what].values())
    assert done.stdout.startswith("| work | values |")
    if name in ("sampling", "partition"):
        assert "DGL is left out: DGL_PYTHON is not set" in done.stderr


def test_all_has_a_column_for_each_machine(tmp_path: Path) -> None:
    row = {"what": "step, beside dgl", "unit": "ms", "values": {"mpigraph": 2.0, "dgl": 5.0}}
    rows = [row | {"ratio": 2.5, "spread": [2.4, 2.6]}, row | {"what": "step", "ratio": None, "spread": None}]
    for machine in ("A", "B"):
        (tmp_path / machine).mkdir()
        (tmp_path / machine / "train.json").write_text(json.dumps({"rows": rows}))
    (tmp_path / "B" / "sampling.json").write_text(json.dumps({"rows": rows[:1]}))
    lines = everything.table({name: everything.read(tmp_path / name) for name in ("A", "B")}).splitlines()
    cell = "**2.50** (2.40-2.60), 2 ms"
    assert lines[0] == "| work | A | B |"
    assert lines[2] == f"| sample and renumber 1000 seeds, one process: step, beside dgl |  | {cell} |"
    assert (
        lines[3] == f"| training on two hosts, fanouts 10,25: step, beside dgl | {cell} | {cell} |" and len(lines) == 4
    )
    assert everything.of_all(everything.read(tmp_path / "A"), "train", "step") is None  # it has no GraphBolt


@pytest.mark.slow
def test_all_measures_what_it_is_told(toy: Path, tmp_path: Path) -> None:
    done = python(HERE / "all.py", toy, "--rounds", "1", "--quiet", "0", "--only", "gather", "-o", tmp_path)
    assert (tmp_path / "table.md").read_text() == done.stdout and "| 100,000 local rows: gather" in done.stdout


@pytest.mark.slow
def test_full_graphs_send_each_row_of_the_halo_once() -> None:
    command = [*mpiexec(2), *warm_python(), HERE / "full_graph.py", "--nodes", "400", "--rounds", "1", "--pieces", "4"]
    done = run_job(command, clean_environment() | {"PYTHONPATH": str(HERE)})
    assert done.status == 0, done.output
    assert "forward sends 1.000 of them, backward 1.000\nweights: 1.00" in done.stdout, done.output
    assert all(f"{name}: wall " in done.stdout for name in ("bare      ", "full graph", "recompute "))


@pytest.mark.slow
def test_mag_is_prepared(tmp_path: Path) -> None:
    python("-c", "import prepare, pathlib, sys; prepare.prepare_mag(pathlib.Path(sys.argv[1]), 0.01)", tmp_path)
    config = json.loads((tmp_path / "parts-2" / "mag.json").read_text())
    ways = {r: r for r in mag.EDGES} | {(dst, f"rev_{name}", src): (src, name, dst) for src, name, dst in mag.EDGES}
    found = dict(zip(config["relations"], np.sum(config["edges_of_parts"], axis=0).tolist(), strict=True))
    assert found == {":".join(way): round(mag.EDGES[relation] * 0.01) for way, relation in ways.items()}
    assert max(config["report"]["balance"].values()) <= 1.1 and config["report"]["edge_cut_fraction"] < 0.38
    parts = np.load(tmp_path / "nodes-2.npz")
    nodes = {ntype: max(mag.BLOCKS, round(count * 0.01)) for ntype, count in mag.NODES.items()}
    assert {ntype: len(parts[ntype]) for ntype in parts.files} == nodes
    for ntype, sizes in zip(config["ntypes"], zip(*config["nodes_of_parts"], strict=True), strict=True):
        assert np.bincount(parts[ntype], minlength=2).tolist() == list(sizes)


@pytest.mark.slow
def test_scripts_say_how_they_are_used() -> None:
    names = [name for name in SCRIPTS if name not in ON_TOY]
    said = python("-c", USAGE, *(HERE / f"{name}.py" for name in names)).stdout
    assert [name for name in names if f"usage: {name}.py" not in said] == []


def test_every_script_is_described() -> None:
    text = (HERE / "README.md").read_text()
    assert [name for name in SCRIPTS if f"{name}.py" not in text] == []
