"""Which edge is the reverse of which: looked up by their ends, since partitioning renumbers each relation by itself."""

from collections.abc import Mapping

import numpy as np
import torch

from mpigraph.arrays import I64
from mpigraph.collective import WHEN_FAR, collective
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.distgraph.typed_ids import ByEdgeType, canonical
from mpigraph.errors import EdgeTypeError, GraphDataError
from mpigraph.graphs.fields import EID, EdgeType
from mpigraph.metadata.schema import Relation
from mpigraph.rows.owners import RowOwners

__all__ = ["reverse_edges"]

_NODES = 1 << 14  # sources whose in-edges are asked for at a time


@collective("trainers")
def reverse_edges(g: DistGraph, reverse_etypes: ByEdgeType[EdgeType]) -> dict[Relation, DistTensor]:
    """Find the reverse edge of each edge of some relations, for ``reverse_eids`` of loaders and edge samplers.

    The reverse of an edge ``u -> v`` is the edge ``v -> u`` of the other relation; of several parallel edges the first
    is that of the first, and so on. Every trainer looks up the edges that it is near to, in blocks, by asking for the
    in-edges of their sources. That takes about a microsecond and, while it runs, 60 bytes for each of its edges: a
    few percent of an epoch of training on them. A loader that looks them up by itself does it when it is made; who has
    several loaders calls this once, and gives them the result. Partitions do not hold it: 8 bytes for every edge, on
    disk and in memory, of all who never ask.

    Args:
        g: the graph.
        reverse_etypes: edge type -> edge type of the reverse edges, which may be itself.

    Returns:
        Relation -> int64[num_edges], the ids of the reverse edges, in the hosts' memory.

    Raises:
        EdgeTypeError: an edge type does not exist, or does not join the types of its reverse the other way round.
        GraphDataError: an edge has no reverse; names it. On every trainer.
    """
    pairs: Mapping[Relation, EdgeType] = canonical(g.schema, reverse_etypes, "reverse_etypes")
    there_and_back = {relation: g.to_canonical_etype(etype) for relation, etype in pairs.items()}
    for relation, back in there_and_back.items():
        if relation[::2] != back[::-2]:
            raise EdgeTypeError(
                f"edges of {back} are not the reverse of those of {relation}: they join other node types"
            )
    return {relation: _reverse(g, relation, back) for relation, back in there_and_back.items()}


def _reverse(g: DistGraph, relation: Relation, back: Relation) -> DistTensor:
    table = DistTensor((g.num_edges(relation),), torch.int64, part_policy=g.get_edge_partition_policy(relation))
    owners = RowOwners(g.session.world, table.rows.window.offsets)
    ranges = [(owned.first, owned.last) for owned in owners.ranges()]
    before = [_parallel_before(g, relation, first) for first, _ in ranges]
    eids = np.concatenate([np.empty(0, np.int64), *before, *(np.arange(*some) for some in ranges)])
    src, dst = (ends.numpy() for ends in g.find_edges(eids, relation))
    order = np.argsort(src, kind="stable")
    in_order = src[order]
    sources = in_order[np.diff(in_order, prepend=-1) != 0]
    rounds = g.session.world.allreduce_minmax(-(-len(sources) // _NODES), True)
    found = np.full(len(eids), -1, np.int64)
    for number in range(rounds):
        some = sources[number * _NODES : (number + 1) * _NODES]
        begin, end = np.searchsorted(in_order, [some[0], some[-1] + 1]) if len(some) else (0, 0)
        which = order[begin:end]
        found[which] = _matched(g, back, some, src[which], dst[which], eids[which])
    with g.session.world.together(f"looking up the reverse edges of {relation}"):
        if (found < 0).any():
            at = int(np.flatnonzero(found < 0)[0])
            raise GraphDataError(
                f"edge {eids[at]} of {relation}, from {src[at]} to {dst[at]}, has no reverse edge in {back}"
            )
    own = slice(sum(map(len, before)), None)
    table[eids[own]] = found[own]
    g.barrier()
    return table


def _parallel_before(g: DistGraph, relation: Relation, first: int) -> I64:
    """The edges before an edge that have its destination, and may be parallel to it or to those behind it: int64[n]."""
    _, node = g.find_edges([first], relation)
    before = np.arange(max(0, first - int(g.in_degrees(node, relation))), first)
    _, dst = g.find_edges(before, relation)
    parallel: I64 = before[dst.numpy() == int(node)]
    return parallel


@collective("trainers", WHEN_FAR)
def _matched(g: DistGraph, back: Relation, sources: I64, src: I64, dst: I64, eids: I64) -> I64:
    """The edges ``dst -> src`` of a relation, int64[n], or -1; ``sources`` are those that occur, ascending."""
    fanouts = {relation: -1 if relation == back else 0 for relation in g.canonical_etypes}
    frontier = g.sample_neighbors({back[2]: sources}, fanouts, seed=0)
    ends = frontier.all_edges(etype=back)
    theirs = frontier.edges[back].data[EID].numpy()
    width = max(g.num_nodes(back[0]), 1)
    keys = np.searchsorted(sources, ends[1].numpy()) * width + ends[0].numpy()
    order = np.lexsort((theirs, keys))
    keys = keys[order]
    wanted = np.searchsorted(sources, src) * width + dst
    mine = np.lexsort((eids, wanted))
    sorted_wanted = wanted[mine]
    rank = np.arange(len(mine)) - np.searchsorted(sorted_wanted, sorted_wanted)  # among parallel edges
    place = np.searchsorted(keys, sorted_wanted) + rank
    inside = np.minimum(place, max(len(keys) - 1, 0))
    exists = (place < len(keys)) & (keys[inside] == sorted_wanted) if len(keys) else np.zeros(len(mine), np.bool_)
    found = np.full(len(mine), -1, np.int64)
    found[mine[exists]] = theirs[order][place[exists]]
    return found
