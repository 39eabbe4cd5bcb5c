"""Reads that are linked by tables of all rows, and rows beside missing ones, compared with a few lines of Python."""

import numpy as np
import pytest

from mpigraph.kernels.upcoming import AGAIN, NEVER, add_reads, add_reads_of, advance, with_neighbours

ROWS, RING = 30, 64  # a ring that is used many times over
DRAWS = np.random.default_rng(0)


def test_both_ways_to_link_reads_agree_and_the_next_minibatch_of_each_row_is_known() -> None:
    ring, same_ring = (np.full(RING, NEVER, np.int32) for _ in range(2))
    last, soon, same_last = np.full(ROWS, -1), np.full(ROWS, -1, np.int32), np.zeros(ROWS, np.int32)
    ahead: list[tuple[int, int, np.ndarray]] = []  # number, first position, rows
    end = 0
    for batch in range(1, 300):
        while ahead and (len(ahead) > 3 or DRAWS.random() < 0.3):
            _, first, rows = ahead.pop(0)
            advance(rows, first, same_ring, soon)
        if DRAWS.random() < 0.05:
            ahead.clear()  # the others will not come
        rows = DRAWS.integers(0, ROWS, DRAWS.integers(0, 12))
        fresh, same_fresh = np.empty((2, len(rows)), np.bool_)
        ahead.append((batch, end, rows))
        add_reads(rows.astype(np.int32), batch, end, ahead[0][1], last, ring, fresh)
        add_reads_of(rows, batch, end, ahead[0][0], soon, same_last, same_ring, same_fresh)
        assert np.array_equal(fresh, same_fresh)
        end += len(rows)
        for number, first, rows in ahead:
            at = np.arange(first, first + len(rows)) % RING
            assert np.array_equal(ring[at], same_ring[at])
            for i, row in enumerate(rows.tolist()):
                later = [n for n, _, others in ahead if n > number and row in others]
                assert same_ring[at[i]] == (AGAIN if row in rows[i + 1 :] else min(later, default=NEVER))
        for row in range(ROWS):
            reads = [number for number, _, rows in ahead if row in rows]
            assert soon[row] == min(reads) if reads else soon[row] < ahead[0][0]


@pytest.mark.parametrize("reach", [0, 1, 4, 100])
@pytest.mark.parametrize("most", [0, 3, 200])
def test_rows_beside_missing_ones(reach: int, most: int) -> None:
    soon = DRAWS.integers(-1, 10, 100).astype(np.int32)
    hint = DRAWS.integers(0, 6, 100).astype(np.int32)
    row_of = DRAWS.choice(np.flatnonzero(hint), 5)
    cached = (hint > 0) & (row_of[np.maximum(hint, 1) - 1] == np.arange(100))
    for count in (0, 1, 7, 30):
        rows = np.sort(DRAWS.choice(np.flatnonzero(~cached), count, replace=False))
        merged, at = np.empty(len(rows) + most, np.int64), np.empty(len(rows), np.int64)
        beside = np.empty(most, np.int64)
        length, added = with_neighbours(rows, reach, 3, 8, soon, hint, row_of, merged, at, beside)
        merged, beside = merged[:length], beside[:added]
        in_reach = np.abs(np.arange(100)[:, None] - rows).min(1, initial=101) <= reach
        wanted = np.flatnonzero(in_reach & (soon > 3) & (soon < 8) & ~cached & ~np.isin(np.arange(100), rows))
        assert np.array_equal(merged[at], rows) and np.array_equal(merged[beside], wanted[:most])
        assert (np.diff(merged) > 0).all() and length == len(rows) + added
