"""Blocks of one layer for the nodes that a trainer owns, drawn from local memory; and out-degrees of their sources.

The host of a node and of its in-edges is local to the trainer that owns the node. So blocks need no round of all ranks,
and trainers may have different numbers of them.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from threading import Lock

import numpy as np
import torch

from mpigraph.arrays import I32, I64
from mpigraph.collective import collective
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.sampled_graph import hop_blocks
from mpigraph.distgraph.sampling_arguments import SamplingArguments
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.distgraph.typed_ids import Fanout, FeatureName
from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.block import Block
from mpigraph.kernels.compact import LocalIds
from mpigraph.mpi.messages import exchange_rows
from mpigraph.rows.owners import RowOwners
from mpigraph.sampling.minibatch import RandomContext, sample_hops
from mpigraph.sampling.strategies import HopKeys
from mpigraph.session.control import Operation

_EDGES_AT_A_TIME = 1 << 24
_DRAWS = 0x1AFE  # separates draws of inference from those of loaders with the same seed


class Neighbourhoods:
    """Makes blocks of one layer. One-sided: :meth:`block`.

    Attributes:
        fanouts: most neighbours of a node by relation id; relations with fanout 0 are left out.
        masks: number of the mask by relation id.
    """

    @collective("trainers")
    def __init__(self, g: DistGraph, fanout: Fanout, edge_mask: FeatureName | None) -> None:
        """Check the arguments, which are those of :func:`.layerwise`; errors are raised on every trainer."""
        self._g = g
        with g.session.world.together("inference: fanout and edge_mask"):
            self.masks = {} if edge_mask is None else g.edge_weights(edge_mask)
            self._plan = g.plan(SamplingArguments([fanout], prob=edge_mask), {})
            for number in self.masks.values():
                rows = g.session.store.tensors[number]
                if rows.dtype not in ("bool", "uint8"):
                    raise InvalidArgumentError(f"edge_mask {rows.name!r} must be bool or uint8 (got {rows.dtype})")
        self.fanouts = {r: strategy.fanout for r, strategy in self._plan.layers[0].items()}
        read = g.loaded.topology.out_degrees
        self._degrees = {
            r: OutDegrees(g, number, partial(read, relation=number)) for number, r in enumerate(g.schema.relations)
        }

    @collective("trainers")
    def prepare(self) -> None:
        """Have the hosts prepare the mask, and count the out-edges that it leaves."""
        g = self._g
        if self.masks:
            numbers = sorted(set(self.masks.values()))
            g.session.control.call(Operation.PREPARE_WEIGHTS, doing="preparing edge_mask", numbers=numbers)
            for relation, number in sorted(self.masks.items()):
                left = masked_out_degrees(g, relation, number)
                self._degrees[g.schema.relations[relation]] = OutDegrees(g, relation, partial(_rows, left))

    def block(self, seeds: Mapping[int, I64], layer: int) -> tuple[Block, dict[str, I64]]:
        """Return the block of some destinations, with ``edata[EID]``; and the ids of its sources, destinations first.

        ``seeds`` are int64[n] by node type id, nodes that this node's hosts hold. Each layer has its own draws.
        """
        g = self._g
        plan = replace(self._plan, seeds=seeds)
        seed = g.session.store.seed
        keys = HopKeys.of(np.uint64(seed ^ _DRAWS), layer)
        with ExitStack() as kept, g.session.sampling() as service:
            g.keep_tensors(plan, kept)
            sampled = sample_hops(service, g.loaded, plan, RandomContext(seed, 0), keys=keys)
        src_ids = {ntype: sampled.ids[t] for t, ntype in enumerate(g.schema.ntypes)}
        (block,) = hop_blocks(sampled)
        block.graph_out_degrees = lambda r: torch.from_numpy(self._degrees[r].of(src_ids[r[0]]))
        return block, src_ids


def _rows(tensor: DistTensor, ids: I64) -> I64:
    return tensor.rows.gather(ids)


class OutDegrees:
    """Out-degrees of the sources of one relation; those of remote nodes are fetched once, as no layer changes them.

    One-sided, from any thread.
    """

    def __init__(self, g: DistGraph, relation: int, read: Callable[[I64], I64]) -> None:
        """Begin without any; ``read`` maps int64[n] ids of sources, local or remote, to int64[n] degrees."""
        self._is_local = g.session.world.is_local
        self._offsets = g.loaded.topology.hosts.node_offsets[g.schema.ends(relation)[0]]
        self._read = read
        self._remote = LocalIds(int(self._offsets[-1]))
        self._degrees = np.empty(0, np.int64)  # the first ``_known`` entries are valid
        self._known = 0
        self._lock = Lock()

    def of(self, ids: I64) -> I64:
        """Return the degrees of ``ids`` (int64[n]), int64[n]."""
        is_remote = ~self._is_local[np.searchsorted(self._offsets, ids, "right") - 1]
        degrees = np.empty(len(ids), np.int64)
        degrees[~is_remote] = self._read(ids[~is_remote])
        with self._lock:
            places = self._remote.insert(ids[is_remote])
            count = self._remote.count
            if count > self._known:
                if count > len(self._degrees):
                    self._degrees = np.append(self._degrees, np.empty(count, np.int64))
                self._degrees[self._known : count] = self._read(self._remote.ids[self._known :])
                self._known = count
            degrees[is_remote] = self._degrees[places]
        return degrees


@collective("trainers")
def masked_out_degrees(g: DistGraph, relation: int, mask: int) -> DistTensor:
    """Count the out-edges of each node that a mask, the number of a tensor, leaves: int64[num_src], over the hosts.

    Edges lie with their destinations: each trainer counts the in-edges of its nodes by source, and the owners of the
    sources add the counts up.
    """
    world, topology = g.session.world, g.loaded.topology
    src, dst = topology.config.schema.ends(relation)
    hosts, ntype = topology.hosts.node_offsets, topology.config.schema.ntypes[src]
    doing = "counting out-degrees under edge_mask"
    with world.together(doing):
        counts: I32 = np.zeros(g.num_nodes(ntype), np.int32)
        for owned in RowOwners(world, hosts[dst]).ranges():
            edges = topology.adjacency(relation, owned.host)
            kept = g.session.store.tensors[mask].segment(owned.host)
            own = edges.into(owned.rows.start, owned.rows.stop)
            for first in range(own.start, own.stop, _EDGES_AT_A_TIME):
                piece = slice(first, min(first + _EDGES_AT_A_TIME, own.stop))
                np.add.at(counts, edges.indices[piece][kept[piece] != 0], 1)
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
