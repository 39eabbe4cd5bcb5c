"""Rows are moved, sorted by range and merged."""

from itertools import pairwise

import numpy as np
import pytest

from mpigraph.kernels.row_ops import (
    as_words,
    find_runs,
    move_rows,
    place_ragged,
)

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


@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
def test_rows_move_whatever_their_width(shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(0)
    table = rng.integers(0, 256, (20, *shape)).astype(dtype)
    rows, positions = rng.integers(0, 20, 9), rng.permutation(11)[:9]
    words = as_words(table)
    assert words.ndim == 2 and len(words) == 20
    assert words.nbytes == table.nbytes and (table.size == 0 or np.shares_memory(words, table))
    out = np.zeros((11, *shape), dtype)
    want = out.copy()
    want[positions] = table[rows]
    move_rows(words, rows, 0, as_words(out).view(words.dtype), positions)
    assert np.array_equal(out, want)
    values = rng.integers(0, 256, (11, *shape)).astype(dtype)
    want = table.copy()
    for r, p in zip(rows, positions, strict=True):  # the last of equal rows wins
        want[r] = values[p]
    move_rows(as_words(values).view(words.dtype), positions, 0, words, rows)
    assert np.array_equal(table, want)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(("shape", "dtype"), [*SHAPES, ((100,), "f4"), ((48,), "f2"), ((96,), "u1"), ((18,), "f4")])
def test_rows_of_a_large_result_pass_the_caches_unchanged(shape: tuple[int, ...], dtype: str, large: bool) -> None:
    """Results of some MB are written by other stores than small ones, wherever a row begins."""
    rng = np.random.default_rng(0)
    n = 11 + large * (5 << 20) // max(1, int(np.prod(shape)) * np.dtype(dtype).itemsize)
    table = rng.integers(0, 256, (20, *shape)).astype(dtype)
    ids, positions = rng.integers(100, 120, n), np.flatnonzero(rng.random(n) < 0.7)
    words, out = as_words(table), np.zeros((n, *shape), dtype)
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
    move_rows(as_words(rows).view(words.dtype), None, 0, target, positions)
    assert np.array_equal(out, want)


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
