"""The partitioning changes where neighbours lie, not the distribution of draws: chi-square over original ids."""

from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
import torch
from layouts import Job, Layout
from mpi4py import MPI
from oracle import MAX_DEGREE, NAME, NUM_NODES
from scipy.special import chdtrc

import mpigraph.distributed as dist

I64 = npt.NDArray[np.int64]
DRAWS = 120  # a multiple of 1, 2, 3 and 4 trainers, so that all make the same number of rounds
SUSPICIOUS, WRONG = 1e-3, 1e-9
CASES = list(product([False, True], [None, "weight"]))

DEGREES = (4, 5, 6)
V = np.arange(NUM_NODES)
NODES = V[np.isin(V % (MAX_DEGREE + 1), DEGREES) & (V + MAX_DEGREE < NUM_NODES)]  # source v + step needs no modulo
STEPS = max(DEGREES) + 1


def stratum(nodes: I64) -> I64:
    """Nodes whose neighbours have the same degree and weights ``(2 v + step) % 4`` are counted together."""
    return (nodes % (MAX_DEGREE + 1) - DEGREES[0]) * 2 + nodes % 2


def pair_counts(path: str, job: Job) -> I64:
    """int64[case, stratum, step, step]: how often each pair of neighbours was drawn, over all trainers' draws."""

    def body() -> I64:
        g = dist.DistGraph(NAME, part_config=path)
        orig = g.ndata["orig"][:].numpy()
        nodes = torch.from_numpy(np.argsort(orig)[NODES])
        trainers = job.layout.trainers
        counts = np.zeros((len(CASES), 2 * len(DEGREES), STEPS, STEPS), np.int64)
        for case, (replace, prob) in enumerate(CASES):
            for seed in range(g.rank(), DRAWS, trainers):
                src, dst = dist.sample_neighbors(g, nodes, 2, prob=prob, replace=replace, seed=seed).edges()
                step = np.sort((orig[src] - orig[dst]).reshape(-1, 2), axis=1)
                np.add.at(counts[case], (stratum(NODES), step[:, 0], step[:, 1]), 1)
        return counts

    return job.comm.allreduce(job.run(body))


def pair_probabilities(replace: bool, prob: str | None) -> npt.NDArray[np.float64]:
    """float64[stratum, step, step]: of each pair (smaller step first), by enumeration."""
    reference = np.zeros((2 * len(DEGREES), STEPS, STEPS))
    for node in NODES:
        steps = range(1, node % (MAX_DEGREE + 1) + 1)
        weight = {s: float((2 * node + s) % 4) if prob else 1.0 for s in steps}
        total = sum(weight.values())
        table = np.zeros((STEPS, STEPS))
        for a, b in product(steps, steps):
            if weight[a] > 0 and (replace or a != b):
                left = total if replace else total - weight[a]
                table[min(a, b), max(a, b)] += weight[a] / total * weight[b] / left
        reference[stratum(node)] = table
    return reference


def p_of_expected(counts: I64, probabilities: npt.NDArray[np.float64]) -> float:
    """The p-value of counts, each stratum a multinomial of its own."""
    possible = probabilities > 0
    assert not counts[~possible].any()
    expected = (probabilities * counts.sum(axis=(1, 2), keepdims=True))[possible]
    assert expected.min() > 3
    statistic = ((counts[possible] - expected) ** 2 / expected).sum()
    return float(chdtrc(possible.sum() - len(counts), statistic))


def p_of_same(one: I64, other: I64) -> float:
    """The p-value of two counts with equal totals having one distribution."""
    seen = one + other > 0
    statistic = ((one - other)[seen] ** 2 / (one + other)[seen]).sum()
    return float(chdtrc(seen.sum() - len(one), statistic))


def check_counts(counts: dict[str, I64]) -> None:
    for case, (replace, prob) in enumerate(CASES):
        reference = pair_probabilities(replace, prob)
        for method, result in counts.items():
            assert result[case].sum() == DRAWS * len(NODES)
            assert p_of_expected(result[case], reference) > SUSPICIOUS, (method, replace, prob)
        assert not np.array_equal(counts["metis"][case], counts["random"][case])  # other ids, other draws
        assert p_of_same(counts["metis"][case], counts["random"][case]) > SUSPICIOUS, (replace, prob)
    uniform, weighted = counts["metis"][0], counts["random"][1]
    assert p_of_same(uniform, weighted) < WRONG  # the test sees a difference where there is one
    assert p_of_expected(weighted, pair_probabilities(False, None)) < WRONG


@pytest.mark.slow
def test_same_distribution_of_neighbours(comm: MPI.Intracomm, oracle) -> None:
    result = {}
    for ranks_per_node in (0, 1):
        job = Job(comm, Layout(comm.size, 0, ranks_per_node))
        result[ranks_per_node] = {method: pair_counts(oracle(2, method), job) for method in ("metis", "random")}
    check_counts(result[0])  # on every rank, so that all fail together
    for method in ("metis", "random"):  # where the hosts are does not even change a draw
        assert np.array_equal(result[0][method], result[1][method])
