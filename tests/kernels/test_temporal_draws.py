"""Drawing among the edges that are old enough: sorted rows, and whether every choice is equally likely."""

import numpy as np
import pytest

from mpigraph.kernels.sample import Candidates, Destinations, Edges, choose, count
from mpigraph.kernels.temporal import Times, sort_rows

ROOTS = 40_000


def draw(
    fanout: int, replace: bool, last: bool, excluded: list[int], allowed: list[int], later: list[int] | None = None
) -> np.ndarray:
    """The edges that many roots, with a key each, draw from a row of 14 edges, 10 of them visible; [roots, k]."""
    times = np.array([5, 2, 9, 2, 2, 7, 1, 8, 3, 3, 5, 9, 12, 0])
    indptr = np.array([0, len(times)])
    sorted_times, order = np.empty_like(times), np.empty(len(times), np.int32)
    sort_rows(indptr, times, sorted_times, order)
    keys = np.random.default_rng(0).integers(0, 2**64, ROOTS, np.uint64)
    of_first = np.zeros(ROOTS, np.int64)
    dst = Destinations(of_first, of_first, fanout, replace, keys)
    rows = Candidates(*(np.empty(ROOTS, np.int64) for _ in Candidates._fields))
    positions, counts = np.arange(ROOTS), np.empty(ROOTS, np.int64)
    seen = Times(sorted_times, np.full(ROOTS, 8), False, last, 7)
    edges = Edges(indptr, 0, excluded=np.array(excluded, np.int64), order=order, times=seen)
    mask = np.array(allowed, np.uint8) if allowed else None
    count(dst, edges._replace(mask=mask), positions, rows, counts)
    offsets = np.append(0, np.cumsum(counts))
    picks = np.empty(offsets[-1], np.int64)
    mask = mask if later is None else np.array(later, np.uint8)
    choose(dst, edges._replace(mask=mask), positions, rows, offsets, picks)
    return picks.reshape(ROOTS, -1)


def test_rows_are_sorted_and_equal_times_keep_their_order() -> None:
    times = np.array([3, 1, 1, 2, 9, 9, 9, 0])
    result, order = np.empty_like(times), np.empty(8, np.int32)
    sort_rows(np.array([0, 4, 4, 8]), times, result, order)
    assert result.tolist() == [1, 1, 2, 3, 0, 9, 9, 9] and order.tolist() == [1, 2, 3, 0, 3, 0, 1, 2]


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("excluded", [[], [0, 3, 9, 12]])
@pytest.mark.parametrize("masked", [False, True])
def test_every_visible_edge_is_equally_likely(replace: bool, excluded: list[int], masked: bool) -> None:
    mask = [0] + [1] * 13 if masked else []
    visible = [edge for edge in (0, 1, 3, 4, 5, 6, 7, 8, 9, 10) if edge not in excluded and (edge or not masked)]
    drawn = draw(4, replace, False, excluded, mask)
    assert drawn.shape == (ROOTS, 4)
    counts = np.bincount(drawn.ravel(), minlength=14)
    assert np.flatnonzero(counts).tolist() == visible
    share = 4 / len(visible)
    variance = share if replace else share * (1 - share)
    deviations = (counts[visible] - ROOTS * share) / np.sqrt(ROOTS * variance)
    assert (np.abs(deviations) < 5).all() and (deviations**2).sum() < 3 * len(visible)
    if not replace:  # every pair as often, too
        assert (np.diff(np.sort(drawn), axis=1) > 0).all()
        pairs = np.zeros((14, 14))
        np.add.at(pairs, (drawn[:, 0], drawn[:, 1]), 1)
        both = [(drawn == a).any(1) & (drawn == b).any(1) for a in visible for b in visible if a < b]
        chance = share * 3 / (len(visible) - 1)
        result = np.array([some.sum() for some in both])
        assert (np.abs(result - ROOTS * chance) < 5 * np.sqrt(ROOTS * chance)).all()


def test_the_newest_are_the_end() -> None:
    newest = [10, 5, 7]  # of time 5, the later one of two; 7; 8
    assert (draw(3, False, True, [], []) == newest).all()
    assert (draw(3, False, True, [5], []) == [0, 10, 7]).all()
    assert (draw(3, False, True, [], [1] * 7 + [0] + [1] * 6) == [0, 10, 5]).all()
    drawn = draw(3, True, True, [], [])
    assert set(drawn.ravel().tolist()) == set(newest) and (drawn[:, 0] == drawn[:, 1]).any()


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_a_mask_that_is_written_between_the_passes_shows_nothing_newer(replace: bool, last: bool) -> None:
    for later in ([0] * 14, [0] * 3 + [1] + [0] * 10):
        drawn = draw(4, replace, last, [], [1] * 14, later)
        assert set(drawn.ravel().tolist()) <= {0, 1, 3, 4, 5, 6, 7, 8, 9, 10}
