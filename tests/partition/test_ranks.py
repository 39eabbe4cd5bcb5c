"""Partitioning on several ranks: the files are those of one rank, and an error is the same on every rank."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from layouts import shared_folder
from mpi4py import MPI
from typed_parts import check_equal, typed_source

import mpigraph
from mpigraph.errors import CollectiveError, GraphDataError, InvalidArgumentError, MPIGraphError
from mpigraph.formats.readers import read_source
from mpigraph.metadata.schema import Schema
from mpigraph.partition import pipeline, shuffle, source
from mpigraph.partition.assign import METHODS
from mpigraph.partition.exchange import Exchange
from mpigraph.partition.over_mpi import MPIExchange
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.partition.spill import Scratch

SIZES = [3, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (1, 2, 4))]


def skewed(num_nodes: int, num_edges: int) -> GraphSource:
    """A graph with hubs, repeats and self loops. The feature of a node is the node, and of an edge its ends."""
    rng = np.random.default_rng(num_nodes)
    src = (rng.random(num_edges) ** 3 * num_nodes).astype(np.int32)
    dst = np.where(rng.random(num_edges) < 0.2, 0, rng.integers(0, num_nodes, num_edges)).astype(np.int32)
    nodes = {"id": Feature.of(np.arange(num_nodes)), "train_mask": Feature.of(np.arange(num_nodes) % 3 == 0)}
    edges = {"ends": Feature.of(np.stack([src, dst], axis=1))}
    return GraphSource(Schema.homogeneous(), (num_nodes,), ((src, dst),), {"_N": nodes}, {"_N:_E:_N": edges})


@pytest.mark.parametrize("comm", SIZES, indirect=True)
@pytest.mark.parametrize(
    ("kind", "method"),
    [
        *(("typed", "metis"), ("homogeneous", "multilevel"), ("typed", "random"), ("homogeneous", "given")),
        *(pytest.param("homogeneous", method, marks=pytest.mark.slow) for method in ("metis", "random")),
        *(pytest.param("typed", method, marks=pytest.mark.slow) for method in ("multilevel", "given")),
        pytest.param("cut again", "multilevel", marks=pytest.mark.slow),
    ],
)
def test_the_files_are_those_of_one_rank(comm: MPI.Intracomm, monkeypatch, method: str, kind: str) -> None:
    """Where parts are cut again, every rank reads its slices of the shards, across the bounds of parts."""
    graph = skewed(300, 4000) if kind == "homogeneous" else typed_source()
    assignment = np.arange(sum(graph.num_nodes)) * 7 % 5 if method == "given" else None
    classes = {"_N": np.arange(300) % 2} if kind == "homogeneous" and method != "given" else None

    def cut(folder: Path, exchange: Exchange, scratch: Scratch | None = None) -> None:
        partition_source(
            graph, "g", 5, folder, method, assignment=assignment, balance_classes=classes,
            balance_edges=classes is not None, seed=2, exchange=exchange, scratch=scratch,
        )  # fmt: skip

    with shared_folder(comm) as folder:
        if kind == "cut again":
            if comm.rank == 0:
                partition_source(graph, "g", 4, folder / "first", "random", seed=2)
            comm.Barrier()
            graph = read_source(folder / "first" / "g.json")
        if comm.rank == 0:
            cut(folder / "wanted", Exchange())
        monkeypatch.setattr(source, "EDGES_PER_CHUNK", 64)  # many rounds, buckets, and files
        monkeypatch.setattr(shuffle, "BUCKET_BYTES", 1200)
        cut(folder / "found", MPIExchange(comm), Scratch(folder, 1000, mapping=method == "multilevel"))
        comm.Barrier()
        check_equal(folder / "wanted", folder / "found")
        assert not list(folder.glob(".mpigraph*"))


@pytest.mark.parametrize("comm", SIZES, indirect=True)
@pytest.mark.parametrize("num_nodes, num_edges, num_parts", [(0, 0, 2), (1, 3, 5), (3, 0, 1), (50, 400, 1)])
def test_graphs_smaller_than_the_ranks(comm: MPI.Intracomm, num_nodes: int, num_edges: int, num_parts: int) -> None:
    with shared_folder(comm) as folder:
        for method in ("metis", "multilevel", "random"):
            graph = skewed(num_nodes, num_edges)
            partition_source(graph, "g", num_parts, folder / method, method, exchange=MPIExchange(comm))
            if comm.rank == 0:
                partition_source(graph, "g", num_parts, folder / "alone" / method, method)
            comm.Barrier()
            check_equal(folder / "alone" / method, folder / method)


def test_complete_parts_are_taken_up_by_other_ranks(comm: MPI.Intracomm, monkeypatch) -> None:
    """After a run of one rank, and of all ranks; the missing parts are divided anew."""
    graph = skewed(100, 900)
    exchange = MPIExchange(comm)
    write = pipeline.PartWriter.write

    def cut(folder: Path, missing: list[int], exchange: Exchange, resume: bool = True) -> list[int]:
        """Return the parts that this rank has written."""
        result: list[int] = []

        def until(writer: pipeline.PartWriter, part: int) -> None:
            result.append(part if part not in missing else 1 // 0)
            write(writer, part)

        with monkeypatch.context() as patch:
            patch.setattr(pipeline.PartWriter, "write", until)
            partition_source(graph, "g", 5, folder, "random", exchange=exchange, resume=resume)
        return result

    with shared_folder(comm) as folder:
        if comm.rank == 0:
            cut(folder / "wanted", [], Exchange())
            with pytest.raises(ZeroDivisionError):
                cut(folder / "alone", [2], Exchange(), resume=False)
        comm.Barrier()
        with pytest.raises(MPIGraphError, match="ZeroDivisionError"):
            cut(folder / "together", [4], exchange, resume=False)
        again = METHODS["random"]._replace(assign=lambda task: pytest.fail("assigned again"))
        monkeypatch.setitem(METHODS, "random", again)
        for name, missing in (("alone", [2, 3, 4]), ("together", [4])):
            written = comm.allgather(cut(folder / name, [], exchange))
            assert sorted(sum(written, [])) == missing
            assert max(map(len, written)) == -(-len(missing) // comm.size)
            comm.Barrier()
            check_equal(folder / "wanted", folder / name)


def test_an_error_is_raised_on_every_rank(comm: MPI.Intracomm, monkeypatch) -> None:
    exchange = MPIExchange(comm)
    monkeypatch.setattr(source, "EDGES_PER_CHUNK", 10)
    graph = skewed(50, 200)
    graph.edges[0][1][35] = 50  # one rank reads it
    with shared_folder(comm) as folder:
        with pytest.raises(GraphDataError, match=r"edge 35 of \('_N', '_E', '_N'\) has destination 50, .* 50 nodes"):
            partition_source(graph, "g", 2, folder / "out", exchange=exchange)
        (folder / "file").touch()
        comm.Barrier()
        with pytest.raises(InvalidArgumentError, match=r"file/out: cannot write there"):
            partition_source(skewed(50, 200), "g", 2, folder / "file" / "out", exchange=exchange)
        with pytest.raises(GraphDataError, match="balance classes of '_N' must be 50 numbers"):
            partition_source(
                skewed(50, 200), "g", 2, folder / "out", balance_classes={"_N": np.zeros(3)}, exchange=exchange
            )


@pytest.mark.parametrize("comm", [2, 3], indirect=True)
def test_ranks_that_disagree_are_told(comm: MPI.Intracomm) -> None:
    last = comm.size - 1

    def cut(folder: Path, graph: GraphSource, **options: object) -> None:
        options = {"num_parts": 2, "part_method": "random", "exchange": MPIExchange(comm)} | options
        partition_source(graph, options.pop("graph_name", "g"), out_path=folder / "out", **options)

    rest = {"graph_name": "h", "num_parts": 3, "part_method": "multilevel", "seed": 1, "balance_edges": True}
    graphs = {
        "numbers of nodes and edges:": skewed(51, 200), "numbers of nodes and edges: ": skewed(50, 201),
        "types:": typed_source(),
        "features:": replace(skewed(50, 200), node_feats={}),
    }  # fmt: skip
    rows = ["edges", "edges", *["rows of features"] * 2, *["assignment and balance classes"] * 2]
    with shared_folder(comm) as folder:
        for name, other in rest.items():
            own = {name: other} if comm.rank == last else {}
            with pytest.raises(CollectiveError, match=r"these differ:\n  (graph_name|the options): .*; .* on rank"):
                cut(folder, skewed(50, 200), **own)
        for name, graph in graphs.items():
            with pytest.raises(CollectiveError, match=f"\n  {name.strip()} .*; .* on rank {last}"):
                cut(folder, graph if comm.rank == last else skewed(50, 200))
        for number, name in enumerate(rows):  # of graphs of the same form
            graph = skewed(50, 200)
            classes = np.zeros(50, np.int64)
            assignment = np.zeros(50, np.int64)
            features = (graph.node_feats["_N"]["id"].values, graph.edge_feats["_N:_E:_N"]["ends"].values)
            if comm.rank == last:
                (*graph.edges[0], *features, classes, assignment)[number][-1] ^= 1
            with pytest.raises(CollectiveError, match=f"\n  {name}.*; .* on rank {last}"):
                cut(folder, graph, part_method="given", balance_classes={"_N": classes}, assignment=assignment)
        g = mpigraph.graph((torch.arange(9), torch.arange(1, 10)))
        with pytest.raises(InvalidArgumentError, match=f"on rank {last}: num_parts must be an integer >= 1"):
            mpigraph.distributed.partition_graph(g, "g", 0 if comm.rank == last else 2, folder / "bad", comm=comm)
        mpigraph.distributed.partition_graph(g, "g", 2, folder / "good", comm=comm)
        comm.Barrier()
        assert (folder / "good" / "g.json").exists()
