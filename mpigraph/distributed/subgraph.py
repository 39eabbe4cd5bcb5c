"""Neighbour sampling on a DistGraph as PyG does it: one subgraph for all layers, in which a node is expanded once."""

from collections.abc import Mapping, Sequence
from typing import Any

from mpigraph.dataloading.sampler import Fanout
from mpigraph.distributed.plans import plan_hops
from mpigraph.distributed.sampling import SampledGraph
from mpigraph.service.subgraph import Subgraph, grow_subgraph

__all__ = ["sample_subgraph"]


def sample_subgraph(
    g: SampledGraph,
    seed_nodes: Any,
    fanouts: Sequence[Fanout],
    *,
    edge_dir: str = "in",
    prob: str | Mapping[Any, str] | None = None,
    exclude_edges: Any = None,
    replace: bool = False,
    return_eids: bool = True,
    seed: int | None = None,
    num_threads: int | None = None,
) -> Subgraph:
    """Sample the subgraph of one minibatch, all hops fused.

    Args:
        g: a :class:`DistGraph`.
        seed_nodes: int[n], node ids; or node type -> int[n].
        fanouts: fanout of each layer, input side first as in :func:`.sample_blocks`, so the last one is of the seeds.
        edge_dir: only "in".
        prob: as in :func:`.sample_neighbors`.
        exclude_edges: as in :func:`.sample_neighbors`; left out in every hop.
        replace: as in :func:`.sample_neighbors`.
        return_eids: whether edge ids are wanted; without them less is moved.
        seed: as in :func:`.sample_neighbors`.
        num_threads: threads that draw near neighbours; by default what ``initialize`` was told.

    Returns:
        Nodes by node type id and edges by relation id.

    Raises:
        OutOfRangeError: a seed or an excluded edge does not exist. On every rank if hosts are far.
        FieldNameError: there is no edge feature ``prob``.
        NodeTypeError: a node type does not exist, or there are several and ``seed_nodes`` are not by type.
        EdgeTypeError: a fanout, a weight or excluded edges of a type that does not exist, or a fanout is missing.
        InvalidArgumentError: a fanout below -1, another ``edge_dir``, or ids that are not integers.

    Collective on the trainers when hosts are far; local when all are near.
    """
    seeds, plans, error = plan_hops(
        g,
        seed_nodes,
        fanouts,
        edge_dir=edge_dir,
        prob=prob,
        exclude_edges=exclude_edges,
        replace=replace,
        want_eids=return_eids,
    )
    draw = g.session.draw(seed)
    g.service.use_threads(num_threads or g.session.num_threads)
    return grow_subgraph(g.service, g.loaded, seeds, plans, draw, error)
