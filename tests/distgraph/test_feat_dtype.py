"""Features in 16 bits, on disk or from the load on: what is read, written, cached and sent, local and remote."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from layouts import Layout, SharedJob, on_layouts
from oracle import NUM_NODES, oracle_source
from typed_oracle import SCHEMA as TYPED
from typed_oracle import typed_oracle_source

import mpigraph.distributed as dist
from mpigraph.dataloading import DistEdgeDataLoader, NeighborSampler
from mpigraph.errors import CollectiveError, FieldNameError, GraphDataError, InvalidArgumentError, PartitionError
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.session.context import current

KEY = "_N:_E:_N"
WIDTH = 37  # an odd number of 16-bit words
SPECIAL = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 2.0**-24, -(2.0**-15), 2.0**-14, 65504.0], np.float32)


def rows_of(count: int) -> np.ndarray:
    """float32[count, WIDTH]: random numbers, and special ones at the end."""
    rows = np.random.default_rng(count).standard_normal((count, WIDTH)).astype(np.float32)
    rows[:, -len(SPECIAL) :] = SPECIAL
    return rows


def source_of(large: bool) -> GraphSource:
    """The oracle with such rows for nodes, and, as float64, for edges; one does not fit float16 if ``large``."""
    source = oracle_source()
    feat = rows_of(NUM_NODES)
    if large:
        feat[71, 5] = 65520
    nodes = dict(source.node_feats["_N"]) | {"feat": Feature.of(feat), "one": Feature.of(feat[:, 1].copy())}
    wide = rows_of(source.num_edges())[:, :-1].astype(np.float64)
    edges = dict(source.edge_feats[KEY]) | {"wide": Feature.of(wide), "id": Feature.of(np.arange(len(wide)))}
    return replace(source, node_feats={"_N": nodes}, edge_feats={KEY: edges})


def write(folder: Path, feat_dtype: Any, large: bool = False) -> str:
    return str(partition_source(source_of(large), "rounded", 3, folder, "random", feat_dtype=feat_dtype).config_path)


def write_typed(folder: Path, feat_dtype: Any) -> str:
    """The typed oracle with such rows for nodes of each type and edges of each relation."""
    source = typed_oracle_source()

    def features(count: int) -> dict[str, Feature]:
        return {"h": Feature.of(rows_of(count)), "id": Feature.of(np.arange(count))}

    nodes = {ntype: features(count) for ntype, count in zip(TYPED.ntypes, source.num_nodes, strict=True)}
    keys = map(":".join, TYPED.relations)
    edges = {key: features(count) for key, count in zip(keys, source.edge_counts, strict=True)}
    source = replace(source, node_feats=nodes, edge_feats=edges)
    return str(partition_source(source, "rounded", 3, folder, "random", feat_dtype=feat_dtype).config_path)


def anew(job: SharedJob, path: str, feat_dtype: Any) -> dist.DistGraph:
    """The graph in a job of its own, since one that is open keeps its features as they are."""
    job.end()
    _ = job.session
    job.path = path
    return dist.DistGraph("rounded", part_config=path, feat_dtype=feat_dtype)


def rounded(rows: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Rows rounded by torch and back in their own dtype."""
    exact = torch.from_numpy(rows)
    return exact.to(dtype).to(exact.dtype)


def check_equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Bit for bit, except that any NaN is like another."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    words = torch.int64 if actual.dtype == torch.float64 else torch.int32
    nan = torch.isnan(expected)
    assert torch.equal(torch.isnan(actual), nan)
    assert torch.equal(actual.view(words)[~nan], expected.view(words)[~nan])


def check_rows(g: dist.DistGraph, dtype: torch.dtype) -> None:
    feat, wide = g.ndata["feat"], g.edata["wide"]
    assert (feat.dtype, feat.storage_dtype) == (torch.float32, dtype)
    assert (wide.dtype, wide.storage_dtype) == (torch.float64, dtype)
    assert f"storage_dtype={dtype}" in repr(feat)
    for plain in (g.ndata["one"], g.edata["weight"], g.ndata["orig"], g.ndata["third"]):
        assert plain.storage_dtype == plain.dtype
    window = feat.rows.window
    local = np.flatnonzero(window.world.is_local)
    assert sum(window.memory(int(host)).nbytes for host in local) == 2 * WIDTH * np.diff(window.offsets)[local].sum()
    everything = rounded(rows_of(NUM_NODES), dtype)
    orig = g.ndata["orig"][:]
    check_equal(feat[:], everything[orig])
    ids = torch.from_numpy(np.random.default_rng(g.rank()).integers(0, NUM_NODES, 250))
    gathered = everything[orig[ids]]
    check_equal(feat[ids], gathered)
    check_equal(feat[[]], gathered[:0])
    check_equal(feat.gather(ids, out=torch.empty(250, WIDTH)), gathered)
    check_equal(feat.gather(ids, out=torch.empty(WIDTH, 250).T), gathered)
    check_equal(feat.gather(ids, pin_memory=True), gathered)
    edges = rounded(rows_of(g.num_edges())[:, :-1].astype(np.float64), dtype)
    check_equal(wide[:], edges[g.edata["id"][:]])
    with pytest.raises(InvalidArgumentError, match="out must be"):
        feat.gather(ids, out=torch.empty(250, WIDTH, dtype=dtype))
    with pytest.raises(PartitionError, match="no local_partition"):
        _ = feat.local_partition


def test_rows_of_the_shards_arrive_as_what_they_were(job: SharedJob) -> None:
    check_rows(job.open(job.write(write, "bfloat16")), torch.bfloat16)


def test_stored_rows_if_asked_for(job: SharedJob) -> None:
    path = job.write(write, "bfloat16")
    job.open(path)
    g = dist.DistGraph("rounded", part_config=path, upcast=False)
    feat = g.ndata["feat"]
    assert feat.dtype == feat.storage_dtype == torch.bfloat16
    expected = rounded(rows_of(NUM_NODES), torch.bfloat16)[g.ndata["orig"][:]]
    check_equal(feat[:].float(), expected)
    seeds = dist.node_split(np.ones(NUM_NODES))
    loader = dist.DistNodeDataLoader(g, seeds, NeighborSampler([2]), batch_size=30, features=["feat"])
    for inputs, _, blocks in loader:
        assert blocks[0].srcdata["feat"].dtype == torch.bfloat16
        check_equal(blocks[0].srcdata["feat"].float(), expected[inputs])
    loader.close()


def test_rows_rounded_by_the_load_are_read_and_written(job: SharedJob) -> None:
    g = anew(job, job.write(write, None), torch.float16)
    check_rows(g, torch.float16)
    g.barrier()
    feat = g.ndata["feat"]
    values = torch.randn(NUM_NODES, WIDTH, generator=torch.Generator().manual_seed(1))
    own = torch.arange(g.rank(), NUM_NODES, current().num_trainers)
    feat[own] = values[own]
    g.barrier()
    check_equal(feat[:], values.half().float())
    g.barrier()
    if g.rank() == 0:
        large = values[[8, 9]]
        large[1, 2] = 70000.0
        with pytest.raises(InvalidArgumentError, match="value of row 9: 70000.0, column 2 does not fit float16"):
            feat[[8, 9]] = large
        feat[[3]] = torch.tensor([float("inf")])
        assert torch.isinf(feat[[3]]).all()
    g.barrier()
    check_equal(feat[4:], values[4:].half().float())


def test_what_cannot_be_is_an_error_on_every_rank(job: SharedJob) -> None:
    path = job.write(write, None, True)
    job.end()
    _ = job.session

    def opened(feat_dtype: Any) -> dist.DistGraph:
        return dist.DistGraph("rounded", part_config=path, feat_dtype=feat_dtype)

    with pytest.raises(GraphDataError, match=r"dataset '_N/feat', row \d+: 65520\.0, column 5 does not fit float16"):
        opened("float16")
    with pytest.raises(FieldNameError, match="no feature 'x'"):
        opened({"x": "float16"})
    with pytest.raises(InvalidArgumentError, match="'label' of '_N' is int64"):
        opened({"label": torch.float16})
    with pytest.raises(InvalidArgumentError, match="must be one of"):
        opened(torch.float32)
    if job.trainers.size > 1:
        with pytest.raises(CollectiveError, match="with different arguments"):
            opened(("float16", "bfloat16")[min(job.rank, 1)])
    g = opened({"feat": "bfloat16", "weight": "float16"})
    job.path = path
    assert g.edata["weight"].storage_dtype == torch.float16 and g.edata["wide"].storage_dtype == torch.float64
    with pytest.raises(InvalidArgumentError, match="edge weights 'weight' must be .*torch.float16"):
        dist.sample_neighbors(g, [0, 1], 2, prob="weight")
    for same in (None, {"feat": "bfloat16", "weight": "float16"}):
        assert opened(same).ndata["feat"].storage_dtype == torch.bfloat16
    with pytest.raises(PartitionError, match="is open already, with feature 'feat' as bfloat16"):
        opened({"feat": "float16"})


@on_layouts([Layout(2, 0, 1), Layout(4, 1, 2)])  # where a cache is of one trainer: what it fetches can be foreseen
def test_loaders_give_the_rows_with_every_cache_and_half_the_bytes(job: SharedJob) -> None:
    path = job.write(write, None)
    fetched, moved = [], []
    for number, dtype in enumerate((None, torch.bfloat16)):
        g = anew(job, path, dtype)
        for cache in ({"cache": None}, {"cache": "auto"}, {"cache": 3000, "lookahead": 2}):
            seeds = dist.node_split(np.ones(NUM_NODES))
            sampler = NeighborSampler([3, 4])
            loader = dist.DistNodeDataLoader(g, seeds, sampler, batch_size=5, features=["feat"], seed=1, **cache)
            for inputs, _, blocks in loader:
                check_equal(blocks[0].srcdata["feat"], g.ndata["feat"][inputs])
            stats = loader.stats()
            assert stats.fetched_bytes == stats.fetched_rows * WIDTH * (4, 2)[number]
            fetched.append(stats.fetched_rows)
            loader.close()
        traffic = current().store.rows.transport.traffic
        g.barrier()
        before = traffic.bytes_received
        g.ndata["feat"][:]
        moved.append(traffic.bytes_received - before)
        g.barrier()
    fewer = job.trainers.allreduce(fetched[2] - fetched[5])
    assert fetched[:2] == fetched[3:5] and fetched[5] <= fetched[2]
    assert fewer > 0  # in a cache of this size are twice as many
    assert 0 < moved[1] <= 0.6 * moved[0]


@on_layouts([Layout(2, 0, 1), Layout(3, 1, 0)])
@pytest.mark.parametrize("output", ["dgl", "pyg"])
def test_typed_graphs_edges_and_pyg(job: SharedJob, output: str) -> None:
    if output == "pyg":
        pytest.importorskip("torch_geometric")
    g = job.open(job.write(write_typed, "bfloat16"))
    relation = ("author", "writes", "paper")
    expected = {}
    for ntype in g.ntypes:
        expected[ntype] = rounded(rows_of(g.num_nodes(ntype)), torch.bfloat16)[g.nodes[ntype].data["id"][:]]
        check_equal(g.nodes[ntype].data["h"][:], expected[ntype])
    edges = g.edges[relation].data
    check_equal(edges["h"][:], rounded(rows_of(g.num_edges(relation)), torch.bfloat16)[edges["id"][:]])
    seeds = {relation: dist.edge_split(torch.ones(g.num_edges(relation), dtype=torch.bool), etype=relation)}
    options: dict[str, Any] = {"output": "pyg"} if output == "pyg" else {}
    loader = DistEdgeDataLoader(g, seeds, NeighborSampler([2, 2]), batch_size=20, features=["h"], **options)
    for batch in loader:
        if output == "pyg":
            rows = {ntype: (batch[ntype].n_id, batch[ntype].h) for ntype in batch.node_types if "h" in batch[ntype]}
        else:
            rows = {ntype: (ids, batch[2][0].srcnodes[ntype].data["h"]) for ntype, ids in batch[0].items()}
        assert rows
        for ntype, (ids, actual) in rows.items():
            check_equal(actual, expected[ntype][ids])
    loader.close()
