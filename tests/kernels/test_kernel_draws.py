"""Chi-square tests: the kernels draw from the distributions that they promise. Seeds are fixed, so nothing flickers.

A draw without some edges is one of a row that lacks them (``sampling/test_exclude.py``).
"""

from itertools import combinations, permutations

import numpy as np
import numpy.typing as npt
import pytest
from chi_square import SUSPICIOUS, bits, equal, p_value

from mpigraph.kernels.rng import combine
from mpigraph.kernels.sample import Candidates, Destinations, Edges, choose

I64 = npt.NDArray[np.int64]
DRAWS = 40_000


def draws(degree: int, k: int, replace: bool, *, weights: list[float] | None = None, nodes: int = 100) -> I64:
    """int64[DRAWS, k]: places drawn in lists of ``degree`` neighbours, of ``nodes`` nodes under many keys."""
    rows, begins, degrees = np.arange(nodes), np.arange(nodes) * degree, np.full(nodes, degree)
    offsets, out = np.arange(nodes + 1) * k, np.empty((DRAWS, k), np.int64)
    tiled = None if weights is None else np.tile(np.array(weights, np.float32), nodes)
    holes = (np.zeros(nodes, np.int64) for _ in range(3))
    candidates = Candidates(begins, degrees, np.full(nodes, sum(w > 0 for w in weights or [])), *holes)
    table = None if weights is None else np.empty(0, np.uint64)
    edges = Edges(np.append(begins, nodes * degree), 0, weights=tiled, table=table)
    for i in range(DRAWS // nodes):
        dst = Destinations(rows, rows, k, replace, combine(11, i)[None])
        share = out[i * nodes : (i + 1) * nodes].reshape(-1)
        choose(dst, edges, rows, candidates, offsets, share)
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
