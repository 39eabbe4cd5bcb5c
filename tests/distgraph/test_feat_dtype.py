"""Features in 16 bits, on disk or from the load on: what is read, written, cached and sent."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from layouts import Layout, SharedJob, everywhere, on_layouts
from oracle import NUM_NODES, oracle_source, partitioned
from typed_oracle import SCHEMA as TYPED, typed_oracle_source
from worlds import counted

import mpigraph.distributed as dist
from mpigraph.dataloading import DistEdgeDataLoader, NeighborSampler
from mpigraph.errors import CollectiveError, FieldNameError, GraphDataError, InvalidArgumentError, PartitionError
from mpigraph.inference import layerwise
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.session.context import current

KEY = "_N:_E:_N"
WIDTH = 37  # no multiple of a word
SPECIAL = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 2.0**-24, -(2.0**-15), 2.0**-14, 65504.0], np.float32)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


both = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=name_of)


def rows_of(count: int) -> np.ndarray:
    """float32[count, WIDTH]: random numbers, and some special ones."""
    rows = np.random.default_rng(count).standard_normal((count, WIDTH))
    rows[:, -len(SPECIAL) :] = SPECIAL
    return rows.astype(np.float32)


def wide_rows(count: int) -> np.ndarray:
    return rows_of(count)[:, :-1].astype(np.float64)


def rounded(rows: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """The numbers that rows stored so stand for, in the rows' dtype."""
    exact = torch.from_numpy(rows)
    return exact.to(dtype).to(exact.dtype)


def write(folder: Path, dtype: torch.dtype, written: bool, bad: float = 0) -> str:
    """The oracle with such rows for nodes, and, as float64, for edges; a number of node 71 is ``bad``, but 0.

    The parts have them in the dtype if ``written``.
    """
    source = oracle_source()
    feat = rows_of(NUM_NODES)
    if bad:
        feat[71, 5] = bad
    nodes = {"feat": feat, "one": feat[:, 3].copy(), "none": feat[:, :0]}
    count = source.edge_counts[0]
    edges = {"wide": wide_rows(count), "id": np.arange(count)}
    feats = (
        {kind: old[kind] | {name: Feature.of(rows) for name, rows in new.items()}}
        for kind, old, new in (("_N", source.node_feats, nodes), (KEY, source.edge_feats, edges))
    )
    source = replace(source, **dict(zip(("node_feats", "edge_feats"), feats, strict=True)))
    return parts_of(source, folder, dict.fromkeys(["feat", "wide", "none"], name_of(dtype)) if written else None)


def write_typed(folder: Path, dtype: torch.dtype) -> str:
    """The typed oracle with such rows for nodes of each type and edges of each relation."""
    source = typed_oracle_source()

    def features(count: int) -> dict[str, Feature]:
        return {"h": Feature.of(rows_of(count)), "id": Feature.of(np.arange(count))}

    nodes = {ntype: features(count) for ntype, count in zip(TYPED.ntypes, source.num_nodes, strict=True)}
    keys = map(":".join, TYPED.relations)
    edges = {key: features(count) for key, count in zip(keys, source.edge_counts, strict=True)}
    return parts_of(replace(source, node_feats=nodes, edge_feats=edges), folder, name_of(dtype))


def parts_of(source: GraphSource, folder: Path, feat_dtype: Any) -> str:
    return partitioned(source, "narrow", 3, folder, "random", feat_dtype=feat_dtype)


def anew(job: SharedJob, path: str, **options: Any) -> dist.DistGraph:
    """The graph in a job of its own, since one that is open keeps its features as they are."""
    job.end()
    _ = job.session
    job.path = path + str(options)
    return dist.DistGraph("narrow", part_config=path, **options)


def check_equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Bit for bit, except that any NaN is like another."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}[actual.element_size()]
    nan = expected != expected
    assert torch.equal(actual != actual, nan)
    assert torch.equal(actual.contiguous().view(words)[~nan], expected.contiguous().view(words)[~nan])


def check_rows(g: dist.DistGraph, dtype: torch.dtype) -> None:
    """The features of :func:`write` are stored in a dtype, and read as what they were."""
    feat, wide = g.ndata["feat"], g.edata["wide"]
    assert (feat.dtype, feat.storage_dtype) == (torch.float32, dtype)
    assert (wide.dtype, wide.storage_dtype) == (torch.float64, dtype)
    assert f"storage_dtype={dtype}" in repr(feat)
    for plain in (g.ndata["one"], g.edata["weight"], g.ndata["orig"], g.ndata["third"]):
        assert plain.storage_dtype == plain.dtype
    everything = rounded(rows_of(NUM_NODES), dtype)
    orig = g.ndata["orig"][:]
    check_equal(feat[:], everything[orig])
    ids = torch.from_numpy(np.random.default_rng(g.rank()).integers(0, NUM_NODES, 250))
    gathered = everything[orig[ids]]
    check_equal(feat[ids], gathered)
    check_equal(feat[[]], gathered[:0])
    check_equal(g.ndata["none"][ids], gathered[:, :0])
    check_equal(feat.gather(ids, pin_memory=True), gathered)
    check_equal(wide[:], rounded(wide_rows(g.num_edges()), dtype)[g.edata["id"][:]])
    with pytest.raises(PartitionError, match="no local_partition"):
        _ = feat.local_partition


def check_memory(g: dist.DistGraph, dtype: torch.dtype) -> None:
    window = g.ndata["feat"].rows.window
    local = np.flatnonzero(window.world.is_local)
    rows = np.diff(window.offsets)[local].sum()
    assert sum(window.memory(int(host)).nbytes for host in local) == dtype.itemsize * WIDTH * rows


@everywhere
@both
def test_rows_of_the_shards_arrive_as_what_they_were(job: SharedJob, dtype: torch.dtype) -> None:
    g = job.open(job.write(write, dtype, True))
    check_rows(g, dtype)
    check_memory(g, dtype)


@both
def test_stored_rows_if_asked_for(job: SharedJob, dtype: torch.dtype) -> None:
    path = job.write(write, dtype, True)
    job.open(path)
    g = dist.DistGraph("narrow", part_config=path, upcast=False)
    feat = g.ndata["feat"]
    assert feat.dtype == feat.storage_dtype == dtype
    orig = g.ndata["orig"][:]
    stored = torch.from_numpy(rows_of(NUM_NODES)).to(dtype)[orig]
    check_equal(feat[:], stored)
    seeds = dist.node_split(np.ones(NUM_NODES))
    loader = dist.DistNodeDataLoader(g, seeds, NeighborSampler([2]), batch_size=30, features=["feat"])
    for inputs, _, blocks in loader:
        check_equal(blocks[0].srcdata["feat"], stored[inputs])
    loader.close()


def test_float16_of_the_load_is_read_and_written(job: SharedJob) -> None:
    g = anew(job, job.write(write, torch.bfloat16, False), feat_dtype=torch.float16)
    check_rows(g, torch.float16)
    check_memory(g, torch.float16)
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


def test_a_value_that_cannot_be_is_an_error_on_every_rank(job: SharedJob) -> None:
    path = job.write(write, torch.bfloat16, False, 65520)
    job.end()
    _ = job.session
    with pytest.raises(GraphDataError, match=r"dataset '_N/feat', row \d+: 65520\.0, column 5 does not fit float16"):
        dist.DistGraph("narrow", part_config=path, feat_dtype={"feat": "float16"})
    job.path = path
    assert dist.DistGraph("narrow", part_config=path).ndata["feat"].storage_dtype == torch.float32


def test_what_cannot_be_is_an_error_on_every_rank(job: SharedJob) -> None:
    path = job.write(write, torch.bfloat16, False)
    job.end()
    _ = job.session

    def opened(feat_dtype: Any) -> dist.DistGraph:
        return dist.DistGraph("narrow", part_config=path, feat_dtype=feat_dtype)

    with pytest.raises(FieldNameError, match="no feature 'x'"):
        opened({"x": "float16"})
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


@pytest.mark.slow
@on_layouts([Layout(2, 0, 1), Layout(4, 1, 2)])  # where a cache is of one trainer: what it fetches can be foreseen
@both
def test_loaders_give_the_rows_with_every_cache_and_fewer_bytes(job: SharedJob, dtype: torch.dtype) -> None:
    path = job.write(write, dtype, False)
    exact = torch.from_numpy(rows_of(NUM_NODES))
    fetched, moved = [], []
    for narrow in (False, True):
        g = anew(job, path, feat_dtype={"feat": dtype} if narrow else None)
        rows = (rounded(exact.numpy(), dtype) if narrow else exact)[g.ndata["orig"][:]]
        for cache in ({"cache": None}, {"cache": "auto"}, {"cache": 3000, "lookahead": 2}):
            seeds = dist.node_split(np.ones(NUM_NODES))
            sampler = NeighborSampler([3, 4])
            loader = dist.DistNodeDataLoader(g, seeds, sampler, batch_size=5, features=["feat"], seed=1, **cache)
            for inputs, _, blocks in loader:
                check_equal(blocks[0].srcdata["feat"], rows[inputs])
            stats = loader.stats()
            assert stats.fetched_bytes == stats.fetched_rows * WIDTH * (dtype.itemsize if narrow else 4)
            fetched.append(stats.fetched_rows)
            loader.close()
        g.barrier()
        before = counted("received_bytes")
        g.ndata["feat"][:]
        moved.append(counted("received_bytes") - before)
        g.barrier()
    assert fetched[:2] == fetched[3:5] and fetched[5] <= fetched[2]
    assert job.trainers.allreduce(fetched[2] - fetched[5]) > 0  # a cache of this size has more of them
    assert 0 < moved[1] <= (dtype.itemsize / 4 + 0.1) * moved[0]


@on_layouts([Layout(2, 0, 1), Layout(3, 1, 0)])
@both
@pytest.mark.parametrize("output", ["dgl", "pyg"])
def test_typed_graphs_edges_and_pyg(job: SharedJob, output: str, dtype: torch.dtype) -> None:
    if output == "pyg":
        pytest.importorskip("torch_geometric")
    g = job.open(job.write(write_typed, dtype))
    relation = ("author", "writes", "paper")

    def numbers(count: int, data: Any) -> torch.Tensor:
        return rounded(rows_of(count), dtype)[data["id"][:]]

    expected = {}
    for ntype in g.ntypes:
        expected[ntype] = numbers(g.num_nodes(ntype), g.nodes[ntype].data)
        check_equal(g.nodes[ntype].data["h"][:], expected[ntype])
    edges = g.edges[relation].data
    check_equal(edges["h"][:], numbers(g.num_edges(relation), edges))
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


def test_inference_and_saving_read_numbers(job: SharedJob) -> None:
    g = job.open(job.write(write, torch.bfloat16, True))
    feat = g.ndata["feat"]
    numbers = rounded(rows_of(NUM_NODES), torch.bfloat16)
    found = layerwise(g, [lambda block, h: h[1]], feat, batch_size=7)
    check_equal(found[:], numbers[g.ndata["orig"][:]])
    path = Path(job.path).parent / "feat.npy"
    feat.save(path)
    g.barrier()
    check_equal(torch.from_numpy(np.load(path)), numbers)
