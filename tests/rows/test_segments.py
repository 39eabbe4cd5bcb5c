"""Blocks of memory that arrays share: where they lie, and when a segment is freed."""

import numpy as np
import pytest
from layouts import Job, Layout, own_on_layouts
from worlds import WAYS, rows_of

from mpigraph.arrays import I64
from mpigraph.rows.service import RowService
from mpigraph.rows.window import RowWindow

BOTH = own_on_layouts([Layout(2, 0, 0), Layout(2, 0, 1)])


def rows(service: RowService, count: int) -> RowWindow:
    """A window with ``count`` rows on each host."""
    offsets: I64 = np.arange(len(service.world.hosts) + 1) * count
    return RowWindow(service, offsets, (4,), "f4")


@BOTH
@pytest.mark.parametrize("way", WAYS)
def test_random_arrays_come_and_go(layout: Job, way: str) -> None:
    """Each is apart from the others and zero at first, and nothing of them is left."""
    with rows_of(layout, transport=way) as service:
        world = service.world
        rng = np.random.default_rng(3)
        held: dict[int, RowWindow] = {}
        for number in range(1, 80):
            if len(held) > 8:
                held.pop(int(rng.choice(list(held)))).close()
            held[number] = rows(service, int(rng.choice([0, 1, 7, 300, 5000, 40_000])))
            mine = held[number].memory(world.host_index)
            assert not mine.any()
            mine[:] = number
            for other, window in held.items():
                assert (window.memory(world.host_index) == other).all()
        assert len(service.segments) < 10
        for window in held.values():
            window.close()
        assert len(service.segments) == 0


@own_on_layouts([Layout(2, 0, 0)])
def test_memory_of_one_host_is_not_allocated_on_others(layout: Job) -> None:
    with rows_of(layout) as service:
        large = rows(service, 1 << 20)
        sizes = np.array([512 << 10, 0])
        cache = service.segments.take(sizes, False, "a cache")
        assert len(cache.memory(0)) == sizes[0]
        assert len(cache.memory(1)) == 0
        small = service.segments.take(np.array([64, 64]), False, "a table")
        assert len(small.memory(0)) == len(small.memory(1)) == 64
        for block in (small, cache):
            service.segments.give_back(block)
        large.close()
        assert len(service.segments) == 0
