"""Out-degrees of the sources of blocks, and those in the graph that a mask of edges leaves."""

from collections.abc import Callable
from threading import Lock

import numpy as np
import torch

from mpigraph.arrays import I32, I64
from mpigraph.collective import collective
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.kernels.compact import LocalIds
from mpigraph.mpi.messages import exchange_rows
from mpigraph.rows.owners import RowOwners

__all__ = ["OutDegrees", "masked_out_degrees"]

_EDGES_AT_A_TIME = 1 << 24


class OutDegrees:
    """Out-degrees of the sources of one relation, which no layer changes: those of far nodes are fetched once.

    One-sided, from any thread.
    """

    def __init__(self, g: DistGraph, relation: int, read: Callable[[I64], I64]) -> None:
        """Know none yet.

        Args:
            g: the graph.
            relation: its id.
            read: int64[n] ids of sources, near or far -> int64[n] degrees.
        """
        self._near = g.session.world.near
        self._offsets = g.loaded.topology.hosts.node_offsets[g.schema.ends(relation)[0]]
        self._read = read
        self._far = LocalIds(int(self._offsets[-1]))
        self._degrees = np.empty(0, np.int64)  # of the first so many of these that are known, and memory for more
        self._known = 0
        self._lock = Lock()

    def of(self, ids: I64) -> I64:
        """The degrees of ``ids`` (int64[n]), int64[n]."""
        is_far = ~self._near[np.searchsorted(self._offsets, ids, "right") - 1]
        found = np.empty(len(ids), np.int64)
        found[~is_far] = self._read(ids[~is_far])
        with self._lock:
            places = self._far.insert(ids[is_far])
            count = self._far.count
            if count > self._known:
                if count > len(self._degrees):
                    self._degrees = np.append(self._degrees, np.empty(count, np.int64))
                self._degrees[self._known : count] = self._read(self._far.ids[self._known :])
                self._known = count
            found[is_far] = self._degrees[places]
        return found


@collective("trainers")
def masked_out_degrees(g: DistGraph, relation: int, mask: int) -> DistTensor:
    """How many of a node's out-edges a mask leaves: int64[num_src], over the hosts.

    Edges lie where their destinations do: each trainer counts those of its nodes by source, and the owners of the
    sources add up what all have counted.

    Args:
        g: the graph.
        relation: its id.
        mask: number of the tensor of the mask; edges where it is 0 are left out.
    """
    world, topology = g.session.world, g.loaded.topology
    src, dst = topology.config.schema.ends(relation)
    hosts, ntype = topology.hosts.node_offsets, topology.config.schema.ntypes[src]
    doing = "counting out-degrees under edge_mask"
    with world.together(doing):
        counts: I32 = np.zeros(g.num_nodes(ntype), np.int32)
        for owned in RowOwners(world, hosts[dst]).ranges():
            near = topology.adjacency(relation, owned.host)
            kept = g.session.store.tensors[mask].segment(owned.host)
            begin, end = near.indptr[[owned.rows.start, owned.rows.stop]].tolist()
            for first in range(begin, end, _EDGES_AT_A_TIME):
                some = slice(first, min(first + _EDGES_AT_A_TIME, end))
                np.add.at(counts, near.indices[some][kept[some] != 0], 1)
        owners = RowOwners(world, hosts[src])
        sources = np.flatnonzero(counts)
        order, going = owners.route(sources)
        counted = np.stack([sources, counts[sources]], 1)[order]
    policy = g.get_node_partition_policy(ntype)
    degrees = DistTensor.filled((len(counts),), torch.int64, None, "out-degrees under edge_mask", policy)
    with world.meeting(doing):
        came = exchange_rows(world.trainers, counted, going)[0]
    for owned in owners.ranges():
        here = came[(came[:, 0] >= owned.first) & (came[:, 0] < owned.last)]
        with degrees.rows.writing(owned.host) as rows:
            np.add.at(rows[owned.rows], here[:, 0] - owned.first, here[:, 1])
    g.barrier()
    return degrees
