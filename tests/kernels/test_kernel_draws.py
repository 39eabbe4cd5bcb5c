"""Chi-square tests: the kernels draw from the distributions that they promise. Seeds are fixed, so nothing flickers."""

from collections.abc import Sequence
from itertools import combinations, permutations

import numpy as np
import numpy.typing as npt
import pytest
from chi_square import SUSPICIOUS, WRONG, bits, equal, p_value

from mpigraph.kernels.exclude import copy_kept, recount_weighted, shorten_rows, step_over
from mpigraph.kernels.rng import combine, draw_below, mix64, uniform01
from mpigraph.kernels.sample import Candidates, Destinations, choose_uniform
from mpigraph.kernels.weighted import choose_weighted

I64 = npt.NDArray[np.int64]
DRAWS = 40_000


def draws(
    degree: int,
    k: int,
    replace: bool,
    *,
    weights: list[float] | None = None,
    nodes: int = 100,
    excluded: Sequence[int] = (),
) -> I64:
    """int64[DRAWS, k]: places drawn in lists of ``degree`` neighbours, of ``nodes`` nodes under many keys."""
    rows, begins, degrees = np.arange(nodes), np.arange(nodes) * degree, np.full(nodes, degree)
    offsets, out = np.arange(nodes + 1) * k, np.empty((DRAWS, k), np.int64)
    tiled = None if weights is None else np.tile(np.array(weights, np.float32), nodes)
    num_candidates = np.full(nodes, sum(w > 0 for w in weights or []))
    starts, counts, *holes = (np.zeros(nodes, np.int64) for _ in range(4))
    candidates, dst = (
        Candidates(begins, degrees, *holes, num_candidates),
        Destinations(rows, k, replace, combine(11, 0)[None]),
    )
    without = np.sort((begins[:, None] + np.array(excluded, np.int64)).reshape(-1))
    shorten_rows(dst, without, rows, candidates, counts)
    if tiled is None:
        starts = begins
    else:
        recount_weighted(dst, tiled, without, rows, candidates, counts)
        kept = np.empty(degrees.sum(), np.float32)
        copy_kept(tiled, without, rows, candidates, starts, kept)
    for i in range(DRAWS // nodes):
        dst, share = dst._replace(keys=combine(11, i)[None]), out[i * nodes : (i + 1) * nodes].reshape(-1)
        if tiled is None:
            choose_uniform(dst, rows, candidates, offsets, share)
        else:
            shortened = candidates._replace(begins=starts)
            choose_weighted(dst, kept, np.empty(0, np.uint64), rows, shortened, offsets, share)
        step_over(without, rows, starts, candidates, offsets, share)
        share -= np.repeat(begins, k)
    return out


def left_out(places: I64, degree: int) -> I64:
    """int64[n]: the two places (a < b) not drawn, as ``a * degree + b``."""
    drawn = np.zeros((len(places), degree), bool)
    np.put_along_axis(drawn, places, True, axis=1)
    pairs = np.nonzero(~drawn)[1].reshape(len(places), 2)
    return pairs[:, 0] * degree + pairs[:, 1]


# One node under many keys ... many nodes under one key
some_nodes = pytest.mark.parametrize("nodes", [pytest.param(1, marks=pytest.mark.slow), 100, DRAWS])

# Equal probabilities


@some_nodes
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_uniform_without_replacement_every_subset_is_equally_likely(k: int, nodes: int) -> None:
    places = draws(5, k, False, nodes=nodes)
    subsets = [int(bits(np.array(subset))) for subset in combinations(range(5), k)]
    assert p_value(bits(places), equal(subsets)) > SUSPICIOUS
    if k == 2:  # inclusion alone would not see a wrong pairing
        assert abs(np.bincount(places.reshape(-1)) / DRAWS - 0.4).max() < 0.01


@pytest.mark.parametrize("k", [64, 65])  # the last draw by Floyd's algorithm, the first by selection
def test_uniform_many_out_of_a_few_more(k: int) -> None:
    degree = k + 2
    places = draws(degree, k, False)
    pairs = [a * degree + b for a, b in combinations(range(degree), 2)]
    assert p_value(left_out(places, degree), equal(pairs)) > SUSPICIOUS


@pytest.mark.parametrize("k", [10, 70])
def test_uniform_few_out_of_many(k: int) -> None:
    degree = 300
    included = np.bincount(draws(degree, k, False).reshape(-1), minlength=degree)
    share = k / degree  # inclusions of one draw exclude each other: their variance is that of n (n - 1) / n cells
    statistic = ((included - DRAWS * share) ** 2).sum() / (DRAWS * share * (1 - share)) * (degree - 1) / degree
    assert abs(statistic - (degree - 1)) < 4 * np.sqrt(2 * (degree - 1))


@some_nodes
def test_uniform_with_replacement_draws_are_independent(nodes: int) -> None:
    places = draws(4, 3, True, nodes=nodes)
    assert p_value(places @ [1, 4, 16], equal(list(range(64)))) > SUSPICIOUS


def test_neighbouring_nodes_and_keys_draw_independently() -> None:
    one = draws(3, 1, True, nodes=1)[:, 0]
    many = draws(3, 1, True, nodes=DRAWS)[:, 0]
    for places in (one, many):
        assert p_value(places[:-1] * 3 + places[1:], equal(list(range(9)))) > SUSPICIOUS


# Weights


WEIGHTS = [1.0, 4.0, 0.0, 2.0, 3.0]
ALIVE = [i for i, w in enumerate(WEIGHTS) if w > 0]


@some_nodes
def test_weighted_with_replacement_is_proportional(nodes: int) -> None:
    places = draws(5, 2, True, weights=WEIGHTS, nodes=nodes)
    expected = {a + 5 * b: WEIGHTS[a] * WEIGHTS[b] / 100 for a in ALIVE for b in ALIVE}
    assert p_value(places @ [1, 5], expected) > SUSPICIOUS


def one_after_the_other(k: int) -> dict[int, float]:
    """Probability of each ordered choice: in proportion to weight among those left."""
    expected = {}
    for choice in permutations(ALIVE, k):
        left, probability = sum(WEIGHTS), 1.0
        for place in choice:
            probability *= WEIGHTS[place] / left
            left -= WEIGHTS[place]
        expected[sum(place * 5**i for i, place in enumerate(choice))] = probability
    return expected


@some_nodes
@pytest.mark.parametrize("k", [1, 2, 3])
def test_weighted_without_replacement_is_sequential(k: int, nodes: int) -> None:
    places = draws(5, k, False, weights=WEIGHTS, nodes=nodes)
    assert p_value(places @ (5 ** np.arange(k)), one_after_the_other(k)) > SUSPICIOUS


def test_equal_weights_are_uniform() -> None:
    subsets = [int(bits(np.array(subset))) for subset in combinations(range(5), 2)]
    assert p_value(bits(draws(5, 2, False, weights=[0.7] * 5)), equal(subsets)) > SUSPICIOUS
    assert p_value(draws(5, 1, True, weights=[0.7] * 5)[:, 0], equal(list(range(5)))) > SUSPICIOUS


# Excluded edges

LEFT = [0, 2, 3, 5, 6]  # of seven


@some_nodes
@pytest.mark.parametrize("k", [1, 2, 4])
def test_uniform_without_edges_every_subset_of_the_others_is_equally_likely(k: int, nodes: int) -> None:
    places = draws(7, k, False, nodes=nodes, excluded=[1, 4])
    subsets = [int(bits(np.array(subset))) for subset in combinations(LEFT, k)]
    assert p_value(bits(places), equal(subsets)) > SUSPICIOUS


@some_nodes
def test_uniform_without_edges_with_replacement(nodes: int) -> None:
    places = draws(7, 2, True, nodes=nodes, excluded=[4, 1])
    assert p_value(places @ [1, 7], equal([a + 7 * b for a in LEFT for b in LEFT])) > SUSPICIOUS


@pytest.mark.parametrize("k", [64, 65])
def test_uniform_many_of_those_left(k: int) -> None:
    degree, excluded = k + 5, [0, k, k + 4]  # the first, one inside, the last
    places = draws(degree, k, False, excluded=excluded)
    assert not np.isin(places, excluded).any()
    left = np.delete(np.arange(degree), excluded)
    pairs = [a * (k + 2) + b for a, b in combinations(range(k + 2), 2)]
    assert p_value(left_out(np.searchsorted(left, places), k + 2), equal(pairs)) > SUSPICIOUS


@some_nodes
def test_weighted_without_edges_is_proportional_among_the_others(nodes: int) -> None:
    with_two_more = [9.0, *WEIGHTS[:2], 5.0, *WEIGHTS[2:]]
    places = draws(7, 2, True, weights=with_two_more, nodes=nodes, excluded=[0, 3])
    assert not np.isin(places, [0, 3]).any()
    places = np.searchsorted([1, 2, 4, 5, 6], places)
    expected = {a + 5 * b: WEIGHTS[a] * WEIGHTS[b] / 100 for a in ALIVE for b in ALIVE}
    assert p_value(places @ [1, 5], expected) > SUSPICIOUS


@pytest.mark.parametrize("k", [1, 2, 3])
def test_weighted_without_edges_is_sequential_among_the_others(k: int) -> None:
    with_two_more = [9.0, *WEIGHTS[:2], 5.0, *WEIGHTS[2:]]
    places = draws(7, k, False, weights=with_two_more, excluded=[0, 3])
    places = np.searchsorted([1, 2, 4, 5, 6], places)
    assert p_value(places @ (5 ** np.arange(k)), one_after_the_other(k)) > SUSPICIOUS


# The bricks, and the power of these tests


@pytest.mark.parametrize("n", [2, 3, 10, 1000])
def test_draw_below_is_uniform(n: int) -> None:
    result = np.array([draw_below(np.uint64(mix64(np.uint64(i))), n) for i in range(DRAWS)])
    assert p_value(result, equal(list(range(n)))) > SUSPICIOUS


def test_uniform01_is_uniform() -> None:
    result = np.array([uniform01(np.uint64(mix64(np.uint64(i)))) for i in range(DRAWS)])
    assert p_value((result * 50).astype(np.int64), equal(list(range(50)))) > SUSPICIOUS


def test_wrong_distributions_are_noticed() -> None:
    uniform, weighted = draws(5, 2, False), draws(5, 2, False, weights=WEIGHTS)
    proportional = draws(5, 2, True, weights=WEIGHTS)
    subsets = [int(bits(np.array(subset))) for subset in combinations(range(5), 2)]
    skewed = equal(subsets)
    skewed[subsets[0]] *= 1.15
    assert p_value(bits(uniform), skewed) < WRONG  # one pair 15% too rare
    ring = np.stack([uniform[:, 0], (uniform[:, 0] + 1) % 5], 1)  # right inclusions, wrong pairs
    assert p_value(bits(ring), equal(subsets)) < WRONG
    by_product = {code: WEIGHTS[code % 5] * WEIGHTS[code // 5] for code in one_after_the_other(2)}
    assert p_value(weighted @ [1, 5], {c: p / sum(by_product.values()) for c, p in by_product.items()}) < WRONG
    assert p_value(proportional[:, 0], {i: 1 / 4 for i in ALIVE}) < WRONG
