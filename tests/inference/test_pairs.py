"""The example's scores of pairs, and best destinations, against all products at once."""

import pytest
import torch
from jobs import load_example
from layouts import SharedJob, on_all

import mpigraph.distributed as dist


@pytest.mark.slow
def test_pairs_and_best_equal_the_dense_matrix(job: SharedJob, oracle) -> None:
    example = load_example("pairs")
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
        for step in (1, 7, 1000):
            scores, ids = example.top_k(x, src, k, step)
            on_all(job.trainers, torch.equal(scores, wanted[0][:, :k]) and torch.equal(ids, wanted[1][:, :k]))
    dst = src.flip(0)
    on_all(job.trainers, torch.equal(example.scores(x, src, dst), dense[src, dst]))
    g.barrier()
