"""Kernels against plain references: hashes, counts and choices of neighbours, renumbering, moves of rows."""

import re
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from jobs import run_script

from mpigraph.errors import OutOfRangeError
from mpigraph.kernels.compact import LocalIds
from mpigraph.kernels.exclude import copy_kept, recount_weighted, shorten_rows, step_over
from mpigraph.kernels.masked import choose_masked, list_allowed
from mpigraph.kernels.rng import combine, draw_below, fingerprint, mix64, uniform01
from mpigraph.kernels.row_ops import (
    as_words,
    find_runs,
    gather_rows,
    order_by_range,
    place_ragged,
    scatter_rows,
)
from mpigraph.kernels.sample import Candidates, Destinations, choose_uniform, copy_neighbours, count_uniform
from mpigraph.kernels.search import find_in_rows
from mpigraph.kernels.weighted import alias_tables, choose_weighted, count_weighted

I64 = npt.NDArray[np.int64]
WEIGHTS = ["float32", "float64", "bool"]


class Csc:
    """Rows of the degrees given; source of edge e is ``7 * e + 1``, so a source names its edge."""

    def __init__(self, degrees: list[int], dtype: str = "int64", first_id: int = 0, first_eid: int = 0) -> None:
        self.degrees = np.array(degrees, np.int64)
        self.indptr = np.concatenate([[0], np.cumsum(self.degrees)]).astype(np.int64)
        self.indices = (7 * np.arange(self.indptr[-1]) + 1).astype(dtype)
        self.first_id, self.first_eid = first_id, first_eid

    def sample(
        self,
        rows: I64,
        fanout: int,
        replace: bool,
        key: np.uint64,
        weights: np.ndarray | None = None,
        *,
        prepared: bool = False,
        shares: list[I64] | None = None,
        excluded: I64 | None = None,
    ) -> tuple[list[I64], list[I64]]:
        """All passes on one host: sources and edge ids of each row; the frontier in several shares, if given."""
        ids = np.asarray(rows, np.int64) + self.first_id
        dst, counts = Destinations(ids, fanout, replace, key), np.zeros(len(ids), np.int64)
        shares = [np.arange(len(ids))] if shares is None else shares
        masked = weights is not None and weights.dtype == bool
        table, drawable = np.empty(0, np.uint32 if masked else np.uint64), np.empty(0, np.int32)
        if weights is not None and prepared:
            table, drawable = np.empty(len(weights), table.dtype), np.empty(len(self.degrees), np.int32)
            assert (list_allowed if masked else alias_tables)(self.indptr, weights, table, drawable) == -1
        out = np.empty(0, np.int64) if excluded is None else excluded
        rows, starts = candidates(len(ids)), np.zeros(len(ids), np.int64)
        for share in shares:
            if weights is None:
                count_uniform(dst, self.indptr, self.first_id, share, rows, counts)
            else:
                where = (self.indptr, self.first_id, weights, drawable, share)
                assert count_weighted(dst, *where, rows, counts) == -1
            if excluded is not None:
                shorten_rows(dst, out, share, rows, counts)
            if weights is not None:
                recount_weighted(dst, weights, out, share[rows.num_excluded[share] > 0], rows, counts)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        src, picks = np.full(offsets[-1], -1, self.indices.dtype), np.full(offsets[-1], -1, np.int64)
        for share in reversed(shares):
            if weights is None:
                choose_uniform(dst, share, rows, offsets, picks)
                step_over(out, share, rows.begins, rows, offsets, picks)
            else:
                choose = choose_masked if masked else choose_weighted
                whole, short = (share[(rows.num_excluded[share] > 0) == some] for some in (False, True))
                choose(dst, weights, table, whole, rows, offsets, picks)
                kept = np.empty(rows.degrees[short].sum(), weights.dtype)
                copy_kept(weights, out, short, rows, starts, kept)
                choose(dst, kept, table[:0], short, rows._replace(begins=starts), offsets, picks)
                step_over(out, short, starts, rows, offsets, picks)
            copy_neighbours(self.indices, share, offsets, self.first_eid, picks, src)
        return np.split(src, offsets[1:-1]), np.split(picks, offsets[1:-1])

    def without(self, excluded: I64) -> tuple["Csc", I64]:
        """The rows without some edges, and the edges that are left."""
        kept = np.setdiff1d(np.arange(len(self.indices)), excluded)
        rest = Csc(np.diff(np.searchsorted(kept, self.indptr)).tolist(), first_id=self.first_id)
        rest.indices = self.indices[kept]
        return rest, kept


def candidates(count: int) -> Candidates:
    return Candidates(*(np.zeros(count, np.int64) for _ in Candidates._fields))


def reference_count(alive: int, fanout: int, replace: bool) -> int:
    if fanout < 0 or alive == 0:
        return alive
    return fanout if replace else min(alive, fanout)


# Hashes


def test_mix64_is_splitmix64() -> None:
    def reference(x: int) -> int:
        x = (x + 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    assert int(mix64(np.uint64(0))) == 0xE220A8397B1DCDAF  # the published first number of seed 0
    for x in [1, 2, 2**32, 2**63, 2**64 - 1, *map(int, np.random.default_rng(0).integers(0, 2**63, 50))]:
        assert int(mix64(np.uint64(x))) == reference(x)
        assert int(combine(5, x)) == reference(5 ^ reference(x))


def test_combine_tells_keys_and_orders_apart() -> None:
    keys = [combine(*words) for words in [(1,), (1, 2), (2, 1), (1, 2, 3), (1, 3, 2), (1, 2, 0), (-1, 2)]]
    assert len(set(map(int, keys))) == len(keys)
    assert all(isinstance(key, np.uint64) for key in keys)
    assert combine(-1, -2) == combine(2**64 - 1, 2**64 - 2)


def test_fingerprint_is_of_the_collection_not_its_order() -> None:
    ids = np.random.default_rng(1).integers(0, 2**40, 100)
    assert fingerprint(ids) == fingerprint(np.sort(ids)) == fingerprint(ids[::-1].copy())
    others = [ids[:-1], np.append(ids, 0), np.append(ids[:-1], ids[-1] + 1), np.append(ids, ids[0]), ids[:0]]
    assert len({int(fingerprint(np.ascontiguousarray(x))) for x in [ids, *others]}) == 6


def test_ranges_of_draws() -> None:
    highest, lowest = np.uint64(2**64 - 1), np.uint64(0)
    for n in (1, 2, 3, 1000, 2**31, 2**32 - 1):
        assert draw_below(lowest, n) == 0
        assert draw_below(highest, n) == n - 1
        assert draw_below(np.uint64(1 << 63), n) == n // 2
    assert 0 < uniform01(lowest) < 1e-15
    assert uniform01(np.uint64(1 << 63)) == pytest.approx(0.5)
    assert 0.999 < uniform01(np.uint64(2**64 - 2**12)) < 1
    assert uniform01(highest) < 1


# Neighbours


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


def test_uniform_draws_alike_for_repeated_rows() -> None:
    g = Csc([5, 9, 3])
    src, _ = g.sample(np.array([1, 0, 1]), 2, False, np.uint64(8))
    assert np.array_equal(src[0], src[2])


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [-1, 0, 1, 3, 70])
def test_weighted_counts_and_choices(fanout: int, replace: bool, kind: str, prepared: bool) -> None:
    g = Csc([0, 1, 2, 5, 8, 80, 100], "int32", first_id=9, first_eid=30)
    rng = np.random.default_rng(4)
    weights = (rng.integers(0, 3, len(g.indices)) * rng.random(len(g.indices))).astype(kind)
    weights[g.indptr[3] : g.indptr[4]] = 0  # a row with neighbours, none of them alive
    for key in (np.uint64(1), np.uint64(2)):
        rows = np.arange(len(g.degrees))
        for row, src, eid in zip(rows, *g.sample(rows, fanout, replace, key, weights, prepared=prepared), strict=True):
            alive = np.flatnonzero(weights[g.indptr[row] : g.indptr[row + 1]] > 0) + g.indptr[row]
            assert len(src) == reference_count(len(alive), fanout, replace)
            assert np.isin(eid - 30, alive).all()
            assert np.array_equal(src, g.indices[eid - 30])
            if fanout < 0:
                assert np.array_equal(eid - 30, alive)
            elif not replace:
                assert len(np.unique(eid)) == len(eid)


def test_zero_weights_at_the_ends_are_never_drawn() -> None:
    g = Csc([4])
    weights = np.array([0.0, 1e-300, 1.0, 0.0])
    for key in range(200):
        for replace in (False, True):
            _, eid = g.sample([0], 1, replace, np.uint64(key), weights)
            assert eid[0][0] in (1, 2)


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("replace", [False, True])
def test_prepared_tables_give_the_same_draws(replace: bool, kind: str) -> None:
    g = Csc([0, 1, 2, 5, 8, 80, 1000], "int32")
    rng = np.random.default_rng(5)
    weights = (rng.integers(0, 2, len(g.indices)) * rng.random(len(g.indices)) ** 8).astype(kind)
    for fanout in (1, 3, 40):
        for key in (np.uint64(1), np.uint64(2)):
            bare, ready = (g.sample(np.arange(7), fanout, replace, key, weights, prepared=p)[1] for p in (False, True))
            assert all(np.array_equal(a, b) for a, b in zip(bare, ready, strict=True))


def test_a_heavy_edge_does_not_hide_the_others() -> None:
    g, weights = Csc([50]), np.full(50, 1e-9)
    weights[7] = 1.0
    firsts = []
    for key in range(300):  # almost every draw meets edge 7 again, so the rest comes from the pass over the edges
        eid = g.sample([0], 20, False, np.uint64(key), weights)[1][0]
        assert len(np.unique(eid)) == 20 and eid[0] == 7
        firsts.append(eid[1])
    assert np.bincount(firsts, minlength=50).max() < 20  # the light ones are alike


@pytest.mark.parametrize("bad", [-1.0, -1e-30, float("nan"), float("inf")])
def test_the_first_bad_weight_is_found(bad: float) -> None:
    g = Csc([2, 3, 4])
    weights = np.ones(9)
    weights[[4, 7]] = bad

    def count(ids: list[int]) -> int:
        dst, none = Destinations(np.array(ids), 2, False, np.uint64(0)), np.empty(0, np.int32)
        where = (g.indptr, 0, weights, none, np.arange(len(ids)))
        return count_weighted(dst, *where, candidates(3), np.zeros(3, np.int64))

    assert (count([0, 1, 2]), count([2, 0]), count([0])) == (4, 7, -1)
    assert alias_tables(g.indptr, weights, np.empty(9, np.uint64), np.empty(3, np.int32)) == 4


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [2, 70])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_draw_depends_on_key_and_node_alone(weighted: bool, fanout: int, replace: bool) -> None:
    whole = Csc([90, 3, 80, 0, 75, 2, 100, 71])
    weights = np.random.default_rng(0).random(len(whole.indices)) if weighted else None
    key = combine(1, 2)
    src, eid = whole.sample(np.arange(8), fanout, replace, key, weights)
    for rows in ([7, 0, 4], [2], [6, 6, 1, 3, 0]):  # other order, other company
        for row, again in zip(rows, whole.sample(rows, fanout, replace, key, weights)[1], strict=True):
            assert np.array_equal(eid[row], again)
    for first in (0, 2, 5):  # the rows from ``first`` on, as another host would hold them
        begin = int(whole.indptr[first])
        part = Csc(whole.degrees[first:].tolist(), first_id=first, first_eid=begin)
        part.indices = whole.indices[begin:]
        share = None if weights is None else weights[begin:]
        found = part.sample(np.arange(8 - first), fanout, replace, key, share)
        assert np.array_equal(np.concatenate(found[0]), np.concatenate(src[first:]))
        assert np.array_equal(np.concatenate(found[1]), np.concatenate(eid[first:]))
    other = whole.sample(np.arange(8), fanout, replace, combine(1, 3), weights)[1]
    assert not np.array_equal(np.concatenate(other), np.concatenate(eid))


@pytest.mark.parametrize("kind", ["float64", "bool"])
@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("alive_now", [0, 1, 4, 6])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [-1, 3])
def test_weights_that_change_between_the_passes_never_lead_out_of_the_row(
    alive_now: int, replace: bool, fanout: int, prepared: bool, kind: str
) -> None:
    """Another rank may write weights while this one samples; what is drawn then matters less than where it lies."""
    g = Csc([2, 6, 2])
    weights = np.array([1.0] * 6 + [0.0] * 2 + [1.0] * 2).astype(kind)  # four edges of the middle row can be drawn
    masked = kind == "bool"
    prepare, choose = (list_allowed, choose_masked) if masked else (alias_tables, choose_weighted)
    table, drawable = np.empty(10, np.uint32 if masked else np.uint64), np.empty(3, np.int32)
    assert prepare(g.indptr, weights, table, drawable) == -1
    dst, where = Destinations(np.array([1]), fanout, replace, np.uint64(3)), np.array([0])
    rows, counts = candidates(1), np.zeros(1, np.int64)
    count_weighted(dst, g.indptr, 0, weights, drawable, where, rows, counts)
    weights[2:8] = np.arange(6) < alive_now
    prepare(g.indptr, weights, table, drawable)
    table = table if prepared else table[:0]
    room = np.full(counts[0] + 2, -7)  # one more at each end
    picks, offsets = room[1:-1], np.array([0, counts[0]])
    choose(dst, weights, table, where, rows, offsets, picks)
    assert ((picks >= 2) & (picks < 8)).all()
    assert room[0] == room[-1] == -7


@pytest.mark.parametrize("weighted", [False, True])
def test_calls_for_several_hosts_fill_one_output(weighted: bool) -> None:
    g = Csc([6, 7, 8, 9, 10])
    key, rows = np.uint64(5), np.array([4, 0, 3, 1, 2])
    weights = np.random.default_rng(1).random(len(g.indices)) if weighted else None
    want = g.sample(rows, 3, False, key, weights)[1]
    got = g.sample(rows, 3, False, key, weights, shares=[np.array([0, 2]), np.array([1, 3, 4])])[1]
    assert np.array_equal(np.concatenate(got), np.concatenate(want))


# Excluded edges

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
    excluded = np.array([1, 2, 5, 8])  # in the middle row the edges 3, 4, 6 and 7 are left, of which 3 and 4 are alive
    dst, where = Destinations(np.array([1]), fanout, replace, np.uint64(3)), np.array([0])
    none = np.empty(0, np.uint32 if kind == "bool" else np.uint64)
    rows, counts, starts = candidates(1), np.zeros(1, np.int64), np.zeros(1, np.int64)
    count_weighted(dst, g.indptr, 0, weights, np.empty(0, np.int32), where, rows, counts)
    shorten_rows(dst, excluded, where, rows, counts)
    recount_weighted(dst, weights, excluded, where, rows, counts)
    assert (rows.degrees[0], rows.num_candidates[0], counts[0]) == (4, 2, 3 if replace and fanout > 0 else 2)
    weights[2:8] = np.arange(6) < alive_now
    kept = np.empty(4, weights.dtype)
    copy_kept(weights, excluded, where, rows, starts, kept)
    room = np.full(counts[0] + 2, -7)  # one more at each end
    picks, offsets = room[1:-1], np.array([0, counts[0]])
    choose = choose_masked if kind == "bool" else choose_weighted
    choose(dst, kept, none, where, rows._replace(begins=starts), offsets, picks)
    step_over(excluded, where, starts, rows, offsets, picks)
    assert np.isin(picks, [3, 4, 6, 7]).all()
    assert room[0] == room[-1] == -7


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_edges_are_found_by_their_ends(dtype: str) -> None:
    rng, n = np.random.default_rng(3), 40
    degrees = rng.integers(0, 9, n)
    degrees[[0, 5, 39]] = [0, 500, 3]
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    rows = [np.sort(rng.integers(0, 60, d)) for d in degrees]  # parallel edges occur
    indices = np.concatenate(rows).astype(dtype)
    src, dst = (x.reshape(-1) for x in np.meshgrid(np.arange(-1, 62), np.arange(n)))
    want = np.array([u in rows[v] for u, v in zip(src, dst, strict=True)])
    found = np.zeros(len(src), np.bool_)
    for positions in np.array_split(rng.permutation(len(src)), 3):
        find_in_rows(indptr, indices, 1000, src, dst + 1000, positions, found)
    assert np.array_equal(found, want) and 0 < want.sum() < len(want)
    find_in_rows(indptr, indices, 0, src, dst, np.empty(0, np.int64), found)


# Renumbering


def reference_positions(seeds: I64, batches: list[I64]) -> tuple[list[int], list[list[int]]]:
    listed, where = list(seeds), {}
    for i, x in enumerate(listed):
        where.setdefault(x, i)
    found = []
    for batch in batches:
        for x in batch:
            if x not in where:
                where[x] = len(listed)
                listed.append(x)
        found.append([where[x] for x in batch])
    return listed, found


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("seeds", "spread"), [(0, 50), (1, 5), (10, 40), (300, 10**6), (33, 2**31 - 1)])
def test_local_ids(seeds: int, spread: int, dtype: type) -> None:
    rng = np.random.default_rng(seeds)
    first = rng.integers(0, spread, seeds)  # repeated ids occur
    batches = [rng.integers(0, spread, n).astype(dtype) for n in (0, 5, 70, 1, 3000)]  # grows several times
    listed, found = reference_positions(first.tolist(), [b.tolist() for b in batches])
    local = LocalIds(spread)
    for _ in range(3):  # the map is not cleared in between
        local.reset(first)
        assert np.array_equal(local.ids, first)
        for batch, want in zip(batches, found, strict=True):
            got = local.insert(batch)
            assert got.dtype == np.int32
            assert np.array_equal(got, want)
        assert local.count == len(listed) and local.ids.dtype == np.int64
        assert np.array_equal(local.ids, listed)
        local.reset(batches[-1].astype(np.int64)[::-1])


def test_local_ids_do_not_keep_the_callers_array() -> None:
    seeds = np.array([4, 4, 9])
    local = LocalIds(2**40)
    local.reset(seeds)
    seeds[:] = 0
    assert local.insert(np.array([9, 4, 2**40 - 1], np.int64)).tolist() == [2, 0, 3]
    assert local.ids.tolist() == [4, 4, 9, 2**40 - 1]


def test_positions_of_many_minibatches_run_out_of_bits() -> None:
    local = LocalIds(2**50)  # 13 bits are left for positions, of this and of earlier minibatches
    for first in range(0, 50_000, 500):
        local.reset(np.array([first]))
        assert np.array_equal(local.insert(first + np.arange(500)), np.arange(500))
    with pytest.raises(OutOfRangeError, match="50 nodes"):
        local.insert(np.arange(20_000))


# Rows

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
    gather_rows(words, rows, positions, as_words(out).view(words.dtype))
    assert np.array_equal(out, want)
    values = rng.integers(0, 256, (11, *shape)).astype(dtype)
    want = table.copy()
    for r, p in zip(rows, positions, strict=True):  # the last of equal rows wins
        want[r] = values[p]
    scatter_rows(as_words(values).view(words.dtype), positions, words, rows)
    assert np.array_equal(table, want)


def test_as_words_takes_the_widest_word_that_fits() -> None:
    for shape, dtype, width in [((3,), "u1", 1), ((3,), "f2", 2), ((7,), "f4", 4), ((8,), "u1", 8), ((4,), "f4", 8)]:
        assert as_words(np.zeros((4, *shape), dtype)).dtype.itemsize == width
    odd = np.zeros(33, np.uint8)[1:].reshape(4, 8)  # not aligned to a word
    assert as_words(odd).ctypes.data == odd.ctypes.data
    assert odd.ctypes.data % as_words(odd).dtype.itemsize == 0
    assert as_words(np.zeros((0, 3), "f4")).shape[0] == 0


@pytest.mark.parametrize("n", [0, 1, 500])
@pytest.mark.parametrize("offsets", [[0, 30], [0, 0, 7, 7, 29, 30], [0, 10, 20, 30, 30]])
def test_order_by_range(n: int, offsets: list[int]) -> None:
    ids = np.random.default_rng(n).integers(0, 30, n)
    order, bounds = order_by_range(ids, np.array(offsets))
    for k, (low, high) in enumerate(pairwise(offsets)):
        assert np.array_equal(order[bounds[k] : bounds[k + 1]], np.flatnonzero((ids >= low) & (ids < high)))


@pytest.mark.parametrize("rows", [[], [5], [5, 5, 5], [1, 2, 3], [0, 2, 4], [0, 0, 1, 1, 4, 5, 5, 6, 9, 9]])
def test_find_runs(rows: list[int]) -> None:
    given = np.array(rows, np.int64)
    starts, lengths, place = find_runs(given)
    moved = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)] or [given])
    assert np.array_equal(moved, np.unique(given))  # nothing twice, nothing unasked
    assert np.array_equal(moved[place], given)
    assert len(starts) == np.count_nonzero(np.diff(np.unique(given)) > 1) + (len(rows) > 0)


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


COMPILED = """
import importlib, pkgutil
from numba.core.dispatcher import Dispatcher
import mpigraph.kernels

def compiled():
    names = [module.name for module in pkgutil.iter_modules(mpigraph.kernels.__path__)]
    modules = [importlib.import_module(f"mpigraph.kernels.{name}") for name in names]
    kernels = {id(k): k for module in modules for k in vars(module).values() if isinstance(k, Dispatcher)}
    return {(k.py_func.__name__, str(types)) for k in kernels.values() for types in k.signatures}

mpigraph.kernels.warm_up()
warm = compiled()
"""
EPOCH = """
from mpigraph.nn import relu_dropout
sampler = NeighborSampler([2, 3])
loader = dist.DistNodeDataLoader(g, torch.arange(rank, 40, 2), sampler, batch_size=10, shuffle=True, features=["feat"])
for inputs, seeds, blocks in loader:
    relu_dropout(blocks[0].srcdata["feat"].requires_grad_(), 0.5, True).sum().backward()
print(f"of {len(warm)} compiled late: {sorted(compiled() - warm)}", flush=True)
"""


@pytest.mark.parametrize(("ranks", "per_node"), [(1, "0"), (2, "1")])
def test_training_compiles_nothing_after_the_warm_up(tmp_path, oracle, ranks: int, per_node: str) -> None:
    options = {"ranks": ranks, "servers": 0, "before": COMPILED, "MPIGRAPH_RANKS_PER_NODE": per_node}
    status, output, _ = run_script(tmp_path, oracle(3), EPOCH, **options)
    assert status == 0, output
    assert len(re.findall(r"of [1-9]\d+ compiled late: \[\]", output)) == ranks, output
