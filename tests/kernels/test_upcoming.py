"""The next minibatch that reads each row, compared with a few lines of Python."""

import numpy as np

from mpigraph.kernels.row_slots import AGAIN, NEVER, add_reads

ROWS, RING = 30, 64  # a ring that is used many times over
DRAWS = np.random.default_rng(0)


def test_the_next_minibatch_of_each_row_is_known() -> None:
    ring, last = np.full(RING, NEVER, np.int32), np.full(ROWS, -1)
    ahead: list[tuple[int, int, np.ndarray]] = []  # number, first position, rows
    end = 0
    for batch in range(1, 300):
        while ahead and (len(ahead) > 3 or DRAWS.random() < 0.3):
            ahead.pop(0)
        if DRAWS.random() < 0.05:
            ahead.clear()  # the others will not come
        rows = DRAWS.integers(0, ROWS, DRAWS.integers(0, 12))
        fresh = np.empty(len(rows), np.bool_)
        known = {row for _, _, others in ahead for row in others.tolist()}
        ahead.append((batch, end, rows))
        add_reads(rows.astype(np.int32), batch, end, ahead[0][1], last, ring, fresh)
        first_of = [row not in known and row not in rows[:i] for i, row in enumerate(rows.tolist())]
        assert fresh.tolist() == first_of
        end += len(rows)
        for number, first, rows in ahead:
            at = np.arange(first, first + len(rows)) % RING
            for i, row in enumerate(rows.tolist()):
                later = [n for n, _, others in ahead if n > number and row in others]
                assert ring[at[i]] == (AGAIN if row in rows[i + 1 :] else min(later, default=NEVER))
