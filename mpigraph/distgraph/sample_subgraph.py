"""Neighbour sampling on a DistGraph as PyG does it: one subgraph for all layers, in which a node is expanded once."""

from collections.abc import Sequence
from typing import Any

from mpigraph.dataloading.sampler import Fanout
from mpigraph.distgraph.sample_api import SampledGraph
from mpigraph.distgraph.sampling_args import plan_hops
from mpigraph.sampling.subgraph import Subgraph, grow_subgraph

__all__ = ["sample_subgraph"]


def sample_subgraph(
    g: SampledGraph,
    seed_nodes: Any,
    fanouts: Sequence[Fanout],
    *,
    seed: int | None = None,
    num_threads: int | None = None,
    **options: Any,
) -> Subgraph:
    """Sample the subgraph of one minibatch, all hops fused.

    Arguments and errors are those of :func:`.sample_blocks`. The first layer is the input side there and here, so the
    last fanout is that of the seeds.

    Returns:
        Nodes by node type id and edges by relation id.

    Collective on the trainers when hosts are far; local when all are near.
    """
    seeds, plans, error = plan_hops(g, seed_nodes, fanouts, **options)
    draw = g.session.draw(seed)
    g.service.use_threads(num_threads or g.session.num_threads)
    return grow_subgraph(g.service, g.loaded, seeds, plans, draw, error)
