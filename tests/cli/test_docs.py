"""The reference has all public names, and the examples of docstrings run."""

import inspect
import re
from doctest import DocTestParser
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest
from jobs import clean_environment, generated, mpiexec, run_job, warm_python

import mpigraph
from mpigraph.cli.main import main

# The names with an example, in an order in which the examples run one after the other.
EXAMPLES = """
distributed.initialize distributed.DistGraph distributed.node_split distributed.trainers distributed.edge_split
dataloading.NeighborSampler dataloading.LaborSampler distributed.DistNodeDataLoader
dataloading.as_edge_prediction_sampler distributed.DistEdgeDataLoader distributed.DistTensor distributed.DistEmbedding
distributed.optim.SparseAdagrad nn.GATConv nn.SAGEConv inference.layerwise inference.write_predictions checkpoint.save
checkpoint.load FullGraph distributed.partition_graph
""".split()


def test_the_reference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "index.html")
    for name in "distributed dataloading nn inference checkpoint convert data function errors".split():
        module = import_module(f"mpigraph.{name}")
        text = (tmp_path / "mpigraph" / f"{name}.html").read_text()
        assert not re.search(r":\w+:`|``", text)
        for public in module.__all__:
            assert inspect.ismodule(getattr(module, public)) or f'id="{public}"' in text, public
    assert "TensorLike" in (tmp_path / "mpigraph" / "distributed.html").read_text()  # an alias by its name


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_examples_of_docstrings_run(tmp_path: Path, ranks: int) -> None:
    generated(
        tmp_path / "parts" / "S", "--nodes 200 --edges 2000 --feat-dim 16 --classes 4", "--parts 2 --method random"
    )
    script = ["import os, torch, mpigraph", f"os.chdir({str(tmp_path)!r})"]
    for name in EXAMPLES:
        text = inspect.getdoc(reduce(getattr, name.split("."), mpigraph))
        examples = DocTestParser().get_examples(text or "")
        assert examples, name
        script += [example.source for example in examples]
    (tmp_path / "script.py").write_text("\n".join(script))
    env = clean_environment() | {"MPIGRAPH_NUM_SERVERS": "0"}
    done = run_job([*mpiexec(ranks), *warm_python(), tmp_path / "script.py"], env)
    assert done.status == 0, done.output
    assert {"predictions", "checkpoints"} <= {path.name for path in tmp_path.iterdir()}


def test_every_example_is_run() -> None:
    root = Path(mpigraph.__file__).parent
    described = [path for path in root.rglob("*.py") for _ in range(path.read_text().count("    Example:\n"))]
    assert len(described) == len(EXAMPLES)
