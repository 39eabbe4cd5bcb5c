"""Whether a node's shared memory holds what its hosts want to put there.

MPI keeps windows that several ranks of a node share in ``/dev/shm``, which is 64 MiB in many containers. It hands out
memory that is not there, and the first store to it kills the process (SIGBUS), without a word. So every rank tells
what is free on its node before, and all raise the same error.
"""

import os

import numpy as np

from mpigraph.arrays import I64
from mpigraph.errors import SharedMemoryError
from mpigraph.mpi.agree import allgather_bytes, everywhere
from mpigraph.mpi.world import World

__all__ = ["check_shared_memory"]

_WHERE = "/dev/shm"
_UNKNOWN = (-1, -1)


def check_shared_memory(world: World, nbytes: I64, what: str) -> None:
    """Check that each node has the shared memory that its hosts are about to allocate.

    Args:
        world: the job.
        nbytes: int64[H], bytes that each host allocates.
        what: what for, such as "graph 'S'".

    Raises:
        SharedMemoryError: a node has not; on every rank, with the sizes of each such node.

    Collective on ``world.comm``.
    """
    known = np.empty((world.size, 2), np.int64)
    world.comm.Allgather(np.array(_free_and_size(world), np.int64), known)
    short = []
    for node in range(world.num_nodes):
        hosts = world.hosts_of_node(node)
        free, size = known[world.hosts[hosts[0]]].tolist()
        needed = sum(int(nbytes[host]) for host in hosts)
        if 0 <= free < needed:
            short.append((node, needed, free, size, len(hosts)))
    if short:
        raise _error(world, short, what)


def _free_and_size(world: World) -> tuple[int, int]:
    """Bytes that are free and bytes in all; a rank alone on its node needs none."""
    if world.node.size == 1:
        return _UNKNOWN
    try:
        found = os.statvfs(_WHERE)
    except OSError:  # not Linux
        return _UNKNOWN
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def _error(world: World, short: list[tuple[int, int, int, int, int]], what: str) -> SharedMemoryError:
    names = allgather_bytes(world.comm, os.uname().nodename.encode())
    lines = [
        f"node {node} ({names[world.hosts[world.hosts_of_node(node)[0]]].decode()}) needs {needed / 2**20:.1f} MiB for "
        f"its {hosts} host(s), and {_WHERE} has {free / 2**20:.1f} MiB free of {size / 2**20:.1f} MiB"
        for node, needed, free, size, hosts in short
    ]
    return everywhere(
        SharedMemoryError(
            f"not enough shared memory for {what}: {'; '.join(lines)}. Use more nodes, or enlarge {_WHERE} "
            "(docker run --shm-size=..., mount -o remount,size=...)"
        )
    )
