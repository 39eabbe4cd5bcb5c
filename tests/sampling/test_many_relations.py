"""Relations that share tables: all that is drawn and looked up is what it is where each has tables of its own."""

import dataclasses
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import numpy as np
import pytest
import torch
from batches import digest
from layouts import SharedJob, alone, everywhere, on_all, rotated
from oracle import partitioned

import mpigraph.distributed as dist
from mpigraph.cli import info
from mpigraph.cli.grammar import Info, Verify
from mpigraph.dataloading import LaborSampler, NeighborSampler
from mpigraph.formats.shards import read_partition
from mpigraph.graphs.fields import EID, NID
from mpigraph.metadata.schema import Relation, Schema
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.session.context import current
from mpigraph.storage.part_config import PartConfig
from mpigraph.storage.shard import ShardReader

SAMPLING_WAYS = ("alltoallv", "sparse", "everywhere")
NODES = {"a": 90, "b": 41, "none": 0}
SCHEMA = Schema(
    tuple(NODES),
    tuple([*((s, f"r{k}", d) for k in range(6) for s in "ab" for d in "ab"), ("none", "x", "a"), ("a", "y", "none")]),
)
WITH_FEATURES = SCHEMA.relations[1:12]
OF_EDGES = {"weight": np.float32, "time": np.int64, "mask": np.bool_}
SAMPLERS = {
    "uniform": NeighborSampler([2, 3]),
    "replace": NeighborSampler([2, 2], replace=True),
    "all": NeighborSampler([-1, -1], return_eids=False),
    "weighted": NeighborSampler([2, 2], prob="weight"),
    "weighted, replace": NeighborSampler([2, -1], prob="weight", replace=True),
    "masked": NeighborSampler([1, 2], prob="mask", disjoint=True),
    "labor": LaborSampler([2, 2]),
    "labor weighted": LaborSampler([1, 2], prob="weight", layer_dependency=True),
    "time": NeighborSampler([2, 2], time_attr="time"),
    "time, last": NeighborSampler([-1, 1], prob="mask", time_attr="time", temporal_strategy="last"),
    "disjoint": NeighborSampler([2, 2], disjoint=True),
    "by relation": NeighborSampler([2, {relation: k % 3 for k, relation in enumerate(SCHEMA.relations)}]),
}


def made(seed: int = 0) -> GraphSource:
    """Two relations have many edges, two none, two no nodes; the others up to 19, some twice, to five nodes."""
    rng = np.random.default_rng(seed)
    sizes = [
        0 if "none" in relation else 150 if r in (2, 9) else 3 * (r % 7) for r, relation in enumerate(SCHEMA.relations)
    ]
    edges, features = [], {}
    for (src, name, dst), size in zip(SCHEMA.relations, sizes, strict=True):
        src_ids, dst_ids = (rng.integers(0, max(1, NODES[end]), size) for end in (src, dst))
        edges.append((src_ids, dst_ids if size > 20 else dst_ids % 5 * (NODES[dst] // 5 - 1)))  # more than fanouts
        if (src, name, dst) in WITH_FEATURES:
            numbers = {of: rng.integers(0, 5, size).astype(dtype) for of, dtype in OF_EDGES.items()}
            features[f"{src}:{name}:{dst}"] = {of: Feature.of(rows) for of, rows in numbers.items()}
    return GraphSource(SCHEMA, tuple(NODES.values()), tuple(edges), {}, features)


def write(directory: Path, num_parts: int, shared: bool = True) -> str:
    """Write the graph in ranges of its nodes, whose ids stay."""
    with mock.patch("mpigraph.partition.source.shared_relations", lambda *_: ()) if not shared else mock.MagicMock():
        path = partitioned(made(), "many", num_parts, directory)
    assert len(PartConfig.read(path).shared) == (len(SCHEMA.relations) - 3 if shared else 0)
    return path


def everything(path: str, rank: int, trainers: int) -> dict[str, str]:
    """This trainer's share of what is drawn and looked up."""
    g = dist.DistGraph("many", part_config=path)
    found = {}
    for number, (name, sampler) in enumerate(SAMPLERS.items()):
        seeds = {t: torch.arange(number, NODES[t], 3) for t in "ab"} if number % trainers == rank else {}
        if seeds and number % 3 == 0:
            seeds["a"] = seeds["a"].repeat(2)  # each time a draw of its own
        drop: dict[Relation, torch.Tensor] = {r: torch.arange(0, g.num_edges(r), 2) for r in SCHEMA.relations[:3]}
        times = {t: 1 + ids % 4 for t, ids in seeds.items()}
        arguments = dataclasses.replace(sampler.arguments, seed=3)
        extra = {"seed_times": times} if "time" in name else {}
        inputs, _, blocks = g.sample_blocks(seeds, arguments, exclude_edges=drop if number % 2 else None, **extra)
        if seeds:
            found[name] = digest([inputs, blocks])
    seeds = {t: torch.arange(0, NODES[t], 2) for t in "ab"} if rank == 0 else {}
    graph = g.sample_neighbors(seeds, 2, seed=3)
    if seeds:
        found["one hop"] = digest([graph.all_edges(etype=r) for r in SCHEMA.relations] + [graph.edata[EID]])
    for number, relation in enumerate(SCHEMA.relations):
        edges = torch.arange(g.num_edges(relation))
        if number % trainers != rank:
            g.has_edges_between([], [], etype=relation)
            continue
        src, dst = g.find_edges(edges, relation)
        every = [torch.arange(NODES[t]) for t in relation[::2]]
        degrees = g.in_degrees(every[1], relation), g.out_degrees(every[0], relation)
        assert torch.equal(degrees[0], torch.bincount(dst, minlength=len(every[1])))
        pairs = [end.repeat(2)[: 2 * len(edges)] for end in (src, dst)]
        pairs[0][len(edges) :] = pairs[0][len(edges) :].roll(1)
        exist = g.has_edges_between(*pairs, etype=relation)
        assert exist[: len(edges)].all()
        found[str(relation)] = digest([src, dst, *degrees, exist])
    return found


@cache
def expected() -> dict[str, str]:
    with TemporaryDirectory() as directory:
        path = write(Path(directory), 1, shared=False)
        return alone(lambda: everything(path, 0, 1))


@pytest.mark.slow
@everywhere
@rotated(2)
@pytest.mark.parametrize("num_parts", [1, 5])
def test_all_is_as_with_tables_of_their_own(job: SharedJob, num_parts: int) -> None:
    path = job.write(write, num_parts)
    reference = expected()
    job.open(path)
    found = everything(path, current().rank, current().num_trainers)
    wrong = [key for key, value in found.items() if reference[key] != value]
    on_all(job.trainers, not wrong, f"{wrong}")
    assert sum(job.trainers.allgather(len(found))) == len(reference)


def test_cut_again_and_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of shared tables are an input like others, in other parts the same edges in the same order."""
    first, again = write(tmp_path / "first", 3), tmp_path / "again"
    source = read_partition(first)
    given = source.parts
    assert given is not None
    partition_source(source, "many", 3, again, "given", assignment=given.of_nodes)
    for part in range(3):
        for name in ("graph.h5", "edge_feat.h5"):
            one, other = (ShardReader(Path(p).parent / f"part{part}" / name) for p in (first, again / "many.json"))
            assert one.fingerprint() == other.fingerprint(), name
    for number, (src, dst) in enumerate(source.edges):
        original = made().edges[number]
        ids = source.edge_ids[number][:] if source.edge_ids else np.empty(0)
        assert np.array_equal(src[:], original[0][ids]) and np.array_equal(dst[:], original[1][ids])
    assert info.verify(Verify(first)) == 0 and info.info(Info(first)) == 0
    assert "all checksums right" in capsys.readouterr().out
    for part in range(3):
        graph = dist.load_partition(first, part)[0]
        assert graph.num_edges() == int(np.sum([np.diff(o)[part] for o in PartConfig.read(first).book.edge_offsets]))
    assert NID in graph.nodes["a"].data
