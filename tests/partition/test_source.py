"""Graphs whose features are stored narrower: what the files hold, on any number of ranks, resumed, and cut again."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from layouts import shared_folder
from mpi4py import MPI
from typed_parts import check_equal

import mpigraph
from mpigraph.cli.main import main
from mpigraph.errors import CollectiveError, FieldNameError, GraphDataError, InvalidArgumentError, ShardFormatError
from mpigraph.formats.readers import read_source
from mpigraph.metadata.schema import Schema
from mpigraph.partition.over_mpi import MPIExchange
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.storage.part_config import FeatureInfo, PartConfig

NODES, EDGES = 90, 400
RNG = np.random.default_rng(3)
FEAT = RNG.standard_normal((NODES, 6)).astype(np.float32)
EDGE_FEAT = RNG.standard_normal((EDGES, 2))
KEY = "_N:_E:_N"


def graph() -> GraphSource:
    src, dst = RNG.integers(0, NODES, (2, EDGES))
    nodes = {"feat": Feature.of(FEAT), "label": Feature.of(np.arange(NODES)), "rank": Feature.of(FEAT[:, 0].copy())}
    edges = {"feat": Feature.of(EDGE_FEAT), "weight": Feature.of(np.arange(EDGES, dtype=np.float32))}
    return GraphSource(Schema.homogeneous(), (NODES,), ((src, dst),), {"_N": nodes}, {KEY: edges})


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def check_features(path: Path, node_dtype: torch.dtype, edge_dtype: torch.dtype) -> None:
    """The rows are those of the graph, rounded, in the dtypes that they had."""
    config = PartConfig.read(path)
    for part in range(config.num_parts):
        _, nodes, edges, _, _, _, _ = mpigraph.distributed.load_partition(path, part)
        ids = nodes["_N/label"]
        assert torch.equal(nodes["_N/feat"], torch.from_numpy(FEAT)[ids].to(node_dtype).float())
        assert torch.equal(nodes["_N/rank"], torch.from_numpy(FEAT)[ids, 0])
        ids = edges[f"{KEY}/weight"].long()
        assert torch.equal(edges[f"{KEY}/feat"], torch.from_numpy(EDGE_FEAT)[ids].to(edge_dtype).double())


@pytest.mark.parametrize("comm", [1, 3], indirect=True)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_files_hold_rounded_rows_on_any_number_of_ranks(comm: MPI.Intracomm, dtype: str) -> None:
    source = graph() if comm.rank == 0 else None
    source = comm.bcast(source)
    with shared_folder(comm) as folder:
        partition_source(source, "g", 4, folder / "found", "random", exchange=MPIExchange(comm), feat_dtype=dtype)
        if comm.rank == 0:
            path = partition_source(source, "g", 4, folder / "one", "random", feat_dtype=dtype).path
            check_equal(folder / "one", folder / "found")
            check_features(path, getattr(torch, dtype), getattr(torch, dtype))
            config = PartConfig.read(path)
            assert config.node_features["_N"]["feat"] == FeatureInfo("float32", (6,), dtype)
            assert config.edge_features[KEY]["feat"] == FeatureInfo("float64", (2,), dtype)
            assert config.edge_features[KEY]["weight"] == FeatureInfo("float32", ())


def test_parts_with_other_features_are_refused(tmp_path: Path) -> None:
    """Topology and assignment are the same; so is the identity, by which checkpoints know a graph."""
    source = graph()
    path = partition_source(source, "g", 2, tmp_path / "a", "random").path
    source.node_feats["_N"]["feat"] = Feature.of(FEAT * 2)
    other = partition_source(source, "g", 2, tmp_path / "b", "random").path
    assert PartConfig.read(path).identity == PartConfig.read(other).identity
    shutil.copy(tmp_path / "b/part1/node_feat.h5", tmp_path / "a/part1/node_feat.h5")
    with pytest.raises(ShardFormatError, match=r"part1/node_feat.h5: belongs to another partitioning"):
        read_source(path).node_feats["_N"]["feat"].values[:]


@pytest.mark.parametrize("comm", [2], indirect=True)
def test_an_error_is_the_same_on_every_rank(comm: MPI.Intracomm) -> None:
    source = comm.bcast(graph() if comm.rank == 0 else None)
    exchange = MPIExchange(comm)
    with shared_folder(comm) as folder:
        with pytest.raises(FieldNameError, match="no feature 'x'"):
            partition_source(source, "g", 2, folder, "random", exchange=exchange, feat_dtype={"x": "float16"})
        different = ("float16", "bfloat16")[comm.rank]
        with pytest.raises(CollectiveError, match="these differ:\n  features: .* on rank 1"):
            partition_source(source, "g", 2, folder, "random", exchange=exchange, feat_dtype=different)
        large = FEAT.copy()
        large[17, 4] = 1e5
        source.node_feats["_N"]["feat"] = Feature.of(large)
        with pytest.raises(
            GraphDataError, match=r"row 17: node feature 'feat' of '_N': 100000\.0, column 4 .* float16"
        ):
            partition_source(source, "g", 2, folder, "random", exchange=exchange, feat_dtype="float16")


def test_what_is_cut_again_stays_in_16_bits(tmp_path: Path) -> None:
    first = partition_source(graph(), "g", 3, tmp_path / "a", "random", feat_dtype={"feat": "bfloat16"}).path
    second = partition_source(read_source(first), "g", 4, tmp_path / "b", "random", feat_dtype="float16").path
    check_features(second, torch.bfloat16, torch.bfloat16)
    third = partition_source(read_source(first), "g", 2, tmp_path / "c", "metis").path
    check_features(third, torch.bfloat16, torch.bfloat16)
    with pytest.raises(InvalidArgumentError, match="is stored as bfloat16"):
        partition_source(read_source(first), "g", 2, tmp_path / "d", "random", feat_dtype={"feat": "float16"})


def test_the_command_line(tmp_path: Path, capsys) -> None:
    src, dst = graph().edges[0]
    feat = np.where(np.abs(FEAT) < 2.0**-14, 0, FEAT)
    np.savez(tmp_path / "g.npz", edge_src=src, edge_dst=dst, feat=feat, label=np.arange(NODES))
    command = ["partition", str(tmp_path / "g.npz"), "--parts", "2", "--method", "random", "--name", "g"]
    command += ["-o", str(tmp_path / "out")]
    assert main([*command, "--feat-dtype", "feat=bfloat16"]) == 0
    assert main([*command, "--feat-dtype", "float16"]) == 0
    path = tmp_path / "out" / "g.json"
    assert PartConfig.read(path).node_features["_N"]["feat"].narrow == "float16"
    assert main(["verify", str(path)]) == 0 and main(["info", str(path)]) == 0
    assert "feat float32[6] as float16" in capsys.readouterr().out
    feat[5, 2] = -7e4
    np.savez(tmp_path / "large.npz", edge_src=src, edge_dst=dst, feat=feat)
    for source, values, text in (
        ("g", ["int8"], "feat_dtype must be one of ['float16', 'bfloat16'] (got 'int8')"),
        ("g", ["label=float16"], "'label' of '_N' is int64"),
        ("g", ["float16", "feat=float16"], "--feat-dtype must be DTYPE, or NAME=DTYPE, once for each name"),
        ("large", ["float16"], "row 5: node feature 'feat' of '_N': -70000.0, column 2 does not fit float16"),
    ):
        command[1] = str(tmp_path / f"{source}.npz")
        assert main([*command, *(word for value in values for word in ("--feat-dtype", value))]) == 2
        assert text in capsys.readouterr().err
