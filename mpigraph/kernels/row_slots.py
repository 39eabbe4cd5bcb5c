"""Slots that keep copies of rows: where a row is, which slot to give to a row, what is worth keeping.

Two tables tell where a row is: ``hint`` has for each row the slot that may have it (1 + slot; 0 for none), and
``row_of`` for each slot the row that it has (-1: none). A row is in a slot only if both agree, so hints may be stale.

What is kept is what is read soonest (Belady, "A study of replacement algorithms for a virtual-storage computer", IBM
Systems Journal 5(2), 1966): a row takes the slot of one that is read later, and none if all are read earlier. Of rows
that nobody is known to read again those that were read often stay longest (CLOCK: Corbato, "A paging experiment with
the Multics system", 1968).
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from mpigraph.arrays import I32, I64, U8, Mask
from mpigraph.kernels.prefetch_hint import prefetch
from mpigraph.kernels.upcoming import AGAIN, NEVER

__all__ = [
    "Slots",
    "admit",
    "changed",
    "confirm_slots",
    "empty",
    "expect_none",
    "find_slots",
    "forget_uses",
    "new_slots",
    "note_reads",
    "note_times",
    "publish",
    "take_free",
    "touch",
]

_AHEAD = 16  # rows between a prefetch and its use
_BLOCK = 64  # rows whose slots are asked for before the first of them is looked at
_TURNS = 8  # slots that are looked at for a row that is read again
_MOST_USES = 3  # that are counted

_USED, _HEAD, _IDLE, _LATEST = range(4)  # words of Slots.state


class Slots(NamedTuple):
    """The slots of one trainer, and when what they have is read next.

    A slot whose row is to be read is on the list of the minibatch that reads it next; the list ends with that
    minibatch. So a slot is on one list at most, and leaves it when its row is read or given up.

    Attributes:
        first: int64[1], number of the first of them among the slots of all trainers of the node.
        next_use: int32[s], the minibatch that reads the row of each slot next, or ``NEVER``.
        following: int32[s], the next slot on the same list, -1 at its end.
        lists: int32[m], the first slot on the list of minibatch b at ``b % m``, -1 if it is empty. No more than m
            minibatches are ahead.
        uses: uint8[s], how often the row was read, up to a few.
        idle: int32[s], a ring of slots that were not to be read again when they were put there.
        is_idle: bool[s], whether a slot is in the ring.
        state: int64[4]: slots that were used so far; begin of the ring and its length; no list of a later minibatch
            than this has slots.
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
    """Empty slots ``first .. first + count - 1``, for minibatches of which ``ahead`` are known at most."""
    return Slots(
        first=np.array([first], np.int64),
        next_use=np.full(count, NEVER, np.int32),
        following=np.zeros(count, np.int32),
        lists=np.full(ahead + 2, -1, np.int32),
        uses=np.zeros(count, np.uint8),
        idle=np.zeros(count, np.int32),
        is_idle=np.zeros(count, np.bool_),
        state=np.array([0, 0, 0, -1], np.int64),
    )


@njit(nogil=True, cache=True)
def empty(mine: Slots) -> None:
    """Forget what the slots have, and when it is read."""
    used = mine.state[_USED]
    mine.next_use[:used] = NEVER
    mine.uses[:used] = 0
    mine.is_idle[:used] = False
    mine.lists[:] = -1
    mine.state[:] = 0
    mine.state[_LATEST] = -1


@njit(nogil=True, cache=True)
def find_slots(rows: I64, hint: I32, row_of: I64, valid: Mask, per_trainer: int, slots: I32) -> int:
    """Fill int32[n], the slot that has each row, -1 if none has; return how many have none.

    Args:
        rows: int64[n].
        hint: int32[all rows].
        row_of: int64[slots].
        valid: bool[trainers], whether what is in each trainer's slots may be read.
        per_trainer: slots of each.
        slots: int32[n], filled.
    """
    n = len(rows)
    missing = 0
    for begin in range(0, n, _BLOCK):
        end = min(begin + _BLOCK, n)
        for i in range(begin, end):
            if i + _AHEAD < n:
                prefetch(hint, rows[i + _AHEAD])
            slot = hint[rows[i]] - 1
            slots[i] = slot
            if slot >= 0:
                prefetch(row_of, np.int64(slot))
        missing += confirm_slots(rows[begin:end], row_of, valid, per_trainer, slots[begin:end])
    return missing


@njit(nogil=True, cache=True)
def note_times(rows: I64, hint: I32, times: I32, slots: I32, seen: I32) -> None:
    """Fill int32[n], the slot that may have each row, -1 if none, and ``times`` of it, before that is confirmed."""
    n = len(rows)
    for i in range(n):
        if i + _AHEAD < n:
            prefetch(hint, rows[i + _AHEAD])
        slot = hint[rows[i]] - 1
        slots[i] = slot
        if slot >= 0:
            prefetch(times, np.int64(slot))
    for i in range(n):
        seen[i] = times[max(slots[i], 0)]


@njit(nogil=True, cache=True)
def confirm_slots(rows: I64, row_of: I64, valid: Mask, per_trainer: int, slots: I32) -> int:
    """Put -1 in place of ``slots`` that do not have their row; return how many have none. See :func:`find_slots`."""
    n = len(rows)
    missing = 0
    for i in range(n):
        slot = int(slots[i])
        if slot >= 0 and (row_of[slot] != rows[i] or not valid[slot // per_trainer]):
            slots[i] = slot = -1
        missing += slot < 0
    return missing


@njit(nogil=True, cache=True)
def changed(rows: I64, slots: I32, seen: I32, row_of: I64, times: I32, positions: I64) -> int:
    """List which rows were read from a slot that was given to another row meanwhile; return how many.

    Args:
        rows: int64[n].
        slots: int32[n], where they were found.
        seen: int32[n], ``times[slots]`` from before they were confirmed to have the rows.
        row_of: int64[slots].
        times: int32[slots], how often each slot was given to a row.
        positions: int64[n + 1], filled.
    """
    count = 0
    for i in range(len(rows)):
        positions[count] = i
        count += times[slots[i]] != seen[i] or row_of[slots[i]] != rows[i]
    return count


@njit(nogil=True, cache=True)
def note_reads(rows: I64, fresh: Mask, batch: int, hint: I32, row_of: I64, mine: Slots) -> None:
    """A minibatch that was sampled now reads ``rows``: note it at those slots which nobody was known to read.

    ``fresh`` (bool[n]): no other minibatch that was sampled reads the row before.
    """
    first, count = mine.first[0], len(mine.next_use)
    n = len(rows)
    for i in range(n):
        if i + _AHEAD < n:
            prefetch(hint, rows[i + _AHEAD])
        if fresh[i]:
            slot = hint[rows[i]] - 1 - first
            if 0 <= slot and slot < count and row_of[first + slot] == rows[i] and mine.next_use[slot] == NEVER:
                _expect(slot, batch, mine)


@njit(nogil=True, cache=True)
def touch(rows: I64, slots: I32, batch: int, begin: int, ring_next: I32, mine: Slots) -> None:
    """A minibatch has read ``rows`` from ``slots``; the ring says from position ``begin`` on which ones come next."""
    first, count, mask = mine.first[0], len(mine.next_use), len(ring_next) - 1
    mine.lists[batch % len(mine.lists)] = -1
    for i in range(len(rows)):
        slot = slots[i] - first
        next_use = ring_next[(begin + i) & mask]
        if 0 <= slot and slot < count and next_use != AGAIN:
            mine.uses[slot] = min(mine.uses[slot] + 1, _MOST_USES)
            _expect(slot, next_use, mine)


@njit(nogil=True, cache=True)
def admit(
    rows: I64, slots: I32, begin: int, ring_next: I32, row_of: I64, times: I32, mine: Slots, given: I32, which: I64
) -> int:
    """Give slots to rows that had none and are worth one more than what is there; return how many got one.

    Call it after :func:`touch`, then copy the rows, then :func:`publish`. A slot may be given twice: the last counts.

    Args:
        rows: int64[n], what a minibatch has read.
        slots: int32[n], from where; only those with -1 are looked at.
        begin: position of the first one.
        ring_next: see :func:`touch`.
        row_of: int64[slots].
        times: int32[slots], how often each slot was given to a row; counted up.
        mine: this trainer's slots.
        given: int32[n], the first ones filled with slots.
        which: int64[n], filled with the index of the row that each is for.
    """
    first, mask = mine.first[0], len(ring_next) - 1
    count = 0
    for i in range(len(rows)):
        next_use = ring_next[(begin + i) & mask]
        if slots[i] >= 0 or next_use == AGAIN:
            continue
        slot = _slot_for(next_use, mine)
        if slot < 0:
            continue
        row_of[first + slot] = -1
        times[first + slot] += 1
        mine.uses[slot] = 0
        _expect(slot, next_use, mine)
        given[count] = first + slot
        which[count] = i
        count += 1
    return count


@njit(nogil=True, cache=True)
def take_free(rows: I64, slots: I32, hint: I32, times: I32, mine: Slots, given: I32, which: I64) -> int:
    """Give each row that has no slot a free one, equal rows one; return how many got one.

    There must be enough of them. Copy the rows then, then :func:`publish`. Arguments as of :func:`admit`; ``hint`` is
    set.
    """
    begin = mine.state[_USED]
    free = mine.first[0] + begin
    count = 0
    for i in range(len(rows)):
        if slots[i] >= 0:
            continue
        there = hint[rows[i]] - 1 - free
        if 0 <= there and there < count and rows[which[there]] == rows[i]:
            continue
        times[free + count] += 1
        hint[rows[i]] = free + count + 1
        given[count] = free + count
        which[count] = i
        count += 1
    mine.state[_USED] = begin + count
    return count


@njit(nogil=True, cache=True)
def expect_none(mine: Slots) -> None:
    """Nobody is known to read what the slots have that were used so far: note so."""
    for slot in range(mine.state[_USED]):
        _expect(slot, NEVER, mine)


@njit(nogil=True, cache=True)
def publish(rows: I64, given: I32, hint: I32, row_of: I64) -> None:
    """Tell that ``rows`` are in the slots ``given`` now; of two in one slot, the last."""
    for i in range(len(rows)):
        row_of[given[i]] = rows[i]
        hint[rows[i]] = given[i] + 1


@njit(nogil=True, cache=True)
def forget_uses(mine: Slots) -> None:
    """What was to be read will not be, or not be told of: the rows stay, and nobody is known to read them."""
    mine.lists[:] = -1
    mine.state[_LATEST] = -1
    for slot in range(mine.state[_USED]):
        if mine.next_use[slot] != NEVER:
            _expect(slot, NEVER, mine)


@njit(nogil=True, cache=True)
def _expect(slot: int, next_use: int, mine: Slots) -> None:
    """Note when the row of a slot, which is on no list that counts, is read next."""
    state = mine.state
    mine.next_use[slot] = next_use
    if next_use != NEVER:
        at = next_use % len(mine.lists)
        mine.following[slot] = mine.lists[at]
        mine.lists[at] = slot
        state[_LATEST] = max(state[_LATEST], next_use)
    elif not mine.is_idle[slot]:
        mine.idle[(state[_HEAD] + state[_IDLE]) % len(mine.idle)] = slot
        mine.is_idle[slot] = True
        state[_IDLE] += 1


@njit(nogil=True, cache=True)
def _slot_for(next_use: int, mine: Slots) -> int:
    """A slot for a row that is read at ``next_use``, which is on no list; -1 if what they have is worth more."""
    state = mine.state
    if state[_USED] < len(mine.next_use):
        state[_USED] += 1
        return int(state[_USED] - 1)
    slot = _idle_slot(next_use != NEVER, mine)
    if slot >= 0:
        return slot
    while state[_LATEST] > next_use:
        at = state[_LATEST] % len(mine.lists)
        slot = int(mine.lists[at])
        if slot >= 0:
            mine.lists[at] = mine.following[slot]
            return slot
        state[_LATEST] -= 1
    return -1


@njit(nogil=True, cache=True)
def _idle_slot(surely: bool, mine: Slots) -> int:
    """A slot whose row nobody is known to read again; -1 if there is none.

    One whose row was read often is spared: for a row that surely is read again a few more are looked at, for another
    one none.
    """
    state = mine.state
    turns = _TURNS if surely else 1
    for turn in range(turns):
        while True:
            if state[_IDLE] == 0:
                return -1
            slot = int(mine.idle[state[_HEAD]])
            state[_HEAD] = (state[_HEAD] + 1) % len(mine.idle)
            state[_IDLE] -= 1
            mine.is_idle[slot] = False
            if mine.next_use[slot] == NEVER:
                break
        if mine.uses[slot] == 0 or (surely and turn == turns - 1):
            return slot
        mine.uses[slot] -= 1
        _expect(slot, NEVER, mine)  # behind the others
    return -1
