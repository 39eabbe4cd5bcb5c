"""The local part of a graph, as DGL's scripts know it, and where its rows are in this node's memory."""

import numpy as np

from mpigraph.errors import PartitionError
from mpigraph.mpi.world import World
from mpigraph.rows.row_tensor import RowTensor

__all__ = ["in_memory", "local_part"]


def local_part(world: World, num_parts: int) -> int:
    """The part that is mostly on this trainer's node; trainers of a node take turns."""
    near = np.flatnonzero(world.near)
    middles = ((near + 0.5) * num_parts / len(world.hosts)).astype(np.int64)
    return int(middles[world.local_trainer * len(near) // world.num_local_trainers % len(middles)])


def in_memory(world: World, rows: RowTensor, part: int, first: int, last: int) -> tuple[int, slice]:
    """Where the rows of a part are: a near host, and which of its rows.

    Raises:
        PartitionError: they are not next to each other in the memory of one host of this node.
    """
    offsets = rows.window.offsets
    for host in np.flatnonzero(world.near).tolist():
        begin, end = offsets[host : host + 2].tolist()
        if begin <= first <= last <= end:
            return host, slice(first - begin, last - begin)
    raise PartitionError(
        f"tensor {rows.name!r} has no local_partition: the rows of part {part}, from {first} up to {last}, are not "
        f"next to each other in the memory of one host of this node (the {len(world.hosts)} hosts hold rows from "
        f"{offsets.tolist()}): read and write by t[pb.partid2nids(pb.partid)], or use as many parts as hosts"
    )
