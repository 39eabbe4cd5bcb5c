"""Which destinations are a block of a layer, and which trainer computes it.

What a product of matrices gives for a row may depend, in its last bits, on how many rows there are and where the row is
among them. So blocks must be the same whoever computes them: each part of the graph is cut from its first node on, not
what a trainer happens to own. A block belongs to the trainer that owns its first node; the others of its nodes are near
that trainer, too, because where another node (machine) begins, a block ends. The blocks of a part are about equally
large, so that none is a few rows that are left over, whose products round differently.
"""

from typing import NamedTuple

import numpy as np

from mpigraph.arrays import I64
from mpigraph.mpi.world import World
from mpigraph.rows.owners import RowOwners

__all__ = ["Batch", "batches_of"]


class Batch(NamedTuple):
    """Consecutive nodes of one type: from ``first`` on, ``last`` is one behind them."""

    first: int
    last: int


def batches_of(world: World, parts: I64, hosts: I64, batch_size: int) -> list[Batch]:
    """The batches of the nodes of one type that this trainer computes, ascending on each host.

    Args:
        world: the job.
        parts: int64[P + 1], where the parts of the graph begin, and the number of nodes.
        hosts: int64[H + 1], the same of hosts.
        batch_size: most nodes of a batch.
    """
    elsewhere = np.flatnonzero(np.diff(world.nodes_of_hosts)) + 1
    ends = np.union1d(parts, hosts[elsewhere])
    found = []
    for owned in RowOwners(world, hosts).ranges():
        at = owned.first
        while at < owned.last:
            part = int(np.searchsorted(parts, at, "right")) - 1
            piece = int(np.searchsorted(ends, at, "right")) - 1
            begin, end = parts[part : part + 2].tolist()
            pieces = -(-(end - begin) // batch_size)
            number = ((at - begin + 1) * pieces - 1) // (end - begin)
            first = begin + (end - begin) * number // pieces
            last = min(begin + (end - begin) * (number + 1) // pieces, int(ends[piece + 1]))
            if at in (first, ends[piece]):  # else it is of the trainer that owns its first node
                found.append(Batch(at, last))
            at = last
    return found
