"""The times of seeds. Both ends of an edge, and of its negatives, are seeds with the edge's time."""

from collections.abc import Mapping

import numpy as np
import torch

from mpigraph.arrays import I64
from mpigraph.dataloading.negative_sampler import Edges
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.sampling_arguments import TimeFilter, check_times, times_by_ntype
from mpigraph.distgraph.typed_ids import (
    EdgeIds,
    EdgeTensors,
    NodeIds,
    NodeTensors,
    canonical,
    unwrap_edges,
    unwrap_nodes,
)
from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.fields import IdsLike
from mpigraph.kernels.negatives import draw_nodes
from mpigraph.kernels.rng import combine, told_apart
from mpigraph.metadata.schema import Relation
from mpigraph.sampling.minibatch import RandomContext

_TAG = 0x4E4554  # separates these draws from others with the same seed and epoch
_TRIES = 10


def check_input_time(
    g: DistGraph, time_filter: TimeFilter | None, ids: Mapping[int, I64], input_time: NodeIds | None
) -> NodeTensors | None:
    """Check the times of a loader's seeds, and return them in the form of the seeds; None without ``input_time``.

    Raises InvalidArgumentError if the sampler takes no times, or needs them.
    """
    if input_time is None:
        if time_filter is not None:  # types without seeds need no times
            g.times(time_filter.attr).check_own(g.schema, [t for t, of_type in ids.items() if len(of_type)])
        return None
    if time_filter is None:
        raise InvalidArgumentError("input_time needs a sampler with time_attr, like NeighborSampler")
    return unwrap_nodes(g.schema, times_by_ntype(g.schema, ids, input_time))


def check_edge_times(
    g: DistGraph, time_filter: TimeFilter | None, ids: Mapping[Relation, torch.Tensor], edge_label_time: EdgeIds | None
) -> dict[Relation, I64] | None:
    """Check the times of a loader's seed edges, and return them, int64[n] by relation; None without a filter.

    Raises InvalidArgumentError if the sampler takes no times, or needs them.
    """
    if (time_filter is None) != (edge_label_time is None):
        raise InvalidArgumentError(
            "edge_label_time needs a sampler with time_attr, like NeighborSampler"
            if time_filter is None
            else f"edge_label_time is needed: the sampler filters by {time_filter.attr!r}"
        )
    if edge_label_time is None:
        return None
    by_relation: dict[Relation, IdsLike] = canonical(g.schema, edge_label_time, "edge_label_time")
    none = torch.empty(0, dtype=torch.int64)
    counts = {r: len(ids.get(r, none)) for r in {**ids, **by_relation}}
    times = {r: check_times(by_relation.get(r, none), count, f"edge_label_time of {r}") for r, count in counts.items()}
    return {r: times[r] for r in ids}


def check_loader_times(
    g: DistGraph, time_filter: TimeFilter | None, ids: Mapping[Relation, torch.Tensor], edge_label_time: EdgeIds | None
) -> EdgeTensors | None:
    """As :func:`check_edge_times`, in the form of the loader's edges."""
    times = check_edge_times(g, time_filter, ids, edge_label_time)
    return None if times is None else unwrap_edges(g.schema, {r: torch.from_numpy(own) for r, own in times.items()})


def negative_times(relation: Relation, edges: Edges, times: I64, src: I64) -> I64:
    """Return the times of negatives with sources ``src``, which show its edge: each has that of its edge."""
    k = len(src) // max(len(edges.src), 1)
    if not np.array_equal(np.repeat(edges.src, k), src):
        raise InvalidArgumentError(
            f"edge_label_time: the negatives of {relation} must keep the sources of their edges, as many for each edge "
            "and in their order, so that they have their times, as those of PerSourceUniform do"
        )
    return np.repeat(times, k)


def redraw_newer(
    g: DistGraph,
    how: TimeFilter,
    context: RandomContext,
    relation: Relation,
    edges: Edges,
    times: I64,
    ends: tuple[I64, I64],
) -> tuple[tuple[I64, I64], I64]:
    """Replace the destinations of negatives that are newer than their time, where nodes have times.

    They are drawn again among all nodes, as hashes of the edge and the number of the negative. A negative that is still
    too new after :data:`_TRIES` draws is left out. One-sided: it reads the times of nodes.

    Args:
        g: the graph.
        how: the sampler's filter.
        context: seed and epoch.
        relation: of the edges.
        edges: the edges.
        times: int64[n], the times of their negatives.
        ends: int64[n] sources and destinations of the negatives, as many for each edge.

    Returns:
        ``ends`` and ``times`` of the negatives that are left.
    """
    src, dst = ends
    of_nodes = g.times(how.attr).of_nodes.get(g.schema.ntype_id(relation[2]))
    if of_nodes is None or not len(dst):
        return ends, times

    def too_new(places: I64) -> I64:
        own = of_nodes.rows.gather(dst[places])
        return places[own > times[places] if how.comparison == "<=" else own >= times[places]]

    dst = dst.copy()
    newer = too_new(np.arange(len(dst)))
    k, key = len(dst) // len(edges.eids), combine(context.seed, context.epoch, _TAG, g.schema.relation_id(relation))
    again, names = np.empty_like(dst), told_apart(edges.eids)
    for number in range(_TRIES):
        if not len(newer):
            return (src, dst), times
        draw_nodes(combine(key, number), names, k, 0, g.num_nodes(relation[2]), again)
        dst[newer] = again[newer]
        newer = too_new(newer)
    kept = np.ones(len(dst), np.bool_)
    kept[newer] = False
    return (src[kept], dst[kept]), times[kept]
