"""Assign nodes to parts at random, evenly."""

import numpy as np

from mpigraph.arrays import I32
from mpigraph.partition.source import GraphSource

__all__ = ["random_assign"]


def random_assign(source: GraphSource, num_parts: int, seed: int = 0) -> I32:
    """Assign every node to a part; each type is spread evenly.

    Args:
        source: the graph.
        num_parts: number of parts.
        seed: any integer; equal seeds give equal assignments.

    Returns:
        int32[all nodes], types one after the other.
    """
    rng = np.random.default_rng(seed % 2**64)  # numpy takes no negative ones
    assignment = np.empty(int(source.node_bases[-1]), np.int32)
    first = 0  # the type after this one continues where it stopped, so that small types do not all meet in part 0
    for base, count in zip(source.node_bases[:-1], source.num_nodes, strict=True):
        assignment[base : base + count] = (rng.permutation(count) + first) % num_parts
        first = (first + count) % num_parts
    return assignment
