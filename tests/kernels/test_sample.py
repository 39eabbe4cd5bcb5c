"""Counts and choices of neighbours against plain references: uniform, weighted, masked."""

import gc
import threading
import time
import weakref

import numpy as np
import pytest
from kernel_rows import WEIGHTS, Csc, candidates, reference_count

from mpigraph.kernels.rng import combine, mix64, uniform01
from mpigraph.kernels.sample import Destinations, choose, count, list_allowed
from mpigraph.kernels.weighted import alias_tables


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [-1, 0, 1, 4, 64, 65, 100])
def test_uniform_counts_and_choices(fanout: int, replace: bool, dtype: str) -> None:
    g = Csc([0, 1, 3, 4, 5, 64, 65, 66, 99, 100, 101, 300], dtype, first_id=50, first_eid=1000)
    rows = np.random.default_rng(fanout + 1).permutation(len(g.degrees))
    for key in (np.uint64(3), np.uint64(2**64 - 5)):
        for row, src, eid in zip(rows, *g.sample(rows, fanout, replace, key), strict=True):
            degree = int(g.degrees[row])
            every = np.arange(g.indptr[row], g.indptr[row + 1])
            local = eid - 1000
            assert len(src) == reference_count(degree, fanout, replace)
            assert np.isin(local, every).all()
            assert np.array_equal(src, g.indices[local])
            if fanout < 0 or not replace:
                assert len(np.unique(eid)) == len(eid)
            if fanout < 0 or (not replace and degree <= fanout):
                assert np.array_equal(local, every)


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [-1, 0, 1, 3, 70])
def test_weighted_counts_and_choices(fanout: int, replace: bool, kind: str) -> None:
    """The same with prepared tables and without."""
    g = Csc([0, 1, 2, 5, 8, 80, 100], "int32", first_id=9, first_eid=30)
    rng = np.random.default_rng(4)
    weights = (rng.integers(0, 3, len(g.indices)) * rng.random(len(g.indices))).astype(kind)
    weights[g.indptr[3] : g.indptr[4]] = 0  # a row with neighbours, none of them alive
    for key in (np.uint64(1), np.uint64(2)):
        rows = np.arange(len(g.degrees))
        drawn, ready = (g.sample(rows, fanout, replace, key, weights, prepared=prepared) for prepared in (False, True))
        assert all(np.array_equal(*map(np.concatenate, pair)) for pair in zip(drawn, ready, strict=True))
        for row, src, eid in zip(rows, *drawn, strict=True):
            alive = np.flatnonzero(weights[g.indptr[row] : g.indptr[row + 1]] > 0) + g.indptr[row]
            assert len(src) == reference_count(len(alive), fanout, replace)
            assert np.isin(eid - 30, alive).all()
            assert np.array_equal(src, g.indices[eid - 30])
            if fanout < 0:
                assert np.array_equal(eid - 30, alive)
            elif not replace:
                assert len(np.unique(eid)) == len(eid)


def test_a_heavy_edge_does_not_hide_the_others() -> None:
    g, weights = Csc([50]), np.full(50, 1e-9)
    weights[7] = 1.0
    firsts = []
    for key in range(300):  # almost every draw meets edge 7 again, so the rest comes from the pass over the edges
        eid = g.sample([0], 20, False, np.uint64(key), weights)[1][0]
        assert len(np.unique(eid)) == 20 and eid[0] == 7
        firsts.append(eid[1])
    assert np.bincount(firsts, minlength=50).max() < 20  # the light ones are alike


@pytest.mark.parametrize("degree", [66, 100, 3000])
@pytest.mark.parametrize("steps", [2, 1 << 60])
def test_many_weighted_draws_take_the_first_arrivals(degree: int, steps: int) -> None:
    """In their order, as defined by one hash an edge; of equal arrivals the first edge."""
    g, key = Csc([degree]), np.uint64(12)
    weights = np.random.default_rng(degree).integers(0, steps, degree) * 5e-324  # all or some arrive at infinity
    hashes = [mix64(combine(key, 0) + np.uint64((1 << 32) + t)) for t in range(degree)]
    uniform = np.array([uniform01(np.uint64(h)) for h in hashes])
    with np.errstate(divide="ignore", over="ignore"):
        arrivals = np.where(weights > 0, -np.log(uniform) / weights, np.nan)
    order = np.argsort(arrivals, kind="stable")[: int((weights > 0).sum())]  # NaN last
    for fanout in range(65, len(order), 1 if degree <= 100 else 500):
        assert g.sample([0], fanout, False, key, weights)[1][0].tolist() == order[:fanout].tolist()


def test_weighted_draws_take_time_in_proportion_to_their_number() -> None:
    g = Csc([50_000])
    weights = np.random.default_rng(0).random(50_000)

    def seconds(fanout: int) -> float:
        begin = time.thread_time()
        g.sample([0], fanout, False, np.uint64(1), weights)
        return time.thread_time() - begin

    seconds(100)  # compiled
    assert min(seconds(20_000) for _ in range(3)) < 30 * min(seconds(500) for _ in range(3))  # 120 if quadratic


@pytest.mark.parametrize("bad", [-1.0, -1e-30, float("nan"), float("inf")])
def test_the_first_bad_weight_is_found(bad: float) -> None:
    g = Csc([2, 3, 4])
    weights = np.ones(9)
    weights[[4, 7]] = bad

    def first_bad(ids: list[int]) -> int:
        rows = np.array(ids)
        dst = Destinations(rows, rows, 2, False, np.array([0], np.uint64))
        return count(dst, g.edges(weights), np.arange(len(ids)), candidates(3), np.zeros(3, np.int64))

    assert (first_bad([0, 1, 2]), first_bad([2, 0]), first_bad([0])) == (4, 7, -1)
    assert alias_tables(g.indptr, weights, np.empty(9, np.uint64), np.empty(3, np.int32)) == 4


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [2, 70])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_draw_depends_on_key_and_node_alone(weighted: bool, fanout: int, replace: bool) -> None:
    g, rng = Csc([90, 3, 80, 0, 75, 2, 100, 71], first_id=5), np.random.default_rng(0)
    weights = rng.random(len(g.indices)) if weighted else None
    drawn = g.sample(np.arange(8), fanout, replace, combine(1, 2), weights)[1]
    for rows in ([7, 0, 4], [2], [6, 6, 1, 3, 0]):  # other order, other company
        again = g.sample(rows, fanout, replace, combine(1, 2), weights)[1]
        assert all(np.array_equal(drawn[row], eids) for row, eids in zip(rows, again, strict=True))


@pytest.mark.parametrize("kind", ["float64", "bool"])
@pytest.mark.parametrize(("prepared", "excluded"), [(False, []), (True, []), (False, [1, 2, 5, 8])])
@pytest.mark.parametrize("alive_now", [0, 1, 4, 6])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [-1, 3])
def test_weights_that_change_between_the_passes_lead_neither_out_of_the_row_nor_to_an_excluded_edge(
    alive_now: int, replace: bool, fanout: int, prepared: bool, excluded: list[int], kind: str
) -> None:
    """Another rank may write weights while this one samples; what is drawn then matters less than where it lies."""
    g = Csc([2, 6, 2])
    without = np.array(excluded) if excluded else None
    weights = np.array([1.0] * 6 + [0.0] * 2 + [1.0] * 2).astype(kind)  # four edges of the middle row can be drawn
    masked = kind == "bool"
    edges, ids = g.edges(weights, prepared=True), np.array([1])
    dst, where = Destinations(ids, ids, fanout, replace, np.array([3], np.uint64)), np.array([0])
    rows, counts = candidates(1), np.zeros(1, np.int64)
    count(dst, edges if prepared else g.edges(weights, excluded=without), where, rows, counts)
    weights[2:8] = np.arange(6) < alive_now
    prepare, table = (list_allowed, edges.order) if masked else (alias_tables, edges.table)
    prepare(g.indptr, weights, table, np.empty(3, np.int32))
    room = np.full(counts[0] + 2, -7)  # one more at each end
    picks, offsets = room[1:-1], np.array([0, counts[0]])
    choose(dst, edges if prepared else g.edges(weights, excluded=without), where, rows, offsets, picks)
    assert np.isin(picks, np.setdiff1d(np.arange(2, 8), excluded)).all()
    assert room[0] == room[-1] == -7


@pytest.mark.parametrize("kind", [None, *WEIGHTS])
def test_borrowed_arrays_are_neither_freed_early_nor_kept(kind: str | None) -> None:
    """Only the call holds the weights and what is derived from them, while a thread takes all memory that is freed."""
    g, rng, rows = Csc([90, 3, 80, 0, 75] * 200), np.random.default_rng(0), np.arange(1000)
    weights = np.ones(len(g.indices)) if kind is None else (rng.random(len(g.indices)) * 3).astype(kind)
    excluded, over = np.arange(0, len(weights), 70), threading.Event()  # rows are listed and copied, too

    def draw() -> tuple[np.ndarray, weakref.ref[np.ndarray]]:
        own = weights.copy()
        picks = g.sample(rows, 70, False, np.uint64(3), None if kind is None else own, excluded=excluded.copy())[1]
        return np.concatenate(picks), weakref.ref(own)

    def take() -> None:
        while not over.is_set():
            gc.collect(0)
            [np.full(size, 77, np.uint8) for size in (weights.nbytes, excluded.nbytes) for _ in range(3)]

    want, thread = draw()[0], threading.Thread(target=take)
    thread.start()
    drawn = [draw() for _ in range(10)]
    over.set()
    thread.join()
    assert all(np.array_equal(picks, want) and alive() is None for picks, alive in drawn)
