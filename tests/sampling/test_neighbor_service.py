"""Graphs of many relations: all of a hop share its round and its messages, and each is read as itself."""

from pathlib import Path

import numpy as np
import torch
from layouts import Layout, SharedJob, on_layouts
from worlds import counted

from mpigraph.metadata.schema import Schema
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.source import GraphSource
from mpigraph.session.context import current

REMOTE = [Layout(2, 0, 1), Layout(4, 1, 2)]


def moved_bytes() -> int:
    """Bytes of requests that this process has sent so far, and of answers that it has received, whoever asked."""
    return (counted("sent_bytes") + counted("received_bytes")) // 2


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
