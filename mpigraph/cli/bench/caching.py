"""What a cache of far rows saves: counted behind a loader, and simulated for caches of other sizes from a trace."""

from collections.abc import Sequence

import numpy as np

from mpigraph.arrays import I64
from mpigraph.kernels.row_slots import admit, find_slots, new_slots, note_reads, publish, touch
from mpigraph.kernels.upcoming import NEVER, add_reads

__all__ = ["MOST_FAR_ROWS", "MOST_MINIBATCHES", "SIZES", "fetched", "figures_of"]

SIZES = (5, 10, 20, 50)
"""Sizes of caches that are simulated, in percent of the rows that are read."""
MOST_MINIBATCHES = 100
"""How many minibatches of a trainer are simulated."""
MOST_FAR_ROWS = 5_000_000
"""How many far rows they read together, so that a simulation takes some 0.5 GB and seconds."""


def figures_of(trace: Sequence[I64]) -> dict[str, float | None]:
    """The figures of the section "cache" of one trainer.

    Args:
        trace: int64[n] for each minibatch, the far rows that it reads.
    """
    asked = sum(len(rows) for rows in trace)
    if not asked:
        return dict.fromkeys(["cache_far", "cache_floor", *(f"cache_{size}" for size in SIZES)])
    rows, numbers = np.unique(np.concatenate(trace), return_inverse=True)
    ends = np.cumsum([len(some) for some in trace])[:-1]
    numbered = np.split(numbers.astype(np.int64), ends)
    found: dict[str, float | None] = {"cache_far": asked / len(trace), "cache_floor": 100 * len(rows) / asked}
    for size in SIZES:
        found[f"cache_{size}"] = 100 * fetched(numbered, len(rows), len(rows) * size // 100) / asked
    return found


def fetched(trace: Sequence[I64], num_rows: int, slots: int) -> int:
    """How many rows are fetched through a cache that knows the whole trace, one trainer's, and begins empty.

    Args:
        trace: int64[n] for each minibatch, the rows that it reads, in ``[0, num_rows)``.
        num_rows: how many rows there are.
        slots: how many the cache keeps.
    """
    if slots == 0:
        return sum(len(np.unique(rows)) for rows in trace)
    mine = new_slots(0, slots, len(trace))
    hint = np.zeros(num_rows, np.int32)
    row_of = np.full(slots, -1, np.int64)
    times = np.zeros(slots, np.int32)
    last = np.full(num_rows, -1, np.int64)
    begins = np.concatenate([[0], np.cumsum([len(rows) for rows in trace])]).tolist()
    ring_next = np.full(1 << max(begins[-1], 1).bit_length(), NEVER, np.int32)
    for batch, rows in enumerate(trace):
        fresh = np.empty(len(rows), np.bool_)
        add_reads(rows.astype(np.int32), batch, begins[batch], 0, last, ring_next, fresh)
        note_reads(rows, fresh, batch, hint, row_of, mine)
    total = 0
    for batch, rows in enumerate(trace):
        found = np.empty(len(rows), np.int32)
        find_slots(rows, hint, row_of, np.ones(1, np.bool_), slots, found)
        total += len(np.unique(rows[found < 0]))
        touch(rows, found, batch, begins[batch], ring_next, mine)
        given = np.empty(len(rows), np.int32)
        which = np.empty(len(rows), np.int64)
        count = admit(rows, found, begins[batch], ring_next, row_of, times, mine, given, which)
        publish(rows[which[:count]], given[:count], hint, row_of)
    return total
