"""Parts of PyG: what its own ``Partitioner`` writes is the graph that was cut, with its parts.

PyG's METIS needs pyg-lib, so the assignment is given; all else is PyG's.
"""

import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from typed_parts import typed_source

from mpigraph.cli.main import main
from mpigraph.convert import as_graph
from mpigraph.errors import GraphDataError
from mpigraph.formats.pyg_parts import read_pyg_partition
from mpigraph.formats.shards import read_partition
from mpigraph.metadata.schema import relation_key
from mpigraph.partition.pipeline import partition_source

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.data import Data, HeteroData
    from torch_geometric.distributed import Partitioner
    from torch_geometric.loader import ClusterData

COUNTS = {"author": 40, "paper": 90}
EDGES = {("author", "writes", "paper"): 200, ("paper", "cites", "paper"): 150, ("paper", "by", "author"): 80}
RNG = np.random.default_rng(3)


def plain_data(time: str = "") -> Data:
    edges = torch.from_numpy(RNG.integers(0, 60, (2, 300)))
    data = Data(x=torch.arange(180.0).reshape(60, 3), edge_index=edges, num_nodes=60)
    data.edge_attr = torch.cat([edges, torch.arange(300)[None]]).T.contiguous()
    if time == "nodes":
        data.time = torch.from_numpy(RNG.integers(0, 9, 60))
    elif time == "edges":
        data.edge_time = torch.from_numpy(RNG.integers(0, 9, 300))
    return data


def typed_data() -> HeteroData:
    source, data = typed_source(COUNTS, EDGES), HeteroData()
    for ntype, count in COUNTS.items():
        data[ntype].x = torch.arange(2.0 * count).reshape(count, 2)
    for relation, ends in zip(source.schema.relations, source.edges, strict=True):
        data[relation].edge_index = torch.from_numpy(np.stack([np.asarray(end[:]) for end in ends]))
        data[relation].edge_attr = torch.from_numpy(
            np.asarray(source.edge_feats[relation_key(relation)]["told"].values[:])
        )
    return data


def cut_by_pyg(monkeypatch: pytest.MonkeyPatch, data: Data | HeteroData, parts: np.ndarray, folder: Path) -> None:
    """Have PyG write its parts, of nodes that have a part each, types one after the other."""
    monkeypatch.setattr(ClusterData, "_metis", lambda self, edges, count: torch.from_numpy(parts))
    Partitioner(data, int(parts.max()) + 1, str(folder)).generate_partition()


@pytest.mark.parametrize("time", ["", "nodes", "edges"])
def test_a_graph_without_types(tmp_path, monkeypatch, time):
    data, parts = plain_data(time), RNG.permutation(np.arange(60) % 3)
    cut_by_pyg(monkeypatch, data, parts, tmp_path / "pyg")
    found = read_pyg_partition(tmp_path / "pyg")
    assert found.schema.is_homogeneous and found.num_nodes == (60,)
    assert np.array_equal(np.stack([end[:] for end in found.edges[0]]), data.edge_index)
    assert found.parts.number == 3 and np.array_equal(found.parts.of_nodes, parts)
    feats = found.node_feats["_N"], found.edge_feats["_N:_E:_N"]
    assert np.array_equal(feats[0]["x"].values[:], data.x)
    assert np.array_equal(feats[1]["edge_attr"].values[:], data.edge_attr)
    assert found.left_out == ()
    torch.save(torch.zeros(60), tmp_path / "pyg" / "label.pt")  # as PyG's examples do, beside what it wrote
    assert read_pyg_partition(tmp_path / "pyg").left_out == ("label.pt (a pickle, which can run code)",)
    if time:
        given = data.time if time == "nodes" else data.edge_time
        assert np.array_equal(feats[time == "edges"]["time"].values[:], given)


def test_a_typed_graph_gives_the_parts_of_the_original_bit_for_bit(tmp_path, monkeypatch):
    data, parts = typed_data(), RNG.permutation(np.arange(130) % 2)
    cut_by_pyg(monkeypatch, data, parts, tmp_path / "pyg")
    assert read_pyg_partition(tmp_path / "pyg").left_out == ()
    assert main(["partition", str(tmp_path / "pyg"), "--name", "g", "-o", str(tmp_path / "out")]) == 0
    found = read_partition(tmp_path / "out" / "g.json")
    source = typed_source(COUNTS, dict(sorted(EDGES.items())))
    graph = as_graph(data)
    ends = tuple(tuple(end.numpy() for end in graph.edges(etype=r, order="eid")) for r in sorted(EDGES))
    source = type(source)(source.schema, source.num_nodes, ends)
    partition_source(source, "g", 2, tmp_path / "direct", "given", assignment=parts)
    direct = read_partition(tmp_path / "direct" / "g.json")
    assert found.schema == direct.schema and found.parts.number == 2
    for r, relation in enumerate(found.schema.relations):
        for some, other in zip(found.edges[r], direct.edges[r], strict=True):
            assert np.array_equal(some[:], other[:])
        ids = np.asarray(found.edge_ids[r][:])
        assert np.array_equal(ids, direct.edge_ids[r][:])
        told = found.edge_feats[relation_key(relation)]["edge_attr"].values[:]
        assert np.array_equal(told, data[relation].edge_attr[ids])
    for t, ntype in enumerate(found.schema.ntypes):
        ids = np.asarray(found.node_ids[t][:])
        assert np.array_equal(ids, direct.node_ids[t][:])
        assert np.array_equal(found.node_feats[ntype]["x"].values[:], data[ntype].x[ids])


def shorten(path: Path, name: str) -> None:
    """Save what a file of a part holds without the first row of a tensor."""
    table = torch.load(path, weights_only=False)
    rows = table if name in table else table["feats"]
    rows[name] = rows[name][1:].clone()
    torch.save(table, path)


class Harmful:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("code of a file was run",)


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda p: torch.save(Harmful(), p / "part_1" / "graph.pt"), "graph.pt: cannot be read as tensors alone"),
        (lambda p: (p / "part_0" / "node_feats.pt").write_bytes(b"PK"), "node_feats.pt: cannot be read as tensors"),
        (lambda p: (p / "part_1" / "graph.pt").unlink(), "part_1/graph.pt: cannot be read"),
        (lambda p: torch.save(torch.full((60,), 2), p / "node_map.pt"), "node_map.pt, row 0: there is no part 2 among"),
        (lambda p: torch.save(torch.zeros(59), p / "node_map.pt"), "node_map.pt must hold one integer for each node"),
        (lambda p: torch.save(torch.zeros(59, dtype=int), p / "node_map.pt"), "global_id: the parts do not have every"),
        (lambda p: shutil.copy(p / "part_0" / "graph.pt", p / "part_1"), "edge_id: the parts"),
        (lambda p: shorten(p / "part_1" / "graph.pt", "row"), "META.json: a tensor has 299 rows in all parts"),
        (lambda p: shorten(p / "part_1" / "node_feats.pt", "x"), "a tensor has 59 rows in all parts, but there are 60"),
        (lambda p: (p / "META.json").write_text('{"num_parts": 2, "is_hetero": false}'), "an older PyG wrote these"),
        (lambda p: torch.save({}, p / "part_1" / "graph.pt"), "part_1/graph.pt: there is no 'edge_id'"),
        (lambda p: (p / "META.json").write_text("[]"), "META.json: cannot be read"),
    ],
)
def test_wrong_files_are_one_error_that_names_them(tmp_path, monkeypatch, spoil, message):
    cut_by_pyg(monkeypatch, plain_data(), np.arange(60) % 2, tmp_path)
    spoil(tmp_path)
    with pytest.raises(GraphDataError, match=message) as error:
        read_pyg_partition(tmp_path)
    assert re.search(re.escape(str(tmp_path)), str(error.value))
