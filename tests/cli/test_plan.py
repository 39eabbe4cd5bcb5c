"""``python -m mpigraph info --plan``: what it says is what opened graphs take, and what files have."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from layouts import ALONE, Layout, SharedJob, on_layouts
from oracle import NAME, oracle_source

from mpigraph.cli import plan
from mpigraph.cli.main import main
from mpigraph.cli.verify import bytes_on_disk
from mpigraph.errors import InvalidArgumentError, MPIGraphError
from mpigraph.partition.pipeline import partition_source
from mpigraph.session.context import current
from mpigraph.storage.part_config import PartConfig
from mpigraph.store.host_ranges import host_memory

NUM_NODES, NUM_EDGES = 40_001, 240_000
CLOSE = 0.02  # of a plan from sizes alone, which knows neither parts nor pages
AS_WORDS = (
    [str(NUM_NODES)],
    [str(NUM_EDGES)],
    [
        *("feat=3xfloat32", "label=int64", "orig=int64", "third=bool"),
        *("_N:_E:_N/edge=int64", "_N:_E:_N/weight=float32", "_N:_E:_N/even=bool"),
    ],
)


def large_oracle(directory: Path, num_parts: int) -> str:
    return str(partition_source(oracle_source(NUM_NODES), NAME, num_parts, directory, "random").config_path)


@on_layouts([ALONE, Layout(2, 0, 1), Layout(4, 1, 2)])
def test_a_plan_is_what_an_opened_graph_takes(job: SharedJob) -> None:
    path = job.write(large_oracle, 2)
    job.open(path)
    world, store = current().world, current().store
    of_hosts = host_memory(store.graphs[NAME].topology.config, store.graphs[NAME].topology.hosts)
    taken = max(int(of_hosts[world.nodes_of_hosts == node].sum()) for node in range(world.num_nodes))
    wide = [tensor.window for tensor in store.tensors.values() if tensor.window.row_shape]
    features = max(int(np.diff(window.offsets)[0]) * window.row_bytes for window in wide)
    for config in (PartConfig.read(path), plan.described(*AS_WORDS)):
        sizes = plan.plan(config, world.num_nodes, world.size)
        assert sizes.topology + sizes.columns + sizes.features == pytest.approx(taken, rel=CLOSE)
        assert sizes.features == pytest.approx(features, rel=CLOSE)


@pytest.mark.parametrize("num_nodes", [1, 2, 4])
def test_the_files_of_a_node(num_nodes: int, tmp_path: Path) -> None:
    config = PartConfig.read(large_oracle(tmp_path, 4))
    files = [bytes_on_disk(config, part) for part in range(4)]
    largest = max(map(sum, np.array(files).reshape(num_nodes, -1)))
    for planned in (config, plan.described(*AS_WORDS)):
        assert plan.plan(planned, num_nodes, 1).files == pytest.approx(largest, rel=2 * CLOSE)


MAG240M = """--nodes paper=121751666 author=122383112 institution=25721
    --edges author:writes:paper=386022720 paper:rev-writes:author=386022720 paper:cites:paper=1297748926
    --features paper/feat=768xfloat16 author/feat=768xfloat16 institution/feat=768xfloat16 paper/label=int64""".split()


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = main(["info", *map(str, words)])
    return status, *capsys.readouterr()


def test_a_graph_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--plan", "2,8", *MAG240M, "--memory", "256GiB", "--json")
    two, eight = json.loads(out)
    nodes, edges = 121_751_666 + 122_383_112 + 25_721, 2 * 386_022_720 + 1_297_748_926
    tables = 2 * 8 * (2 * 121_751_666 + 122_383_112) + 4 * edges  # two tables for each relation's ends, and sources
    assert status == 0 and (two["num_nodes"], eight["num_nodes"]) == (2, 8)
    for sizes in (two, eight):
        assert sizes["features"] == pytest.approx(1536 * nodes / sizes["num_nodes"], rel=1e-6)
        assert sizes["topology"] == pytest.approx(tables / sizes["num_nodes"], rel=1e-5)
    _, out, _ = run(capsys, "--plan", "2,8", *MAG240M, "--memory", "128GiB")
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["nodes", "2", "8"]
    assert "(too much)" in lines[2] and "(too much)" not in lines[3]


def test_a_plan_of_a_configuration(oracle: Callable[[int], str], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, oracle(3), "--plan", "1", "--trainers", 2, "--servers", 0)
    assert status == 0 and "2 ranks" in out and math.isclose(2 * plan.PROCESS / 2**20, 600)


@pytest.mark.parametrize(
    "words, what",
    [
        (["--plan", "2"], "needs PART_CONFIG, or both --nodes and --edges"),
        (["--plan", "2", "--nodes", "5"], "both"),
        (["x.json", "--plan", "2", "--nodes", "5", "--edges", "7"], "both"),
        (["--plan", "2,x", "--nodes", "5", "--edges", "7"], "--plan must be integers >= 1 such as 2,4,8"),
        (["--plan", "0", "--nodes", "5", "--edges", "7"], "--plan must be"),
        (["--plan", "2", "--nodes", "5", "--edges", "7", "--memory", "big"], "a size"),
        (["--plan", "2", "--nodes", "many", "--edges", "7"], "--nodes must be a number such as 1.5G"),
        (["--plan", "2", "--nodes", "-5", "--edges", "7"], "--nodes must be"),
        (["--plan", "2", "--nodes", "a=5", "--edges", "7"], "_N"),
        (["--plan", "2", "--nodes", "5", "--edges", "7", "--features", "x"], "NAME="),
        (["--plan", "2", "--nodes", "5", "--edges", "7", "--features", "b/x=float32"], "of _N, _N:_E:_N"),
        (["--plan", "2", "--nodes", "5", "--edges", "7", "--features", "x=12xfloat33"], "float33"),
        (["--plan", "2", "--nodes", "5", "--edges", "7", "--servers", "-1"], "--servers must be"),
        ([], "info needs PART_CONFIG, or --plan"),
    ],
)
def test_wrong_words(words: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, *words)
    assert status == 2 and out == "" and what in err and err.count("\n") == 1


def test_a_name_without_a_type_is_of_the_first() -> None:
    config = plan.described(["a=5", "b=7"], ["a:r:b=10"], ["x=float32", "b/y=2xint8"])
    assert list(config.node_features["a"]) == ["x"] and config.node_features["b"]["y"].shape == (2,)
    with pytest.raises(InvalidArgumentError):
        plan.described(["a=5"], ["a:r:a=1"], ["a/x=2.5xfloat32"])
    with pytest.raises(MPIGraphError):
        plan.described(["a=5"], ["a:r:c=1"], [])
