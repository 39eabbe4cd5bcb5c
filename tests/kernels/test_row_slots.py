"""Rows in slots, compared with a few lines of Python that know the whole trace."""

import numpy as np
import pytest

from mpigraph.arrays import I64
from mpigraph.kernels.row_slots import (
    NEVER,
    add_reads,
    admit,
    find_slots,
    forget_uses,
    new_slots,
    note_reads,
    publish,
    touch,
)


class Cache:
    """Slots of one trainer, through the kernels, as ``rows/row_cache.py`` calls them."""

    def __init__(self, num_rows: int, slots: int, ahead: int) -> None:
        self.hint, self.tags = np.zeros(num_rows, np.int32), np.zeros(slots, np.int64)
        self.mine = new_slots(0, slots, ahead)
        self.ring_next = np.zeros(1 << 14, np.int32)
        self.last = np.full(num_rows, -1, np.int64)
        self.end = 0
        self.firsts: dict[int, int] = {}
        self.made = 0

    @property
    def row_of(self) -> I64:
        """The row in each slot, -1 in an empty one; none is left behind half stored."""
        rows: I64 = (self.tags & (1 << 40) - 1) - 1
        assert (rows < len(self.hint)).all()
        return rows

    def announce(self, batch: int, rows: I64) -> None:
        fresh = np.empty(len(rows), np.bool_)
        pending = self.firsts.get(self.made + 1, self.end)
        add_reads(rows.astype(np.int32), batch, self.end, pending, self.last, self.ring_next, fresh)
        self.firsts[batch] = self.end
        self.end += len(rows)
        note_reads(rows, fresh, batch, self.hint, self.tags, self.mine)

    def read(self, batch: int, rows: I64) -> int:
        """Read rows, keep what is worth it, and return how many distinct ones were fetched."""
        slots = np.empty(len(rows), np.int32)
        seen = np.empty(len(rows), np.int64)
        find_slots(rows, self.hint, self.tags, np.ones(1, np.bool_), max(len(self.tags), 1), slots, seen)
        fetched = len(np.unique(rows[slots < 0]))
        first = self.firsts[batch]
        touch(rows, slots, batch, first, self.ring_next, self.mine)
        self.keep(rows, slots, first, self.ring_next)
        self.made = batch
        kept = self.row_of[self.row_of >= 0]
        assert len(np.unique(kept)) == len(kept)
        return fetched

    def keep(self, rows: I64, slots: I64, first: int, ring_next: I64 | None) -> None:
        given, which = np.empty(len(rows), np.int32), np.empty(len(rows), np.int64)
        count = admit(rows, slots, first, ring_next, self.hint, self.tags, self.mine, given, which)
        publish(rows[which[:count]], given[:count], self.tags)


def best_possible(trace: list[I64], slots: int) -> int:
    """Return the fetches of the best policy, which keeps the rows that are read soonest."""
    kept: set[int] = set()
    fetched = 0
    for batch, rows in enumerate(trace):
        fetched += len(set(rows.tolist()) - kept)
        next_use = {}
        for row in kept | set(rows.tolist()):
            later = [k for k in range(batch + 1, len(trace)) if row in trace[k]]
            next_use[row] = later[0] if later else len(trace)
        kept = set(sorted(next_use, key=lambda row: next_use[row])[:slots])
    return fetched


def random_trace(seed: int, batches: int, num_rows: int, most: int) -> list[I64]:
    rng = np.random.default_rng(seed)
    return [(num_rows * rng.random(rng.integers(0, most)) ** 3).astype(np.int64) for _ in range(batches)]


@pytest.mark.parametrize(("seed", "slots"), [(0, 1), (1, 2), (2, 7), (3, 30), (4, 100)])
def test_who_knows_all_minibatches_fetches_as_little_as_possible(seed: int, slots: int) -> None:
    trace = random_trace(seed, 25, 100, 40)
    cache = Cache(100, slots, len(trace))
    for batch, rows in enumerate(trace, 1):
        cache.announce(batch, rows)
    assert sum(cache.read(batch, rows) for batch, rows in enumerate(trace, 1)) == best_possible(trace, slots)


def test_more_minibatches_ahead_fetch_less() -> None:
    trace = random_trace(9, 60, 200, 60)

    def fetched(ahead: int) -> int:
        cache = Cache(200, 30, ahead)
        total = 0
        for batch in range(1, len(trace) + 1):
            known = len(cache.firsts)
            for other in range(known + 1, min(batch + ahead, len(trace)) + 1):
                cache.announce(other, trace[other - 1])
            total += cache.read(batch, trace[batch - 1])
        return total

    result = [fetched(ahead) for ahead in (0, 3, 60)]
    assert sum(len(np.unique(rows)) for rows in trace) > result[0] > result[1] > result[2]
    assert result[2] == best_possible(trace, 30)


def test_rows_that_nobody_is_known_to_read_stay_until_their_slot_is_wanted() -> None:
    cache = Cache(10, 4, 3)
    for batch, rows in enumerate([[0, 1, 2, 3], [0, 1, 2, 3], [4]], 1):
        cache.announce(batch, np.array(rows))
        assert cache.read(batch, np.array(rows)) == (len(rows) if batch != 2 else 0)
    assert set(cache.row_of) == {0, 1, 2, 3}  # all were read twice; 4 once
    cache.announce(4, np.array([5]))
    cache.announce(5, np.array([5]))
    cache.read(4, np.array([5]))
    assert 5 in cache.row_of  # is known to be read again


def test_what_was_announced_and_does_not_come_blocks_no_slot() -> None:
    cache = Cache(10, 2, 4)
    for batch in (1, 2, 3):
        cache.announce(batch, np.array([0, 1]))
    cache.read(1, np.array([0, 1]))
    forget_uses(cache.mine)
    assert (cache.mine.next_use == NEVER).all()
    cache.made = 3  # the minibatches 2 and 3 were left out
    for batch in (4, 5, 6):
        cache.announce(batch, np.array([2, 3]))
    assert [cache.read(batch, np.array([2, 3])) for batch in (4, 5, 6)] == [2, 0, 0]


def test_the_times_of_a_slot_overflow_into_nothing() -> None:
    cache = Cache(10, 1, 1)
    cache.tags[0] = -1 << 40
    for row in (3, 4):
        cache.mine = new_slots(0, 1, 1)
        cache.keep(np.array([row]), np.full(1, -1, np.int32), 0, None)
        assert cache.row_of.tolist() == [row]
    assert cache.tags[0] >> 40 == 1
