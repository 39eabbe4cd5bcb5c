"""The blocks that samplers return, of the hops that were sampled."""

import numpy as np
import torch

from mpigraph.graphs.block import Block, Blocks
from mpigraph.graphs.fields import EID, SEED_TIME, TREE
from mpigraph.metadata.schema import Schema
from mpigraph.sampling.minibatch import SampledHops, Trees

__all__ = ["hop_blocks"]

_NONE = np.empty(0, np.int64)


def hop_blocks(sampled: SampledHops) -> Blocks:
    """Message-flow graphs of the hops, input side first."""
    schema = sampled.schema
    blocks = Blocks()
    of_trees = {} if sampled.trees is None else _columns(sampled.trees, schema)
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
        for ntype, columns in of_trees.items():
            frames = (block.srcnodes[ntype].data, block.dstnodes[ntype].data)
            for frame, count in zip(frames, (hop.num_src, hop.num_dst), strict=True):
                for name, values in columns.items():
                    frame[name] = values[: count[schema.ntype_id(ntype)]]
        blocks.append(block)
    return blocks


def _columns(trees: Trees, schema: Schema) -> dict[str, dict[str, torch.Tensor]]:
    """By node type and name: the numbers of the nodes' trees, and the times of these trees' roots."""
    columns = {}
    for ntype, of_nodes in zip(schema.ntypes, trees.of_nodes, strict=True):
        columns[ntype] = {TREE: torch.from_numpy(of_nodes)}
        if trees.times is not None:
            columns[ntype][SEED_TIME] = torch.from_numpy(trees.times[of_nodes])
    return columns
