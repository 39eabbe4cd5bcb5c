"""Seeds with a time each: loaders iterate over positions, which tell the seeds and their times."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mpigraph.arrays import I64
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.times import times_by_ntype
from mpigraph.distgraph.typed_ids import NodeIds, NodeTensors, by_ntype, unwrap_nodes
from mpigraph.errors import InvalidArgumentError

__all__ = ["check_input_time", "positions_in", "seeds_at"]


def check_input_time(
    g: DistGraph, sampler: object, ids: Mapping[int, I64], input_time: NodeIds | None
) -> dict[int, I64] | None:
    """The times of a loader's seeds, int64[n] by node type id; None if none are given.

    Raises:
        InvalidArgumentError: there are times that the sampler does not know, or none where it needs them; or they are
            no integers, or not one for each seed.
    """
    time_filter = getattr(sampler, "time_filter", None)
    if input_time is None:
        if time_filter is not None:  # a loader of no seeds of a type needs none of their times
            g.times(time_filter.attr).check_own(g.schema, [t for t, some in ids.items() if len(some)])
        return None
    if time_filter is None:
        raise InvalidArgumentError("input_time needs a sampler with time_attr, like NeighborSampler")
    return times_by_ntype(g.schema, ids, input_time, "input_time")


def positions_in(g: DistGraph, ids: Mapping[int, I64]) -> NodeTensors:
    """0, 1, ... for the seeds of each type that was given."""
    return unwrap_nodes(g.schema, {ntype: np.arange(len(some)) for ntype, some in ids.items()})


def seeds_at(
    g: DistGraph, ids: Mapping[int, I64], times: Mapping[int, I64] | None, positions: NodeIds
) -> tuple[NodeTensors, dict[str, Any]]:
    """The seeds at some positions, by type if these are, and what else a sampler is to be told of them."""
    chosen = by_ntype(g.schema, positions)
    seeds = unwrap_nodes(g.schema, {ntype: ids[ntype][at] for ntype, at in chosen.items()})
    if times is None:
        return seeds, {}
    own = unwrap_nodes(g.schema, {ntype: times[ntype][at] for ntype, at in chosen.items()})
    return seeds, {"input_time": own}
