"""Score pairs of nodes by the dot products of their rows, and find the best destinations of each source.

``h`` is a tensor or a DistTensor, such as mg.inference.layerwise gives. Every trainer may ask alone, for its own nodes.
"""

import torch

import mpigraph as mg


def scores(h, src, dst):
    """Return the dot product of each pair, float[n]."""
    return (h[src] * h[dst]).sum(1)


def top_k(h, src, k, step=10_000):
    """Return the scores and ids, [n, k] each, of the destinations that are best for each source; reads ``h`` once."""
    rows = h[src]
    best, ids = rows.new_empty(len(src), 0), torch.empty(len(src), 0, dtype=torch.int64)
    for begin in range(0, len(h), step):
        block = h[begin : min(begin + step, len(h))]
        ids = torch.cat([ids, torch.arange(begin, begin + len(block)).expand(len(src), -1)], 1)
        best, places = torch.cat([best, rows @ block.T], 1).sort(dim=1, descending=True, stable=True)
        best, ids = best[:, :k], ids.gather(1, places[:, :k])  # of equal scores, the lower id first
    return best, ids


if __name__ == "__main__":
    mg.distributed.initialize()
    h = torch.nn.functional.normalize(torch.randn(1000, 16, generator=torch.Generator().manual_seed(0)))
    print(scores(h, [0, 1], [2, 3]), *top_k(h, [0, 1], 3))
