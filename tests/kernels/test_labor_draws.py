"""LABOR's kernels against plain references, and the distribution of their draws by chi-square. Seeds are fixed."""

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
from chi_square import SUSPICIOUS, bits, equal, p_value

from mpigraph.kernels.labor import Numbers, source_numbers
from mpigraph.kernels.rng import combine, mix64
from mpigraph.kernels.sample import Candidates, Destinations, Edges, choose as choose_edges

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
M32 = 2**32 - 1
KEYS = 40_000


def mixed(x: int, between: int = 0) -> int:
    x = (x ^ (x >> 16)) * 0x7FEB352D & M32
    x = (x ^ (x >> 15) ^ between) * 0x846CA68B & M32
    return x ^ (x >> 16)


def number_of(source: int, low: int, high: int) -> int:
    """The number of a source under the halves of a key, in integers of Python."""
    upper = source >> 32
    return mixed(source & M32 ^ low ^ mixed(upper * (high | 1) & M32), high)


def numbers_of(sources: npt.NDArray[np.signedinteger], key: np.uint64, period: int = 0, phase: int = 0) -> I64:
    numbers = np.empty(len(sources), np.uint32)
    source_numbers(sources, key, period, phase, numbers)
    return numbers.astype(np.int64)


def numbers_of_edges(sources: npt.NDArray[np.signedinteger], key: np.uint64, period: int = 0, phase: int = 0) -> I64:
    """The numbers of a row's edges: of parallel ones each is the hash of the one before."""
    numbers = numbers_of(sources, key, period, phase)
    for j in np.flatnonzero(sources[1:] == sources[:-1]).tolist():
        numbers[j + 1] = mixed(int(numbers[j]) ^ 0x5BD1E995)
    return numbers


def halves(key: int) -> tuple[int, int]:
    """The mixed key, lower half first."""
    x = int(mix64(np.uint64(key)))
    return x & M32, x >> 32


def choose(
    lists: list[npt.NDArray[np.signedinteger]],
    k: int,
    keys: U64,
    weights: npt.NDArray[np.generic] | None = None,
    period: int = 0,
    phase: int = 0,
) -> list[I64]:
    """The places that each row takes in its list of sources; all rows get ``min(k, drawable)``."""
    degrees = np.array([len(row) for row in lists])
    begins = np.cumsum(degrees) - degrees
    drawable, positions = degrees, np.arange(len(lists))
    if weights is not None:
        drawable = np.array([np.count_nonzero(w > 0) for w in np.split(weights, begins[1:])])
    offsets = np.concatenate([[0], np.cumsum(np.minimum(drawable, k))])
    nothing = np.zeros(len(lists), np.int64)
    rows = Candidates(begins, degrees, drawable, *(nothing for _ in range(3)))
    dst = Destinations(positions, positions, k, False, keys)
    picks = np.full(offsets[-1], -1, np.int64)
    numbers = Numbers(np.concatenate(lists), period, phase)
    edges = Edges(np.append(begins, degrees.sum()), 0, weights=weights, drawable=drawable, labor=numbers)
    choose_edges(dst, edges, positions, rows, offsets, picks)
    return [own - begin for own, begin in zip(np.split(picks, offsets[1:-1]), begins, strict=True)]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_numbers_are_those_of_plain_integers(dtype: str) -> None:
    sources = np.concatenate([np.arange(20), [2**31 - 1, 2**31 - 2]]).astype(dtype)
    if dtype == "int64":
        sources = np.concatenate([sources, 2**31 + np.arange(5), 2**32 + np.arange(40), 7 * 2**40 + np.arange(40)])
    for key in (np.uint64(0), np.uint64(2**64 - 1), combine(3, 4)):
        expected = [number_of(source, *halves(int(key))) for source in sources.tolist()]
        assert numbers_of(sources, key).tolist() == expected


def test_numbers_are_one_to_one() -> None:
    sources = np.arange(2**20, dtype=np.int32)
    assert len(np.unique(numbers_of(sources, combine(5)))) == len(sources)


def test_a_source_renews_its_number_once_in_a_period() -> None:
    sources, period, key = np.arange(10_000) + 2**33, 8, combine(1)
    old, new = numbers_of(sources, key), numbers_of(sources, np.uint64(int(key) + 1))
    steps = [numbers_of(sources, key, period, phase) for phase in range(period)]
    assert np.array_equal(steps[0], old)
    renewed = [int((now != before).sum()) for before, now in zip(steps, [*steps[1:], new], strict=True)]
    assert sum(renewed) == len(sources)
    assert all(abs(count - len(sources) / period) < 5 * np.sqrt(len(sources) / period) for count in renewed)
    assert all(((step == old) | (step == new)).all() for step in steps)


@pytest.mark.parametrize("first", [0, 2**31 - 100_000, 2**32 - 50_000, 2**40])
@pytest.mark.parametrize("k", [1, 4, 10, 100, 2500])
def test_each_row_takes_the_smallest_numbers(k: int, first: int) -> None:
    """Rows shorter than k, of several chunks, and with parallel edges."""
    dtype = np.int32 if first < 2**31 - 1 and first + 100_000 <= 2**31 else np.int64
    rng = np.random.default_rng(k)
    degrees = [0, 1, 3, 4, 5, 11, 40, 64, 99, 700, 2048, 2049, 5000, 20_000]
    lists = [(first + np.sort(rng.integers(0, 2 * d if d % 2 else d // 4 + 1, d))).astype(dtype) for d in degrees]
    for key in (combine(k), combine(k, 1)):
        for period, phase in ((0, 0), (5, 3)):
            places = choose(lists, k, np.atleast_1d(key), period=period, phase=phase)
            for row, own in zip(lists, places, strict=True):
                order = np.lexsort((np.arange(len(row)), numbers_of_edges(row, key, period, phase)))
                assert sorted(own.tolist()) == sorted(order[:k].tolist())


def test_rows_may_have_keys_of_their_own() -> None:
    lists = [np.arange(30), np.arange(30), np.arange(30)]
    keys = np.array([combine(1), combine(2), combine(1)])
    first, second, third = choose(lists, 5, keys)
    assert np.array_equal(first, third) and not np.array_equal(first, second)
    assert np.array_equal(second, choose(lists[:1], 5, keys[1:2])[0])


@pytest.mark.parametrize(
    "kind", ["float32", "float64", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("bool", "uint8"))]
)
@pytest.mark.parametrize("k", [1, 4, 100, 1000])
def test_each_weighted_row_takes_the_first_arrivals(k: int, kind: str) -> None:
    rng = np.random.default_rng(k)
    lists = [2**35 + np.sort(rng.integers(0, 2 * d + 9, d)) for d in (0, 1, 4, 9, 300, 5000)]
    total = sum(map(len, lists))
    weights = (rng.integers(0, 3, total) * rng.random(total) * 4).astype(kind)
    weights[5:14] = 0  # a row with sources, none of them drawable
    key, at = combine(9), 0
    for row, own in zip(lists, choose(lists, k, np.atleast_1d(key), weights), strict=True):
        w = weights[at : at + len(row)].astype(np.float64)
        at += len(row)
        alive = np.flatnonzero(w > 0)
        arrivals = -np.log1p(-(numbers_of_edges(row, key)[alive] + 0.5) / 2**32) / w[alive]
        assert sorted(own.tolist()) == sorted(alive[np.argsort(arrivals, kind="stable")[:k]].tolist())


@pytest.mark.parametrize("weighted", [False, True])
def test_parallel_edges_are_as_likely_as_others(weighted: bool) -> None:
    row = np.array([3, 5, 5, 5, 8, 9], np.int32)
    keys = np.array([combine(22, i) for i in range(KEYS)])
    for k in (1, 2, 4):
        taken = choose([row] * KEYS, k, keys, np.ones(6 * KEYS, np.float32) if weighted else None)
        counts = np.bincount(np.concatenate(taken), minlength=6)
        expected = KEYS * k / 6
        assert (abs(counts - expected) < 5 * np.sqrt(expected)).all(), counts


@pytest.mark.parametrize(
    "sources",
    [np.arange(6, dtype=np.int32), np.arange(6, dtype=np.int32) << 12, 2**32 * np.arange(1, 7), 2**40 + np.arange(6)],
    ids=["next to each other", "far apart", "alike below 2**32", "above 2**32"],
)
def test_all_subsets_are_equally_likely(sources: npt.NDArray[np.signedinteger]) -> None:
    """So each source is taken with probability k/d, and each pair is as in uniform sampling."""
    keys = np.array([combine(21, i) for i in range(KEYS)])
    taken = np.array(choose([sources] * KEYS, 3, keys))
    subsets = [int(bits(np.array(subset))) for subset in combinations(range(6), 3)]
    assert p_value(bits(taken), equal(subsets)) > SUSPICIOUS
    # minibatches with consecutive numbers are independent
    both = bits(taken[:-1]) << 6 | bits(taken[1:])
    assert p_value(both, equal([a << 6 | b for a in subsets for b in subsets])) > SUSPICIOUS


def test_a_period_leaves_draws_uniform_and_renews_all() -> None:
    sources, period = np.arange(6, dtype=np.int64), 4
    keys = np.array([combine(23, i) for i in range(KEYS)])
    subsets = [int(bits(np.array(subset))) for subset in combinations(range(6), 3)]
    now = bits(np.array(choose([sources] * KEYS, 3, keys, period=period, phase=2)))
    later = bits(np.array(choose([sources] * KEYS, 3, keys + np.uint64(1), period=period, phase=2)))
    assert p_value(now, equal(subsets)) > SUSPICIOUS
    assert p_value(now << 6 | later, equal([a << 6 | b for a in subsets for b in subsets])) > SUSPICIOUS


@pytest.mark.parametrize("heaviest", [1e-300, 1e-310, 5e-324, 1.0])
def test_tiny_weights_are_drawn_in_proportion(heaviest: float) -> None:
    """Where arrivals are too late for a float64, position does not decide; also of those after a heavy one."""
    weights = np.full(6, min(heaviest, 1e-310))
    weights[2] = heaviest
    keys = np.array([combine(26, i) for i in range(KEYS // 4)])
    taken = np.array(choose([np.arange(6)] * len(keys), 2, keys, np.tile(weights, len(keys))))
    subsets = {int(bits(np.array(subset))): float(2 in subset) for subset in combinations(range(6), 2)}
    chances = {subset: has / 5 for subset, has in subsets.items() if has} if heaviest > 1e-309 else equal([*subsets])
    assert p_value(bits(taken), chances) > SUSPICIOUS
