"""Scripts as users of DGL write them, unmodified: one rank, two, and four on two simulated nodes, with servers."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from jobs import ROOT, mpiexec, run, warm_python

import mpigraph as mg

SCRIPTS = ROOT / "tests" / "compat" / "scripts"
CLASSES = 4
STARTS = {1: [], 2: ["MPIGRAPH_NUM_SERVERS=0"], 4: ["MPIGRAPH_RANKS_PER_NODE=2"]}  # remote rows and servers on four


def plain() -> mg.HeteroGraph:
    g = mg.data.generate(1000, 16000, feat_dim=16, num_classes=CLASSES, homophily=0.9)
    for ours, theirs in (("feat", "features"), ("label", "labels")):
        g.ndata[theirs] = g.ndata.pop(ours)
    return g


def typed() -> mg.HeteroGraph:
    """Papers of four classes, which cite papers and have authors of their class; labels are in weak features."""
    random = np.random.default_rng(0)
    papers, authors = 600, 200
    label = random.integers(0, CLASSES, papers)
    of_class = [np.flatnonzero(label == c) for c in range(CLASSES)]
    cites = np.repeat(np.arange(papers), 4), np.concatenate([random.choice(of_class[c], 4) for c in label])
    writers = np.concatenate([random.choice(authors // CLASSES, 3, replace=False) * CLASSES + c for c in label])
    written = np.repeat(np.arange(papers), 3)
    g = mg.heterograph(
        {
            ("author", "writes", "paper"): (writers, written),
            ("paper", "cites", "paper"): cites,
            ("paper", "rev-writes", "author"): (written, writers),
        },
        {"author": authors, "paper": papers},
    )
    hidden = 0.5 * np.eye(CLASSES)[label] + 0.5 * random.standard_normal((papers, CLASSES))
    data = g.nodes["paper"].data
    data["feat"], data["labels"] = torch.tensor(hidden, dtype=torch.float32), torch.tensor(label)
    data["train_mask"] = torch.arange(papers) % 2 == 0
    data["val_mask"] = torch.arange(papers) % 2 == 1
    return g


def in_two_parts(g: mg.HeteroGraph, folder: Path) -> Path:
    mg.distributed.partition_graph(g, "g", 2, folder / "parts", part_method="random")
    return folder / "parts" / "g.json"


def start(ranks: int, script: str, part_config: Path, *flags: object, cwd: Path) -> str:
    env = ["env", f"MPIGRAPH_PART_CONFIG={part_config}", *STARTS[ranks]]
    command = ["-m", "mpigraph", "run", "--as-dgl", SCRIPTS / script]
    return run(*mpiexec(ranks), *env, *warm_python(), *command, *flags, cwd=cwd)


def on(few: int) -> pytest.MarkDecorator:
    """Runs a test on one number of ranks here, and as a study on the others."""
    marks = [pytest.param(ranks, marks=[] if ranks == few else pytest.mark.study) for ranks in STARTS]
    return pytest.mark.parametrize("ranks", marks)


@on(4)
def test_node_classification(ranks: int, tmp_path: Path) -> None:
    config = in_two_parts(plain(), tmp_path)
    output = start(
        ranks, "node_classification.py", config, "--graph_name", "g", "--ip_config", "ip_config.txt", "--part_config",
        config, "--use_graphbolt", cwd=tmp_path,
    )  # fmt: skip
    (accuracy,) = re.findall(r"^Val Acc ([\d.]+)$", output, re.MULTILINE)
    assert float(accuracy) > 0.7, output  # a quarter by chance


@pytest.mark.slow
@on(4)
def test_entity_classification(ranks: int, tmp_path: Path) -> None:
    config = in_two_parts(typed(), tmp_path)
    output = start(ranks, "entity_classify.py", config, "--graph-name", "g", "--conf-path", config, cwd=tmp_path)
    (accuracy,) = re.findall(r"^Val Acc ([\d.]+)$", output, re.MULTILINE)
    assert float(accuracy) > 0.7, output  # a quarter by chance
