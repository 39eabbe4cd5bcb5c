"""Slots that one trainer fills and all of a node read."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import pytest
from layouts import Layout, on_layouts
from oracle import NUM_NODES

from mpigraph.arrays import Array
from mpigraph.kernels.row_slots import NEVER, admit, clear_tags, publish
from mpigraph.rows import row_cache
from mpigraph.rows.row_cache import RowCache
from mpigraph.session.context import current
from mpigraph.session.control import Operation

ROW = 3 * 4  # bytes of a row of "feat"
HINTS = 4 * NUM_NODES  # bytes that a cache takes whatever it keeps


class Noted:
    """An array of the cache's writer, which notes each store of an element."""

    def __init__(self, name: str, array: Array, stores: list[tuple[str, int, int]]) -> None:
        self._name, self._array, self._stores = name, array, stores
        self.dtype = array.dtype

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, at: Any) -> Any:
        return self._array[at]

    def __setitem__(self, at: Any, value: Any) -> None:
        where = np.arange(self._array.size).reshape(self._array.shape)[at]
        for place, one in zip(np.ravel(where), np.ravel(np.broadcast_to(value, where.shape)), strict=True):
            self._stores.append((self._name, place, one))
        self._array[at] = value


def copy_one_by_one(table: Array, rows: Array, _: int, out: Noted, places: Array) -> None:
    for row, place in zip(rows, places, strict=True):
        out[place] = table[row]


@pytest.mark.slow
@on_layouts([Layout(2, 0, 1)])
def test_no_stop_of_the_writer_shows_another_rows_data(g) -> None:
    """The writer stops after any of its stores, and goes on as far as it likes at each fence of the reader."""
    session = current()
    tensor = g.ndata["feat"].rows
    budget = HINTS + 2 * (ROW + 8)
    cache: RowCache = session.control.call(Operation.OPEN_CACHES, groups=[[[tensor.number], budget]], ahead=8)[0]
    assert cache.per_trainer == 2 and cache.refresh()
    shared, fields = cache.slots, ("hint", "tags", "versions", "words")
    values = np.repeat(np.arange(NUM_NODES) + 1, 3).astype(shared.words.dtype).reshape(NUM_NODES, 3)
    rows, none = np.arange(3), np.full(3, -1, np.int32)

    def minibatch(first: int, *next_reads: int) -> None:
        ring = np.full(4, NEVER, np.int32)
        ring[: len(next_reads)] = next_reads
        cache.keep(rows + first, none, rows + first, values, 1, 0, ring)

    def fill(first: int) -> None:
        assert cache.refresh()
        cache.keep(rows[:2] + first, np.full(2, -1, np.int32), rows[:2] + first, values)

    def again() -> None:
        cache.forget()
        fill(3)

    writes: list[Callable[[], None]] = [
        lambda: cache.keep(rows[:2] + 3, none[:2], rows[:2] + 3, values),
        lambda: minibatch(0, 7, 7, 3),  # the last row supersedes one of the others
        lambda: minibatch(3, 2, 2, 1),
        lambda: minibatch(6),  # no row is known to be read again
        cache.forget,
        lambda: fill(0),
        again,
    ]

    def stores_of(write: Callable[[], None]) -> list[tuple[str, int, int]]:
        stores: list[tuple[str, int, int]] = []
        noted = {name: Noted(name, getattr(shared, name), stores) for name in fields}
        cache.slots = replace(shared, **noted, fence=lambda: None)  # type: ignore[arg-type]
        with pytest.MonkeyPatch.context() as patch:
            for kernel in (admit, clear_tags, publish):
                patch.setattr(row_cache, kernel.__name__, kernel.py_func)
            patch.setattr(row_cache, "move_rows", copy_one_by_one)
            write()
        return stores

    accepted = 0

    def read(stores: list[tuple[str, int, int]], before: dict[str, Array], stops: Sequence[int]) -> None:
        nonlocal accepted
        now, left = {name: array.copy() for name, array in before.items()}, iter(stops)
        done = 0

        def go_on() -> None:
            nonlocal done
            for name, place, one in stores[done : (stop := next(left))]:
                now[name].flat[place] = one
            done = stop

        cache.slots = replace(shared, **now, fence=go_on)
        asked, out = np.arange(NUM_NODES), np.zeros_like(values)
        go_on()
        slots, seen = cache.find(asked)
        cache.load(slots, seen, asked, out)
        accepted += np.count_nonzero(slots >= 0)
        assert np.array_equal(out[slots >= 0], values[slots >= 0]), stops

    whole: list[tuple[str, int, int]] = []
    ends: list[int] = []
    first = {name: getattr(shared, name).copy() for name in fields}
    for write in writes:
        before = {name: getattr(shared, name).copy() for name in fields}
        stores = stores_of(write)
        whole += stores
        ends.append(len(whole))
        for stops in combinations_with_replacement(range(len(stores) + 1), 3):
            read(stores, before, stops)
    draws = np.random.default_rng(0)
    begins = draws.integers(0, len(whole) + 1, (6000, 1))
    gaps = draws.integers(0, len(whole), (6000, 2)) * (draws.random((6000, 2)) < 0.5)  # often it stands still
    for stops in np.minimum(np.cumsum(np.hstack([begins, gaps]), axis=1), len(whole)).tolist():
        read(whole, first, stops)
    for begin, end in combinations_with_replacement(ends, 2):  # a slot may have the row again
        for stop in range(begin, end + 1):
            read(whole, first, (begin, stop, end))
    assert accepted > 500
    cache.slots = shared
    session.control.call(Operation.FREE, numbers=[cache.number])
