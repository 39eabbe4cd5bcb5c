"""Features stored as int8, on disk or from the load on: what is read, kept in caches and sent; nothing is written."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from int8 import as_int8
from layouts import Layout, SharedJob, everywhere, on_layouts
from oracle import NUM_NODES, oracle_source
from typed_oracle import SCHEMA as TYPED
from typed_oracle import typed_oracle_source

import mpigraph.distributed as dist
from mpigraph import checkpoint
from mpigraph.dataloading import DistEdgeDataLoader, NeighborSampler
from mpigraph.errors import GraphDataError, InvalidArgumentError, PartitionError
from mpigraph.inference import layerwise
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.session.context import current

KEY = "_N:_E:_N"
WIDTH = 37  # no multiple of a word


def rows_of(count: int) -> np.ndarray:
    """float32[count, WIDTH]: random numbers of other sizes in each column, and constant columns."""
    rng = np.random.default_rng(count)
    rows = rng.standard_normal((count, WIDTH)) * 10.0 ** rng.integers(-6, 6, WIDTH) + rng.integers(-99, 99, WIDTH)
    rows[:, :3] = 0, -0.1, 1e9
    return rows.astype(np.float32)


def source_of(bad: float) -> GraphSource:
    """The oracle with such rows for nodes, and, as float64, for edges; a number of node 71 is ``bad``, but 0."""
    source = oracle_source()
    feat = rows_of(NUM_NODES)
    if bad:
        feat[71, 5] = bad
    nodes = dict(source.node_feats["_N"]) | {
        "feat": Feature.of(feat),
        "one": Feature.of(feat[:, 3].copy()),
        "none": Feature.of(feat[:, :0]),
    }
    wide = rows_of(source.num_edges())[:, :-1].astype(np.float64)
    edges = dict(source.edge_feats[KEY]) | {"wide": Feature.of(wide), "id": Feature.of(np.arange(len(wide)))}
    return replace(source, node_feats={"_N": nodes}, edge_feats={KEY: edges})


def write(folder: Path, feat_dtype: Any, bad: float = 0) -> str:
    source = source_of(bad)
    names = ["feat", "wide", "none"] if feat_dtype else []
    dtypes = dict.fromkeys(names, feat_dtype)
    return str(partition_source(source, "levels", 3, folder, "random", feat_dtype=dtypes).config_path)


def write_typed(folder: Path) -> str:
    """The typed oracle with such rows for nodes of each type and edges of each relation."""
    source = typed_oracle_source()

    def features(count: int) -> dict[str, Feature]:
        return {"h": Feature.of(rows_of(count)), "id": Feature.of(np.arange(count))}

    nodes = {ntype: features(count) for ntype, count in zip(TYPED.ntypes, source.num_nodes, strict=True)}
    keys = map(":".join, TYPED.relations)
    edges = {key: features(count) for key, count in zip(keys, source.edge_counts, strict=True)}
    source = replace(source, node_feats=nodes, edge_feats=edges)
    return str(partition_source(source, "levels", 3, folder, "random", feat_dtype="int8").config_path)


def anew(job: SharedJob, path: str, feat_dtype: Any) -> dist.DistGraph:
    """The graph in a job of its own, since one that is open keeps its features as they are."""
    job.end()
    _ = job.session
    job.path = path
    return dist.DistGraph("levels", part_config=path, feat_dtype=feat_dtype)


def check_equal(actual: torch.Tensor, expected: np.ndarray) -> None:
    assert actual.dtype == torch.from_numpy(expected).dtype
    assert np.array_equal(actual.numpy(), expected)


def check_rows(g: dist.DistGraph) -> None:
    feat, wide = g.ndata["feat"], g.edata["wide"]
    assert (feat.dtype, feat.storage_dtype) == (torch.float32, torch.int8)
    assert (wide.dtype, wide.storage_dtype) == (torch.float64, torch.int8)
    for plain in (g.ndata["one"], g.edata["weight"], g.ndata["orig"], g.ndata["third"]):
        assert plain.storage_dtype == plain.dtype
    everything = as_int8(rows_of(NUM_NODES))[1]
    orig = g.ndata["orig"][:].numpy()
    check_equal(feat[:], everything[orig])
    ids = np.random.default_rng(g.rank()).integers(0, NUM_NODES, 250)
    gathered = everything[orig[ids]]
    check_equal(feat[ids], gathered)
    check_equal(feat[[]], gathered[:0])
    check_equal(g.ndata["none"][ids], gathered[:, :0])
    check_equal(feat.gather(ids, out=torch.empty(250, WIDTH)), gathered)
    check_equal(feat.gather(ids, out=torch.empty(WIDTH, 250).T), gathered)
    check_equal(feat.gather(ids, pin_memory=True), gathered)
    edges = as_int8(rows_of(g.num_edges())[:, :-1].astype(np.float64))[1]
    check_equal(wide[:], edges[g.edata["id"][:]])


@everywhere
def test_rows_of_the_shards_arrive_as_what_they_were(job: SharedJob) -> None:
    g = job.open(job.write(write, "int8"))
    check_rows(g)
    window = g.ndata["feat"].rows.window
    local = np.flatnonzero(window.world.is_local)
    assert sum(window.memory(int(host)).nbytes for host in local) == WIDTH * np.diff(window.offsets)[local].sum()


def test_rows_on_disk_are_the_same(job: SharedJob) -> None:
    job.end()
    _ = job.session
    path = job.write(write, "int8")
    check_rows(dist.DistGraph("levels", part_config=path, storage="disk"))
    job.path = path + " on disk"


def test_rows_rounded_by_the_load_are_the_same(job: SharedJob) -> None:
    g = anew(job, job.write(write, None), {"feat": torch.int8, "wide": "int8"})
    check_rows(g)
    with pytest.raises(PartitionError, match="is open already, with feature 'feat' as int8"):
        dist.DistGraph("levels", part_config=job.path, feat_dtype={"feat": "float16"})


def test_stored_rows_if_asked_for(job: SharedJob) -> None:
    path = job.write(write, "int8")
    job.open(path)
    g = dist.DistGraph("levels", part_config=path, upcast=False)
    feat = g.ndata["feat"]
    assert feat.dtype == feat.storage_dtype == torch.int8
    orig = g.ndata["orig"][:].numpy()
    levels, numbers = (rows[orig] for rows in as_int8(rows_of(NUM_NODES)))
    check_equal(feat[:], levels)
    check_equal(feat.widen(feat[:]), numbers)
    seeds = dist.node_split(np.ones(NUM_NODES))
    loader = dist.DistNodeDataLoader(g, seeds, NeighborSampler([2]), batch_size=30, features=["feat"])
    for inputs, _, blocks in loader:
        check_equal(blocks[0].srcdata["feat"], levels[inputs])
        check_equal(feat.widen(blocks[0].srcdata["feat"]), numbers[inputs])
    loader.close()
    for tensor, rows in ((feat, feat[:2].float()), (g.ndata["third"], feat[:2])):
        with pytest.raises(InvalidArgumentError, match="rows must be"):
            tensor.widen(rows)


def test_every_way_of_writing_is_refused(job: SharedJob) -> None:
    g = job.open(job.write(write, "int8"))
    feat = g.ndata["feat"]
    before = feat[:]
    g.barrier()
    text = "'feat' cannot be written: its rows are stored as int8.* make a DistTensor"
    with pytest.raises(InvalidArgumentError, match=text):
        feat[[1, 2]] = torch.zeros(2, WIDTH)
    with pytest.raises(InvalidArgumentError, match=text):
        feat.load_state_dict({"rows": dist.DistTensor(feat.shape, feat.dtype, part_policy=feat.part_policy)})
    with pytest.raises(InvalidArgumentError, match=text):
        checkpoint.save({"feat": feat}, checkpoint_id=Path(job.path).parent / "saved")
    with pytest.raises(PartitionError, match="no local_partition"):
        _ = feat.local_partition
    stored = dist.DistGraph("levels", part_config=job.path, upcast=False).ndata["feat"]
    with pytest.raises((InvalidArgumentError, PartitionError), match=f"{text}|not next to each other"):
        _ = stored.local_partition
    g.barrier()
    assert torch.equal(feat[:], before)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (np.nan, r"row \d+: .*nan in column 5"),
        (-np.inf, "-inf in column 5"),
        (1e15, "outliers of column 5 make int8"),
    ],
)
def test_what_cannot_be_is_an_error_on_every_rank(job: SharedJob, bad: float, text: str) -> None:
    path = job.write(write, None, bad)
    job.end()
    _ = job.session
    with pytest.raises(GraphDataError, match=text):
        dist.DistGraph("levels", part_config=path, feat_dtype={"feat": "int8"})
    job.path = path
    assert dist.DistGraph("levels", part_config=path).ndata["feat"].storage_dtype == torch.float32


@on_layouts([Layout(2, 0, 1), Layout(4, 1, 2)])  # where a cache is of one trainer: what it fetches can be foreseen
def test_loaders_give_the_rows_with_every_cache_and_a_quarter_of_the_bytes(job: SharedJob) -> None:
    path = job.write(write, None)
    everything = as_int8(rows_of(NUM_NODES))[1]
    fetched, moved = [], []
    for number, dtype in enumerate((None, "int8")):
        g = anew(job, path, dtype and {"feat": dtype})
        rows = (rows_of(NUM_NODES), everything)[number][g.ndata["orig"][:].numpy()]
        for cache in ({"cache": None}, {"cache": "auto"}, {"cache": 3000, "lookahead": 2}):
            seeds = dist.node_split(np.ones(NUM_NODES))
            sampler = NeighborSampler([3, 4])
            loader = dist.DistNodeDataLoader(g, seeds, sampler, batch_size=5, features=["feat"], seed=1, **cache)
            for inputs, _, blocks in loader:
                check_equal(blocks[0].srcdata["feat"], rows[inputs])
            stats = loader.stats()
            assert stats.fetched_bytes == stats.fetched_rows * WIDTH * (4, 1)[number]
            fetched.append(stats.fetched_rows)
            loader.close()
        traffic = current().store.rows.transport.traffic
        g.barrier()
        before = traffic.bytes_received
        g.ndata["feat"][:]
        moved.append(traffic.bytes_received - before)
        g.barrier()
    assert fetched[:2] == fetched[3:5]
    assert job.trainers.allreduce(fetched[2] - fetched[5]) > 0  # in a cache of this size are four times as many
    assert 0 < moved[1] <= 0.35 * moved[0]


@on_layouts([Layout(2, 0, 1), Layout(3, 1, 0)])
@pytest.mark.parametrize("output", ["dgl", "pyg"])
def test_typed_graphs_edges_and_pyg(job: SharedJob, output: str) -> None:
    if output == "pyg":
        pytest.importorskip("torch_geometric")
    g = job.open(job.write(write_typed))
    relation = ("author", "writes", "paper")
    expected = {}
    for ntype in g.ntypes:
        expected[ntype] = as_int8(rows_of(g.num_nodes(ntype)))[1][g.nodes[ntype].data["id"][:].numpy()]
        check_equal(g.nodes[ntype].data["h"][:], expected[ntype])
    edges = g.edges[relation].data
    check_equal(edges["h"][:], as_int8(rows_of(g.num_edges(relation)))[1][edges["id"][:].numpy()])
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
    g = job.open(job.write(write, "int8"))
    feat = g.ndata["feat"]
    numbers = as_int8(rows_of(NUM_NODES))[1]
    found = layerwise(g, [lambda block, h: h[1]], feat, batch_size=7)
    check_equal(found[:], numbers[g.ndata["orig"][:].numpy()])
    path = Path(job.path).parent / "feat.npy"
    feat.save(path)
    g.barrier()
    assert np.array_equal(np.load(path), numbers)
