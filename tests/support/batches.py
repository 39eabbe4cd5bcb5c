"""Minibatches that tests sample in many ways, and a fingerprint that says whether two are the same."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from oracle import NUM_NODES

from mpigraph.dataloading import BlockSampler, LaborSampler, NeighborSampler
from mpigraph.graphs.block import to_block
from mpigraph.graphs.fields import EID, NID, TREE
from mpigraph.graphs.in_memory import InMemoryGraph
from mpigraph.sampling.minibatch import Subgraph

NUM_BATCHES = 6
SAMPLERS = {
    "uniform": NeighborSampler([3, 4]),
    "replace": NeighborSampler([2, 5], replace=True),
    "all": NeighborSampler([-1, -1]),
    "prob": NeighborSampler([3, 2], prob="weight"),
    "prob-replace": NeighborSampler([3, 2], prob="weight", replace=True),
    "mask": NeighborSampler([2, 2], mask="even"),
    "no-eids": NeighborSampler([3, 3], return_eids=False),
    "labor": LaborSampler([3, 4]),
    "labor-prob": LaborSampler([3, 2], prob="weight", layer_dependency=True),
    "labor-mask": LaborSampler([2, 2], mask="even", batch_dependency=3),
}


class OneHop(BlockSampler):
    """A sampler of the user's own, on the public functions, which knows no exclusion."""

    def sample_blocks(self, g: Any, seed_nodes: torch.Tensor) -> Any:
        frontier = g.sample_neighbors(seed_nodes, 2)
        block = to_block(frontier, seed_nodes)
        block.edata[EID] = frontier.edata[EID]
        return block.srcdata[NID], seed_nodes, [block]


def batch(number: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(number).permutation(NUM_NODES)[:17].astype(np.int64))


def tensors(part: Any) -> Iterator[torch.Tensor]:
    """The ids of a minibatch, of its blocks and pair graphs by type, and their ends, always in the same order."""
    if isinstance(part, torch.Tensor | np.ndarray):
        yield torch.as_tensor(part)
    elif isinstance(part, InMemoryGraph):
        for relation in part.canonical_etypes:
            yield from (*part.all_edges(etype=relation), part.edges[relation].data.get(EID, torch.empty(0)))
        for ntype in part.srctypes:
            yield from (part.srcnodes[ntype].data[name] for name in (NID, TREE) if name in part.srcnodes[ntype].data)
    else:
        for one in (part[key] for key in sorted(part, key=str)) if isinstance(part, Mapping) else part:
            yield from tensors(one)


def parts_of(subgraph: Subgraph) -> list[Any]:
    """What a subgraph for PyG holds, for :func:`digest`."""
    counts = map(np.array, (*subgraph.num_nodes, *subgraph.num_edges))
    return [*counts, *subgraph.ids, *subgraph.edges, *(subgraph.eids or [])]


def digest(sample: Any) -> str:
    """A fingerprint of a minibatch of nodes or edges, or of anything that is made of tensors."""
    state = hashlib.sha256()
    for tensor in tensors(sample):
        state.update(repr(tensor.shape).encode() + tensor.numpy().tobytes())
    return state.hexdigest()
