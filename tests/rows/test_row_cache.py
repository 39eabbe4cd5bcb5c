"""Slots that one trainer fills and all of a node read."""

from collections.abc import Callable, Iterable
from itertools import combinations_with_replacement

import numpy as np
from layouts import Layout, SharedJob, on_layouts
from oracle import NUM_NODES

from mpigraph.kernels.upcoming import NEVER
from mpigraph.rows.row_cache import RowCache
from mpigraph.session.context import current
from mpigraph.session.control import Operation

two_trainers_a_node = on_layouts([Layout(4, 0, 2)])
ROW = 3 * 4  # bytes of a row of "feat"
HINTS = 4 * NUM_NODES  # bytes that a cache takes whatever it keeps
FEW = HINTS + 14 * (ROW + 12)  # bytes for fourteen rows, less than a minibatch reads


@two_trainers_a_node
def test_trainers_of_a_node_find_each_others_rows(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    session = current()
    world = session.world
    rows = g.ndata["feat"].rows
    caches = session.control.call(Operation.OPEN_CACHES, groups=[[[rows.number], FEW]], ahead=1)
    cache: RowCache = caches[rows.number]
    held = world.is_local[rows.window.host_of(np.arange(NUM_NODES))]
    own = np.flatnonzero(~held)[world.local_trainer :: world.num_local_trainers][: cache.per_trainer]
    assert cache.per_trainer == 14 // world.num_local_trainers
    assert cache.refresh()
    places, words = rows.window.fetch(own, session.pool, lambda: None)
    slots = np.full(len(own), -1, np.int32)
    upcoming = np.full(64, NEVER, np.int32)
    cache.keep(own, slots, places, words, 1, 0, upcoming)
    g.barrier()
    remote_rows = np.flatnonzero(~held)
    slots, seen = cache.find(remote_rows)
    assert (slots >= 0).sum() == min(len(remote_rows), cache.per_trainer * world.num_local_trainers)
    out = np.full((len(remote_rows), *rows.shape[1:]), -1, np.float32)
    assert len(cache.load(remote_rows, slots, seen, np.arange(len(remote_rows)), out.view(words.dtype))) == 0
    hits = slots >= 0
    expected = rows.gather(remote_rows)
    assert (out[hits] == expected[hits]).all() and (out[~hits] == -1).all()
    g.barrier()
    if world.local_trainer == 0:  # gives its first slot to another row while somebody copies from it
        cache.slots.times[0] += 1
    g.barrier()
    lost = cache.load(remote_rows, slots, seen, np.arange(len(remote_rows)), out.view(words.dtype))
    if world.num_local_trainers > 1:
        assert slots[lost].tolist() == [0]
    g.barrier()
    session.control.call(Operation.FREE, numbers=[cache.number])


@on_layouts([Layout(2, 0, 1)])
def test_a_slot_that_changes_hands_meanwhile_is_noticed(job: SharedJob, oracle) -> None:
    """Wherever another trainer is with giving a slot away, and back, at each fence of a reader's."""
    g = job.open(oracle(3))
    session = current()
    rows = g.ndata["feat"].rows
    caches = session.control.call(Operation.OPEN_CACHES, groups=[[[rows.number], FEW]], ahead=1)
    cache: RowCache = caches[rows.number]
    assert cache.refresh()
    cache.slots.alone = False
    values = {3: 33, 5: 55}

    def give(row: int) -> list[Callable[[], None]]:
        def take() -> None:
            cache.slots.row_of[0] = -1
            cache.slots.times[0] += 1

        def store() -> None:
            cache.slots.words[0] = values[row]

        def tell() -> None:
            cache.slots.row_of[0] = row
            cache.slots.hint[row] = 1

        return [take, store, tell]

    class Window:
        def __init__(self, stops: Iterable[int]) -> None:
            self.steps, self.taken, self.stops = [*give(5), *give(3)], 0, iter(stops)

        def fence(self) -> None:
            stop = next(self.stops)
            for step in self.steps[self.taken : stop]:
                step()
            self.taken = max(stop, self.taken)

    fence, hits = cache.slots.fence, 0
    for stops in combinations_with_replacement(range(7), 3):
        for step in give(3):
            step()
        cache.slots.fence = Window(stops).fence
        out = np.zeros((1, cache.slots.words.shape[1]), cache.slots.words.dtype)
        slots, seen = cache.find(np.array([3]))
        lost = cache.load(np.array([3]), slots, seen, np.array([0]), out)
        if slots[0] >= 0 and len(lost) == 0:
            hits += 1
            assert (out == values[3]).all(), stops
    assert hits > 0
    cache.slots.fence = fence
    session.control.call(Operation.FREE, numbers=[cache.number])
