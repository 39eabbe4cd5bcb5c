"""The blocks that samplers return, of the hops that were sampled."""

import numpy as np
import torch

from mpigraph.graphs.block import Block
from mpigraph.graphs.fields import EID, SEED_TIME, TREE
from mpigraph.metadata.schema import Schema
from mpigraph.sampling.minibatch import SampledHops, Trees

__all__ = ["hop_blocks"]

_NONE = np.empty(0, np.int64)


def hop_blocks(sampled: SampledHops) -> list[Block]:
    """Message-flow graphs of the hops, input side first."""
    schema = sampled.schema
    blocks = []
    for hop in reversed(sampled.hops):
        edges = {
            schema.relations[r]: (csc.indptr, csc.indices, csc.eids if sampled.want_eids else None)
            for r, csc in hop.edges.items()
        }
        src_ids = {ntype: sampled.ids[t][: hop.num_src[t]] for t, ntype in enumerate(schema.ntypes)}
        block = Block.from_csc(schema, edges, src_ids, dict(zip(schema.ntypes, hop.num_dst, strict=True)))
        for relation in schema.relations:
            if sampled.want_eids and relation not in edges:
                block.edges[relation].data[EID] = torch.from_numpy(_NONE)
        if sampled.trees is not None:
            _name_trees(block, sampled.trees, schema)
        blocks.append(block)
    return blocks


def _name_trees(block: Block, trees: Trees, schema: Schema) -> None:
    """Give the nodes of a block the numbers of their trees, and the times of these trees' roots."""
    for ntype, of_nodes in zip(schema.ntypes, trees.of_nodes, strict=True):
        for space, count in (
            (block.srcnodes[ntype].data, block.number_of_src_nodes(ntype)),
            (block.dstnodes[ntype].data, block.number_of_dst_nodes(ntype)),
        ):
            space[TREE] = torch.from_numpy(of_nodes[:count])
            if len(trees.times) or not len(of_nodes):
                space[SEED_TIME] = torch.from_numpy(trees.times[of_nodes[:count]])
