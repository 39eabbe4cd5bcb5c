"""The edges among some nodes, asked of the owners of their destinations: a request for each relation, or for all that
share tables.
"""

from collections.abc import Mapping

import numpy as np

from mpigraph.arrays import I64
from mpigraph.collective import WHEN_REMOTE, collective
from mpigraph.sampling.minibatch import Layer, SamplingPlan, hop_requests
from mpigraph.sampling.neighbor_service import NeighborService
from mpigraph.sampling.strategies import HopKeys, Within
from mpigraph.store.store import LoadedGraph

InducedEdges = dict[int, tuple[I64, I64, I64]]
"""By relation id: int64[n] each, places of sources and of destinations among the nodes, and ids of the edges."""


@collective("the channel's trainers", WHEN_REMOTE)
def induced_edges(
    service: NeighborService, graph: LoadedGraph, nodes: Mapping[int, I64], excluded: Mapping[int, I64]
) -> InducedEdges:
    """Return the edges whose two ends are among some nodes, by the place of their destination.

    Args:
        service: asks the owners.
        graph: the graph.
        nodes: int64[n] by node type id, each once.
        excluded: as :attr:`.SamplingPlan.excluded`.
    """
    schema = graph.topology.hosts.schema
    counts = [len(nodes.get(ntype, ())) for ntype in range(len(schema.ntypes))]
    relations = [r for r in range(len(schema.relations)) if all(counts[end] for end in schema.ends(r))]
    ascending = {ntype: np.sort(ids) for ntype, ids in nodes.items()}
    among = {ntype: Within(-1, ids) for ntype, ids in ascending.items()}
    within = Layer((r, among[schema.ends(r)[0]]) for r in relations)
    plan = SamplingPlan([within], nodes, excluded=excluded)
    requests = hop_requests(plan, 0, graph, nodes, HopKeys.of(np.uint64(0), 0))
    tables = service.local_ids(graph)
    edges = {}
    for relation, neighbors in service.sample(requests).items():
        src = schema.ends(relation)[0]
        tables[src].reset(nodes[src])
        places = tables[src].insert(neighbors.src).astype(np.int64)
        dst = np.repeat(np.arange(len(neighbors.offsets) - 1), np.diff(neighbors.offsets))
        edges[relation] = places, dst, neighbors.eids
    return edges
