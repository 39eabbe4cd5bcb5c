"""Temporal sampling as users ask for it: which feature has the times, and which edges a root's time leaves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from mpigraph.arrays import I64
from mpigraph.distgraph.features import EdgeSpaces, NodeSpaces
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.distgraph.typed_ids import NodeIds, by_ntype, id_array
from mpigraph.errors import FieldNameError, InvalidArgumentError, check_integer
from mpigraph.graphs.fields import IdsLike
from mpigraph.metadata.schema import Schema

__all__ = ["TimeFilter", "Times", "check_times", "times_by_ntype"]


@dataclass(frozen=True)
class TimeFilter:
    """Which edges a tree may have: those that are not above the time of its root.

    Attributes:
        attr: name of a feature with an int64 for each node, or for each edge, of the types that have it.
        strategy: "uniform", or "last" for the newest ones.
        comparison: "<=", or "<" to leave out what has just the root's time, too.
        window: how much older than the root an edge may be at most; None without a limit.
    """

    attr: str
    strategy: str = "uniform"
    comparison: str = "<="
    window: int | None = None

    def __post_init__(self) -> None:
        """Raise InvalidArgumentError for what is none of these."""
        if not isinstance(self.attr, str):
            raise InvalidArgumentError(f"time_attr must be the name of a feature (got {self.attr!r})")
        for name, value, choices in (
            ("temporal_strategy", self.strategy, ("uniform", "last")),
            ("temporal_comparison", self.comparison, ("<=", "<")),
        ):
            if value not in choices:
                raise InvalidArgumentError(f"{name} must be {choices[0]!r} or {choices[1]!r} (got {value!r})")
        if self.window is not None:
            check_integer("time_window", self.window, 0)


@dataclass(frozen=True)
class Times:
    """The times of a graph.

    Attributes:
        name: of the feature.
        of_nodes: by node type id; empty if edges have times.
        of_edges: by relation id; empty if nodes have times.
    """

    name: str
    of_nodes: dict[int, DistTensor]
    of_edges: dict[int, DistTensor]

    @classmethod
    def find(cls, schema: Schema, nodes: NodeSpaces, edges: EdgeSpaces, name: str) -> "Times":
        """The feature ``name`` of nodes, or of edges.

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
        """By relation id the times that its edges are filtered by: their own, or those of their sources."""
        if self.of_edges:
            return self.of_edges
        sources = {relation: schema.ends(relation)[0] for relation in range(len(schema.relations))}
        return {relation: self.of_nodes[src] for relation, src in sources.items() if src in self.of_nodes}

    def of_seeds(self, schema: Schema, seeds: Mapping[int, I64], given: NodeIds | None) -> dict[int, I64]:
        """int64[n] by node type id: the times of the seeds, given in the same form, else their own.

        Raises:
            InvalidArgumentError: they are not given, and are needed; or not an integer for each seed.

        One-sided where they are not given; the target does nothing.
        """
        if given is not None:
            return times_by_ntype(schema, seeds, given, "input_time")
        self.check_own(schema, [t for t, ids in seeds.items() if len(ids)])
        return {t: self.of_nodes[t].rows.gather(ids) for t, ids in seeds.items() if len(ids)}

    def check_own(self, schema: Schema, ntypes: Sequence[int]) -> None:
        """Raise InvalidArgumentError unless the nodes of some types, by id, have times of their own."""
        missing = [schema.ntypes[t] for t in ntypes if t not in self.of_nodes]
        if missing:
            what = "edges" if self.of_edges else f"but not the nodes of type {missing[0]!r}"
            raise InvalidArgumentError(f"input_time is needed: {what} have times {self.name!r}")


def check_times(times: IdsLike, count: int, what: str) -> I64:
    """int64[count] times.

    Raises:
        InvalidArgumentError: they are no integers, as floats are, or not as many.
    """
    array = id_array(times, what)
    if len(array) != count:
        raise InvalidArgumentError(f"{what} must have one time for each of {count} (got {len(array)})")
    return array


def times_by_ntype(schema: Schema, seeds: Mapping[int, I64], given: NodeIds, what: str) -> dict[int, I64]:
    """int64[n] by node type id: times that were given in the same form as the seeds.

    Raises:
        InvalidArgumentError: as :func:`check_times`; of a type without seeds there are no times, too.
        NodeTypeError: as :func:`.by_ntype`.
    """
    if isinstance(given, Mapping):
        named = {schema.ntype_id(ntype): times for ntype, times in given.items()}
    else:
        by_ntype(schema, torch.empty(0, dtype=torch.int64) if len(schema.ntypes) == 1 else given, what)
        named = {0: given}
    none = torch.empty(0, dtype=torch.int64)
    return {t: check_times(named.get(t, none), len(seeds.get(t, none)), what) for t in {**seeds, **named}}
