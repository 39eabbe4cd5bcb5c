"""The reference: its links lead somewhere, and the examples of docstrings run."""

import inspect
import re
from doctest import DocTestParser
from functools import reduce
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
    folder = tmp_path / "reference"
    assert main(["docs", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "index.html")
    pages = {path.name: path.read_text() for path in folder.iterdir()}
    links = [(page, link) for page, text in pages.items() for link in re.findall(r'href="([^"]+)"', text)]
    for page, link in links:
        there, _, name = link.partition("#")
        assert there in pages and (not name or f'id="{name}"' in pages[there]), (page, link)
    for name in "distributed dataloading nn inference checkpoint convert data function errors".split():
        module = getattr(mpigraph, name, None) or __import__(f"mpigraph.{name}", fromlist=["x"])
        text = pages[f"mpigraph.{name}.html"]
        assert re.search(
            rf'<a href="mpigraph.{name}.html">mpigraph.{name}</a></h2><p>[A-Z].+?\.</p>', pages["index.html"]
        )
        for public in module.__all__:
            assert inspect.ismodule(getattr(module, public)) or f'id="{public}"' in text, public
    signature = re.search(r"<pre>DistNodeDataLoader\((.*?)</pre>", pages["mpigraph.distributed.html"])
    assert signature and "graph_sampler: BlockSampler" in signature[1] and len(signature[1]) < 700, signature
    for text in (":class:", "``", "Initialize self"):  # the last is object's
        assert text not in "".join(pages.values())
    assert main(["docs", str(folder)]) == 2


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
