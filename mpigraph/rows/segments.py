"""Memory for rows: blocks of few MPI windows, that nodes have enough, and arrays that are used again.

A window takes one to three communicators (MPICH has 2048), two mappings of each process that sees it, and up to
a third of a second of CPU time on many ranks. So a small array gets a *block* of a segment, at the same place on every
host, and a large one a segment of its own. Small is less than a sixteenth of what a host holds, so the number of
segments grows with the logarithm of that.

Blocks are taken and given back by all ranks in the same order, so each knows where the others' blocks lie.
"""

import os
import weakref
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from mpigraph.arrays import I64, U8, Array
from mpigraph.collective import collective
from mpigraph.errors import CollectiveError, SharedMemoryError
from mpigraph.memory import free_address_space, free_in_groups, unheld_on_node
from mpigraph.mpi.agree import allgather_bytes, everywhere
from mpigraph.mpi.compat import advise_large_pages, as_array
from mpigraph.mpi.world import World

# A check, before hosts allocate, that each node's shared memory, memory and limits are large enough.
#
# MPI keeps windows that several ranks of a node share in ``/dev/shm``, which is 64 MiB in many containers. It returns
# more memory than there is, and the first store to it kills the process (SIGBUS), without a message. The kernel also
# kills jobs that use more than their limit (Slurm's ``--mem``, a container), or than the node has. Where a process may
# not map as much (``ulimit -v``, which Slurm passes on from the submitting shell), MPI fails on some ranks while others
# wait. So the first host of each node reports the free memory there, and each rank the memory that it may map, and all
# raise the same error. The check refuses nothing that might still fit.

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


_ALIGNMENT = 64  # bytes: no two hosts, and no two blocks, share a cache line
_PAGE = 4096
_SMALL = 64 << 10  # bytes of a block that always shares a segment
_LEAST = 1 << 20  # bytes of a shared segment
_MOST = 64 << 20  # the same, except where two arrays are larger
_PART = 16  # of what a host holds: smaller arrays share segments; a new one has twice that
_MOST_WINDOWS = 500  # each needs one to three communicators; MPICH has 2048, and crashes where it has none left


class _Segment:
    """One window, and its memory on each local host.

    Attributes:
        remote: True if ranks of other nodes can read it one-sided.
        win: the window of all ranks if it is ``remote``, else of the node's; locked for all.
        sizes: int64[H], bytes of each host.
        size: bytes of the largest host.
        holes: where a shared segment is free, ascending ``(begin, end)``; None for one of a single block.
    """

    @collective("world.comm")
    def __init__(self, world: World, remote: bool, sizes: I64, shared: bool) -> None:
        """Allocate ``sizes`` (int64[H]) bytes on each host, in whole cache lines.

        MPICH 4.0 with UCX begins a window at the multiple of 16 before the memory of ``Win.Create``.
        """
        self.remote = remote
        self.sizes = sizes
        self.size = int(sizes.max(initial=0))
        # the first line stays free: so the block of the trial at start, the first of all, has a displacement, too
        self.holes = [(_ALIGNMENT, self.size)] if shared else None
        self._node_win = MPI.WIN_NULL
        nbytes = int(sizes[world.host_index]) if world.is_host else 0
        self.win = MPI.Win.Allocate_shared(nbytes, 1, comm=world.node)
        local = world.hosts_of_node(world.node_index)
        self._memory = {host: self._map(world, host, int(sizes[host])) for host in local}
        for memory in self._memory.values():  # all at once: advice for a block would make a mapping of it
            advise_large_pages(memory)
        if remote:
            self._node_win = self.win
            self.win = MPI.Win.Create(self._memory[world.host_index] if nbytes else None, 1, comm=world.comm)
        self.win.Lock_all(MPI.MODE_NOCHECK)
        if shared:  # so there is the memory that was checked for
            if world.is_host:
                self._memory[world.host_index][:] = 0
            world.comm.Barrier()

    def _map(self, world: World, host: int, nbytes: int) -> U8:
        """Return the memory of a host on this node in this process."""
        if nbytes == 0:
            return np.empty(0, np.uint8)
        rank = MPI.Group.Translate_ranks(world.comm.group, [int(world.hosts[host])], world.node.group)[0]
        return as_array(self.win.Shared_query(rank)[0], np.uint8)

    def memory(self, host: int) -> U8:
        """Return the memory of a host on this node."""
        return self._memory[host]

    def cut(self, size: int) -> int | None:
        """Take ``size`` bytes of the first hole that has them; return where they begin."""
        for index, (begin, end) in enumerate(self.holes or ()):
            if end - begin >= size and self.holes is not None:
                self.holes[index : index + 1] = [(begin + size, end)] if end - begin > size else []
                return begin
        return None

    def mend(self, begin: int, end: int) -> bool:
        """Give bytes back; return whether all of the segment is free now."""
        holes: list[tuple[int, int]] = []
        for low, high in sorted([*(self.holes or ()), (begin, end)]):
            if holes and holes[-1][1] == low:
                low = holes.pop()[0]
            holes.append((low, high))
        self.holes = None if self.holes is None else holes
        return holes == [(_ALIGNMENT, self.size)] or self.holes is None

    @collective("world.comm")
    def close(self) -> None:
        """Free the memory."""
        self._memory.clear()
        self.win.Unlock_all()
        self.win.Free()
        if self._node_win:
            self._node_win.Free()


class Block(NamedTuple):
    """Bytes of a segment: the same ones on each host."""

    segment: _Segment
    begin: int
    size: int

    @property
    def win(self) -> MPI.Win:
        """The window, in which the block begins at byte ``begin``."""
        return self.segment.win

    def memory(self, host: int) -> U8:
        """Return the block on a host on this node, and all of that host's if it is less; not zeroed."""
        return self.segment.memory(host)[self.begin : self.begin + self.size]


class Segments:
    """The segments of a job."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._segments: list[_Segment] = []

    def __len__(self) -> int:
        return len(self._segments)

    @collective("world.comm")
    def take(self, sizes: I64, remote: bool, what: str) -> Block:
        """Return a block of memory, not zeroed.

        Args:
            sizes: int64[H], bytes on each host.
            remote: let ranks of other nodes read it one-sided.
            what: the purpose, for errors.

        Raises:
            SharedMemoryError: a node's shared memory cannot hold it; on every rank.
            CollectiveError: MPI has no communicators left; on every rank.
        """
        exact = -(-sizes // _ALIGNMENT) * _ALIGNMENT
        size = max(int(exact.max(initial=0)), _ALIGNMENT)  # a block of no bytes would not keep its segment
        has = (exact > 0) | (size <= _SMALL)  # a cache has memory on one host of each node
        held = sum(segment.size for segment in self._segments)
        if size <= max(_SMALL, held // _PART):
            for segment in self._segments:
                fits = segment.remote == remote and not (has & (segment.sizes == 0)).any()
                if fits and (begin := segment.cut(size)) is not None:
                    return Block(segment, begin, size)
            more = max(_LEAST, min(2 * held // _PART, max(_MOST, 2 * size))) + _ALIGNMENT
            with suppress(SharedMemoryError):  # on every rank
                segment = self._add(remote, has * (-(-more // _PAGE) * _PAGE), True, what)
                return Block(segment, segment.cut(size) or 0, size)
        return Block(self._add(remote, exact, False, what), 0, size)

    def sync(self) -> None:
        """Order plain stores and loads of this process with the other processes', in all windows."""
        for segment in self._segments:
            segment.win.Sync()

    @collective("world.comm")
    def _add(self, remote: bool, sizes: I64, shared: bool, what: str) -> _Segment:
        check_shared_memory(self._world, sizes, what)
        if len(self._segments) >= _MOST_WINDOWS:  # on every rank
            raise everywhere(
                CollectiveError(
                    f"there is no window for {what}: {len(self._segments)} are open, as many as MPI has communicators "
                    "for; drop or close large tensors, or keep several columns in one"
                )
            )
        self._segments.append(_Segment(self._world, remote, sizes, shared))
        return self._segments[-1]

    @collective("world.comm")
    def give_back(self, block: Block) -> None:
        """Free a block, which no rank may use once one has given it back."""
        self._world.comm.Barrier()  # the next block may be here, while another rank is still reading this one
        if block.segment.mend(block.begin, block.begin + block.size):
            self._segments.remove(block.segment)
            block.segment.close()


# Memory for large results that is used again once the result is garbage.
#
# The system maps a fresh array of megabytes, clears it page by page, and unmaps it when it dies; that costs more than
# gathering rows into it. A pool keeps such memory. Its arrays are ordinary ones.

_UNPOOLED = 1 << 20  # bytes below which numpy's own allocator is as good
_KEPT = 4  # free arrays kept of each size: two batches ahead, one in use, one being made
_LARGE = 1 << 28  # bytes above which memory goes back to the system


class RowPool:
    """Returns arrays, to any thread."""

    def __init__(self, kept: int = _KEPT, largest: int = _LARGE, one_size: bool = False) -> None:
        """Begin empty.

        Args:
            kept: free arrays kept of each size.
            largest: bytes of an array that is kept.
            one_size: keep arrays of one size, that of the largest one while others are not much smaller: for one user,
                whose arrays are few and alike.
        """
        self._largest = largest
        self._one_size = one_size
        self._size = 0
        # deque.append and pop are atomic: an array may die at any time, in any thread
        self._free: defaultdict[int, deque[U8]] = defaultdict(lambda: deque(maxlen=kept))

    def empty(self, shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
        """Return an array with undefined contents, as ``np.empty`` does."""
        dtype = np.dtype(dtype)
        nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        if not _UNPOOLED <= nbytes <= self._largest:
            return np.empty(shape, dtype)
        step = max(_PAGE, (1 << nbytes.bit_length()) >> 3)
        size = -(-nbytes // step) * step
        if self._one_size:
            if not self._size // 2 <= size <= self._size:
                self._size = size
                self._free.clear()
            size = self._size
        free = self._free[size]
        try:
            memory = free.pop()
        except IndexError:
            memory = np.empty(size + _PAGE, np.uint8)
            memory = memory[-memory.ctypes.data % _PAGE :][:size]  # disks are written straight from a page's beginning
        # the base of a view is the array at the end of the chain; the memoryview makes that this one
        root = np.frombuffer(memoryview(memory), np.uint8, nbytes)  # type: ignore[arg-type]
        weakref.finalize(root, free.append, memory).atexit = False
        return root.view(dtype).reshape(shape)
