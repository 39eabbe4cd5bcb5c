"""The arguments of sampling that all minibatches of a sampler share, and the strategies that they mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from mpigraph.distgraph.times import TimeFilter
from mpigraph.distgraph.typed_ids import (
    Fanout,
    FeatureName,
    canonical,
    check_fanout,
    check_layers,
)
from mpigraph.errors import EdgeTypeError, InvalidArgumentError, check_integer
from mpigraph.metadata.schema import Relation, Schema
from mpigraph.rows.row_tensor import RowTensor
from mpigraph.sampling.minibatch import Layer
from mpigraph.sampling.strategies import Masked, Strategy, Temporal, Uniform, Weighted
from mpigraph.session.context import check_seed


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
        object.__setattr__(self, "fanouts", tuple(check_layers(self.fanouts)))

    @staticmethod
    def of(fanouts: "Sequence[Fanout] | SamplingArguments", options: dict[str, Any]) -> "SamplingArguments":
        """Return arguments as they are; else those of fanouts and options."""
        return fanouts if isinstance(fanouts, SamplingArguments) else SamplingArguments(fanouts, **options)

    def check_numbers(self) -> None:
        """Raise InvalidArgumentError for a number that no graph takes: of fanouts, threads or the seed."""
        for layer in self.fanouts:
            for fanout in layer.values() if isinstance(layer, Mapping) else [layer]:
                check_fanout(fanout)
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
        return dict.fromkeys(range(len(schema.relations)), check_fanout(layer))
    by_relation: dict[Relation, int] = canonical(schema, layer, "fanouts")
    fanouts = {schema.relation_id(relation): check_fanout(number) for relation, number in by_relation.items()}
    missing = [relation for relation in schema.relations if relation not in by_relation]
    if missing:
        raise EdgeTypeError(f"a dict of fanouts needs every edge type (0 leaves one out): no fanout of {missing}")
    return fanouts
