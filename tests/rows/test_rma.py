"""Rows by Get, beside those that their host packs: equal rows, and several threads."""

from threading import Thread

import numpy as np
import pytest
from layouts import Job, rotated
from worlds import HELD, KINDS, filled_window, meet, row_values, rows_of

from mpigraph.rows.window import RowWindow

ROWS = [((3,), "u1"), ((), "i8"), ((2, 3), "f2"), ((5,), "u2"), ((100,), "f4"), ((2000,), "u1")]


@rotated(2)
@pytest.mark.parametrize("kind", KINDS)
def test_both_transports_read_the_same_rows(layout: Job, kind: str, small_chunks: None) -> None:
    with rows_of(layout, window=kind) as service:
        world = service.world
        total = len(world.hosts) * HELD
        random = np.random.default_rng(world.rank)
        requests = [
            np.arange(total),
            np.arange(total)[::-1].copy(),
            random.integers(0, total, 2 * total),  # repeats
            random.integers(0, total, 20),
            np.full(150, total - 1),
            np.array([total - 1]),
            np.empty(0, np.int64),
        ]
        for shape, dtype in ROWS:
            window = filled_window(service, shape, dtype)
            for way in (service.transports or [None]) if world.is_trainer else []:
                for ids in requests:
                    assert np.array_equal(window.gather(ids, transport=way), row_values(ids, shape, dtype))
                out = np.zeros((len(requests[2]), *shape), dtype)
                assert window.gather(requests[2], out, way) is out
                assert np.array_equal(out, row_values(requests[2], shape, dtype))
            meet(world, service.progress)
            window.close()


def test_threads_of_a_trainer_read_at_once(layout: Job, small_chunks: None) -> None:
    with rows_of(layout) as service:
        world = service.world
        window, narrow = filled_window(service, (100,), "f4"), filled_window(service, (), "i8")
        wrong: list[str] = []

        def read(which: RowWindow, shape: tuple[int, ...], dtype: str, seed: int) -> None:
            random = np.random.default_rng([world.rank, seed])
            for _ in range(5):
                ids = random.integers(0, len(which), 300)
                for way in service.transports or [None]:
                    if not np.array_equal(which.gather(ids, transport=way), row_values(ids, shape, dtype)):
                        wrong.append(f"{way} {shape}")

        if world.is_trainer:
            threads = [
                Thread(target=read, args=(which, shape, dtype, seed))
                for seed, (which, shape, dtype) in enumerate([(window, (100,), "f4"), (narrow, (), "i8")] * 2)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        meet(world, service.progress)
        assert not wrong
        window.close()
        narrow.close()
