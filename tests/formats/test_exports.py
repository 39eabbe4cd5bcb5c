"""Partitioned graphs written as .npy files in their original order: read again they are the graph."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import odd_names
import pytest
from damaged import flip
from input_checks import rows
from typed_parts import typed_source

from mpigraph.cli.main import main
from mpigraph.formats.readers import read_source
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE
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
    kind = Feature(np.arange(90) % 3 - 1, "int64", categories=("ä", "b"))
    papers = source.node_feats["paper"] | {"half": Feature.of(np.arange(180, dtype=np.float16).reshape(90, 2))}
    papers |= {"kind": kind}
    return replace(source, node_feats=source.node_feats | {"paper": papers})


def plain() -> GraphSource:
    return typed_source({DEFAULT_NTYPE: 70}, {DEFAULT_ETYPE: 400})


def cut(source: GraphSource, folder: Path) -> Path:
    return partition_source(source, "g", 3, folder, "random", seed=4).path


def contents(source: GraphSource) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {"counts": sorted(zip(source.schema.ntypes, source.num_nodes, strict=True))}
    for relation, ends in zip(source.schema.relations, source.edges, strict=True):
        found[f"ends of {relation}"] = [rows(end).tolist() for end in ends]
    for tables in (source.node_feats, source.edge_feats):
        for owner, features in tables.items():
            found |= {
                f"{owner}/{name}/{f.dtype}": [*f.categories, *rows(f.values).tolist()] for name, f in features.items()
            }
    return found


@pytest.mark.parametrize("make", [typed, plain, odd_names.odd_source])
def test_an_export_is_the_graph(tmp_path: Path, monkeypatch, make) -> None:
    monkeypatch.setattr(odd_names, "NAMES", odd_names.NAMES[:-1])  # the last one is longer than a file's name can be
    given = make()
    path = cut(given, tmp_path / "in")
    assert main(["export", str(path), "-o", str(tmp_path / "out")]) == 0
    found = read_source(tmp_path / "out")
    assert set(found.schema.relations) == set(given.schema.relations) and contents(found) == contents(given)
    assert found.left_out == ()


def test_nothing_is_written_over_without_being_told(tmp_path: Path, capsys) -> None:
    first, second = cut(typed(), tmp_path / "a"), cut(plain(), tmp_path / "b")
    out = tmp_path / "out"
    assert main(["export", str(first), "-o", str(out)]) == 0
    assert main(["export", str(second), "-o", str(out)]) == 2
    assert "is there already" in capsys.readouterr().err and contents(read_source(out)) == contents(typed())
    assert main(["export", str(second), "-o", str(out), "--overwrite"]) == 0
    assert contents(read_source(out)) == contents(plain())
    np.save(out / "mine.npy", np.zeros(3))
    assert main(["export", str(first), "-o", str(out), "--overwrite"]) == 2
    assert "mine.npy is there already" in capsys.readouterr().err and (out / "edge_src.npy").exists()
    assert main(["export", str(first), "-o", str(tmp_path / "a/../a")]) == 2
    assert "is the folder of the partitioned graph" in capsys.readouterr().err
    assert not any(first.parent.glob("*.npy"))


def test_names_of_the_structure_are_refused(tmp_path: Path, capsys) -> None:
    source = plain()
    source = replace(source, edge_feats={"_N:_E:_N": {"src": Feature.of(np.arange(400))}})
    assert main(["export", str(cut(source, tmp_path / "in")), "-o", str(tmp_path / "out")]) == 2
    assert "'edge_src.npy' is there twice" in capsys.readouterr().err


def test_a_damaged_shard_is_named(tmp_path: Path, capsys) -> None:
    path = cut(plain(), tmp_path / "in")
    shard = tmp_path / "in/part1/node_feat.h5"
    reader = ShardReader(shard)
    name = next(name for name in reader.names() if name.startswith(DEFAULT_NTYPE))
    flip(shard, name)
    assert main(["export", str(path), "-o", str(tmp_path / "out")]) == 2
    assert f"{shard}: dataset" in capsys.readouterr().err
