"""DGL's samplers on the arrays of ``prepare.py``; run with DGL_PYTHON as a worker of ``sampling.py``."""

import sys
from pathlib import Path

import common
import dgl
import dgl.graphbolt as gb
import numpy as np
import torch


class Samplers:
    """The kinds, each on a graph that is made when it is first asked for; all share the arrays."""

    def __init__(self, flat):
        self._csc = [torch.from_numpy(np.load(flat / f"{name}.npy")) for name in ("indptr", "indices")]
        self._seeds = torch.from_numpy(np.load(flat / "seeds.npy"))
        self._graphs = {}

    def sample(self, kind, fanouts, batches):
        fanouts = [int(fanout) for fanout in fanouts.split(",")]
        run = self._graphbolt(fanouts) if kind == "graphbolt" else self._neighbor_sampler(fanouts, kind == "fused")
        watch, edges = common.Stopwatch(), 0
        for seeds in self._seeds[:batches]:
            with watch:
                found = run(seeds)
            edges += found()
        return watch.medians() | {"edges": edges / batches}

    def _neighbor_sampler(self, fanouts, fused):
        if "dgl" not in self._graphs:
            csc = ("csc", (*self._csc, torch.empty(0, dtype=torch.int64)))
            self._graphs["dgl"] = dgl.graph(csc, num_nodes=len(self._csc[0]) - 1).formats("csc")
        g, sampler = self._graphs["dgl"], dgl.dataloading.NeighborSampler(fanouts, fused=fused)

        def run(seeds):
            blocks = sampler.sample_blocks(g, seeds)[2]
            return lambda: sum(block.num_edges() for block in blocks)

        return run

    def _graphbolt(self, fanouts):
        if "graphbolt" not in self._graphs:
            self._graphs["graphbolt"] = gb.fused_csc_sampling_graph(*self._csc)
        g = self._graphs["graphbolt"]

        def run(seeds):
            edges = []
            for fanout in reversed(fanouts):
                sampled = g.sample_neighbors(seeds, torch.LongTensor([fanout])).sampled_csc
                seeds, compacted = gb.unique_and_compact_csc_formats(sampled, seeds)
                edges.append(len(compacted.indices))
            return lambda: sum(edges)

        return run


if __name__ == "__main__":
    dgl.seed(0)
    common.answer(sample=Samplers(Path(sys.argv[1])).sample)
