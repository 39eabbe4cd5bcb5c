"""Partitions that DGL has written: the same graph and the same parts, whatever version wrote them; damage is one error.

The files come from ``support/dgl_files.py``.
"""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dgl_files import COO, CSC, CSR, Layout, tensors, write_partition
from typed_parts import typed_source

from mpigraph.cli.main import main
from mpigraph.errors import GraphDataError
from mpigraph.formats.readers import read_source
from mpigraph.formats.shards import read_partition
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, relation_key
from mpigraph.partition.source import Feature, GraphSource

COUNTS = {"author": 40, "field": 6, "paper": 90}
EDGES = {
    ("author", "writes", "paper"): 200,
    ("paper", "cites", "paper"): 150,
    ("paper", "in", "field"): 90,
    ("paper", "of", "field"): 1,
}
RNG = np.random.default_rng(7)


def typed() -> GraphSource:
    """A typed graph in which "id" of a node is the node, and "told" of an edge its ends and its position."""
    source = typed_source(COUNTS, EDGES)
    papers = source.node_feats["paper"] | {"train_mask": Feature.of(np.arange(90) % 3 == 0)}
    return replace(source, node_feats=source.node_feats | {"paper": papers})


def plain() -> GraphSource:
    return typed_source({DEFAULT_NTYPE: 70}, {DEFAULT_ETYPE: 400})


def slashed() -> GraphSource:
    """Relations as FB15k has them; DGL writes names as they are, and joins them by ":" and "/"."""
    edges = {("/m/0", "/people/a:b/c", "x"): 80, ("x", "~", "/m/0"): 60}
    source = typed_source({"/m/0": 30, "x": 20}, edges)
    nodes = source.node_feats["x"] | {"a/b:c": Feature.of(np.arange(20) * 3)}
    return replace(source, node_feats=source.node_feats | {"x": nodes})


def random_parts(source: GraphSource, number: int) -> list[np.ndarray]:
    return [RNG.permutation(np.arange(count) % number) for count in source.num_nodes]


LAYOUTS = {
    "2.1": (typed, Layout()),
    "csc, original ids in the graph": (typed, Layout(CSC, ids="graph")),
    "csr and csc, original ids beside": (typed, Layout(CSR | CSC, ids="beside")),
    "coo and csr": (typed, Layout(COO | CSR)),
    "names with separators": (slashed, Layout(ids="graph")),
    "no types": (plain, Layout(ids="graph")),
}


def told(source: GraphSource, key: str) -> np.ndarray:
    return np.asarray(source.edge_feats[key]["told"].values[:])


def check_same_graph(found: GraphSource, source: GraphSource) -> None:
    """Check nodes, edges and their features by what they tell of themselves."""
    assert found.schema == source.schema
    assert found.num_nodes == source.num_nodes and found.edge_counts == source.edge_counts
    ids = {t: np.asarray(found.node_feats[t]["id"].values[:]) for t in found.schema.ntypes}
    for ntype, rows in ids.items():
        assert np.array_equal(np.sort(rows), np.arange(len(rows)))
        assert set(found.node_feats[ntype]) == set(source.node_feats[ntype])
        for name, feature in found.node_feats[ntype].items():
            given = source.node_feats[ntype][name]
            if name in ("id", "train_mask"):
                assert feature.dtype == given.dtype
            assert np.array_equal(feature.values[:], np.asarray(given.values[:])[rows])
    for r, relation in enumerate(found.schema.relations):
        src, dst = (np.asarray(end[:]) for end in found.edges[r])
        rows = told(found, relation_key(relation))
        assert np.array_equal(np.stack([ids[relation[0]][src], ids[relation[2]][dst]], 1), rows[:, :2])
        assert np.array_equal(rows[np.argsort(rows[:, 2])], told(source, relation_key(relation)))


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_partition_of_dgl_keeps_graph_and_parts(tmp_path, caplog, kind):
    make, layout = LAYOUTS[kind]
    source = make()
    parts = random_parts(source, 3)
    write_partition(tmp_path / "dgl", source, parts, layout)
    assert main(["partition", str(tmp_path / "dgl" / "g.json"), "-o", str(tmp_path / "out")]) == 0
    found = read_partition(tmp_path / "out" / "g.json")
    check_same_graph(found, source)
    begin = 0
    for t, ntype in enumerate(found.schema.ntypes):
        ids = np.asarray(found.node_feats[ntype]["id"].values[:])
        part = found.parts.of_nodes[begin : begin + len(ids)]
        assert found.parts.number == 3 and np.array_equal(part, parts[t][ids])
        assert np.array_equal(np.lexsort((ids, part)), np.arange(len(ids)))  # the ids that DGL gave
        if layout.ids:
            assert np.array_equal(found.node_ids[t][:], ids)
        begin += len(ids)
    for r, relation in enumerate(found.schema.relations) if layout.ids else ():
        assert np.array_equal(found.edge_ids[r][:], told(found, relation_key(relation))[:, 2])
    assert ("DGL kept no original ids of nodes" in caplog.text) == (not layout.ids)


def test_parts_of_dgl_are_cut_anew_if_asked(tmp_path, capsys):
    write_partition(tmp_path / "dgl", typed(), random_parts(typed(), 3), Layout(ids="graph"))
    for number, given in enumerate((["--parts", "2"], ["--method", "random"])):
        out = tmp_path / str(number)
        assert main(["partition", str(tmp_path / "dgl" / "g.json"), *given, "-o", str(out)]) == 0
        assert f"{2 + number} part(s) by {'random' if number else 'metis'}" in capsys.readouterr().out
        check_same_graph(read_partition(out / "g.json"), typed())


@pytest.mark.parametrize("name", ["graph.dgl", "node_feat.dgl", "edge_feat.dgl"])
def test_files_that_are_cut_or_damaged_are_one_error_that_names_them(tmp_path, name):
    write_partition(tmp_path, typed(), random_parts(typed(), 2), Layout())
    path = tmp_path / "part1" / name
    content = path.read_bytes()
    for size in (0, 7, 12, len(content) // 2, len(content) - 40 if name != "graph.dgl" else 4300):
        path.write_bytes(content[:size])
        with pytest.raises(GraphDataError, match=re.escape(str(path))):
            read_source(tmp_path / "g.json")


def rewrite(path: Path, change) -> None:
    text = path.read_text()
    changed = change(text)
    assert changed != text
    path.write_text(changed)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda text: text.replace('"num_parts": 2', '"num_parts": 3'), "cannot reshape"),
        (lambda text: text.replace('"author": [[0, ', '"author": [[1, '), "its own nodes are not those that g.json"),
        (lambda text: text.replace('"num_parts": 2', '"num_parts": 2, "num_parts": 2'), "g.json: 'num_parts' is there"),
        (lambda text: text.replace("part0/graph.dgl", "part1/graph.dgl"), "its own nodes are not those that g.json"),
        (lambda text: text.replace("author:writes", "paper:writes"), r"\('paper', 'writes', 'paper'\) ends in a node"),
        (
            lambda text: text.replace("author:writes:paper", "writes"),
            "an edge type is <src>:<rel>:<dst>, with types of",
        ),
        (lambda text: text.replace('"ntypes"', '"types"'), "node_map has no types, as before DGL 1.0"),
        (lambda text: text.replace('"part_graph": "part1/graph.dgl"', '"part_graph_graphbolt": "a.pt"'), "is a pickle"),
        (lambda text: text.replace('"node_feats": "part0', '"node_feats": "part1'), "must have .* rows"),
        (
            lambda text: re.sub("part(.)(/node_feat)", lambda m: f"part{1 - int(m[1])}{m[2]}", text),
            "'author/id' must have 27 rows",
        ),
    ],
)
def test_configurations_that_contradict_the_files(tmp_path, change, message):
    parts = [np.arange(count) * 3 // count % 2 for count in COUNTS.values()]
    write_partition(tmp_path, typed(), parts, Layout())
    rewrite(tmp_path / "g.json", change)
    with pytest.raises(GraphDataError) as error:
        read_source(tmp_path / "g.json")
    assert str(tmp_path) in str(error.value) and re.search(message, str(error.value))


def test_a_feature_that_a_part_lacks_is_an_error(tmp_path):
    write_partition(tmp_path, plain(), random_parts(plain(), 2), Layout())
    (tmp_path / "part1" / "node_feat.dgl").write_bytes(tensors({}))
    with pytest.raises(GraphDataError, match="g.json: node feature 'id' of '_N' must have 70 rows"):
        read_source(tmp_path / "g.json")
