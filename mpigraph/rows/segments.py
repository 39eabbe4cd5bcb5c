"""Memory that the ranks of a node share, in few MPI windows: arrays that are small beside all others share one.

A window takes one to three communicators (MPICH has 2048), two mappings of each process that sees it, and up to
a third of a second of CPU time on many ranks. So a small array gets a *block* of a segment, at the same place on every
host, and a large one a segment of its own. Small is less than a sixteenth of what a host holds, so the number of
segments grows with the logarithm of that.

Blocks are taken and given back by all ranks in the same order, so each knows where the others' blocks lie.
"""

from contextlib import suppress
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I64, U8
from mpigraph.collective import collective
from mpigraph.errors import SharedMemoryError
from mpigraph.mpi.compat import advise_large_pages, as_array
from mpigraph.mpi.world import World
from mpigraph.rows.shm_check import check_shared_memory

_ALIGNMENT = 64  # bytes: no two hosts, and no two blocks, share a cache line
_PAGE = 4096
_SMALL = 64 << 10  # bytes of a block that always shares a segment
_LEAST = 1 << 20  # bytes of a shared segment
_MOST = 64 << 20  # the same, except where two arrays are larger
_PART = 16  # of what a host holds: smaller arrays share segments; a new one has twice that
_UNCHECKED = 100  # segments, from which on it is checked whether MPI has communicators for one more


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
        if len(self._segments) >= _UNCHECKED:  # MPICH crashes where it has none for a window
            self._world.check_communicators(
                f"for more memory: there are {len(self._segments)} windows, each with one to three (MPICH has 2048 in "
                "all): drop or close large tensors, or keep several columns in one"
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
