"""Scores of pairs, and the best destinations, against all products at once."""

import pytest
import torch
from layouts import SharedJob, on_all

import mpigraph.distributed as dist
from mpigraph.errors import InvalidArgumentError, MPIGraphError, OutOfRangeError
from mpigraph.inference import score_pairs, top_k


def test_pairs_and_best_equal_the_dense_matrix(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    n = g.num_nodes()
    x = dist.DistTensor((n, 4), torch.float32, part_policy=g.get_node_partition_policy())
    if g.rank() == 0:
        x[:] = torch.randint(-2, 3, (n, 4), generator=torch.Generator().manual_seed(1))  # many equal products
    g.barrier()
    dense = x[:] @ x[:].T
    src = torch.arange(g.rank(), n, 3)
    for k in (0, 1, 5, n + 3):
        wanted = torch.sort(dense[src], dim=1, descending=True, stable=True)
        for batch_size in (1, 7, 1000):
            scores, ids = top_k(x, src, k, batch_size=batch_size)
            on_all(job.trainers, torch.equal(scores, wanted[0][:, :k]) and torch.equal(ids, wanted[1][:, :k]))
    dst = src.flip(0)
    on_all(job.trainers, torch.equal(score_pairs(x, src, dst, batch_size=6), dense[src, dst]))
    assert score_pairs((x, x), [], [], batch_size=6).shape == (0,)
    assert top_k(x, [], 3, batch_size=50)[1].shape == (0, 3)
    with pytest.raises(OutOfRangeError):
        score_pairs(x, [0], [n], batch_size=6)
    with pytest.raises(InvalidArgumentError, match="two ends"):
        score_pairs(x, [0], [1, 2], batch_size=6)
    with pytest.raises(MPIGraphError):
        top_k(x, [0], -1, batch_size=6)
    g.barrier()


def test_odd_rows_have_scores(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    n, policy = g.num_nodes(), g.get_node_partition_policy()
    half, flat, bad = (dist.DistTensor((n, *s), t, part_policy=policy) for s, t in ODD)
    if g.rank() == 0:
        half[:] = 300.0  # whose product float16 does not hold
        flat[:] = torch.arange(n)
        bad[:] = torch.stack([torch.arange(n).float(), torch.tensor([1.0, torch.nan]).repeat(n)[:n]], 1)
    g.barrier()
    assert score_pairs(half, [1], [2], batch_size=1).tolist() == [2 * 300.0**2]
    assert score_pairs(flat, [2, 3], [4, n - 1], batch_size=1).tolist() == [8.0, 3.0 * (n - 1)]
    best, ids = top_k((bad, bad), [2], n + 5, batch_size=7)
    even = torch.arange(n - 1, -1, -2)  # n is odd: of even ids the second number is 1
    assert torch.equal(ids[0, : len(even)], even)
    assert best[0, : len(even)].isfinite().all()
    assert best[0, len(even) :].isnan().all()
    assert torch.equal(ids[0, len(even) :], torch.arange(1, n, 2))
    wrong = [
        lambda: score_pairs((half, bad[:]), [1], [2], batch_size=1),
        lambda: score_pairs((half, flat), [1], [2], batch_size=1),
        lambda: score_pairs(half, [1], [2], batch_size=1, score=lambda u, v: None),
        lambda: score_pairs(half, [1], [2], batch_size=1, score=None),
        lambda: score_pairs(half, [1], [2], batch_size=1, device="nowhere"),
        lambda: top_k(half, [1], 2, batch_size=1, device="nowhere"),
        lambda: score_pairs(half, [[1]], [[2]], batch_size=1),
        lambda: score_pairs(half, [1.5], [2], batch_size=1),
        lambda: score_pairs(half, [1], [2], batch_size=0),
        lambda: top_k(flat, [1], 2, batch_size=1),
        lambda: top_k((half, flat), [1], 2, batch_size=1),
        lambda: top_k(half, [-1], 2, batch_size=1),
        lambda: top_k(half, [1], 2.5, batch_size=1),
    ]
    for call in wrong:
        with pytest.raises(MPIGraphError):
            call()
    g.barrier()


ODD = [((2,), torch.float16), ((), torch.float32), ((2,), torch.float32)]
