"""Graphs of many relations: all of a hop share its round and its messages, and each is read as itself."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from layouts import Layout, SharedJob, on_layouts

from mpigraph.metadata.schema import Schema
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.source import GraphSource
from mpigraph.sampling.minibatch import Layer, SamplingPlan, hop_requests
from mpigraph.sampling.protocol import pack_request, unpack_requests
from mpigraph.sampling.strategies import HopKeys, Uniform, Weighted
from mpigraph.session.context import current
from mpigraph.trace import sums

NUM_NODES, NUM_EDGES = 120, 2400
RELATIONS = (1, 4, 200)
REMOTE = [Layout(2, 0, 1), Layout(4, 1, 2)]


def moved_bytes() -> int:
    """Bytes of requests that this process has sent so far, and of answers that it has received, whoever asked."""
    names = ("sent_bytes", "received_bytes")
    return sum(value for one in sums()[1].values() for key, value in one.counts.items() if key[0] in names) // 2


def test_relations_without_destinations_or_fanout_are_not_asked_for() -> None:
    schema = Schema(("a", "b"), (("a", "r0", "a"), ("a", "r1", "a"), ("a", "r2", "b"), ("b", "r3", "a")))
    graph = SimpleNamespace(number=0, topology=SimpleNamespace(hosts=SimpleNamespace(schema=schema)))
    plan = SamplingPlan([Layer({0: Uniform(2), 2: Uniform(2), 3: Uniform(-1)})], {})
    requests = hop_requests(plan, 0, graph, {0: np.arange(5)}, HopKeys.of(np.uint64(1), 0))
    assert [(np.flatnonzero(r.chosen).tolist(), r.strategy.fanout) for r in requests] == [([0], 2), ([3], -1)]
    assert requests[0].ids is requests[1].ids  # which lets a message carry them once


def test_relations_drawn_from_alike_are_one_request() -> None:
    """Strategies that differ in tensors alone share one, which carries the tensors; another fanout has its own."""
    schema = Schema(("n",), tuple(("n", f"r{r}", "n") for r in range(8)))
    graph = SimpleNamespace(number=0, topology=SimpleNamespace(hosts=SimpleNamespace(schema=schema)))
    plan = SamplingPlan([Layer({r: Weighted(2 + r // 4, False, 10 + r) for r in (4, 5, 6, 0, 2, 1)})], {})
    requests = hop_requests(plan, 0, graph, {0: np.arange(5)}, HopKeys.of(np.uint64(1), 0))
    words = np.concatenate([word for r in requests for word in pack_request(r, r.ids, r.excluded)])
    for request in [*requests, *unpack_requests(words)]:
        chosen = [4, 5, 6] if request.strategy.fanout == 3 else [0, 1, 2]
        assert np.flatnonzero(request.chosen).tolist() == chosen
        assert request.tensors.tolist() == [[10 + r for r in chosen]]
    assert len(requests) == 2


@on_layouts(REMOTE[:1])
def test_destinations_are_sent_once(job: SharedJob, tmp_path: Path) -> None:
    """A hop from everywhere, by relations that share tables: 4 bytes for each remote node, and a count of 1 byte."""
    num_nodes, number, num_edges = 5000, 20, 100
    ends = np.random.default_rng(2).integers(0, num_nodes, (number, 2, num_edges))
    relations = tuple(("n", f"r{r}", "n") for r in range(number))
    if job.trainers.rank == 0:
        source = GraphSource(Schema(("n",), relations), (num_nodes,), tuple(map(tuple, ends)))
        partition_source(source, "wide", 2, tmp_path, "random")
    folder = job.one_has(lambda: tmp_path)
    g = job.open(str(folder / "wide.json"))
    begin, end = current().store.graphs["wide"].topology.hosts.node_range(1 - current().world.host_index, 0)
    g.barrier()
    before = moved_bytes()
    _, _, (block,) = g.sample_blocks({"n": torch.arange(num_nodes)}, [1])
    g.barrier()  # others have their answers, too
    after = moved_bytes()
    for relation, (_, dst) in zip(relations, ends, strict=True):
        assert block.num_edges(relation) == len(np.unique(dst))
    drawn = 10 * number * num_edges  # at most, with the place of each row and a count
    assert 0 < after - before - (end - begin) * (4 + 1) < 512 + drawn
