"""``python -m mpigraph info --fanouts``: the expected input rows are the means of drawn minibatches."""

import json
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import mpigraph as mg
from mpigraph.cli.expected_rows import Minibatch, expected_rows
from mpigraph.cli.info import run as run_command
from mpigraph.dataloading import LaborSampler, NeighborSampler
from mpigraph.metadata.schema import Schema
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.source import GraphSource
from mpigraph.storage.contents import PartFiles
from mpigraph.storage.part_config import PartConfig

Outcome = tuple[int, str, str]
NODES, PART = 4000, 1


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[PartConfig, mg.HeteroGraph]:
    """A graph of hubs and about 25 in-neighbours of a node, in two parts, whose nodes keep their ids; and a copy."""
    rng = np.random.default_rng(0)
    dst, src = np.unique(
        np.stack([NODES * rng.random(100_000) ** 1.3, NODES * rng.random(100_000) ** 1.7]).astype(np.int64), axis=1
    )
    source = GraphSource(Schema.homogeneous(), (NODES,), ((src, dst),), {}, {})
    folder = tmp_path_factory.mktemp("parts")
    halves = np.arange(NODES) * 2 // NODES
    result = partition_source(source, "hubs", 2, folder, "given", assignment=halves)
    g = mg.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=NODES)
    return PartConfig.read(str(result.config_path)), g


def seeds_of(count: int) -> torch.Tensor:
    """The seeds that are taken for part 1."""
    return torch.from_numpy(NODES // 2 + np.random.default_rng(PART).permutation(NODES // 2)[:count])


@pytest.mark.parametrize("fanouts", [[5], [10, 5], [5, 5, 5], [3, -1]])
def test_expected_rows_are_means_of_drawn_ones(parts: tuple[PartConfig, mg.HeteroGraph], fanouts: list[int]) -> None:
    config, g = parts
    torch.manual_seed(0)
    with PartFiles(config) as files:
        expected = expected_rows(files, PART, Minibatch(fanouts, 40, 0))
    for name, sampler in (("uniform", NeighborSampler(fanouts)), ("labor", LaborSampler(fanouts))):
        inputs = [sampler.sample_blocks(g, seeds_of(40))[0] for _ in range(30)]
        rows = np.mean([len(of_batch) for of_batch in inputs])
        remote = np.mean([int((of_batch < NODES // 2).sum()) for of_batch in inputs])
        assert abs(rows / expected[name]["inputs"] - 1) < 0.025
        assert abs(remote / expected[name]["remote"] - 1) < 0.04
    assert expected["labor"]["inputs"] < expected["uniform"]["inputs"]


def test_all_neighbours_are_counted_exactly(parts: tuple[PartConfig, mg.HeteroGraph]) -> None:
    config, g = parts
    inputs, _, _ = NeighborSampler([-1, -1]).sample_blocks(g, seeds_of(3))
    with PartFiles(config) as files:
        for draws in expected_rows(files, PART, Minibatch([-1, -1], 3, 0)).values():
            assert draws == {"inputs": len(inputs), "remote": int((inputs < NODES // 2).sum())}
        assert expected_rows(files, PART, Minibatch([0], 3, 0))["labor"] == {"inputs": 3, "remote": 0}
        assert expected_rows(files, PART, Minibatch([5], 10**9, 0))["labor"]["inputs"] > NODES // 2


@pytest.mark.parametrize("comm", [1, 2], indirect=True)
def test_info_prints_them(typed_oracle: str, oracle: Callable[..., str], run_on: Callable[..., Outcome]) -> None:
    path = oracle(4, "given")
    status, out, _ = run_on(run_command, path, True, "3,4", 10)
    listed = [part["expected_rows"] for part in json.loads(out)["parts"]]
    assert status == 0
    with PartFiles(PartConfig.read(path)) as files:
        assert listed == [expected_rows(files, part, Minibatch([3, 4], 10, 0)) for part in range(4)]
    status, out, _ = run_on(run_command, path, False, "3,4", 10)
    title, names, *lines = out.splitlines()[-6:]
    assert status == 0 and title.startswith("input rows that a minibatch")
    assert names.split() == "part uniform of other parts LABOR of other parts LABOR / uniform".split()
    assert all(re.fullmatch(rf" *{part}( +\d+){{4}} +[01]\.\d\d", line) for part, line in enumerate(lines))
    status, out, _ = run_on(run_command, typed_oracle, True, "2", 5, "paper")
    assert status == 0 and all(part["expected_rows"]["labor"]["inputs"] >= 5 for part in json.loads(out)["parts"])


def test_memory_is_that_of_one_table(tmp_path: Path) -> None:
    """40 numbers of 4 bytes for each node; what is computed from them is computed in pieces."""
    nodes = 300_000
    ends = np.arange(1, 100), np.zeros(99, np.int64)
    source = GraphSource(Schema.homogeneous(), (nodes,), (ends,), {}, {})
    result = partition_source(source, "star", 1, tmp_path, "given", assignment=np.zeros(nodes, np.int64))
    tracemalloc.start()
    try:
        with PartFiles(PartConfig.read(str(result.config_path))) as files:
            rows = expected_rows(files, 0, Minibatch([3], nodes, 0))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert rows["labor"]["inputs"] == nodes
    assert peak < 2 * nodes * 160


@pytest.mark.parametrize("comm", [2], indirect=True)
def test_wrong_options_are_named(typed_oracle: str, run_on: Callable[..., Outcome]) -> None:
    for options, says in (
        (("2,x", 5, "paper"), "--fanouts must be integers >= -1 such as"),
        (("2", 0, "paper"), "--batch-size must be an integer >= 1"),
        (("2", 5, "papers"), "--seeds must be a node type, one of .*got 'papers'"),
        (("2", 5, None), "--seeds must be a node type"),
    ):
        status, out, errors = run_on(run_command, typed_oracle, False, *options)
        assert status == 2 and out == "" and re.search(says, errors)


def test_it_is_a_command(oracle: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    from mpigraph.cli.main import main

    path = Path(oracle(4, "given"))
    assert main(["info", str(path), "--fanouts", "2,2", "--batch-size", "4", "--json"]) == 0
    assert "expected_rows" in json.loads(capsys.readouterr().out)["parts"][0]
