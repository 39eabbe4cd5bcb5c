"""Copies of rows of other nodes, in a node's shared memory, for all trainers of the node.

Each trainer gives its own slots to rows, and reads those of all without a lock: a slot has one writer, and a tag that
changes whenever the slot gets another row. A reader compares it before and after (Lamport, "Concurrent reading and
writing", CACM 20(11), 1977). ``kernels/row_slots.py`` decides which rows are kept.

A trainer's slots have rows of one version of the window. The others read them while that is the window's version; then
the trainer empties them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I32, I64, Array
from mpigraph.collective import collective
from mpigraph.kernels.row_ops import as_words, move_rows
from mpigraph.kernels.row_slots import (
    admit,
    clear_tags,
    drop_lost,
    empty,
    find_slots,
    forget_uses,
    new_slots,
    note_reads,
    publish,
    touch,
)
from mpigraph.memory import free_memory
from mpigraph.mpi.world import World
from mpigraph.rows.segments import Block, free_shared_memory
from mpigraph.rows.window import RowWindow

_LINE = 64  # bytes that tables are aligned to
_NO_VERSION = -1
_OF_FREE = 0.25  # of the free memory, for caches whose size was not set
_MOST_OF_FREE = 0.5  # of the free memory, for more than one slot a row where the size was set
_MOST = 2**31 - 2  # slots of a node: their numbers are 32 bits
_OF_SLOT = 8  # bytes that a slot takes in the tables besides the row
_OF_ROW = 4  # bytes that a row of the window takes in the tables, kept or not


def cache_memory(num_rows: int, slots: int, row_bytes: int) -> int:
    """Return the bytes that a cache of ``slots`` of ``num_rows`` rows takes on a node."""
    return _OF_ROW * num_rows + slots * (row_bytes + _OF_SLOT)


def remote_rows(window: RowWindow) -> int:
    """Return the number of a window's rows that other nodes hold."""
    return int(np.diff(window.offsets)[~window.world.is_local].sum())


@collective("world.node")
def slots_for(world: World, windows: Sequence[RowWindow], nbytes: int, promised: int) -> list[int]:
    """Return the number of slots that each trainer of this node gets for each window.

    A trainer has at most as many slots as there are remote rows, and then never reads one twice: with fewer it depends
    on the others, who may keep the same rows, or none.

    Args:
        world: the job.
        windows: the windows; each gets a share of the bytes in proportion to its remote rows.
        nbytes: bytes of all caches together on this node; below 0 a part of the free memory.
        promised: free bytes that other caches may take.
    """
    counts = [remote_rows(window) for window in windows]
    whole = [cache_memory(len(of), count, of.row_bytes) for of, count in zip(windows, counts, strict=True)]
    free = np.array([free_for_caches(world) - promised], np.int64)
    world.node.Allreduce(MPI.IN_PLACE, free, op=MPI.MIN)  # ranks may look at different moments
    if nbytes < 0:
        nbytes = max(int(free[0] * _OF_FREE), 0)
    else:
        nbytes = min(nbytes, max(int(free[0] * _MOST_OF_FREE), sum(whole)))
    most = _MOST // world.num_local_trainers
    per_trainer = []
    for window, count, need in zip(windows, counts, whole, strict=True):
        share = nbytes * need // max(sum(whole), 1) - cache_memory(len(window), 0, 0)
        slots = max(share, 0) // (window.row_bytes + _OF_SLOT) // world.num_local_trainers
        per_trainer.append(min(slots, count, most) if window.row_bytes else 0)
    return per_trainer


def free_for_caches(world: World) -> int:
    """Return the free bytes of this node that caches may share."""
    limits = [free_memory()]
    if world.node.size > 1:
        limits.append(free_shared_memory())
    return min((size for size in limits if size is not None), default=0)


@dataclass
class SlotTable:
    """The slots of a node's trainers in shared memory. One trainer fills a slot, and all read it.

    Attributes:
        hint: int32[rows], the slot that may have a row.
        tags: int64[slots], the row in a slot, and the times that it was given to one.
        versions: int64[trainers], the version of the rows in each trainer's slots.
        words: [slots, words of a row], the rows as unsigned integers.
        alone: the node has one trainer.
        fence: orders this process's stores and loads with the others'.
    """

    hint: I32
    tags: I64
    versions: I64
    words: Array
    alone: bool
    fence: Callable[[], None]


class RowCache:
    """Copies of rows of one window, for one reader of each trainer.

    Attributes:
        number: the same on every rank, never used twice in a job.
        window: the rows.
        per_trainer: slots of each trainer of this node.
        nbytes: memory of the node that all slots take once they are full; trainers seldom fill them with the same rows.
        slots: those of the node.
    """

    @collective("world.comm")
    def __init__(
        self, world: World, number: int, window: RowWindow, per_trainer: int, ahead: int, name: str = "rows"
    ) -> None:
        """Allocate empty slots.

        Args:
            world: the job.
            number: of the cache.
            window: the rows.
            per_trainer: slots of each trainer of this node; the same on all ranks of the node.
            ahead: the largest number of minibatches that are known before they read.
            name: of the rows, for errors.

        Raises:
            SharedMemoryError: a node's shared memory cannot hold its slots; on every rank.
        """
        self.number = number
        self.window = window
        self.per_trainer = per_trainer
        trainers = world.num_local_trainers
        slots = trainers * per_trainer
        sizes = [_OF_ROW * len(window) if slots else 0, 8 * slots, 8 * trainers, window.row_bytes * slots]
        ends = np.cumsum([-(-size // _LINE) * _LINE for size in sizes]).tolist()
        self.nbytes: int = ends[-1]
        of_hosts = np.zeros(len(world.hosts), np.int64)
        of_hosts[world.hosts_of_node(world.node_index)[0]] = ends[-1]
        world.comm.Allreduce(MPI.IN_PLACE, of_hosts, op=MPI.MAX)
        self._segments = window.service.segments
        self._block: Block | None = self._segments.take(of_hosts, False, f"a cache of {name!r}")
        memory = self._block.memory(world.hosts_of_node(world.node_index)[0])[: ends[-1]]
        begins = [0, *ends[:-1]]
        hint, tags, versions, table = (memory[begin : begin + size] for begin, size in zip(begins, sizes, strict=True))
        self.slots = SlotTable(
            hint.view(np.int32),
            tags.view(np.int64),
            versions.view(np.int64),
            as_words(table.view(window.dtype).reshape(slots, *window.row_shape)),
            alone=trainers == 1,
            fence=self._block.win.Sync,
        )
        self._me = world.local_trainer if world.is_trainer else 0
        self._own = new_slots(self._me * per_trainer, per_trainer if world.is_trainer else 0, ahead)
        if world.is_trainer and world.local_trainer == 0:  # memory of rows in slots that are never used is not touched
            self.slots.hint[:] = 0
            self.slots.tags[:] = 0
            self.slots.versions[:] = _NO_VERSION
        self.slots.fence()
        world.comm.Barrier()
        self.slots.fence()

    def refresh(self) -> bool:
        """Forget rows that were written since they were read; return whether the cache may be used now.

        It may not while this rank has written rows that the others do not know of yet.
        """
        window = self.window
        if window.untold:
            self.forget()
            return False
        if self.slots.versions[self._me] != window.version:
            self.forget()
            self.slots.versions[self._me] = window.version
            self.slots.fence()
        return True

    def forget(self) -> None:
        """Empty this trainer's slots."""
        if self.slots.versions[self._me] == _NO_VERSION:
            return
        self.slots.versions[self._me] = _NO_VERSION
        first = int(self._own.first[0])
        clear_tags(self.slots.tags, first, first + self.used)
        empty(self._own)
        self.slots.fence()

    @property
    def used(self) -> int:
        """The number of slots that this trainer has given to rows."""
        return int(self._own.state[0])

    def forget_uses(self) -> None:
        """Forget the announced minibatches, which will not come."""
        forget_uses(self._own)

    def announce(self, rows: I64, fresh: Array, batch: int) -> None:
        """Note that a minibatch will read ``rows`` (int64[n]), for the choice of slots to give up.

        ``fresh`` (bool[n]): no minibatch announced before reads the row.
        """
        note_reads(rows, fresh, batch, self.slots.hint, self.slots.tags, self._own)

    def find(self, rows: I64) -> tuple[I32, I64]:
        """Find the slots of ``rows`` (int64[n]).

        Returns:
            int32[n], the slot of each or -1, and int64[n], ``seen`` for :meth:`load`.
        """
        slots, seen = np.full(len(rows), -1, np.int32), np.empty(len(rows), np.int64)
        if self.per_trainer:
            valid = self.slots.versions == self.window.version
            find_slots(rows, self.slots.hint, self.slots.tags, valid, self.per_trainer, slots, seen)
            self.slots.fence()
        return slots, seen

    def load(self, slots: I32, seen: I64, positions: I64, out: Array) -> None:
        """Copy rows from their slots: ``out[positions[i]]`` for each ``slots[i] >= 0``.

        Args:
            slots: int32[n], from :meth:`find`; -1 afterwards where the row has lost its slot meanwhile: the copy is
                invalid.
            seen: int64[n], from :meth:`find`.
            positions: int64[n].
            out: rows as words.
        """
        move_rows(self.slots.words, slots, 0, out.view(self.slots.words.dtype), positions)
        self.slots.fence()
        drop_lost(self.slots.tags, slots, seen)

    def keep(
        self,
        rows: I64,
        slots: I32,
        positions: I64,
        out: Array,
        batch: int = 0,
        begin: int = 0,
        ring_next: I32 | None = None,
    ) -> None:
        """After minibatch ``batch`` has read ``rows``: keep those that are worth it, in place of others.

        Args:
            rows: int64[n], distinct or not.
            slots: int32[n], the slot of each, or -1.
            positions: int64[n], the position of each in ``out``.
            out: rows as words.
            batch: number of the minibatch.
            begin: position of its first row among the reads.
            ring_next: int32[reads], the minibatch that reads a row next, by position (``kernels/row_slots.py``); None
                while all rows find free slots.
        """
        shared = self.slots
        if ring_next is not None:
            touch(rows, slots, batch, begin, ring_next, self._own)
        taken = np.empty(len(rows), np.int32)
        which = np.empty(len(rows), np.int64)
        count = admit(rows, slots, begin, ring_next, shared.hint, shared.tags, self._own, taken, which)
        if count == 0:
            return
        taken, which = taken[:count], which[:count]
        shared.fence()  # the old rows of these slots must be unpublished before they are overwritten
        move_rows(out.view(shared.words.dtype), positions[which], 0, shared.words, taken.astype(np.int64))
        shared.fence()
        publish(rows[which], taken, shared.tags)

    @collective("world.comm")
    def close(self) -> None:
        """Free the slots; a second call does nothing."""
        block, self._block = self._block, None
        if block:
            self._segments.give_back(block)
