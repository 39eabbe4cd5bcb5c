"""Partitioned graphs written for DGL and PyG: read again with the same parts they are the same, bit for bit."""

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from damaged import flip
from odd_names import NAMES, odd_source
from typed_parts import typed_source

from mpigraph.cli.main import main
from mpigraph.errors import GraphDataError
from mpigraph.formats.readers import read_source
from mpigraph.formats.shards import read_partition
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, relation_key
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.storage.shard import ShardReader

COUNTS = {"author": 40, "field": 2, "paper": 90}
EDGES = {
    ("author", "likes", "paper"): 2,
    ("author", "writes", "paper"): 200,
    ("field", "hosts", "author"): 0,
    ("paper", "cites", "paper"): 200,
}


def typed() -> GraphSource:
    source = typed_source(COUNTS, EDGES)
    papers = source.node_feats["paper"] | {"half": Feature.of(np.arange(180, dtype=np.float16).reshape(90, 2))}
    return replace(source, node_feats=source.node_feats | {"paper": papers})


def plain() -> GraphSource:
    return typed_source({DEFAULT_NTYPE: 70}, {DEFAULT_ETYPE: 400})


def run(*arguments: object) -> None:
    assert main(list(map(str, arguments))) == 0


def check_equal(found: Path, given: Path) -> None:
    """Check that two partitions hold the same rows of everything."""
    some, other = read_partition(found), read_partition(given)
    assert some.schema == other.schema and np.array_equal(some.parts.of_nodes, other.parts.of_nodes)
    arrays = []
    for source in (some, other):
        rows = {f"end {r} {i}": end for r, ends in enumerate(source.edges) for i, end in enumerate(ends)}
        rows |= {f"ids {i}": ids for i, ids in enumerate(source.node_ids + source.edge_ids)}
        for feats in (source.node_feats, source.edge_feats):
            for key, table in feats.items():
                rows |= {f"{key}/{name}/{feature.dtype}": feature.values for name, feature in table.items()}
        arrays.append(rows)
    assert set(arrays[0]) == set(arrays[1])
    for name, rows in arrays[0].items():
        assert np.array_equal(rows[:], arrays[1][name][:]), name


@pytest.mark.parametrize("make", [typed, plain])
@pytest.mark.parametrize("target", ["dgl", "pyg"])
def test_export_and_partition_again(tmp_path, make, target):
    """The chunks' own counts are read in the next test."""
    given = partition_source(make(), "g", 3, tmp_path / "in", "random", seed=4).config_path
    out = tmp_path / target
    run("export", given, "--format", target, "-o", out)
    # a relation with fewer edges than there are chunks has files without a line
    if target == "dgl":  # as later versions of DGL have it
        metadata = json.loads((out / "metadata.json").read_text())
        del metadata["num_nodes_per_chunk"], metadata["num_edges_per_chunk"]
        (out / "metadata.json").write_text(json.dumps(metadata))
    kept = ["--assignment", out / "partition", "--parts", 3] if target == "dgl" else []
    run("partition", out, *kept, "--name", "g", "-o", tmp_path / "again")
    check_equal(tmp_path / "again" / "g.json", given)


def rows_by_name(path: Path) -> dict[tuple[object, ...], list[object]]:
    """All rows of a partition by the names and the original ids."""
    source = read_partition(path)
    found: dict[tuple[object, ...], list[object]] = {}
    for t, ntype in enumerate(source.schema.ntypes):
        order = np.argsort(source.node_ids[t][:])
        for name, feature in source.node_feats[ntype].items():
            found[ntype, name] = np.asarray(feature.values[:])[order].tolist()
    for r, relation in enumerate(source.schema.relations):
        order = np.argsort(source.edge_ids[r][:])
        for name, feature in source.edge_feats[relation_key(relation)].items():
            found[relation, name] = np.asarray(feature.values[:])[order].tolist()
    return found


@pytest.mark.parametrize("target", ["dgl", pytest.param("pyg", marks=pytest.mark.slow)])
def test_odd_names_are_changed_and_come_back(tmp_path, target, caplog):
    given = partition_source(odd_source(), "g", 2, tmp_path / "in", "random", seed=4).config_path
    run("export", given, "--format", target, "-o", tmp_path / "out")
    assert re.search("names were changed, as (DGL|PyG) cannot have .*'/m/0' as '%2Fm%2F0'.*, and .* more", caplog.text)
    kept = ["--assignment", tmp_path / "out" / "partition", "--parts", 2] if target == "dgl" else []
    run("partition", tmp_path / "out", *kept, "--name", "g", "-o", tmp_path / "again")
    assert rows_by_name(tmp_path / "again" / "g.json") == rows_by_name(given)
    found, wanted = read_partition(tmp_path / "again" / "g.json"), read_partition(given)
    assert np.array_equal(found.parts.of_nodes, wanted.parts.of_nodes)
    told = json.loads((tmp_path / "out" / ("metadata.json" if target == "dgl" else "META.json")).read_text())
    if target == "dgl":
        assert told["node_type"] == ["%2Fm%2F0", "a%3Ab", "paper"] and len(told["node_data"]["paper"]) == len(NAMES) + 2
        assert all(name.count(":") == 2 and not {"/", "~"} & set(name) for name in told["edge_type"])
        assert not any({":", "/", "~"} & set(name) for name in told["node_data"]["paper"])
    else:
        assert told["node_types"] == ["%2Fm%2F0", "a:b", "paper"]
        assert all(len(triple) == 3 and "/" not in "".join(triple) for triple in told["edge_types"])


@pytest.mark.parametrize("target", ["dgl", "pyg"])
def test_relations_that_join_to_one_name_have_files_of_their_own(tmp_path, target):
    """By "__" both are a__b__c__d."""
    edges = {("a", "b__c", "d"): 20, ("a__b", "c", "d"): 30}
    source = typed_source({"a": 9, "a__b": 8, "d": 7}, edges)
    given = partition_source(source, "g", 2, tmp_path / "in", "random").config_path
    run("export", given, "--format", target, "-o", tmp_path / "out")
    run("partition", tmp_path / "out", "--parts", 2, "--method", "random", "--name", "g", "-o", tmp_path / "again")
    assert read_partition(tmp_path / "again" / "g.json").schema.relations == tuple(edges)
    assert rows_by_name(tmp_path / "again" / "g.json") == rows_by_name(given)


def test_names_that_dgl_can_have_stay(tmp_path, caplog):
    given = partition_source(typed(), "g", 2, tmp_path / "in", "random").config_path
    run("export", given, "--format", "dgl", "-o", tmp_path / "out")
    metadata = json.loads((tmp_path / "out" / "metadata.json").read_text())
    assert "original_names" not in metadata and "names were changed" not in caplog.text
    key, stem = "author:writes:paper", "author__writes__paper"
    assert metadata["edges"][key]["data"][0] == f"edges/{stem}-0.csv"
    assert metadata["edge_data"][key]["told"]["data"][0] == f"edge_data/{stem}/told-0.npy"


def test_a_feature_cannot_be_renamed_out_of_the_folder(tmp_path):
    given = partition_source(typed(), "g", 1, tmp_path / "in", "random").config_path
    run("export", given, "--format", "dgl", "--rename", "half=../../../out", "-o", tmp_path / "a" / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "in"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    run("partition", tmp_path / "a" / "b", "--parts", 1, "--name", "g", "-o", tmp_path / "again")
    assert "../../../out" in read_partition(tmp_path / "again" / "g.json").node_feats["paper"]


@pytest.mark.parametrize("note", ["x", {"node types": ["a"]}, {"edge types": {"author:writes:paper": ["a", "b"]}},
                                  {"node types": {"author": 5}}, {"features": {"id": "third"}}])  # fmt: skip
def test_a_malformed_note_is_named(tmp_path, note):
    given = partition_source(typed(), "g", 1, tmp_path / "in", "random").config_path
    run("export", given, "--format", "dgl", "-o", tmp_path / "out")
    content = json.loads((tmp_path / "out" / "metadata.json").read_text())
    (tmp_path / "out" / "metadata.json").write_text(json.dumps(content | {"original_names": note}))
    with pytest.raises(GraphDataError, match=r"metadata\.json: original_names"):
        read_source(tmp_path / "out")


def test_the_chunks_of_dgl_are_as_documented(tmp_path):
    """Edges are space-separated text, the only format besides parquet that DGL reads edges from."""
    source = typed()
    given = partition_source(source, "g", 2, tmp_path / "in", "random").config_path
    run("export", given, "--format", "dgl", "--chunks", 5, "--rename", "id=number", "-o", tmp_path / "out")
    metadata = json.loads((tmp_path / "out" / "metadata.json").read_text())
    assert metadata["node_type"] == list(COUNTS) and metadata["num_nodes_per_chunk"][2] == [18] * 5
    key = "author:writes:paper"
    entry = metadata["edges"][key]
    assert entry["format"] == {"name": "csv", "delimiter": " "} and len(entry["data"]) == 5
    text = "".join((tmp_path / "out" / name).read_text() for name in entry["data"])
    edges = np.array([line.split(" ") for line in text.splitlines()], int)
    assert np.array_equal(edges, np.stack([np.asarray(end) for end in source.edges[1]], 1))
    run("partition", tmp_path / "out", "--assignment", tmp_path / "out" / "partition", "-o", tmp_path / "again")
    assert read_partition(tmp_path / "again" / "out.json").num_nodes == source.num_nodes
    files = metadata["node_data"]["paper"]["number"]["data"]
    assert np.array_equal(np.concatenate([np.load(tmp_path / "out" / name) for name in files]), np.arange(90))
    assert np.load(tmp_path / "out" / metadata["node_data"]["paper"]["third"]["data"][0]).dtype == bool
    parts = np.loadtxt(tmp_path / "out" / "partition" / "paper.txt", int)
    found = read_partition(given)
    assert np.array_equal(parts[found.node_ids[2][:]], found.parts.of_nodes[42:])
    assert json.loads((tmp_path / "out" / "partition" / "partition_meta.json").read_text())["num_parts"] == 2


@pytest.mark.parametrize("make", [typed, plain])
def test_pyg_reads_its_parts(tmp_path, make):
    """PyG's own stores find the rows of each node and the edges of each part."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch_geometric.distributed import LocalFeatureStore, LocalGraphStore
    source = make()
    given = partition_source(source, "g", 2, tmp_path / "in", "random").config_path
    run("export", given, "--format", "pyg", "--rename", "id=x", "-o", tmp_path / "out")
    parts = read_source(given).parts.of_nodes
    ids = np.concatenate([rows[:] for rows in read_source(given).node_ids])
    seen = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            torch, "load", lambda *args, load=torch.load, **kwargs: load(*args, **kwargs | {"weights_only": False})
        )
        for part in range(2):
            stores = (
                LocalFeatureStore.from_partition(str(tmp_path / "out"), part),
                LocalGraphStore.from_partition(str(tmp_path / "out"), part),
            )
            own = ids[parts == part]
            groups = [None] if make is plain else sorted(COUNTS)
            x = torch.cat([stores[0].get_tensor(group, "x") for group in groups]).numpy()
            assert np.array_equal(x, own)
            for attr in stores[1].get_all_edge_attrs():
                row, col = stores[1].get_edge_index(attr)
                edges = np.stack([row, col], 1)
                number = 0 if make is plain else source.schema.relations.index(attr.edge_type)
                edge_ids = stores[1].get_edge_id(attr.edge_type, attr.layout).numpy()
                edge_ids = edge_ids - sum(source.edge_counts[:number])
                wanted = np.stack([np.asarray(end) for end in source.edges[number]], 1)[edge_ids]
                assert np.array_equal(edges, wanted) and (np.diff(col) >= 0).all()
                seen += len(edges)
    assert seen == sum(source.edge_counts)


@pytest.mark.parametrize("of_nodes", [False, True])
def test_times_where_there_are_no_edges(tmp_path, of_nodes):
    source = typed()
    kind, count, feats = ("field", 2, source.node_feats) if of_nodes else ("field:hosts:author", 0, source.edge_feats)
    timed = feats | {kind: feats.get(kind, {}) | {"time": Feature.of(np.arange(count))}}
    source = replace(source, **{"node_feats" if of_nodes else "edge_feats": timed})
    given = partition_source(source, "g", 2, tmp_path / "in", "random").config_path
    run("export", given, "--format", "pyg", "-o", tmp_path / "out")
    run("partition", tmp_path / "out", "--name", "g", "-o", tmp_path / "again")
    found = read_partition(tmp_path / "again" / "g.json")
    assert found.edge_counts == source.edge_counts
    assert len((found.node_feats if of_nodes else found.edge_feats)[kind]["time"].values) == count


def test_times_come_along_and_sort_the_edges(tmp_path):
    source = plain()
    times = np.random.default_rng(0).integers(0, 5, 400)
    feats = {relation_key(DEFAULT_ETYPE): source.edge_feats[relation_key(DEFAULT_ETYPE)] | {"time": Feature.of(times)}}
    given = partition_source(replace(source, edge_feats=feats), "g", 2, tmp_path / "in", "random").config_path
    run("export", given, "--format", "pyg", "-o", tmp_path / "out")
    graph, told = (torch.load(tmp_path / "out" / "part_0" / f"{name}.pt") for name in ("graph", "edge_feats"))
    assert np.array_equal(told["edge_time"], times[graph["edge_id"]])
    assert np.array_equal(np.lexsort((told["edge_time"], graph["col"])), np.arange(len(graph["col"])))
    run("partition", tmp_path / "out", "--name", "g", "-o", tmp_path / "again")
    check_equal(tmp_path / "again" / "g.json", given)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--format", "pyg", "--chunks", "2"], "--chunks is for --format dgl"),
        (["--format", "dgl", "--chunks", "0"], "num_chunks must be an integer >= 1"),
        (["--format", "dgl", "--rename", "id"], r"--rename is OLD=NEW \(got 'id'\)"),
        (["--format", "pyg", "--rename", "id=third"], "two features would get one name"),
    ],
)
def test_wrong_options_are_one_line(tmp_path, capsys, arguments, message):
    given = partition_source(typed(), "g", 2, tmp_path / "in", "random").config_path
    assert main(["export", str(given), "-o", str(tmp_path / "out"), *arguments]) == 2
    assert re.search(f"mpigraph export: error: .*{message}", capsys.readouterr().err)


@pytest.mark.parametrize("target", ["dgl", "pyg"])
def test_a_damaged_shard_is_named(tmp_path, capsys, target):
    """Its error is an OSError, too, and is not taken for one of writing."""
    path = partition_source(plain(), "g", 2, tmp_path / "parts", "random", seed=3).config_path
    shard = tmp_path / "parts/part1/node_feat.h5"
    flip(shard, next(name for name in names_in(shard) if name.startswith(DEFAULT_NTYPE)))
    assert main(["export", str(path), "--format", target, "-o", str(tmp_path / "out")]) == 2
    assert f"{shard}: dataset" in capsys.readouterr().err


def names_in(shard: Path) -> list[str]:
    with ShardReader(shard) as reader:
        return reader.names()


@pytest.mark.parametrize("target, name", [("dgl", "metadata.json"), ("pyg", "META.json")])
def test_nothing_is_written_over_without_being_told(tmp_path, capsys, target, name):
    """Written over, the folder has the files of the new graph and no others, except what is not of a graph."""
    many = partition_source(typed(), "g", 7, tmp_path / "many", "random").config_path
    few = partition_source(plain(), "g", 2, tmp_path / "few", "random").config_path
    words = ["--format", target, "-o", tmp_path / "out"]
    run("export", many, *words)
    before = contents(tmp_path / "out")
    for more in ([], ["--overwrite"]):  # to write over it, what is to be written must be there
        missing = few if not more else tmp_path / "missing.json"
        assert main(["export", str(missing), *map(str, words), *more]) == 2
        said = capsys.readouterr().err
        assert more or f"{name} is there already, and would be overwritten: write to another folder, or say" in said
        assert contents(tmp_path / "out") == before
    (tmp_path / "out" / "notes.txt").write_text("mine")
    run("export", few, *words, "--overwrite")
    run("export", few, "--format", target, "-o", tmp_path / "fresh")
    found = contents(tmp_path / "out")
    assert found.pop("notes.txt") == b"mine"
    fresh = contents(tmp_path / "fresh")
    assert sorted(found) == sorted(fresh)
    assert all(found[file] == fresh[file] for file in found if not file.endswith(".pt"))
    (tmp_path / "out" / name).write_text('{"num_parts": 2, "is_hetero": true}')  # of something else
    run("export", few, *words, "--overwrite")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
