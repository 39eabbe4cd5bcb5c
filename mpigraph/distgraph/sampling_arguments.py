"""The arguments of sampling that all minibatches of a sampler share, and the strategies that they mean.

Of temporal sampling also the feature with the times, and the edges that a root's time allows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import torch

from mpigraph.arrays import I64
from mpigraph.distgraph import typed_ids
from mpigraph.distgraph.features import Features
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.distgraph.typed_ids import Fanout, FeatureName, NodeIds
from mpigraph.errors import EdgeTypeError, FieldNameError, InvalidArgumentError, check_integer
from mpigraph.graphs.fields import Frames, IdsLike
from mpigraph.metadata.schema import Relation, Schema
from mpigraph.rows.row_tensor import RowTensor
from mpigraph.sampling.minibatch import Layer
from mpigraph.sampling.strategies import Masked, Strategy, Temporal, Uniform, Weighted
from mpigraph.session.context import check_seed


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
    def find(cls, frames: Frames[Features], name: str) -> "Times":
        """Return the feature ``name`` of nodes, or of edges.

        Raises:
            FieldNameError: neither have it.
            InvalidArgumentError: both have it, or it is not one int64 for each.
        """
        of_nodes, of_edges = (
            {number: features[name] for number, features in enumerate(by_type.values()) if name in features}
            for by_type in (frames.src, frames.edge)
        )
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
            return times_by_ntype(schema, seeds, input_time)
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
    array = typed_ids.id_array(times, what)
    if len(array) != count:
        raise InvalidArgumentError(f"{what} must have one time for each of {count} (got {len(array)})")
    return array


def times_by_ntype(schema: Schema, seeds: Mapping[int, I64], input_time: NodeIds) -> dict[int, I64]:
    """Return int64[n] by node type id of ``input_time``, which has the form of the seeds.

    Raises:
        InvalidArgumentError: as :func:`check_times`; a type without seeds has no times, too.
        NodeTypeError: as :func:`.by_ntype`.
    """
    what = "input_time"
    if isinstance(input_time, Mapping):
        named = {schema.ntype_id(ntype): of_type for ntype, of_type in input_time.items()}
    else:
        typed_ids.by_ntype(schema, torch.empty(0, dtype=torch.int64) if len(schema.ntypes) == 1 else input_time, what)
        named = {0: input_time}
    none = torch.empty(0, dtype=torch.int64)
    return {t: check_times(named.get(t, none), len(seeds.get(t, none)), what) for t in {**seeds, **named}}


@dataclass(frozen=True)
class SamplingArguments:
    """The arguments of sampling that all minibatches share, as :class:`.NeighborSampler` describes them.

    A subclass with another :meth:`strategy` chooses neighbours in another way.

    Attributes:
        seed: makes the draw a function of the arguments alone.
        disjoint: each seed is the root of a tree of its own, in which a node occurs once.
        time_filter: filters edges by the times of roots; makes trees disjoint.
    """

    fanouts: Sequence[Fanout]
    edge_dir: str = "in"
    prob: FeatureName | None = None
    replace: bool = False
    return_eids: bool = True
    seed: int | None = None
    num_threads: int | None = None
    disjoint: bool = False
    time_filter: TimeFilter | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "fanouts", tuple(typed_ids.check_layers(self.fanouts)))

    @staticmethod
    def of(fanouts: "Sequence[Fanout] | SamplingArguments", options: dict[str, Any]) -> "SamplingArguments":
        """Return arguments as they are; else those of fanouts and options."""
        return fanouts if isinstance(fanouts, SamplingArguments) else SamplingArguments(fanouts, **options)

    def check_numbers(self) -> None:
        """Raise InvalidArgumentError for a number that no graph takes: of fanouts, threads or the seed."""
        for layer in self.fanouts:
            for fanout in layer.values() if isinstance(layer, Mapping) else [layer]:
                typed_ids.check_fanout(fanout)
        if self.num_threads is not None:
            check_integer("num_threads", self.num_threads, 1, 2**31 - 1)
        if self.seed is not None:
            check_seed(self.seed)

    def layers(self, schema: Schema, weights: Mapping[int, RowTensor], times: Mapping[int, int]) -> list[Layer]:
        """Return for each layer the strategy by relation id, without relations whose fanout is 0.

        ``weights`` are by relation id, as are ``times``, the numbers of the tensors that sort edges. Raises
        EdgeTypeError if fanouts are by edge type and are not those of the schema, and errors of :meth:`strategy`.
        """
        strategy = cache(self.strategy)  # relations that are drawn by alike have one object
        return [
            Layer(
                (r, strategy(number, weights.get(r), times.get(r, 0)))
                for r, number in _by_relation(schema, layer).items()
                if number
            )
            for layer in self.fanouts
        ]

    def strategy(self, fanout: int, weights: RowTensor | None, times: int) -> Strategy:
        """Return the strategy of one relation with a fanout other than 0, and maybe weights or a mask.

        ``times`` is the number of the tensor that sorts its edges; 0 without a filter by time.

        Raises:
            InvalidArgumentError: weights and times do not go together.
        """
        replace = bool(self.replace)
        mask = weights is not None and weights.dtype == "bool"
        if times and self.time_filter is not None:
            if weights is not None and not mask:
                raise InvalidArgumentError(
                    f"prob {weights.name!r} and times: edges that are filtered by time are drawn uniformly, or where a "
                    "mask is set; give a mask of bool"
                )
            how = self.time_filter
            window = -1 if how.window is None else how.window
            of_mask = weights.number if weights is not None else 0
            return Temporal(fanout, replace, of_mask, times, how.comparison == "<", how.strategy == "last", window)
        if weights is None:
            return Uniform(fanout, replace)
        return (Masked if mask else Weighted)(fanout, replace, weights.number)


Layers: TypeAlias = Sequence[Fanout] | SamplingArguments
"""The fanout of each layer, or the arguments of a sampler."""


def _by_relation(schema: Schema, layer: Fanout) -> dict[int, int]:
    if not isinstance(layer, Mapping):
        return dict.fromkeys(range(len(schema.relations)), typed_ids.check_fanout(layer))
    by_relation: dict[Relation, int] = typed_ids.canonical(schema, layer, "fanouts")
    fanouts = {schema.relation_id(relation): typed_ids.check_fanout(number) for relation, number in by_relation.items()}
    missing = [relation for relation in schema.relations if relation not in by_relation]
    if missing:
        raise EdgeTypeError(f"a dict of fanouts needs every edge type (0 leaves one out): no fanout of {missing}")
    return fanouts
