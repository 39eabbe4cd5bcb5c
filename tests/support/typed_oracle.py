"""A graph of several types whose every value says what it belongs to; awkward on purpose.

Five node types: one with fewer nodes than parts, one without edges, one without nodes. Seven relations: two between the
same types, one from a type to itself, one and its reverse, one without edges. In relation r node v has the
``(v + r) mod (r + 5)`` in-neighbours ``3 v + r + 1``, ``3 v + r + 2`` ... (modulo the number of sources); but
"written_by" has the edges of "writes" the other way round. There are no parallel edges. The feature of a node is
``1000 * (type id) + v``, that of an edge ``r * 10^6 + 1000 * dst + src``.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from oracle import partitioned

from mpigraph.metadata.schema import Relation, Schema
from mpigraph.partition.source import Feature, GraphSource

TYPED_ORACLE = "typed_oracle"
NUM_NODES = {"author": 53, "nothing": 0, "paper": 101, "stray": 11, "venue": 3}
RELATIONS: tuple[Relation, ...] = (
    ("author", "reads", "paper"),
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "in", "venue"),
    ("paper", "written_by", "author"),
    ("venue", "never", "author"),
    ("venue", "prints", "paper"),
)
EMPTY = ("venue", "never", "author")
FORWARD, REVERSE = ("author", "writes", "paper"), ("paper", "written_by", "author")
WEIGHTED = ("author", "writes", "paper"), ("paper", "cites", "paper")
SCHEMA = Schema(tuple(NUM_NODES), RELATIONS)
I64 = npt.NDArray[np.int64]


def edges_of(number: int) -> tuple[I64, I64]:
    """Sources and destinations by destination, then source: in the order of edge ids where nodes keep theirs."""
    src_type, _, dst_type = RELATIONS[number]
    if RELATIONS[number] == EMPTY:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if RELATIONS[number] == REVERSE:
        dst, src = edges_of(RELATIONS.index(FORWARD))
    else:
        degrees = (np.arange(NUM_NODES[dst_type]) + number) % (number + 5)
        dst = np.repeat(np.arange(NUM_NODES[dst_type]), degrees)
        step = np.concatenate([np.arange(1, d + 1) for d in degrees])
        src = (3 * dst + number + step) % NUM_NODES[src_type]
    order = np.lexsort((src, dst))
    return src[order], dst[order]


def typed_oracle_source() -> GraphSource:
    """The whole graph."""
    edges = tuple(edges_of(number) for number in range(len(RELATIONS)))
    nodes = {t: {"feat": Feature.of(feat_of(t, np.arange(n)))} for t, n in NUM_NODES.items()}
    nodes["paper"]["year"] = Feature.of(np.arange(NUM_NODES["paper"]) % 9)
    fields: dict[str, dict[str, Feature]] = {}
    for number, (relation, (src, dst)) in enumerate(zip(RELATIONS, edges, strict=True)):
        fields[":".join(relation)] = {"edge": Feature.of(name_of(number, src, dst))}
        if relation in WEIGHTED:
            fields[":".join(relation)]["weight"] = Feature.of(((src + dst) % 4).astype(np.float32))
    return GraphSource(SCHEMA, tuple(NUM_NODES.values()), edges, nodes, fields)


def feat_of(ntype: str, ids: I64) -> npt.NDArray[np.float32]:
    """The feature of nodes in the original numbering: float32[n, 2]."""
    return np.repeat((1000 * SCHEMA.ntype_id(ntype) + ids)[:, None], 2, axis=1).astype(np.float32)


def name_of(number: int, src: I64, dst: I64) -> I64:
    """The feature of edges in the original numbering."""
    return number * 10**6 + 1000 * dst + src


def write_typed_oracle(directory: Path, num_parts: int, part_method: str = "given") -> str:
    """Partition the graph; return the path of its configuration."""
    return partitioned(typed_oracle_source(), TYPED_ORACLE, num_parts, directory, part_method)
