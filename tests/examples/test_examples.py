"""The examples learn what they should, in the starts that this machine has, and leave nothing behind.

All but the quickstart run in forks of a warm Python. Each is started once, mostly on two simulated nodes: that
minibatches are the same in every layout is tested elsewhere.
"""

import csv
import os
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from jobs import (
    EXAMPLES,
    ROOT,
    cannot_mount,
    clean_environment,
    launcher,
    load_example,
    mpiexec,
    run,
    run_job,
    warm_python,
)

import mpigraph as mg

TWO_NODES = ["MPIGRAPH_RANKS_PER_NODE=2"]  # simulated
CHECK_RANKS = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import torch
import knowledge_graph as example

example.TRIPLES = 150  # several blocks of these
example.ENTITIES = 300  # and of these
evaluate = example.evaluate

@torch.no_grad()
def check(g, emb, model, triples, held_out, device):
    src, dst = g.find_edges(torch.arange(g.num_edges()))
    known = torch.cat([torch.stack([src, g.edata["rel"][:], dst], 1), held_out])
    rows = emb.weight[:]
    ranks = []
    for head, relation, tail in triples.tolist():
        scores = model.module(rows[head : head + 1], torch.tensor([relation]))[0] @ rows.T
        best = scores[tail].clone()
        scores[known[(known[:, 0] == head) & (known[:, 1] == relation), 2]] = -torch.inf
        ranks.append(1 + int((scores > best).sum()))
    expected = (1 / torch.tensor(ranks)).mean()
    return f"{evaluate(g, emb, model, triples, held_out, device)}  expected {expected:.4f}"

example.evaluate = check
example.main()
"""


def numbers(pattern: str, output: str) -> list[float]:
    """The numbers that a pattern finds in what was printed."""
    found = re.search(pattern, output, re.MULTILINE)
    assert found is not None, output
    return [float(number) for number in found.groups()]


class Example:
    """Starts examples with a directory for temporary files, which must be empty in the end."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "tmp"
        self.folder.mkdir()

    def run(self, ranks: int, script: str | Path, flags: str = "", variables: list[str] | None = None) -> str:
        env = ["env", f"TMPDIR={self.folder}", *(variables or [])]
        output = run(*mpiexec(ranks), *env, *warm_python(), EXAMPLES / script, *flags.split())
        assert "\r" not in output
        assert left_in(self.folder) == []
        return output


def left_in(folder: Path) -> list[str]:
    """What a job left there, besides this user's locks of kernels."""
    locks = f"mpigraph-kernels-{os.getuid()}"
    return [name for name in os.listdir(folder) if name.startswith("mpigraph") and name != locks]


@pytest.fixture
def example(tmp_path: Path) -> Example:
    return Example(tmp_path)


@pytest.mark.slow
def test_quickstart(tmp_path: Path) -> None:
    """As a newcomer starts it, from another folder."""
    output = run("env", f"TMPDIR={tmp_path}", sys.executable, EXAMPLES / "quickstart.py", cwd=tmp_path)
    (accuracy,) = numbers(r"^epoch 4  loss [\d.]+  test accuracy ([\d.]+)", output)
    assert accuracy > 0.75, output  # 0.125 by chance
    assert left_in(tmp_path) == []


@pytest.mark.slow
def test_a_mesh_and_the_script_about_meshes(example: Example, tmp_path: Path) -> None:
    """They learn, and print the same digits on one and on three ranks; the tutorial's script starts from arrays."""
    flags = "--cells 8 --num_epochs 30 --width 16"
    printed = [re.findall(r"^(?:epoch|relative).*$", example.run(n, "mesh.py", flags), re.MULTILINE) for n in (1, 3)]
    assert printed[0] == printed[1] and len(printed[0]) == 5, printed
    assert float(printed[0][-1].split()[-1]) < 0.9, printed
    (script,) = re.findall(
        r"## Whole graphs and meshes.*?```python\n(.*?)```", (EXAMPLES / "README.md").read_text(), re.DOTALL
    )
    rng = np.random.default_rng(0)
    sides = np.stack([np.arange(99), np.arange(1, 100)], 1)
    arrays = {"edges": np.concatenate([sides, sides[:, ::-1]]), "points": rng.random((100, 2))}
    for name, values in (arrays | {"fields": rng.random((2, 100, 3))}).items():
        np.save(tmp_path / f"{name}.npy", values)
    (tmp_path / "train.py").write_text(script)
    lines = [run(*mpiexec(n), *warm_python(), "train.py", cwd=tmp_path).splitlines() for n in (1, 2)]
    losses = [[line for line in output if line.startswith("step")] for output in lines]
    assert losses[0] == losses[1] and len(losses[0]) == 100, losses


@pytest.mark.slow
def test_the_script_in_the_readme(tmp_path: Path) -> None:
    """With the commands that make its graph, on one process and on a node of two trainers and a server."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    before, script = re.findall(r"(.*?)```python\n(.*?)```", readme, re.DOTALL)[0]
    for line in re.findall(r"^python (-m mpigraph .*)$", before, re.MULTILINE):
        run(*warm_python(), *shlex.split(line, comments=True), cwd=tmp_path)
    (tmp_path / "train.py").write_text(script)
    for ranks in (1, 3):
        output = run(*(mpiexec(ranks) if ranks > 1 else ()), *warm_python(), "train.py", cwd=tmp_path)
        losses = [float(loss) for loss in re.findall(r"^epoch \d+  loss ([\d.]+)$", output, re.MULTILINE)]
        assert len(losses) == 10 and losses[-1] < losses[0], output


@pytest.mark.slow
def test_a_sampler_of_your_own_in_the_tutorial(tmp_path: Path) -> None:
    tutorial = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    sampler = tutorial.split("### A sampler of your own")[1].split("```python\n")[1].split("```")[0]
    assert len([line for line in sampler.splitlines() if line]) <= 20
    generate = "generate --nodes 500 --edges 5000 --train-fraction 0.5 -o data"
    for words in (generate, "partition data --parts 2 --method random --name S -o parts/S"):
        run(sys.executable, "-m", "mpigraph", *words.split(), cwd=tmp_path)
    uses = """
mg.distributed.initialize(num_servers=0)
g = mg.distributed.DistGraph("S", part_config="parts/S/S.json")
nodes = mg.distributed.node_split(g.ndata["train_mask"])
loader = mg.distributed.DistNodeDataLoader(g, nodes, TrainNeighbors(3, hops=2), batch_size=50, features=["feat"])
for inputs, seeds, blocks in loader:
    assert len(blocks) == 2 and blocks[0].num_edges() and (blocks[0].in_degrees() <= 3).all()
    src, _ = blocks[0].edges()
    assert g.ndata["train_mask"][inputs[src]].all() and len(blocks[0].srcdata["feat"]) == len(inputs)
print("done")
"""
    (tmp_path / "train.py").write_text(sampler + uses)
    for two_nodes in ([], ["env", *TWO_NODES]):
        assert run(*two_nodes, *mpiexec(2), *warm_python(), "train.py", cwd=tmp_path).count("done") == 2


@pytest.mark.slow
def test_two_csv_files_in_the_tutorial(tmp_path: Path) -> None:
    """From files as it shows them to predictions by their ids, with its commands and its script."""
    tutorial = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    section = re.split(r"^#+ ", tutorial.split("## From two csv files to predictions")[1], flags=re.MULTILINE)[0]
    commands = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)[0].splitlines()
    script = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]
    assert len(commands) + len([line for line in script.splitlines() if line]) <= 50
    rng = np.random.default_rng(0)
    topics = ["art", "biology", "physics, general"]
    numbers = rng.integers(0, 3, 1500)
    lines = ["id,country,age,joined,premium,score1,score2,topic,split"]
    for node, topic in enumerate(numbers):
        country, age, joined, premium = (
            text if rng.random() < 0.9 else ""
            for text in (rng.choice(["de", "fr"]), f"{30 + 5 * topic + rng.integers(20)}", "2024-05-17", "true")
        )
        split = ("train", "test", "val", "")[node % 4]
        name = f'"{topics[topic]}"' if split else ""
        scores = ",".join(f"{score:.3f}" for score in rng.normal(topic, 1, 2))
        lines.append(f"u{7 * node},{country},{age},{joined},{premium},{scores},{name},{split}")
    (tmp_path / "nodes.csv").write_text("\n".join(lines))
    src = rng.integers(0, 1500, 9000)
    dst = [rng.choice(np.flatnonzero(numbers == numbers[node])) for node in src]
    edges = [f"u{7 * a},u{7 * b},12.5" for a, b in zip(src, dst, strict=True)]
    (tmp_path / "edges.csv").write_text("\n".join(["src,dst,amount", *edges]))
    cut = next(command for command in commands if " partition " in command)
    run(*warm_python(), *shlex.split(cut)[1:], cwd=tmp_path)
    (tmp_path / "train.py").write_text(script)
    run(*mpiexec(4), *warm_python(), "train.py", cwd=tmp_path)
    with open(tmp_path / "predictions/predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [f"u{7 * node}" for node in range(1500)]
    assert {row["name"] for row in rows} == set(topics)
    right = np.mean([row["name"] == topics[topic] for row, topic in zip(rows, numbers, strict=True)])
    assert right > 0.75  # 0.33 by chance


@pytest.mark.slow
@pytest.mark.skipif(bool(cannot_mount()), reason=cannot_mount())
def test_quickstart_on_two_nodes_with_disks_of_their_own(tmp_path: Path) -> None:
    """The files of a generated graph come to both; one has another directory at the path of temporary files."""
    first = tmp_path / "tmp"
    second = tmp_path / "of the second node"
    first.mkdir()
    second.mkdir()
    mount = f'mount --make-rprivate / && mount --bind "{second}" "{first}" && exec "$@"'
    python = ["env", f"TMPDIR={first}", *TWO_NODES, *warm_python(), EXAMPLES / "quickstart.py"]
    output = run(launcher(), "-n", 2, *python, ":", "-n", 2, "unshare", "--mount", "sh", "-c", mount, "sh", *python)
    (accuracy,) = numbers(r"^epoch 4  loss [\d.]+  test accuracy ([\d.]+)", output)
    assert accuracy > 0.75, output
    assert left_in(first) == left_in(second) == []


def test_a_folder_that_may_be_somebody_elses_is_refused(tmp_path: Path) -> None:
    """The name of a job's folder can be seen on the first node, and somebody may be faster on the others."""
    make_folder = load_example("graphs").make_folder
    assert make_folder(str(tmp_path / "new")) is True
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert make_folder(str(tmp_path / "new")) is False
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "new")
    for name in ("open", "file", "link"):
        with pytest.raises(FileExistsError, match=name):
            make_folder(str(tmp_path / name))


def test_a_long_epoch_is_lines_in_a_log_and_a_bar_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    common = load_example("common")
    monkeypatch.setattr(common, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(common.dist, "get_rank", lambda: 0)
    assert list(common.shown("abc", "epoch  7")) == list("abc")
    log = capsys.readouterr().err
    assert re.fullmatch(r"epoch  7: 1 of 3 minibatches, \d+ s left\nepoch  7: 2 of 3 minibatches, \d+ s left\n", log)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert list(common.shown("abc", "epoch  7")) == list("abc")
    assert re.search(r"\repoch  7: .*\| 0/3 ", capsys.readouterr().err)
    monkeypatch.setattr(common.dist, "get_rank", lambda: 1)
    assert list(common.shown("abc", "epoch  7")) == list("abc")
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_node_classification_beats_the_mlp_and_gradients_may_travel_by_mpi(example: Example) -> None:
    found = []
    for backend in ("gloo", "mpi4py"):
        flags = f"--num_epochs 4 --eval_every 4 --lr 0.02 --backend {backend}"
        output = example.run(3, "node_classification.py", flags)
        found.append(numbers(r"^test accuracy ([\d.]+) \(MLP baseline: ([\d.]+)\)$", output))
        times = re.findall(r"epoch +\d  loss [\d.]+ .*\(wait [\d.]+ s, compute [\d.]+ s; \d+ s left\)$", output, re.M)
        assert len(times) == 8, output
    sage, mlp = found[0]
    assert sage > mlp + 0.10, found
    assert found[0] == pytest.approx(found[1], abs=0.01)


@pytest.mark.slow
def test_partition_and_then_train_with_what_launch_sets(tmp_path: Path) -> None:
    output = run(*mpiexec(2), *warm_python(), EXAMPLES / "partition.py", cwd=tmp_path)
    assert output.count("of the edges are cut") == 1 and output.count("nodes,") == 4, output
    variables = {"NUM_SERVERS": 2, "PART_CONFIG": tmp_path / "data/example/example.json", "LOG_LEVEL": "INFO"}
    start = ["env", *(f"MPIGRAPH_{name}={value}" for name, value in variables.items()), *mpiexec(3), *warm_python()]
    options = "--graph_name example --num_epochs 1 --fan_out 2,2 --eval_fan_out 2 --num_hidden 8".split()
    done = run_job([*start, EXAMPLES / "node_classification.py", *options], clean_environment())
    assert done.status == 0 and "1 trainer(s), 2 host(s), 1 node(s)" in done.output, done.output
    assert "test accuracy" in done.output and "MLP" not in done.output  # which is for the generated graph


@pytest.mark.slow
def test_the_last_evaluation_is_the_same_layer_by_layer(example: Example, tmp_path: Path) -> None:
    mg.distributed.partition_graph(mg.data.generate(400, 4000, feat_dim=8, num_classes=4), "default", 2, tmp_path)
    flags = f"--part_config {tmp_path}/default.json --num_epochs 1 --fan_out 5,5 --num_hidden 16"
    written = tmp_path / "predictions"
    found = [
        numbers(r"^test accuracy ([\d.]+)", example.run(1, "node_classification.py", f"{flags} {how}"))
        for how in ("--eval minibatch", f"--eval layerwise --predictions {written}")
    ]
    assert found[0] == found[1], found
    assert len((written / "predictions.csv").read_text().splitlines()) == 401


@pytest.mark.slow
def test_unsupervised_beats_the_features(example: Example, tmp_path: Path) -> None:
    output = example.run(1, "unsupervised.py", f"--embeddings {tmp_path}/e.npy")
    assert np.load(tmp_path / "e.npy").shape == (5000, 64)
    learned, plain = numbers(r"^test accuracy by representations ([\d.]+), by features ([\d.]+)", output)
    assert learned > plain + 0.10, output


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "model"), [(1, "ComplEx"), (4, "DistMult")], ids=["python", "mpiexec"])
def test_knowledge_graph_finds_held_out_triples_whose_ranks_are_those_of_a_plain_loop(
    tmp_path: Path, example: Example, ranks: int, model: str
) -> None:
    script = tmp_path / "check.py"
    script.write_text(CHECK_RANKS)
    output = example.run(ranks, script, f"{EXAMPLES} --model {model} --num_epochs 2 --num_hidden 64", TWO_NODES)
    found, expected = numbers(r"^test MRR ([\d.]+) .* expected ([\d.]+)", output)
    assert found == pytest.approx(expected, abs=1e-3), output
    assert found > 0.4, output  # 0.007 by chance


LEARN = {
    "held-out edges rank high": (
        4, "link_prediction.py --num_epochs 1", r"^MRR ([\d.]+) .* hits@50 ([\d.]+)",
        lambda mrr, hits: mrr > 5 * 0.0075 and hits > 5 * 0.05),  # by chance: a rank from 1 to 1001
    "who obeys time predicts the next contacts better": (
        4, "temporal.py --num_epochs 2 --lr 0.01", r"(?s)^obeying time: MRR (\S+).*^ignoring time: MRR (\S+)",
        lambda obeying, ignoring: obeying > ignoring + 0.04),
    "learned rows of nodes beat a linear model": (
        4, "node_embedding.py --num_servers 0", r"^test accuracy ([\d.]+), of a linear model .* ([\d.]+)",
        lambda sage, linear: sage > linear + 0.30),
    "RGCN learns the subject of authors from their papers": (
        4, "rgcn.py --num_epochs 6 --eval_every 6 --num_hidden 32 --num_bases 3", r"^test accuracy ([\d.]+)",
        lambda accuracy: accuracy > 0.7),  # 0.125 by chance
    "RGCN learns from relations which label an entity has": (
        2, "rgcn.py --facts 200 --num_epochs 3 --eval_every 3 --num_hidden 32 --num_bases 8",
        r"^test accuracy ([\d.]+)", lambda accuracy: accuracy > 0.7),  # 0.125 by chance
    "a model of PyG beats the MLP": (
        4, "hgt_pyg.py --num_epochs 4 --eval_every 4 --fan_out 5,5 --num_hidden 32",
        r"^test accuracy ([\d.]+) \(MLP baseline: ([\d.]+)\)", lambda hgt, mlp: hgt > mlp + 0.10),
    "layers of PyG learn": (
        2, "pyg_layers.py", r"(?s)epoch 0  loss ([\d.]+).*epoch 4  loss ([\d.]+)",
        lambda first, last: last < first / 2),
}  # fmt: skip


@pytest.mark.parametrize("script", ["hgt_pyg.py", "pyg_layers.py"])
def test_examples_with_models_of_pyg_say_what_they_lack(script: str) -> None:
    code = "import runpy, sys; sys.path[0] = sys.argv[1]; sys.modules['torch_geometric'] = None; "
    code += "runpy.run_path(f'{sys.path[0]}/{sys.argv[2]}')"
    done = run_job([sys.executable, "-c", code, EXAMPLES, script], clean_environment())
    assert done.status == 1 and done.output == f"{script} needs PyG: pip install torch_geometric\n", done.output


@pytest.mark.slow
@pytest.mark.parametrize("what", LEARN)
def test_examples_learn(example: Example, what: str) -> None:
    ranks, command, pattern, learns = LEARN[what]
    script, _, flags = command.partition(" ")
    found = numbers(pattern, example.run(ranks, script, flags, TWO_NODES))
    assert learns(*found), found
