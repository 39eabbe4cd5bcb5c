"""Compiled loops over plain arrays; :func:`compile_missing` compiles those of training ahead of time."""

from typing import Any

import numpy as np

from mpigraph.kernels import cache, row_ops, row_slots
from mpigraph.kernels.compact import LocalIds
from mpigraph.kernels.csr import bad_source, falls, find_in_rows, hash_of_degrees, hash_of_sources
from mpigraph.kernels.flat import drop, relu_drop, relu_drop_backward, round_to_bfloat16, widen
from mpigraph.kernels.rng import combine, fingerprint, hash_each, hash_of_sequence, sum_of_hashes, told_apart
from mpigraph.kernels.row_slots import add_reads, split_local
from mpigraph.kernels.sample import (
    Candidates,
    Destinations,
    choose_uniform,
    copy_neighbours,
    count_uniform,
    shorten_rows,
    step_over,
)

__all__ = ["compile_missing", "load_compiler", "warm_up"]


def compile_missing() -> None:
    """Compile the kernels of the usual path unless all are in the cache; a call then loads the one that it needs."""
    if not cache.is_complete():
        warm_up()
        cache.note_complete()


def load_compiler() -> None:
    """Call a kernel: numba imports the rest of itself at a process's first call, by the main thread here.

    A process that is forked while another thread imports waits for that thread's locks for ever.
    """
    fingerprint(np.zeros(1, np.int64))


def warm_up() -> None:
    """Run each kernel of the usual path once on tiny arrays, so that training never waits for a compiler."""
    ids = np.arange(2, dtype=np.int64)
    indptr = np.array([0, 1, 2], np.int64)
    counts = np.zeros(2, np.int64)
    key = combine(np.uint64(1), fingerprint(ids))
    ranges = np.array([0, 2])
    row_ops.order_by_range(ids, ranges)
    ranges.setflags(write=False)  # read-only arrays, as of books, are another type to numba
    row_ops.order_by_range(ids, ranges)
    row_ops.find_runs(ids)
    row_ops.first_alike(ids, np.empty(2, np.int32), np.empty(2, np.int64))
    dst = Destinations(ids, 1, False, np.atleast_1d(key))
    rows = Candidates(*(np.empty(2, np.int64) for _ in range(5)))
    count_uniform(dst, indptr, 0, ids, rows, counts)
    choose_uniform(dst, ids, rows, indptr, counts)
    shorten_rows(dst, ids[:0], ids, rows, counts)
    step_over(ids[:0], ids, rows.begins, rows, indptr, counts)
    falls(indptr)
    hash_of_degrees(counts, 0)
    sum_of_hashes(key, ids)
    hash_of_sequence(key, ids)
    hash_each(key, ids, np.empty(2, np.uint64))
    told_apart(ids)
    local = LocalIds(2)
    local.reset(ids)
    dtype: Any
    for dtype in (np.int32, np.int64):
        indices = np.zeros(2, dtype)
        out = np.empty(2, dtype)
        copy_neighbours(indices, ids, indptr, 0, counts, out)
        for counted in (ids, ids.astype(np.uint8), ids.astype(np.int32)):
            row_ops.place_ragged(indices, ids, counted, indptr, out)
        local.insert(indices)
        bad_source(indptr, indices, 2)
        hash_of_sources(indices)
        find_in_rows(indptr, indices, 0, ids, ids, ids, np.empty(2, np.bool_))
    floats = np.zeros(2, np.float32)
    relu_drop_backward(floats, floats, np.float32(2), np.empty_like(floats))
    for bits in (np.zeros(2, np.uint8), np.zeros(2, np.uint16)):
        for kernel in (drop, relu_drop):
            kernel(floats, bits, bits.dtype.type(1), np.float32(2), np.empty_like(floats))
    for brain in (False, True):
        widen(np.zeros(2, np.float32), brain)
    round_to_bfloat16(np.zeros(2, np.uint32), np.empty(2, np.uint16))
    for word in (np.uint8, np.uint16, np.uint32, np.uint64):
        table = np.zeros((2, 1), word)
        row_ops.gather_rows(table, ids, ids, np.empty_like(table))
        row_ops.gather_rows(table, np.zeros(2, np.int32), ids, np.empty_like(table))
        row_ops.scatter_rows(table, ids, np.empty_like(table), ids)
        row_ops.load_rows(table, 0, ids, ids, np.empty_like(table))
        row_ops.place_rows(table, ids, np.empty_like(table))
    _warm_up_caches()


def _warm_up_caches() -> None:
    """Run the kernels of caches of remote rows, with two minibatches that read rows 0 and 1."""
    rows = np.arange(2, dtype=np.int64)
    numbers = np.arange(2, dtype=np.int32)
    fresh = np.zeros(2, np.bool_)
    ring_next = np.zeros(4, np.int32)
    last = np.full(2, -1, np.int64)
    listed = np.empty(3, np.int64)
    split_local(rows, rows[:1], rows[1:], listed, listed.copy())
    hint = np.zeros(2, np.int32)
    row_of = np.full(2, -1, np.int64)
    times = np.zeros(2, np.int32)
    slots = np.empty(2, np.int32)
    assigned = np.empty(2, np.int32)
    own = row_slots.new_slots(0, 2, 1)
    for batch in (0, 1):
        add_reads(numbers, batch, 2 * batch, 0, last, ring_next, fresh)
        row_slots.note_reads(rows, fresh, batch, hint, row_of, own)
        row_slots.find_slots(rows, hint, row_of, np.ones(1, np.bool_), 2, slots)
        row_slots.touch(rows, slots, batch, 2 * batch, ring_next, own)
        row_slots.admit(rows, slots, 2 * batch, ring_next, row_of, times, own, assigned, listed)
        row_slots.publish(rows, assigned, hint, row_of)
    row_slots.note_times(rows, hint, times, slots, assigned)
    row_slots.confirm_slots(rows, row_of, np.ones(1, np.bool_), 2, slots)
    row_slots.changed(rows, slots, slots, row_of, times, listed)
    row_slots.expect_none(own)
    row_slots.forget_uses(own)
    row_slots.empty(own)
    row_slots.take_free(rows, slots, hint, row_of, times, own, assigned, listed)
