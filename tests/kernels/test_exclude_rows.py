"""Draws of rows without some of their edges."""

import numpy as np
import pytest
from kernel_rows import I64, WEIGHTS, Csc, candidates

from mpigraph.kernels.rng import combine
from mpigraph.kernels.sample import Destinations, choose, count

MANY_ROWS = [0, 1, 2, 5, 5, 8, 64, 65, 66, 80, 300]


def some_edges(g: Csc, how: str) -> I64:
    """Edges to exclude, ascending."""
    every, rng = np.arange(len(g.indices)), np.random.default_rng(7)
    ends = np.concatenate([g.indptr[:-1], g.indptr[1:] - 1])
    chosen = {
        "none": every[:0],
        "one": every[9:10],
        "few": rng.choice(every, 12, replace=False),
        "half": every[::2],
        "ends": ends[(ends >= 0) & (ends < len(every))],  # the first and the last edge of each row
        "rows": np.concatenate([every[g.indptr[r] : g.indptr[r + 1]] for r in (2, 4, 8)]),
        "all but one": np.delete(every, 40),
        "all": every,
    }
    return np.unique(chosen[how])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["none", "one", "few", "half", "ends", "rows", "all but one", "all"])
@pytest.mark.parametrize("kind", [None, *WEIGHTS])
@pytest.mark.parametrize("replace", [False, True])
def test_a_draw_without_edges_is_a_draw_of_rows_that_lack_them(replace: bool, kind: str | None, how: str) -> None:
    g = Csc(MANY_ROWS, "int32", first_id=9)
    rng = np.random.default_rng(4)
    weights = None
    if kind is not None:
        weights = (rng.integers(0, 3, len(g.indices)) * rng.random(len(g.indices))).astype(kind)
    excluded = some_edges(g, how)
    rest, kept = g.without(excluded)
    rows = np.array([3, 0, 10, 8, 8, 1, 2, 4, 5, 6, 7, 9])  # one of them twice
    for fanout in (-1, 0, 1, 4, 64, 70):
        key = combine(1, fanout)
        want = rest.sample(rows, fanout, replace, key, None if weights is None else weights[kept])
        for prepared in (False, True):
            src, eid = g.sample(rows, fanout, replace, key, weights, prepared=prepared, excluded=excluded)
            assert all(np.array_equal(a, b) for a, b in zip(src, want[0], strict=True))
            assert all(np.array_equal(a, kept[b]) for a, b in zip(eid, want[1], strict=True))
        shares = [np.array([0, 2, 5]), np.array([1, 3, 4, 6, 7, 8, 9, 10, 11])]
        parts = g.sample(rows, fanout, replace, key, weights, shares=shares, excluded=excluded)[1]
        assert all(np.array_equal(a, b) for a, b in zip(parts, eid, strict=True))


@pytest.mark.parametrize("kind", ["float64", "bool"])
@pytest.mark.parametrize("alive_now", [0, 1, 4, 6])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [-1, 3])
def test_weights_that_change_between_the_passes_never_lead_to_an_excluded_edge(
    alive_now: int, replace: bool, fanout: int, kind: str
) -> None:
    g = Csc([2, 6, 2])
    weights = np.array([1.0] * 6 + [0.0] * 2 + [1.0] * 2).astype(kind)
    excluded = np.array([1, 2, 5, 8])  # in the middle row the edges 3, 4, 6 and 7 are left, and 3 and 4 are alive
    ids = np.array([1])
    dst, where = Destinations(ids, ids, fanout, replace, np.array([3], np.uint64)), np.array([0])
    rows, counts, edges = candidates(1), np.zeros(1, np.int64), g.edges(weights, excluded=excluded)
    count(dst, edges, where, rows, counts)
    assert counts[0] == (3 if replace and fanout > 0 else 2)
    weights[2:8] = np.arange(6) < alive_now
    room = np.full(counts[0] + 2, -7)  # one more at each end
    picks, offsets = room[1:-1], np.array([0, counts[0]])
    choose(dst, edges, where, rows, offsets, picks)
    assert np.isin(picks, [3, 4, 6, 7]).all()
    assert room[0] == room[-1] == -7
