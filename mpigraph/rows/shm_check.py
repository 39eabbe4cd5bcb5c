"""Whether a node's shared memory, and what the job may use, hold what its hosts want to put there.

MPI keeps windows that several ranks of a node share in ``/dev/shm``, which is 64 MiB in many containers. It hands out
memory that is not there, and the first store to it kills the process (SIGBUS), without a word. The same where a job
may use less memory than its node has (Slurm's ``--mem``, a container): the kernel kills what goes beyond. So the first
host of each node tells what is free there before, and all raise the same error.
"""

import os
from contextlib import suppress

import numpy as np

from mpigraph.arrays import I64
from mpigraph.errors import SharedMemoryError
from mpigraph.memory import free_in_groups
from mpigraph.mpi.agree import allgather_bytes, everywhere
from mpigraph.mpi.world import World

__all__ = ["check_shared_memory", "free_shared_memory"]

_WHERE = "/dev/shm"
_PLACES = (_WHERE, "the job's memory limit")
_UNKNOWN = (-1, -1, 0)  # bytes free, bytes in all, place


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
    known = np.empty((world.size, 3), np.int64)
    firsts = world.first_hosts()
    speaks = world.host_index == firsts[world.node_index]
    world.comm.Allgather(np.array(_free_and_size(world) if speaks else _UNKNOWN, np.int64), known)
    free, size, place = known[world.hosts[firsts]].T
    needed = np.zeros(world.num_nodes, np.int64)
    np.add.at(needed, world.nodes_of_hosts, nbytes)
    hosts = np.bincount(world.nodes_of_hosts)
    short = [
        (node, int(needed[node]), int(free[node]), int(size[node]), int(hosts[node]), _PLACES[int(place[node])])
        for node in np.flatnonzero((free >= 0) & (free < needed)).tolist()
    ]
    if short:
        raise _error(world, short, what)


def _free_and_size(world: World) -> tuple[int, int, int]:
    """Bytes that are free, bytes in all, and where: the tighter of two limits. -1 where nothing is known."""
    limit = free_in_groups()
    found = [] if limit is None else [(*limit, 1)]
    if world.node.size > 1:  # a rank alone on its node has memory of its own
        shm = _shared_memory()
        found += [] if shm is None else [(*shm, 0)]
    return min(found, default=_UNKNOWN)


def free_shared_memory() -> int | None:
    """Return the bytes that are free where MPI keeps shared windows, None where nothing says it."""
    found = _shared_memory()
    return None if found is None else found[0]


def _shared_memory() -> tuple[int, int] | None:
    with suppress(OSError):  # not Linux
        shm = os.statvfs(_WHERE)
        return shm.f_bavail * shm.f_frsize, shm.f_blocks * shm.f_frsize
    return None


def _error(world: World, short: list[tuple[int, int, int, int, int, str]], what: str) -> SharedMemoryError:
    names = allgather_bytes(world.comm, os.uname().nodename.encode())
    firsts = world.hosts[world.first_hosts()].tolist()
    lines = [
        f"node {node} ({names[firsts[node]].decode()}) needs {needed / 2**20:.1f} MiB for "
        f"its {hosts} host(s), and {place} has {free / 2**20:.1f} MiB free of {size / 2**20:.1f} MiB"
        for node, needed, free, size, hosts, place in short
    ]
    places = {place for *_, place in short}
    enlarge = [f"enlarge {_WHERE} (docker run --shm-size=..., mount -o remount,size=...)"] if _WHERE in places else []
    enlarge += ["ask for more memory (--mem of Slurm or docker)"] if _PLACES[1] in places else []
    return everywhere(
        SharedMemoryError(
            f"not enough shared memory for {what}: {'; '.join(lines)}. Use more nodes, or {', '.join(enlarge)}"
        )
    )
