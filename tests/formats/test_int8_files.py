"""Graphs with features as int8, written for other packages, made graphs in memory, and staged: numbers come out."""

from pathlib import Path

import numpy as np
from int8 import as_int8
from jobs import run, warm_python

from mpigraph import convert
from mpigraph.metadata.schema import Schema
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.source import Feature, GraphSource

RNG = np.random.default_rng(0)
FEAT = RNG.standard_normal((90, 6)).astype(np.float32)
HALF = RNG.standard_normal((200, 2, 3)).astype(np.float16)
KEY = "_N:_E:_N"


def write(folder: Path) -> Path:
    nodes = {"feat": Feature.of(FEAT), "label": Feature.of(np.arange(90))}
    edges = {"half": Feature.of(HALF), "id": Feature.of(np.arange(200))}
    src, dst = RNG.integers(0, 90, (2, 200))
    source = GraphSource(Schema.homogeneous(), (90,), ((src, dst),), {"_N": nodes}, {KEY: edges})
    return partition_source(source, "g", 3, folder, "random", feat_dtype="int8").config_path


def check(nodes: dict[str, np.ndarray], edges: dict[str, np.ndarray]) -> None:
    half = as_int8(HALF.astype(np.float32))[1].astype(np.float16)
    for actual, expected in ((nodes["feat"], as_int8(FEAT)[1][nodes["label"]]), (edges["half"], half[edges["id"]])):
        assert actual.dtype == expected.dtype and np.array_equal(actual, expected)


def check_graph(path: Path) -> None:
    graph = convert.from_files(path)
    check(*({name: rows.numpy() for name, rows in data.items()} for data in (graph.ndata, graph.edata)))


def test_graphs_in_memory_and_staged_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "parts")
    check_graph(path)
    run(*warm_python(), "-m", "mpigraph", "stage", path, "--to", tmp_path / "local")
    check_graph(tmp_path / "local" / path.name)
    run(*warm_python(), "-m", "mpigraph", "verify", tmp_path / "local" / path.name)
