"""Names in files: whatever types, relations and features are called, files keep it, and the API has it as it is."""

from pathlib import Path

import numpy as np
import pytest
import torch
from layouts import SharedJob
from odd_names import NAMES, TYPES, odd_source

import mpigraph as mg
import mpigraph.distributed as dist
from mpigraph.errors import InvalidArgumentError
from mpigraph.metadata.schema import Schema, relation_key
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.storage.format import edge_feature_name, node_feature_name

RELATIONS = list(odd_source().schema.relations)


def write_odd(directory: Path) -> str:
    return str(partition_source(odd_source(), "odd", 3, directory, "random").path)


def test_names_of_datasets_differ():
    names = [node_feature_name(a, b) for a in NAMES for b in NAMES]
    names += [edge_feature_name(relation_key((a, b, a)), c) for a in NAMES for b in NAMES for c in NAMES]
    assert len(set(names)) == len(names) and all(name.count("/") == 1 and "/./" not in f"/{name}/" for name in names)


@pytest.mark.parametrize(
    "name, message", [("", "must not be empty"), ("a\0b", r"without surrogates and NUL .*'a\\x00b'")]
)
@pytest.mark.parametrize("where", ["ntype", "relation", "node feature", "edge feature"])
def test_what_no_file_takes_is_named(name: str, message: str, where: str) -> None:
    ntype = name if where == "ntype" else "a"
    relation = (ntype, name if where == "relation" else "r", ntype)
    nodes = {ntype: {name if where == "node feature" else "x": Feature.of(np.zeros(2))}}
    edges = {relation_key(relation): {name if where == "edge feature" else "x": Feature.of(np.zeros(1))}}
    with pytest.raises(InvalidArgumentError, match=message):
        ends = (np.zeros(1, np.int64), np.zeros(1, np.int64))
        GraphSource(Schema((ntype,), (relation,)), (2,), (ends,), nodes, edges)


def test_a_graph_has_its_own_names(job: SharedJob) -> None:
    g = job.open(job.write(write_odd))
    assert (tuple(g.ntypes), g.canonical_etypes) == (TYPES, RELATIONS)
    frames = [(g.nodes[t].data, g.num_nodes(t)) for t in TYPES] + [(g.edges[r].data, 40) for r in RELATIONS[::8]]
    some = slice(None) if job.trainers.size == 1 else slice(None, None, 4)  # each name is a message or more
    for data, count in frames:
        assert set(NAMES) < set(data)
        for number, name in list(enumerate(NAMES))[some]:
            assert torch.equal(data[name][torch.arange(count)].sort().values, number * 1000 + torch.arange(count))
    book = g.get_partition_book()
    for relation in RELATIONS:
        policy = g.get_edge_partition_policy(relation)
        assert dist.PartitionPolicy(policy.policy_str, book).type_name == policy.type_name == relation


def test_a_step_and_a_checkpoint_with_odd_names(job: SharedJob, tmp_path: Path) -> None:
    g = job.open(job.write(write_odd))
    book = g.get_partition_book()
    nodes = {ntype: torch.ones(g.num_nodes(ntype), dtype=torch.bool) for ntype in TYPES}
    seeds = {ntype: dist.node_split(mask, book, ntype=ntype) for ntype, mask in nodes.items()}
    sampler = mg.dataloading.NeighborSampler([3])
    features = {ntype: list(NAMES) for ntype in TYPES}
    loader = dist.DistNodeDataLoader(g, seeds, sampler, batch_size=8, features=features)
    model = mg.nn.HeteroGraphConv({r: mg.nn.GraphConv(1, 2, norm="right") for r in RELATIONS})
    for inputs, _, (block,) in loader:
        x = {ntype: block.srcnodes[ntype].data["a:b:c"][:, None].float() for ntype in TYPES}
        for ntype, ids in inputs.items():
            for number, name in enumerate(NAMES):
                rows = block.srcnodes[ntype].data[name]
                assert torch.equal(rows, g.nodes[ntype].data[name][ids]) and set((rows // 1000).tolist()) <= {number}
        sum(out.sum() for out in model(block, x).values()).backward()
    assert any(parameter.grad is not None for parameter in model.parameters())
    policy = g.get_node_partition_policy("/m/0")
    table = dist.DistTensor((policy.get_size(), 1), torch.float32, "/:~\n", part_policy=policy)
    rows = torch.arange(policy.get_size())
    table[rows] = 1.0
    folder = job.one_has(lambda: tmp_path)
    state = {"table": table, "names": dict.fromkeys(NAMES, 1)}
    mg.checkpoint.save(state, checkpoint_id=folder / "saved")
    table[rows] = 2.0
    mg.checkpoint.load(state, checkpoint_id=folder / "saved")
    assert table[rows].unique().tolist() == [1.0] and list(state["names"]) == list(NAMES)


def test_features_of_a_part_have_their_own_names(tmp_path: Path) -> None:
    path = write_odd(tmp_path)
    nodes, edges = dist.load_partition_feats(path, 1)
    assert nodes is not None and edges is not None
    assert {f"{ntype}/{name}" for ntype in TYPES for name in NAMES} < set(nodes)
    assert "/m/0:/people/person/place_of_birth:a~3Ab/a:b:c" in edges and all(len(key.split(":")) > 2 for key in edges)
    schema = Schema(("a", "a/b"), ())
    feats = {"a": {"b/x": Feature.of(np.zeros(2))}, "a/b": {"x": Feature.of(np.ones(2))}}
    path = str(partition_source(GraphSource(schema, (2, 2), (), feats), "g", 1, tmp_path / "two", "random").path)
    nodes, _ = dist.load_partition_feats(path, 0)
    assert {name: rows.tolist() for name, rows in (nodes or {}).items()} == {"a/b/x": [0, 0], "a~2Fb/x": [1, 1]}
