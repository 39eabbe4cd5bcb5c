"""Edges of a minibatch by relation, as negative samplers and edge samplers see them."""

from dataclasses import dataclass

import numpy as np

from mpigraph.arrays import I64
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.typed_ids import EdgeIds, by_relation
from mpigraph.metadata.schema import Relation

__all__ = ["NO_EDGES", "Edges", "find_edges"]


@dataclass(frozen=True)
class Edges:
    """Edges of one relation.

    Attributes:
        eids: int64[n], edge ids.
        src: int64[n], their sources.
        dst: int64[n], their destinations.
    """

    eids: I64
    src: I64
    dst: I64


NO_EDGES = Edges(*(np.empty(0, np.int64) for _ in range(3)))


def find_edges(g: DistGraph, eids: EdgeIds) -> dict[Relation, Edges]:
    """The ends of edges by relation. One-sided; the target does nothing.

    Raises:
        OutOfRangeError: an edge does not exist.
        EdgeTypeError: an edge type is unknown or ambiguous, or the ids are not by type and the graph has several.
        InvalidArgumentError: the ids are not integers in one dimension, or two edge types are the same relation.
    """
    found = {}
    for relation, ids in by_relation(g.schema, eids, "edge ids").items():
        src, dst = g.find_edges(ids, relation)
        found[relation] = Edges(ids.numpy(), src.numpy(), dst.numpy())
    return found
