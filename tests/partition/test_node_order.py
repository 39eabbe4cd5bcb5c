"""The order of nodes inside parts by clusters: neighbours lie together, and the graph stays what it was."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layouts import shared_folder
from mpi4py import MPI
from typed_parts import check_equal, check_round_trip, typed_source

from mpigraph.metadata.schema import Schema
from mpigraph.partition import pipeline, relabel, source
from mpigraph.partition.exchange import ALONE, Exchange
from mpigraph.partition.forecast import Workload, check_memory, forecast
from mpigraph.partition.over_mpi import MPIExchange
from mpigraph.partition.pipeline import PartitionResult, partition_source
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.partition.spill import Scratch, carried_sizes

CLIQUE, CLIQUES_OF_GROUP, GROUPS = 10, 6, 8
NODES = CLIQUE * CLIQUES_OF_GROUP * GROUPS


def cliques() -> tuple[GraphSource, np.ndarray]:
    """Groups of cliques, shuffled: each node knows its clique, and some nodes of other cliques of the group.

    Returns the graph, whose nodes have a place in mind, and int64[nodes], that place: clique after clique.
    """
    place = np.random.default_rng(3).permutation(NODES)
    node = np.argsort(place)
    first, second = np.divmod(np.arange(NODES * NODES), NODES)
    close = first // CLIQUE == second // CLIQUE
    group = CLIQUE * CLIQUES_OF_GROUP
    in_group = (first // group == second // group) & (first % CLIQUE == 0) & (second % CLIQUE == 0)
    kept = (close | in_group) & (first != second)
    ends = (node[first[kept]], node[second[kept]])
    feats = {"_N": {"place": Feature.of(place)}}
    return GraphSource(Schema.homogeneous(), (NODES,), (ends,), feats, {}), place


def homogeneous(num_nodes: int, num_edges: int) -> GraphSource:
    """A random graph whose node feature ``id`` is the node."""
    return typed_source({"_N": num_nodes}, {("_N", "_E", "_N"): num_edges})


@pytest.mark.parametrize("num_parts", [1, 2])
def test_nodes_of_a_clique_lie_together_and_cliques_of_a_group(tmp_path: Path, num_parts: int) -> None:
    graph, place = cliques()
    parts = place * num_parts // NODES  # whole groups
    result = partition_source(graph, "g", num_parts, tmp_path, "given", assignment=parts, node_order="clusters")
    places = place[result.orig_nids[0]]
    for size in (CLIQUE, CLIQUE * CLIQUES_OF_GROUP):
        runs = (places // size).reshape(-1, size)
        assert (runs == runs[:, :1]).all()
    assert np.array_equal(np.sort(places), np.arange(NODES))


def cases() -> list[Any]:
    """Ranks, method and kind: all methods and kinds on three ranks, which is slow, and two pairs on other numbers."""
    some = [("multilevel", "homogeneous"), ("given", "typed")]
    every = itertools.product(["metis", "multilevel", "random", "given"], ["homogeneous", "typed"])
    found = [(ranks, *case) for ranks in (1, 2) for case in some]
    slow = [*((3, *case) for case in every), *((4, *case) for case in some)]
    return [*found, *(pytest.param(*case, marks=pytest.mark.slow) for case in slow)]


@pytest.mark.parametrize("comm, method, kind", cases(), indirect=["comm"])
def test_the_files_are_those_of_one_rank(comm: MPI.Intracomm, monkeypatch, method: str, kind: str) -> None:
    """The graph is the same in original ids, features go along, and rows of mapped files are those of memory."""
    graph = homogeneous(300, 4000) if kind == "homogeneous" else typed_source()
    assignment = np.arange(sum(graph.num_nodes)) * 7 % 5 if method == "given" else None

    def cut(graph: GraphSource, folder: Path, exchange: Exchange, scratch: Scratch | None = None) -> PartitionResult:
        return partition_source(
            graph, "g", 5, folder, method, assignment=assignment, node_order="clusters", seed=2,
            exchange=exchange, scratch=scratch,
        )  # fmt: skip

    with shared_folder(comm) as folder:
        if comm.rank == 0:
            check_round_trip(graph, cut(graph, folder / "wanted", ALONE), 5)
            for ntype, feats in graph.node_feats.items():
                np.save(folder / f"{ntype}.npy", feats["id"].values)
        comm.Barrier()
        for ntype, feats in graph.node_feats.items():
            feats["id"] = Feature.of(
                np.load(folder / f"{ntype}.npy", mmap_mode="r" if feats["id"].values.size else None)
            )
        assert carried_sizes(graph).total == 0 < carried_sizes(graph, scattered=True).total
        monkeypatch.setattr(source, "EDGES_PER_CHUNK", 64)  # many rounds, buckets, and files
        monkeypatch.setattr(relabel, "EDGES_PER_BUCKET", 100)
        cut(graph, folder / "found", MPIExchange(comm), Scratch(folder, 1000, mapping=True))
        comm.Barrier()
        check_equal(folder / "wanted", folder / "found")


def test_the_order_of_the_input_stays_by_default(tmp_path: Path) -> None:
    graph, _ = cliques()
    ids = partition_source(graph, "g", 1, tmp_path, "random").orig_nids[0]
    assert np.array_equal(ids, np.arange(NODES))


@pytest.mark.parametrize("comm", [1, 3], indirect=True)
@pytest.mark.parametrize("num_nodes, num_edges", [(0, 0), (1, 3), (3, 0), (2, 50)])
def test_graphs_smaller_than_the_ranks(comm: MPI.Intracomm, num_nodes: int, num_edges: int) -> None:
    with shared_folder(comm) as folder:
        graph = homogeneous(num_nodes, num_edges)
        if comm.rank == 0:
            partition_source(graph, "g", 2, folder / "alone", "random", node_order="clusters")
        partition_source(graph, "g", 2, folder / "out", "random", node_order="clusters", exchange=MPIExchange(comm))
        comm.Barrier()
        check_equal(folder / "alone", folder / "out")


def test_another_order_takes_up_the_assignment_and_no_parts(tmp_path: Path, monkeypatch, caplog) -> None:
    graph, _ = cliques()
    write = pipeline.PartWriter.write

    def until(writer: pipeline.PartWriter, part: int) -> pipeline.WrittenPart:
        return write(writer, part if part < 2 else 1 // 0)

    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(pipeline.PartWriter, "write", until)
        partition_source(graph, "g", 3, tmp_path / "out", "metis", node_order="clusters")
    for order, kept in (("input", "no part is complete"), ("clusters", "no part is complete")):
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(pipeline.PartWriter, "write", until)
            patch.setattr(pipeline, "metis_assign", lambda *_, **__: pytest.fail("assigned again"))
            partition_source(graph, "g", 3, tmp_path / "out", "metis", node_order=order, resume=True)
        assert kept in caplog.messages[-1]
    partition_source(graph, "g", 3, tmp_path / "out", "metis", node_order="clusters", resume=True)
    assert caplog.messages[-1] == "2 of 3 parts are complete, and are not written again"
    partition_source(graph, "g", 3, tmp_path / "wanted", "metis", node_order="clusters")
    check_equal(tmp_path / "wanted", tmp_path / "out")


def test_the_forecast_knows_the_order() -> None:
    work = Workload(10**7, 5 * 10**8, 4, "given")
    ordered = work._replace(ordered=True)
    in_memory, mapped = forecast(ordered, 2), forecast(ordered, 2, mapping=True)
    assert "order nodes" not in forecast(work, 2).stages and in_memory.memory > mapped.memory
    assert check_memory(ordered, 2, in_memory.memory - 1) == mapped
    assert mapped.scratch > forecast(work, 2).scratch
