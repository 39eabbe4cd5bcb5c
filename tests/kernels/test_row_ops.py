"""Rows are moved, sorted by range and merged."""

from itertools import pairwise

import numpy as np
import pytest

from mpigraph.kernels.row_ops import as_words, find_runs, move_rows, place_ragged

SHAPES = [
    ((), "i8"),
    ((3,), "u1"),
    ((3,), "f2"),
    ((7,), "f4"),
    ((2, 5), "f8"),
    ((1,), "?"),
    ((0,), "f4"),
    ((400,), "u1"),
]


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(("shape", "dtype"), [*SHAPES, ((100,), "f4"), ((48,), "f2"), ((96,), "u1"), ((18,), "f4")])
def test_rows_move_whatever_their_width(shape: tuple[int, ...], dtype: str, large: bool) -> None:
    """Results of some MB are written by other stores than small ones, wherever a row begins."""
    rng = np.random.default_rng(0)
    n = 11 + large * (5 << 20) // max(1, int(np.prod(shape)) * np.dtype(dtype).itemsize)
    table = rng.integers(0, 256, (20, *shape)).astype(dtype)
    ids, positions = rng.integers(100, 120, n), np.flatnonzero(rng.random(n) < 0.7)
    words, out = as_words(table), np.zeros((n, *shape), dtype)
    assert (words.ndim, len(words), words.nbytes) == (2, 20, table.nbytes)
    target = as_words(out).view(words.dtype)
    want = out.copy()
    want[positions] = table[ids[positions] - 100]
    move_rows(words, ids[positions], 100, target, positions)
    assert np.array_equal(out, want)
    move_rows(words, ids, 100, target, None)
    assert np.array_equal(out, table[ids - 100])
    out[:] = 0
    move_rows(words, ids[positions], 100, target, positions)
    assert np.array_equal(out, want)
    slots = np.where(rng.random(len(positions)) < 0.2, -1, rng.integers(0, 20, len(positions))).astype(np.int32)
    want[positions[slots >= 0]] = table[slots[slots >= 0]]
    move_rows(words, slots, 0, target, positions)
    assert np.array_equal(out, want)
    rows = rng.integers(0, 256, (len(positions), *shape)).astype(dtype)
    want[positions] = rows
    values = as_words(rows).view(words.dtype)
    move_rows(values, None, 0, target, positions)
    assert np.array_equal(out, want)
    if not large:
        few, again = np.arange(len(rows)), ids[: len(rows)] - 100
        for row, place in zip(again, few, strict=True):  # the last of equal rows wins
            table[row] = rows[place]
        want = table.copy()
        table[again] = 0
        move_rows(values, few, 0, words, again)
        assert np.array_equal(table, want)


def test_as_words_takes_the_widest_word_that_fits() -> None:
    for shape, dtype, width in [((3,), "u1", 1), ((3,), "f2", 2), ((7,), "f4", 4), ((8,), "u1", 8), ((4,), "f4", 8)]:
        assert as_words(np.zeros((4, *shape), dtype)).dtype.itemsize == width
    odd = np.zeros(33, np.uint8)[1:].reshape(4, 8)  # not aligned to a word
    assert as_words(odd).ctypes.data == odd.ctypes.data
    assert odd.ctypes.data % as_words(odd).dtype.itemsize == 0
    assert as_words(np.zeros((0, 3), "f4")).shape[0] == 0


@pytest.mark.parametrize("rows", [[], [5], [5, 5, 5], [1, 2, 3], [4, 2, 0], [0, 0, 1, 1, 9, 4, 5, 5, 6, 9]])
def test_find_runs(rows: list[int]) -> None:
    starts, lengths = find_runs(np.array(rows, np.int64))
    assert [row for start, n in zip(starts, lengths, strict=True) for row in range(start, start + n)] == rows
    assert len(starts) == sum(row != before + 1 for before, row in pairwise([-9, *rows]))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_place_ragged(dtype: str) -> None:
    lengths = np.array([2, 0, 3, 1, 4])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    positions = np.array([3, 0, 1, 4])
    values = np.arange(100, 107).astype(dtype)
    out = np.zeros(10, dtype)
    want, at = out.copy(), 0
    for p in positions:
        want[offsets[p] : offsets[p + 1]] = values[at : at + lengths[p]]
        at += lengths[p]
    place_ragged(values, positions, lengths[positions], offsets, out)
    assert np.array_equal(out, want)
