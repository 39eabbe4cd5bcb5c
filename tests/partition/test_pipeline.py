"""Partitioning: assignments, relabelling, and the round trip from the shards back to the original graph."""

from dataclasses import replace

import numpy as np
import pymetis
import pytest
from typed_parts import COUNTS, EDGES, check_round_trip, many_relations, typed_source

from mpigraph.errors import GraphDataError, InvalidArgumentError
from mpigraph.formats.readers import read_source
from mpigraph.metadata.schema import Schema
from mpigraph.partition import metis, pipeline
from mpigraph.partition.assigning import Task, balance_criteria
from mpigraph.partition.output_folder import check_writable
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.storage.part_config import PartConfig


def homogeneous(num_nodes, src, dst):
    """A graph whose node feature is the node and whose edge feature is (src, dst, position)."""
    src, dst = np.asarray(src), np.asarray(dst)
    told = np.stack([src, dst, np.arange(len(src))], axis=1).reshape(-1, 3).astype(np.int64)
    ids = np.arange(num_nodes)
    return GraphSource(
        Schema.homogeneous(), (num_nodes,), ((src, dst),),
        {"_N": {"id": Feature.of(ids), "half": Feature(ids.astype(np.uint16)[:, None], "bfloat16")}},
        {"_N:_E:_N": {"told": Feature.of(told)}},
    )  # fmt: skip


def power_law(num_nodes, num_edges, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.random(num_edges) ** 2 * num_nodes).astype(np.int64), rng.integers(0, num_nodes, num_edges)


def few_of_a_type(authors, papers, venues):
    edges = {("author", "writes", "paper"): papers * 3, ("paper", "in", "venue"): papers * 2 if venues else 0}
    edges |= {("paper", "cites", "paper"): papers}
    return typed_source({"author": authors, "paper": papers, "venue": venues}, edges)


def lists(num_nodes, src, dst):
    return lambda: homogeneous(num_nodes, np.array(src, np.int64), np.array(dst, np.int64))


GRAPHS = {
    "power law": (lambda: homogeneous(500, *power_law(500, 4000)), (1, 2, 3, 8)),
    "few nodes of a type": (lambda: few_of_a_type(300, 400, 20), (4,)),
    "no nodes of a type": (lambda: few_of_a_type(1, 5, 0), (4,)),
    "fewer nodes than parts": (lists(3, [0, 1, 1, 2], [1, 0, 2, 0]), (5,)),
    "no edges": (lists(40, [], []), (5,)),
    "only self loops, repeated": (lists(40, [7] * 5, [7] * 5), (5,)),
    "repeated edges, isolated nodes": (lists(40, [0, 0, 0, 1, 5, 5], [1, 1, 1, 0, 5, 5]), (5,)),
    "nothing": (lists(0, [], []), (5,)),
    "one node": (lists(1, [0], [0]), (5,)),
    "a star": (lists(1000, [0] * 999, range(1, 1000)), (5,)),
    "odd types": (typed_source, (1, 3, 8)),
    "types without nodes": (lambda: typed_source(dict.fromkeys(COUNTS, 0), dict.fromkeys(EDGES, 0)), (2,)),
    "no relations": (lambda: typed_source({"a": 5, "b": 1}, {}), (3,)),
    "relations that share tables": (lambda: many_relations(28, 420), (3,)),
}


@pytest.mark.parametrize("method", ["metis", "multilevel", "random"])
@pytest.mark.parametrize("name, num_parts", [(name, parts) for name in GRAPHS for parts in GRAPHS[name][1]])
def test_round_trip(tmp_path, method, name, num_parts):
    source = GRAPHS[name][0]()
    result = partition_source(source, "g", num_parts, tmp_path, method)
    check_round_trip(source, result, num_parts)
    balance = result.report["balance"]
    types = {f"nodes {t}" if len(source.num_nodes) > 1 else "nodes": t for t in source.schema.ntypes}
    counts = {title: source.num_nodes[source.schema.ntype_id(t)] for title, t in types.items()}
    assert set(balance) == {title for title, count in counts.items() if count}
    for title, heaviest in balance.items():
        assert heaviest <= max(1.05, num_parts * -(-counts[title] // num_parts) / counts[title]) + 1e-4
    config = PartConfig.read(result.path)
    if name == "power law":
        assert config.node_features["_N"]["half"].dtype == "bfloat16"
    elif name == "no relations":
        assert result.report["edges_cut"] == 0
    elif name == "relations that share tables":
        assert len(config.shared) == 28 and config.shared_features


def adjacency_of(source):
    task = Task(source, 2, source.node_bases[[0, -1]])
    return metis.finest_level(replace(task, weights=balance_criteria(task)[1])).rows


@pytest.mark.parametrize("objtype, recursive", [("cut", True), ("cut", False), ("vol", False)])
@pytest.mark.parametrize("weighted", [False, True])
def test_metis_gives_the_parts_that_pymetis_gives(objtype, recursive, weighted):
    adjacency = metis.widened(adjacency_of(homogeneous(600, *power_law(600, 5000))))
    weights = np.random.default_rng(0).integers(1, 9, (600, int(weighted)))
    entry = "METIS_PartGraphRecursive" if recursive else "METIS_PartGraphKway"
    for num_parts in (2, 5):
        own = metis.call_library(entry, adjacency, weights, num_parts, 3, objtype)
        options = pymetis.Options(seed=3)
        if not recursive:
            options.objtype = int(pymetis.ObjType.VOL if objtype == "vol" else pymetis.ObjType.CUT)
        graph = pymetis.CSRAdjacency(*adjacency[:2])
        of_nodes = weights[:, 0].astype(adjacency.indptr.dtype) if weighted else None
        wrapped = pymetis.part_graph(num_parts, graph, vweights=of_nodes, recursive=recursive, options=options)
        assert own.tolist() == list(wrapped.vertex_part) and len(np.unique(own)) == num_parts


@pytest.mark.parametrize("path", ["/proc/nowhere/parts", "file/parts"])
def test_a_directory_that_cannot_be_written_is_an_error_at_the_start(tmp_path, monkeypatch, path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(GraphSource, "check_edges", lambda source: pytest.fail("began"))
    with pytest.raises(InvalidArgumentError, match=f"{path}: cannot write there: "):
        partition_source(homogeneous(4, [0], [1]), "g", 2, tmp_path / path)
    check_writable(tmp_path / "new" / "parts")
    assert not (tmp_path / "new").exists()
    (tmp_path / "part1").symlink_to("/")
    with pytest.raises(InvalidArgumentError, match="part1: a link to /, where a graph would be written over"):
        check_writable(tmp_path)


@pytest.mark.parametrize("method", ["metis", "multilevel"])
def test_planted_communities_are_found(tmp_path, method):
    rng = np.random.default_rng(1)
    block = np.repeat(np.arange(4), 250)
    src = rng.integers(0, 1000, 8000)
    inside = rng.random(8000) < 0.95
    dst = np.where(inside, block[src] * 250 + rng.integers(0, 250, 8000), rng.integers(0, 1000, 8000))
    shuffle = rng.permutation(1000)
    source = homogeneous(1000, shuffle[src], shuffle[dst])
    actual = partition_source(source, "m", 4, tmp_path / "m", method).report
    random = partition_source(source, "r", 4, tmp_path / "r", "random").report
    assert actual["edge_cut_fraction"] < 0.06 and random["edge_cut_fraction"] > 0.7
    assert actual["balance"]["nodes"] <= 1.05


@pytest.mark.parametrize("method", ["metis", "multilevel"])
def test_nodes_without_a_class_count_as_nodes_alone(tmp_path, method):
    src, dst = power_law(2000, 20000)
    source = homogeneous(2000, np.concatenate([src, dst]), np.concatenate([dst, src]))
    label = np.where(np.arange(2000) < 300, np.arange(2000) % 2, -1 - np.arange(2000) % 3)
    balance = partition_source(source, "g", 4, tmp_path, method, balance_classes={"_N": label}).report["balance"]
    assert set(balance) == {"nodes", "nodes class 0", "nodes class 1"} and max(balance.values()) < 1.1
    nobody = {"_N": np.full(2000, -1)}
    assert set(partition_source(source, "h", 4, tmp_path / "h", method, balance_classes=nobody).report["balance"]) == {
        "nodes"
    }


@pytest.mark.parametrize(("name", "values"), [("train_mask", [0.5, 1, 0]), ("val_mask", [0, 1, -1])])
def test_masks_are_checked_before_nodes_are_assigned(tmp_path, monkeypatch, name, values):
    np.savez(tmp_path / "g.npz", edge_src=[0, 1, 2], edge_dst=[1, 2, 0], **{name: values})
    monkeypatch.setattr(pipeline, "balance_criteria", None)
    with pytest.raises(GraphDataError, match=rf"g.npz: {name}, row [02]"):
        partition_source(read_source(tmp_path / "g.npz"), "g", 2, tmp_path / "out")


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**64 - 1])
def test_every_seed_that_is_allowed_works(tmp_path, seed):
    source = homogeneous(50, *power_law(50, 300))
    for method in ("metis", "random"):
        check_round_trip(source, partition_source(source, "g", 3, tmp_path / method, method, seed=seed), 3)


def test_bad_input_is_named(tmp_path):
    good = homogeneous(4, [0, 1, 2], [1, 2, 3])
    with pytest.raises(InvalidArgumentError, match="objtype"):
        partition_source(good, "g", 2, tmp_path, objtype="both")
    with pytest.raises(InvalidArgumentError, match=r"objtype of 'multilevel' must be one of \['cut'\] \(got 'vol'\)"):
        partition_source(good, "g", 2, tmp_path, "multilevel", objtype="vol")
    with pytest.raises(GraphDataError, match="feature 'x' of '_N' must have 4 rows"):
        GraphSource(good.schema, (4,), good.edges, {"_N": {"x": Feature.of(np.zeros(3))}})


@pytest.mark.parametrize("method", ["metis", "multilevel"])
@pytest.mark.parametrize("num_parts", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_type_and_class_is_balanced(tmp_path, num_parts, method):
    counts = {"author": 900, "institution": 12, "paper": 600, "topic": 80}
    edges = {
        ("author", "at", "institution"): 900,
        ("author", "writes", "paper"): 4000,
        ("paper", "cites", "paper"): 3000,
        ("paper", "on", "topic"): 3000,
    }
    source = typed_source(counts, edges)
    plain = partition_source(source, "p", num_parts, tmp_path / "p", method).report["balance"]
    assert set(plain) == {f"nodes {ntype}" for ntype in counts} and max(plain.values()) <= 1.05
    train = {"paper": (np.arange(600) < 200).astype(np.int8), "topic": np.arange(80) % 2}
    result = partition_source(source, "q", num_parts, tmp_path / "q", method, balance_classes=train, balance_edges=True)
    check_round_trip(source, result, num_parts)
    names = {"nodes paper class 0", "nodes paper class 1", "nodes topic class 0", "nodes topic class 1"}
    assert set(result.report["balance"]) == names | {"nodes author", "nodes institution", "edges"}
    assert max(result.report["balance"].values()) < 1.1


@pytest.mark.slow
def test_metis_with_more_types_than_it_takes_constraints(tmp_path):
    counts = {f"t{i}": 100 for i in range(12)}
    source = typed_source(counts, {(f"t{i}", "next", f"t{(i + 1) % 12}"): 400 for i in range(12)})
    balance = partition_source(source, "g", 4, tmp_path).report["balance"]
    assert len(balance) == 12 and max(balance.values()) <= 1.05
