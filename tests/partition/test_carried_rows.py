"""Rows in blocks of files are read once, in order, for all parts; the files are those of arrays in memory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from layouts import shared_folder
from mpi4py import MPI
from typed_parts import check_equal, original_ids, typed_source

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError, MPIGraphError
from mpigraph.formats import named_arrays
from mpigraph.formats.readers import read_source
from mpigraph.formats.table_files import Tables
from mpigraph.metadata.schema import Schema
from mpigraph.partition import pipeline, shuffle, source
from mpigraph.partition.assign import forecast
from mpigraph.partition.assigning import Workload
from mpigraph.partition.exchange import ALONE
from mpigraph.partition.over_mpi import MPIExchange
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.row_arrays import made_rows, reads_blocks
from mpigraph.partition.shuffle import carried_bytes
from mpigraph.partition.source import Feature, Features, GraphSource
from mpigraph.partition.spill import Scratch


class Blocks:
    """Rows that are counted when they are read; only ranges of them can be."""

    sources = ()

    def __init__(self, values: Array, bad: int = -1) -> None:
        self._values = values
        self._bad = bad
        self.counts = np.zeros(len(values), np.int64)
        self.shape = values.shape
        self.ndim = values.ndim
        self.dtype = values.dtype

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, rows: Any) -> Array:
        assert isinstance(rows, slice)
        if self._bad in range(*rows.indices(len(self))):
            raise GraphDataError(f"there: row {self._bad} is bad")
        self.counts[rows] += 1
        return self._values[rows]


def in_blocks(graph: GraphSource, read: list[Blocks], bad: int = -1) -> GraphSource:
    """The same graph with features and original ids in blocks, which are added to ``read``."""

    def blocks(values: Any) -> Blocks:
        read.append(Blocks(np.asarray(values[:]), bad))
        return read[-1]

    def features(tables: Features) -> Features:
        return {
            key: {n: f._replace(values=blocks(f.values)) for n, f in table.items()} for key, table in tables.items()
        }

    return replace(
        graph,
        node_feats=features(graph.node_feats),
        edge_feats=features(graph.edge_feats),
        node_ids=None if graph.node_ids is None else tuple(map(blocks, graph.node_ids)),
        edge_ids=None if graph.edge_ids is None else tuple(map(blocks, graph.edge_ids)),
    )


def hub(num_nodes: int, num_edges: int) -> GraphSource:
    """Most edges go to one node. The features differ in dtype and width; one has no numbers in a row."""
    rng = np.random.default_rng(num_nodes)
    src = rng.integers(0, num_nodes, num_edges)
    dst = np.where(rng.random(num_edges) < 0.7, 1, rng.integers(0, num_nodes, num_edges))
    nodes = {"x": rng.random((num_nodes, 3), np.float32), "flag": rng.random(num_nodes) < 0.5}
    edges = {"y": rng.random((num_edges, 2, 5)), "w": np.arange(num_edges), "none": np.zeros((num_edges, 0), np.int8)}
    return GraphSource(
        Schema.homogeneous(),
        (num_nodes,),
        ((src, dst),),
        {"_N": {name: Feature.of(rows) for name, rows in nodes.items()}},
        {"_N:_E:_N": {name: Feature.of(rows) for name, rows in edges.items()}},
        node_ids=(rng.permutation(num_nodes),),
        edge_ids=(rng.permutation(num_edges),),
    )


@pytest.mark.parametrize("comm", [pytest.param(1, marks=pytest.mark.slow), 3], indirect=True)
@pytest.mark.parametrize("num_parts", [pytest.param(1, marks=pytest.mark.slow), 2, 9])
@pytest.mark.parametrize("graph", [hub(200, 3000), typed_source()], ids=["hub", "typed"])
def test_every_row_is_read_once_whatever_the_parts(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, graph: GraphSource, num_parts: int
) -> None:
    monkeypatch.setattr(pipeline, "_SAMPLES", 0)  # rows by which graphs are compared
    with shared_folder(comm) as folder:
        if comm.rank == 0:
            partition_source(graph, "g", num_parts, folder / "wanted", "random")
        monkeypatch.setattr(source, "EDGES_PER_CHUNK", 500)  # many rounds, buckets, groups, and files
        monkeypatch.setattr(shuffle, "BUCKET_BYTES", 1000)
        monkeypatch.setattr(shuffle, "_PIECE_BYTES", 500)
        monkeypatch.setattr(shuffle, "_ROUND_BYTES", 2000)
        read: list[Blocks] = []
        blocks = in_blocks(graph, read)
        partition_source(
            blocks, "g", num_parts, folder / "found", "random",
            exchange=MPIExchange(comm), scratch=Scratch(folder, 2000),
        )  # fmt: skip
        counts = [np.zeros_like(array.counts) for array in read]
        for array, count in zip(read, counts, strict=True):
            comm.Allreduce(array.counts, count)
        assert len(counts) > 4
        assert all((count == 1).all() for count in counts)
        # a chunk of edges is read by one rank, in one go or in steps: its blocks are unpacked by this rank alone
        assert all(np.count_nonzero(np.diff(array.counts)) <= 2 * -(-len(array) // 500) for array in read)
        comm.Barrier()
        check_equal(folder / "wanted", folder / "found")


def test_an_error_of_one_rank_is_raised_on_every_rank(comm: MPI.Intracomm) -> None:
    graph = in_blocks(hub(200, 3000), [], bad=2999 if comm.rank == comm.size - 1 else -1)
    with shared_folder(comm) as folder:
        with pytest.raises(MPIGraphError, match="there: row 2999 is bad"):
            partition_source(graph, "g", 3, folder / "out", "random", exchange=MPIExchange(comm))
        assert not (folder / "out" / "g.json").exists()


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[int]:
    calls = [0]
    method = getattr(owner, name)

    def counted(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        return method(*arguments, **named)

    monkeypatch.setattr(owner, name, counted)
    return calls


@pytest.mark.parametrize("kind", ["parquet", "hdf5"])
def test_the_blocks_of_a_file_do_not_count_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """List columns of a parquet file, and chunked datasets, as users have them."""
    num_nodes, num_edges = 60, 4000
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, num_nodes, (2, num_edges))
    rows = rng.random((num_edges if kind == "parquet" else num_nodes, 8), np.float32)
    if kind == "parquet":
        path = tmp_path / "edges.parquet"
        pq.write_table(pa.table({"src": src, "dst": dst, "x": list(rows)}), path, row_group_size=500)
        calls = count_calls(monkeypatch, Tables, "columns")
    else:
        path = tmp_path / "graph.h5"
        with h5py.File(path, "w") as file:
            file.update({"edge_src": src, "edge_dst": dst})
            file.create_dataset("feat", data=rows, chunks=(16, 8), compression="gzip")
        calls = count_calls(monkeypatch, named_arrays, "read_dataset")
    monkeypatch.setattr(shuffle, "BUCKET_BYTES", 3000)
    seen = []
    for num_parts in (1, 3, 16):
        calls[0] = 0
        graph = read_source(path, num_nodes if kind == "parquet" else None)
        result = partition_source(graph, "g", num_parts, tmp_path / str(num_parts), "random")
        seen.append(calls[0])
        ids = original_ids(result)[kind == "parquet"][0]
        name, which = ("_N:_E:_N/x", "edge_feat") if kind == "parquet" else ("_N/feat", "node_feat")
        parts = [tmp_path / str(num_parts) / f"part{part}" / f"{which}.h5" for part in range(num_parts)]
        actual = np.concatenate([h5py.File(part)[name][:] for part in parts])
        assert np.array_equal(actual, rows[ids])
    assert seen[0] == seen[1] == seen[2] > 0


def test_the_forecast_counts_what_is_carried() -> None:
    graph = in_blocks(hub(200, 3000), [])
    assert carried_bytes(graph) == 200 * (16 + 8 + 12 + 1) + 3000 * (16 + 8 + 80 + 8)
    assert carried_bytes(hub(200, 3000)) == 0
    assert not reads_blocks(made_rows(abs, "f4", np.zeros(3)))
    assert reads_blocks(made_rows(abs, "f4", np.zeros(3), Blocks(np.zeros(3))))
    work = Workload(10**6, 10**7, 4, "random")
    plain, carrying = forecast(work, 2), forecast(work._replace(carried=10**10), 2)
    assert carrying.scratch == plain.scratch + 10**10 // 2 and carrying.memory > plain.memory


def test_rows_that_memory_does_not_hold_lie_in_a_file(tmp_path: Path) -> None:
    """All edges go to two nodes, so a group cannot be made smaller."""
    graph = in_blocks(hub(2, 3000), [])
    scratch = Scratch(tmp_path, limit=1000)
    mapped: list[int] = []
    new = scratch._mapped
    scratch._mapped = lambda count, dtype: mapped.append(count) or new(count, dtype)  # type: ignore[method-assign]
    partition_source(graph, "g", 1, tmp_path / "out", "random", exchange=ALONE, scratch=scratch)
    assert max(mapped) > 1000
