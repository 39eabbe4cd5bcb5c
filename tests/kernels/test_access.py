"""The kernels behind the chances of nodes, beside numpy."""

import numpy as np
import pytest

from mpigraph.kernels.access import MOST, add_amounts, add_to_sources, as_amounts, draw_odds, list_sources, reach

RNG = np.random.default_rng(0)
INDPTR = np.array([0, 3, 3, 4, 9, 11])
ROWS = np.array([3, 0, 1, 4])
DEGREES = np.diff(INDPTR)[ROWS]


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], ROWS[:0]])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_edges_lead_amounts_to_their_sources(rows: np.ndarray, dtype: type) -> None:
    indices = RNG.integers(0, 4, 11).astype(dtype)
    degrees = np.diff(INDPTR)[rows]
    bases, amounts = RNG.integers(0, 9, len(rows)), RNG.integers(0, 99, len(rows))
    amounts[:1] = MOST - 5
    edges = np.concatenate([np.zeros(0, np.int64), *(np.arange(INDPTR[r], INDPTR[r + 1]) for r in rows)])
    keys = np.empty(len(edges), np.int64)
    list_sources(rows, INDPTR, indices, bases, keys)
    assert np.array_equal(keys, np.repeat(bases, degrees) + indices[edges])
    sums = np.full(4, 3)
    want = sums.copy()
    np.add.at(want, indices[edges], np.minimum(np.repeat(amounts, degrees), MOST // 8))
    add_to_sources(rows, INDPTR, np.minimum(amounts, MOST // 8), indices[edges].astype(np.int32), sums)
    assert np.array_equal(sums, want)
    for _ in range(3):
        add_to_sources(rows, INDPTR, amounts, indices[edges].astype(np.int32), sums)
        assert sums.max(initial=0) <= MOST


@pytest.mark.parametrize("n", [0, 1, 50])
def test_amounts_are_added_up_to_the_most(n: int) -> None:
    positions, amounts = RNG.integers(0, 5, n).astype(np.int32), RNG.integers(0, MOST, n)
    sums = np.zeros(5, np.int64)
    add_amounts(positions, amounts, sums)
    exact = [sum(int(a) for p, a in zip(positions, amounts, strict=True) if p == at) for at in range(5)]
    assert sums.tolist() == [min(x, MOST) for x in exact]


@pytest.mark.parametrize(("fanout", "replace"), [(2, False), (2, True), (-1, False), (-1, True), (9, False), (9, True)])
def test_odds_of_an_edge(fanout: int, replace: bool) -> None:
    chances = np.array([1.0, 0.5, 0.5, 1e-9])
    degrees = np.maximum(DEGREES, 1)
    drawn = 1 - (1 - 1 / degrees) ** abs(fanout) if replace else np.minimum(1, fanout / degrees)
    want = np.where(DEGREES > 0, (drawn if fanout >= 0 else 1) * chances, 0)
    odds = np.empty(4)
    draw_odds(ROWS, INDPTR, chances, fanout, replace, odds)
    np.testing.assert_allclose(odds, want, rtol=1e-12)


def test_amounts_become_chances_again() -> None:
    odds = np.array([0, 1e-12, 0.3, 1 - 1e-12, 1, 1 + 1e-15])
    amounts = np.empty(6, np.int64)
    as_amounts(odds, amounts)
    assert amounts[0] == 0 and amounts[4] == amounts[5] == MOST
    total, fresh = np.zeros(6), np.ones(6)
    reach(total, fresh, amounts)
    np.testing.assert_allclose(total, np.minimum(odds, 1), rtol=1e-3, atol=1e-15)
    assert np.array_equal(fresh, total) and not amounts.any()
    total, sums = np.array([0.5, 0.0]), np.array([1 << 52, 0])
    reach(total, fresh[:2], sums)
    np.testing.assert_allclose(total, [1 - 0.5 * np.exp(-1), 0])
    np.testing.assert_allclose(fresh[:2], total - [0.5, 0])
