"""Real graphs, where they are at hand: the whole path from an npz file to a known accuracy."""

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from jobs import EXAMPLES, mpiexec, run
from layouts import alone
from reference_sage import with_dense_rows

import mpigraph as mg
import mpigraph.distributed as dist
from mpigraph.cli.main import main

DATA = os.environ.get("MPIGRAPH_TEST_DATA", "")
SETTINGS = "--fan_out 25,10 --batch_size 140 --num_hidden 64 --feat_drop 0.5 --norm 2 --lr 0.01 --weight_decay 5e-4"


@pytest.mark.skipif(not DATA, reason="set MPIGRAPH_TEST_DATA to a directory with cora.npz")
@pytest.mark.parametrize("ranks", [1, 3], ids=["python", "mpiexec"])
def test_cora(tmp_path: Path, ranks: int) -> None:
    cora = str(with_dense_rows(f"{DATA}/cora.npz", tmp_path))
    assert main(["partition", cora, "--parts", "2", "-o", str(tmp_path), "--name", "cora"]) == 0
    script = [sys.executable, EXAMPLES / "node_classification.py", "--graph_name", "cora"]
    config = ["--part_config", tmp_path / "cora.json", "--num_epochs", "100", "--eval_every", "100"]
    output = run(*mpiexec(ranks), *script, *config, *SETTINGS.split())
    assert float(re.search(r"^test accuracy ([\d.]+)", output, re.MULTILINE).group(1)) >= 0.78, output


@pytest.mark.skipif(not Path(DATA, "fb15k237.npz").is_file(), reason="set MPIGRAPH_TEST_DATA to where fb15k237.npz is")
def test_fb15k_has_its_own_relations(tmp_path: Path) -> None:
    """From an npz file with names such as /tv/tv_program/regular_cast./tv/regular_tv_appearance/actor to a step."""
    with np.load(Path(DATA, "fb15k237.npz")) as given:
        names = [name.decode() for name in given["relation_names"]]
        triples = np.stack([given["train_src"], given["train_rel"], given["train_dst"]]).astype(np.int64)
        count = given["num_entities"]
    arrays = {"entity__num_nodes": count, "entity__x": np.arange(count, dtype=np.float32)[:, None]}
    for number, name in enumerate(names):
        of_relation = triples[:, triples[1] == number]
        arrays |= {f"entity__{name}__entity__{end}": of_relation[i] for end, i in (("src", 0), ("dst", 2))}
    np.savez(tmp_path / "fb.npz", **arrays)
    words = ["partition", str(tmp_path / "fb.npz"), "--parts", "2", "--method", "random", "-o", str(tmp_path / "fb")]
    assert main(words) == 0

    def step() -> None:
        g = dist.DistGraph("fb", part_config=tmp_path / "fb" / "fb.json")
        assert sorted(g.etypes) == sorted(names) and len(names) == 237
        assert [g.num_edges(name) for name in names] == np.bincount(triples[1], minlength=237).tolist()
        sampler = mg.dataloading.NeighborSampler([5])
        loader = dist.DistNodeDataLoader(g, {"entity": torch.arange(64)}, sampler, batch_size=64, features=["x"])
        model = mg.nn.HeteroGraphConv({name: mg.nn.GraphConv(1, 4, norm="right") for name in names})
        for _, _, (block,) in loader:
            model(block, {"entity": block.srcdata["x"]})["entity"].sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())

    alone(step)
