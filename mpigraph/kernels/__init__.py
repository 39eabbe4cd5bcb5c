"""Compiled loops over plain arrays; :func:`compile_missing` compiles those of training ahead of time."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from mpigraph.compiling import REPORT
from mpigraph.kernels import cache, csr, row_ops, row_slots
from mpigraph.kernels.compact import LocalIds
from mpigraph.kernels.flat import drop, relu_drop_backward, round_to_bfloat16, widen
from mpigraph.kernels.rng import combine, fingerprint, first_alike, hash_each, told_apart
from mpigraph.kernels.row_slots import add_reads, split_local
from mpigraph.kernels.sample import Candidates, Destinations, Edges, choose, copy_neighbours, count

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
    """Call each kernel of the usual path once on tiny arrays, so that training never waits for a compiler."""
    calls = [*_of_draws(), *_of_ids(), *_of_rows(), *_of_caches()]
    try:
        for number, (kernel, *arguments) in enumerate(calls):
            REPORT.known = (number, len(calls))
            kernel(*arguments)
    finally:
        REPORT.known = (0, 0)


_Call = tuple[Any, ...]
"""A kernel, and its arguments."""

_IDS = np.arange(2, dtype=np.int64)
_INDPTR = np.array([0, 1, 2], np.int64)


def _of_draws() -> Iterator[_Call]:
    """Yield calls of the kernels that choose neighbours."""
    key = np.ones(1, np.uint64)
    counts = np.zeros(2, np.int64)
    dst, edges = Destinations(_IDS, _IDS, 1, False, key), Edges(_INDPTR, 0)
    rows = Candidates(*(np.zeros(2, np.int64) for _ in Candidates._fields))
    yield csr.keys_of_rows, key[0], _IDS, True, key[:0], _IDS, np.empty(2, np.uint64)
    yield count, dst, edges, _IDS, rows, counts
    yield choose, dst, edges, _IDS, rows, _INDPTR, counts
    for dtype in (np.int32, np.int64):
        indices = np.zeros(2, dtype)
        yield copy_neighbours, indices, _IDS, _INDPTR, 0, counts, np.empty(2, dtype)
        yield csr.find_in_rows, _INDPTR, indices, 0, _IDS, _IDS, _IDS, np.empty(2, np.bool_)
        yield csr.bad_source, _INDPTR, indices, 2
    yield csr.by_key, _IDS, 2


def _of_ids() -> Iterator[_Call]:
    """Yield calls of the kernels that hash and number ids."""
    key = np.uint64(1)
    yield combine, key, 1
    yield fingerprint, _IDS
    yield hash_each, key, _IDS, np.empty(2, np.uint64)
    yield first_alike, _IDS, np.empty(2, np.int64)
    yield told_apart, np.zeros(2, np.int64)
    local = LocalIds(2)
    yield local.reset, _IDS
    for dtype in (np.int32, np.int64):
        yield local.insert, np.zeros(2, dtype)


def _of_rows() -> Iterator[_Call]:
    """Yield calls of the kernels on rows and flat arrays."""
    ranges = np.array([0, 2])
    fixed = ranges.copy()
    fixed.setflags(write=False)  # read-only arrays, as of books, are another type to numba
    for offsets in (ranges, fixed):
        yield row_ops.order_by_range, _IDS, offsets
    values: Any
    for values in (np.zeros(2, np.int32), np.zeros(2, np.int64)):
        for counts in (_IDS, _IDS.astype(np.uint8), _IDS.astype(np.int32)):
            yield row_ops.place_ragged, values, _IDS, counts, _INDPTR, np.empty_like(values)
    for word in (np.uint8, np.uint16, np.uint32, np.uint64):
        table: Any = np.zeros((2, 1), word)
        for rows, places in ((_IDS, _IDS), (_IDS, None), (None, _IDS), (np.zeros(2, np.int32), _IDS)):
            yield row_ops.move_rows, table, rows, 0, np.empty_like(table), places
    floats = np.zeros(2, np.float32)
    yield relu_drop_backward, floats, floats, np.float32(2), np.empty_like(floats)
    bits: Any
    for bits in (np.zeros(2, np.uint8), np.zeros(2, np.uint16)):
        yield drop, floats, bits, bits.dtype.type(1), np.float32(2), True, np.empty_like(floats)
    yield widen, floats.copy(), True
    yield round_to_bfloat16, np.zeros(2, np.uint32), np.empty(2, np.uint16)


def _of_caches() -> Iterator[_Call]:
    """Yield calls of the kernels of caches of remote rows, with two minibatches that read rows 0 and 1."""
    rows = np.arange(2, dtype=np.int64)
    numbers = np.arange(2, dtype=np.int32)
    fresh = np.zeros(2, np.bool_)
    ring_next = np.zeros(4, np.int32)
    last = np.full(2, -1, np.int64)
    listed = np.empty(3, np.int64)
    yield split_local, rows, rows[:1], rows[1:], listed, listed.copy()
    hint, slots, assigned = np.zeros((3, 2), np.int32)
    tags, seen = np.zeros((2, 2), np.int64)
    tables = hint, tags
    own = row_slots.new_slots(0, 2, 1)
    for batch in (0, 1):
        yield add_reads, numbers, batch, 2 * batch, 0, last, ring_next, fresh
        yield row_slots.note_reads, rows, fresh, batch, *tables, own
        yield row_slots.find_slots, rows, *tables, np.ones(1, np.bool_), 2, slots, seen
        yield row_slots.touch, rows, slots, batch, 2 * batch, ring_next, own
        yield row_slots.admit, rows, slots, 2 * batch, ring_next, *tables, own, assigned, listed
        yield row_slots.publish, rows, assigned, tags
    yield row_slots.admit, rows, slots, 0, None, *tables, row_slots.new_slots(0, 2, 1), assigned, listed
    yield row_slots.drop_lost, tags, slots, seen
    yield row_slots.clear_tags, tags, 0, 2
    yield row_slots.forget_uses, own
    yield row_slots.empty, own
