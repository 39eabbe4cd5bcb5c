"""The local part of a graph, as DGL's scripts know it, and where its rows are in this node's memory."""

import numpy as np

from mpigraph.errors import PartitionError
from mpigraph.metadata.book import RangeBook
from mpigraph.mpi.world import World
from mpigraph.rows.row_tensor import RowTensor

__all__ = ["in_memory", "local_nodes", "local_part"]


def local_part(world: World, num_parts: int) -> int:
    """The part that is mostly on this trainer's node; trainers of a node take turns."""
    return int((_local_host(world) + 0.5) * num_parts / len(world.hosts))


def local_nodes(world: World, hosts: RangeBook, ntype_id: int) -> tuple[int, int]:
    """The range of nodes of a type that this trainer's host has, in as many parts as these are."""
    return hosts.node_range(_local_host(world), ntype_id)


def _local_host(world: World) -> int:
    """A host on this trainer's node, itself if it is one; trainers of a node take turns."""
    near = np.flatnonzero(world.near)
    return int(near[world.local_trainer * len(near) // world.num_local_trainers % len(near)])


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
