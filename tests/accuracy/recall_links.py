"""``examples/link_prediction.py`` with another evaluation, that of recommendations; not collected by pytest.

    mpiexec -n 4 python tests/accuracy/recall_links.py K [arguments of the example]

For each node that is the source of an edge to predict, all nodes are ranked that ``ndata["candidate"]`` selects and
that have no edge to the source; the recall at K is the share of its edges to predict among the best K, a mean over the
sources. Each trainer ranks for its share of the sources, reading the nodes block by block; what a source has already is
sampled, so its owner tells it.
"""

import sys
from pathlib import Path

import torch

import mpigraph as mg

K = int(sys.argv.pop(1))
ROWS = 10_000  # nodes that are read together
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import link_prediction as example  # noqa: E402 - the path comes first


def recall(g, rows, src, dst, args, device):
    """Print the recall at K of the edges from ``src`` to ``dst``."""
    num = g.num_nodes()
    expected, pairs = torch.bincount(src, minlength=num), src * num + dst
    own_values = src.unique()[g.rank() :: torch.distributed.get_world_size()]
    sampler, sums = mg.dataloading.NeighborSampler([-1], return_eids=False), torch.zeros(2, dtype=torch.float64)
    for inputs, seeds, (block,) in mg.distributed.DistNodeDataLoader(g, own_values, sampler, batch_size=500):
        neighbours, of = block.edges()
        best = best_candidates(g, rows, seeds, inputs[neighbours], of)
        result = torch.isin(seeds[:, None] * num + best, pairs).sum(1)
        sums += torch.tensor([float((result / expected[seeds]).sum()), len(seeds)], dtype=torch.float64)
    torch.distributed.all_reduce(sums)
    if g.rank() == 0:
        print(f"recall@{K} {sums[0] / sums[1]:.4f}")


def best_candidates(g, rows, seeds, known, of):
    """int64[seeds, K]: the candidates of highest score, but those that are known of a seed."""
    own, scores, ids = rows[seeds], [], []
    for begin in range(0, g.num_nodes(), ROWS):
        end = min(begin + ROWS, g.num_nodes())
        score, here = own @ rows[begin:end].T, (known >= begin) & (known < end)
        score[of[here], known[here] - begin] = -torch.inf
        score[:, ~g.ndata["candidate"][begin:end]] = -torch.inf
        top = score.topk(min(K, end - begin))
        scores.append(top.values)
        ids.append(top.indices + begin)
    return torch.cat(ids, 1).gather(1, torch.cat(scores, 1).topk(K).indices)


if __name__ == "__main__":
    example.evaluate = recall
    example.main()
