"""A partitioned graph as an input: the same graph under other ids, read in pieces, and traceable to the original."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from damaged import flip
from input_checks import bytes_in_memory
from typed_parts import TYPED, typed_source

from mpigraph.cli.main import main
from mpigraph.errors import GraphDataError, ShardFormatError
from mpigraph.formats.layout import add_reverse_edges
from mpigraph.formats.readers import read_source
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.storage import format as shard_format
from mpigraph.storage.contents import PartFiles
from mpigraph.storage.part_config import PartConfig
from mpigraph.storage.shard import ShardReader


def original() -> GraphSource:
    """The typed graph, with bool and bfloat16 features whose values tell the node or the edge."""
    source = typed_source()
    nodes = {ntype: dict(table) for ntype, table in source.node_feats.items()}
    nodes["paper"]["half"] = Feature(np.arange(180, dtype=np.uint16).reshape(90, 2), "bfloat16")
    edges = {key: dict(table) for key, table in source.edge_feats.items()}
    edges["author:writes:paper"]["even"] = Feature.of(np.arange(200) % 2 == 0)
    return replace(source, node_feats=nodes, edge_feats=edges)


SEGMENT = 64  # bytes under one checksum
SOURCE = original()
KEYS = [":".join(relation) for relation in SOURCE.schema.relations]


@pytest.fixture(scope="module")
def parts() -> Iterator[Path]:
    """The graph in three parts, with many small segments in each dataset."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_format, "_SEGMENT_BYTES", SEGMENT)
        path = partition_source(SOURCE, TYPED, 3, folder, "random", seed=5).path
        patch.undo()
        yield path


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of a few rows, so that a small graph has many."""
    monkeypatch.setattr(shard_format, "_SEGMENT_BYTES", SEGMENT)


def contents(path: Path) -> dict[str, np.ndarray]:
    """Sources, destinations and features in the order of the original ids, each of which is there once."""
    config = PartConfig.read(path)
    schema, found = config.schema, {}
    files = PartFiles(config)

    def read(which: str, name: str) -> np.ndarray:
        return np.concatenate([files.open(k, which).read(name) for k in range(config.num_parts)])

    orig = {ntype: read("part_graph", f"nodes/{ntype}/orig_ids") for ntype in schema.ntypes}
    for ntype, ids in orig.items():
        assert sorted(ids) == list(range(len(ids)))
        for name in config.node_features[ntype]:
            found[f"{ntype} {name}"] = read("node_feats", f"{ntype}/{name}")[np.argsort(ids)]
    for (src, _, dst), key in zip(schema.relations, KEYS, strict=True):
        degrees = [
            np.diff(files.open(k, "part_graph").read(f"relations/{key}/indptr")) for k in range(config.num_parts)
        ]
        ids = read("part_graph", f"relations/{key}/orig_ids")
        order = np.argsort(ids)
        assert sorted(ids) == list(range(len(ids)))
        found[f"{key} src"] = orig[src][read("part_graph", f"relations/{key}/indices")][order]
        found[f"{key} dst"] = np.repeat(orig[dst], np.concatenate(degrees))[order]
        for name in config.edge_features[key]:
            found[f"{key} {name}"] = read("edge_feats", f"{key}/{name}")[order]
    return found


def check_is_the_graph(path: Path) -> None:
    found = contents(path)
    for key, (src, dst) in zip(KEYS, SOURCE.edges, strict=True):
        assert np.array_equal(found[f"{key} src"], src) and np.array_equal(found[f"{key} dst"], dst)
    for table in (SOURCE.node_feats, SOURCE.edge_feats):
        for owner, features in table.items():
            for name, feature in features.items():
                assert np.array_equal(found[f"{owner} {name}"], feature.values), f"{owner} {name}"
    config = PartConfig.read(path)
    assert config.node_features["paper"]["half"].dtype == "bfloat16"
    assert config.edge_features["author:writes:paper"]["even"].dtype == "bool"


@pytest.mark.parametrize("method", ["random", pytest.param("metis", marks=pytest.mark.slow)])
@pytest.mark.parametrize("num_parts", [2, pytest.param(4, marks=pytest.mark.study)])
def test_a_graph_that_is_cut_again_is_the_graph(parts: Path, tmp_path: Path, num_parts: int, method: str) -> None:
    """Nodes, edges and features by original ids are those of the source, and so those of cutting it directly."""
    again = partition_source(read_source(parts), "again", num_parts, tmp_path, method, seed=1).path
    check_is_the_graph(again)
    assert PartConfig.read(again).num_parts == num_parts


@pytest.mark.usefixtures("small")
def test_arrays_are_read_as_they_are_asked_for(parts: Path) -> None:
    config = PartConfig.read(parts)
    source = read_source(parts)
    assert bytes_in_memory(source) == 0 and source.num_nodes == SOURCE.num_nodes
    rng = np.random.default_rng(0)
    files = PartFiles(config)
    for r, key in enumerate(KEYS):
        graphs = [files.open(part, "part_graph") for part in range(3)]
        wanted_src = np.concatenate([graph.read(f"relations/{key}/indices") for graph in graphs])
        degrees = np.concatenate([np.diff(graph.read(f"relations/{key}/indptr")) for graph in graphs])
        wanted_dst = np.repeat(np.arange(len(degrees)), degrees)
        for found, wanted in zip(source.edges[r], (wanted_src, wanted_dst), strict=True):
            assert (found.ndim, found.shape, found.dtype) == (1, wanted.shape, wanted.dtype)
            for begin in (0, 7, 60, 500):
                for size in (0, 1, 64):
                    assert np.array_equal(found[begin : begin + size], wanted[begin : begin + size])
            assert np.array_equal(found[::3], wanted[::3]) and np.array_equal(found[:], wanted)
    wanted = np.concatenate([files.open(part, "node_feats").read("paper/half") for part in range(3)])
    half = source.node_feats["paper"]["half"].values
    assert half.shape == (90, 2) and half.dtype == np.uint16
    for rows in (rng.permutation(90), np.sort(rng.integers(0, 90, 40)), rng.integers(0, 90, 200), np.arange(0)):
        assert np.array_equal(half[rows], wanted[rows])
    assert np.array_equal(half[80:200], wanted[80:]) and np.array_equal(half[::7], wanted[::7])


@pytest.mark.usefixtures("small")
def test_little_is_in_memory_at_once(parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The indptr of each part, once where one goes on; of the rows asked for what one checksum covers."""
    source = read_source(parts)
    known, reads = [], []
    read_indptr, read_into = PartFiles.read_indptr, ShardReader.read_into
    monkeypatch.setattr(PartFiles, "read_indptr", lambda f, *a: known.append(a) or read_indptr(f, *a))
    cites = SOURCE.schema.relation_id("cites")
    for begin in range(0, 200, 9):
        source.edges[cites][1][begin : begin + 9]
    assert [part for _, part, *_ in known] == [0, 1, 2]
    monkeypatch.setattr(
        ShardReader, "read_into", lambda s, n, out, b: reads.append(len(out)) or read_into(s, n, out, b)
    )
    source.node_feats["paper"]["half"].values[np.arange(90)[::-1]]
    assert sum(reads) == 90 and max(reads) <= 16  # of 4 bytes, as under one checksum


@pytest.mark.parametrize(
    "which, dataset, use",
    [
        ("part_graph", "relations/paper:cites:paper/indices", lambda s, r: s.edges[r][0][:]),
        ("part_graph", "relations/paper:cites:paper/indptr", lambda s, r: s.edges[r][1][:]),
        ("part_graph", "relations/paper:cites:paper/orig_ids", lambda s, r: s.edge_ids[r][:]),
        ("part_graph", "nodes/paper/orig_ids", lambda s, _: s.node_ids[3][np.arange(90)]),
        ("node_feats", "paper/half", lambda s, _: s.node_feats["paper"]["half"].values[np.arange(90)]),
        ("edge_feats", "paper:cites:paper/told", lambda s, r: s.edge_feats["paper:cites:paper"]["told"].values[:]),
    ],
)
def test_what_is_read_is_verified(parts: Path, tmp_path: Path, which: str, dataset: str, use) -> None:
    shutil.copytree(parts.parent, tmp_path / "bad")
    config = PartConfig.read(tmp_path / "bad" / parts.name)
    flip(config.part_path(1, which), dataset, 8 * 3)
    source = read_source(config.path)  # which reads no rows
    with pytest.raises(ShardFormatError, match=rf"part1/\w+\.h5: dataset '{dataset}' (is damaged|contradicts itself)"):
        use(source, SOURCE.schema.relation_id("cites"))


def test_a_partitioned_graph_gets_no_reverse_edges() -> None:
    with pytest.raises(GraphDataError, match="reverse edges cannot be added to a partitioned graph"):
        add_reverse_edges(replace(SOURCE, edge_ids=tuple(np.arange(len(src)) for src, _ in SOURCE.edges)))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda path, t: (path, path.parent), r"\S+: the parts of \S+typed\.json lie there, which are read"),
        (lambda path, t: ((t / "x.json").write_text("no") and t / "x.json", t / "to"), "x.json: not a valid JSON file"),
        (lambda path, t: (shutil.copy(path, t), t / "to"), "part0/graph.h5: shard file is missing"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], make, message: str
) -> None:
    before = {path: path.read_bytes() for path in parts.parent.rglob("*.*")}
    source, out = make(parts, tmp_path)
    assert main(["partition", str(source), "--parts", "2", "-o", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line), line
    assert {path: path.read_bytes() for path in parts.parent.rglob("*.*")} == before
