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
