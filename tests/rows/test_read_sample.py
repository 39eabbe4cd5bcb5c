"""How many reads larger caches would find: exact where all rows are in the sample, else close to a simulated cache."""

from collections import OrderedDict
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpigraph.arrays import I64
from mpigraph.rows import read_sample

ALWAYS = (0.0, float("inf"))


def tensor(num_rows: int, row_bytes: int = 8, number: int = 0) -> Any:
    """A tensor of two hosts; this node reads the second one's rows for a price."""
    window = SimpleNamespace(
        offsets=np.array([0, 10, 10 + num_rows]),
        world=SimpleNamespace(is_local=np.array([True, False])),
        row_bytes=row_bytes,
    )
    return SimpleNamespace(number=number, window=window)


def told(of: Any, minibatches: list[I64]) -> bytes:
    """What a trainer tells that reads some minibatches."""
    read_sample.begin()
    for rows in minibatches:
        read_sample.note(of, rows)
    return read_sample.end()


def simulated(reads: I64, slots: int) -> float:
    """The share of hits in a cache that gives up the row read longest ago."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for row in reads.tolist():
        hits += row in held
        held[row] = None
        held.move_to_end(row)
        if len(held) > slots:
            held.popitem(last=False)
    return hits / len(reads)


def share_at(points: list[tuple[int, float]], nbytes: float) -> float:
    sizes, shares = zip(*points, strict=True)
    return float(np.interp(nbytes, sizes, shares))


def test_rows_in_turn_hit_once_all_of_them_fit() -> None:
    rows = np.arange(512)
    points = read_sample.hits_by_size([told(tensor(1024), [rows] * 10)], *ALWAYS)
    assert points == [(points[0][0], 0.0), (512 * 8, 0.9)]
    again = read_sample.hits_by_size([told(tensor(1024), [rows, rows, rows[:256], rows[:256]])], *ALWAYS)
    assert again[1:] == [(256 * 8, pytest.approx(1 / 6, abs=1e-4)), (512 * 8, pytest.approx(4 / 6, abs=1e-4))]


def test_only_reads_in_the_window_count() -> None:
    data = told(tensor(4096), [np.arange(4096)] * 2)
    assert read_sample.hits_by_size([data], float("inf"), float("inf")) == []
    assert told(tensor(10), []) == b"[]\n" and read_sample.hits_by_size([b"[]\n"], *ALWAYS) == []
    read_sample.note(tensor(10), np.arange(3))
    assert read_sample.end() == b"[]\n", "no report is made"


@pytest.mark.parametrize(
    ("num_rows", "trainers"),
    [(3_000, 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((200_000, 1), (50_000, 3)))],
)
def test_sampled_reads_are_close_to_a_simulated_cache(num_rows: int, trainers: int) -> None:
    """Rows of a power law, some of them read in turn, by trainers who share their caches."""
    rng = np.random.default_rng(3)

    def minibatch() -> I64:
        often = rng.zipf(1.2, 4000)
        rows = np.unique(np.concatenate([often[often < num_rows], rng.integers(0, num_rows, 300)]))
        return rng.permutation(10 + rows * 7919 % num_rows)

    minibatches = [[minibatch() for _ in range(150)] for _ in range(trainers)]
    data, order = told_in_turn(tensor(num_rows), minibatches)
    points = read_sample.hits_by_size(data, *ALWAYS)
    assert len(points) > 5 and all(a[1] < b[1] for a, b in pairwise(points))
    for slots in (num_rows // 30, num_rows // 10, num_rows // 3):
        assert share_at(points, 8 * slots) == pytest.approx(simulated(order, slots), abs=0.04), slots


def told_in_turn(of: Any, minibatches: list[list[I64]]) -> tuple[list[bytes], I64]:
    """What trainers tell that read their minibatches at the same times, and all reads in that order."""
    data = []
    for number, each in enumerate(minibatches):
        times = iter(range(1, 1 + len(each)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(read_sample, "clock", lambda times=times, number=number: next(times) + number / 10)
            data.append(told(of, each))
    return data, np.concatenate([rows for at_once in zip(*minibatches, strict=True) for rows in at_once])


def test_a_sample_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are left out while they are many, then old reads; the share stays that of a cache."""
    monkeypatch.setattr(read_sample, "_MOST_READS", 1 << 14)
    monkeypatch.setattr(read_sample, "_MOST_ROWS", 1 << 10)
    rng = np.random.default_rng(4)
    for num_rows in (40_000, 3_000):
        minibatches = [rng.integers(10, 10 + num_rows, 2000) for _ in range(300)]
        data = told(tensor(num_rows), minibatches)
        assert len(data) < 1 << 18
        points = read_sample.hits_by_size([data], *ALWAYS)
        assert share_at(points, 8 * num_rows / 2) == pytest.approx(0.5, abs=0.06)
    many = told(tensor(1 << 20), [rng.integers(10, 1 << 20, 3) for _ in range(30_000)])
    assert len(many) < 1 << 19


def test_tensors_divide_the_bytes_as_caches_do() -> None:
    read_sample.begin()
    for _ in range(10):
        read_sample.note(tensor(64, 8, 1), np.arange(64))
        read_sample.note(tensor(64, 24, 2), np.arange(32))
    points = read_sample.hits_by_size([read_sample.end()], *ALWAYS)
    assert points[1:] == [(32 * 32, pytest.approx(0.3, abs=1e-3)), (64 * 32, 0.9)]
