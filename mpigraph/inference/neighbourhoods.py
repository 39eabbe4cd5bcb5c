"""Blocks of one layer for the nodes that a trainer owns: drawn from near memory alone, whatever others do.

A node and its in-edges lie on one host, near the trainer that owns the node. So blocks are made without a round of all
ranks, and trainers need not have as many of them as others.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from mpigraph.arrays import I64
from mpigraph.collective import collective
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.sampled_graph import SamplingArguments, hop_blocks
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.distgraph.typed_ids import Fanout, FeatureName
from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.block import Block
from mpigraph.inference.degrees import OutDegrees, masked_out_degrees
from mpigraph.sampling.minibatch import RandomContext, sample_hops
from mpigraph.sampling.strategies import HopKeys
from mpigraph.session.control import Operation

__all__ = ["Neighbourhoods"]

_DRAWS = 0x1AFE  # separates draws of inference from those of loaders with the same seed


class Neighbourhoods:
    """Makes blocks of one layer.

    One-sided: :meth:`block`.

    Attributes:
        fanouts: most neighbours of a node by relation id; relations of which no edge is taken are left out.
        masks: number of the mask by relation id.
    """

    @collective("trainers")
    def __init__(self, g: DistGraph, fanout: Fanout, edge_mask: FeatureName | None) -> None:
        """Check how neighbours are taken.

        Args:
            g: the graph.
            fanout: most neighbours of a node in each relation; -1: all. Or edge type -> most neighbours.
            edge_mask: name of an edge feature that is a mask, or edge type -> name; edges where it is 0 are left out.

        Raises:
            FieldNameError, EdgeTypeError, InvalidArgumentError: they are not what this says; on every trainer.
        """
        self._g = g
        with g.session.world.together("inference: fanout and edge_mask"):
            self.masks = {} if edge_mask is None else g.edge_weights(edge_mask)
            self._plan = SamplingArguments([fanout], prob=edge_mask).check(g, {})
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
        """Have the hosts prepare the mask, and count what it leaves."""
        g = self._g
        if self.masks:
            numbers = sorted(set(self.masks.values()))
            g.session.control.call(Operation.PREPARE_WEIGHTS, doing="preparing edge_mask", numbers=numbers)
            for relation, number in sorted(self.masks.items()):
                left = masked_out_degrees(g, relation, number)
                read = partial(_rows, left)
                self._degrees[g.schema.relations[relation]] = OutDegrees(g, relation, read)

    def block(self, seeds: Mapping[int, I64], layer: int) -> tuple[Block, dict[str, I64]]:
        """The block of some destinations, and the ids of its sources.

        Args:
            seeds: int64[n] by node type id, nodes that this node's hosts hold.
            layer: number of the layer; fewer neighbours than all are drawn anew in each.

        Returns:
            The block, with ``edata[EID]``; and by node type int64[num_src], the destinations first.
        """
        g = self._g
        plan = replace(self._plan, seeds=seeds)
        seed = g.session.store.seed
        keys = HopKeys.of(np.uint64(seed ^ _DRAWS), layer)
        with g.session.sampling() as service:
            sampled = sample_hops(service, g.loaded, plan, RandomContext(seed, 0), keys=keys)
        src_ids = {ntype: sampled.ids[t] for t, ntype in enumerate(g.schema.ntypes)}
        (block,) = hop_blocks(sampled)
        block.graph_out_degrees = lambda r: torch.from_numpy(self._degrees[r].of(src_ids[r[0]]))
        return block, src_ids


def _rows(tensor: DistTensor, ids: I64) -> I64:
    return tensor.rows.gather(ids)
