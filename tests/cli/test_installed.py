"""The library as users have it: from a wheel, without the checkout."""

import os
import re
import sys
from pathlib import Path

import pytest
from installed import install, ran
from jobs import ROOT, clean_environment, run_job

pytestmark = pytest.mark.slow
PARTITION = """
import mpigraph as mg
g = mg.data.generate(1000, 16000, feat_dim=16, num_classes=4, homophily=0.9)
for ours, theirs in (("feat", "features"), ("label", "labels")):
    g.ndata[theirs] = g.ndata.pop(ours)
mg.distributed.partition_graph(g, "g", 2, "parts", part_method="random")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel."""
    return install(tmp_path_factory.mktemp("installed"), tmp_path_factory.mktemp("made"))


def test_examples_and_slurm_scripts_come_along(installed: Path, tmp_path: Path) -> None:
    where = ran(installed, tmp_path, "-c", "import mpigraph; print(mpigraph.__file__)").stdout
    assert Path(where.strip()).is_relative_to(installed.parents[1])
    for name, some in (("examples", "quickstart.py"), ("slurm", "train.sbatch")):
        copied = ran(installed, tmp_path, "-m", "mpigraph", name, name)
        assert os.path.join(name, some) in copied.stdout.splitlines(), copied.output
        assert (tmp_path / name / some).read_text() == (ROOT / name / some).read_text()
        documents = list((tmp_path / name).rglob("*.md"))
        texts = [(path.parent, re.sub("```.*?```", "", path.read_text(), flags=re.DOTALL)) for path in documents]
        links = [folder / to for folder, text in texts for to in re.findall(r"\]\((?!http|#)([^)#]+)", text)]
        assert len(links) > 3 and [link for link in links if not link.exists()] == []
        again = ran(installed, tmp_path, "-m", "mpigraph", name, name)
        assert again.status == 2 and "give another folder" in again.stderr
    done = ran(installed, tmp_path, "examples/quickstart.py", ranks=2)
    assert done.status == 0 and float(done.stdout.split()[-1]) > 0.5, done.output


def test_a_script_of_dgl(installed: Path, tmp_path: Path) -> None:
    script = ROOT / "tests" / "compat" / "scripts" / "node_classification.py"
    (tmp_path / "train.py").write_text(script.read_text())
    assert ran(installed, tmp_path, "-c", PARTITION).status == 0
    words = ("-m", "mpigraph", "run", "--as-dgl", "train.py", "--graph_name", "g", "--part_config", "parts/g.json")
    done = ran(installed, tmp_path, *words, ranks=2)
    accuracy = re.search(r"^Val Acc ([\d.]+)$", done.stdout, re.MULTILINE)
    assert done.status == 0 and accuracy and float(accuracy[1]) > 0.7, done.output  # a quarter by chance


def test_types_of_an_installed_library(installed: Path, tmp_path: Path) -> None:
    ran(installed, tmp_path, "-m", "mpigraph", "examples", "examples")
    (tmp_path / "examples" / "typed.py").write_text(
        "import mpigraph as mg\n"
        "def length(g: mg.distributed.DistGraph, sampler: mg.dataloading.NeighborSampler) -> int:\n"
        "    for _, _, blocks in mg.distributed.DistNodeDataLoader(g, [0], sampler, num_workers=2):\n"
        "        reveal_type(blocks)\n"
        "    for batch in mg.distributed.DistEdgeDataLoader(g, [0], sampler, negative_sampler=lambda *_: ([], [])):\n"
        "        reveal_type(batch)\n"
        "    mg.distributed.DistEdgeDataLoader(g, [0], sampler, shufle=True)\n"
        "    return len(mg.distributed.DistNodeDataLoader(g, None, sampler, output='pyg'))\n"
        "reveal_type(mg.graph)\n"
    )
    mypy = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--python-executable", installed]
    done = run_job([*mypy, "quickstart.py", "typed.py"], clean_environment(), cwd=tmp_path / "examples")
    assert "quickstart.py" not in done.output, done.output
    for line, said in (
        (4, "list[mpigraph.graphs.block.Block]"),
        (6, "HeteroGraph, mpigraph.graphs.hetero.HeteroGraph, list[mpigraph.graphs.block.Block]"),
        (7, 'argument "shufle"'),
        (8, '"None"'),
        (9, "HeteroGraph"),
    ):
        assert re.search(rf"^typed.py:{line}:.*{re.escape(said)}", done.output, re.MULTILINE), done.output
