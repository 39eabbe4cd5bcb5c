"""Random graphs with times: ties, extreme times, nodes without edges, and types without times."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from oracle import partitioned

from mpigraph.metadata.schema import Relation, Schema, relation_key
from mpigraph.partition.source import Feature, GraphSource

I64 = npt.NDArray[np.int64]
OLDEST, NEWEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
TYPED: tuple[Relation, ...] = (("a", "in", "b"), ("b", "back", "a"), ("a", "to", "a"))


class Temporal(NamedTuple):
    """A graph whose edges are in the order of their ids, and its times by node type or by relation."""

    schema: Schema
    counts: dict[str, int]
    ends: dict[Relation, tuple[I64, I64]]
    node_time: dict[str, I64]
    edge_time: dict[Relation, I64]
    mask: dict[Relation, npt.NDArray[np.bool_]]

    def time_of(self, relation: Relation) -> I64 | None:
        """The time that each edge of a relation is filtered by."""
        if relation in self.edge_time:
            return self.edge_time[relation]
        times = self.node_time.get(relation[0])
        return None if times is None else times[self.ends[relation][0]]


@cache
def temporal(seed: int, typed: bool, of_nodes: bool) -> Temporal:
    """Ties, edges that nothing may see, nodes without edges, a type or relation without times, and extreme times."""
    rng = np.random.default_rng([seed, typed, of_nodes])
    schema = Schema(("a", "b"), TYPED) if typed else Schema.homogeneous()
    relations = schema.relations
    counts = {ntype: int(rng.integers(1, 40)) for ntype in schema.ntypes}
    ends = {}
    for src_type, rel, dst_type in relations:
        num = int(rng.integers(0, 250))
        src = rng.integers(0, counts[src_type], num)
        dst = (counts[dst_type] * rng.random(num) ** 2).astype(np.int64)
        order = np.lexsort((src, dst))
        ends[src_type, rel, dst_type] = src[order], dst[order]

    def times(count: int) -> I64:
        found = rng.integers(-3, 9, count)
        extreme = rng.random(count)
        return np.where(extreme < 0.03, OLDEST, np.where(extreme > 0.97, NEWEST, found))

    node_time = {t: times(counts[t]) for t in schema.ntypes[:1]} if of_nodes else {}
    with_time = [] if of_nodes else [relations[0], *relations[2:]]
    mask = {r: rng.random(len(ends[r][0])) < 0.7 for r in relations}
    return Temporal(schema, counts, ends, node_time, {r: times(len(ends[r][0])) for r in with_time}, mask)


def write(directory: Path, seed: int, typed: bool, of_nodes: bool) -> str:
    """Partition it in up to three parts; ids stay what they are."""
    some = temporal(seed, typed, of_nodes)
    node_feats = {t: {"other": Feature.of(np.arange(count))} for t, count in some.counts.items()}
    for ntype, times in some.node_time.items():
        node_feats[ntype]["time"] = Feature.of(times)
    edge_feats = {relation_key(r): {"mask": Feature.of(mask)} for r, mask in some.mask.items()}
    for relation, times in some.edge_time.items():
        edge_feats[relation_key(relation)]["time"] = Feature.of(times)
    counts = tuple(some.counts.values())
    source = GraphSource(
        some.schema, counts, tuple(some.ends[r] for r in some.schema.relations), node_feats, edge_feats
    )
    return partitioned(source, "temporal", 3, directory)
