"""What users reported of libraries like this one, tried here; README.md says which report is which test."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from input_checks import check_parts
from layouts import SharedJob
from typed_parts import typed_source

import mpigraph as mg
import mpigraph.distributed as dist
from mpigraph import nn
from mpigraph.cli.main import main
from mpigraph.dataloading import NeighborSampler, as_edge_prediction_sampler
from mpigraph.formats.readers import read_source

# ------------------------------------------------------------------------------------------------ graphs in memory


@pytest.mark.parametrize("make", [nn.GATConv, nn.GraphConv, nn.SAGEConv], ids=lambda make: make.__name__)
def test_a_type_without_nodes_or_edges(make: type) -> None:
    relations = {("user", "buys", "item"): ([0, 1, 2], [4, 5, 6]), ("user", "likes", "tag"): ([], [])}
    options = {
        nn.GATConv: {"num_heads": 2, "residual": True, "allow_zero_in_degree": True},
        nn.GraphConv: {"allow_zero_in_degree": True},
        nn.SAGEConv: {"aggregator_type": "mean"},
    }[make]
    for tags in (0, 3):
        g = mg.heterograph(relations, {"user": 5, "item": 10, "tag": tags})
        x = {ntype: torch.rand(g.num_nodes(ntype), 4) for ntype in g.ntypes}
        pairs = make is nn.SAGEConv
        layers = {name: make((4, 4) if pairs else 4, 3, **options) for name in ("buys", "likes")}
        rows = nn.HeteroGraphConv(layers)(g, (x, x) if pairs else x)
        assert {ntype: len(values) for ntype, values in rows.items()} == {"item": 10, "tag": tags}
        assert all(values.isfinite().all() for values in rows.values())


def test_a_function_of_edges_where_there_are_none() -> None:
    g = mg.heterograph({("a", "r", "b"): ([], [])}, {"a": 2, "b": 3})
    g.nodes["a"].data["h"], g.nodes["b"].data["h"] = torch.rand(2, 4), torch.rand(3, 4)
    g.apply_edges(lambda edges: {"s": (edges.src["h"] * edges.dst["h"]).sum(-1)}, etype="r")
    assert g.edges["r"].data["s"].shape == (0,)


# ------------------------------------------------------------------------------------------------------- partitions


@pytest.mark.parametrize(
    "edges",
    [
        {("a", "r", "b"): 4},
        {("a", "r", "b"): 2, ("b", "s", "a"): 0},
        {("a", "is", "a"): 2, ("a", "is", "b"): 2, ("a", "in", "c"): 1},
    ],
    ids=["one relation of two types", "no edges, and no nodes in a part", "a name twice"],
)
def test_schemas_are_cut_by_metis(tmp_path: Path, edges: dict) -> None:
    check_parts(typed_source({"a": 40, "b": 1, "c": 3}, edges), tmp_path, "metis")


def test_a_line_of_nodes_is_cut_by_metis(tmp_path: Path) -> None:
    count = 100_000
    line = mg.graph((torch.arange(count - 1), torch.arange(1, count)))
    nodes, _ = dist.partition_graph(line, "line", 4, tmp_path, return_mapping=True)
    assert torch.equal(nodes.sort()[0], torch.arange(count))
    book = dist.load_partition_book(tmp_path / "line.json", 0)[0]
    sizes = [len(book.partid2nids(part)) for part in range(4)]
    assert max(sizes) <= 1.03 * count / 4 and min(sizes) >= 0.97 * count / 4


def test_the_order_of_keys_in_chunked_metadata_changes_nothing(tmp_path: Path) -> None:
    """Two relations with as many edges each; edges, features and types are named in other orders."""
    keys = ["a:x:b", "b:y:a"]
    ends = {key: np.array([[0, 1], [2, 3], [4, 0]]) + number for number, key in enumerate(keys)}
    for key in keys:
        np.save(tmp_path / f"{key[2]}.npy", ends[key])
        np.save(tmp_path / f"{key[2]}_w.npy", 10 * ends[key][:, 0] + ends[key][:, 1])
    files = {key: {"format": {"name": "numpy"}, "data": [f"{key[2]}.npy"]} for key in reversed(keys)}
    weights = {key: {"w": {"format": {"name": "numpy"}, "data": [f"{key[2]}_w.npy"]}} for key in keys}
    metadata = {
        "graph_name": "g",
        "node_type": ["b", "a"],
        "num_nodes_per_chunk": [[6], [6]],
        "edge_type": keys,
        "num_edges_per_chunk": [[3], [3]],
        "edges": files,
        "node_data": {},
        "edge_data": weights,
    }
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    source = read_source(tmp_path)
    for relation, (src, dst) in zip(source.schema.relations, source.edges, strict=True):
        key = ":".join(relation)
        assert np.array_equal(np.stack([src[0:3], dst[0:3]], 1), ends[key])
        assert np.array_equal(source.edge_feats[key]["w"].values[0:3], 10 * ends[key][:, 0] + ends[key][:, 1])


def test_two_relations_of_one_name_in_a_dataset_of_csv(tmp_path: Path) -> None:
    (tmp_path / "edges_protein__binding__protein.csv").write_text("src_id,dst_id\n0,1\n")
    (tmp_path / "edges_metabolite__binding__protein.csv").write_text("src_id,dst_id\n0,0\n0,1\n")
    (tmp_path / "nodes_protein.csv").write_text("node_id\n0\n1\n")
    (tmp_path / "nodes_metabolite.csv").write_text("node_id\n0\n")
    source = read_source(tmp_path)
    assert source.schema.relations == (("metabolite", "binding", "protein"), ("protein", "binding", "protein"))
    assert source.edge_counts == [2, 1]


def test_ids_of_any_size(tmp_path: Path) -> None:
    large = [1, 8278237827, 2601296972838024192]
    (tmp_path / "e.csv").write_text(f"src,dst\n{large[2]},{large[1]}\n{large[1]},{large[0]}\n")
    assert main(["partition", str(tmp_path / "e.csv"), "--parts", "1", "-o", str(tmp_path / "out"), "--name", "e"]) == 0
    _, nodes, *_ = dist.load_partition(tmp_path / "out" / "e.json", 0)
    assert nodes["_N/id"].tolist() == large


# ------------------------------------------------------------------------------------------------------------- jobs


def cut(directory: Path, make: str) -> str:
    g = {"typed": typed, "ring": ring, "sparse": sparse}[make]()
    dist.partition_graph(g, make, 3, directory, part_method="random")
    return str(directory / f"{make}.json")


def typed() -> mg.HeteroGraph:
    """Nodes whose only in-edge is of the last relation, and a type without features."""
    relations = {("a", f"r{k}", "a"): ([k], [0]) for k in range(6)}
    g = mg.heterograph(relations | {("a", "z", "b"): ([0, 1, 2, 3], [0, 0, 1, 2])}, {"a": 9, "b": 4})
    g.nodes["a"].data["x"] = torch.arange(9.0)[:, None]
    for relation in g.canonical_etypes:
        src, dst = g.edges(etype=relation)
        g.edges[relation].data["ends"] = torch.stack([src, dst], 1)
    for ntype in g.ntypes:
        g.nodes[ntype].data["id"] = torch.arange(g.num_nodes(ntype))
    return g


def ring() -> mg.HeteroGraph:
    """As many edges as nodes."""
    g = mg.graph((torch.arange(24), (torch.arange(24) + 1) % 24))
    g.ndata["id"] = g.edata["src"] = torch.arange(24)
    return g


def sparse() -> mg.HeteroGraph:
    """Two nodes of twelve with in-edges."""
    g = mg.graph(([0, 1], [1, 0]), num_nodes=12)
    g.ndata["id"] = torch.arange(12)
    return g


def test_features_that_some_types_have(job: SharedJob) -> None:
    g = job.open(job.write(cut, "typed"))
    loader = dist.DistNodeDataLoader(
        g, {"b": torch.arange(4)}, NeighborSampler([2, 2]), batch_size=2, features={"a": ["x"]}
    )
    for inputs, _, blocks in loader:
        assert torch.equal(blocks[0].srcnodes["a"].data["x"], g.nodes["a"].data["x"][inputs["a"]])
        assert "x" not in blocks[0].srcnodes["b"].data


def test_relations_that_no_seed_has_are_empty(job: SharedJob) -> None:
    g = job.open(job.write(cut, "typed"))
    sampler = as_edge_prediction_sampler(NeighborSampler([-1, -1]))
    for _, pairs, blocks in dist.DistEdgeDataLoader(g, {"r1": torch.arange(1)}, sampler, batch_size=1):
        assert pairs.num_edges("r1") == 1
        for block in blocks:
            assert block.num_edges("z") == 0 == block.num_dst_nodes("b") and block.num_edges("r1") == 1


def test_minibatches_of_nodes_without_edges(job: SharedJob) -> None:
    g = job.open(job.write(cut, "sparse"))
    nodes = torch.arange(12)
    batches = list(dist.DistNodeDataLoader(g, nodes, NeighborSampler([5, 5]), batch_size=1, shuffle=False))
    assert torch.equal(torch.cat([seeds for _, seeds, _ in batches]), nodes)  # none is left out, in their order
    for inputs, seeds, blocks in batches:
        assert [block.num_dst_nodes() for block in blocks] == [len(inputs), 1] and seeds in inputs
    for batch in dist.DistNodeDataLoader(g, nodes, NeighborSampler([5, 5]), batch_size=4, output="pyg"):
        assert batch.num_nodes == 4 + len(set(batch.n_id[4:].tolist())) and batch.edge_index.shape[0] == 2


def test_no_seeds_are_no_minibatches(job: SharedJob) -> None:
    g = job.open(job.write(cut, "sparse"))
    mine = dist.node_split(np.zeros(12, bool), g.get_partition_book())
    assert len(mine) == 0
    for output in ("dgl", "pyg"):
        loader = dist.DistNodeDataLoader(g, mine, NeighborSampler([2]), batch_size=4, output=output)
        assert len(loader) == 0 and list(loader) == []
    assert g.ndata["id"][mine].shape == (0,) and g.sample_neighbors(mine, 2).num_edges() == 0


def test_as_many_edges_as_nodes(job: SharedJob) -> None:
    g = job.open(job.write(cut, "ring"))
    seeds = torch.arange(24)
    loader = dist.DistNodeDataLoader(
        g, seeds, NeighborSampler([1, 1], prefetch_edge_feats=["src"]), batch_size=2, output="pyg", features=["id"]
    )
    for batch in loader:
        assert batch.id.tolist() == g.ndata["id"][batch.n_id].tolist()
        assert batch.src.tolist() == batch.id[batch.edge_index[0]].tolist()


def test_loaders_with_worker_processes_ask_for_none(job: SharedJob) -> None:
    g = job.open(job.write(cut, "ring"))
    sampler = NeighborSampler([1, 1])
    loaders = [
        dist.DistNodeDataLoader(g, torch.arange(24), sampler, batch_size=5, seed=3, num_workers=workers)
        for workers in (0, 1, 4)
    ]
    for one, *others in zip(*loaders, strict=True):
        assert all(torch.equal(one[0], other[0]) for other in others)
