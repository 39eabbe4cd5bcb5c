"""A check, before hosts allocate, that each node's shared memory, memory and limits are large enough.

MPI keeps windows that several ranks of a node share in ``/dev/shm``, which is 64 MiB in many containers. It returns
more memory than there is, and the first store to it kills the process (SIGBUS), without a message. The kernel also
kills jobs that use more than their limit (Slurm's ``--mem``, a container), or than the node has. Where a process may
not map as much (``ulimit -v``, which Slurm passes on from the submitting shell), MPI fails on some ranks while others
wait. So the first host of each node reports the free memory there, and each rank the memory that it may map, and all
raise the same error. The check refuses nothing that might still fit.
"""

import os
from contextlib import suppress

import numpy as np

from mpigraph.arrays import I64
from mpigraph.collective import collective
from mpigraph.errors import SharedMemoryError
from mpigraph.memory import free_address_space, free_in_groups, unheld_on_node
from mpigraph.mpi.agree import allgather_bytes, everywhere
from mpigraph.mpi.world import World

_WHERE = "/dev/shm"
_PLACES = {  # the limit -> the remedy, besides more nodes
    _WHERE: f"enlarge {_WHERE} (docker run --shm-size=..., mount -o remount,size=...)",
    "the job's memory limit": "ask for more memory (--mem of Slurm or docker)",
    "the node's memory": "",
    "the address space of a process": "raise its limit (ulimit -v unlimited)",
}
LIMITS = [*_PLACES]
"""The names of the limits, by number."""
_UNKNOWN = (1 << 62, 1 << 62, 0)  # bytes free, bytes in all, number of the place


@collective("world.comm")
def check_shared_memory(world: World, nbytes: I64, what: str) -> None:
    """Check that each node has the shared memory that its hosts are about to allocate.

    Args:
        world: the job.
        nbytes: int64[H], bytes that each host allocates.
        what: the purpose, such as "graph 'S'".

    Raises:
        SharedMemoryError: a node has too little; on every rank, with the sizes of each such node.
    """
    tightest = tightest_limits(world)
    needed = np.zeros(world.num_nodes, np.int64)
    np.add.at(needed, world.nodes_of_hosts, nbytes)
    hosts = np.bincount(world.nodes_of_hosts)
    short = np.flatnonzero(tightest[:, 0] < needed)
    if len(short):
        raise _error(world, np.column_stack([short, needed[short], hosts[short], tightest[short]]), what)


@collective("world.comm")
def tightest_limits(world: World) -> I64:
    """Return int64[nodes, 3]: of each node's tightest limit the free bytes, the bytes in all, and its number."""
    known = np.empty((world.size, 4), np.int64)
    world.comm.Allgather(np.array([world.node_index, *free_and_size(world)], np.int64), known)
    known = known[np.lexsort((known[:, 1], known[:, 0]))]
    return known[np.searchsorted(known[:, 0], np.arange(world.num_nodes)), 1:]


def free_and_size(world: World) -> tuple[int, int, int]:
    """Return the tightest of the limits that this rank reports: free bytes, bytes in all, and its number."""
    speaks = world.host_index == world.first_hosts()[world.node_index]
    limits = [
        _shared_memory() if speaks and world.node.size > 1 else None,  # a rank alone has memory of its own
        free_in_groups() if speaks else None,
        unheld_on_node() if speaks else None,
        free_address_space(),
    ]
    return min(((*limit, place) for place, limit in enumerate(limits) if limit is not None), default=_UNKNOWN)


def free_shared_memory() -> int | None:
    """Return the free bytes where MPI keeps shared windows, None if unknown."""
    limit = _shared_memory()
    return None if limit is None else limit[0]


def _shared_memory() -> tuple[int, int] | None:
    with suppress(OSError):  # not Linux
        shm = os.statvfs(_WHERE)
        return shm.f_bavail * shm.f_frsize, shm.f_blocks * shm.f_frsize
    return None


def _error(world: World, short: I64, what: str) -> SharedMemoryError:
    names = allgather_bytes(world.comm, os.uname().nodename.encode())
    firsts = world.hosts[world.first_hosts()].tolist()
    remedies = ["Use more nodes"]
    lines = []
    for node, needed, hosts, free, size, place in short.tolist():
        lines.append(
            f"node {node} ({names[firsts[node]].decode()}) needs {needed / 2**20:.1f} MiB for its {hosts} host(s), "
            f"and {LIMITS[place]} has {free / 2**20:.1f} MiB free of {size / 2**20:.1f} MiB"
        )
        remedies.append(_PLACES[LIMITS[place]])
    helps = ", or ".join(filter(None, dict.fromkeys(remedies)))
    return everywhere(SharedMemoryError(f"not enough memory for {what}: {'; '.join(lines)}. {helps}"))
