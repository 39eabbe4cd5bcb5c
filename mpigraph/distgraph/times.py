"""Temporal sampling as users ask for it: the feature with the times, and the edges that a root's time allows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from mpigraph.arrays import I64
from mpigraph.distgraph.features import Spaces
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.distgraph.typed_ids import NodeIds, by_ntype, id_array
from mpigraph.errors import FieldNameError, InvalidArgumentError, check_integer
from mpigraph.graphs.fields import IdsLike
from mpigraph.metadata.schema import Relation, Schema


@dataclass(frozen=True)
class TimeFilter:
    """A filter of edges by time: a tree has those that are not above the time of its root."""

    attr: str  # name of a feature with an int64 for each node, or for each edge, of the types that have it
    strategy: str = "uniform"  # or "last" for the newest ones
    comparison: str = "<="  # or "<" to leave out edges of exactly the root's time, too
    window: int | None = None  # most by which an edge may be older than the root

    def __post_init__(self) -> None:
        """Raise InvalidArgumentError for another value."""
        if not isinstance(self.attr, str):
            raise InvalidArgumentError(f"time_attr must be the name of a feature (got {self.attr!r})")
        for name, value, choices in (
            ("temporal_strategy", self.strategy, ("uniform", "last")),
            ("temporal_comparison", self.comparison, ("<=", "<")),
        ):
            if value not in choices:
                raise InvalidArgumentError(f"{name} must be {choices[0]!r} or {choices[1]!r} (got {value!r})")
        if self.window is not None:
            object.__setattr__(self, "window", check_integer("time_window", self.window, 0))


@dataclass(frozen=True)
class Times:
    """The times of a graph, the feature ``name``."""

    name: str
    of_nodes: dict[int, DistTensor]  # by node type id; empty if edges have times
    of_edges: dict[int, DistTensor]  # by relation id; empty if nodes have times

    @classmethod
    def find(cls, schema: Schema, nodes: Spaces[str], edges: Spaces[Relation], name: str) -> "Times":
        """Return the feature ``name`` of nodes, or of edges.

        Raises:
            FieldNameError: neither have it.
            InvalidArgumentError: both have it, or it is not one int64 for each.
        """
        of_nodes = {t: nodes[kind].data[name] for t, kind in enumerate(schema.ntypes) if name in nodes[kind].data}
        of_edges = {r: edges[kind].data[name] for r, kind in enumerate(schema.relations) if name in edges[kind].data}
        if not of_nodes and not of_edges:
            raise FieldNameError(f"time_attr: no node type and no edge type has a feature {name!r}")
        if of_nodes and of_edges:
            raise InvalidArgumentError(f"time_attr: nodes and edges have a feature {name!r}; times are of either")
        for tensor in (*of_nodes.values(), *of_edges.values()):
            if tensor.dtype != torch.int64 or len(tensor.shape) != 1:
                raise InvalidArgumentError(
                    f"times {name!r} must be one int64 for each node or edge (got {tensor.dtype}, shape {tensor.shape})"
                )
        return cls(name, of_nodes, of_edges)

    def by_relation(self, schema: Schema) -> dict[int, DistTensor]:
        """Return by relation id the times of its edges: their own, or those of their sources."""
        if self.of_edges:
            return self.of_edges
        sources = {relation: schema.ends(relation)[0] for relation in range(len(schema.relations))}
        return {relation: self.of_nodes[src] for relation, src in sources.items() if src in self.of_nodes}

    def of_seeds(self, schema: Schema, seeds: Mapping[int, I64], input_time: NodeIds | None) -> dict[int, I64]:
        """Return int64[n] by node type id: ``input_time``, in the form of the seeds, else the nodes' own times.

        Raises:
            InvalidArgumentError: ``input_time`` is needed, or is not an integer for each seed.

        One-sided without ``input_time``; the target does nothing.
        """
        if input_time is not None:
            return times_by_ntype(schema, seeds, input_time, "input_time")
        self.check_own(schema, [t for t, ids in seeds.items() if len(ids)])
        return {t: self.of_nodes[t].rows.gather(ids) for t, ids in seeds.items() if len(ids)}

    def check_own(self, schema: Schema, ntypes: Sequence[int]) -> None:
        """Raise InvalidArgumentError unless the nodes of some types, by id, have times of their own."""
        missing = [schema.ntypes[t] for t in ntypes if t not in self.of_nodes]
        if missing:
            what = "edges" if self.of_edges else f"but not the nodes of type {missing[0]!r}"
            raise InvalidArgumentError(f"input_time is needed: {what} have times {self.name!r}")


def check_times(times: IdsLike, count: int, what: str) -> I64:
    """Return int64[count] times. Raises InvalidArgumentError if they are not as many integers."""
    array = id_array(times, what)
    if len(array) != count:
        raise InvalidArgumentError(f"{what} must have one time for each of {count} (got {len(array)})")
    return array


def times_by_ntype(schema: Schema, seeds: Mapping[int, I64], times: NodeIds, what: str) -> dict[int, I64]:
    """Return int64[n] by node type id of ``times``, which have the form of the seeds.

    Raises:
        InvalidArgumentError: as :func:`check_times`; a type without seeds has no times, too.
        NodeTypeError: as :func:`.by_ntype`.
    """
    if isinstance(times, Mapping):
        named = {schema.ntype_id(ntype): of_type for ntype, of_type in times.items()}
    else:
        by_ntype(schema, torch.empty(0, dtype=torch.int64) if len(schema.ntypes) == 1 else times, what)
        named = {0: times}
    none = torch.empty(0, dtype=torch.int64)
    return {t: check_times(named.get(t, none), len(seeds.get(t, none)), what) for t in {**seeds, **named}}
