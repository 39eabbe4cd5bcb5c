"""Edges of a minibatch by relation, as negative samplers and edge samplers see them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from mpigraph.arrays import I64
from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.fields import as_ids
from mpigraph.metadata.schema import Relation, Schema

__all__ = ["NO_EDGES", "Edges", "as_given", "by_relation", "canonical", "find_edges"]


class Draw(Protocol):
    """What the draws of a minibatch depend on."""

    @property
    def seed(self) -> int: ...
    @property
    def epoch(self) -> int: ...


class Draws(Protocol):
    """Says what the next draw depends on; a session does."""

    def draw(self, seed: int | None = None) -> Draw: ...


class Rounds(Protocol):
    """Makes rounds of sampling; a round with an error raises it on every trainer."""

    def sample(self, requests: list[Any], error: BaseException | None = None) -> Any: ...


class EdgeGraph(Protocol):
    """What samplers of edges need of a graph; :class:`mpigraph.distributed.DistGraph` has it."""

    @property
    def schema(self) -> Schema: ...
    @property
    def session(self) -> Draws: ...
    @property
    def service(self) -> Rounds: ...
    def num_nodes(self, ntype: str | None = None) -> int: ...
    def num_edges(self, etype: str | Relation | None = None) -> int: ...
    def find_edges(self, edges: Any, etype: Relation) -> tuple[torch.Tensor, torch.Tensor]: ...
    def has_edges_between(self, u: Any, v: Any) -> Any: ...
    def get_partition_book(self) -> Any: ...


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


def canonical(schema: Schema, given: Any, what: str) -> dict[Relation, Any]:
    """What is given by edge type keyed by canonical relation, in the same order.

    Args:
        schema: node types and relations.
        given: edge type -> anything; or anything else where the graph has one relation.
        what: names what is given in errors.

    Raises:
        EdgeTypeError: an edge type is unknown or ambiguous, or nothing is keyed and the graph has several.
        InvalidArgumentError: two edge types are the same relation.
    """
    found: dict[Relation, Any] = {}
    for etype, value in (given if isinstance(given, Mapping) else {None: given}).items():
        relation = schema.to_canonical(etype)
        if relation in found:
            raise InvalidArgumentError(f"{what}: relation {relation} is given twice (edge types {list(given)})")
        found[relation] = value
    return found


def by_relation(schema: Schema, ids: Any, what: str) -> dict[Relation, torch.Tensor]:
    """Ids keyed by canonical relation, int64 on the CPU.

    Args:
        schema: node types and relations.
        ids: int[n] where the graph has one relation, or edge type -> int[n].
        what: names the ids in errors.

    Raises:
        EdgeTypeError: an edge type is unknown or ambiguous, or the ids are not keyed and the graph has several.
        InvalidArgumentError: the ids are not integers in one dimension, or two edge types are the same relation.
    """
    return {r: as_ids(some, what).cpu().contiguous() for r, some in canonical(schema, ids, what).items()}


def as_given(schema: Schema, ids: dict[Relation, torch.Tensor]) -> Any:
    """The reverse of :func:`by_relation`: a tensor where the graph has one relation."""
    if len(schema.relations) > 1:
        return ids
    return ids.get(schema.relations[0], torch.empty(0, dtype=torch.int64))


def find_edges(g: EdgeGraph, eids: Any) -> dict[Relation, Edges]:
    """The ends of edges, given as in :func:`by_relation`. One-sided; the target does nothing.

    Raises:
        OutOfRangeError: an edge does not exist.
    """
    found = {}
    for relation, ids in by_relation(g.schema, eids, "edge ids").items():
        src, dst = g.find_edges(ids, relation)
        found[relation] = Edges(ids.numpy(), src.numpy(), dst.numpy())
    return found
