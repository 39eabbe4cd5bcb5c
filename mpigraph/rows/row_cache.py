"""Copies of rows that cost something to read, in a node's shared memory, for all trainers of the node.

Such rows are held by other nodes, or by a source of this node that is not memory (``rows/sources``).

Each trainer gives its own slots to rows, and reads those of all. So nobody takes a lock: a slot has one writer, which
counts how often it gave the slot to a row, and who reads another's slot looks at that number before and after
(Lamport, "Concurrent reading and writing", CACM 20(11), 1977). What is kept is decided in ``kernels/row_slots.py``.

Only rows that nobody writes are kept. What a trainer has in its slots is of one version of the tensor; others read it
while that is the tensor's version, and it is forgotten when it is not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I32, I64, Array
from mpigraph.collective import collective
from mpigraph.kernels.row_ops import as_words, gather_rows, load_slots
from mpigraph.kernels.row_slots import (
    admit,
    changed,
    confirm_slots,
    empty,
    expect_none,
    find_slots,
    forget_uses,
    new_slots,
    note_reads,
    note_times,
    publish,
    take_free,
    touch,
)
from mpigraph.memory import free_memory
from mpigraph.mpi.compat import advise_large_pages, as_array
from mpigraph.mpi.world import World
from mpigraph.rows.row_tensor import RowTensor
from mpigraph.rows.shm_check import check_shared_memory, free_shared_memory

__all__ = ["RowCache", "cache_memory", "free_for_caches", "slots_for"]

_LINE = 64  # bytes that tables are aligned to
_OF_SLOT = 8 + 4  # bytes that a slot takes in the tables besides the row
_OF_ROW = 4  # bytes that a row of the tensor takes in the tables, kept or not
_NO_VERSION = -1
_OF_FREE = 0.25  # of the memory that is free, for caches of a size that nobody gave
_MOST = 2**31 - 2  # slots of a node: their numbers are 32 bits


def priced_rows(rows: RowTensor) -> int:
    """Return how many rows of a tensor this node cannot read by plain loads."""
    return int(np.diff(rows.window.offsets)[~rows.window.free].sum())


def cache_memory(num_rows: int, slots: int, row_bytes: int) -> int:
    """Bytes that a cache of some rows of a tensor takes on a node."""
    return _OF_ROW * num_rows + slots * (row_bytes + _OF_SLOT)


@collective("world.node")
def slots_for(
    world: World, tensors: Sequence[RowTensor], nbytes: int, promised: int, near_too: bool = False
) -> list[int]:
    """How many slots each trainer of this node gets for each of some tensors.

    Args:
        world: the job.
        tensors: the tensors; each gets as much of the bytes as its priced rows are of all of them.
        nbytes: what they take together on this node; a part of what is free if below 0.
        promised: bytes of what is free that other caches may take.
        near_too: free rows are kept, too; without, there are not more slots than priced rows.
    """
    if nbytes < 0:
        free = np.array([free_for_caches(world) - promised], np.int64)
        world.node.Allreduce(MPI.IN_PLACE, free, op=MPI.MIN)  # ranks may look at different moments
        nbytes = max(int(free[0] * _OF_FREE), 0)
    slot = [tensor.window.row_bytes + _OF_SLOT for tensor in tensors]
    counts = [priced_rows(tensor) for tensor in tensors]
    whole = [
        count * size + _OF_ROW * tensor.shape[0] for count, size, tensor in zip(counts, slot, tensors, strict=True)
    ]
    found = []
    for tensor, size, count, need in zip(tensors, slot, counts, whole, strict=True):
        mine = nbytes * need // max(sum(whole), 1)
        in_all = min((mine - _OF_ROW * tensor.shape[0]) // size, _MOST if near_too else count, _MOST)
        found.append(max(in_all, 0) // world.num_local_trainers if tensor.window.row_bytes else 0)
    return found


def free_for_caches(world: World) -> int:
    """Bytes of memory that may be shared on this node."""
    found = [free_memory()]
    if world.node.size > 1:
        found.append(free_shared_memory())
    return min((size for size in found if size is not None), default=0)


@dataclass
class SlotTable:
    """The slots of a node's trainers in shared memory. One trainer fills a slot, and all read it.

    Attributes:
        hint: int32[rows], the slot that may have a row.
        row_of: int64[slots], the row that a slot has, or -1.
        times: int32[slots], how often a slot was given to a row.
        versions: int64[trainers], the version of the tensor that a trainer's slots have rows of.
        words: [slots, words of a row], the rows as unsigned integers.
        alone: whether the node has one trainer.
        fence: makes what others have written visible, and the other way round.
    """

    hint: I32
    row_of: I64
    times: I32
    versions: I64
    words: Array
    alone: bool
    fence: Callable[[], None]


class RowCache:
    """Copies of some rows of one tensor.

    For one thread of each trainer at a time.

    Attributes:
        number: the same on every rank, never used twice in a job.
        rows: the tensor.
        per_trainer: slots that each trainer of this node gives to rows.
        nbytes: memory of the node that all of them take once they are full.
        slots: those of the node.
    """

    @collective("world.comm")
    def __init__(self, world: World, number: int, rows: RowTensor, per_trainer: int, ahead: int) -> None:
        """Allocate empty slots.

        Args:
            world: the job.
            number: of the cache.
            rows: the tensor.
            per_trainer: slots of each trainer of this node; the same on all ranks of the node.
            ahead: how many minibatches are known before they read, at most.

        Raises:
            SharedMemoryError: a node's shared memory cannot hold its slots; on every rank.
        """
        self.number = number
        self.rows = rows
        self.per_trainer = per_trainer
        trainers = world.num_local_trainers
        slots = trainers * per_trainer
        window = rows.window
        sizes = [
            _OF_ROW * rows.shape[0] if slots else 0,
            8 * slots,
            4 * slots,
            8 * trainers,
            window.row_bytes * slots,
        ]
        ends = np.cumsum([-(-size // _LINE) * _LINE for size in sizes]).tolist()
        self.nbytes: int = ends[-1]
        of_hosts = np.zeros(len(world.hosts), np.int64)
        of_hosts[world.hosts_of_node(world.node_index)[0]] = ends[-1]
        world.comm.Allreduce(MPI.IN_PLACE, of_hosts, op=MPI.MAX)
        check_shared_memory(world, of_hosts, f"a cache of {rows.name!r}")
        allocates = world.is_trainer and world.local_trainer == 0
        self._win = MPI.Win.Allocate_shared(ends[-1] if allocates else 0, 1, comm=world.node)
        self._win.Lock_all(MPI.MODE_NOCHECK)
        first = np.array([world.node.rank if allocates else -1], np.int64)
        world.node.Allreduce(MPI.IN_PLACE, first, op=MPI.MAX)
        memory = as_array(self._win.Shared_query(int(first[0]))[0], np.uint8)[: ends[-1]]
        advise_large_pages(memory)
        begins = [0, *ends[:-1]]
        hint, row_of, times, versions, table = (
            memory[begin : begin + size] for begin, size in zip(begins, sizes, strict=True)
        )
        self.slots = SlotTable(
            hint.view(np.int32),
            row_of.view(np.int64),
            times.view(np.int32),
            versions.view(np.int64),
            as_words(table.view(window.dtype).reshape(slots, *window.row_shape)),
            alone=trainers == 1,
            fence=self._win.Sync,
        )
        self._me = world.local_trainer if world.is_trainer else 0
        self._mine = new_slots(self._me * per_trainer, per_trainer if world.is_trainer else 0, ahead)
        if allocates:
            self.slots.hint[:] = 0
            self.slots.row_of[:] = -1
            self.slots.times[:] = 0
            self.slots.versions[:] = _NO_VERSION
        self.slots.fence()
        world.comm.Barrier()
        self.slots.fence()

    def refresh(self) -> bool:
        """Forget rows that were written since they were read; return whether rows may be kept and found now.

        They may not while this rank has written rows that the others do not know of yet.
        """
        rows = self.rows
        if rows.written:
            self.forget()
            return False
        if self.slots.versions[self._me] != rows.version:
            self.forget()
            self.slots.versions[self._me] = rows.version
            self.slots.fence()
        return True

    def forget(self) -> None:
        """Empty this trainer's slots."""
        if self.slots.versions[self._me] == _NO_VERSION:
            return
        self.slots.versions[self._me] = _NO_VERSION
        first = int(self._mine.first[0])
        used = slice(first, first + self.used)
        self.slots.row_of[used] = -1
        self.slots.times[used] += 1
        empty(self._mine)
        self.slots.fence()

    @property
    def table(self) -> Array:
        """The rows in all slots, [slots, *row_shape]; what nobody gave to a row is undefined. Not to be written to."""
        window = self.rows.window
        return self.slots.words.view(window.dtype).reshape(len(self.slots.words), *window.row_shape)

    @property
    def used(self) -> int:
        """How many slots this trainer has given to rows."""
        return int(self._mine.state[0])

    def forget_uses(self) -> None:
        """The minibatches that were announced will not come."""
        forget_uses(self._mine)

    def announce(self, rows: I64, fresh: Array, batch: int) -> None:
        """A minibatch that was sampled ahead will read ``rows`` (int64[n]), which counts when slots are given up.

        ``fresh`` (bool[n]): no minibatch that was announced reads the row before.
        """
        note_reads(rows, fresh, batch, self.slots.hint, self.slots.row_of, self._mine)

    def begin_choosing(self) -> None:
        """From now on :meth:`keep` gives up slots; who reads what they have is announced after this."""
        expect_none(self._mine)

    def find(self, rows: I64) -> tuple[I32, I32]:
        """Where ``rows`` (int64[n]) are.

        Returns:
            int32[n], the slot of each, -1 if there is none, and what :meth:`load` wants to know of them.
        """
        slots = np.empty(len(rows), np.int32)
        if self.per_trainer == 0:
            slots[:] = -1
            return slots, slots
        valid = self.slots.versions == self.rows.version
        if self.slots.alone:
            find_slots(rows, self.slots.hint, self.slots.row_of, valid, self.per_trainer, slots)
            return slots, slots
        seen = np.empty(len(rows), np.int32)
        note_times(rows, self.slots.hint, self.slots.times, slots, seen)
        self.slots.fence()  # a slot that is given away, and back, from here on has been given more often
        confirm_slots(rows, self.slots.row_of, valid, self.per_trainer, slots)
        self.slots.fence()
        return slots, seen

    def load(self, rows: I64, slots: I32, seen: I32, positions: I64, out: Array) -> I64:
        """Copy rows from their slots: ``out[positions[i]]`` for each ``slots[i] >= 0``.

        Args:
            rows: int64[n].
            slots: int32[n], as :meth:`find` returned it.
            seen: int32[n], what it returned besides.
            positions: int64[n].
            out: rows as words.

        Returns:
            int64[k], which of the rows were taken from their slots meanwhile: what was copied there is not they.
        """
        load_slots(self.slots.words, slots, positions, out.view(self.slots.words.dtype))
        if self.slots.alone:
            return np.empty(0, np.int64)
        self.slots.fence()
        found = np.flatnonzero(slots >= 0)
        where = slots[found]
        lost = np.empty(len(found) + 1, np.int64)
        count = changed(rows[found], where, seen[found], self.slots.row_of, self.slots.times, lost)
        return found[lost[:count]]

    def keep(self, rows: I64, slots: I32, positions: I64, out: Array, batch: int, begin: int, ring_next: I32) -> None:
        """After minibatch ``batch`` has read ``rows``: keep what is worth it, in place of what is not.

        Args:
            rows: int64[n], distinct or not.
            slots: int32[n], where each was found, -1 if in none.
            positions: int64[n], where in ``out`` they are.
            out: rows as words.
            batch: number of the minibatch.
            begin: position of its first row among the reads.
            ring_next: int32[reads], which minibatch reads a row next, by position (``kernels/upcoming.py``).
        """
        touch(rows, slots, batch, begin, ring_next, self._mine)
        given = np.empty(len(rows), np.int32)
        which = np.empty(len(rows), np.int64)
        count = admit(rows, slots, begin, ring_next, self.slots.row_of, self.slots.times, self._mine, given, which)
        if count:
            self._store(rows[which[:count]], given[:count], positions[which[:count]], out)

    def keep_all(self, rows: I64, slots: I32, positions: I64, out: Array) -> None:
        """Keep all of ``rows`` that had no slot, while there are free ones; arguments as of :meth:`keep`."""
        given = np.empty(len(rows), np.int32)
        which = np.empty(len(rows), np.int64)
        count = take_free(rows, slots, self.slots.hint, self.slots.times, self._mine, given, which)
        if count:
            self._store(rows[which[:count]], given[:count], positions[which[:count]], out)

    def fill(self, rows: I64, positions: I64, out: Array) -> None:
        """Keep ``rows`` (int64[n], distinct) for good in the next free slots, as many as there are.

        ``positions`` (int64[n]) says where they are in ``out``, as words.
        """
        begin = self.used
        count = min(len(rows), self.per_trainer - begin)
        self._mine.state[0] += count
        given = (self._mine.first[0] + np.arange(begin, begin + count)).astype(np.int32)
        self._store(rows[:count], given, positions[:count], out)

    def _store(self, rows: I64, given: I32, positions: I64, out: Array) -> None:
        self.slots.fence()  # nobody finds what was in these slots any more, before it is overwritten
        gather_rows(out.view(self.slots.words.dtype), positions, given.astype(np.int64), self.slots.words)
        self.slots.fence()
        publish(rows, given, self.slots.hint, self.slots.row_of)

    @collective("world.comm")
    def close(self) -> None:
        """Free the slots; a second call does nothing."""
        win, self._win = self._win, MPI.WIN_NULL
        if win:
            win.Unlock_all()
            win.Free()
