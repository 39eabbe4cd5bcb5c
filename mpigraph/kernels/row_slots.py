"""Slots that keep copies of rows: where a row is, which to give to a row, and the next read of each row.

Two tables tell where a row is: ``hint`` (int32[all rows]) has for each row the slot that may have it (1 + slot; 0 for
none), and ``tags`` (int64[slots]) for each slot a word: the row that it has (1 + row; 0 for none), a bit while that row
is still being copied, and the times that the slot was given to a row. A row is in a slot only if both agree, so hints
may be stale; its copy is sound if the tag is the same before and after.

The slots keep the rows that are read soonest (Belady, "A study of replacement algorithms for a virtual-storage
computer", IBM Systems Journal 5(2), 1966): a row takes the slot of a row that is read later, and none if all are read
earlier. Of rows without a known next read, those that were read often stay longest (CLOCK: Corbato, "A paging
experiment with the Multics system", 1968).

The reads of the minibatches that were sampled ahead lie one after the other in a ring; a *position* counts them and
never falls. Each read knows the minibatch that reads the same row next, or :data:`NEVER` as long as none was sampled.
"""

from typing import NamedTuple

import numpy as np

from mpigraph.arrays import I32, I64, U8, Mask
from mpigraph.kernels.cache import njit
from mpigraph.kernels.intrinsics import prefetch

NEVER = 2**31 - 1
"""In place of the number of a minibatch: no sampled one reads the row again."""
AGAIN = -1
"""In place of the number of a minibatch: the same one reads the row again."""

_AHEAD = 16  # rows between a prefetch and its use


@njit()
def split_local(ids: I64, begins: I64, ends: I64, local: I64, remote: I64) -> int:
    """List the positions of ``ids`` (int64[n]) inside the ranges ``[begins[k], ends[k])``, and of those outside.

    Returns:
        How many are inside: ``local`` (int64[n + 1]) holds them, and ``remote`` (the same) the others.
    """
    count = 0
    for i in range(len(ids)):
        inside = False
        for k in range(len(begins)):  # mostly one; without a branch on where the id lies
            inside |= bool(np.uint64(ids[i] - begins[k]) < np.uint64(ends[k] - begins[k]))
        local[count] = i
        remote[i - count] = i
        count += inside
    return count


@njit()
def add_reads(numbers: I32, batch: int, first: int, pending: int, last: I64, ring_next: I32, fresh: Mask) -> None:
    """Append the reads of a minibatch, and link each to the read before it of the same row.

    Args:
        numbers: int32[n], the rows, by a number that is the same for the same row.
        batch: the number of the minibatch.
        first: position of its first read.
        pending: reads before this position are done.
        last: int64[rows], the position of the last read of each row, below 0 without one.
        ring_next: int32[2**k], by position modulo its length the minibatch that reads the row next.
        fresh: bool[n], filled: whether no outstanding read of the row comes before.
    """
    mask = len(ring_next) - 1
    n = len(numbers)
    for i in range(n):
        if i + _AHEAD < n:
            prefetch(last, np.int64(numbers[i + _AHEAD]))
        before = last[numbers[i]]
        fresh[i] = before < pending
        if before >= first:
            ring_next[before & mask] = AGAIN
        elif before >= pending:
            ring_next[before & mask] = batch
        last[numbers[i]] = first + i
        ring_next[(first + i) & mask] = NEVER


_ROW = (1 << 40) - 1  # the bits of a tag that tell the row; those above count, and overflow
_PENDING = 1 << 39  # one of them: the row's bytes are not there yet

_BLOCK = 64  # rows whose slots are prefetched before the first is used
_TURNS = 8  # slots that are tried for a row that is read again
_MOST_USES = 3  # that are counted

_USED, _HEAD, _IDLE, _LATEST = range(4)  # words of Slots.state


class Slots(NamedTuple):
    """The slots of one trainer, and when their rows are read next.

    A slot whose row is to be read is on the list of the minibatch that reads it next; the list ends with that
    minibatch. So a slot is on one list at most, and leaves it when its row is read or given up.

    Attributes:
        first: int64[1], number of the first slot among the slots of all trainers of the node.
        next_use: int32[s], the minibatch that reads the row of each slot next, or ``NEVER``; 0 in slots never used.
        following: int32[s], the next slot on the same list, -1 at its end.
        lists: int32[2**k], the first slot on the list of minibatch b at b modulo the length, -1 if it is empty. No more
            minibatches than that are ahead.
        uses: uint8[s], how often the row was read, up to a few.
        idle: int32[s], a ring of slots whose rows had no known next read when they were added.
        is_idle: bool[s], whether a slot is in the ring.
        state: int64[4]: slots used so far; begin of the ring and its length; the latest minibatch whose list has slots.
    """

    first: I64
    next_use: I32
    following: I32
    lists: I32
    uses: U8
    idle: I32
    is_idle: Mask
    state: I64


def new_slots(first: int, count: int, ahead: int) -> Slots:
    """Return empty slots ``first .. first + count - 1``, for at most ``ahead`` known minibatches."""
    return Slots(
        first=np.array([first], np.int64),
        next_use=np.zeros(count, np.int32),  # untouched, like the others: unused slots take no memory
        following=np.zeros(count, np.int32),
        lists=np.full(1 << (ahead + 1).bit_length(), -1, np.int32),
        uses=np.zeros(count, np.uint8),
        idle=np.zeros(count, np.int32),
        is_idle=np.zeros(count, np.bool_),
        state=np.array([0, 0, 0, -1], np.int64),
    )


@njit()
def empty(own: Slots) -> None:
    """Empty the slots."""
    used = own.state[_USED]
    own.next_use[:used] = NEVER
    own.uses[:used] = 0
    own.is_idle[:used] = False
    own.lists[:] = -1
    own.state[:] = 0
    own.state[_LATEST] = -1


@njit()
def find_slots(rows: I64, hint: I32, tags: I64, valid: Mask, per_trainer: int, slots: I32, seen: I64) -> None:
    """Fill ``slots`` (int32[n]) with those of ``rows`` (int64[n]), -1 for a row without one; ``seen`` with their tags.

    ``valid`` is bool[trainers], whether the ``per_trainer`` slots of each may be read.
    """
    n = len(rows)
    for begin in range(0, n, _BLOCK):
        end = min(begin + _BLOCK, n)
        for i in range(begin, end):
            if i + _AHEAD < n:
                prefetch(hint, rows[i + _AHEAD])
            slots[i] = hint[rows[i]] - 1
            if slots[i] >= 0:
                prefetch(tags, np.int64(slots[i]))
        for i in range(begin, end):
            slot = int(slots[i])
            if slot >= 0:
                seen[i] = tags[slot]
                if seen[i] & _ROW != rows[i] + 1 or not valid[slot // per_trainer]:
                    slots[i] = -1


@njit()
def drop_lost(tags: I64, slots: I32, seen: I64) -> None:
    """Put -1 in place of ``slots`` (int32[n]) whose tags are not those that were ``seen`` (int64[n]) any more."""
    for i in range(len(slots)):
        if slots[i] >= 0 and tags[slots[i]] != seen[i]:
            slots[i] = -1


@njit()
def clear_tags(tags: I64, begin: int, end: int) -> None:
    """Note that the slots from ``begin`` to before ``end`` have no rows."""
    for slot in range(begin, end):
        tags[slot] = (tags[slot] | _ROW) + 1


@njit()
def note_reads(rows: I64, fresh: Mask, batch: int, hint: I32, tags: I64, own: Slots) -> None:
    """Note that a new minibatch will read ``rows``, at the slots of rows without a known next read.

    ``fresh`` (bool[n]): no earlier known minibatch reads the row.
    """
    first, count = own.first[0], len(own.next_use)
    n = len(rows)
    for begin in range(0, n, _BLOCK):
        end = min(begin + _BLOCK, n)
        for i in range(begin, end):
            if i + _AHEAD < n:
                prefetch(hint, rows[i + _AHEAD])
            slot = hint[rows[i]] - 1 - first
            if fresh[i] and 0 <= slot and slot < count:
                prefetch(tags, first + slot)
                prefetch(own.next_use, slot)
        for i in range(begin, end):
            slot = hint[rows[i]] - 1 - first
            if (
                fresh[i]
                and 0 <= slot
                and slot < count
                and tags[first + slot] & _ROW == rows[i] + 1
                and own.next_use[slot] == NEVER
            ):
                _expect(slot, batch, own)


@njit()
def touch(rows: I64, slots: I32, batch: int, begin: int, ring_next: I32, own: Slots) -> None:
    """Note that a minibatch has read ``rows`` from ``slots``; the ring has their next reads from ``begin`` on.

    A slot may still be on the list of a minibatch whose read failed: it stays on that one.
    """
    first, count, mask = own.first[0], len(own.next_use), len(ring_next) - 1
    at = batch & (len(own.lists) - 1)
    listed = int(own.lists[at])
    own.lists[at] = -1
    while listed >= 0:  # also those whose row was read from another trainer's slot
        _expect(listed, NEVER, own)
        listed = int(own.following[listed])
    for i in range(len(rows)):
        slot = slots[min(i + _AHEAD, len(rows) - 1)] - first
        if 0 <= slot and slot < count:
            prefetch(own.next_use, slot)
            prefetch(own.following, slot)
            prefetch(own.uses, slot)
        slot = slots[i] - first
        next_use = ring_next[(begin + i) & mask]
        if 0 <= slot and slot < count and next_use != AGAIN:
            own.uses[slot] = min(own.uses[slot] + 1, _MOST_USES)
            if own.next_use[slot] == NEVER:
                _expect(slot, next_use, own)


@njit()
def admit(
    rows: I64,
    slots: I32,
    begin: int,
    ring_next: I32 | None,
    hint: I32,
    tags: I64,
    own: Slots,
    assigned: I32,
    which: I64,
) -> int:
    """Assign slots to rows that have none and are read sooner than the present rows; return their number.

    Call it after :func:`touch`, then copy the rows in this order, then :func:`publish`. A slot may be assigned twice:
    the last row stays in it.

    Args:
        rows: int64[n], the rows that a minibatch has read.
        slots: int32[n], their slots; only rows with -1 are considered.
        begin: position of the first read.
        ring_next: int32[2**k], see :func:`touch`; None if no next reads are known: then there must be free slots.
        hint: see above.
        tags: see above.
        own: this trainer's slots.
        assigned: int32[n], filled from the front with slots.
        which: int64[n], filled with the index of the row of each.
    """
    first = own.first[0]
    count = 0
    for i in range(len(rows)):
        if slots[i] >= 0:
            continue
        next_use = NEVER
        if ring_next is not None:
            next_use = ring_next[(begin + i) & (len(ring_next) - 1)]
            if next_use == AGAIN:
                continue
        there = hint[rows[i]] - 1 - first
        if 0 <= there and there < len(own.next_use) and tags[first + there] & _ROW == rows[i] + 1 + _PENDING:
            continue  # an equal row came before
        slot = _slot_for(next_use, own)
        if slot < 0:
            continue
        own.uses[slot] = 0
        _expect(slot, next_use, own)
        slot += first
        tags[slot] = (tags[slot] | _ROW) + 1 + _PENDING + rows[i] + 1
        hint[rows[i]] = slot + 1
        assigned[count] = slot
        which[count] = i
        count += 1
    return count


@njit()
def publish(rows: I64, assigned: I32, tags: I64) -> None:
    """Publish that ``rows`` are in the slots ``assigned``, unless a later row was assigned the slot."""
    for i in range(len(rows)):
        if tags[assigned[i]] & _ROW == rows[i] + 1 + _PENDING:
            tags[assigned[i]] -= _PENDING


@njit()
def forget_uses(own: Slots) -> None:
    """Forget all known next reads; the rows stay."""
    own.lists[:] = -1
    own.state[_LATEST] = -1
    for slot in range(own.state[_USED]):
        if own.next_use[slot] != NEVER:
            _expect(slot, NEVER, own)


@njit()
def _in_ring(at: int, own: Slots) -> int:
    """Return ``at``, less than two lengths of the ring, modulo its length; a division takes longer."""
    return at if at < len(own.idle) else at - len(own.idle)


@njit()
def _expect(slot: int, next_use: int, own: Slots) -> None:
    """Note the next read of a slot that is on no list."""
    state = own.state
    own.next_use[slot] = next_use
    if next_use != NEVER:
        at = next_use & (len(own.lists) - 1)
        own.following[slot] = own.lists[at]
        own.lists[at] = slot
        state[_LATEST] = max(state[_LATEST], next_use)
    elif not own.is_idle[slot]:
        own.idle[_in_ring(state[_HEAD] + state[_IDLE], own)] = slot
        own.is_idle[slot] = True
        state[_IDLE] += 1


@njit()
def _slot_for(next_use: int, own: Slots) -> int:
    """Return a slot, on no list, for a row that is read at ``next_use``; -1 if all present rows are read sooner."""
    state = own.state
    if state[_USED] < len(own.next_use):
        state[_USED] += 1
        return int(state[_USED] - 1)
    slot = _idle_slot(next_use != NEVER, own)
    if slot >= 0:
        return slot
    while state[_LATEST] > next_use:
        at = state[_LATEST] & (len(own.lists) - 1)
        slot = int(own.lists[at])
        if slot >= 0:
            own.lists[at] = own.following[slot]
            return slot
        state[_LATEST] -= 1
    return -1


@njit()
def _idle_slot(surely: bool, own: Slots) -> int:
    """Return a slot whose row has no known next read, or -1; rows that were read often are spared.

    For a row that is ``surely`` read again a few more slots are tried, else only one.
    """
    state = own.state
    turns = _TURNS if surely else 1
    for turn in range(turns):
        while True:
            if state[_IDLE] == 0:
                return -1
            coming = np.int64(own.idle[_in_ring(state[_HEAD] + min(_AHEAD, state[_IDLE]), own)])
            prefetch(own.next_use, coming)
            prefetch(own.is_idle, coming)
            prefetch(own.uses, coming)
            slot = int(own.idle[state[_HEAD]])
            state[_HEAD] = _in_ring(state[_HEAD] + 1, own)
            state[_IDLE] -= 1
            own.is_idle[slot] = False
            if own.next_use[slot] == NEVER:
                break
        if own.uses[slot] == 0 or (surely and turn == turns - 1):
            return slot
        own.uses[slot] -= 1
        _expect(slot, NEVER, own)  # behind the others
    return -1
